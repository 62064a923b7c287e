"""The interface through which the driver has batches fetched: inline, or by a pool of workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...core.events import Answered, Died, LastState
from ...core.streams import StreamPosition, StreamStates
from ...core.task import Task
from ...datasets import datapipes
from ...errors import UsageError, warn
from ...saving.pickles.explain import blame
from ...saving.pickles.parts import tried
from ...saving.pickles.picklers import refusal
from ...saving.pickles.stock import STOCK
from ..pool.new_processes import is_importable
from ..pool.pool import Pool
from ..pool.shutdown import ASKED_S, EXIT_S
from ..transport import page_lock
from ..transport.channels import Lines
from ..transport.messages import Answer, EpochStart
from ..transport.payload import Payload
from ..transport.pipes import PipeLines
from ..transport.seqpacket import PacketLines, packets_work_here
from ..worker.fetch import Job
from ..worker.replica import WorkerConfig
from .deaths import DeathCount
from .inline import InlineEngine
from .pool_engine import FaultPolicy, PoolEngine
from .stats import Clocks, WorkerStats


class Engine(Protocol):
    """A fetcher of batches, in this process or in workers."""

    #: the time was up in ``wait``, and its workers are at work as before
    timed_out: bool
    #: since the epoch began it has replaced a worker, or a stream has moved to another one: some
    #: worker's dataset is not where the epoch leaves its streams
    renewed: bool
    #: by step, answers that ``wait`` has announced; the driver pops them
    answers: dict[int, Answer]
    #: the workers' generators after all that they have answered, delivered or not
    #: (``seeding="worker"``)
    worker_states: dict[str, Any]
    clocks: Clocks
    deaths: DeathCount

    def begin(
        self, begin: EpochStart, states: dict[str, Any], positions: dict[int, StreamPosition]
    ) -> StreamStates:
        """Begin an epoch; what is under way for an earlier one is forgotten.

        Args:
            begin: the epoch.
            states: the workers' generators, by worker, to go on with (``seeding="worker"``).
            positions: of streams that do not begin the epoch.

        Returns:
            By stream, its state at the epoch's beginning, where that is known at once.

        Raises:
            StreamError: a stream cannot go on from there; others say so in ``wait``.
        """

    def send(self, worker: int | None, task: Task, position: StreamPosition | None = None) -> None:
        """Have a worker, or whichever is idle first (None), fetch a task.

        The position is that of its stream, if another worker has read it before.
        """

    def ask(self, worker: int, stream: int, position: StreamPosition | None = None) -> None:
        """Have a worker send the state in which the next epoch finds a stream's dataset.

        It opens the stream at that position first, if one is given.
        """

    def wait(self) -> Answered | LastState | Died:
        """Wait for the next event: a request was answered, or a worker has died.

        Raises:
            RuntimeError: the time is up, or a worker has died and is not replaced.
        """

    def look(self) -> Sequence[Answered]:
        """Answers that have come already and that ``wait`` has not returned yet; never waits."""

    def workers(self) -> tuple[WorkerStats, ...]:
        """Figures of each worker."""

    def close(self) -> None:
        """Release everything; may be called again."""


@dataclass(frozen=True)
class Setup:
    """All that an engine is made from. The loader fills it for each new engine."""

    job: Job
    #: of the first worker; the others have other numbers
    config: WorkerConfig
    fault_policy: FaultPolicy
    #: how workers are started
    context: Any
    #: makes what worker_init_fn is given in addition, in the main process, for the number of a
    #: stream, and how many there are
    init_arg: Callable[[int, int], Any] | None
    prefetch_factor: int | None
    transport: str
    codec: Any
    #: each batch has a certain worker
    workers_fixed: bool
    #: the consumer copies batches to a GPU
    page_locked: bool
    #: the ranks share the data already
    sharded: bool
    #: makes the context in which people's code runs in this process
    isolation: Callable[[], AbstractContextManager[Any]]
    #: called in that context with each batch's step, where its draws go on where the last one's
    #: ended; None: each batch is seeded, or draws nothing
    before_batch: Callable[[int], None] | None


def make_engine(setup: Setup) -> Engine:
    """The engine that fetches the batches of a loader; starts its workers.

    Raises:
        AssertionError: torch's, for arguments that it refuses here.
        TypeError, AttributeError, pickle.PicklingError: see `Pool`.
    """
    return _inline_engine(setup) if setup.config.here else _pool_engine(setup)


def _inline_engine(setup: Setup) -> Engine:
    if setup.fault_policy.timeout_s != 0:
        raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
    config, init, dataset = setup.config, None, setup.job.dataset
    if config.streams is not None:  # each stream has a share, as in a worker
        init = datapipes.sharding(dataset, config.worker_init_fn, alone=setup.sharded)
    elif not setup.sharded:
        datapipes.shard(dataset)
    config = replace(config, worker_init_fn=init)
    if init is not None and setup.init_arg is not None:
        make, total = setup.init_arg, config.served.total
        config = replace(config, init_args={n: make(n, total) for n in config.may_serve})
    return InlineEngine(setup.job, config, setup.isolation, setup.before_batch)


def _pool_engine(setup: Setup) -> Engine:
    if setup.prefetch_factor is None or setup.prefetch_factor <= 0:
        raise AssertionError(
            "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
        )
    context = setup.context or multiprocessing.get_context()
    config = setup.config
    init = datapipes.sharding(setup.job.dataset, config.worker_init_fn, alone=setup.sharded)
    given: Job | Payload = setup.job
    if context.get_start_method() != "fork":
        given, init = _payload(setup.job, init, setup.codec), None
    workers = range(config.workers)
    configs = [replace(config, worker=worker, worker_init_fn=init) for worker in workers]
    stacks = setup.fault_policy.on_timeout == "restart"
    seconds = ASKED_S if setup.job.exit_fn is None else EXIT_S
    lines = _lines(setup)
    pool = Pool(context, given, configs, lines, stacks, setup.init_arg, seconds)
    return PoolEngine(pool, configs, setup.fault_policy)


def _payload(job: Job, init: Any, choice: Any) -> Payload:
    """The payload of new processes; CannotSaveError if no codec takes a part of it."""
    importable = is_importable()
    codecs = tried(choice if isinstance(choice, str) else "auto")
    if not importable and len(codecs) > 1:
        codecs = codecs[1:]  # pickle would write names that mean nothing there
    try:
        return Payload((job, init), codecs, not importable)
    except Exception as error:
        warn(
            "Got pickle error when attempting to start a worker Process: a part of the loader "
            "cannot be sent to it (the error says which), which the start method needs. It need "
            'not be with multiprocessing_context="fork"',
            UserWarning,
        )
        parts = {"dataset": job.dataset, "collate_fn": job.collate_fn, "worker_init_fn": init}
        for name, part in parts.items():
            if all(refusal(codec, part, lambda _: None) for codec in codecs):
                raise blame(part, f"loader.{name}", (STOCK[0], *codecs)) from error
        raise


def _lines(setup: Setup) -> Lines:
    choice = setup.transport
    if (default_transport() if choice == "auto" else choice) == "portable":
        return PipeLines()
    if choice == "arena" and not packets_work_here():
        raise UsageError(
            'transport="arena" needs memfd_create and SOCK_SEQPACKET, which this system does not '
            'have, or refuses for want of descriptors; transport="auto" does without'
        )
    return PacketLines(setup.workers_fixed, setup.page_locked and page_lock.works_here())


def default_transport() -> str:
    """The transport that ``transport="auto"`` selects on this system."""
    return "arena" if packets_work_here() else "portable"
