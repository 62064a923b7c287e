"""Moves a saved state on by a number of batches, without its loader and its data.

That is exact where the order can be sought in: with torch's samplers and batches that are seeded
by their number. In any other case it is refused, and the error says what to do instead.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, cast, get_args

from ...core.cursor import Cursor, Saved, is_beginning
from ...core.fields import ITERABLE
from ...core.order import Lengths, SequenceOrder
from ...core.plan import Grouping, Plan, Unit
from ...core.shard import Shard, Tail
from ...core.snapshot import from_plain, to_plain
from ...errors import DamagedStateError, UsageError
from .tree import check_checksum, copied, with_checksum

#: a file of many small states may have one window as large as any, and not one in each
MOST_TASKS = 10**5


def moved_on(state: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The state that the same run would have had, had it passed over so many batches, from 0.

    Raises:
        UsageError: that cannot be done exactly without the loader; or the epoch has not so many.
        StateError: it is no state.
    """
    given, (cursor, fits) = read(state)
    if count < 0:
        raise UsageError(f"A state is moved on by a number of batches from 0, got {count}.")
    _refuse_inexact(cursor, fits)
    plan = _plan(cursor, fits, _rank_of(cursor))
    left = plan.remaining()
    if left is not None and count > left:
        raise UsageError(
            f"The state has {left} batches left in epoch {cursor.epoch}, and cannot be moved on by "
            f"{count}. Move it on by {left}, to the end of the epoch."
        )
    moved = cursor.step + plan.advance(count)
    there = cursor._replace(
        step=moved,
        next_step=plan.next_step,
        position=plan.position,
        window=tuple(plan.backlog),
    )
    moved_state = {**given, **to_plain(there, fits)}
    if is_beginning(cursor):  # any rank can begin there, and so go on after these batches
        moved_state.pop("rank", None)
    return with_checksum(moved_state) if "checksum" in given else moved_state


def read(state: Mapping[str, Any]) -> tuple[dict[str, Any], Saved]:
    """A copy of a state, and what it says; StateError if it is none, or damaged."""
    given = copied(state)
    saved = from_plain(given)
    check_checksum(given)
    return given, saved


def tasks_claimed(state: Mapping[str, Any]) -> int:
    """The number of tasks in a state's windows: each is a number, and takes memory when read."""
    streams = state.get("streams")
    windows = [state.get("window")]
    if type(streams) is list:
        windows += [stream.get("since") for stream in streams if type(stream) is dict]
    total = 0
    for window in windows:
        entries = window if type(window) is list else []
        counts = (each[3] for each in entries if type(each) in (list, tuple) and len(each) > 3)
        total += sum(count for count in counts if type(count) is int and count > 0)
    return total


def batches_left(state: Mapping[str, Any]) -> int | None:
    """Batches that a state, or a pickled iterator's, leaves; None if it does not say."""
    saved = from_plain(state, live=True)
    return left_on_rank(saved, _rank_of(saved.cursor))


def left_on_rank(saved: Saved, rank: int) -> int | None:
    """Batches that a rank has left where all ranks are at that position; None: it does not say."""
    cursor, fits = saved
    if type(fits.get("sampler_length")) is not int or cursor.streams or _is_reshared(cursor):
        return None
    return _plan(cursor, fits, rank).remaining()


def _rank_of(cursor: Cursor) -> int:
    """The rank that a state is of; one of all ranks is looked at as rank 0, which has the most."""
    return 0 if cursor.rank is None else cursor.rank[0]


def _is_reshared(cursor: Cursor) -> bool:
    """A DistributedSampler went on from another number of ranks: its epoch may be shorter."""
    return cursor.order is not None and "shift" in cursor.order


def _refuse_inexact(cursor: Cursor, fits: Mapping[str, Any]) -> None:
    if cursor.streams or fits.get("sampler") == ITERABLE:
        reason = "its data comes in streams, which have to be read"
    elif fits.get("seeding") == "worker":
        reason = 'seeding="worker" draws random numbers on from batch to batch'
    elif type(fits.get("sampler_length")) is not int:
        reason = f"its sampler, {fits.get('sampler')}, has to be drawn from"
    elif fits.get("batches_from") == Unit.BATCH.value:
        reason = "its batches may be of any size, which only the sampler knows"
    elif _is_reshared(cursor):
        reason = "its epoch began on another number of ranks, and only the sampler knows its end"
    else:
        return
    raise UsageError(
        f"This state cannot be moved on exactly where its loader is not at hand: {reason}. "
        "Load it into its loader, and call skip of the iterator: "
        "`loader.load_state_dict(state); it = iter(loader); it.skip(n)`."
    )


def _plan(cursor: Cursor, fits: Mapping[str, Any], rank: int) -> Plan:
    """A plan of as many tasks as the state's loader has, whose indices do not matter."""
    word = fits.get("batches_from")
    if type(word) is not str or word not in {unit.value for unit in Unit}:
        raise DamagedStateError("fits.batches_from", "a known word", word)
    unit = Unit(word)
    length = _whole(fits, "sampler_length", 0)
    if cursor.order is not None and "grown_from" in cursor.order:
        length = Lengths(sys.maxsize, length).restored(cursor.order).total
    gathered = unit is Unit.SAMPLE_OF_BATCH
    size = _whole(fits, "batch_size", 1) if gathered else 1
    world, tail = _whole(fits, "world_size", 1, 1), fits.get("shard_tail", "pad")
    if type(tail) is not str or tail not in get_args(Tail):
        raise DamagedStateError("fits.shard_tail", f"one of {get_args(Tail)}", tail)
    shard = Shard(rank, world, cast(Tail, tail))
    grouping = Grouping(unit, size, gathered and fits.get("drop_last") is True, shard)
    order = SequenceOrder(lambda: range(length))
    return Plan(order, grouping, cursor.next_step, cursor.position, cursor.window)


def _whole(fits: Mapping[str, Any], name: str, least: int, absent: int | None = None) -> int:
    value = fits.get(name, absent)
    if type(value) is not int or not least <= value < 2**62:
        raise DamagedStateError(f"fits.{name}", f"a whole number from {least}", value)
    return value
