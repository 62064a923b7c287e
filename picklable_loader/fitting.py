"""Fitting: whether a saved state belongs to a loader, and what is taken of one that does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .core.snapshot import differences, from_plain
from .errors import Difference, StateMismatch

__all__ = ["fit"]

#: What may differ under strict=False: the position in the order still has a meaning.
_BRIDGED = {"batch_size", "drop_last", "seeding", "seed", "num_workers"}


def fit(state: Any, expected: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """Check a state against a loader's fingerprint.

    Args:
        state: the state; it becomes the caller's.
        expected: the fingerprint.
        strict: False bridges differences where the position still has a meaning.

    Returns:
        A state that fits.

    Raises:
        StateError: see `DataLoader.load_state_dict`.
    """
    cursor, found = from_plain(state)
    unlike = differences(expected, found)
    if not unlike:
        return dict(state)
    left = [entry for entry in unlike if strict or not _is_bridged(entry, cursor.window)]
    if left:
        raise StateMismatch(left, _advice(left, strict))
    taken = {**state, "fits": dict(expected)}
    if any(entry.name in ("seeding", "num_workers") for entry in unlike):
        taken["workers"] = {}
    return taken


def _is_bridged(entry: Difference, window: tuple[Any, ...]) -> bool:
    # Tasks in the window were cut to the old batch size; they are kept as they are only if the
    # size has not changed.
    if entry.name == "batch_size" and window:
        return False
    return entry.name in _BRIDGED


def _advice(left: list[Difference], strict: bool) -> str:
    if strict and all(entry.name in _BRIDGED for entry in left):
        return (
            "Build the loader as it was when the state was saved, or pass strict=False to go on "
            "from the same sample."
        )
    return "Build the loader as it was when the state was saved."
