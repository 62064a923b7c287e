"""Fetches one batch of the past (or future) once more, for ``DataLoader.batch_at``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from ..core.checks import whole_number
from ..core.cursor import Cursor
from ..core.order import Order
from ..core.plan import Plan, Unit
from ..core.seeds import base_seed
from ..core.snapshot import from_plain, spacing
from ..core.task import Task
from ..datasets.protocol import set_epoch_of
from ..errors import CannotSaveError, OrderMismatch, UsageError
from ..fetching.worker.feedback import with_feedback
from ..fetching.worker.fetch import Job, converted, make_fetcher
from ..fetching.worker.on_error import Bad, NothingLeft, Thinned
from ..orders.attributes import changed, freeze
from ..orders.custom import CustomOrder
from ..orders.memory import prepare
from ..orders.replay import Replay
from ..orders.torch_samplers import make_order
from ..rng.current import run_apart
from ..rng.source import Setting, Source
from .history import History
from .spec import Spec


def batch_at(
    spec: Spec,
    history: History,
    job: Job,
    isolation: Callable[[], AbstractContextManager[Any]],
    owner: object,
    step: int,
    epoch: int | None,
) -> Any:
    """See `DataLoader.batch_at`.

    Args:
        spec, history, job: the loader's.
        isolation: makes the context in which people's code runs.
        owner: the loader; a sampler may refer to it.
        step, epoch: see `DataLoader.batch_at`.
    """
    _check_repeatable(spec)
    step, (cursor, order) = whole_number("step", step), _at_hand(spec, history)
    first, shift = _recut(spec, history)
    epoch = cursor.epoch if epoch is None else whole_number("epoch", epoch, 0)
    seed = spec.options.seed
    if epoch != cursor.epoch or cursor.base_seed is None:
        if seed is None:
            raise UsageError(
                f"the random numbers of epoch {epoch} are not known: only the epoch at hand is, "
                f"or any one with DataLoader(..., seed=)"
            )
        cursor, order = Cursor(epoch, base_seed=base_seed(seed, epoch)), None
        first = shift = 0
    if 0 <= step < first:
        raise UsageError(
            f"step {step} of epoch {epoch} was before step {first}, at which this loader went on "
            "from a state of another batch size or number of ranks. Its batches are those from "
            f"step {first} on"
        )

    def made() -> Any:
        task = _task(spec, history.source, owner, cursor, order, step, shift)
        then = _of_epoch(job, history.choice.announced, epoch)
        fetcher = make_fetcher(then, cursor.base_seed or 0)
        return with_feedback(lambda: converted(fetcher.fetch(task), then))[0]  # it came before

    try:
        batch = run_apart(isolation(), None, made)
    except NothingLeft as none:
        raise _no_batch(step, none.skipped) from None
    return batch.batch if type(batch) is Thinned else batch


def _of_epoch(job: Job, announced: int | None, epoch: int) -> Job:
    """The job for an epoch; a copy of the dataset gets the epoch, if it is another one."""
    if announced in (None, epoch):
        return job
    dataset = copy.copy(job.dataset)
    set_epoch_of(dataset, epoch)
    return replace(job, dataset=dataset)


def _recut(spec: Spec, history: History) -> tuple[int, int]:
    """How the epoch at hand is cut into steps, after a state of other steps.

    Returns:
        The first step that is cut so, and the samples by which each step begins later. An example
        is a state of 4 ranks, step 1, batches of 2. On 3 ranks step 1 begins at sample 8, and not
        at 6: this gives ``(1, 2)``.
    """
    position, samples = history.position, spacing(spec.fingerprint())
    if position is None or samples is None or spec.grouping.unit is Unit.BATCH:
        return 0, 0
    start = position.start
    cursor = position.run.start if position.run else start and start.cursor
    if cursor is None:
        return 0, 0
    # After the epoch's last step, which may have fewer samples, the position does not show it.
    drawn = [(task.step, task.position) for task in cursor.window]
    next_step, at = min(drawn, default=(cursor.next_step, cursor.position))
    length = spec.length(cursor)
    shift = at - next_step * samples
    return (cursor.step, shift) if shift and (length is None or at < length) else (0, 0)


def _task(
    spec: Spec,
    source: Source,
    owner: object,
    cursor: Cursor,
    under_way: Order | None,
    step: int,
    shift: int,
) -> Task:
    sampler, alike = spec.sampler, None
    elsewhere = cursor.order is None and spec.options.seed is not None
    setting = Setting(source.apart(cursor.rng), cursor.epoch, cursor.order, elsewhere)
    if spec.known:
        order = make_order(sampler, setting)
    else:
        sampler = _copied((owner, spec.dataset), sampler)
        order = _custom_order(sampler, setting, cursor, under_way)
        alike = freeze(sampler, spec.dataset)
    try:
        task = _drawn(spec, order, step, shift)
        if isinstance(order, Replay):
            order.complete()  # so that all is compared
    except StopIteration:
        raise IndexError(f"epoch {cursor.epoch} has no step {step}") from None
    except OrderMismatch as error:
        raise UsageError(f"the order of this epoch cannot be had again: {error}") from None
    if elsewhere and alike is not None and changed(alike, freeze(sampler, spec.dataset)):
        raise UsageError(
            f"the order of epoch {cursor.epoch} is not known: {type(sampler).__qualname__} "
            f"changes itself from epoch to epoch, so that only the epoch at hand is"
        )
    return task


def _drawn(spec: Spec, order: Order, step: int, shift: int) -> Task:
    """The task of a step; StopIteration: there is none."""
    if step < 0:
        raise StopIteration
    plan = Plan(order, spec.grouping)
    if shift:
        position = step * (spacing(spec.fingerprint()) or 1) + shift
        plan = Plan(order, spec.grouping, step, position)
        plan.seek()
        if not order.seekable:
            order.take(position)
    elif plan.advance(step) != step:
        raise StopIteration
    return plan.draw()


def _custom_order(sampler: Any, setting: Setting, cursor: Cursor, under_way: Order | None) -> Order:
    """The epoch's order from its beginning; moves the sampler, which is a copy."""
    if setting.saved is None:
        prepare(sampler, cursor.sampler, setting.source)
        set_epoch_of(sampler, cursor.epoch)
        return CustomOrder(sampler, setting)
    order = under_way if isinstance(under_way, CustomOrder) else CustomOrder(sampler, setting)
    again = order.again(sampler, setting.source)
    if again is None:
        raise UsageError(
            "how the epoch began is not known: the sampler was restored by its state_dict, or "
            "draws from a global generator that the program draws from in between"
        )
    return again


