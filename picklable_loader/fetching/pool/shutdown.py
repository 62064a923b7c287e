"""Ends worker processes, with more and more force: ask -> join -> terminate -> kill."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess

#: seconds that workers have to finish the batch at hand, once asked
_ASKED_S = 0.3
#: seconds that they have to die of SIGTERM; with the above, less than anybody notices
_TERMINATED_S = 0.2


def retire(processes: Sequence[BaseProcess]) -> None:
    """Wait for processes that were asked to end, then use force; all are gone afterwards."""
    _join(processes, _ASKED_S)
    for process in processes:
        if process.is_alive():
            process.terminate()
    _join(processes, _TERMINATED_S)
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()


def _join(processes: Sequence[BaseProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
