"""Fitting: whether a saved state belongs to a loader, and what is taken of one that does not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from .core.cursor import Cursor
from .core.snapshot import differences, from_plain
from .errors import Difference, StateMismatch

__all__ = ["fit", "rank_and_world"]

#: What may differ under strict=False: the position in the order still has a meaning.
_BRIDGED = {"drop_last", "seeding", "seed", "num_workers"}


def fit(given: Any, expected: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """Check a state against a loader's fingerprint.

    Args:
        given: the state, of plain values.
        expected: the fingerprint.
        strict: False bridges differences where the position still has a meaning.

    Returns:
        A state that fits.

    Raises:
        StateError: see `DataLoader.load_state_dict`.
    """
    cursor, found = from_plain(given)
    state = _of_this_rank(given, cursor, strict)
    for name in ("order", "base_seed", "announced"):
        state.setdefault(name, None)  # what may be left out of a state that was written by hand
    unlike = differences(expected, found)
    if not unlike:
        return state
    left = [entry for entry in unlike if strict or not _is_bridged(entry, cursor)]
    if left:
        raise StateMismatch(left, _advice(left, strict))
    taken = {**state, "fits": dict(expected)}
    if any(entry.name == "batch_size" for entry in unlike):
        steps = -(-cursor.position // expected["batch_size"])
        taken.update(step=steps, next_step=steps)
    if any(entry.name in ("seeding", "num_workers") for entry in unlike):
        taken["workers"] = {}
    return taken


def rank_and_world() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) outside of distributed training."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])  # as torchrun sets them
    except (KeyError, ValueError):
        return 0, 1


def _of_this_rank(given: Any, cursor: Cursor, strict: bool) -> dict[str, Any]:
    """A copy of a state, without what holds for another rank's indices only."""
    state: dict[str, Any] = {name: value for name, value in given.items() if name != "rank"}
    here, there = rank_and_world(), cursor.rank or (0, 1)
    if here == there:
        return state
    tasks = [*cursor.window, *(task for place in cursor.streams for task in place.since)]
    if strict and any(task.indices is not None for task in tasks):
        raise StateMismatch([Difference("rank", list(here), list(there))], _OTHER_RANK)
    if cursor.order is not None:
        order = {name: value for name, value in cursor.order.items() if name != "checksum"}
        state["order"] = order
    return state


_OTHER_RANK = (
    "It holds indices that its rank has drawn and not delivered. Save a state on each rank and "
    "load it there; or pass strict=False if all ranks read the same samples."
)


def _is_bridged(entry: Difference, cursor: Cursor) -> bool:
    # Tasks in the window were cut to the old batch size, and so were the batches that a stream has
    # given; they are kept as they are only if the size has not changed.
    if entry.name == "batch_size":
        return not cursor.window and not cursor.streams
    if entry.name in ("dataset_length", "sampler_length"):
        return cursor.order is None  # data in sequence, or an epoch that is yet to begin
    return entry.name in _BRIDGED


def _advice(left: list[Difference], strict: bool) -> str:
    if strict and all(entry.name in (*_BRIDGED, "batch_size") for entry in left):
        return (
            "Build the loader as it was when the state was saved, or pass strict=False to go on "
            "from the same sample."
        )
    return "Build the loader as it was when the state was saved."