def _copied(shared: tuple[Any, ...], sampler: Any) -> Any:
    try:
        return copy.deepcopy(sampler, {id(thing): thing for thing in shared})
    except Exception as error:  # of anything in people's samplers
        raise UsageError(
            f"batch_at has to draw from a copy of {type(sampler).__qualname__}, which cannot be "
            f"copied: {error}"
        ) from error


def _at_hand(spec: Spec, history: History) -> tuple[Cursor, Order | None]:
    """The cursor of the epoch at hand, and its order if it is under way."""
    position = history.position
    run = None if position is None else position.run
    try:
        if run is not None:
            return run.cursor(live=True), run.order
        return from_plain(history.state(spec, position)).cursor, None
    except CannotSaveError as error:
        raise UsageError(f"batch_at has to know how the epoch began, but {error}") from error


def _check_repeatable(spec: Spec) -> None:
    if spec.iterable:
        raise UsageError("batch_at needs a map-style dataset: an iterable-style one has no steps")
    if spec.streamed:
        raise UsageError(
            "batch_at needs a dataset without a state: a batch of one that has state_dict depends "
            "on all that was read before"
        )
    if spec.options.seeding == "worker":
        raise UsageError(
            'batch_at needs seeding="batch" or "sample": with "worker" a batch depends on all that '
            "its worker did before"
        )


def _no_batch(step: int, skipped: Bad) -> UsageError:
    """The error for a step whose samples are all bad."""
    index, error = skipped[0]
    return UsageError(
        f"step {step} has no batch: all of its samples are skipped, the first of them at index "
        f'{index!r}, with {error}. A loader with on_error="raise" raises that'
    )
