"""Pickles tensors of types that torch cannot unpickle, such as ``torch.uint16``.

Torch writes them, and raises AttributeError when it reads them again (2.13 does); ``torch.save``
has no such trouble. Here they are written as bytes and the name of the type.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections import ChainMap
from functools import cache
from typing import Any

import torch

from .opened import restored


def is_lost(obj: Any) -> bool:
    """It is a tensor that pickle writes, and cannot read."""
    return type(obj) is torch.Tensor and obj.layout is torch.strided and _is_lost(obj.dtype)


@cache
def _is_lost(dtype: torch.dtype) -> bool:
    try:
        pickle.loads(pickle.dumps(torch.empty(1, dtype=dtype)))
    except Exception:  # whatever torch raises there
        return True
    return False


def as_bytes(tensor: torch.Tensor) -> tuple[Any, ...]:
    """How such a tensor is pickled: what to call, with what."""
    storage = tensor.untyped_storage()
    data = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    layout = tensor.shape, tensor.stride(), tensor.storage_offset()
    return restored, (data, tensor.dtype, *layout, tensor.requires_grad)


def dump(obj: Any, buffer: io.BytesIO) -> None:
    """Pickle an object, such tensors in it as bytes."""
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _TABLE
    pickler.dump(obj)


def dumps(obj: Any) -> bytes:
    """The same, as bytes."""
    buffer = io.BytesIO()
    dump(obj, buffer)
    return buffer.getvalue()


def _reduce(tensor: torch.Tensor) -> Any:
    return as_bytes(tensor) if is_lost(tensor) else tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


_TABLE: Any = ChainMap({torch.Tensor: _reduce}, copyreg.dispatch_table)
