"""Preload: a fork server that has imported torch before it forks the first worker.

Importing torch takes more than a second, which under ``forkserver`` each worker would spend anew.
"""

from __future__ import annotations

from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import Any

__all__ = ["preload"]

#: imports torch, numpy and whatever a worker needs of us
_WORKER = "picklable_loader.worker.main"


def preload(context: BaseContext) -> None:
    """Have the fork server import what workers need; without effect on one that is running."""
    if context.get_start_method() != "forkserver":
        return
    server: Any = forkserver._forkserver
    # A program's own list stays; there is no public way to read it.
    wanted = list(getattr(server, "_preload_modules", ["__main__"]))
    if _WORKER not in wanted:
        forkserver.set_forkserver_preload([*wanted, _WORKER])
