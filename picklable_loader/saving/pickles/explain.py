"""Explains a pickle: its parts, the size of each, and the parts that cannot be saved.

Python's own pickler that is written in Python walks through an object as any pickler does. It
writes nothing, and counts the bytes that each part would take.
"""

from __future__ import annotations

import io
import pickle
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from ...errors import CannotSaveError
from .codecs import newobj
from .picklers import BOUND_TO_PROCESS, check_movable, ends_with_program, is_data, written
from .size import in_words
from .stock import STOCK

#: the size of a tensor or an array without its data, about
_HEAD_BYTES = 200


@dataclass
class Part:
    """A part of a pickle.

    Attributes:
        path: from the object that was asked about, ``"loader.dataset.readers[3]"``.
        kind: its class.
        bytes: its size, with all of its parts. An object that is found several times is counted at
            the first.
        codec: what carries it: ``"pickle"``, ``"cloudpickle"`` or ``"dill"``.
        problem: why no codec takes it, and what to do; None if one does.
        parts: what it is made of.
    """

    path: str
    kind: str
    bytes: int = 0
    codec: str = "pickle"
    problem: str | None = None
    parts: list[Part] = field(default_factory=list)

    def __iter__(self) -> Iterator[Part]:
        """This part and all within."""
        yield self
        for part in self.parts:
            yield from part

    @property
    def problems(self) -> list[Part]:
        """The parts that cannot be saved."""
        return [part for part in self if part.problem is not None]

    def __str__(self) -> str:
        return "\n".join(_lines(self, 0, max(self.bytes // 100, 1)))


def explain(obj: Any) -> Part:
    """The parts of an object's pickle, as a tree with their sizes.

    Nothing is changed, and only carried parts are copied. It takes some ten seconds for a million
    objects (a tensor is one).

    Args:
        obj: an iterator, a loader, a dataset, or anything else. ``codec=`` of a loader decides
            what is a problem, unless it is a codec of your own. The dataset is looked into also
            with ``pickle_dataset=False``.

    Returns:
        The whole, as a part. As text it shows what weighs most and all that cannot be saved.
    """
    name = "loader" if _packs(obj) and hasattr(obj, "_pl") else "" if _packs(obj) else "obj"
    options = getattr(getattr(getattr(obj, "loader", obj), "_pl", None), "options", None)
    choice = getattr(options, "codec", "auto")
    pickle_alone = _packs(obj) and isinstance(choice, str) and choice == STOCK[0]
    return _walk(obj, name, STOCK[:1] if pickle_alone else STOCK)


explain.__module__ = "picklable_loader"  # pickles hold this name


def blame(obj: Any, path: str, codecs: tuple[str, ...] = STOCK) -> CannotSaveError:
    """The error that names what none of some codecs takes in an object that cannot be saved."""
    found = _culprit(obj, path, codecs, {})
    if found is not None:
        reason, advice = str(found.problem).split(": ", 1)
        if any(word in found.path for word in ("__globals__", "__defaults__", "__kwdefaults__")):
            advice = (
                "Make it where it is used, or in worker_init_fn; what refers to it goes by value"
            )
        return CannotSaveError(found.path, reason, advice)
    named = ", ".join(codecs)
    return CannotSaveError(path, f"refused as a whole by {named}", "Give it a __reduce__")


def _culprit(obj: Any, path: str, codecs: tuple[str, ...], seen: dict[int, Any]) -> Part | None:
    """The part that no codec takes; also in code that only pickle takes, by its name."""
    if id(obj) in seen or len(seen) > _MOST_SEEN:
        return None
    seen[id(obj)] = obj
    for part in _walk(obj, path, codecs).problems:
        return part
    code = obj if isinstance(obj, FunctionType | type) else type(obj)
    for step, part in _parts_of_code(code) if code.__module__ == "__main__" else ():
        found = _culprit(part, path + step, codecs, seen)
        if found is not None:
            return found
    return None


_MOST_SEEN = 1000


def _walk(obj: Any, path: str, codecs: tuple[str, ...]) -> Part:
    walker = _Walker(path, codecs)
    try:
        walker.save(obj)
    except RecursionError:
        deep = "is nested too deeply: keep what belongs together in flat lists, or tensors"
        walker.root.path, walker.root.problem = path, deep
        walker.root.parts.clear()
    return walker.root.parts[0] if walker.root.parts else walker.root


#: functions within classes within functions: as deep as anybody reads a path
_DEEPEST_CODE = 12

#: the pickler that is written in Python, of which every step can be watched
_InPython: Any = pickle._Pickler


class _Walker(_InPython):  # type: ignore[misc]
    """Notes for each object that is pickled what is written while it is."""

    dispatch = dict(_InPython.dispatch)

    def __init__(self, path: str, codecs: tuple[str, ...]) -> None:
        super().__init__(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
        self.write = self._write_large_bytes = self._count
        self.root = Part("", "")
        self._codecs = codecs
        self._written = 0
        #: the next object's step of a path, from the part at hand
        self._step = path
        #: what a codec is tried on
        self._carrying: Any = None
        self._open = [self.root]
        #: states of objects: their keys are attributes
        self._states: set[int] = set()
        #: what objects are made with: no parts that anybody could name
        self._arguments: set[int] = set()
        #: what cannot be saved, which is a problem once
        self._refused: set[int] = set()
        #: storages that were counted
        self._storages: set[int] = set()
        #: by ``id``, all that was met, so that no number is given out twice
        self._met: dict[int, Any] = {}

    def _count(self, *data: Any) -> None:
        self._written += sum(map(len, data))

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        step, self._step = self._step, ""
        if id(obj) in self._refused:
            return
        known = id(obj) in self.memo or id(obj) in self._states
        if known or obj is None or type(obj) in (bool, int, float, str, bytes):
            super().save(obj, save_persistent_id)
            return
        part = Part(self._open[-1].path + step, type(obj).__qualname__)
        self._open.append(part)
        before = self._written
        try:
            self._weigh(part, obj)
        finally:
            self._open.pop()
        part.bytes = self._written - before
        if step or self._open[-1] is self.root:
            self._open[-1].parts.append(part)
        else:  # what an object is made with: its class, arguments
            self._open[-1].parts.extend(part.parts if part.problem is None else [part])

    def _weigh(self, part: Part, obj: Any) -> None:
        self._met[id(obj)] = obj
        if is_data(obj):
            self._written += _HEAD_BYTES + self._data_bytes(obj)
            self.memoize(obj)
            return
        try:
            super().save(obj)
        except RecursionError:
            raise
        except Exception as error:  # of this object alone: its parts' errors end with them
            self._carry(part, obj, error)

    def _carry(self, part: Part, obj: Any, refused: Exception) -> None:
        self._carrying = obj
        for codec in self._codecs[1:]:
            size = written(codec, obj, self._refer)
            if size is not None:
                part.codec = codec
                self._written += size
                break
        else:
            self._refused.add(id(obj))
            for step, each in _parts_of_code(obj) if len(self._open) < _DEEPEST_CODE else ():
                self._step = step
                self.save(each)
            if part.problems:  # of what the function or class refers to
                return
            kind = type(obj)
            what = f"is a {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")
            part.problem = f"{what} ({type(refused).__name__}: {refused})".replace(": ", " - ")
            part.problem += f": {_advice(obj, self._codecs)}"

    def _refer(self, obj: Any) -> tuple[Any, ...] | None:
        """Leave out objects in a closure that are counted elsewhere."""
        if is_data(obj) and id(obj) not in self._met:
            self._weigh(Part("", ""), obj)
        return (int, ()) if id(obj) in self._met and obj is not self._carrying else None

    def _data_bytes(self, obj: Any) -> int:
        if isinstance(obj, np.ndarray):
            return obj.nbytes
        if obj.layout != torch.strided:
            return int(obj.numel() * obj.element_size())
        storage = obj.untyped_storage()  # of which pickle takes all
        fresh = storage.data_ptr() not in self._storages
        self._storages.add(storage.data_ptr())
        return int(storage.nbytes()) if fresh else 0

    # --- the steps of a path ---------------------------------------------------------------------

    def reducer_override(self, obj: Any) -> Any:
        check_movable(obj)
        if _packs(obj):  # as it is, and not how its parts are carried
            return newobj, (type(obj),), obj.__getstate__()
        return NotImplemented

    def save_reduce(self, func: Any, args: Any, state: Any = None, *rest: Any, **more: Any) -> None:
        self._arguments.add(id(args))
        self._met[id(args)] = args
        for each in state if isinstance(state, tuple) else (state,):
            if isinstance(each, dict):
                self._states.add(id(each))
                self._met[id(each)] = each
        super().save_reduce(func, args, state, *rest, **more)

    def _save_dict(self, obj: dict[Any, Any]) -> None:
        self.write(pickle.EMPTY_DICT)
        self.memoize(obj)
        is_state = id(obj) in self._states
        for key, value in tuple(obj.items()):
            self.save(key)
            separator = "." if self._open[-1].path else ""
            self._step = f"{separator}{key}" if is_state else f"[{key!r}]"
            self.save(value)
            self.write(pickle.SETITEM)

    def _batch_appends(self, items: Any, *rest: Any) -> None:
        for at, item in enumerate(items):
            self._step = f"[{at}]"
            self.save(item)
            self.write(pickle.APPEND)

    def _save_tuple(self, obj: tuple[Any, ...]) -> None:
        inside = id(obj) not in self._arguments
        for at, item in enumerate(obj):
            self._step = f"[{at}]" if inside else ""
            self.save(item)
        self.write(pickle.TUPLE)
        if obj and id(obj) not in self.memo:
            self.memoize(obj)

    dispatch[dict] = _save_dict
    dispatch[tuple] = _save_tuple


def _packs(obj: Any) -> bool:
    return getattr(type(obj), "_packs", False) is True


#: what a process holds, and no other one can
_HELD = (*BOUND_TO_PROCESS, socket.socket, type(threading.Lock()), type(threading.RLock()))


def _advice(obj: Any, codecs: tuple[str, ...]) -> str:
    """The advice for an object that no codec takes."""
    others = [codec for codec in STOCK if codec not in codecs]
    if any(written(codec, obj, lambda _: None) is not None for codec in others):
        return 'codec="auto" carries it; or move it to the top level of a module'
    if isinstance(obj, _HELD):
        return (
            "open it in worker_init_fn or when it is first needed, and drop it in the "
            "__getstate__ of its owner"
        )
    if ends_with_program(obj) or type(obj).__module__ == "multiprocessing.sharedctypes":
        return (
            "save state_dict() instead; or drop it in the __getstate__ of its owner, and make it "
            "again in __setstate__"
        )
    if isinstance(obj, GeneratorType):
        return "keep what it is made from, or a class with __next__ and state_dict, instead"
    if isinstance(obj, ModuleType):
        return "import it where it is used"
    drop = "drop it in the __getstate__ of its owner"
    for name in ("__getstate__", "__reduce_ex__", "__reduce__"):
        if getattr(type(obj), name, None) is not getattr(object, name, None):
            return (
                f"{drop}, and make it again when it is needed; or fix its {name}, which raises that"
            )
    return f"{drop}, and make it again in __setstate__"


# --- as text -------------------------------------------------------------------------------------

_MOST_ROWS = 12
_DEEPEST = 6


def _lines(part: Part, depth: int, least: int) -> Iterator[str]:
    name = part.path or "iterator"
    carried = "" if part.codec == STOCK[0] else f", by {part.codec}"
    yield f"{in_words(part.bytes):>10}  {'  ' * depth}{name} ({part.kind}{carried})"
    if part.problem is not None:
        yield f"{'':>10}  {'  ' * depth}! {part.problem}"
    worth = [each for each in part.parts if each.bytes >= least or each.problems]
    worth.sort(key=lambda each: (not each.problems, -each.bytes))
    for each in worth[:_MOST_ROWS] if depth < _DEEPEST or part.problems else ():
        yield from _lines(each, depth + 1, least)


# --- code ----------------------------------------------------------------------------------------


def _parts_of_code(code: Any) -> Iterator[tuple[str, Any]]:
    """The objects that a function, method or class refers to, each with its step of a path."""
    if isinstance(code, type):
        for name, value in vars(code).items():
            inner = getattr(value, "__func__", value)  # of static methods, and those of the class
            if isinstance(value, property):
                inner = value.fget
            if name not in ("__dict__", "__weakref__", "__doc__"):
                yield f".{name}", inner
    elif isinstance(code, MethodType):
        yield ".__func__", code.__func__
    elif isinstance(code, FunctionType):
        yield from _parts_of_function(code)
    elif hasattr(code, "__wrapped__"):  # functools has wrapped it
        yield ".__wrapped__", code.__wrapped__


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f".__closure__[{name!r}]", cell.cell_contents
        except ValueError:  # it is not filled yet
            continue
    for at, value in enumerate(function.__defaults__ or ()):
        yield f".__defaults__[{at}]", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f".__kwdefaults__[{name!r}]", value
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if value is not None and not isinstance(value, ModuleType):
            yield f".__globals__[{name!r}]", value
