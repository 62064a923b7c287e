"""The values that code reads in global variables and in classes; nobody's code is called for it."""

from __future__ import annotations

import dis
import random
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache, partialmethod
from inspect import getattr_static
from types import (
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch

Found = Iterator[tuple[str, Any]]
#: by name, of a class and its bases
Definitions = dict[str, list[Any]]
#: something that code reads, its path, and the class that it is looked up in
Read = tuple[Any, str, Definitions]

GENERATORS = (
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
    torch.Generator,
)
ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None)})
PARTS_OF_FUNCTION = ("__closure__", "__defaults__", "__kwdefaults__")
#: in the path of what a class owns, or a default of one of its methods
BY_CLASS = ".__class__."
#: in the path of a global variable of the program, which a function or a method reads
GLOBALS = ".__globals__."
#: methods that a loader, or a transform, calls; those which these call are looked at as well
_CALLED = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
#: Their generators are the global ones, which the loader seeds, or are nobody else's: `datasets`
#: has one for the names of its caches. To read the code below its streams took 28 ms.
_LIBRARIES = {
    *("torch", "numpy", "picklable_loader", "torchvision", "PIL"),
    *("datasets", "fsspec", "huggingface_hub", "pandas", "pyarrow"),
}
#: the folder of the standard library
_STDLIB = sysconfig.get_path("stdlib")
#: of how many functions the code is read at once
_MOST_FUNCTIONS = 64
#: the type of a function with a cache of its results
CACHE: Any = type(lru_cache(len))
#: where the function is that they call
_WRAPPERS: dict[type[Any], str] = {
    classmethod: "__func__",
    staticmethod: "__func__",
    property: "fget",
    cached_property: "func",
    partialmethod: "func",
    CACHE: "__wrapped__",
}
_SLOTS = (MemberDescriptorType, GetSetDescriptorType)


def by_name(path: str) -> bool:
    """Pickle writes only the name of what has the generator at a path."""
    return BY_CLASS in path or GLOBALS in path


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
            if issubclass(type(value), GENERATORS):
                yield "." + ".".join(path[1:]), value


def values_of_kind(kind: type[Any], names: set[str]) -> list[tuple[str, Any]]:
    """All that the methods of a class read in global variables, and in the class.

    Args:
        kind: the class.
        names: the attributes that code has read so far: such a method of the program's is called
            as well. Those that this code reads are added.
    """
    defined = _definitions(kind)
    called = []
    for name, (method, *_) in defined.items():
        function = _unwrapped(method) if name in _CALLED or name in names else None
        if type(function) is not FunctionType:
            continue
        if name in _CALLED or _is_near(function.__globals__, {}):
            called.append((function, f"{BY_CLASS}{name}", defined))
    return values_read(called, names)


def values_read(called: Iterable[Read], names: set[str]) -> list[tuple[str, Any]]:
    """All that functions read, and those that they call; for ``names`` see `values_of_kind`."""
    found: list[tuple[str, Any]] = []
    waiting, seen = deque(called), set[Any]()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        function, path, defined = waiting.popleft()
        if function in seen:
            continue
        seen.add(function)
        found += [(f"{path}.{part}", getattr(function, part)) for part in PARTS_OF_FUNCTION]
        waiting += [(each, f"{path}.__closure__", defined) for each in _in_cells(function)]
        if _of_library(function.__globals__):
            continue  # it may be a decorator
        for code in codes_in(function.__code__):
            names.update(code.co_names)
            for value, path, owner in _reads(code, function.__globals__, defined):
                if type(value) is not FunctionType:
                    found.append((path, value))
                elif _is_near(value.__globals__, function.__globals__):
                    waiting.append((value, path, owner))
    return found


