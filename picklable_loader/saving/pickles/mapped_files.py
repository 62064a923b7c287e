"""Saves arrays and tensors over a mapped file by the file's name, if that is asked for.

The system tells which file is mapped at an address, and at which offset. So it makes no difference
whether ``numpy.memmap``, ``torch.from_file`` or ``torch.load(mmap=True)`` has mapped it, or how it
was sliced since.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect
from typing import Any

import numpy as np
import torch

from ...errors import UsageError
from .opened import Span, open_array, open_tensor

#: where Linux lists a process's mappings
_MAPS = "/proc/self/smaps"
#: memory that has a name, and ends with its processes
_PASSING = ("/dev/shm/", "/memfd:")


class MappedFiles:
    """The files that this process has mapped; UsageError if this system does not say."""

    def __init__(self) -> None:
        #: address, end, offset in the file, inode, path; ascending
        self._table: list[tuple[int, int, int, int, str]] = []
        #: what is read at the moment, and whether this process has pages of its own there, which
        #: are not in the file
        self._mapping: tuple[int, int, int, int, str] | None = None
        self._changed = False
        try:
            with open(_MAPS) as maps:
                for line in maps:
                    self._note(line)
        except OSError as error:
            raise UsageError(
                f"pickle_mapped=False needs {_MAPS}, which this system does not have"
            ) from error

    def _note(self, line: str) -> None:
        first, *rest = line.split(None, 5)
        if first in ("Anonymous:", "Swap:"):
            self._changed = self._changed or rest[0] != "0"
        elif first == "VmFlags:":  # the last line about a mapping
            if self._mapping is not None and not self._changed:
                self._table.append(self._mapping)
        elif not first.endswith(":"):
            self._mapping, self._changed = None, False
            if len(rest) == 5 and rest[3] != "0":
                start, end = (int(bound, 16) for bound in first.split("-"))
                name = rest[4].rstrip("\n")
                self._mapping = start, end, int(rest[1], 16), int(rest[3]), name

    def by_name(self, obj: Any) -> tuple[Any, ...] | None:
        """How an array or a tensor over a file is pickled; None for everything else.

        It is also None for one over a mapping that this process has changed and does not share with
        the file.
        """
        if isinstance(obj, np.ndarray) and obj.size and not obj.dtype.hasobject:
            return self._array(obj)
        if type(obj) is torch.Tensor and obj.layout == torch.strided and obj.device.type == "cpu":
            return self._tensor(obj)
        return None

    def _array(self, array: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
        low, high = np.lib.array_utils.byte_bounds(array)
        span = self._span(low, high - low)
        if span is None:
            return None
        start = array.__array_interface__["data"][0] - low
        return open_array, (span, array.dtype, array.shape, array.strides, start)

    def _tensor(self, tensor: torch.Tensor) -> tuple[Any, ...] | None:
        if tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or not tensor.numel():
            return None
        shape, strides = tuple(tensor.shape), tensor.stride()
        reach = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
        span = self._span(tensor.data_ptr(), reach * tensor.element_size())
        return None if span is None else (open_tensor, (span, tensor.dtype, shape, strides))

    def _span(self, address: int, length: int) -> Span | None:
        at = bisect(self._table, (address, sys.maxsize)) - 1
        if at < 0 or address + length > self._table[at][1]:
            return None
        first, _, offset, inode, path = self._table[at]
        try:
            now = os.stat(path)
        except OSError:  # deleted, or never to be found by a name
            return None
        if now.st_ino != inode or path.startswith(_PASSING):
            return None
        return Span(path, offset + address - first, length, now.st_size, now.st_mtime_ns)
