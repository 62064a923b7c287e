"""Preparations before the first worker is started.

Above all, the fork server imports torch. That takes more than a second, which each worker would
spend anew under ``forkserver``.
"""

from __future__ import annotations

from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

#: imports torch, numpy and whatever a worker needs of us
_WORKER = "picklable_loader.fetching.worker.process"


def preload(context: BaseContext) -> None:
    """Start Python's resource tracker, and have a fork server import what workers need.

    It is without effect on a fork server that is running.
    """
    if context.get_start_method() == "fork":
        return
    # It needs one, and would unblock Ctrl-C in the middle of the first worker's start.
    resource_tracker.ensure_running()
    if context.get_start_method() != "forkserver":
        return
    server: Any = forkserver._forkserver
    # A program's own list stays; there is no public way to read it.
    wanted = list(getattr(server, "_preload_modules", ["__main__"]))
    if _WORKER not in wanted:
        forkserver.set_forkserver_preload([*wanted, _WORKER])
