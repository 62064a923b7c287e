"""Pickles of objects that belong to a dataset; they refer to the dataset and do not hold it."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections import deque
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

#: tensors and arrays above this are looked for, and not written
_LARGE_BYTES = 1 << 16

#: objects that are looked at to find them
_MOST_OBJECTS = 10_000

#: the path to something below a dataset: attributes, indices and keys
Path = tuple[Any, ...]


def attributes_of(dataset: Any) -> dict[str, Any]:
    """The dataset's attributes, as a copy of its ``__dict__``."""
    return dict(getattr(dataset, "__dict__", {}))


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
            elif part.nbytes > _LARGE_BYTES:
                found[id(part)] = (*path, name)
                leaves.append(part)
    return found, leaves


def _parts(owner: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(owner, list | tuple):
        return enumerate(owner[:_MOST_OBJECTS])
    return owner.items() if isinstance(owner, dict) else attributes_of(owner).items()


#: what has no parts of a dataset's own
_NO_OWNERS = (str, bytes, int, float, type, ModuleType, FunctionType)


def shared_parts(attributes: Mapping[str, Any]) -> tuple[dict[int, Path], bool]:
    """What is in attributes of a dataset, at any depth: paths by id; and whether that is all.

    It is not where something pickles in a way of its own, or there is very much.
    """
    found: dict[int, Path] = {}
    complete = True
    ahead: deque[tuple[Path, Any]] = deque(((name,), part) for name, part in attributes.items())
    while ahead:
        path, owner = ahead.popleft()
        if id(owner) in found or isinstance(owner, _UNCHANGING):
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
    kind = type(owner)
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
    plain = all(getattr(kind, name, None) is getattr(object, name, None) for name in _REDUCING)
    if not plain or isinstance(owner, list | dict) or copyreg._slotnames(kind):  # type: ignore
        return None
    return attributes_of(owner).items()


def held(
    thing: Any, dataset: Any, by_value: bool = False, by_id: Mapping[int, str | Path] | None = None
) -> dict[int, Any]:
    """The objects, by id, that `dumps` of a thing writes and that may change."""
    pickler = _pickler(by_value)(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
    pickler.dataset, pickler.by_id = dataset, by_id or {}
    pickler.most_bytes, pickler.to_compare = None, False
    pickler.dump(thing)
    written = (obj for _, obj in pickler.memo.copy().values())
    return {id(obj): obj for obj in written if not isinstance(obj, (*_UNCHANGING, tuple))}


#: the types of what has no parts, and can have as many names as it likes
_FLAT: frozenset[type[Any]] = frozenset((int, float, complex, bool, str, bytes, type(None)))
_UNCHANGING: tuple[type[Any], ...] = (
    *_FLAT, type, ModuleType, FunctionType, BuiltinFunctionType, np.dtype, torch.dtype, torch.device
)  # fmt: skip
#: methods of classes that pickle in a way of their own
_REDUCING = (
    "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__",
    "__getnewargs_ex__",
)  # fmt: skip


def dumps(
    thing: Any,
    dataset: Any,
    by_value: bool = False,
    by_id: Mapping[int, str | Path] | None = None,
    most_bytes: int | None = None,
    to_compare: bool = False,
) -> bytes:
    """Pickle an object that refers to a dataset; ValueError if it has more than ``most_bytes``.

    Args:
        by_value: classes of ``__main__`` go along.
        by_id: parts of the dataset that are referred to as well, by id: their names or paths.
        to_compare: nobody will read it; equal tensors are written alike.
    """
    buffer = io.BytesIO() if most_bytes is None else _Limited(most_bytes)
    pickler = _pickler(by_value)(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dataset, pickler.by_id = dataset, by_id or {}
    pickler.most_bytes, pickler.to_compare = most_bytes, to_compare
    pickler.dump(thing)
    return buffer.getvalue()


def loads(pickled: bytes, dataset: Any) -> Any:
    """Unpickle an object that refers to a dataset; it refers to this one now."""
    return _Unpickler(io.BytesIO(pickled), dataset).load()


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
        most_bytes: int | None
        to_compare: bool

        def persistent_id(self, obj: Any) -> str | Path | None:
            if (name := self.by_id.get(id(obj))) is not None:
                return name
            # Torch copies all of a tensor before it writes the first byte.
            if self.most_bytes is not None and isinstance(obj, torch.Tensor | np.ndarray):
                if obj.nbytes > self.most_bytes:
                    raise ValueError(f"it has more than {self.most_bytes} bytes")
            if self.to_compare and type(obj) is torch.Tensor and obj.layout is torch.strided:
                return _content(obj)  # torch writes the address of its memory as well
            return "" if obj is self.dataset else None

    return Pickler


def _content(tensor: torch.Tensor) -> Path:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype), str(tensor.device), tuple(tensor.shape), tensor.requires_grad, data


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, dataset: Any) -> None:
        super().__init__(buffer)
        self._dataset = dataset

    def persistent_load(self, name: str | Path) -> Any:
        if isinstance(name, str):
            return getattr(self._dataset, name) if name else self._dataset
        found = self._dataset
        for part in name:
            found = found[part] if isinstance(found, list | tuple | dict) else vars(found)[part]
        return found
