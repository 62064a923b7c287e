"""The frozen values that the layers below need of a loader, read from its attributes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch.multiprocessing
from torch.utils.data import IterDataPipe, MapDataPipe

from ..core.order import Listener
from ..core.plan import Unit
from ..datasets.packed_list import large_lists
from ..epoch.changed_data import noted, warn_of_changed
from ..epoch.driver import Driver
from ..epoch.ranks import shard_of
from ..epoch.run import Run
from ..epoch.spec import Spec
from ..epoch.turns import Batch
from ..epoch.unsaved import excluded, parts_of, warn_of_unseeded
from ..errors import UsageError, warn
from ..fetching.engine.device import on_cuda, warn_about_pinning
from ..fetching.engine.engine import Engine, Setup, make_engine
from ..fetching.engine.pool_engine import FaultPolicy
from ..fetching.worker.collate import may_draw
from ..fetching.worker.fetch import NEVER, Job
from ..fetching.worker.hooks import WorkerStart, argument
from ..fetching.worker.replica import WorkerConfig
from ..saving.pickles.parts import Packing
from .internals import Owner


def spec_of(loader: Owner[Any], built: bool = False) -> Spec:
    """How the loader is set up now; ``built``: just then, when it may not know its rank yet."""
    return Spec(
        dataset=loader.dataset,
        given_sampler=loader.sampler,
        batch_sampler=loader.batch_sampler,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        generator=loader.generator,
        workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        persistent=loader.persistent_workers,
        in_order=loader.in_order,
        options=loader._pl.options,
        shard=shard_of(loader._pl.options.shard, loader._pl.options.shard_tail, built),
    )


def batches_of(loader: Owner[Any]) -> int | None:
    """Batches in an epoch; None where the sampler has no length.

    Torch's ``len`` of a loader has it warn from now on if an iterable-style dataset gives more
    than it has promised. To look at a loader is no reason for that.
    """
    called = loader._IterableDataset_len_called
    try:
        return len(loader)
    except (TypeError, ValueError, NotImplementedError):
        return None
    finally:
        loader._IterableDataset_len_called = called


def job_of(loader: Owner[Any], spec: Spec) -> Job:
    """The job that workers do for each task of a loader."""
    options, every = spec.options, spec.options.snapshot_every_n_steps
    draws = _calls_people(loader, spec) or may_draw(spec.dataset, loader.collate_fn)
    looks = draws and spec.seeds_generators
    return Job(
        dataset=spec.dataset,
        collate_fn=loader.collate_fn,
        iterable=spec.iterable,
        batched=loader._auto_collation,
        drop_last=spec.drop_last,
        seeding=options.seeding,
        seed_hooks=options.seed_hooks,
        batch_size=spec.batch_size or 1,
        mark_every=None if every == "auto" else every or NEVER,
        stateful=spec.stateful and not spec.iterable,
        on_error=options.on_error,
        by_value=options.by_value,
        lives_on=spec.lives_on or (spec.workers > 0 and loader._pl.history.midway),
        rank=spec.shard.rank,
        world=spec.shard.world,
        stride=1 if spec.grouping.unit is Unit.BATCH else spec.shard.world,
        draws=draws,
        exit_fn=options.worker_exit_fn,
        convert=options.convert,
        seed_dataset=options.seed_dataset if looks or callable(options.seed_dataset) else "off",
        excluded=excluded(spec, parts_of(spec, loader.collate_fn)) if looks else frozenset(),
    )


def _calls_people(loader: Owner[Any], spec: Spec) -> bool:
    """An option has people's code called for a batch, which may draw random numbers."""
    options = spec.options
    return bool(
        spec.hooked
        or loader.worker_init_fn is not None
        or callable(options.on_error)
        or options.convert is not None
    )


def _init_arg(loader: Owner[Any], run: Run, driver: Driver) -> Callable[[int, int], Any] | None:
    """Makes the second argument of ``worker_init_fn``; None: it has none."""
    make, dataset = run.spec.options.worker_init_fn_arg, run.spec.dataset
    if make is None:
        return None
    if loader.worker_init_fn is None:
        raise UsageError("worker_init_fn_arg needs worker_init_fn, which is given its result")
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        raise UsageError("worker_init_fn_arg cannot be combined with DataPipes: make a Dataset")
    # The driver has the engine, which has this.
    return partial(_arg_of, make, weakref.ref(driver), weakref.ref(run))


