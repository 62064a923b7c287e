"""Less garbage collection while a fresh Python of the tests imports torch, and when it ends.

Python imports this module when it starts, if ``make test`` has put the folder on its path. Hundreds
of tests start one, which then takes 1.1 s in place of 1.65 s.
"""

import atexit
import gc

gc.set_threshold(50_000)
atexit.register(gc.freeze)
