"""Finds the random generators that something owns, and seeds them.

A dataset, a ``collate_fn``, or a closure in a sampler may own one. A bounded walk over attributes
finds it, and those in global variables that the code of these reads. It calls nobody's code.
"""

from __future__ import annotations

import dis
import gc
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, lru_cache, partial
from inspect import getattr_static, signature
from itertools import chain, cycle, islice
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
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

_GENERATORS = (
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
    torch.Generator,
)
#: nothing is looked for in them
_CLOSED = (type, ModuleType, torch.Tensor, np.ndarray, TorchDataLoader)
_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None)})
#: all that is of interest in some of Python's own things
_PARTS: dict[type[Any], tuple[str, ...]] = {
    FunctionType: ("__closure__", "__defaults__", "__kwdefaults__"),
    BuiltinMethodType: ("__self__",),
    CellType: ("cell_contents",),
}
#: how many things are looked at, and how many of what is in one; the nearest come first
_MOST_SEEN, _MOST_NEAR = 2000, 64
_32_BITS = 0xFFFFFFFF
#: methods of Hugging Face's collators: the first makes a generator by the second, when it is needed
_LAZY, _MAKE = "create_rng", "get_generator"
#: this layer may not import it
_ITERATOR = ("picklable_loader", "LoaderIterator")
#: in the path of what a class owns, or a default of one of its methods
BY_CLASS = ".__class__."
#: in the path of a global variable of the program, which a function or a method reads
GLOBALS = ".__globals__."
#: methods that a loader, or a transform, calls; those which these call are looked at as well
_CALLED = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
#: their generators are the global ones, which the loader seeds, or are nobody else's
_LIBRARIES = {"torch", "numpy", "picklable_loader"}
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


Found = Iterator[tuple[str, Any]]
Seed = Callable[[int], object]


def owned_in(
    parts: dict[str, Any],
    known: set[int],
    whole: bool = False,
    closed: tuple[type[Any], ...] = (),
) -> Found:
    """The generators in some things, by path, the nearest first.

    Args:
        parts: the things, by path.
        known: ``id`` of what is not looked into.
        whole: an object that seeds all that it owns is found instead of its generators.
        closed: of these kinds nothing is looked into, either.
    """
    ahead = deque[tuple[str, Any]]()
    # For this walk only, as classes may change; they hash as objects do.
    of_class: Any = cache(_of_class)
    read_by: Any = cache(_read_by_methods)
    protocol_of: Any = cache(_protocol)
    seen, owners, shut = set(known), known | set(map(id, parts.values())), (*_CLOSED, *closed)
    most = len(known) + _MOST_SEEN

    def look_at(near: Iterable[tuple[str, Any]], path: str) -> None:
        for step, thing in near:
            if type(thing) in _ATOMS or id(thing) in seen or len(seen) >= most:
                continue
            seen.add(id(thing))
            ahead.append((path + step, thing))

    look_at(parts.items(), "")
    while ahead:
        path, thing = ahead.popleft()
        kind = type(thing)
        by_protocol = whole and protocol_of(kind)
        if issubclass(kind, _GENERATORS) or by_protocol or _goes_on(thing, kind, owners):
            yield path, thing
            # A dataset seeds itself, and no transform in it; a collator, no tokenizer.
            if not (by_protocol and (issubclass(kind, Dataset) or by_protocol == _LAZY)):
                continue
        if len(seen) >= most:
            continue
        if kind is np.ndarray and thing.dtype.hasobject:
            look_at((("[...]", each) for each in islice(thing.flat, _MOST_NEAR)), path)
        elif not issubclass(kind, shut):
            look_at(_inside(thing, kind, of_class), path)
            look_at(_read_by([thing], {}) if kind is FunctionType else read_by(kind), path)


def read_in_others(thing: Any) -> Found:
    """The generators that methods of a thing read in what it has, such as ``self.data.rng``."""
    methods: dict[str, Any] = {}
    for base in reversed(type(thing).__mro__):
        methods.update(vars(base))
    for method in methods.values():
        code = method.__code__ if type(method) is FunctionType else None
        for path in _attributes_of(code, "LOAD_FAST") if code and code.co_argcount else ():
            value = thing if path[0] == code.co_varnames[0] else None  # type: ignore[union-attr]
            for name in path[1:]:
                value = getattr_static(value, name, None)
            if issubclass(type(value), _GENERATORS):
                yield "." + ".".join(path[1:]), value


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
        return partial(_seed_legacy, generator) if of_numpy else None
    bits = generator.bit_generator if issubclass(kind, np.random.Generator) else generator
    if issubclass(type(bits), np.random.BitGenerator) and type(bits).__module__.startswith("numpy"):
        return partial(_seed_bits, bits)
    return None


def seed_all_in(
    parts: dict[str, Any], excluded: frozenset[str], exact: str | None = None
) -> Seed | None:
    """Seeds all that can be found and seeded in some things; None: there is nothing.

    Each has a seed of its own, which depends on its path alone.

    Args:
        parts: the things, by path.
        excluded: paths of what is not seeded.
        exact: the part that is saved with all that it owns; it may still read global variables.
    """
    found, paths = [], Counter[str]()
    for path, generator in owned_in(parts, ids_of_global(), whole=True):
        paths[path] += 1  # those in a set have one path
        own = exact is not None and path.startswith(exact) and GLOBALS not in path
        seed = None if own or path in excluded else seed_of(generator)
        if seed is not None:
            found.append((f"{path},{paths[path]}".encode(), seed))
    return partial(_seed_each, found) if found else None


