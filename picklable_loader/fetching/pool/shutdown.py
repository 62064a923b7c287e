"""How workers end: with the loader's process, when they are asked to, or by force."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch.multiprocessing

from ..transport.fork_safety import guard, loaders_ends

#: seconds that workers have to finish the batch at hand, once asked
ASKED_S = 0.3
#: those that they have with a worker_exit_fn, which may close files
EXIT_S = 5.0
#: seconds from the first sign of a process's end, such as an end of file, to the end itself
DYING_S = 10.0
#: seconds that they have to die of SIGTERM; with the above, less than anybody notices
_TERMINATED_S = 0.2


def retire(processes: Sequence[BaseProcess], seconds: float = ASKED_S) -> None:
    """Wait for processes that were asked to end, then use force; all are gone afterwards."""
    _join(processes, seconds)
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


def wait_for_end(pid: int, number: int | None = None) -> bool:
    """Wait until a process has ended, which need not be a child of this one.

    Args:
        pid: the process; it may be gone.
        number: a signal to send first, ``signal.SIGKILL`` for example.

    Returns:
        It has ended; False if it has not within `DYING_S`, or if the system cannot say.
    """
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:  # a kernel before 5.3
        return False
    try:
        if number is not None:
            signal.pidfd_send_signal(process, number)
        return bool(wait([process], DYING_S))
    except ProcessLookupError:  # it has just ended
        return True
    finally:
        os.close(process)


class Lifeline:
    """A pipe by which workers die at once with the loader's process, whatever that dies of.

    A worker sees the end of its channel only when it asks for the next task, which may be never. So
    it also has an end of a pipe that nobody writes to. When the loader's process ends, the system
    closes the other end, and that kills the worker. Unlike a "parent death signal", this does not
    depend on the thread that has started the worker, and it reaches a fork server's children.

    Where a system cannot do that, workers end when they next ask for a task.
    """

    def __init__(self, context: BaseContext) -> None:
        #: what workers are given
        self.end, self._ours = context.Pipe(duplex=False)
        loaders_ends.add(self._ours)

    def cut(self) -> None:
        """Close the pipe; processes that still have its other end die."""
        with guard:
            self._ours.close()
            self.end.close()


#: the folder of shared memory that has a name
_NAMED = Path("/dev/shm")


def remove_shared_memory(pids: Iterable[int | None], named: Path = _NAMED) -> None:
    """Remove the blocks of dead processes.

    Where torch hands descriptors on, a block has a name only while it is being made: a process
    that is killed right then leaves it. Where it hands names on, a process of torch's cleans up,
    and others may still need them.
    """
    if torch.multiprocessing.get_sharing_strategy() != "file_descriptor" or not named.is_dir():
        return
    prefixes = tuple(f"torch_{pid}_" for pid in pids)
    for name in os.listdir(named) if prefixes else ():
        if name.startswith(prefixes):
            with suppress(OSError):  # another user's, or gone by now
                (named / name).unlink()
