"""Pickles of objects that belong to a dataset; they refer to the dataset and do not hold it."""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np
import torch

from ..states.arrays import bytes_of
from .picklers import reductions

#: tensors and arrays above this are looked for, and not written
LARGE_BYTES = 1 << 16

#: objects that are looked at to find them
_MOST_OBJECTS = 10_000

#: the path to something below a dataset: attributes, indices and keys
Path = tuple[Any, ...]


def attributes_of(dataset: Any) -> dict[str, Any]:
    """The dataset's attributes: a copy of its ``__dict__``, and what it has in slots."""
    return {**_dict_of(dataset), **dict(_in_slots(dataset))}


def each_attribute(thing: Any) -> Iterator[tuple[str, Any]]:
    """The same, one after the other: a large ``__dict__`` is not copied."""
    yield from _dict_of(thing).items()
    yield from _in_slots(thing)


def _dict_of(thing: Any) -> dict[str, Any]:
    """Its ``__dict__``, if it has one; no ``__getattr__`` of its class is called."""
    with suppress(AttributeError):
        return object.__getattribute__(thing, "__dict__")  # type: ignore[no-any-return]
    return {}


def _in_slots(thing: Any) -> Iterator[tuple[str, Any]]:
    kind: Any = type(thing)
    for name, slot in _slots_of(kind).items():
        with suppress(AttributeError):  # it is not set
            yield name, slot.__get__(thing)


def set_attributes(dataset: Any, values: Mapping[str, Any], gone: Iterable[str] = ()) -> None:
    """Set attributes of a dataset, and remove those that are ``gone``; no method of it is called.

    Raises:
        AttributeError: it has no ``__dict__``, and no slot of that name.
    """
    kind: Any = type(dataset)
    slots = _slots_of(kind)
    for name in gone:
        if name in slots:
            slots[name].__delete__(dataset)
        else:
            vars(dataset).pop(name, None)
    for name, value in values.items():
        if name in slots:
            slots[name].__set__(dataset, value)  # also one of a frozen dataclass
        else:
            vars(dataset)[name] = value


@lru_cache(256)
def _slots_of(kind: type[Any]) -> dict[str, Any]:
    """The slots of a class, by which people's properties and ``__getattr__`` are not called."""
    bases = [base for base in reversed(kind.__mro__) if "__slots__" in vars(base)]
    members = [each for base in bases for each in vars(base).items()]
    return {name: each for name, each in members if type(each) is MemberDescriptorType}


def large_leaves(dataset: Any) -> tuple[dict[int, Path], list[Any]]:
    """Large tensors and arrays in a dataset: their paths, ``("inner", "table")``, by id; they."""
    found: dict[int, Path] = {}
    leaves: list[Any] = []
    seen = {id(dataset)}
    ahead: deque[tuple[Path, Any]] = deque([((), dataset)])
    while ahead and len(seen) < _MOST_OBJECTS:
        path, owner = ahead.popleft()
        for name, part in _parts(owner):
            if id(part) in seen or isinstance(part, _NO_OWNERS):
                continue
            seen.add(id(part))
            if not isinstance(part, torch.Tensor | np.ndarray):
                ahead.append(((*path, name), part))
            elif _is_of_numbers(part) and part.nbytes > LARGE_BYTES:
                found[id(part)] = (*path, name)
                leaves.append(part)
    return found, leaves


def _parts(owner: Any) -> Iterable[tuple[Any, Any]]:
    """The parts that a pickle of the owner has as well, at the same path."""
    if isinstance(owner, list | tuple):
        return enumerate(owner[:_MOST_OBJECTS])
    if isinstance(owner, dict):
        return owner.items()
    attributes, kind = attributes_of(owner), type(owner)
    if attributes and any(_own(kind, name) for name in _WRITING):
        written = _written_by(owner)
        attributes = {n: value for n, value in attributes.items() if written.get(n) is value}
    return attributes.items()


def _own(kind: Any, name: str) -> bool:
    return getattr(kind, name, None) is not getattr(object, name, None)


def _written_by(owner: Any) -> dict[str, Any]:
    """The attributes that its pickle has: one that drops a cache has none in another program."""
    with suppress(Exception):  # whatever people's __reduce__ raises
        match owner.__reduce_ex__(pickle.HIGHEST_PROTOCOL):
            case (_, _, dict(state), *_):
                return state
            case (_, _, (dict() | None as state, dict(slots)), *_):
                return {**(state or {}), **slots}
    return {}


def _is_of_numbers(part: Any) -> bool:
    """A tensor that has its bytes in one piece, or an array that holds no objects."""
    if isinstance(part, torch.Tensor):
        return part.layout is torch.strided and not part.is_nested
    return not part.dtype.hasobject


