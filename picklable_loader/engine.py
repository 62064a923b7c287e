"""Engine: carries out the schedule's instructions, in this process or over a pool of workers."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from . import datapipes
from .core.events import Arrived, Ended, Event, Failed
from .core.task import Task
from .errors import UsageError
from .pinning import warn_about_pinning
from .pool.pool import Pool
from .randomness import Isolated
from .stats import WorkerStats
from .transport.frames import Answer, Begin, Outcome, Request, encode_request
from .transport.lines import Lines
from .transport.packets import PacketLines, packets_work_here
from .transport.pipes import PipeLines
from .worker.fetch import Fetcher, Job, StreamEnded, make_fetcher
from .worker.seeding import set_current
from .worker.serve import Post

if TYPE_CHECKING:
    from .loader import DataLoader
    from .run import Run

__all__ = ["Engine", "InlineEngine", "PoolEngine", "make_engine"]


class Engine(Protocol):
    """What fetches batches."""

    #: it cannot go on: a worker has died
    broken: bool

    def begin(self, begin: Begin, states: dict[str, Any]) -> None:
        """An epoch begins; whatever is under way for an earlier one is forgotten.

        Args:
            begin: the epoch.
            states: the workers' generators, by worker, to go on with (``seeding="worker"``).
        """

    def send(self, worker: int | None, task: Task) -> None:
        """Have a worker fetch a task; None: whichever is idle first."""

    def wait(self) -> Event:
        """What happens next.

        Raises:
            RuntimeError: the time is up, or a worker has died.
        """

    def take(self, step: int) -> Answer:
        """What came for a step; it is forgotten here."""

    def workers(self) -> tuple[WorkerStats, ...]:
        """What each worker did."""

    def close(self) -> None:
        """Let go of everything; may be called again."""


class _Clock:
    """What is counted of a worker."""

    __slots__ = ("arena_bytes", "began_ns", "busy_ns", "tasks")

    def __init__(self) -> None:
        self.began_ns = time.perf_counter_ns()
        self.tasks = self.busy_ns = self.arena_bytes = 0

    def add(self, busy_ns: int) -> None:
        self.tasks += 1
        self.busy_ns += busy_ns

    def stats(self, pid: int | None) -> WorkerStats:
        idle_ns = max(0, time.perf_counter_ns() - self.began_ns - self.busy_ns)
        return WorkerStats(pid, self.tasks, self.busy_ns / 1e9, idle_ns / 1e9, self.arena_bytes)


class InlineEngine:
    """Fetches in this process, when it is waited for.

    Args:
        job: what to do with tasks.
        world: makes the context in which people's code runs.
    """

    broken = False

    def __init__(self, job: Job, world: Callable[[], AbstractContextManager[Any]]) -> None:
        self._job = job
        self._world = world
        self._tasks: deque[Task] = deque()
        self._results: dict[int, Answer] = {}
        self._fetcher: Fetcher | None = None
        self._seed = 0
        self._clock = _Clock()

    def begin(self, begin: Begin, states: dict[str, Any]) -> None:
        self._tasks.clear()
        self._results.clear()
        self._seed = begin.base_seed
        before = set_current(self._seed)
        try:
            with self._world():
                self._fetcher = make_fetcher(self._job, begin.base_seed)
        finally:
            set_current(before)

    def send(self, worker: int | None, task: Task) -> None:
        self._tasks.append(task)

    def wait(self) -> Event:
        # The task is taken off only when it is done: Ctrl-C loses nothing.
        step = self._tasks[0].step
        began_ns = time.perf_counter_ns()
        outcome, payload = self._fetch(self._tasks[0])
        self._clock.add(time.perf_counter_ns() - began_ns)
        self._tasks.popleft()
        if outcome is Outcome.ENDED:
            return Ended(step)
        self._results[step] = Answer(0, step, 0, outcome, payload)
        return Arrived(step) if outcome is Outcome.ARRIVED else Failed(step)

    def take(self, step: int) -> Answer:
        return self._results.pop(step)

    def workers(self) -> tuple[WorkerStats, ...]:
        return (self._clock.stats(os.getpid()),)

    def close(self) -> None:
        self._tasks.clear()
        self._results.clear()
        self._fetcher = None

    def _fetch(self, task: Task) -> tuple[Outcome, Any]:
        fetcher = self._fetcher
        assert fetcher is not None, "begin() comes first"
        before = set_current(self._seed)
        try:
            with self._world():
                return Outcome.ARRIVED, fetcher.fetch(task)
        except StreamEnded:
            return Outcome.ENDED, None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Outcome.FAILED, error
        finally:
            set_current(before)


#: a worker that has waited for this part of a task's time, or longer, might have done more
_IDLE_PART = 8


class PoolEngine:
    """Fetches in worker processes.

    Args:
        pool: the workers.
        timeout_s: seconds to wait for an answer; 0 for ever.
    """

    def __init__(self, pool: Pool, timeout_s: float) -> None:
        self.broken = False
        self._pool = pool
        self._timeout_s = timeout_s
        self._run = 0
        self._begin: Begin | None = None
        #: workers that have not been told of the epoch, and the states they are to go on with
        self._untold: dict[int, Any] = {}
        self._answers: dict[int, Answer] = {}
        self._events: deque[Event] = deque()
        self._clocks = [_Clock() for _ in pool.pids]

    @property
    def pids(self) -> list[int | None]:
        """The workers' process numbers."""
        return self._pool.pids

    def begin(self, begin: Begin, states: dict[str, Any]) -> None:
        self._run += 1
        self._begin = begin
        self._answers.clear()
        self._events.clear()
        self._untold = {worker: states.get(str(worker)) for worker in range(len(self.pids))}

    def send(self, worker: int | None, task: Task) -> None:
        # Whoever takes a task from the queue may not have heard of the epoch.
        begin = self._begin if worker is None else None
        if worker in self._untold:
            begin = _with_states(self._begin, self._untold.pop(worker))
        self._pool.post(worker, encode_request(Request(self._run, task, begin)))

    def wait(self) -> Event:
        while not self._events:
            try:
                answers = self._pool.wait(self._timeout_s or None)
            except RuntimeError:
                self.broken = True
                raise
            if not answers:
                raise RuntimeError(f"DataLoader timed out after {self._timeout_s} seconds")
            for worker, frame in answers:
                self._note(self._read(worker, frame))
        return self._events.popleft()

    def take(self, step: int) -> Answer:
        return self._answers.pop(step)

    def workers(self) -> tuple[WorkerStats, ...]:
        return tuple(clock.stats(pid) for clock, pid in zip(self._clocks, self.pids))

    def close(self) -> None:
        self._answers.clear()
        self._pool.retire()

    def _read(self, worker: int, frame: bytes) -> Answer:
        try:
            return self._pool.read(worker, frame)
        except (ConnectionError, FileNotFoundError, EOFError):
            self.broken = True
            self._pool.report_death()
            raise

    def _note(self, answer: Answer) -> None:
        clock = self._clocks[answer.worker]
        clock.add(answer.busy_ns)
        clock.arena_bytes = answer.arena_bytes
        if answer.run != self._run:
            return
        if answer.outcome is Outcome.ENDED:
            self._events.append(Ended(answer.step))
            return
        self._answers[answer.step] = answer
        if answer.outcome is Outcome.FAILED:
            self._events.append(Failed(answer.step))
            return
        idled = answer.idle_ns > answer.busy_ns // _IDLE_PART
        self._events.append(Arrived(answer.step, answer.bytes, idled))


