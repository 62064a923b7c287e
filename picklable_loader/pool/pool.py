"""Pool: the worker processes of one loader, and one wait over all of them."""

from __future__ import annotations

import os
import pickle
import signal
import warnings
import weakref
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from ..transport.forks import guard
from ..transport.frames import Answer
from ..transport.limits import explained, lacks_descriptors
from ..transport.lines import Lines
from ..worker.fetch import Job
from ..worker.main import work
from ..worker.serve import Post
from .ladder import retire
from .preload import preload

__all__ = ["Pool"]

#: seconds from a worker's end of file to its exit code
_DYING_S = 10.0


class Pool:
    """Worker processes that answer requests.

    Args:
        context: how processes are started.
        job: what they do.
        posts: each worker's place; as many as there are to be workers.
        lines: what connects them with the loader; the pool hangs up in the end.

    Raises:
        TypeError, AttributeError, pickle.PicklingError: the job cannot be pickled, under a start
            method that needs it.
    """

    def __init__(self, context: BaseContext, job: Job, posts: Sequence[Post], lines: Lines) -> None:
        self._processes: list[BaseProcess] = []
        self._sentinels: list[int] = []
        self._lines = lines
        #: retires the workers when the pool is gone, at the latest when the interpreter ends
        self.retire = weakref.finalize(self, _retire, os.getpid(), lines, self._processes)
        preload(context)
        try:
            for post in posts:
                self._start(context, job, post)
        except (TypeError, AttributeError, pickle.PicklingError):
            self.retire()
            warnings.warn(
                "Got pickle error when attempting to start a worker Process: the dataset, "
                "collate_fn, worker_init_fn or a seed hook cannot be pickled, which the start "
                f"method {context.get_start_method()!r} needs. Define it at the top level of a "
                'module, or use multiprocessing_context="fork"',
                stacklevel=2,
            )
            raise
        except BaseException as error:
            self.retire()
            if isinstance(error, OSError) and lacks_descriptors(error):
                raise explained(error, f"{len(posts)} workers cannot be started") from error
            raise

    @property
    def pids(self) -> list[int | None]:
        return [process.pid for process in self._processes]

    def post(self, worker: int | None, frame: bytes) -> None:
        """Send a request to a worker, or to any; a dead one is noticed by ``wait``."""
        self._lines.post(worker, frame)

    def wait(self, timeout_s: float | None) -> list[tuple[int, bytes]]:
        """Wait for answers.

        Args:
            timeout_s: seconds to wait; None for ever.

        Returns:
            The answers that came, at least one, each with its worker; none after the time is up.

        Raises:
            RuntimeError: a worker has died.
        """
        answers = self._lines.wait(self._sentinels, timeout_s)
        if answers is None:
            return []
        if not answers:
            self.report_death(_DYING_S)
            raise RuntimeError("DataLoader worker has hung up, and is still alive")
        return answers

    def look(self) -> list[tuple[int, bytes]]:
        """Answers that have come already, at most one of each worker."""
        try:
            return self._lines.wait(self._sentinels, 0.0) or []
        except OSError:
            return []  # a forked copy of the program, whose lines are closed

    def read(self, worker: int, frame: bytes) -> Answer:
        """What a worker's answer says."""
        return self._lines.read(worker, frame)

    def _start(self, context: BaseContext, job: Job, post: Post) -> None:
        # A fork while an end is half open, or half closed, would give a worker a copy that it does
        # not know of.
        with guard:
            end = self._lines.open(context)
            process = context.Process(  # type: ignore[attr-defined]
                target=work, args=(end, job, post), daemon=True
            )
            try:
                process.start()
            finally:
                end.close()
        self._processes.append(process)
        self._sentinels.append(process.sentinel)

    def report_death(self, seconds: float = 0.1) -> None:
        """Raise RuntimeError for the workers that have died, if any does within the time."""
        # An end of file comes a moment before the sentinel, and that before the exit code.
        ended = wait([process.sentinel for process in self._processes], seconds)
        for process in self._processes:
            if process.sentinel in ended:
                process.join(_DYING_S)
        dead = [process for process in self._processes if not process.is_alive()]
        if not dead:
            return
        pids = ", ".join(str(process.pid) for process in dead)
        causes = "; ".join(_cause(process) for process in dead)
        raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly: {causes}")


def _cause(process: BaseProcess) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        return f"worker (pid {process.pid}) is killed by signal: {signal.Signals(-code).name}"
    return f"worker (pid {process.pid}) has exit code {code}"


def _retire(owner: int, lines: Lines, processes: list[BaseProcess]) -> None:
    if os.getpid() != owner:  # a forked copy: neither line nor children are its own
        return
    lines.hang_up()
    retire(processes)
    processes.clear()
