"""Attributes of a kind that no state holds: they can be compared, and not be put back."""

from __future__ import annotations

import io
import weakref
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ..saving.pickles.by_reference import dumps

__all__ = ["CODE", "OTHERS", "form_to_compare"]

#: what a sampler may refer to and is none of its own state
CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
#: the same; such an object is the same while nobody puts another one in its place
OTHERS = (Dataset, DataLoader, torch.nn.Module, io.IOBase)

#: an object of other people's that is larger when pickled is not looked into
_MOST_BYTES = 1 << 16


def form_to_compare(value: Any, sampler: Any, other: Any) -> Any:
    """Equal to that of an equal value; unlike that of a value that has changed.

    Code is compared by its name, and others by their pickle. What has none, or a large one, is
    compared by its identity.

    Args:
        value: the value.
        sampler: the sampler that it is of, which does not count as part of it.
        other: does not either.
    """
    if isinstance(value, CODE):
        return [getattr(value, "__module__", ""), getattr(value, "__qualname__", str(value))]
    if isinstance(value, OTHERS):
        return _Identity(value)
    # Data is pickled whatever its size, as a plain attribute is copied.
    is_data = isinstance(value, np.ndarray) or not hasattr(value, "__dict__")
    most_bytes = None if is_data else _MOST_BYTES
    try:
        pickled = dumps(value, sampler, False, {id(other): "other"}, most_bytes, to_compare=True)
    except Exception:  # whatever people's __reduce__ raises
        return _Identity(value)
    return [type(value).__qualname__, blake2b(pickled, digest_size=16).hexdigest()]


class _Identity:
    """An object of which only the identity is known. It is not kept alive, if it can be told."""

    def __init__(self, value: Any) -> None:
        try:
            self._found: Any = weakref.ref(value)
        except TypeError:
            self._found = lambda: value

    def __eq__(self, other: object) -> bool:
        found = self._found()
        return isinstance(other, _Identity) and found is not None and other._found() is found

    __hash__ = None  # type: ignore[assignment]