def _with_states(begin: Begin | None, states: Any) -> Begin | None:
    if begin is None or states is None:
        return begin
    return Begin(begin.base_seed, begin.announced, begin.shared_seed, states)


def make_engine(loader: DataLoader[Any], run: Run) -> Engine:
    """What fetches the batches of a loader; starts its workers.

    Raises:
        AssertionError: torch's, for arguments that it refuses here.
        TypeError, AttributeError, pickle.PicklingError: see `Pool`.
    """
    if loader.pin_memory:
        warn_about_pinning(loader.pin_memory_device)
    return _pool_engine(loader, run) if loader.num_workers else _inline_engine(loader, run)


def _inline_engine(loader: DataLoader[Any], run: Run) -> Engine:
    if loader.timeout != 0:
        raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
    datapipes.shard(loader.dataset)
    if run.shared_seed is not None:
        datapipes.seeded(loader.dataset, run.shared_seed)
    in_torchs_way = loader._pl.options.seeding == "worker"
    return InlineEngine(loader._pl.job(), loader._pl.source.globals if in_torchs_way else Isolated)


def _pool_engine(loader: DataLoader[Any], run: Run) -> Engine:
    if loader.prefetch_factor is None or loader.prefetch_factor <= 0:
        raise AssertionError(
            "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
        )
    context = loader.multiprocessing_context or multiprocessing.get_context()
    init = datapipes.sharding(loader.dataset, loader.worker_init_fn)
    posts = [
        Post(worker, loader.num_workers, run.base_seed, init, run.shared_seed, run.announced)
        for worker in range(loader.num_workers)
    ]
    pool = Pool(context, loader._pl.job(), posts, _lines(loader))
    return PoolEngine(pool, loader.timeout)


def _lines(loader: DataLoader[Any]) -> Lines:
    wish = loader._pl.options.transport
    if wish == "portable" or (wish == "auto" and default_transport() == "portable"):
        return PipeLines()
    if not packets_work_here():
        raise UsageError(
            'transport="arena" needs memfd_create and SOCK_SEQPACKET, which this system does not '
            'have, or refuses for want of descriptors; transport="auto" does without'
        )
    return PacketLines(loader._pl.pinned)


def default_transport() -> str:
    """What ``transport="auto"`` means on this system."""
    return "arena" if packets_work_here() else "portable"
