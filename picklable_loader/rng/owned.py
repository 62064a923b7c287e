"""Finds the random generators that something owns, and seeds them.

A dataset, a ``collate_fn``, or a closure in a sampler may own one. A bounded walk over attributes
finds it, and in the global variables that the code of these reads. It calls nobody's code.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial
from heapq import heappop, heappush
from inspect import getattr_static, signature
from itertools import chain, count, cycle, islice
from logging import Logger
from threading import local
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
from torch.utils.data import Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..core.seeds import owned_seed
from .generators import GLOBAL
from .reads import (
    ATOMS,
    BY_CLASS,
    CACHE,
    GENERATORS,
    PARTS_OF_FUNCTION,
    Found,
    by_name,
    values_of_kind,
    values_read,
)

#: objects of these kinds are not looked into
_CLOSED = (type, ModuleType, torch.Tensor, np.ndarray, TorchDataLoader, Logger)
#: the attributes to look at in some of Python's own objects
_PARTS: dict[type[Any], tuple[str, ...]] = {
    FunctionType: PARTS_OF_FUNCTION,
    BuiltinMethodType: ("__self__",),
    CellType: ("cell_contents",),
}
#: data: they have no attributes and no code
_PLAIN = (list, tuple, dict)
#: most objects to look at that attributes hold, that code reads, and within one object
_MOST_HELD, _MOST_READ, _MOST_NEAR = 2000, 1000, 64
_32_BITS = 0xFFFFFFFF
#: in the smallest state of a Mersenne Twister; bytes in torch's
_WORDS, _OF_TORCH = 625, 5056
#: methods of Hugging Face's collators: the first makes a generator by the second, when it is needed
_LAZY, _MAKE = "create_rng", "get_generator"
#: albumentations': AlbumentationsX adds a worker's own seed to that of its `set_random_seed`
_BY_GENERATORS = "random_generator", "py_random"
#: this layer may not import it
_ITERATOR = ("picklable_loader", "LoaderIterator")
#: their referents are all that is of interest in them
_HOLDERS = (
    *(set, frozenset, deque, MappingProxyType, CACHE),
    *(type(iter(int, 1)), chain, cycle, enumerate, filter, map, zip),
)

#: how deep in data it is, its number, its path, and the thing
_Thing = tuple[int, int, str, Any]
Seed = Callable[[int], object]
#: by ``id`` of a generator: its path with a number, how it is seeded, and itself
Seedable = dict[int, tuple[bytes, Seed, Any]]


def owned_in(
    parts: dict[str, Any],
    known: set[int],
    whole: bool = False,
    closed: tuple[type[Any], ...] = (),
    reads: bool = True,
    exact: str | None = None,
) -> Found:
    """The generators in some things, by path, the nearest first.

    Args:
        parts: the things, by path.
        known: ``id`` of what is not looked into.
        whole: an object that seeds all that it owns is found instead of its generators.
        closed: of these kinds nothing is looked into, either.
        reads: all values that the code of these reads are looked into, and not only generators.
        exact: the part that is saved with all that it owns; nothing in it is found as a whole, as
            a transform may draw from a generator of its class, which is not saved.
    """
    return _Walk(parts, known, whole, exact, (*_CLOSED, *closed), reads).found()


class _Walk:
    """Looks once at each thing: first at all that attributes hold, then at what code reads.

    So the seed of a generator, which depends on its path, stays when code comes to read it as well.
    Data that is nested deep comes last in each part.
    """

    def __init__(
        self,
        parts: dict[str, Any],
        known: set[int],
        whole: bool,
        exact: str | None,
        shut: tuple[type[Any], ...],
        reads: bool,
    ) -> None:
        self.whole, self.exact, self.shut, self.reads = whole, exact, shut, reads
        self.owners, self.seen = known | set(map(id, parts.values())), set(known)
        self.most = len(known) + _MOST_HELD
        self.ahead, self.numbers = list[_Thing](), count()
        # For this walk only, as classes may change; they hash as objects do.
        self.of_class: Any = cache(_of_class)
        self.protocol_of: Any = cache(_protocol)
        self.nesting: Any = cache(_nesting)
        #: the kinds whose methods were read, and the attributes that code reads
        self.kinds, self.names = set[type[Any]](), set[str]()
        self._put(parts.items(), "", 0)

    def found(self) -> Found:
        most = self.most + _MOST_READ
        while self.ahead:
            entered: list[tuple[str, Any]] = []
            while self.ahead:
                depth, _, path, thing = heappop(self.ahead)
                is_found, enters = self._judged(path, thing)
                if is_found:
                    yield path, thing
                if enters and len(self.seen) < self.most:
                    self._put(_inside(thing, type(thing), self.of_class), path, depth)
                if enters:
                    entered.append((path, thing))
            self.most = most
            for each in entered:
                self._read(*each)

    def _judged(self, path: str, thing: Any) -> tuple[bool, bool]:
        """Whether a thing is found, and whether to look into it."""
        kind = type(thing)
        if kind in _PLAIN:
            return False, True
        whole = self.whole and not (self.exact and path.startswith(self.exact))
        by_protocol = whole and self.protocol_of(kind)
        ours = _is_ours(kind)
        found = issubclass(kind, GENERATORS) or by_protocol or _goes_on(thing, ours, self.owners)
        if ours:  # it leads to the loader that is saved, and to all that is its
            return bool(found), False
        enters = not found or by_protocol == _LAZY  # a collator seeds no tokenizer in it
        return bool(found), enters and (not issubclass(kind, self.shut) or _holds(thing, kind))

    def _put(self, near: Iterable[tuple[str, Any]], path: str, depth: int) -> None:
        """Note the things that are new, for a later look."""
        for step, thing in near:
            kind = type(thing)
            if kind in ATOMS or id(thing) in self.seen or len(self.seen) >= self.most:
                continue
            self.seen.add(id(thing))
            nesting = self.nesting(kind)
            nested = 0 if nesting is None else depth + nesting
            heappush(self.ahead, (nested, next(self.numbers), path + step, thing))

    def _read(self, path: str, thing: Any) -> None:
        """Note all that the code of a thing reads; without ``reads``, the generators only."""
        kind = type(thing)
        if kind is FunctionType:
            found = values_read([(thing, "", {})], self.names)
        elif kind in _PLAIN or kind in self.kinds:
            return
        else:
            self.kinds.add(kind)
            found = values_of_kind(kind, self.names)
        if not self.reads:
            found = [each for each in found if issubclass(type(each[1]), GENERATORS)]
        self._put(found, path, 0)


def ids_of_global() -> set[int]:
    """``id`` of the generators that the loader seeds in any case."""
    return set(map(id, GLOBAL.values()))


def seed_of(generator: Any) -> Seed | None:
    """How a generator that `owned_in` has found is seeded; None: it cannot be."""
    kind = type(generator)
    if protocol := _protocol(kind):
        return partial(_by_protocol, generator, protocol)
    if issubclass(kind, torch.Generator):
        return generator.manual_seed  # type: ignore[no-any-return]
    if issubclass(kind, random.Random):
        return None if issubclass(kind, random.SystemRandom) else generator.seed
    if issubclass(kind, np.random.RandomState):
        of_numpy = type(generator._bit_generator) is np.random.MT19937
        return (lambda seed: generator.seed(seed & _32_BITS)) if of_numpy else None
    bits = generator.bit_generator if issubclass(kind, np.random.Generator) else generator
    if issubclass(type(bits), np.random.BitGenerator) and type(bits).__module__.startswith("numpy"):
        # This puts its seed sequence back as well, on which ``spawn`` depends.
        return lambda seed: bits.__setstate__(type(bits)(seed).__reduce__()[2])
    return None


def seedable_in(
    parts: dict[str, Any], excluded: frozenset[str], exact: str | None = None
) -> Seedable:
    """All that can be found and seeded in some things.

    Args:
        parts: the things, by path.
        excluded: paths of what is not seeded.
        exact: the part that is saved with all that it owns; its class is not.
    """
    found, paths = Seedable(), Counter[str]()
    for path, generator in owned_in(parts, ids_of_global(), whole=True, exact=exact):
        paths[path] += 1  # those in a set have one path
        own = exact is not None and path.startswith(exact) and not by_name(path)
        if not own and path not in excluded and (seed := seed_of(generator)):
            found[id(generator)] = f"{path},{paths[path]}".encode(), seed, generator
    return found


def seed_each(found: Seedable, seed: int) -> None:
    """Each gets a seed of its own, which depends on its path alone."""
    for path, each, _ in found.values():
        each(owned_seed(seed, path))


def _by_protocol(thing: Any, name: str, seed: int) -> None:
    seed &= _32_BITS
    if name == _BY_GENERATORS[0]:
        thing.set_random_state(np.random.default_rng(seed), random.Random(seed))
    elif name != _LAZY:
        getattr(thing, name)(seed=seed)
    elif thing.seed is not None:  # otherwise it draws from the global generators
        thing.generator = thing.get_generator(seed)
        if hasattr(thing, "_generator_pid"):  # it makes another one in another process
            thing._generator_pid = os.getpid()


def _protocol(kind: type[Any]) -> str | None:
    """How its objects seed all that they own, by a method of albumentations' or of monai's.

    Hugging Face's collators make their ``generator`` with the first batch, which is too late.
    """
    if issubclass(kind, Dataset):  # its method may draw a split; what it owns is found
        return None
    if all(type(getattr_static(kind, name, None)) is FunctionType for name in (_LAZY, _MAKE)):
        return _LAZY
    for name in ("set_random_seed", "set_random_state"):
        if _takes(kind, name, "seed"):
            both = name == "set_random_seed" and _takes(kind, "set_random_state", *_BY_GENERATORS)
            return _BY_GENERATORS[0] if both else name
    return None


def _takes(kind: type[Any], name: str, *arguments: str) -> bool:
    method = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    if type(method) is not FunctionType:
        return False
    try:
        signature(method).bind(None, **dict.fromkeys(arguments))
    except TypeError:
        return False
    return True


def _goes_on(thing: Any, ours: bool, owners: set[int]) -> bool:
    """The next batches of a loader, or of its iterator, depend on those before.

    An epoch of any other loader is drawn from the generators at hand.
    """
    loader = vars(thing).get("loader") if ours else thing
    if not issubclass(type(loader), TorchDataLoader):
        return issubclass(type(thing), _BaseDataLoaderIter)
    given = vars(loader)
    if id(given.get("dataset")) in owners:  # the dataset refers to the loader that is saved
        return False
    options = getattr(given.get("_pl"), "options", None)
    return ours or given.get("generator") is not None or getattr(options, "seed", None) is not None


def _is_ours(kind: type[Any]) -> bool:
    return any((base.__module__, base.__name__) == _ITERATOR for base in kind.__mro__)


def _holds(thing: Any, kind: type[Any]) -> bool:
    """An array of objects."""
    return kind is np.ndarray and thing.dtype.hasobject


def _nesting(kind: type[Any]) -> int | None:
    """How much deeper data is in a thing of a kind; None: it computes, and all begins anew."""
    if issubclass(kind, (list, tuple, dict, np.ndarray, *_HOLDERS)):
        return 1
    computes = issubclass(kind, Dataset) or any("__call__" in vars(base) for base in kind.__mro__)
    return None if computes else 0


def _inside(
    thing: Any, kind: type[Any], of_class: Callable[[type[Any]], list[tuple[str, Any]]]
) -> list[tuple[str, Any]]:
    """The parts of a thing, each with its step of a path; nobody's code is called for it."""
    found: list[tuple[str, Any]] = []
    if _holds(thing, kind):
        return [("[...]", each) for each in islice(thing.flat, _MOST_NEAR)]
    for sequence in (list, tuple):
        if issubclass(kind, sequence):
            near = _near(sequence.__iter__(thing))
            found += [(f"[{n}]", e) for n, e in enumerate(near) if type(e) not in ATOMS]
    if issubclass(kind, dict):
        for key, each in zip(dict.keys(thing), list(_near(dict.values(thing))), strict=False):
            if type(each) not in ATOMS:
                found.append((f"[{key!r}]" if type(key) in ATOMS else "[...]", each))
    if issubclass(kind, _HOLDERS):
        found += [("[...]", each) for each in islice(gc.get_referents(thing), _MOST_NEAR)]
    for name in _PARTS.get(kind, ()):
        with suppress(ValueError):  # a cell that is empty
            found.append((f".{name}", getattr(thing, name)))
    for base in () if kind in _PARTS or kind in _PLAIN else kind.__mro__:
        found += _attributes(thing, of_class(base))
    return [*found, *_of_thread(thing, kind)]


