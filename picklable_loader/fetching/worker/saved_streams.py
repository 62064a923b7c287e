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


def savable(positions: Iterable[StreamPosition], live: bool) -> tuple[StreamPosition, ...]:
    """The positions, with marks as they came, as a state holds them; ``live``: as a pickle does.

    Raises:
        CannotSaveError: what a worker has given instead of a mark; or a state would have to hold
            more than plain values.
    """
    return tuple(_savable(position, at, live) for at, position in enumerate(positions))


def warn_of_drift(
    dataset: Any, positions: Iterable[StreamPosition], known: Iterable[str] = ()
) -> None:
    """Warn of attributes that earlier epochs have changed and no state holds, unless ``known``."""
    known, names = list(known), set()
    for mark in (position.mark for position in positions):
        if isinstance(mark, Baseline):
            names.update(mark.drift)
        elif type(mark) is bytes and (known or b"drift" in mark):
            entries = pickle.loads(mark)
            names.update(entries.get("drift", ()))
            if entries.keys() & set(_STATES):
                known = []  # the state holds them, or its iterator needs none of them
    names.update(known)
    if names:
        warnings.warn(
            f"the dataset {type(dataset).__qualname__} has no state, and its epochs have changed "
            f"its attributes {', '.join(sorted(names))}: a resume from this state_dict() begins "
            "with a dataset that no epoch has changed. It gives other samples if these depend on "
            "the attributes. Pickle the iterator, or give the dataset state_dict and "
            "load_state_dict",
            LoaderWarning,
            stacklevel=stack_level(),
        )


def remembers(marks: Iterable[Any]) -> bool:
    """They hold states of the dataset itself, and not only of its iterator."""
    return any(
        type(mark) is bytes and (b"\x07dataset" in mark or b"\x05begun" in mark) for mark in marks
    )


def _savable(position: StreamPosition, stream: int, live: bool) -> StreamPosition:
    mark = position.mark
    if isinstance(mark, CannotSaveError):
        raise mark
    if isinstance(mark, Baseline):
        mark = mark.changes() if live else mark.mark
    if mark is None or type(mark) is dict:  # of a state that was loaded
        return position.copy(mark=mark)
    if live:
        return position.copy(mark=Pickled(mark))
    entries = pickle.loads(mark)
    if entries.keys() & {"pickled", "begun"}:  # it holds only the generators of a replay
        over = "over" in entries
        rng = entries.get("rng" if over else "first_rng")
        if rng is None:
            return position.copy(mark=None, marked=0)
        marked = position.marked if over else 0  # a stream that has ended is not replayed
        return position.copy(mark={"over": True, "rng": _as_text(rng)}, marked=marked)
    form = {
        name: encode_state(entries[name], f"stream {stream}: state_dict() of the {name}")
        for name in _STATES
        if name in entries
    }
    if "over" in entries:
        form["over"] = True
    if "rng" in entries:
        form["rng"] = _as_text(entries["rng"])
    return position.copy(mark=form)


def _as_text(states: dict[str, Any]) -> dict[str, str]:
    return {name: RNGS[name].to_text(state) for name, state in states.items()}


def read(positions: Sequence[StreamPosition]) -> list[StreamPosition]:
    """The positions of a saved state, with marks as workers read them; or DamagedStateError."""
    return [position.copy(mark=_read(position.mark, at)) for at, position in enumerate(positions)]


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


def replayed(positions: Iterable[StreamPosition], every: int | None) -> int:
    """How many batches are fetched again because their streams have no states.

    The first mark is taken after ``every`` batches; None: after the first.
    """
    unmarked = (each for each in positions if not each.marked and not each.ended)
    return sum(each.given for each in unmarked if each.given >= (every or 1))
