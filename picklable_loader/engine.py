"""Engine: carries out the schedule's instructions, in this process or over a pool of workers."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from . import datapipes
from .core.events import Arrived, Ended, Event, Failed, Task
from .pinning import warn_about_pinning
from .pool.pool import Pool
from .randomness import Isolated
from .transport.frames import Answer, Begin, Outcome, Request, encode_request, read_answer
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

    def send(self, worker: int, task: Task) -> None:
        """Have a worker fetch a task."""

    def wait(self) -> Event:
        """What happens next.

        Raises:
            RuntimeError: the time is up, or a worker has died.
        """

    def take(self, step: int) -> Answer:
        """What came for a step; it is forgotten here."""

    def close(self) -> None:
        """Let go of everything; may be called again."""


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

    def send(self, worker: int, task: Task) -> None:
        self._tasks.append(task)

    def wait(self) -> Event:
        # The task is taken off only when it is done: Ctrl-C loses nothing.
        step = self._tasks[0].step
        outcome, payload = self._fetch(self._tasks[0])
        self._tasks.popleft()
        if outcome is Outcome.ENDED:
            return Ended(step)
        self._results[step] = Answer(0, step, 0, outcome, payload)
        return Arrived(step) if outcome is Outcome.ARRIVED else Failed(step)

    def take(self, step: int) -> Answer:
        return self._results.pop(step)

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

    def send(self, worker: int, task: Task) -> None:
        begin = None
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
            for _, frame in answers:
                self._note(self._read(frame))
        return self._events.popleft()

    def take(self, step: int) -> Answer:
        return self._answers.pop(step)

    def close(self) -> None:
        self._answers.clear()
        self._pool.retire()

    def _read(self, frame: bytes) -> Answer:
        try:
            return read_answer(frame)
        except (ConnectionError, FileNotFoundError, EOFError):
            self.broken = True
            self._pool.report_death()
            raise

    def _note(self, answer: Answer) -> None:
        if answer.run != self._run:
            return
        if answer.outcome is Outcome.ENDED:
            self._events.append(Ended(answer.step))
            return
        self._answers[answer.step] = answer
        failed = answer.outcome is Outcome.FAILED
        self._events.append(Failed(answer.step) if failed else Arrived(answer.step))


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
        Post(worker, loader.num_workers, run.base_seed, init, run.shared_seed)
        for worker in range(loader.num_workers)
    ]
    return PoolEngine(Pool(context, loader._pl.job(), posts), loader.timeout)
