"""The states of streams (marks), as workers send them and as saved states hold them.

A worker sends a mark as bytes, a pickle of a dict with these entries, or as the error that says why
there is no state:

* ``"dataset"``, ``"iterator"``: what their ``state_dict`` returned;
* ``"pickled"``: a pickle of the iterator, instead of these;
* ``"begun"``: the dataset at its beginning, for a replay (`Baseline`; while the epoch lasts, that
  itself is the mark);
* ``"drift"``: names of the attributes that earlier epochs have changed;
* ``"rng"``: the worker's random number generators (``seeding="worker"``);
* ``"first_rng"``: these when the epoch began, with ``"pickled"``, if the worker is persistent;
* ``"over"``: the epoch has ended there, and the next one is to begin.

A pickle of a loader's iterator holds these bytes, as `Pickled`, and only that type is ever opened
as a pickle. A ``state_dict`` holds plain values: `read` makes a mark of our own of them. It has no
pickled iterator: such a stream begins anew and is replayed.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from ...core.streams import StreamPosition
from ...errors import SYMPTOMS, CannotSaveError, DamagedStateError, LoaderWarning, stack_level
from ...rng.generators import RNGS, GeneratorStates
from ...saving.pickles.dtypes import dumps
from ...saving.pickles.opened import Pickled
from ...saving.states.plain import decode, encode_state
from .baseline import Baseline

_STATES = ("dataset", "iterator")


def savable(places: Iterable[StreamPosition], live: bool) -> tuple[StreamPosition, ...]:
    """The places as a state holds them.

    Args:
        places: with the marks as they came.
        live: for a pickled iterator.

    Raises:
        CannotSaveError: what a worker has given instead of a mark; or a state holds more than
            plain values.
    """
    return tuple(_savable(place, at, live) for at, place in enumerate(places))


def warn_of_drift(
    dataset: Any, places: Iterable[StreamPosition], known: Iterable[str] = ()
) -> None:
    """Warn of attributes that earlier epochs have changed and no state holds, unless ``known``."""
    known, names = list(known), set()
    for mark in (place.mark for place in places):
        if isinstance(mark, Baseline):
            names.update(mark.drift)
        elif type(mark) is bytes and (known or b"drift" in mark):
            entries = pickle.loads(mark)
            names.update(entries.get("drift", ()))
            if entries.keys() & set(_STATES):
                known = []  # the state holds them, or its iterator needs none of them
    names.update(known)
    if names:
        _drifted(type(dataset).__qualname__, sorted(names))


def remembers(marks: Iterable[Any]) -> bool:
    """They hold what a dataset keeps in itself, and not only where an iterator stands."""
    return any(
        type(mark) is bytes and (b"\x07dataset" in mark or b"\x05begun" in mark) for mark in marks
    )


def _savable(place: StreamPosition, stream: int, live: bool) -> StreamPosition:
    mark = place.mark
    if isinstance(mark, CannotSaveError):
        raise mark
    if isinstance(mark, Baseline):
        mark = mark.changes() if live else None
    if mark is None or type(mark) is dict:  # of a state that was loaded
        return place.copy(mark=mark)
    if live:
        return place.copy(mark=Pickled(mark))
    entries = pickle.loads(mark)
    if entries.keys() & {"pickled", "begun"}:
        return _replayed(place, entries)
    form = {
        name: encode_state(entries[name], f"stream {stream}: state_dict() of the {name}")
        for name in _STATES
        if name in entries
    }
    if "over" in entries:
        form["over"] = True
    if "rng" in entries:
        form["rng"] = _as_text(entries["rng"])
    return place.copy(mark=form)


def _replayed(place: StreamPosition, entries: dict[str, Any]) -> StreamPosition:
    """A place of which a state holds only the generators that its replay begins with."""
    over = "over" in entries
    rng = entries.get("rng" if over else "first_rng")
    if rng is None:
        return place.copy(mark=None, marked=0)
    marked = place.marked if over else 0  # a stream that has ended is not replayed
    return place.copy(mark={"over": True, "rng": _as_text(rng)}, marked=marked)


def _as_text(states: dict[str, Any]) -> dict[str, str]:
    return {name: RNGS[name].to_text(state) for name, state in states.items()}


def read(places: Sequence[StreamPosition]) -> list[StreamPosition]:
    """The places of a saved state, with marks as workers take them; or DamagedStateError."""
    return [place.copy(mark=_read(place.mark, at)) for at, place in enumerate(places)]


def _read(mark: Any, stream: int) -> bytes | None:
    if mark is None:
        return None
    if type(mark) is Pickled:
        return bytes(mark)
    field = f"streams[{stream}].mark"
    if type(mark) is not dict:
        raise DamagedStateError(field, "plain values", mark)
    try:
        entries = {name: decode(mark[name]) for name in _STATES if name in mark}
        if "over" in mark:
            entries["over"] = True
        if "rng" in mark:
            entries["rng"] = GeneratorStates.from_text(mark["rng"]).states
        return dumps(entries)
    except SYMPTOMS as error:
        raise DamagedStateError(field, "plain values", mark) from error


def replayed(places: Iterable[StreamPosition], every: int | None) -> int:
    """How many batches are fetched again because their streams have no states.

    The first mark is taken after ``every`` batches; None: after the first.
    """
    unmarked = (place for place in places if not place.marked and not place.ended)
    return sum(place.given for place in unmarked if place.given >= (every or 1))


def _drifted(dataset: str, names: Sequence[str]) -> None:
    """Epochs have changed a dataset that is replayed, and a state cannot say so."""
    warnings.warn(
        f"the dataset {dataset} has no state, and its epochs have changed its attributes "
        f"{', '.join(names)}: a resume from this state_dict() begins with a dataset that no epoch "
        "has changed. It gives other samples if these depend on the attributes. Pickle the "
        "iterator, or give the dataset state_dict and load_state_dict",
        LoaderWarning,
        stacklevel=stack_level(),
    )
