"""Merges the states of all ranks into one, which any number of ranks can load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from ...core.cursor import Cursor, Saved, is_beginning
from ...core.fields import ITERABLE
from ...core.shard import Shard, StreamShare
from ...core.snapshot import to_plain
from ...core.streams import StreamPosition
from ...errors import DamagedStateError, RanksError, warn
from .skip import left_on_rank, read
from .tree import with_checksum

#: fields of a cursor in which the ranks of one pass differ: those that read streams of their own,
_OF_STREAMS = {"step", "next_step", "streams", "num_streams", "rank", "batches"}
#: and those that share an order: each may have drawn further ahead, and have workers of its own;
#: before they have agreed on a seed, each has its own generators
_OF_AN_ORDER = {"next_step", "position", "window", "order", "rng", "draws_as", "worker_seed"}
_OF_A_BEGINNING = {"rank", "rng", "draws_as", "worker_seed", "dataset_rng"}
#: missing ranks that an error names
_MOST_NAMED = 8

_PROBLEM = "these states cannot be merged into one for all ranks"
_OWN_RNG = (
    "the ranks' datasets own generators in other states, and the merged state has none of them: "
    "streams that are read again, and later epochs, may differ. Seed them alike on all ranks, or "
    "give the dataset state_dict and load_state_dict"
)
#: for a state of an epoch's beginning, which has no positions: all streams are read from the start
_BEGINNING = (StreamPosition(),)
_EACH = (
    "Give the state of each rank once. If several ranks read the same share, give that of one of "
    "them; to gather_state_dict, pass group=, of ranks with different shares."
)
_UNLIKE = "Take the states of all ranks at the same moment of the same pass."
_APART = (
    "Each is for its own rank only: the dataset has a state, batches came out of order "
    '(in_order=False), or shard_tail="uneven" meets a sampler of your own. Load each on its rank.'
)


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of all ranks, from the state of each.

    With ``shard=`` and iterable-style data, ``state_dict()`` of a rank has the positions of its own
    streams. The merged state has those of all streams, and any number of ranks up to the number of
    streams can load it. With map-style data one state restores all ranks already: the states must
    be of the same step, and one of them is the result. It has no generators of the program
    (``save_rng=True``), as each rank has its own.

    Args:
        states: what ``state_dict()`` of the loader, or of its iterator, has returned on each rank,
            in any order. A rank may have ended its epoch while others read on; with map-style data
            only if it has no batch at their step.

    Returns:
        A state for `DataLoader.load_state_dict` on each rank.

    Raises:
        RanksError: a rank is missing or there twice; the states are of different passes; or each is
            for its own rank only.
        ValueError: there are none.
        StateError: one of them is no state, or is damaged.
    """
    given = [read(state)[1] for state in states]
    if not given:
        raise ValueError("merge_states needs the state of each rank, got none")
    saved = sorted(given, key=lambda each: (each.cursor.rank or (0, 1), repr(each)))
    epoch = min(cursor.epoch for cursor, _ in saved)  # unless `set_epoch` has chosen an earlier one
    chosen = next((c.next_epoch for c, _ in saved if c.next_epoch is not None), None)
    after = epoch + 1 if chosen is None else chosen
    unended = [each for each in saved if not _has_ended(each.cursor, after)]
    cursor, fits = unended[0]
    if fits.get("sampler") == ITERABLE and any(each.cursor.rank for each in saved):
        _check_complete(saved)
    if all(is_beginning(each.cursor) for each in unended):
        _compare(given, _OF_A_BEGINNING)  # rank 0's generators draw the seed
        return with_checksum(to_plain(_with_rng(cursor, unended)._replace(rank=None), fits))
    if all(each.cursor.num_streams is None for each in unended):
        if cursor.rank is not None:
            raise RanksError(_PROBLEM, _APART)
        ended = [each for each in saved if _has_ended(each.cursor, after)]
        in_step = all(_had_its_last(each, unended[0]) for each in ended)
        but = set(map(id, ended)) if in_step else set()
        # They name no ranks: their numbers in an error are those in which they were given.
        _compare([each for each in given if id(each) not in but], _OF_AN_ORDER)
        return with_checksum(to_plain(cursor, fits))
    _compare(unended, _OF_STREAMS | {"dataset_rng"})
    _check_moment(saved, after)
    several = [cursor for cursor, _ in saved if cursor.streams]  # a beginning may have none
    _compare([Saved(Cursor(num_streams=c.num_streams, rank=c.rank), {}) for c in several], {"rank"})
    streams, again = _streams(saved, after)
    steps = sum(position.given for position in streams)
    merged = _with_rng(cursor, unended)._replace(
        streams=streams,
        num_streams=None,
        again=again,
        batches=None,
        rank=None,
        step=steps,
        next_step=steps,
    )
    return with_checksum(to_plain(merged, fits))


merge_states.__module__ = "picklable_loader"  # pickles hold this name


