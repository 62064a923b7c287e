"""A checksum of a batch, which shows whether a replay gives the batch that was delivered.

It reads a few numbers of each tensor, which takes 50 µs for a tensor of any size. Floats are
rounded to 8 bits, and count only where torch has one thread, as in workers: with several threads it
adds in another order, and a difference near 0 may be nothing but that.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
import torch

#: parts of a batch, items of one part, numbers of a tensor, and characters of a text that count
_MOST_PARTS, _MOST_ITEMS, _MOST_NUMBERS, _MOST_TEXT = 512, 64, 64, 256
#: where these numbers are, from 0 to 1: by the golden ratio, so no axis of a tensor is in step
_WHERE = np.arange(_MOST_NUMBERS) * 0.6180339887498949 % 1
#: half of the lowest bit that counts in a float of 32 bits, and how many bits are below it
_HALF, _LOWER_BITS = 0x8000, 16


def batch_checksum(batch: Any) -> int:
    """From 0 to 2**32 - 1; an odd one has floats in it.

    Of an object of a class of the program's, only the class counts.
    """
    floats = torch.get_num_threads() == 1
    return _checksum(batch, floats) & ~1 | floats


def is_other(batch: Any, checksum: int) -> bool:
    """The checksum is of another batch; False: nobody knows, as one of them had several threads."""
    floats = bool(checksum & 1)
    if floats and torch.get_num_threads() != 1:
        return False
    return _checksum(batch, floats) & ~1 != checksum & ~1


def _checksum(batch: Any, floats: bool) -> int:
    total, ahead = 0, deque([batch])
    with suppress(Exception):  # people's methods may raise anything, and do so in a replay as well
        for _ in range(_MOST_PARTS):
            if not ahead:
                break
            part = ahead.popleft()
            if isinstance(part, dict):
                ahead.extend(_in_order(part))
            elif isinstance(part, (list, tuple)):
                ahead.extend(islice(part, _MOST_ITEMS))
            total = crc32(_content(part, floats), total)
    return total


def _in_order(part: dict[Any, Any]) -> list[Any]:
    """The keys and values of a small dict, whatever order they have come in."""
    items = list(part.items()) if len(part) <= _MOST_ITEMS else []
    ordered = sorted(items, key=lambda item: crc32(_content(item[0], floats=True)))
    return [each for item in ordered for each in item]


def _content(part: Any, floats: bool) -> bytes:
    kind = type(part).__name__
    if isinstance(part, (str, bytes)):
        return f"{kind} {len(part)} {part[:_MOST_TEXT]!r}".encode(errors="replace")
    if isinstance(part, (dict, list, tuple)):
        return f"{kind} {len(part)}".encode()
    if isinstance(part, (bool, int)):
        return f"{kind} {part % (1 << 64)}".encode()
    if isinstance(part, (float, np.generic)):
        part = np.asarray(part)
    with suppress(Exception):  # say a sparse tensor, or one on a device that cannot be read here
        if isinstance(part, torch.Tensor) and part.device.type == "cpu":
            return f"{part.dtype} {tuple(part.shape)}".encode() + _some(part.detach(), floats)
        # The padding of a structured array has no value.
        if isinstance(part, np.ndarray) and part.dtype.kind not in "OV":
            return f"{part.dtype} {part.shape}".encode() + _some(part, floats)
    return kind.encode()


def _some(numbers: Any, floats: bool) -> bytes:
    """Some of the numbers of a tensor or an array, from all over it; they alone are copied."""
    shape = tuple(numbers.shape) or (1,)
    count = math.prod(shape)
    where = (_WHERE * count).astype(np.int64) if count > _MOST_NUMBERS else np.arange(count)
    found = numbers.reshape(shape) if not numbers.shape else numbers
    at = np.unravel_index(where, shape) if count else ()
    if isinstance(numbers, torch.Tensor):
        some: Any = found[tuple(map(torch.from_numpy, at))]
        inexact = some.is_floating_point() or some.is_complex()
        some = torch.view_as_real(some.resolve_conj()) if some.is_complex() else some
        some = (some.float() if inexact else some).numpy()
    else:
        some = found[at]
        some = np.stack([some.real, some.imag]) if some.dtype.kind == "c" else some
    if some.dtype.kind != "f":
        return bytes(some.tobytes())
    return _rounded(some) if floats else b""


def _rounded(floats: Any) -> bytes:
    with np.errstate(all="ignore"):
        single = np.nan_to_num(np.asarray(floats, np.float32) + np.float32(0), posinf=1, neginf=-1)
        bits = np.ascontiguousarray(single).view(np.uint32)
        return bytes(((bits.astype(np.uint64) + _HALF) >> _LOWER_BITS).tobytes())
