"""Flags of a dataset with a state, as an epoch's end leaves them.

A ``load_state_dict`` may set one, ``resumed`` say, for the ``iter`` or ``next`` that follows. Where
it has brought the dataset to an epoch's end, neither follows: the next epoch would go on there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...datasets.wrapper import Wrapper, innermost
from ...saving.pickles.by_reference import attributes_of


def flags_of(dataset: Any) -> dict[str, Any]:
    """A dataset's flags at an epoch's end, as a further entry of a state.

    Example: ``{"after": {"resumed": False}}``; of a wrapper ``{"after": {"0.resumed": False}}``.
    """
    now = attributes_below(dataset).items()
    flags = {name: value for name, value in now if type(value) in (bool, type(None))}
    return {"after": flags} if flags else {}


def attributes_below(dataset: Any) -> dict[str, Any]:
    """The attributes of a dataset; of a wrapper, those of the datasets below it."""
    return {
        prefix + name: value
        for prefix, owner in _owners(dataset)
        for name, value in attributes_of(owner).items()
    }


def undo_flags(dataset: Any, flags: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Set the flags that have changed since the attributes were as ``before``."""
    now = attributes_below(dataset)
    for prefix, owner in _owners(dataset):
        for name, value in flags.items():
            own = name.removeprefix(prefix)
            if prefix + own == name and now.get(name) is not before.get(name):
                setattr(owner, own, value)


def _owners(dataset: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(dataset, Wrapper):
        yield "", dataset
        return
    for at, each in enumerate(innermost([dataset])):
        yield f"{at}.", each
