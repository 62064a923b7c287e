"""A list of Python objects that forked workers can share, and a look for lists that they cannot.

Each Python object has a count of references, which every reader writes. So a forked worker that
reads a list gets its own copy of each page that it touches (pytorch issue 13246).
"""

from __future__ import annotations

import operator
import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

import numpy as np
from torch.utils.data import Dataset

_T = TypeVar("_T", covariant=True)

#: Entries of a list that cost each worker about 50 MB or more.
LARGE = 10**6
#: Entries of a smaller one that are looked into: the splits of a dataset, or its parts.
_NEAR = 64


class PackedList(Sequence[_T]):
    """A read-only list of any Python objects, in two arrays: workers share its memory.

    It takes the items' pickles, one after the other. An item is built anew each time that it is
    read; a change of it is lost, and so is the identity of an object that two items refer to.

    Args:
        items: what it is to hold; each can be pickled by itself.

    Raises:
        Exception: what pickle raises for an item.
    """

    __module__ = "picklable_loader"  # pickles hold this name

    def __init__(self, items: Iterable[_T] = ()) -> None:
        data, ends = bytearray(), array("q")
        for item in items:
            data += pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
            ends.append(len(data))
        self.__setstate__((np.frombuffer(data, np.uint8), np.frombuffer(ends, np.int64)))

    def __getstate__(self) -> tuple[Any, Any]:
        return self._arrays

    def __setstate__(self, arrays: tuple[Any, Any]) -> None:
        #: all pickles, and where each ends
        self._arrays = arrays
        # A view gives numbers three times as fast as an array does.
        self._data, self._ends = (memoryview(array) for array in arrays)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> _T: ...

    @overload
    def __getitem__(self, index: slice) -> list[_T]: ...

    def __getitem__(self, index: int | slice) -> _T | list[_T]:
        """An item, or a list of some of them.

        Raises:
            IndexError: there is no such item.
            TypeError: ``index`` is neither a whole number nor a slice.
        """
        if isinstance(index, slice):
            return [self._read(at) for at in range(*index.indices(len(self)))]
        at = operator.index(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"index {at} is out of range of a PackedList of {len(self)} items")
        item: _T = self._read(at % len(self))
        return item

    def __iter__(self) -> Iterator[_T]:
        return map(self._read, range(len(self)))

    def __repr__(self) -> str:
        size = self._data.nbytes + self._ends.nbytes
        return f"PackedList({len(self):,} items, {size:,} bytes)"

    def _read(self, at: int) -> Any:
        start = self._ends[at - 1] if at else 0
        return pickle.loads(self._data[start : self._ends[at]])


def large_lists(data: Any, path: str = "dataset", depth: int = 3) -> Iterator[tuple[str, int]]:
    """Lists, tuples and dicts from `LARGE` entries on, in a dataset and in what it holds.

    It looks into datasets, and into the first entries of smaller lists, tuples and dicts.

    Args:
        data: the dataset, or something in it.
        path: what leads to it.
        depth: how many more steps may follow.

    Yields:
        The path to each, and the number of its entries.
    """
    kind: Any = type(data)  # a proxy, as wrapt's, has another class than its type
    if issubclass(kind, (list, tuple, dict)):
        near = dict.items(data) if issubclass(kind, dict) else enumerate(data)
        if len(data) >= LARGE:
            yield path, len(data)
        elif depth:
            for name, value in islice(near, _NEAR):
                yield from large_lists(value, f"{path}[{name!r}]", depth - 1)
    elif depth and (path == "dataset" or isinstance(data, Dataset)):
        for name, value in getattr(data, "__dict__", {}).items():
            yield from large_lists(value, f"{path}.{name}", depth - 1)
