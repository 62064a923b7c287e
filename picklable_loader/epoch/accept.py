"""Checks of a saved state, beyond its form and its fingerprint, before a loader goes on from it.

Everything that needs no data is checked before the loader changes. Some damage shows only in
people's code: a sampler that is replayed, or a dataset that gets its state back. The first ``next``
raises it, as `DamagedStateError` or `StreamError`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..core.cursor import Cursor, Saved
from ..core.fields import check_attributes, check_fields
from ..core.order import Order
from ..core.plan import Unit
from ..core.shard import StreamShare
from ..core.snapshot import check_origin, from_plain
from ..core.task import Task
from ..datasets.protocol import is_stateful
from ..errors import SYMPTOMS, DamagedStateError, StateError
from ..orders.chunked import checked_number
from ..orders.torch_samplers import make_order
from ..rng.generators import RNGS
from ..rng.source import Setting, Source
from ..saving.states.plain import decode
from ..saving.states.torchdata import is_torchdatas
from ..saving.states.torchdata import read as read_torchdata
from ..saving.states.tree import check_checksum, copied
from . import dataset_rng
from .fits import fit, own_streams
from .from_torchdata import taken_over
from .spec import Spec
from .stream_states import read

#: A sampler that raised has given indices that no batch has; nobody's gives more of them.
_MOST_ASTRAY = 10**6


def accept(
    spec: Spec, source: Source, state: Any, strict: bool, beginning: Callable[[], Saved]
) -> tuple[Saved, tuple[int, ...] | None]:
    """The position in what somebody gives as a state; see `DataLoader.load_state_dict`.

    An empty one is the ``beginning`` of an epoch; one of torchdata's loader goes on from there.

    Returns:
        The position; and by stream the batches given, of a state of all ranks' streams, else None.
    """
    if isinstance(state, dict) and not state:
        return beginning(), None
    if type(state) is OrderedDict:
        state = dict(dict.items(state))
    given: dict[str, Any] = {}
    if is_torchdatas(state):
        saved = taken_over(spec, source, read_torchdata(state), beginning())
    else:
        check_origin(state)
        given = copied(state)
        saved = from_plain(given)
    found = fit(saved, spec, strict)
    accepted = own_streams(spec, found)
    check(spec, source, accepted)
    check_checksum(given)  # last: the other errors say more
    if accepted is found:
        return accepted, None
    return accepted, tuple(position.given for position in found.cursor.streams)


def check(spec: Spec, source: Source, saved: Saved) -> None:
    """Raise DamagedStateError unless a loader can go on from a saved cursor that fits it."""
    cursor, fits = saved
    source.check(cursor.rng, cursor.workers)
    _check_workers(spec, cursor)
    _check_streams(spec, cursor)
    dataset_rng.check(cursor.dataset_rng)
    if spec.iterable:
        if cursor.order is not None:
            check_fields(cursor.order, "order of DataPipes", "order.")
            checked_number(cursor.order, "shared_seed")
        return
    _check_sampler(spec, cursor)
    order = _order(spec, source, cursor)
    length = fits.get("sampler_length")
    _check_position(spec, cursor, length)
    for at, task in enumerate(cursor.window):
        _check_task(spec, task, order, f"window[{at}]", length)
    for stream, position in enumerate(cursor.streams):
        for at, task in enumerate(position.since):
            field = f"streams[{stream}].since[{at}]"
            _check_task(spec, task, order, field, length)


def _check_workers(spec: Spec, cursor: Cursor) -> None:
    pinned = spec.options.seeding == "worker"
    known = set(map(str, range(max(1, spec.workers)))) if pinned else set()
    for worker, states in cursor.workers.items():
        if worker not in known:
            raise DamagedStateError("workers", f"among {sorted(known)}", worker)
        if states.keys() != RNGS.keys():
            raise DamagedStateError(f"workers.{worker}", f"states of {list(RNGS)}", list(states))


def _check_streams(spec: Spec, cursor: Cursor) -> None:
    if not cursor.streams:
        if spec.streamed and cursor.step:
            raise DamagedStateError("streams", "the positions of the streams", [])
        return
    if not spec.streamed:
        raise DamagedStateError("streams", "absent, as the dataset has no state", cursor.streams)
    if cursor.num_streams is not None:
        own = len(StreamShare(spec.shard, cursor.num_streams))
        most = own + cursor.num_streams  # with those that are read again
        if not spec.iterable or not own or not own <= len(cursor.streams) <= most:
            raise DamagedStateError("streams", f"the {own} of its rank", len(cursor.streams))
        if len(cursor.streams) > own and not all(each.ended for each in cursor.streams[:own]):
            raise DamagedStateError("streams", "read again only after their ends", cursor.streams)
    given = sum(position.given for position in cursor.streams)
    if given != cursor.step:
        raise DamagedStateError("step", f"{given}, what the streams have given", cursor.step)
    read(cursor.streams)


def _check_sampler(spec: Spec, cursor: Cursor) -> None:
    saved = cursor.sampler
    attributes = saved.get("attributes", {})
    if "state" in saved and (spec.known or not is_stateful(spec.sampler)):
        raise DamagedStateError("sampler.state", "absent, as the sampler has none", saved["state"])
    if spec.known and attributes:
        epoch = attributes.get("epoch")
        if attributes.keys() != {"epoch"} or epoch[0] != "plain" or type(epoch[1]) is not int:
            raise DamagedStateError("sampler.attributes", "an epoch that was set", attributes)


def _order(spec: Spec, source: Source, cursor: Cursor) -> Order:
    saved = cursor.order
    try:
        order = make_order(spec.sampler, Setting(source, cursor.epoch, saved))
    except StateError:
        raise
    except SYMPTOMS as error:  # an order that somebody has registered
        raise DamagedStateError("order", "what this sampler's order saves", error) from error
    kind = getattr(order, "_pl_record", None)
    if saved is not None and kind is not None:
        check_fields(saved, kind, "order.")
    if order.seekable:
        return order
    if saved is None and cursor.next_step:
        raise DamagedStateError("order", "what this sampler's order saves", None)
    if saved is not None and kind is not None:
        check_attributes(saved.get("sampler", {}), "order.sampler")
        check_attributes(saved.get("between", {}), "order.between")
    taken = 0 if saved is None else saved.get("taken", 0)
    if taken > max(cursor.position, cursor.next_step) + _MOST_ASTRAY:
        raise DamagedStateError("order.taken", f"about {cursor.position}", taken)
    return order


def _check_position(spec: Spec, cursor: Cursor, length: int | None) -> None:
    if length is None:
        return
    by_item = spec.grouping.unit is Unit.BATCH
    name, most = ("next_step", -(-length // spec.shard.world)) if by_item else ("position", length)
    if getattr(cursor, name) > most:
        raise DamagedStateError(name, f"at most {most}", getattr(cursor, name))


def _check_task(spec: Spec, task: Task, order: Order, field: str, length: int | None) -> None:
    grouping = spec.grouping
    if order.seekable:
        at = task.step * spec.shard.world if grouping.unit is Unit.BATCH else task.position
        if task.indices is not None:
            raise DamagedStateError(
                field, "null for indices, as the order gives them", task.indices
            )
        if length is not None and at >= length:
            raise DamagedStateError(field, f"a task below {length}", at)
        return
    if task.indices is None:
        raise DamagedStateError(field, "a task with indices", None)
    try:
        indices = decode(task.indices)
    except SYMPTOMS as error:
        raise DamagedStateError(field, "plain indices", task.indices) from error
    if grouping.unit is Unit.SAMPLE_OF_BATCH or spec.shard.world > 1:
        most = grouping.batch_size * spec.shard.world
        if type(indices) is not list or not 0 < len(indices) <= most:
            raise DamagedStateError(field, f"a list of up to {most} indices", task.indices)
    alone = type(indices) in (bool, int, float) and spec.shard.world == 1
    if grouping.unit is Unit.BATCH and alone and not getattr(spec.dataset, "__getitems__", None):
        raise DamagedStateError(field, "the indices of a batch", indices)
