"""A time limit for every test: it fails with all stacks, and the processes that it has started end.

A plugin of pytest. How long a test may take is for pytest-timeout to say; what happens then is said
here. Its own way says nothing of other threads to whom it runs under xdist, and leaves processes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

#: seconds after which a test that has swallowed the error, or whose cleanup hangs, is given another
_AGAIN_S = 30.0


class TimeIsUp(BaseException):
    """A test has reached its limit. No ``except Exception`` takes it, and Hypothesis does not."""


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Let the limit strike in the main thread, if the test runs there."""
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None

    def strike(signum: int, frame: FrameType | None) -> None:
        found = _stacks_of_other_threads()
        raise TimeIsUp(f"not done within {settings.timeout:g} s\n{found}\nended: {_end_all()}")

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # pytest-timeout calls it
    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, _AGAIN_S)
    return True


def _stacks_of_other_threads() -> str:
    """Where each of them is; this one's stack is the error's traceback."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    )


def _end_all() -> list[str]:
    """Kill what this process has started, and what that has; returns their command lines.

    Python starts two helpers once a process: they stay.
    """
    helpers = {
        getattr(resource_tracker, "_resource_tracker")._pid,
        getattr(forkserver, "_forkserver")._forkserver_pid,
    }
    ended = []
    for pid in _descendants(os.getpid()) - helpers:
        with suppress(OSError):  # it has ended meanwhile
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            os.kill(pid, signal.SIGKILL)
            ended.append(f"{pid} {command.decode(errors='replace')[:100]}")
    return ended


def _descendants(of: int) -> set[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, more = set[int](), {of}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more}
        found |= more
    return found
