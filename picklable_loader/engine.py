"""Engine: carries out the schedule's instructions, in this process or over a pool of workers."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch.utils.data._utils import worker as torch_worker

from . import datapipes
from .core.events import Answered, Arrived, Ended, Failed
from .core.streams import Place
from .core.task import Task
from .errors import StreamError, UsageError
from .pinning import warn_about_pinning
from .pool.pool import Pool
from .randomness import Isolated
from .refusals import unsent
from .stats import Clocks, WorkerStats
from .transport.frames import Answer, Begin, Outcome, Request, encode_request
from .transport.lines import Lines
from .transport.packets import PacketLines, packets_work_here
from .transport.pipes import PipeLines
from .worker.fetch import Job, StreamEnded
from .worker.replica import Copies, Post, Replica
from .worker.seeding import set_current

if TYPE_CHECKING:
    from .loader import DataLoader
    from .run import Run

__all__ = ["Engine", "InlineEngine", "PoolEngine", "make_engine"]


_T = TypeVar("_T")

#: states of streams
Marks = dict[int, Any]


class Engine(Protocol):
    """What fetches batches."""

    #: it cannot go on: a worker has died
    broken: bool

    def begin(self, begin: Begin, states: dict[str, Any], places: dict[int, Place]) -> Marks:
        """An epoch begins; whatever is under way for an earlier one is forgotten.

        Args:
            begin: the epoch.
            states: the workers' generators, by worker, to go on with (``seeding="worker"``).
            places: by stream, where it goes on; the others begin the epoch.

        Returns:
            By stream, its state at the epoch's beginning, where that is known at once.

        Raises:
            StreamError: a stream cannot go on from there; others say so in ``wait``.
        """

    def send(self, worker: int | None, task: Task) -> None:
        """Have a worker fetch a task; None: whichever is idle first."""

    def wait(self) -> Answered:
        """What happens next.

        Raises:
            RuntimeError: the time is up, or a worker has died.
        """

    def look(self) -> Sequence[Answered]:
        """What has come already and ``wait`` has not told yet; waits for nothing."""

    def take(self, step: int) -> Answer:
        """What came for a step; it is forgotten here."""

    def last_marks(self) -> Marks:
        """By stream, what the next epoch finds its dataset in, where it can be said at once."""

    def workers(self) -> tuple[WorkerStats, ...]:
        """What each worker did."""

    def close(self) -> None:
        """Let go of everything; may be called again."""


class InlineEngine:
    """Fetches in this process, when it is waited for.

    Args:
        job: what to do with tasks.
        post: who would do them, if there were a worker.
        world: makes the context in which people's code runs.
    """

    broken = False

    def __init__(
        self, job: Job, post: Post, world: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._world = world
        self._stateful = job.stateful
        self._tasks: deque[Task] = deque()
        self._results: dict[int, Answer] = {}
        self._seed = 0
        self._clocks = Clocks(1)
        copies = Copies(job, several=(post.streams or 1) > 1)
        #: one of which nothing tells that it is one, or as many as there are streams
        bare = post.streams is None
        self._replicas = [Replica(copies.next(), post, n, bare) for n in range(post.streams or 1)]
        self._started = bare

    def begin(self, begin: Begin, states: dict[str, Any], places: dict[int, Place]) -> Marks:
        self._tasks.clear()
        self._results.clear()
        self._seed = begin.base_seed
        return self._inside(self._begin, begin, places)

    def send(self, worker: int | None, task: Task) -> None:
        self._tasks.append(task)

    def wait(self) -> Answered:
        # The task is taken off only when it is done: Ctrl-C loses nothing.
        task = self._tasks[0]
        began_ns = time.perf_counter_ns()
        outcome, payload, mark = self._inside(self._fetch, task, began_ns)
        busy_ns, ended = time.perf_counter_ns() - began_ns, outcome is Outcome.ENDED
        self._clocks.answered(0, busy_ns, ended=ended)
        self._tasks.popleft()
        if ended:
            return Ended(task.step, mark)
        self._results[task.step] = Answer(0, task.step, 0, outcome, payload)
        if outcome is Outcome.FAILED:
            return Failed(task.step, mark)
        return Arrived(task.step, mark=mark)

    def look(self) -> Sequence[Answered]:
        return ()

    def take(self, step: int) -> Answer:
        return self._results.pop(step)

    def last_marks(self) -> Marks:
        if not self._stateful:
            return {}  # streams that end have said so
        marks = self._inside(lambda: [replica.last_mark() for replica in self._replicas])
        return dict(enumerate(marks))

    def workers(self) -> tuple[WorkerStats, ...]:
        return self._clocks.stats([os.getpid()])

    def close(self) -> None:
        self._tasks.clear()
        self._results.clear()
        self._replicas.clear()

    def _fetch(self, task: Task, began_ns: int) -> tuple[Outcome, Any, Any]:
        replica = self._replicas[task.stream or 0]
        try:
            batch = replica.fetch(task)
        except StreamEnded:
            return Outcome.ENDED, None, replica.last_mark()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Outcome.FAILED, error, replica.mark(began_ns, failed=True)
        return Outcome.ARRIVED, batch, replica.mark(began_ns)

    def _begin(self, begin: Begin, places: dict[int, Place]) -> Marks:
        for stream, replica in enumerate(self._replicas):
            if not self._started:
                replica.start()
            replica.begin(begin, places.get(stream))
        self._started = True
        # The dataset is the program's own: a pickle of the loader finds it in mid-epoch.
        marks = {stream: replica.first_mark() for stream, replica in enumerate(self._replicas)}
        return {stream: mark for stream, mark in marks.items() if stream not in places}

    def _inside(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Run people's code, which leaves no trace in this process."""
        before, info = set_current(self._seed), torch_worker._worker_info
        try:
            with self._world():
                return act(*arguments)
        finally:
            set_current(before)
            torch_worker._worker_info = info


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
        #: the workers' generators and the streams' places that they are to go on with
        self._states: dict[str, Any] = {}
        self._places: dict[int, Place] = {}
        #: streams that have been told of the epoch
        self._told: set[int] = set()
        self._answers: dict[int, Answer] = {}
        #: what has come, and what cannot go on, in this order
        self._events: deque[Answered | Exception] = deque()
        self._clocks = Clocks(len(pool.pids))
        #: held by whoever takes answers in: another thread may ask for figures
        self._taking = threading.Lock()

    @property
    def pids(self) -> list[int | None]:
        """The workers' process numbers."""
        return self._pool.pids

    def begin(self, begin: Begin, states: dict[str, Any], places: dict[int, Place]) -> Marks:
        self._run += 1
        self._begin = begin
        self._states, self._places = states, places
        self._told.clear()
        self._answers.clear()
        self._events.clear()
        return {}

    def send(self, worker: int | None, task: Task) -> None:
        begin, place, stream = self._begin, None, task.stream
        # Whoever takes a task from the queue may not have heard of the epoch.
        if stream is not None:
            begin = None
            if stream not in self._told:
                begin = _with_states(self._begin, self._states.get(str(worker)))
                place = self._places.get(stream)
        try:
            self._pool.post(worker, encode_request(Request(self._run, task, begin, place)))
        except Exception as error:  # the schedule counts on an answer
            self._fail(task.step, unsent(task.step, error))
            return
        self._clocks.sent(worker)
        if stream is not None:
            self._told.add(stream)

    def wait(self) -> Answered:
        while not self._events:
            with self._taking:
                self._take_in(self._wait())
        event = self._events.popleft()
        if isinstance(event, Exception):
            self.broken = True
            if not isinstance(event, StreamError):
                self._pool.report_death()  # which says more
            raise event
        return event

    def look(self) -> Sequence[Answered]:
        if self._taking.acquire(blocking=False):
            try:
                while answers := self._pool.look():
                    self._take_in(answers)
            finally:
                self._taking.release()
        return [event for event in tuple(self._events) if not isinstance(event, Exception)]

    def take(self, step: int) -> Answer:
        return self._answers.pop(step)

    def last_marks(self) -> Marks:
        return {}

    def workers(self) -> tuple[WorkerStats, ...]:
        return self._clocks.stats(self.pids)

    def close(self) -> None:
        self._answers.clear()
        self._pool.retire()

    def _wait(self) -> list[tuple[int, bytes]]:
        try:
            answers = self._pool.wait(self._timeout_s or None)
        except RuntimeError:
            self.broken = True
            raise
        if not answers:
            raise RuntimeError(f"DataLoader timed out after {self._timeout_s} seconds")
        return answers

    def _take_in(self, answers: list[tuple[int, bytes]]) -> None:
        for worker, frame in answers:
            try:
                self._note(self._pool.read(worker, frame))
            except (ConnectionError, FileNotFoundError, EOFError) as error:
                self._events.append(error)

    def _note(self, answer: Answer) -> None:
        ended = answer.outcome is Outcome.ENDED
        self._clocks.answered(answer.worker, answer.busy_ns, answer.arena_bytes, ended)
        if answer.run != self._run:
            return
        if answer.outcome is Outcome.REFUSED:
            self._events.append(answer.payload)
            return
        self._events.append(_event(answer))
        if not ended:
            self._answers[answer.step] = answer

    def _fail(self, step: int, error: Exception) -> None:
        """Answer a task that no worker will."""
        self._answers[step] = Answer(self._run, step, 0, Outcome.FAILED, error)
        self._events.append(Failed(step))


