"""A checksum of a batch, which shows whether a replay gives the batch that was delivered.

It reads a few numbers of each tensor, so it takes 20 µs for a batch of any size. Floats are rounded
to 8 bits: with another number of threads torch gives other last bits.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
import torch

#: parts of a batch, items of one part, numbers of a tensor, and characters of a text that count
_MOST_PARTS, _MOST_ITEMS, _MOST_NUMBERS, _MOST_TEXT = 64, 64, 32, 256
#: half of the lowest bit that counts in a float of 32 bits, and how many bits are below it
_HALF, _LOWER_BITS = 0x8000, 16


def batch_checksum(batch: Any) -> int:
    """From 0 to 2**32 - 1. Of an object of a class of the program's, only the class counts."""
    total, ahead, count = 0, deque([batch]), 0
    while ahead and count < _MOST_PARTS:
        count += 1
        part = ahead.popleft()
        if isinstance(part, dict):
            ahead.extend(islice((each for item in part.items() for each in item), _MOST_ITEMS))
        elif isinstance(part, (list, tuple)):
            ahead.extend(islice(part, _MOST_ITEMS))
        total = crc32(_content(part), total)
    return total


def _content(part: Any) -> bytes:
    kind = type(part).__name__
    if isinstance(part, (str, bytes)):
        return f"{kind} {len(part)} {part[:_MOST_TEXT]!r}".encode(errors="replace")
    if isinstance(part, (dict, list, tuple)):
        return f"{kind} {len(part)}".encode()
    if isinstance(part, (float, np.floating)):
        return _rounded(np.asarray([part]))
    if isinstance(part, (int, bool, type(None), np.generic)):
        return f"{kind} {part}".encode()
    with suppress(Exception):  # say a sparse tensor, or one on a device that cannot be read here
        if isinstance(part, torch.Tensor) and part.device.type == "cpu":
            return f"{part.dtype} {tuple(part.shape)}".encode() + _some(part.detach())
        if isinstance(part, np.ndarray) and not part.dtype.hasobject:
            return f"{part.dtype} {part.shape}".encode() + _some(part)
    return kind.encode()


def _some(numbers: Any) -> bytes:
    """Some of the numbers of a tensor or an array, from all over it."""
    flat = numbers.reshape(-1)
    some = flat[:: max(1, len(flat) // _MOST_NUMBERS)]
    if isinstance(some, torch.Tensor):
        floats = some.is_floating_point() or some.is_complex()
        some = torch.view_as_real(some) if some.is_complex() else some
        some = (some.float() if floats else some).numpy()
    return _rounded(some) if some.dtype.kind in "fc" else some.tobytes()


def _rounded(floats: Any) -> bytes:
    if floats.dtype.kind == "c":
        floats = floats.view(floats.real.dtype)
    with np.errstate(all="ignore"):
        bits = np.ascontiguousarray(floats, np.float32).view(np.uint32)
        return ((bits.astype(np.uint64) + _HALF) >> _LOWER_BITS).tobytes()
