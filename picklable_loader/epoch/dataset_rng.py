"""Generators that an iterable-style dataset owns, as they were when the epoch began.

A stream without a state is read again from its start, and the next epoch's workers begin with a
copy of the program's dataset. The dataset of another program has other generators there, if the
operating system has seeded them. So a state holds them, and `DataLoader.load_state_dict` puts them
back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ..core.cursor import Cursor
from ..core.fields import check_attributes
from ..core.streams import StreamPosition
from ..datasets.datapipes import is_iter_datapipe
from ..errors import SYMPTOMS, DamagedStateError, warn
from ..orders.attribute_rngs import ATTRIBUTE_RNGS
from ..rng.owned import ids_of_global, owned_in
from ..rng.reads import by_name
from .spec import Spec

#: by path, the kind of a generator, and its state as a plain value
Rngs = dict[str, list[Any]]


def at_begin(start: Cursor, spec: Spec) -> Rngs:
    """The generators of an epoch that begins, or goes on from ``start``; none of map-style data."""
    if start.dataset_rng or not spec.iterable or is_iter_datapipe(spec.dataset):
        return start.dataset_rng  # DataPipes are seeded in each epoch
    found: Rngs = {}
    for path, generator in _owned(spec.dataset).items():
        kind = next((k for k, rng in ATTRIBUTE_RNGS.items() if isinstance(generator, rng.kind)), "")
        with suppress(Exception):  # of a class of the program's, or the system's own
            found[path] = [kind, ATTRIBUTE_RNGS[kind].save(generator)]
    return found


def for_replays(rngs: Rngs, positions: Iterable[StreamPosition], live: bool, spec: Spec) -> Rngs:
    """The part that a saved state needs: all in a pickle, and where ``iter`` is called again.

    So it is if the dataset has no state, and if a stream is read again; unless all have ended. New
    workers of the next epoch call it with copies of the dataset that no epoch has changed.
    """
    if not rngs or live or (spec.reads_copies and not spec.lives_on):
        return rngs
    going = [position for position in positions if not position.ended]
    again = not spec.stateful or any(position.from_start for position in going)
    return rngs if going and again else {}


def held_by(rngs: Rngs, spec: Spec) -> set[str]:
    """The attributes that a state holds whole, of those that epochs change in this process."""
    return set() if spec.reads_copies else {path.removeprefix("dataset.") for path in rngs}


def check(saved: Mapping[str, Any]) -> None:
    """Raise DamagedStateError unless these are what `at_begin` gives."""
    check_attributes(saved, "dataset_rng")
    for path, (kind, form) in saved.items():
        try:
            rng = ATTRIBUTE_RNGS[kind]
            rng.restore(rng.make(form), form)
        except SYMPTOMS as error:
            field = f"dataset_rng.{path}"[:200]
            raise DamagedStateError(field, "a generator's state", error) from error


def put_back(dataset: Any, saved: Mapping[str, Any]) -> None:
    """Set the dataset's generators; warn of those that it does not have."""
    owned, missing = _owned(dataset) if saved else {}, []
    for path, (kind, form) in saved.items():
        if isinstance(owned.get(path), ATTRIBUTE_RNGS[kind].kind):
            ATTRIBUTE_RNGS[kind].restore(owned[path], form)
        else:
            missing.append(path)
    if missing:
        warn(
            f"the state has the generator {', '.join(missing[:4])}, and the dataset "
            f"{type(dataset).__qualname__} has none there: what is read again may differ. Build "
            "the dataset as it was built when the state was saved. If its __iter__ makes the "
            "generator, make it in __init__, or resume from a pickle of the iterator"
        )


def _owned(dataset: Any) -> dict[str, Any]:
    kinds = tuple(rng.kind for rng in ATTRIBUTE_RNGS.values())
    paths, found = Counter[str](), dict[str, Any]()
    for path, each in owned_in({"dataset": dataset}, ids_of_global(), reads=False):
        if isinstance(each, kinds) and not by_name(path):
            paths[path] += 1  # the items of a deque have one path
            found[path if paths[path] == 1 else f"{path}#{paths[path]}"] = each
    return found