def _arg_of(
    make: Callable[[WorkerStart], Any],
    driver: weakref.ref[Driver],
    first: weakref.ref[Run],
    number: int,
    total: int,
) -> Any:
    at_work = driver()
    run = (at_work and at_work.run) or first()  # a worker may be replaced in a later pass
    assert run is not None, "an engine is made for a run"
    live = run.order.iterator() if isinstance(run.order, Listener) else None
    spec = run.spec
    start = WorkerStart(
        *(spec.dataset, live, total, number, run.worker_seed, run.epoch, *spec.rank)
    )
    return argument(make, start)


def copied_parts(loader: Owner[Any], spec: Spec) -> dict[str, Any]:
    """The loader's parts of which workers have copies, by their names."""
    return {**parts_of(spec, loader.collate_fn), "worker_init_fn": loader.worker_init_fn}


def warn_of_changes(loader: Owner[Any], spec: Spec) -> None:
    """Warn of what has changed since the persistent workers were started."""
    driver = loader._pl.driver
    warn_of_changed(copied_parts(loader, spec), driver.given if driver else {})


def engine_of(loader: Owner[Any], driver: Driver, run: Run) -> Engine:
    """The engine for a loader's passes, from this run on; see `make_engine`."""
    if loader.pin_memory:
        warn_about_pinning(loader.pin_memory_device)
    spec, inner, context = run.spec, loader._pl, loader.multiprocessing_context
    if spec.workers and (context or torch.multiprocessing).get_start_method() == "fork":
        for path, entries in large_lists(spec.dataset):
            warn(
                f"{path} has {entries:,} Python objects. A worker that reads one copies its "
                "memory, so each worker may grow to the size of all. Make it a "
                "picklable_loader.PackedList, an array, or a tensor, which workers share"
            )
    driver.given = noted(copied_parts(loader, spec)) if spec.workers else {}
    options, job = spec.options, job_of(loader, spec)
    in_torchs_way, batch = options.seeding == "worker", partial(Batch, inner.turn, job.draws)
    if job.draws:
        warn_of_unseeded(spec, loader.collate_fn, inner.looked)
    config = WorkerConfig(
        worker=0,
        workers=spec.workers or 1,
        base_seed=run.worker_seed,
        worker_init_fn=loader.worker_init_fn,
        shared_seed=run.shared_seed if spec.workers else None,
        announced=run.announced,
        # Torch's worker information is not there with num_workers=0, unless there must be streams.
        streams=run.streams if spec.workers or run.worker_info else None,
        here=not spec.workers,
        origin=None if spec.workers else inner.history.origin(spec),
        copies=run.batches is not None or (spec.reads_copies and not spec.workers),
    )
    setup = Setup(
        job=job,
        config=config,
        fault_policy=_fault_policy(loader, spec),
        context=context,
        init_arg=_init_arg(loader, run, driver),
        prefetch_factor=spec.prefetch_factor,
        transport=options.transport,
        codec=options.codec,
        workers_fixed=spec.workers_fixed,
        page_locked=loader.pin_memory or on_cuda(options.to_device),
        sharded=spec.shared,
        isolation=inner.history.source.globals if in_torchs_way else batch,
        before_batch=run.note_generators if in_torchs_way and job.draws else None,
    )
    return make_engine(setup)


def _fault_policy(loader: Owner[Any], spec: Spec) -> FaultPolicy:
    options = spec.options
    return FaultPolicy(loader.timeout, options.on_timeout, options.max_task_deaths, spec.persistent)


def packing_of(loader: Owner[Any]) -> Packing:
    """The loader, and how it is to be pickled."""
    inner = loader._pl
    options = inner.options
    return Packing(
        owner=loader,
        attributes=cast(Any, loader).__getstate__(),
        decision=inner.decision,
        dataset=loader.dataset,
        codec=options.codec,
        pickle_dataset=options.pickle_dataset,
        pickle_mapped=options.pickle_mapped,
        version=(options, inner.history.resume),
        fits=lambda: spec_of(loader).fingerprint(),
    )
