"""Saves a loaded state again, before the loader has moved on from it."""

from __future__ import annotations

import copy
from typing import Any

from ..core.cursor import Saved
from ..core.snapshot import to_plain
from ..errors import CannotSaveError, DamagedStateError
from ..rng.generators import RNGS
from ..rng.source import Source
from ..saving.states.tree import copied
from .stream_states import savable


def unmoved(source: Source, saved: Saved, live: bool) -> dict[str, Any]:
    """The saved form of a position from which the loader has not moved; it shares nothing with it.

    Its generators may have moved: another loader may draw from them.

    Args:
        source: of the loader's random draws.
        saved: the position.
        live: for a pickle, which may hold objects.

    Raises:
        CannotSaveError: it came in a pickle, with objects that no state can hold.
    """
    given = _without_objects(saved, live)
    if source.seed is not None:
        return given
    rng = source.as_now(given["rng"])
    if not live:
        rng = {**source.given(), **{name: text for name, text in rng.items() if name in RNGS}}
    return {**given, "rng": rng}


def _without_objects(saved: Saved, live: bool) -> dict[str, Any]:
    """Its saved form, as a copy; unless it is live, of plain values only.

    Raises:
        CannotSaveError: see `unmoved`.
    """
    cursor, fits = saved
    order = cursor.order
    has_iterator = order is not None and "iterator" in order
    if live:
        state = to_plain(cursor, fits)
        return state if has_iterator else copy.deepcopy(state)
    if order is not None and has_iterator:
        if "log" not in order:
            raise CannotSaveError(
                "the sampler's iterator",
                "it was restored from a pickle and cannot be replayed",
                "Pickle the iterator instead of taking its state_dict",
            )
        order = {name: value for name, value in order.items() if name != "iterator"}
    plain = cursor._replace(order=order, streams=savable(cursor.streams, live=False))
    try:
        return copied(to_plain(plain, fits))  # type: ignore[no-any-return]
    except DamagedStateError as error:
        raise CannotSaveError(
            error.field,
            "it came in a pickle, and is no plain value",
            "Pickle the iterator instead of taking its state_dict",
        ) from None
