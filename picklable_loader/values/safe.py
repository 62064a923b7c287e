"""Safe: iterators that ``torch.load(weights_only=True)`` may build, since nothing in them is code.

Torch's safe reader builds what stands in a list. What a file says it may then do with it: call it,
with arguments of the file's choice. So the list that is made here names no class of anybody's but
*stand-ins*, under the classes' names: one that makes an empty instance and calls nothing, and for
loader and iterator one that looks through what it is given first. A class itself stands under a
name that no file can say, since torch asks for it when it fills an instance.
"""

from __future__ import annotations

import datetime
import importlib
import io
import pathlib
import pickle
import pickletools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert

from ..errors import NeedsCodeError
from ..interleaving import Interleave
from ..iterator import LoaderIterator
from ..loader import DataLoader
from ..options import Options
from ..shuffling import ShuffleBuffer
from ..standing import Standing
from .built_by_torch import BUILT_BY_TORCH
from .needs_code import is_unreadable, needs_code, unreadable
from .safe_marks import reread_iterator, reread_loader

__all__ = ["safe_globals"]


def safe_globals(
    it: Standing[Any] | DataLoader[Any], *, trusted: Iterable[Any] = ()
) -> list[tuple[Any, str]]:
    """What ``torch.serialization.add_safe_globals`` needs in order to read such an iterator.

    Then ``torch.load(weights_only=True)`` reads a file of ``torch.save`` with it. Reading runs
    no code of the dataset, the sampler or anybody's: their classes get their attributes back, and
    that is all. What it builds is used afterwards, with attributes that are the file's.

    Args:
        it: the iterator, or one of the same making: in the program that loads it,
            ``iter(loader)``, or the loader.
        trusted: functions and classes of yours that a file may call with any arguments, such as
            ``collate_fn``.

    Returns:
        For ``add_safe_globals``.

    Raises:
        NeedsCodeError: a part of it cannot be built without code; the text says which.
        Exception: what pickle raises where something cannot be pickled at all.
    """
    chosen = tuple(trusted)
    _check_marks(it)
    listed: dict[str, tuple[Any, str]] = {}
    for name, thing in _globals_of(it):
        for entry in _entries(name, thing, it, chosen):
            listed[entry[1]] = entry
    return list(listed.values())


# --- what is in it -------------------------------------------------------------------------------


