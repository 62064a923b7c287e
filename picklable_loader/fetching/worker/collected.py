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
from ...saving.pickles.by_reference import each_attribute

#: Batches. A number that each draws anew from six values rises by the same amount with the last
#: five of these in one of 46,656 runs. With fewer batches a warning would come at random.
_BATCHES = 6
#: in one look: objects that are looked into, their parts, and items of lists; parts of a container
_MOST_OBJECTS, _MOST_PARTS, _MOST_ITEMS, _MOST_NEAR = 500, 3000, 5000, 64
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


class Look(NamedTuple):
    """The lists and the numbers in some things at one moment, by path."""

    items: dict[str, _Items]
    numbers: dict[str, float]


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
        self._before = Look({}, {})
        #: how much each number has risen with each batch so far
        self._steps: dict[str, float] | None = None
        #: by path of a list, positions whose items have changed
        self._touched: dict[str, set[int]] = {}
        #: the last index of the batch before
        self._last: Any = None
        #: what was found
        self.paths: tuple[str, ...] = ()

    @property
    def looks(self) -> bool:
        """It looks at the next batch as well."""
        return self._batches < _BATCHES

    def begin(self) -> None:
        """A batch is going to be made."""
        if self._batches and self.looks:
            self._before = look(self._parts)

    def end(self, indices: Any = None) -> tuple[str, ...]:
        """It was made of these indices: the paths to all that was found by now."""
        before, self._last = self._last, _last_of(indices)
        if self.looks:
            if self._batches:
                both = type(before) is int and type(self._last) is int
                self._compare(look(self._parts), self._last - before if both else None)
            self._batches += 1
        return self.paths

    def _compare(self, now: Look, index_step: int | None) -> None:
        items, numbers = self._before
        found = {p for p, each in now.items.items() if p in items and self._grown(p, each)}
        # One that rises as the indices do is the last index, perhaps.
        risen = {p: each - numbers.get(p, each) for p, each in now.numbers.items()}
        risen = {p: step for p, step in risen.items() if step > 0 and step != index_step}
        before = risen if self._steps is None else self._steps
        self._steps = {p: step for p, step in risen.items() if _same(step, before.get(p))}
        if self._batches == _BATCHES - 1:
            found.update(self._steps)
        self.paths = tuple(sorted(found.union(self.paths)))[:3]
        self._before = Look({}, {})

    def _grown(self, path: str, now: _Items) -> bool:
        """The list has another length; or an item has changed for the second time.

        One that changes once fills a cache: ``self.images[index] = image``.
        """
        before = self._before.items[path]
        if before.owner is not now.owner:
            return False
        changed = _changed_in(before, now)
        again = changed & self._touched.get(path, set())
        self._touched.setdefault(path, set()).update(changed)
        return before.length != now.length or bool(again)


def _last_of(indices: Any) -> Any:
    return indices[-1] if type(indices) is list and indices else indices


def look(parts: dict[str, Any]) -> Look:
    """The lists and the numbers in some things, by path."""
    found, budget = Look({}, {}), _MOST_ITEMS
    # A thread of the dataset's may change a dict meanwhile; a `__getattr__` may raise anything.
    with suppress(Exception):
        for path, value, of_program in _values(parts):
            kind = type(value)
            if kind in _NUMBERS and of_program:
                found.numbers[path] = value
            elif kind in _LISTS and of_program is not None:
                whole = len(value) <= budget
                budget -= len(value) if whole else 0
                ids = tuple(map(id, value)) if whole else ()
                found.items[path] = _Items(value, len(value), ids)
    return found


def changed(before: Look, now: Look) -> list[str]:
    """The paths to lists with other items, and to other numbers, which were there before."""
    items = [(p, before.items[p], each) for p, each in now.items.items() if p in before.items]
    found = [
        path
        for path, was, each in items
        if was.owner is each.owner and was.length  # an empty one may be lazy
        if was.length != each.length or _changed_in(was, each)
    ]
    # `in` finds the same NaN, which is not equal to itself.
    numbers = now.numbers.items()
    return sorted([*found, *(p for p, n in numbers if before.numbers.get(p, n) not in (n,))])


def _changed_in(before: _Items, now: _Items) -> set[int]:
    """The positions of items that are other ones."""
    return {at for at, (was, each) in enumerate(zip(before.ids, now.ids)) if was != each}


def _same(step: float, before: float | None) -> bool:
    if before is None or type(step) is int:
        return step == before
    return math.isclose(step, before, rel_tol=1e-6)


def _values(parts: dict[str, Any]) -> Iterator[tuple[str, Any, bool | None]]:
    """The attributes of some things, and of what these hold, by path.

    Each with whether a class of the program's has it. Of a library's class only a dataset or a
    callable is looked at, without its numbers: others count requests, or positions in files. None:
    of any other class of a library.
    """
    ahead, seen, budget = deque(parts.items()), set[int](), _MOST_PARTS
    while ahead and len(seen) < _MOST_OBJECTS:
        path, thing = ahead.popleft()
        kind: Any = type(thing)
        if id(thing) in seen or _is_closed(kind):
            continue
        seen.add(id(thing))
        of_program = _of_program(kind)
        for step, part in islice(_inside(thing), budget):
            budget -= 1
            yield path + step, part, of_program
            if type(part) not in ATOMS:
                ahead.append((path + step, part))


def _inside(thing: Any) -> Iterable[tuple[str, Any]]:
    kind: Any = type(thing)
    if kind in (list, tuple, deque):
        return _parts_in(enumerate(islice(thing, _MOST_NEAR)))
    if kind is dict:
        return _parts_in(islice(thing.items(), _MOST_NEAR))
    if kind is MethodType:
        return [("", thing.__self__)]
    if kind is partial:
        return [("", thing.func), ("", thing.args), ("", thing.keywords)]
    if kind is FunctionType:
        return _in_closure(thing)
    return ((f".{name}", each) for name, each in each_attribute(thing))


def _parts_in(items: Iterable[tuple[Any, Any]]) -> Iterable[tuple[str, Any]]:
    """Objects in a container; a number there is data."""
    held = ((key, each) for key, each in items if type(each) not in ATOMS)
    return ((f"[{key!r}]" if type(key) in ATOMS else "[...]", each) for key, each in held)


def _in_closure(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with suppress(ValueError):  # it is empty
            yield f".{name}", cell.cell_contents


@lru_cache(256)
def _of_program(kind: type[Any]) -> bool | None:
    """See `_values`."""
    file = str(getattr(sys.modules.get(kind.__module__), "__file__", None))
    if not any(folder in file for folder in ("site-packages", "dist-packages")):
        return True
    called = any("__call__" in vars(base) for base in kind.__mro__)
    return False if called or issubclass(kind, Dataset) else None


@lru_cache(256)
def _is_closed(kind: type[Any]) -> bool:
    """Nothing in such an object makes samples depend on those before."""
    if kind in _CONTAINERS:
        return False
    package = str(kind.__module__).partition(".")[0]
    of_python = package in sys.stdlib_module_names or package in ("numpy", "picklable_loader")
    of_torch = package == "torch" and not issubclass(kind, Dataset)
    return of_python or of_torch or issubclass(kind, _CLOSED)
