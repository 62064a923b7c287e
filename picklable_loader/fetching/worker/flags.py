"""Flags of a dataset with a state, where no ``iter`` has begun.

A ``load_state_dict`` may set one, ``resumed`` say, for the ``iter`` or ``next`` that follows. Where
it has brought the dataset to an epoch's end, neither follows: the next epoch would go on there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...datasets.wrapper import Wrapper, innermost
from ...saving.pickles.by_reference import attributes_of, set_attributes


def flags_of(dataset: Any) -> dict[str, Any]:
    """The entry ``"after"`` of a state: the attributes of a dataset that are flags or None.

    Example: ``{"resumed": False}``; of a wrapper ``{"0.resumed": False}``.
    """
    return {name: value for name, value in attributes_below(dataset).items() if _is_flag(value)}


def attributes_below(dataset: Any) -> dict[str, Any]:
    """The attributes of a dataset; of a wrapper, those of the datasets below it."""
    return {
        prefix + name: value
        for prefix, owner in _owners(dataset)
        for name, value in attributes_of(owner).items()
    }


def undo_flags(
    dataset: Any,
    flags: Mapping[str, Any],
    before: Mapping[str, Any],
    as_saved: Callable[[], bool | None],
) -> None:
    """Give the flags that a load has set, or made, the values that they had at the save.

    What ``iter`` is to apply stays: without it, the dataset is in another state than the saved one.

    Args:
        dataset: it was given a state.
        flags: those of the save; see `flags_of`.
        before: its attributes before the load.
        as_saved: it has the saved state; None: nobody knows.
    """
    now = attributes_below(dataset)
    moved = {name: value for name, value in now.items() if value is not before.get(name, _ABSENT)}
    made = {name: _ABSENT for name in moved.keys() - before.keys() if _is_flag(moved[name])}
    again = {**made, **{name: value for name, value in flags.items() if name in moved}}
    if all(again[name] is moved[name] for name in again):
        return
    known = as_saved() is not None
    _set(dataset, again)
    there = as_saved()
    if there is False or (there is None and known):
        _set(dataset, {name: moved[name] for name in again})


#: the value of a flag that is not there
_ABSENT = object()


def _set(dataset: Any, flags: Mapping[str, Any]) -> None:
    for prefix, owner in _owners(dataset):
        own = {n.removeprefix(prefix): v for n, v in flags.items() if n.startswith(prefix)}
        gone = [name for name, value in own.items() if value is _ABSENT]
        set_attributes(owner, {n: v for n, v in own.items() if v is not _ABSENT}, gone)


def _is_flag(value: Any) -> bool:
    return value is None or type(value) is bool


def _owners(dataset: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(dataset, Wrapper):
        yield "", dataset
        return
    for at, each in enumerate(innermost([dataset])):
        yield f"{at}.", each