def _seed_each(found: list[tuple[bytes, Seed]], seed: int) -> None:
    for path, each in found:
        each(owned_seed(seed, path))


def _seed_legacy(generator: np.random.RandomState, seed: int) -> None:
    generator.seed(seed & _32_BITS)


def _seed_bits(bits: Any, seed: int) -> None:
    # This puts its seed sequence back as well, on which ``spawn`` depends.
    bits.__setstate__(type(bits)(seed).__reduce__()[2])


def _by_protocol(thing: Any, name: str, seed: int) -> None:
    if name != _LAZY:
        getattr(thing, name)(seed=seed & _32_BITS)
    elif thing.seed is not None:  # otherwise it draws from the global generators
        thing.generator = thing.get_generator(seed & _32_BITS)


def _protocol(kind: type[Any]) -> str | None:
    """The method by which its objects seed all that they own: albumentations', or monai's.

    Hugging Face's collators make their ``generator`` with the first batch, which is too late.
    """
    if all(type(getattr_static(kind, name, None)) is FunctionType for name in (_LAZY, _MAKE)):
        return _LAZY
    for name in ("set_random_seed", "set_random_state"):
        method = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
        if type(method) is FunctionType:
            with suppress(TypeError):
                signature(method).bind(None, seed=0)
                return name
    return None


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


def _inside(
    thing: Any, kind: type[Any], of_class: Callable[[type[Any]], list[tuple[str, Any]]]
) -> list[tuple[str, Any]]:
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
        found += _attributes(thing, of_class(base))
    return found


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
            found += [(name, each) for each in defaults if issubclass(type(each), _GENERATORS)]
        elif name == "__dict__":
            if type(value) in (GetSetDescriptorType, MemberDescriptorType):
                found.append((name, value))
        elif type(value) is MemberDescriptorType or issubclass(type(value), _GENERATORS):
            found.append((name, value))
    return found


def _read_by_methods(kind: type[Any]) -> list[tuple[str, Any]]:
    """The generators in global variables that the methods of a class read."""
    methods: dict[str, Any] = {}
    for base in reversed(kind.__mro__[:-1]):
        methods.update(vars(base))
    called = [methods[name] for name in _CALLED if type(methods.get(name)) is FunctionType]
    return _read_by(called, methods) if called else []


def _read_by(functions: list[Any], methods: dict[str, Any]) -> list[tuple[str, Any]]:
    """The generators in global variables that functions read, and those of theirs that they call.

    Args:
        functions: where to begin.
        methods: what an attribute in their code may be, by name.
    """
    found: list[tuple[str, Any]] = []
    waiting, seen = deque(functions), set(functions)
    while waiting:
        function = waiting.popleft()
        near: list[Any] = []
        for code in _codes(function.__code__):
            for name in code.co_names:
                value = dict.get(function.__globals__, name)
                if issubclass(type(value), _GENERATORS) and name in _globals_of(code):
                    found.append((f"{GLOBALS}{name}", value))
                near += [value, methods.get(name)]
            for path, value in _in_modules(code, function.__globals__):
                if issubclass(type(value), _GENERATORS):
                    found.append((GLOBALS + path, value))
                near.append(value)
        for each in near:
            each = each.__func__ if type(each) in (classmethod, staticmethod) else each
            if type(each) is not FunctionType or each in seen or len(seen) >= _MOST_NEAR:
                continue
            if _is_near(each.__globals__, function.__globals__):
                seen.add(each)
                waiting.append(each)
    return found


def _in_modules(code: CodeType, variables: dict[str, Any]) -> Found:
    """The generators that code reads in modules of the program, for example ``helpers.rng``."""
    given = {name: dict.get(variables, name) for name in code.co_names}
    modules = [each for each in given.values() if type(each) is ModuleType]
    near = any(_is_near(vars(each), variables) for each in modules)
    for path in _attributes_of(code, "LOAD_GLOBAL") if near else ():
        value: Any = given.get(path[0])
        for name in path[1:]:
            if type(value) is not ModuleType or not _is_near(vars(value), variables):
                break
            value = vars(value).get(name)
        else:
            yield ".".join(path), value


def _is_near(variables: dict[str, Any], reader: dict[str, Any]) -> bool:
    """A module is the reader's own, or of its package, or of the program: it is no library."""
    if variables is reader:
        return True
    root, of_reader = (str(each.get("__name__")).partition(".")[0] for each in (variables, reader))
    if root in sys.stdlib_module_names or root in _LIBRARIES:
        return False
    path = str(variables.get("__file__"))
    return root == of_reader or not ("site-packages" in path or "dist-packages" in path)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions and comprehensions within."""
    yield code
    for each in code.co_consts:
        if type(each) is CodeType:
            yield from _codes(each)


@lru_cache(256)
def _globals_of(code: CodeType) -> frozenset[str]:
    """The global variables that code reads; its attributes have names, too."""
    return frozenset(
        each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"
    )


@lru_cache(256)
def _attributes_of(code: CodeType, begin: str) -> tuple[tuple[str, ...], ...]:
    """The attributes of variables that code reads: ``("helpers", "rng")``, for example."""
    found: dict[tuple[str, ...], None] = {}  # in the code's order, in any process
    path: tuple[str, ...] = ()
    for each in dis.get_instructions(code):
        if each.opname == begin:
            path = (each.argval,)
        elif path and each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            path = (*path, each.argval)
            found[path] = None
        else:
            path = ()
    return tuple(found)
