"""New processes import torch and ours by this module, without a garbage collection.

A fork server does, for all its workers; a spawned worker does, where it looks up `work`.
"""

import gc

# Imports make no garbage. A full collection visits all that was imported: 80 to 95 ms each time.
collects = gc.isenabled()
gc.disable()

from .process import work  # noqa: E402, F401

gc.freeze()  # no later collection visits it either; a fork would copy what it visits
if collects:
    gc.enable()
