"""Finds what people's code counts or collects while it makes batches, and no state holds.

Two examples: ``self.count += 1`` in ``__getitem__``, and a list of the last images, with which the
next ones are mixed. A lazy value, a dict that is a cache, and a number that each sample sets anew
are none of these: samples do not depend on what was read before.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from io import IOBase
from itertools import islice
from logging import Logger
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from ...rng.reads import ATOMS
from ...saving.pickles.by_reference import attributes_of

#: Batches. A number that each draws anew from six values rises by the same amount with the last
#: five of these in one of 46,656 runs. With fewer batches a warning would come at random.
_BATCHES = 6
#: objects that are looked into, parts of a container, items of a list that are compared
_MOST_OBJECTS, _MOST_NEAR, _MOST_ITEMS = 500, 64, 10_000
_NUMBERS, _LISTS = (int, float), (list, deque)
#: all that is of interest in these are their parts
_CONTAINERS = (list, tuple, deque, dict, FunctionType, MethodType, partial)
#: a cache that is no dict is a Mapping; how far a file was read is no sample's concern
_CLOSED = (Mapping, IOBase, Logger, TorchDataLoader, type, ModuleType, torch.Tensor, np.ndarray)


class _Items(NamedTuple):
    """The items of a list at one moment."""

    owner: list[Any] | deque[Any]
    length: int
    #: their ``id``; none, of a long list
    ids: tuple[int, ...]


Look = tuple[dict[str, _Items], dict[str, float]]


class Collected:
    """Looks, before and after each of the first batches, at the objects whose code makes these.

    The first batch is left out, as it may fill what is lazy.

    Args:
        parts: the objects, by their names; those without a state.
    """

    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts
        self._batches = 0
        #: before the batch at hand
        self._items, self._numbers = dict[str, _Items](), dict[str, float]()
        #: how much each number has risen with each batch so far
        self._steps: dict[str, float] | None = None
        #: what was found
        self.paths: tuple[str, ...] = ()

    @property
    def looks(self) -> bool:
        """It looks at the next batch as well."""
        return self._batches < _BATCHES

    def begin(self) -> None:
        """A batch is going to be made."""
        if self._batches and self.looks:
            self._items, self._numbers = look(self._parts)

    def end(self) -> tuple[str, ...]:
        """It was made: the paths to all that was found by now."""
        if self.looks:
            if self._batches:
                self._compare(*look(self._parts))
            self._batches += 1
        return self.paths

    def _compare(self, items: dict[str, _Items], numbers: dict[str, float]) -> None:
        before = self._items
        found = {p for p, now in items.items() if p in before and _grown(before[p], now)}
        risen = {path: now - self._numbers.get(path, now) for path, now in numbers.items()}
        steps = risen if self._steps is None else self._steps
        self._steps = {p: by for p, by in risen.items() if by > 0 and _same(by, steps.get(p))}
        if self._batches == _BATCHES - 1:
            found.update(self._steps)
        self.paths = tuple(sorted(found.union(self.paths)))[:3]
        self._items, self._numbers = {}, {}


def look(parts: dict[str, Any]) -> Look:
    """The lists and the numbers in some things, by path."""
    items, numbers = dict[str, _Items](), dict[str, float]()
    with suppress(RuntimeError):  # a thread of the dataset's changes a dict meanwhile
        for path, value in _values(parts):
            if type(value) in _NUMBERS:
                numbers[path] = value
            elif type(value) in _LISTS:
                whole = len(value) <= _MOST_ITEMS
                items[path] = _Items(value, len(value), tuple(map(id, value)) if whole else ())
    return items, numbers


def changed(before: Look, now: Look) -> list[str]:
    """The paths to lists with other items, and to other numbers, which were there before."""
    items = [p for p, each in now[0].items() if p in before[0] and _grown(before[0][p], each)]
    # `in` finds the same NaN, which is not equal to itself.
    numbers = [p for p, each in now[1].items() if before[1].get(p, each) not in (each,)]
    return sorted([*items, *numbers])


def _same(step: float, before: float | None) -> bool:
    if before is None or type(step) is int:
        return step == before
    return math.isclose(step, before, rel_tol=1e-6)


def _grown(before: _Items, now: _Items) -> bool:
    """It is the same list, and not only items that were None have changed: those fill a cache."""
    if before.owner is not now.owner:
        return False
    items = zip(before.ids, now.ids)
    return before.length != now.length or any(a != b and a != id(None) for a, b in items)


def _values(parts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The attributes of some things, and of what these hold, by path."""
    ahead, seen = deque(parts.items()), set[int]()
    while ahead and len(seen) < _MOST_OBJECTS:
        path, thing = ahead.popleft()
        kind: Any = type(thing)
        if id(thing) in seen or _is_closed(kind):
            continue
        seen.add(id(thing))
        for step, part in _inside(thing):
            yield path + step, part
            if type(part) not in ATOMS:
                ahead.append((path + step, part))


def _inside(thing: Any) -> Iterable[tuple[str, Any]]:
    kind = type(thing)
    if kind in (list, tuple, deque):
        return _parts_in(enumerate(islice(thing, _MOST_NEAR)))
    if kind is dict:
        return _parts_in(islice([*thing.items()], _MOST_NEAR))
    if kind is MethodType:
        return [("", thing.__self__)]
    if kind is partial:
        return [("", thing.func), ("", thing.args), ("", thing.keywords)]
    if kind is FunctionType:
        return _in_closure(thing)
    return ((f".{name}", each) for name, each in attributes_of(thing).items())


def _parts_in(items: Iterable[tuple[Any, Any]]) -> Iterable[tuple[str, Any]]:
    """Objects in a container; a number there is data."""
    held = ((key, each) for key, each in items if type(each) not in ATOMS)
    return ((f"[{key!r}]" if type(key) in ATOMS else "[...]", each) for key, each in held)


def _in_closure(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with suppress(ValueError):  # it is empty
            yield f".{name}", cell.cell_contents


@lru_cache(256)
def _is_closed(kind: type[Any]) -> bool:
    """Nothing in such an object makes samples depend on those before."""
    if kind in _CONTAINERS:
        return False
    package = str(kind.__module__).partition(".")[0]
    of_python = package in sys.stdlib_module_names or package in ("numpy", "picklable_loader")
    of_torch = package == "torch" and not issubclass(kind, Dataset)
    return of_python or of_torch or issubclass(kind, _CLOSED)
