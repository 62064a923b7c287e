"""Processes: children, and children's children, of which none gets lost."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

__all__ = ["TELL", "adopt_orphans", "children", "fork", "members", "name", "send", "wait_for_all"]

_PR_SET_CHILD_SUBREAPER = 36

#: has a child print where it is
TELL = signal.SIGUSR1


def adopt_orphans() -> None:
    """What loses its parent from now on becomes a child of this process, which sees it end."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "orphans cannot be adopted")


def fork(work: Callable[[], None], output: Path) -> int:
    """Run a function in a child, in a process group of its own.

    Args:
        work: the function.
        output: a file to which what the child prints is added.

    Returns:
        The child, whose number is that of the group.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        _lead(pid)
        return pid
    code = 1
    try:
        _lead(0)
        _print_to(output)
        # Python 3.14's default, forkserver, would ask the server of the process that was forked.
        multiprocessing.set_start_method("fork", force=True)
        faulthandler.register(TELL)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _lead(pid: int) -> None:
    """Make it the first of a group: parent and child both do, as neither can wait for the other."""
    os.setpgid(pid, pid or os.getpid())


def _print_to(output: Path) -> None:
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def children(pid: int) -> list[int]:
    """The children of a process."""
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []  # it has ended


def members(group: int) -> list[str]:
    """The processes of a group that are left, each with its state, as ``ps`` names it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, of = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has ended
        if int(of) == group:
            found.append(f"{path.parent.name} ({state}, child of {parent})")
    return found


def name(pid: int) -> str:
    """What a process is called."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it has ended


def send(parent: int, pid: int, number: signal.Signals) -> bool:
    """Send a signal to a process, if it is still that parent's child.

    Returns:
        It was sent to a process that was alive.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # A number may have been given out anew; what a descriptor stands for stays the same.
        state, of = _stands(pid)
        if of != parent or state == "Z":
            return False
        signal.pidfd_send_signal(process, number)
        return True
    except OSError:
        return False
    finally:
        os.close(process)


def _stands(pid: int) -> tuple[str, int]:
    """The state of a process, and its parent."""
    state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return state, int(parent)


def wait_for_all(group: int, seconds: float) -> bool:
    """Wait until no process of a group is left.

    Returns:
        None is; else the time is up.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(0.001)
        except ChildProcessError:
            return True
    return False
