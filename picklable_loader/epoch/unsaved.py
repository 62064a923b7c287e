"""Finds random generators of the program's own that a state does not reach, and warns of them.

A dataset, a collate_fn, or a closure in a sampler may hold one. Its next draws depend on its
earlier ones, and in a worker on the batches that came there. So do the next batches of a loader
that counts its epochs. A walk over attributes, which calls nobody's code, finds it. The loader
warns once, when a position is saved.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, cycle, islice
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..datasets.protocol import is_stateful
from ..orders.attributes import rngs_in
from .spec import Spec
from .warnings import unsaved_in_data, unsaved_in_sampler

_GENERATORS = (
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
    torch.Generator,
)
#: the loader seeds these
_GLOBAL: tuple[Any, ...] = (random._inst, np.random.mtrand._rand, torch.default_generator)
#: nothing is looked for in them
_CLOSED = (type, ModuleType, torch.Tensor, np.ndarray, TorchDataLoader)
_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None)})
#: all that is of interest in some of Python's own things
_PARTS: dict[type[Any], tuple[str, ...]] = {
    FunctionType: ("__closure__", "__defaults__", "__kwdefaults__"),
    BuiltinMethodType: ("__self__",),
    CellType: ("cell_contents",),
}
#: dataset, collate_fn, their classes, and sampler
MOST_PARTS = 4
#: how many things are looked into, how many of what is in one, and how far from the first
_MOST_SEEN, _MOST_NEAR, _DEEPEST = 2000, 64, 8
#: this layer may not import it
_ITERATOR = ("picklable_loader", "LoaderIterator")
_CLASSES, _BY_CLASS = "classes", ".__class__."
#: their referents are all that is of interest in them
_HOLDERS = (
    set,
    frozenset,
    deque,
    MappingProxyType,
    type(iter(int, 1)),
    chain,
    cycle,
    enumerate,
    filter,
    map,
    zip,
)


def tell_of_generators(
    spec: Spec,
    collate_fn: Any,
    looked: set[str],
    state: dict[str, Any],
    live: bool,
    foreign: bool,
) -> None:
    """Warn, once a loader, of generators that a saved position leaves out.

    Args:
        spec: how the loader is set up.
        collate_fn: the loader's.
        looked: the parts that were looked through before; those of this time are added.
        state: the position.
        live: it goes into a pickle, with the loader.
        foreign: another thread moves the loader.
    """
    known = {id(spec.dataset), *map(id, _GLOBAL)}
    given = {"dataset": spec.dataset, "collate_fn": collate_fn}
    names = [name for name in _data_at_risk(spec, state, live, foreign) if name not in looked]
    if names:
        by_class = names == [_CLASSES]
        parts = given if by_class else {name: given[name] for name in names}
        found = _found(parts, known - {id(parts.get("dataset"))}, by_class)
        if found:
            unsaved_in_data(found)
        looked.update(names if by_class else [*names, _CLASSES])
    if spec.known:
        looked.add("sampler")
    elif not live and "sampler" not in looked and _sampler_at_risk(spec, state):
        known.update(map(id, spec.generators.values()), rngs_in(spec.sampler, spec.dataset))
        found = _found({"sampler": spec.sampler}, known)
        if found:
            unsaved_in_sampler(found)
        looked.add("sampler")


def _data_at_risk(spec: Spec, state: dict[str, Any], live: bool, foreign: bool) -> list[str]:
    """The parts whose generators have moved, or may have, and are not saved as they are."""
    # A run gives each worker the same batches; and none has come from these workers yet.
    alike = spec.workers < 2 or spec.pinned
    unmoved = not state["epoch"] or (spec.workers and not spec.lives_on)
    if spec.options.seed_hooks or (alike and unmoved and not state["step"]):
        return []
    # What another thread moves while it is pickled is not copied.
    travels, parts = live and not spec.workers and not foreign, []
    if not spec.streamed and not (travels and spec.options.pickle_dataset):
        parts.append("dataset")  # of a stream, a mark holds it, or a replay moves it again
    if spec.streamed or not travels:
        parts.append("collate_fn")
    if not parts and spec.options.codec not in ("cloudpickle", "dill"):
        parts.append(_CLASSES)  # pickle writes a class by its name
    return parts


def _sampler_at_risk(spec: Spec, state: dict[str, Any]) -> bool:
    """A program that is built anew begins with generators that no earlier epoch has moved."""
    if not state["epoch"] or {"iterator_state", "sampler_state"} & (state["order"] or {}).keys():
        return False
    return not is_stateful(spec.sampler)


def _found(parts: dict[str, Any], known: set[int], by_class: bool = False) -> str:
    """Some generators in parts of a loader, each with path and type; "" if there is none.

    Args:
        parts: the parts, by name.
        known: ``id`` of what is not looked into.
        by_class: only those that a class owns, or a default of one of its methods.
    """
    found = _walk({f"loader.{name}": part for name, part in parts.items()}, known)
    if by_class:
        found = ((path, generator) for path, generator in found if _BY_CLASS in path)
    kinds = [(path, type(generator)) for path, generator in islice(found, 3)]
    return ", ".join(f"{p} ({k.__module__.partition('.')[0]} {k.__qualname__})" for p, k in kinds)


def _walk(parts: dict[str, Any], known: set[int]) -> Iterator[tuple[str, Any]]:
    """The generators in some things, by path, the nearest first."""
    ahead = deque((path, thing, 0) for path, thing in parts.items())
    seen, owners = set[int](), known | set(map(id, parts.values()))
    while ahead and len(seen) < _MOST_SEEN:
        path, thing, depth = ahead.popleft()
        kind = type(thing)
        if kind in _ATOMS or id(thing) in seen or id(thing) in known:
            continue
        seen.add(id(thing))
        if issubclass(kind, _GENERATORS) or _goes_on(thing, kind, owners):
            yield path, thing
        elif kind is np.ndarray and thing.dtype.hasobject:
            ahead += [(f"{path}[...]", each, depth + 1) for each in islice(thing.flat, _MOST_NEAR)]
        elif depth < _DEEPEST and not issubclass(kind, _CLOSED):
            near = _inside(thing, kind)
            ahead += [(path + s, each, depth + 1) for s, each in near if type(each) not in _ATOMS]


def _goes_on(thing: Any, kind: type[Any], owners: set[int]) -> bool:
    """The next batches of a loader, or of its iterator, depend on those before.

    An epoch of any other loader is drawn from the generators at hand.
    """
    ours = any((base.__module__, base.__name__) == _ITERATOR for base in kind.__mro__)
    loader = vars(thing).get("loader") if ours else thing
    if not issubclass(type(loader), TorchDataLoader):
        return issubclass(kind, _BaseDataLoaderIter)
    given = vars(loader)
    if id(given.get("dataset")) in owners:  # the dataset refers to the loader that is saved
        return False
    options = getattr(given.get("_pl"), "options", None)
    return ours or given.get("generator") is not None or getattr(options, "seed", None) is not None


def _inside(thing: Any, kind: type[Any]) -> list[tuple[str, Any]]:
    """The parts of a thing, each with its step of a path; nobody's code is called for it."""
    found: list[tuple[str, Any]] = []
    for sequence in (list, tuple):
        if issubclass(kind, sequence):
            near = islice(sequence.__iter__(thing), _MOST_NEAR)
            found += [(f"[{at}]", each) for at, each in enumerate(near)]
    if issubclass(kind, dict):
        for key, each in list(islice(dict.items(thing), _MOST_NEAR)):
            found.append((f"[{key!r}]" if type(key) in _ATOMS else "[...]", each))
    if issubclass(kind, _HOLDERS):
        found += [("[...]", each) for each in islice(gc.get_referents(thing), _MOST_NEAR)]
    for name in _PARTS.get(kind, ()):
        with suppress(ValueError):  # a cell that is empty
            found.append((f".{name}", getattr(thing, name)))
    for base in () if kind in _PARTS else kind.__mro__:
        found += _attributes(thing, base)
    return found


def _attributes(thing: Any, kind: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(kind).items()):
        if issubclass(type(value), _GENERATORS):
            yield f"{_BY_CLASS}{name}", value
        elif type(value) is FunctionType:
            for each in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
                if issubclass(type(each), _GENERATORS):
                    yield f"{_BY_CLASS}{name}.__defaults__", each
        elif name == "__dict__" and type(value) in (GetSetDescriptorType, MemberDescriptorType):
            with suppress(AttributeError, TypeError):  # a class that is written in C has none now
                held = list(dict.items(value.__get__(thing)))
                yield from ((f".{name}", each) for name, each in held)
        elif type(value) is MemberDescriptorType:
            with suppress(AttributeError):  # a slot that is empty
                yield f".{name}", value.__get__(thing)
