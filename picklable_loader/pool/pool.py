"""Pool: the worker processes of one loader, and one wait over all of them."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import warnings
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from ..transport.channel import Outbox
from ..worker.fetch import Job
from ..worker.main import work
from ..worker.serve import Post
from .ladder import retire

__all__ = ["Pool"]

#: The loader's ends of all pools of this process. A forked worker closes its copies.
_ends: weakref.WeakSet[Connection[Any, Any]] = weakref.WeakSet()

#: Held while a worker is started or a line closed: a fork in between would give a worker, under
#: the number of a line to be closed there, its own one. Re-entrant, as a collection may close one.
_lines = threading.RLock()

#: seconds from a worker's end of file to its exit code
_DYING_S = 10.0


def _new_lines() -> None:
    global _lines
    _lines = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lines)


class Pool:
    """Worker processes that answer requests.

    Args:
        context: how processes are started.
        job: what they do.
        posts: each worker's place; as many as there are to be workers.

    Raises:
        TypeError, AttributeError, pickle.PicklingError: the job cannot be pickled, under a start
            method that needs it.
    """

    def __init__(self, context: BaseContext, job: Job, posts: Sequence[Post]) -> None:
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection[Any, Any]] = []
        self._outboxes: list[Outbox] = []
        #: retires the workers when the pool is gone, at the latest when the interpreter ends
        self.retire = weakref.finalize(
            self, _retire, os.getpid(), self._connections, self._processes
        )
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
        except BaseException:
            self.retire()
            raise

    @property
    def pids(self) -> list[int | None]:
        return [process.pid for process in self._processes]

    def post(self, worker: int, frame: bytes) -> None:
        """Send a request to a worker; a dead one is noticed by ``wait``."""
        try:
            self._outboxes[worker].post(frame)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def wait(self, timeout_s: float | None) -> list[tuple[int, bytes]]:
        """Wait for answers.

        Args:
            timeout_s: seconds to wait; None for ever.

        Returns:
            The answers that came, at least one, each with its worker; none after the time is up.

        Raises:
            RuntimeError: a worker has died.
        """
        sentinels = [process.sentinel for process in self._processes]
        ready = wait([*self._connections, *sentinels], timeout_s)
        if not ready:
            return []
        answers = []
        for worker, connection in enumerate(self._connections):
            if connection in ready:
                frame = _receive(connection)
                if frame is not None:
                    answers.append((worker, frame))
                    self._answered(worker)
        if not answers:
            self.report_death(_DYING_S)
            raise RuntimeError("DataLoader worker has hung up, and is still alive")
        return answers

    def _start(self, context: BaseContext, job: Job, post: Post) -> None:
        with _lines:
            ours, theirs = context.Pipe()
            _ends.add(ours)
            inherited = list(_ends) if context.get_start_method() == "fork" else []
            process = context.Process(  # type: ignore[attr-defined]
                target=work, args=(theirs, inherited, job, post), daemon=True
            )
            self._connections.append(ours)
            try:
                process.start()
            finally:
                theirs.close()
        self._processes.append(process)
        self._outboxes.append(Outbox(ours))

    def _answered(self, worker: int) -> None:
        try:
            self._outboxes[worker].answered()
        except (BrokenPipeError, ConnectionResetError):
            pass

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


def _hang_up(connection: Connection[Any, Any]) -> None:
    """Close a connection so that the worker sees its end, whoever else has a copy of ours."""
    if os.name == "posix":
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the worker has closed its end
    with _lines:
        connection.close()


def _receive(connection: Connection[Any, Any]) -> bytes | None:
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):  # the worker is gone, perhaps in the middle of an answer
        return None


def _cause(process: BaseProcess) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        return f"worker (pid {process.pid}) is killed by signal: {signal.Signals(-code).name}"
    return f"worker (pid {process.pid}) has exit code {code}"


def _retire(
    owner: int, connections: list[Connection[Any, Any]], processes: list[BaseProcess]
) -> None:
    if os.getpid() != owner:  # a forked copy: neither line nor children are its own
        return
    for connection in connections:
        _hang_up(connection)
    retire(processes)
    connections.clear()
    processes.clear()