#: what has no parts of a dataset's own
_NO_OWNERS = (str, bytes, int, float, type, ModuleType, FunctionType)


def left_out(
    attributes: Mapping[str, Any], same: dict[str, Any], beside: Any, dataset: Any, by_value: bool
) -> dict[int, str | Path]:
    """By id, the names and paths of what is left out of a pickle, and of all that is in it.

    Args:
        attributes: of the dataset.
        same: those that are left out. One that shares with the rest what no path leads to is taken
            out of these.
        beside: is pickled with the rest.
        dataset, by_value: see `dumps`.
    """
    by_id: dict[int, str | Path] = {}
    hidden: dict[str, Any] = {}
    for name, value in same.items():
        parts, complete = _parts_by_id(name, value)
        by_id |= parts
        hidden |= {} if complete else {name: value}
    by_id |= {id(value): name for name, value in same.items() if not _is_unchanging(value)}
    if not hidden:
        return by_id
    rest = [value for name, value in attributes.items() if name not in same]
    shown = _held((rest, beside), dataset, by_value, by_id)
    for part in (rest, beside, getattr(beside, "__dict__", None)):
        shown.pop(id(part), None)
    for name, value in hidden.items() if shown else ():
        if shown.keys() & _held(value, dataset, by_value).keys():
            del same[name]
    gone = hidden.keys() - same.keys()
    return left_out(attributes, same, beside, dataset, by_value) if gone else by_id


def _parts_by_id(name: str, attribute: Any) -> tuple[dict[int, Path], bool]:
    """The objects in an attribute of a dataset, at any depth: paths by id; and whether that is all.

    It is not where something pickles in a way of its own, or there is very much.
    """
    found: dict[int, Path] = {}
    complete = True
    ahead: deque[tuple[Path, Any]] = deque([((name,), attribute)])
    while ahead:
        path, owner = ahead.popleft()
        if id(owner) in found or _is_unchanging(owner):
            continue
        if len(found) == _MOST_OBJECTS:
            return found, False
        found[id(owner)] = path
        parts = _plain_parts(owner)
        complete = complete and parts is not None
        ahead.extend(((*path, name), part) for name, part in parts or ())
    return found, complete


def _plain_parts(owner: Any) -> Iterable[tuple[Any, Any]] | None:
    """The parts that a path can name; None: there are others, or too many."""
    kind: Any = type(owner)
    if kind in (list, tuple, dict):
        flat = _FLAT.issuperset(map(type, owner.values() if kind is dict else owner))
        if flat and (kind is not dict or _FLAT.issuperset(map(type, owner))):
            return ()
        if len(owner) > _MOST_OBJECTS or (kind is dict and not _FLAT.issuperset(map(type, owner))):
            return None
        return owner.items() if kind is dict else enumerate(owner)
    if isinstance(owner, torch.Tensor):
        return ()
    if isinstance(owner, np.ndarray):
        return None if owner.dtype.hasobject else ()
    if (
        any(_own(kind, name) for name in _REDUCING)
        or isinstance(owner, list | dict)
        or _slots_of(kind)
    ):
        return None
    return attributes_of(owner).items()


def _is_unchanging(value: Any) -> bool:
    return isinstance(value, _UNCHANGING)


