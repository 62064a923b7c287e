"""Engine: what carries out the schedule's instructions: inline, or over a pool of workers."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ...core.events import Answered, Died
from ...core.streams import Marks, Place
from ...core.task import Task
from ...datasets import datapipes
from ...epoch.turns import Batch
from ...errors import UsageError
from ...loader.pin_memory import warn_about_pinning
from ...saving.pickles.explain import blame
from ...saving.pickles.parts import tried
from ...saving.pickles.picklers import STOCK, refusal
from ..pool.main_module import is_importable
from ..pool.pool import Pool
from ..transport.channels import Lines
from ..transport.messages import Answer, Begin
from ..transport.payload import Cargo
from ..transport.pipes import PipeLines
from ..transport.seqpacket import PacketLines, packets_work_here
from ..worker.fetch import Job
from ..worker.replica import Post
from .inline import InlineEngine
from .processes import Care, PoolEngine
from .stats import WorkerStats

if TYPE_CHECKING:
    from ...epoch.run import Run
    from ...loader.loader import DataLoader

__all__ = ["Engine", "make_engine"]


class Engine(Protocol):
    """What fetches batches."""

    #: the time was up in ``wait``, and its workers are at work as before
    timed_out: bool
    #: it has replaced a worker since the epoch began: the new one's dataset knows of none before
    renewed: bool

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

    def send(self, worker: int | None, task: Task, place: Place | None = None) -> None:
        """Have a worker fetch a task.

        Args:
            worker: which; None: whichever is idle first.
            task: the task.
            place: where its stream goes on, if another worker has read it before.
        """

    def wait(self) -> Answered | Died:
        """What happens next.

        Raises:
            RuntimeError: the time is up, or a worker has died and none takes its place.
        """

    def look(self) -> Sequence[Answered]:
        """What has come already and ``wait`` has not told yet; waits for nothing."""

    def take(self, step: int) -> Answer:
        """What came for a step; it is forgotten here."""

    def condemn(self, task: Task) -> Exception:
        """What to raise for a task that workers die of; the engine does not go on."""

    def last_marks(self, astray: dict[int, Place]) -> Marks | Answered | Died:
        """By stream, what the next epoch finds its dataset in, where it can be said.

        Args:
            astray: by stream, where those stand that nobody reads any more.

        Returns:
            What has happened instead, of which the schedule is to be told; then ask again.
        """

    def worker_states(self) -> dict[str, Any]:
        """The workers' generators after all that they have answered (``seeding="worker"``)."""

    def workers(self) -> tuple[WorkerStats, ...]:
        """What each worker did."""

    def answers(self) -> tuple[tuple[int, int, int, int], ...]:
        """The last answers, and when they came; see `Record`."""

    def close(self) -> None:
        """Let go of everything; may be called again."""


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
    source = loader._pl.source
    world = source.globals if in_torchs_way else partial(Batch, loader._pl.turn, source)
    streams = run.streams
    # Torch's worker information is not there with num_workers=0, unless there must be streams.
    given = streams if streams > 1 or loader._pl.options.num_streams is not None else None
    init = loader.worker_init_fn if given else None
    post = Post(0, 1, run.worker_seed, init, None, run.announced, given)
    inner = loader._pl
    return InlineEngine(inner.job(), post, world, inner.options.pickle_dataset, inner.origin())


def _pool_engine(loader: DataLoader[Any], run: Run) -> Engine:
    if loader.prefetch_factor is None or loader.prefetch_factor <= 0:
        raise AssertionError(
            "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
        )
    context = loader.multiprocessing_context or multiprocessing.get_context()
    init = datapipes.sharding(loader.dataset, loader.worker_init_fn)
    streams, workers = run.streams or None, loader.num_workers
    job, options = loader._pl.job(), loader._pl.options
    given: Job | Cargo = job
    if context.get_start_method() != "fork":
        given, init = _cargo(job, init, options.codec), None
    posts = [
        Post(worker, workers, run.worker_seed, init, run.shared_seed, run.announced, streams)
        for worker in range(workers)
    ]
    persistent = loader.persistent_workers
    care = Care(loader.timeout, options.on_timeout, options.max_task_deaths, persistent)
    pool = Pool(context, given, posts, _lines(loader), stacks=care.on_timeout == "restart")
    return PoolEngine(pool, posts, care)


def _cargo(job: Job, init: Any, wish: Any) -> Cargo:
    """What new processes are given: what they are to do, and worker_init_fn.

    Raises:
        CannotSaveError: no codec takes a part of it.
    """
    importable = is_importable()
    codecs = tried(wish if isinstance(wish, str) else "auto")
    if not importable and len(codecs) > 1:
        codecs = codecs[1:]  # pickle would write names that mean nothing there
    try:
        return Cargo((job, init), codecs, not importable)
    except Exception as error:
        warnings.warn(
            "Got pickle error when attempting to start a worker Process: a part of the loader "
            "cannot be sent to it (the error says which), which the start method needs. It need "
            'not be with multiprocessing_context="fork"',
            stacklevel=2,
        )
        parts = {"dataset": job.dataset, "collate_fn": job.collate_fn, "worker_init_fn": init}
        for name, part in parts.items():
            if all(refusal(codec, part, lambda _: None) for codec in codecs):
                raise blame(part, f"loader.{name}", (STOCK[0], *codecs)) from error
        raise


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
