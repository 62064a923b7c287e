"""Tensors and arrays in messages: small ones within the message, large ones where they fit best.

Torch makes a file of shared memory for every storage and hands its descriptor over a socket:
about 330 µs each. Below a few dozen kilobytes copying the bytes twice is much cheaper; above, they
stand in the worker's arena, where it has one, and otherwise travel in torch's way. So does what is
no plain memory: sparse and quantised tensors, those on other devices.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
import torch.multiprocessing  # noqa: F401  (registers torch's reductions with ForkingPickler)

__all__ = ["INLINE_BYTES", "dump", "dumps"]

#: Buffers up to this size travel within the message.
INLINE_BYTES = 64 * 1024

#: told of each large buffer; True keeps it within the message
Aside = Callable[[pickle.PickleBuffer], bool]


def dumps(obj: Any) -> bytes:
    """Pickle an object for a process of this loader; ``pickle.loads`` reads it."""
    return dump(obj)[0]


def dump(obj: Any, aside: Aside | None = None) -> tuple[bytes, int]:
    """Pickle an object for a process of this loader.

    Args:
        obj: what to pickle.
        aside: puts a large buffer elsewhere, and returns False, or True to keep it; ``None``
            sends large tensors in torch's way.

    Returns:
        Bytes for ``pickle.loads``, which wants the buffers that were put aside, in their order;
        and how many bytes travel in torch's way.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, aside)
    pickler.dump(obj)
    return buffer.getvalue(), pickler.by_torch_bytes


class _Pickler(pickle.Pickler):
    """Python's pickler, with the reductions that people have registered for messages."""

    def __init__(self, buffer: io.BytesIO, aside: Aside | None) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL, buffer_callback=aside)
        self._aside = aside
        #: by storage, the first tensor over it: two views of one stay views of one
        self._firsts: dict[int, torch.Tensor] = {}
        self.by_torch_bytes = 0

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is torch.Tensor:
            return self._reduce(obj)
        if kind is np.ndarray:
            return _reduce_array(obj)
        by_process = _REDUCTIONS.get(kind)
        return NotImplemented if by_process is None else by_process(obj)

    def _reduce(self, tensor: torch.Tensor) -> Any:
        if tensor.requires_grad:
            return self._reduce_carefully(tensor)
        try:
            array: Any = tensor.numpy()  # of most plain tensors, and of nothing else
        except (RuntimeError, TypeError):
            return self._reduce_carefully(tensor)
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        first = self._firsts.setdefault(storage._cdata, tensor)
        if first is not tensor:
            return _alias, (first, _DTYPES[tensor.dtype], *_layout(tensor))
        if not nbytes or nbytes != array.nbytes or not array.flags.c_contiguous:
            return self._reduce_storage(tensor, storage)
        if self._aside is None and nbytes > INLINE_BYTES:
            return self._by_torch(tensor)
        return _whole, (pickle.PickleBuffer(array), _DTYPES[tensor.dtype], array.shape)

    def _reduce_carefully(self, tensor: torch.Tensor) -> Any:
        if not _is_plain(tensor):
            return self._by_torch(tensor)
        storage = tensor.untyped_storage()
        first = self._firsts.setdefault(storage._cdata, tensor)
        if first is not tensor:
            return _alias, (first, _DTYPES[tensor.dtype], *_layout(tensor), tensor.requires_grad)
        return self._reduce_storage(tensor, storage)

    def _reduce_storage(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Any:
        if self._aside is None and storage.nbytes() > INLINE_BYTES:
            return self._by_torch(tensor)
        layout = (*_layout(tensor), tensor.requires_grad)
        return _part, (_data(storage), _DTYPES[tensor.dtype], *layout)

    def _by_torch(self, tensor: torch.Tensor) -> Any:
        # What is not strided is made of tensors that are, which come here as well.
        if tensor.layout is torch.strided:
            self.by_torch_bytes += tensor.numel() * tensor.element_size()
        return _REDUCTIONS[torch.Tensor](tensor)


#: multiprocessing's and torch's; people add to it by ``ForkingPickler.register``
_REDUCTIONS: Any = ForkingPickler._extra_reducers  # type: ignore[attr-defined]


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    # Protocol 5 keeps an array read-only; torch's workers give one that can be written to.
    return array.__reduce_ex__(5) if array.flags.writeable else array.__reduce__()


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.is_leaf
        and not tensor._backward_hooks
    )


def _layout(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()


def _data(storage: torch.UntypedStorage) -> pickle.PickleBuffer | None:
    """A storage's bytes; None if it has none."""
    if not storage.nbytes():
        return None
    view: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return pickle.PickleBuffer(view)


# --- what a message is unpickled with ------------------------------------------------------------

#: Types by their number in a message; both sides run the same torch.
_TYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)
_DTYPES = {dtype: number for number, dtype in enumerate(_TYPES)}


def _whole(data: Any, dtype: int, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor that is all of its storage, in its natural order."""
    tensor = torch.frombuffer(data, dtype=_TYPES[dtype])
    return tensor if len(shape) == 1 else tensor.resize_(shape)


def _part(
    data: Any,
    dtype: int,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool = False,
) -> torch.Tensor:
    """A tensor that sees some of its storage, in some order."""
    if data is None:
        storage = torch.UntypedStorage(0)
    else:
        storage = torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
    tensor = torch.empty(0, dtype=_TYPES[dtype]).set_(storage, offset, shape, stride)
    return tensor.requires_grad_(requires_grad)


def _alias(
    first: torch.Tensor,
    dtype: int,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool = False,
) -> torch.Tensor:
    """A tensor over the storage of another one."""
    storage = first.untyped_storage()
    tensor = torch.empty(0, dtype=_TYPES[dtype]).set_(storage, offset, shape, stride)
    return tensor.requires_grad_(requires_grad)