class _Survey(pickle.Pickler):
    """Pickles as torch.save does, without what tensors hold."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, 2)

    def persistent_id(self, obj: Any) -> Any:
        return ("storage",) if torch.is_storage(obj) else None


def _globals_of(it: Any) -> Iterator[tuple[str, Any]]:
    """The name and the thing of every global that its pickle refers to."""
    buffer = io.BytesIO()
    _Survey(buffer).dump(it)
    yield f"{LoaderIterator.__module__}.LoaderIterator", LoaderIterator  # a loader's is one
    seen = set()
    for operation, argument, _ in pickletools.genops(buffer.getvalue()):
        if operation.name not in _READ:
            raise NeedsCodeError("a number or text in it", f"torch reads no {operation.name}", "")
        if operation.name == "GLOBAL" and argument not in seen:
            seen.add(argument)
            yield _resolved(str(argument))


def _resolved(argument: str) -> tuple[str, Any]:
    module, _, name = argument.partition(" ")
    # A pickler of protocol 2 writes names of Python 2.
    if (module, name) in _OLD_NAMES:
        module, name = _OLD_NAMES[module, name]
    else:
        module = _OLD_MODULES.get(module, module)
    thing: Any = importlib.import_module(module)
    for part in name.split("."):
        thing = getattr(thing, part)
    return f"{module}.{name}", thing


_OLD_NAMES: Any = pickle._compat_pickle.NAME_MAPPING  # type: ignore[attr-defined]
_OLD_MODULES: Any = pickle._compat_pickle.IMPORT_MAPPING  # type: ignore[attr-defined]

#: what torch's safe reader knows to do
_READ = set(
    "APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPERSID BINPUT BINUNICODE BUILD "
    "EMPTY_DICT EMPTY_LIST EMPTY_SET EMPTY_TUPLE GLOBAL LONG1 LONG_BINGET LONG_BINPUT MARK "
    "NEWFALSE NEWOBJ NEWTRUE NONE PROTO REDUCE SETITEM SETITEMS SHORT_BINSTRING STOP TUPLE TUPLE1 "
    "TUPLE2 TUPLE3".split()
)


# --- what is listed ------------------------------------------------------------------------------

#: what may be called with anything: it makes a value, and does nothing else
_VALUES: list[Any] = [
    range,
    slice,
    frozenset,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    pathlib.PurePosixPath,
    pathlib.PosixPath,
    torch.Generator,
    default_collate,
    default_convert,
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in np.typecodes["All"] if code != "O"},
]
#: numpy has moved these, so that their modules differ
_NUMPYS = {"_reconstruct", "scalar", "_frombuffer"}


def _entries(name: str, thing: Any, it: Any, trusted: tuple[Any, ...]) -> list[tuple[Any, str]]:
    if name in BUILT_BY_TORCH:
        return []
    if any(thing is each for each in (*_VALUES, *trusted)):
        beside = []
        if thing is np.dtype:  # torch fills instances of classes that are listed
            beside = [(kind, _unsaid(kind)) for kind in _VALUES if _is_dtype(kind)]
        return [(thing, name), *beside]
    if name.startswith("numpy.") and name.rpartition(".")[2] in _NUMPYS:
        return [(thing, name)]
    if is_unreadable(thing):
        raise unreadable(it, thing)
    if not isinstance(thing, type):
        raise needs_code(it, thing, "a function, which a file could call with any arguments")
    if issubclass(thing, DataLoader | Standing):
        return [(_reading(thing, it), name)]
    reason = _code_in(thing)
    if reason:
        raise needs_code(it, thing, reason)
    return [(_bare(thing), name), (thing, _unsaid(thing))]


def _is_dtype(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, np.dtype) and kind is not np.dtype


def _unsaid(kind: type[Any]) -> str:
    """A name that no file can say: one in a pickle ends where its line does."""
    return f"\n{kind.__module__}.{kind.__qualname__}"


#: of this package's own classes, those that hold values and open nothing
_OURS: list[type[Any]] = [Interleave, Options, ShuffleBuffer]


def _code_in(kind: type[Any]) -> str | None:
    """What of a class would have to run for an instance to be built; None: nothing."""
    if kind.__module__.partition(".")[0] == __name__.partition(".")[0] and kind not in _OURS:
        return "a class of this package that is not among those that hold values only"
    if "__setstate__" in _names(kind):
        return "a class with __setstate__"
    for name in _CALLED:
        if getattr(kind, name, None) is not getattr(object, name, None):
            return f"a class with {name}"
    if _hashes(kind):
        return "a class with __hash__"  # it is called for what is a key
    if any(vars(each).get("__slots__") for each in kind.__mro__):
        return "a class with __slots__"
    return None


#: what torch, or Python, calls while an instance is built; of attributes since torch asks for some
_CALLED = (
    "__reduce__",
    "__reduce_ex__",
    "__new__",
    "__getnewargs__",
    "__getnewargs_ex__",
    "__getattr__",
    "__getattribute__",
)


def _hashes(kind: Any) -> bool:
    """Instances are hashed by code of somebody's, and not by that of `dataclasses`."""
    made = getattr(getattr(kind.__hash__, "__code__", None), "co_filename", "")
    return kind.__hash__ not in (None, object.__hash__) and made != "<string>"


def _names(kind: type[Any]) -> set[str]:
    return {name for each in kind.__mro__ for name in vars(each)}


def _bare(kind: type[Any]) -> type[Any]:
    """A stand-in that makes empty instances of a class, and calls nothing of it."""

    def make(stand_in: type[Any], *arguments: Any) -> Any:
        if arguments:
            raise pickle.UnpicklingError(f"{kind.__qualname__} is built from nothing")
        return object.__new__(kind)

    return type(kind.__name__, (), {"__new__": make, "__module__": kind.__module__})


def _reading(kind: type[Any], it: Any) -> type[Any]:
    """A stand-in for a loader's or an iterator's class, which looks at what it is filled with."""
    ours = DataLoader if issubclass(kind, DataLoader) else Standing
    if kind.__setstate__ is not ours.__setstate__:
        raise needs_code(it, kind, "a class with a __setstate__ of its own")

    def refuse(self: Any, *arguments: Any, **more: Any) -> None:
        raise pickle.UnpicklingError(f"{kind.__qualname__} is not to be called by a file")

    def fill(self: Any, saved: Any) -> None:
        read = reread_iterator(saved) if ours is Standing else reread_loader(saved)
        if ours is Standing and not isinstance(read.get("loader"), DataLoader):
            raise pickle.UnpicklingError("an iterator belongs to a loader")
        object.__setattr__(self, "__class__", kind)
        self.__setstate__(read)

    return type(kind.__name__, (kind,), {"__init__": refuse, "__setstate__": fill})


def _check_marks(it: Any) -> None:
    """Raise NeedsCodeError if a stream's state is none that can be read without code."""
    if isinstance(it, Standing):
        reread_iterator(it.__getstate__())
        it = it.loader
    reread_loader(it.__getstate__())