def _near(things: Iterable[Any]) -> Iterator[Any]:
    """The first objects of a list; all, if those are generators: it may have one for each index."""
    each, rest = None, iter(things)
    for each in islice(rest, _MOST_NEAR):
        yield each
    if issubclass(type(each), GENERATORS):
        yield from islice(rest, _MOST_HELD)


def _of_thread(thing: Any, kind: type[Any]) -> Found:
    """All that this thread, or its context, has in a variable."""
    if kind is local:  # in another thread, a subclass would run its constructor
        yield from ((f".{name}", each) for name, each in vars(thing).items())
    elif kind is ContextVar:
        with suppress(LookupError):  # it has no value
            yield ".get()", thing.get()


def _attributes(thing: Any, interesting: list[tuple[str, Any]]) -> Found:
    for name, value in interesting:
        if name == "__dict__":
            with suppress(AttributeError, TypeError):  # a class that is written in C has none now
                held = list(dict.items(value.__get__(thing)))
                yield from ((f".{name}", each) for name, each in held)
        elif type(value) is MemberDescriptorType:
            with suppress(AttributeError):  # a slot that is empty
                yield f".{name}", value.__get__(thing)
        else:
            yield f"{BY_CLASS}{name}", value


def _of_class(kind: type[Any]) -> list[tuple[str, Any]]:
    """The descriptors of what objects of a class have; the generators that the class owns."""
    found: list[tuple[str, Any]] = []
    for name, value in list(vars(kind).items()):
        if type(value) is FunctionType:
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            name = f"{name}.__defaults__"
            found += [(name, each) for each in defaults if issubclass(type(each), GENERATORS)]
        elif name == "__dict__":
            if type(value) in (GetSetDescriptorType, MemberDescriptorType):
                found.append((name, value))
        elif type(value) is MemberDescriptorType or issubclass(type(value), GENERATORS):
            found.append((name, value))
    return found