def _with_rng(cursor: Cursor, saved: list[Saved]) -> Cursor:
    """The cursor, with the generators of the ranks' datasets if they are all in one state."""
    found = [each.cursor.dataset_rng for each in saved if each.cursor.dataset_rng]
    if any(each != found[0] for each in found):
        positions = [each for one in saved for each in one.cursor.streams or _BEGINNING]
        # The state of an iterator has this epoch's numbers, and none of the next epoch's.
        if any(each.from_start or "dataset" not in (each.state or {}) for each in positions):
            warn(_OWN_RNG)
        found = []
    return cursor._replace(dataset_rng=found[0] if found else {})


def _check_moment(saved: list[Saved], after: int) -> None:
    """Raise RanksError unless ranks that have as many batches have as many left.

    Under "uneven" nobody knows: a rank may be ahead of others.
    """
    if all(cursor.batches is None for cursor, _ in saved if cursor.streams):
        return
    left: dict[str, list[int]] = {}
    for cursor, _ in saved:
        assert cursor.rank is not None, "all of them are complete"
        if cursor.streams or _has_ended(cursor, after):
            more = 0 if _has_ended(cursor, after) else (cursor.batches or 0) - cursor.step
            left.setdefault(str(more), []).append(cursor.rank[0])
    if len(left) > 1:
        raise RanksError(_PROBLEM, _UNLIKE, differences={"batches that are left": left})


def _has_ended(cursor: Cursor, after: int) -> bool:
    """It waits for the epoch that comes ``after`` the one that other ranks are still in."""
    return cursor.epoch == after and cursor.step == 0 and cursor.next_epoch is None


def _had_its_last(ended: Saved, other: Saved) -> bool:
    """A rank has ended its epoch, and has no batch where another rank of the same pass is."""
    rank = ended.cursor.rank
    return rank is not None and ended.fits == other.fits and left_on_rank(other, rank[0]) == 0


def _compare(saved: list[Saved], but: set[str]) -> None:
    """Raise RanksError unless all states agree, ``but`` for these fields."""
    differences: dict[str, dict[str, list[int]]] = {}
    facts = [{**cursor._asdict(), **fits} for cursor, fits in saved]
    for name in {name: None for each in facts for name in each if name not in but}:
        values: dict[str, list[int]] = {}
        for at, each in enumerate(facts):
            rank = saved[at].cursor.rank
            values.setdefault(repr(each.get(name)), []).append(at if rank is None else rank[0])
        if len(values) > 1:
            differences[name] = values
    if differences:
        raise RanksError(_PROBLEM, _UNLIKE, differences=differences)


def _check_complete(saved: list[Saved]) -> None:
    """Raise RanksError unless each rank is there once; all were saved with rank and world size."""
    named = [cursor.rank for cursor, _ in saved]
    worlds = {rank[1] for rank in named if rank is not None}
    if None in named or len(worlds) > 1:
        found = {"all ranks" if rank is None else f"{rank[1]} ranks" for rank in named}
        raise RanksError(_PROBLEM, f"They are of {' and of '.join(sorted(found))}. {_EACH}")
    ranks = Counter(rank[0] for rank in named if rank is not None)
    doubled = sorted(rank for rank, count in ranks.items() if count > 1)
    missing = islice((rank for rank in range(*worlds) if rank not in ranks), _MOST_NAMED)
    if doubled or len(ranks) < min(worlds):
        raise RanksError(_PROBLEM, _EACH, list(missing), doubled)


def _streams(
    saved: list[Saved], after: int
) -> tuple[tuple[StreamPosition, ...], dict[int, tuple[StreamPosition, ...]]]:
    """The positions of all streams; and by rank, of those that it reads again."""
    found: dict[int, StreamPosition] = {}
    again: dict[int, tuple[StreamPosition, ...]] = {}
    total = max(each.cursor.num_streams or 0 for each in saved)
    for cursor, _ in saved:
        assert cursor.rank is not None, "all of them are complete"
        own = StreamShare(Shard(*cursor.rank), total).own
        if _has_ended(cursor, after):
            found |= zip(own, map(_ended, cursor.streams), strict=False)
            continue
        streams = [StreamPosition() for _ in own] if is_beginning(cursor) else cursor.streams
        if len(streams) < len(own):
            raise DamagedStateError("streams", f"{len(own)} of them", len(streams))
        found |= zip(own, streams, strict=False)
        if any(position.given for position in streams[len(own) :]):
            again[cursor.rank[0]] = tuple(streams[len(own) :])
    return tuple(found.get(n, StreamPosition(ended=True)) for n in range(total)), again


def _ended(beginning: StreamPosition) -> StreamPosition:
    """A stream that has ended, with what its persistent worker leaves to the next epoch."""
    left = beginning.state if isinstance(beginning.state, dict) else {}
    return StreamPosition(ended=True, state=left if "over" in left else None)
