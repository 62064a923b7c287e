"""Estimates the size of a pickle of an iterator or a loader, without making one.

The dataset may be of many gigabytes, and people's objects may do anything when they are pickled.
So none of them is pickled: the result names their classes. Objects of torch, numpy and ours are
pickled without storing the bytes; tensors, arrays and long texts count with their size.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from .picklers import Sink
from .placeholder import name_of

#: a list of millions of indices is not walked through: a few milliseconds have to do
_MOST_OBJECTS = 20_000
_LONG_BYTES = 1 << 16

_PLAIN = frozenset({int, float, bool, complex, type(None), list, tuple, dict, set, frozenset})
_FUNCTIONS = (type, FunctionType, BuiltinFunctionType)
#: whose classes' instances are pickled without running anybody's code
_KNOWN = frozenset({"builtins", "collections", "functools", "numpy", "picklable_loader", "torch"})
#: attributes of a loader that are weighed apart, or that no pickle of ours holds
_PASSING = frozenset({"_pl", "_iterator", "_DataLoader__multiprocessing_context"})


@dataclass(frozen=True, slots=True)
class Weight:
    """The size of a pickle."""

    bytes: int  #: of all that is not left out
    more: bool  #: there is more than could be looked at
    left_out: tuple[str, ...]  #: the classes of objects that were not weighed, the dataset's first

    def __str__(self) -> str:
        size = f"{'over' if self.more else 'about'} {in_words(self.bytes)}"
        return f"{size} without {' and '.join(self.left_out)}" if self.left_out else size


def weigh(parts: dict[str, Any], dataset: Any, *saved: Any) -> Weight:
    """The size of a pickle of a loader, given as its attributes, and of what is ``saved`` with it.

    Takes a few milliseconds at most, and runs none of the user's code.
    """
    pickled = {name: value for name, value in parts.items() if name not in _PASSING}
    scale, more = _Scale(dataset), False
    try:
        scale.dump([pickled, *saved])
    except _Enough:
        more = True
    size = scale.sink.count + scale.apart
    # The objects that were looked at may still be in a buffer: two bytes each, at least.
    return Weight(max(size, 2 * _MOST_OBJECTS) if more else size, more, tuple(scale.left_out))


def in_words(count: int) -> str:
    """A number of bytes with two or three digits and a unit."""
    size, units = float(count), ["TB", "GB", "MB", "kB"]
    unit = "bytes"
    while size >= 999.5 and units:
        size, unit = size / 1000, units.pop()
    return f"{size:.1f} {unit}" if size < 9.95 and unit != "bytes" else f"{size:.0f} {unit}"


class _Enough(Exception):
    """There is more to be looked at than there is time."""


class _Scale(pickle.Pickler):
    """Counts what it would write."""

    def __init__(self, dataset: Any) -> None:
        self.sink = Sink()
        super().__init__(self.sink, pickle.HIGHEST_PROTOCOL)
        self._dataset = dataset
        self._objects = 0
        #: bytes of what is known without being written
        self.apart = 0
        #: names of classes, in the order in which they were met
        self.left_out = {name_of(dataset): None}

    def persistent_id(self, obj: Any) -> int | None:
        """None has it pickled; any other value replaces it."""
        self._objects += 1
        if self._objects > _MOST_OBJECTS:
            raise _Enough
        kind = type(obj)
        if kind in _PLAIN:
            return None
        size = _size(obj)
        if size is None and not self._is_foreign(obj):
            return None
        self.apart += size or 0
        return 0

    def _is_foreign(self, obj: Any) -> bool:
        kind = type(obj)
        if isinstance(obj, _FUNCTIONS):  # a lambda or the like, which a codec carries
            self.left_out[obj.__name__] = None
            return True
        if obj is not self._dataset and not isinstance(obj, Dataset):
            if str(kind.__module__).partition(".")[0] in _KNOWN:
                return False
        self.left_out[kind.__qualname__] = None
        return True


def _size(obj: Any) -> int | None:
    """The size of what is not pickled here, though it is known; None for all else."""
    if isinstance(obj, _FUNCTIONS) and "<" not in obj.__qualname__:  # by its name
        return len(getattr(obj, "__module__", None) or "") + len(obj.__qualname__) + 8
    kind = type(obj)
    if kind is torch.Tensor:
        return int(obj.untyped_storage().nbytes())
    if kind is np.ndarray:
        return int(obj.nbytes)
    if kind in (str, bytes, bytearray) and len(obj) > _LONG_BYTES:
        return len(obj)
    return None