def _held(
    thing: Any, dataset: Any, by_value: bool = False, by_id: Mapping[int, str | Path] | None = None
) -> dict[int, Any]:
    """The objects, by id, that `dumps` of a thing writes and that may change."""
    pickler = _pickler(by_value)(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
    pickler.dataset, pickler.by_id = dataset, by_id or {}
    pickler.dump(thing)
    written = (obj for _, obj in pickler.memo.copy().values())
    return {id(obj): obj for obj in written if not isinstance(obj, (*_UNCHANGING, tuple))}


#: items of a list from which on it is written at once: a pickler in Python asks for each item
_LONG = 64
#: the types of what has no parts, and can have as many names as it likes
_FLAT: frozenset[type[Any]] = frozenset((int, float, complex, bool, str, bytes, type(None)))
_UNCHANGING: tuple[type[Any], ...] = (
    *_FLAT, type, ModuleType, FunctionType, BuiltinFunctionType, np.dtype, torch.dtype, torch.device
)  # fmt: skip
#: methods of classes that pickle in a way of their own
_WRITING = ("__reduce__", "__reduce_ex__", "__getstate__")
_REDUCING = (*_WRITING, "__setstate__", "__getnewargs__", "__getnewargs_ex__")


def dumps(
    thing: Any,
    dataset: Any,
    by_value: bool = False,
    by_id: Mapping[int, str | Path] | None = None,
    most_bytes: int | None = None,
    to_compare: bool = False,
    fast: bool = False,
) -> bytes:
    """Pickle an object that refers to a dataset; ValueError if it has more than ``most_bytes``.

    Args:
        by_value: classes of ``__main__`` go along.
        by_id: parts of the dataset that are referred to as well, by id: their names or paths.
        to_compare: nobody will read it; equal tensors are written alike.
        fast: only this process will read it: long lists of numbers and texts are written at once.
    """
    buffer = io.BytesIO() if most_bytes is None else _Limited(most_bytes)
    pickler = _pickler(by_value)(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dataset, pickler.by_id = dataset, by_id or {}
    pickler.most_bytes, pickler.to_compare = most_bytes, to_compare
    if fast:
        pickler.lists = {}
    pickler.dump(thing)
    return buffer.getvalue()


def loads(pickled: bytes, dataset: Any, parts: Mapping[Path, Any] | None = None) -> Any:
    """Unpickle an object that refers to a dataset; it refers to this one now.

    ``parts`` were at these paths of the dataset when the object was pickled.
    """
    return _Unpickler(io.BytesIO(pickled), dataset, parts or {}).load()


class _Limited(io.BytesIO):
    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._most_bytes:
            raise ValueError(f"it has more than {self._most_bytes} bytes")
        return super().write(data)


@lru_cache(maxsize=2)
def _pickler(by_value: bool) -> Any:
    base: Any = import_module("cloudpickle").Pickler if by_value else pickle.Pickler

    class Pickler(base):  # type: ignore[misc]
        # The arguments of `dumps`:
        dataset: Any
        by_id: Mapping[int, str | Path]
        most_bytes: int | None = None
        to_compare = False
        #: by id, the lists that were written at once, as often as they occur: number and bytes
        lists: dict[int, list[Any]] | None = None
        dispatch_table = reductions(base)

        def persistent_id(self, obj: Any) -> str | Path | list[Any] | None:
            if (name := self.by_id.get(id(obj))) is not None:
                return name
            if type(obj) is list and len(obj) >= _LONG and self.lists is not None:
                return _at_once(obj, self.lists, self.most_bytes, self.to_compare)
            # Torch copies all of a tensor before it writes the first byte.
            if self.most_bytes is not None and isinstance(obj, torch.Tensor | np.ndarray):
                if _is_of_numbers(obj) and obj.nbytes > self.most_bytes:
                    raise ValueError(f"it has more than {self.most_bytes} bytes")
            if self.to_compare and type(obj) is torch.Tensor and obj.layout is torch.strided:
                return _content(obj)  # torch writes the address of its memory as well
            return "" if obj is self.dataset else None

    return Pickler


def _at_once(
    flat: list[Any], lists: dict[int, list[Any]], most_bytes: int | None, rows: bool
) -> list[Any] | None:
    """A list's number and bytes; none if these were given before. None: it is not of scalars.

    ``rows``: or it is of tuples and dicts of scalars, which others may hold as well.
    """
    if (known := lists.get(id(flat))) is not None:
        return [known[0], b""]
    kinds = set(map(type, flat))
    if not _FLAT.issuperset(kinds) and not (rows and kinds <= {tuple, dict} and _are_flat(flat)):
        return None
    written = pickle.dumps(flat, pickle.HIGHEST_PROTOCOL)
    if most_bytes is not None and len(written) > most_bytes:
        raise ValueError(f"it has more than {most_bytes} bytes")
    return lists.setdefault(id(flat), [len(lists), written])


def _are_flat(rows: list[Any]) -> bool:
    return all(
        _FLAT.issuperset(map(type, row))
        and (type(row) is tuple or _FLAT.issuperset(map(type, row.values())))
        for row in rows
    )


def _content(tensor: torch.Tensor) -> Path:
    layout = str(tensor.dtype), str(tensor.device), tuple(tensor.shape), tensor.requires_grad
    return *layout, bytes_of(tensor)


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, dataset: Any, parts: Mapping[Path, Any]) -> None:
        super().__init__(buffer)
        self._dataset, self._parts = dataset, parts
        #: lists that were written at once, by number
        self._lists: dict[int, list[Any]] = {}

    def persistent_load(self, name: str | Path | list[Any]) -> Any:
        if isinstance(name, list):
            number, written = name
            if number not in self._lists:
                self._lists[number] = pickle.loads(written)
            return self._lists[number]
        if isinstance(name, str):
            return getattr(self._dataset, name) if name else self._dataset
        if name in self._parts:
            return self._parts[name]
        found = self._dataset
        for part in name:
            inside = isinstance(found, list | tuple | dict)
            found = found[part] if inside else attributes_of(found)[part]
        return found