def _reads(code: CodeType, variables: dict[str, Any], defined: Definitions) -> Iterator[Read]:
    """All that code reads, with its path, and the class that it is looked up in."""
    yield from _looked_up(code, defined, BY_CLASS)
    for path, value in _named(code, variables):
        if type(value) is CACHE and _is_read(path, code):
            yield value, GLOBALS + path, {}  # what it has made
        value = _unwrapped(value)
        kind = type(value)
        if issubclass(kind, type):
            module = sys.modules.get(str(vars(value).get("__module__")))
            if type(module) is ModuleType and _is_near(vars(module), {}):
                yield from _looked_up(code, _definitions(value), f"{GLOBALS}{path}.")
        elif kind is FunctionType:
            yield value, GLOBALS + path, {}
        elif not (kind in ATOMS or kind is ModuleType) and _is_read(path, code):
            yield value, GLOBALS + path, {}


def _looked_up(code: CodeType, defined: Definitions, prefix: str) -> Iterator[Read]:
    """All in a class that code may read, by the names of the attributes that it reads."""
    called = () if prefix == BY_CLASS else _CALLED
    for name in (*code.co_names, *called):
        for value in defined.get(name, ())[: None if "super" in code.co_names else 1]:
            if type(value) is CACHE:
                yield value, prefix + name, defined  # what it has made
            if type(value) not in _SLOTS:
                yield _unwrapped(value), prefix + name, defined


def _definitions(kind: type[Any]) -> Definitions:
    """All that a class and its bases define, by name; what counts is first."""
    found: Definitions = {}
    for base in kind.__mro__[:-1]:
        for name, value in list(vars(base).items()):
            found.setdefault(name, []).append(value)
    return found


def _unwrapped(value: Any) -> Any:
    """The function that a property, a class method or a cache calls; else the value itself."""
    while (name := _WRAPPERS.get(type(value))) is not None:
        value = getattr(value, name)
    return value


def _in_cells(function: FunctionType) -> Iterator[FunctionType]:
    """The functions in a closure: a decorator has the one that it decorates there."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a cell that is empty
            value = _unwrapped(cell.cell_contents)
            if type(value) is FunctionType:
                yield value


def _named(code: CodeType, variables: dict[str, Any]) -> Found:
    """Global variables by the names in code; what it reads in modules, such as ``helpers.rng``."""
    given = {name: dict.get(variables, name) for name in code.co_names}
    yield from given.items()
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


def _is_read(path: str, code: CodeType) -> bool:
    """Code reads it in a module, or as a global variable; its attributes have names, too."""
    return "." in path or path in _globals_of(code)


def _is_near(variables: dict[str, Any], reader: dict[str, Any]) -> bool:
    """A module is the reader's own, or of the program: it is no library."""
    if variables is reader:
        return True
    path = str(variables.get("__file__"))
    installed = "site-packages" in path or "dist-packages" in path
    return not (installed or _of_library(variables))


def _of_library(variables: dict[str, Any]) -> bool:
    root, path = str(variables.get("__name__")).partition(".")[0], variables.get("__file__")
    if root in sys.stdlib_module_names:  # a program may have a file of that name, too
        return path is None or str(path).startswith(_STDLIB)
    return root in _LIBRARIES


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions and comprehensions within."""
    yield code
    for each in code.co_consts:
        if type(each) is CodeType:
            yield from codes_in(each)


@lru_cache(256)
def _globals_of(code: CodeType) -> frozenset[str]:
    """The global variables that code reads."""
    return frozenset(
        each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"
    )


@lru_cache(256)
def _attributes_of(code: CodeType, begin: str) -> tuple[tuple[str, ...], ...]:
    """The attributes of variables that code reads: ``("helpers", "rng")``, for example."""
    found: dict[tuple[str, ...], None] = {}  # in the code's order, in any process
    path: tuple[str, ...] = ()
    for each in dis.get_instructions(code):
        if begin in each.opname:  # such as LOAD_FAST_BORROW, or two at once (Python 3.13, 3.14)
            path = (each.argval if type(each.argval) is str else each.argval[-1],)
        elif path and each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            path = (*path, each.argval)
            found[path] = None
        else:
            path = ()
    return tuple(found)
