"""The worker processes of one loader, and one wait over all of them."""

from __future__ import annotations

import os
import pickle
import signal
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from ..transport.channels import Lines
from ..transport.fork_safety import guard
from ..transport.open_files import explained, lacks_descriptors
from ..transport.payload import Payload
from ..worker.fetch import Job
from ..worker.hooks import check_arguments
from ..worker.process import without_ctrl_c
from ..worker.replica import WorkerConfig
from .exit import NOT_KNOWN, Death
from .new_processes import Work, hidden, preload, start
from .shutdown import ASKED_S, DYING_S, Lifeline, remove_shared_memory, retire, wait_for_end
from .stack_dumps import Stacks


class Pool:
    """Worker processes that answer requests; the pool closes their lines in the end.

    With ``stacks`` it asks those that are stuck for their stacks. ``init_arg`` makes what
    ``worker_init_fn`` is given in addition, for the stream of that number, of so many.

    Raises:
        TypeError, AttributeError, pickle.PicklingError: the job cannot be pickled, under a start
            method that needs it.
    """

    def __init__(
        self,
        context: BaseContext,
        job: Job | Payload,
        configs: Sequence[WorkerConfig],
        lines: Lines,
        stacks: bool = False,
        init_arg: Callable[[int, int], Any] | None = None,
        seconds_to_end: float = ASKED_S,
    ) -> None:
        self._init_arg = init_arg
        #: by number of the stream, what that has made: all workers that may read one have the same
        self._init_args: dict[int, Any] = {}
        self._context, self._job = context, job
        self._processes: list[BaseProcess] = []
        #: for requests and answers
        self.lines = lines
        self._lifeline = Lifeline(context)
        self._stacks = Stacks(context) if stacks else None
        ends = self._lifeline, lines, self._stacks, job
        #: retires the workers when the pool is gone, at the latest when the interpreter ends
        owner, processes = os.getpid(), self._processes
        self.retire = weakref.finalize(self, _retire, owner, ends, processes, seconds_to_end)
        try:
            with hidden(context):
                preload(context)
                for config in configs:
                    self._processes.append(self._start(config))
            self._watch()
        except BaseException as error:
            self.retire()
            if isinstance(error, OSError) and lacks_descriptors(error):
                raise explained(error, f"{len(configs)} workers cannot be started") from error
            raise

    @property
    def pids(self) -> list[int | None]:
        return [process.pid for process in self._processes]

    # --- deaths ----------------------------------------------------------------------------------

    def dies(self, worker: int) -> bool:
        """A worker has died, or is about to."""
        return bool(wait([self._processes[worker].sentinel], DYING_S))

    def deaths(self, seconds: float = DYING_S) -> list[Death]:
        """The workers that have died, or do so within a time."""
        # An end of file comes a moment before the sentinel, and that before the exit code.
        ended = wait([process.sentinel for process in self._processes], seconds)
        for process in self._processes:
            if process.sentinel in ended:
                process.join(DYING_S)
                if process.exitcode == NOT_KNOWN and process.pid is not None:
                    # Perhaps the fork server has died, and the worker lives. It would go on taking
                    # tasks from the common queue, and nobody hears its answers: the loader hangs.
                    wait_for_end(process.pid, signal.SIGKILL)
        dumps = {} if self._stacks is None else self._stacks.dumps
        return [
            Death(worker, process.pid or 0, process.exitcode, dumps.pop(worker, ""))
            for worker, process in enumerate(self._processes)
            if process.exitcode is not None
        ]

    def replace(self, worker: int, config: WorkerConfig) -> None:
        """Start a worker in place of a dead one; OSError if the system has no room for it."""
        before = self._processes[worker]
        remove_shared_memory([before.pid])
        self._init_args.clear()  # made when a worker starts: it may depend on the training
        with hidden(self._context):
            self._processes[worker] = self._start(config)
        self._watch()
        before.close()

    def kill(self, worker: int) -> None:
        """Kill a worker that is stuck, once it has said where, if it can."""
        process = self._processes[worker]
        if self._stacks is not None and process.pid is not None:
            self._stacks.ask(worker, process.pid)
        process.kill()

    def _watch(self) -> None:
        self.lines.watch([process.sentinel for process in self._processes])

    def _start(self, config: WorkerConfig) -> BaseProcess:
        if self._init_arg is not None:
            for number in config.may_serve:
                if number not in self._init_args:
                    self._init_args[number] = self._init_arg(number, config.served.total)
            given = {number: self._init_args[number] for number in config.may_serve}
            config = replace(config, init_args=given)
        # A fork while an end is half open, or half closed, would give a worker a copy that it does
        # not know of.
        with guard, without_ctrl_c():
            end = self.lines.open(self._context, config.worker)
            stack = None if self._stacks is None else self._stacks.open(config.worker)
            process = self._context.Process(  # type: ignore[attr-defined]
                target=Work(), args=(end, self._job, config, self._lifeline.end, stack), daemon=True
            )
            try:
                start(process)
            except (TypeError, AttributeError, pickle.PicklingError):
                check_arguments(config.init_args or {}, self._context.get_start_method())
                raise
            finally:
                end.close()
                if stack is not None:
                    stack.close()
        started: BaseProcess = process
        return started


def _retire(
    owner: int,
    ends: tuple[Lifeline, Lines, Stacks | None, Job | Payload],
    processes: list[BaseProcess],
    seconds: float,
) -> None:
    if os.getpid() != owner:  # a forked copy: neither line nor children are its own
        return
    lifeline, lines, stacks, job = ends
    try:
        lines.hang_up()
        retire(processes, seconds)
        remove_shared_memory([process.pid for process in processes if process.exitcode])
    finally:  # also if a second Ctrl-C comes while they are awaited: the system kills them
        processes.clear()
        lifeline.cut()
        if isinstance(job, Payload):
            job.close()
        if stacks is not None:
            stacks.close()
