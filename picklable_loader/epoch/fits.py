"""Whether a saved state belongs to a loader, and what is taken over from one that does not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch.utils.data import IterableDataset

from ..core.cursor import Cursor, Saved
from ..core.snapshot import differences, from_plain
from ..errors import Difference, StateMismatch

#: What may differ under strict=False: the position in the order still has a meaning.
_BRIDGED = {"drop_last", "seeding", "seed", "num_workers"}


def fit(given: Any, expected: Mapping[str, Any], strict: bool, length: int | None = None) -> Saved:
    """Check a state against a loader's fingerprint.

    Args:
        given: the state, of plain values.
        expected: the fingerprint.
        strict: False bridges differences where the position still has a meaning.
        length: of the sampler; None if it has none.

    Returns:
        A position that fits.

    Raises:
        StateError: see `DataLoader.load_state_dict`.
    """
    cursor, found = from_plain(given)
    unlike = differences(expected, found)
    bridged = _of_this_rank(cursor, strict)
    if not unlike:
        return Saved(bridged, found)
    left = [entry for entry in unlike if strict or not _is_bridged(entry, cursor)]
    if left:
        raise StateMismatch(left, _advice(left, strict))
    if any(entry.name == "batch_size" for entry in unlike):
        steps = _steps(cursor.position, length, expected)
        bridged = bridged._replace(step=steps, next_step=steps)
    if any(entry.name in ("seeding", "num_workers") for entry in unlike):
        bridged = bridged._replace(workers={})
    return Saved(bridged, dict(expected))


def _steps(position: int, length: int | None, expected: Mapping[str, Any]) -> int:
    """The step of a position that was reached with another batch size.

    It is counted from the epoch's end: step and remaining batches then add up to the epoch's.
    """
    size = expected["batch_size"]
    if length is None:
        return int(-(-position // size))
    more = 0 if expected["drop_last"] else size - 1
    return int((length + more) // size - (max(0, length - position) + more) // size)


def check_fits(loader_fits: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise StateMismatch if a pickled position is not one of its loader any more.

    Args:
        loader_fits: the loader's fingerprint here and now.
        saved: the one that was pickled with the position.
    """
    unlike = differences(loader_fits, saved)
    if unlike:
        raise StateMismatch(
            unlike,
            "The loader, or the code of its dataset, has changed since it was pickled. Put back "
            "what it was; or build a new loader, and call its load_state_dict(it.state_dict(), "
            "strict=False), which takes what still has a meaning.",
        )


def check_kind(dataset: Any, was: bool) -> None:
    """Raise StateMismatch if a dataset is iterable-style, and was not when its loader was built.

    Or the other way round: the code of its class was changed after it was pickled.
    """
    kinds = {False: "map-style", True: "iterable-style"}
    now = isinstance(dataset, IterableDataset)
    if was != now:
        raise StateMismatch(
            [Difference("dataset", kinds[was], kinds[now])],
            f"The class {type(dataset).__qualname__} has another base than when the loader "
            "was built. dill, for one, loses the base IterableDataset of classes of __main__: "
            "cloudpickle does not.",
        )


def rank_and_world() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) outside of distributed training."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])  # as torchrun sets them
    except (KeyError, ValueError):
        return 0, 1


def _of_this_rank(cursor: Cursor, strict: bool) -> Cursor:
    """The position, without what holds for another rank's indices only."""
    here, there = rank_and_world(), cursor.rank or (0, 1)
    if here == there:
        return cursor._replace(rank=None)
    tasks = [*cursor.window, *(task for place in cursor.streams for task in place.since)]
    if strict and any(task.indices is not None for task in tasks):
        raise StateMismatch([Difference("rank", list(here), list(there))], _OTHER_RANK)
    order = cursor.order
    if order is not None:
        order = {name: value for name, value in order.items() if name != "checksum"}
    return cursor._replace(rank=None, order=order)


_OTHER_RANK = (
    "It holds indices that its rank has drawn and not delivered. Save a state on each rank and "
    "load it there; or pass strict=False if all ranks read the same samples."
)


def _is_bridged(entry: Difference, cursor: Cursor) -> bool:
    # Tasks in the window were cut to the old batch size, and so were the batches that a stream has
    # given; they are kept as they are only if the size has not changed.
    if entry.name == "batch_size":
        return not cursor.window and not cursor.streams
    if entry.name in ("dataset_length", "sampler_length", "sampler_checksum"):
        return cursor.order is None  # data in sequence, or an epoch that is yet to begin
    return entry.name in _BRIDGED


def _advice(left: list[Difference], strict: bool) -> str:
    if [entry.name for entry in left] == ["sampler_checksum"]:
        return (
            "The sampler has other indices or weights than when the state was saved. Make them "
            "from a fixed seed, or save them beside the state."
        )
    if strict and all(entry.name in (*_BRIDGED, "batch_size") for entry in left):
        return (
            "Build the loader as it was when the state was saved, or pass strict=False to go on "
            "from the same sample."
        )
    return "Build the loader as it was when the state was saved."
