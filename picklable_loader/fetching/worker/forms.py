"""Has an attribute of a dataset changed? A digest of it shows that.

A value with a small pickle has changed if its pickle has, and that pickle can be put back. Of any
other value (beside a lambda or a lock, or a large one) numbers, texts and lengths are looked at.
"""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from inspect import getattr_static
from itertools import islice
from types import WrapperDescriptorType
from typing import Any, NamedTuple

import numpy as np
import torch

from ...datasets.datapipes import is_iter_datapipe
from ...saving.pickles.by_reference import LARGE_BYTES, attributes_of
from ...saving.states.arrays import bytes_of

#: objects of an attribute without a pickle that are looked at, and characters of a text
_MOST_OBJECTS = 10_000
_MOST_TEXT = 1000


class Form(NamedTuple):
    """A digest that shows whether a value has changed; an empty one: nothing can show it."""

    digest: bytes
    #: the value has a small pickle, so it can be put back
    known: bool


def form_of(value: Any, pickled: bytes | None, dataset: Any) -> Form:
    """The form of a value in a dataset; ``pickled`` is None if it is large, or has no pickle."""
    seen = b""
    with suppress(Exception):  # say a sparse tensor, or an object whose ``__dict__`` raises
        seen = _trace(value, dataset) if pickled is None else pickled
    return Form(blake2b(seen, digest_size=16).digest() if seen else b"", pickled is not None)


def version_of(tensor: torch.Tensor) -> int:
    """How often it was changed in place."""
    return 0 if tensor.is_inference() else tensor._version


def _trace(value: Any, dataset: Any) -> bytes:
    """Numbers, texts and small tensors in a value without a pickle, and lengths.

    They show a count next to a lambda, for example. Objects of Python's own and of torch's classes
    (a lock, a thread pool) are not looked into: they change, and no sample depends on that.
    """
    if _is_opaque(value):
        return b""
    found: list[Any] = []
    seen = {id(dataset)}
    ahead = deque([value])
    while ahead and len(found) < _MOST_OBJECTS:
        part = ahead.popleft()
        if isinstance(part, int | float | complex):
            found.append(repr(part))
        elif isinstance(part, str | bytes):
            found.append((len(part), part[:_MOST_TEXT]))
        elif isinstance(part, torch.Tensor):
            found.append(_content_of(part))
        elif isinstance(part, np.ndarray | np.generic):
            small = part.nbytes <= LARGE_BYTES and not part.dtype.hasobject
            found.append(part.tobytes() if small else b"")
        elif id(part) not in seen:
            seen.add(id(part))
            found.append(_length_of(part))
            ahead.extend(islice(_within(part), max(0, _MOST_OBJECTS - len(ahead))))
    return pickle.dumps(found, pickle.HIGHEST_PROTOCOL)


def _content_of(tensor: torch.Tensor) -> Any:
    """The bytes of a small tensor; of a large or sparse one, say, how often it was changed."""
    with suppress(Exception):  # a nested tensor has no number of bytes, and one on "meta" none
        if tensor.layout is torch.strided and tensor.nbytes <= LARGE_BYTES:
            return bytes_of(tensor)
    return version_of(tensor)


def _length_of(part: Any) -> int | None:
    """The length of one of Python's containers; gluonts' ``__len__`` reads a whole stream."""
    if type(getattr_static(type(part), "__len__", None)) is not WrapperDescriptorType:
        return None
    with suppress(Exception):  # of a class that is written in C
        return len(part)
    return None


def _within(part: Any) -> Iterable[Any]:
    if isinstance(part, list | tuple | deque):
        return part
    if isinstance(part, dict):
        return part.values()
    return () if _is_opaque(part) else attributes_of(part).values()


def _is_opaque(part: Any) -> bool:
    if isinstance(part, _LOOKED_INTO):
        return False
    package = str(type(part).__module__).partition(".")[0]
    return package == "torch" or package in sys.stdlib_module_names or is_iter_datapipe(part)


_LOOKED_INTO = (
    *(list, tuple, deque, dict, set, int, float, complex, str, bytes),
    *(torch.Tensor, np.ndarray, np.generic),
)