def _event(answer: Answer) -> Answered:
    if answer.outcome is Outcome.ENDED:
        return Ended(answer.step, answer.mark)
    if answer.outcome is Outcome.FAILED:
        return Failed(answer.step, answer.mark)
    idled = answer.idle_ns > answer.busy_ns // _IDLE_PART
    return Arrived(answer.step, answer.bytes, idled, answer.mark)


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
    in_torchs_way = loader._pl.options.seeding == "worker"
    world = loader._pl.source.globals if in_torchs_way else Isolated
    streams = run.streams
    # Torch's worker information is not there with num_workers=0, unless there must be streams.
    given = streams if streams > 1 or loader._pl.options.num_streams is not None else None
    init = loader.worker_init_fn if given else None
    post = Post(0, 1, run.base_seed, init, None, run.announced, given)
    return InlineEngine(loader._pl.job(), post, world)


def _pool_engine(loader: DataLoader[Any], run: Run) -> Engine:
    if loader.prefetch_factor is None or loader.prefetch_factor <= 0:
        raise AssertionError(
            "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
        )
    context = loader.multiprocessing_context or multiprocessing.get_context()
    init = datapipes.sharding(loader.dataset, loader.worker_init_fn)
    streams, workers = run.streams or None, loader.num_workers
    posts = [
        Post(worker, workers, run.base_seed, init, run.shared_seed, run.announced, streams)
        for worker in range(workers)
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