# --- generators of streams -----------------------------------------------------------------------


def owned_not_in(state: Any, parts: dict[str, Any]) -> dict[str, bytes]:
    """By path, the states of generators that some things own; none if ``state`` may hold them.

    Those of their classes and in global variables are left out: the loader seeds them.
    """
    if has_generators(state, of_program=False):
        return {}
    found = owned_in(parts, ids_of_global(), reads=False)
    own = {p: each for p, each in found if isinstance(each, GENERATORS) and not by_name(p)}
    return {path: _as_it_is(each) for path, each in own.items()}


def _as_it_is(generator: Any) -> bytes:
    if isinstance(generator, torch.Generator):
        return bytes(generator.get_state().numpy().tobytes())
    try:
        return pickle.dumps(generator)
    except Exception:  # of a class of the user's
        return b""


def has_generators(state: Any, of_program: bool = True, levels: int = 8) -> bool:
    """A generator, its state, or data as long as one is in it; deeper levels are not looked at.

    Weights, which are no whole numbers, are none. ``of_program``: the present state of a global
    generator counts as well.
    """
    if (words := _may_be_words(state)) is not None:
        return words and (of_program or not _is_global(state))
    if isinstance(state, dict):
        if "bit_generator" in state:
            inner = state.get("state")
            key = inner.get("key") if isinstance(inner, dict) else None
            return of_program or key is None or not _is_global(key)
        state = [*state.values()]
    if isinstance(state, list | tuple):
        return levels > 0 and any(has_generators(e, of_program, levels - 1) for e in state)
    return isinstance(state, GENERATORS)


def _may_be_words(data: Any) -> bool | None:
    """Data is as long as a generator's state, and no floats; None: it is to be looked into."""
    if isinstance(data, torch.Tensor):
        return data.numel() >= _WORDS - 1 and not data.is_floating_point()
    if isinstance(data, np.ndarray):
        return data.size >= _WORDS - 1 and data.dtype.kind != "f"
    if isinstance(data, bytes | str | list | tuple) and len(data) >= _WORDS - 1:
        return type(data[0]) is not float
    return None


def _is_global(words: Any) -> bool:
    """They are the present state of one of the program's generators."""
    if len(words) not in (_WORDS - 1, _WORDS, _OF_TORCH):
        return False
    of_numpy: Any = np.random.get_state(legacy=False)
    key = of_numpy["state"].get("key", ())  # only a Mersenne Twister has one
    states = key, random.getstate()[1], torch.get_rng_state()
    return any(np.array_equal(words, each) for each in states)
