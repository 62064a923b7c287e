"""A running checksum of indices: 64 bits that tell one order from another.

Equal indices have equal checksums in every process and under every version of Python, and however
the sequence was cut into lists. Its cost decides how it is made: 20 ns for an int, a microsecond or
so for anything else.
"""

from __future__ import annotations

import operator
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from os import PathLike, fspath
from typing import Any
from zlib import adler32, crc32

import numpy as np
import torch

#: the checksum of no index
BEGINNING = format(adler32(b""), "016x")

#: what an int is written as; larger ones are text
_INT = struct.Struct("<q")


def checksum(indices: Iterable[Any], before: str = BEGINNING) -> str:
    """The checksum of a sequence of indices, as 16 hexadecimal digits: ``"8d2c61f7003f0015"``.

    Indices are numbers, text, tensors, arrays, and lists, tuples, dicts and sets of them. Any
    other object counts by its class only. ``before`` is the checksum of the indices before these.
    """
    data, found = _written(indices), int(before, 16)
    return format(crc32(data, found >> 32) << 32 | adler32(data, found & 0xFFFFFFFF), "016x")


def text_checksum(text: str) -> str:
    """The checksum of one text, as ``checksum([text])`` gives it; each save needs it."""
    data = text.encode()
    data = b"s%d:%b" % (len(data), data)
    return format(crc32(data) << 32 | adler32(data), "016x")


def _written(indices: Iterable[Any]) -> bytes:
    """One after the other; those of a list are written like each of them alone."""
    if isinstance(indices, torch.Tensor):
        indices = indices.numpy(force=True)
    if isinstance(indices, np.ndarray) and indices.ndim == 1 and indices.dtype.kind in "iu":
        return indices.astype("<i8").tobytes()
    items = indices if type(indices) in (list, tuple, range) else list(indices)
    try:
        numbers = array("q", items)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # some are no numbers
        return b"".join(map(_write, items))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _write(item: Any) -> bytes:
    """One index. An equal one is written alike: an int, numpy's and a tensor's of no dimensions."""
    kind: Any = type(item)
    return _writer(kind)(item)


@lru_cache(maxsize=256)
def _writer(kind: Any) -> Callable[[Any], bytes]:
    for kinds, write in _WRITERS:
        if issubclass(kind, kinds):
            return write
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        return lambda item: _named(item, [getattr(item, name) for name in names])
    if hasattr(kind, "__index__"):
        return lambda item: _whole(operator.index(item))
    return lambda item: _named(item, [])


def _whole(number: int) -> bytes:
    if -(2**63) <= number < 2**63:
        return _INT.pack(number)
    return _framed(b"i", hex(number).encode())


def _framed(kind: bytes, data: bytes) -> bytes:
    return b"%b%d:%b" % (kind, len(data), data)


def _named(item: Any, parts: Sequence[Any]) -> bytes:
    return _framed(b"c", type(item).__qualname__.encode() + _written(parts))


def _array(item: Any) -> bytes:
    try:
        return _whole(operator.index(item))  # as in a list of numbers
    except (TypeError, RuntimeError):  # no number, or torch's of 2**63 and more
        pass
    if isinstance(item, torch.Tensor):
        try:
            item = item.numpy(force=True)
        except (TypeError, RuntimeError):  # sparse, or numbers that numpy has not
            return _framed(b"a", str(item.dtype).encode() + _written([item.tolist()]))
    found = np.asarray(item)
    if found.dtype.hasobject:
        return _framed(b"a", str(found.shape).encode() + _written(found.ravel().tolist()))
    little = found.astype(found.dtype.newbyteorder("<"))
    return _framed(b"a", f"{little.dtype.str}{found.shape}".encode() + little.tobytes())


def _text(item: str) -> bytes:
    return _framed(b"s", item.encode("utf-8", "surrogatepass"))


#: the first that an index is an instance of; whole numbers of any kind come last
_WRITERS: list[tuple[Any, Callable[[Any], bytes]]] = [
    (Enum, lambda item: _named(item, [item.name])),
    (int, _whole),
    (str, _text),
    (float, lambda item: _framed(b"f", struct.pack("<d", item))),
    (torch.Tensor | np.ndarray | np.generic, _array),
    (bytes | bytearray, lambda item: _framed(b"b", bytes(item))),
    (list | tuple, lambda item: _framed(b"l", _written(item))),
    (Mapping, lambda item: _framed(b"d", _written([x for pair in item.items() for x in pair]))),
    # Their order depends on how a process hashes text.
    (Set, lambda item: _framed(b"e", b"".join(sorted(map(_write, item))))),
    (complex, lambda item: _framed(b"z", struct.pack("<dd", item.real, item.imag))),
    (slice, lambda item: _framed(b"l", _written([item.start, item.stop, item.step]))),
    (range, lambda item: _framed(b"l", _written(item))),
    (PathLike, lambda item: _write(fspath(item))),
    (type(None), lambda item: b"n"),
]
