"""Tensors in messages: small ones within the message, others through torch's shared memory.

Torch makes a file of shared memory for every storage and hands its descriptor over a socket:
about 330 µs each. Below a few dozen kilobytes copying the bytes twice is much cheaper.
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

__all__ = ["INLINE_BYTES", "dumps"]

#: Storages up to this size travel within the message.
INLINE_BYTES = 64 * 1024


def dumps(obj: Any) -> bytes:
    """Pickle an object for a process of this loader; ``pickle.loads`` reads it."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(obj)
    return buffer.getvalue()


class _Pickler(ForkingPickler):
    """Python's pickler for messages between processes, with small tensors inline."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self.dispatch_table: Any
        self._by_torch: Callable[[torch.Tensor], Any] = self.dispatch_table[torch.Tensor]
        self.dispatch_table[torch.Tensor] = self._reduce
        self.dispatch_table[np.ndarray] = _reduce_array
        #: storages that are in the message already: two views of one stay views of one
        self._inline: dict[int, _Bytes] = {}

    def _reduce(self, tensor: torch.Tensor) -> Any:
        if not _is_small_and_plain(tensor):
            return self._by_torch(tensor)
        storage = tensor.untyped_storage()
        inline = self._inline.get(storage._cdata)
        if inline is None:
            inline = self._inline[storage._cdata] = _Bytes(storage)
        layout = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        return _rebuild, (inline, tensor.dtype, layout, tensor.requires_grad)


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    # Protocol 5 keeps an array read-only; torch's workers give one that can be written to.
    return array.__reduce_ex__(5) if array.flags.writeable else array.__reduce__()


class _Bytes:
    """The bytes of a storage; unpickled as a storage of their own."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage

    def __reduce__(self) -> Any:
        if not self.storage.nbytes():
            return torch.UntypedStorage, (0,)
        view = torch.empty(0, dtype=torch.uint8).set_(self.storage)
        data: Any = view.numpy()
        return _storage, (pickle.PickleBuffer(data),)


def _is_small_and_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.is_leaf
        and not tensor._backward_hooks
        and tensor.untyped_storage().nbytes() <= INLINE_BYTES
    )


def _storage(data: bytearray) -> torch.UntypedStorage:
    return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()


def _rebuild(
    storage: torch.UntypedStorage, dtype: torch.dtype, layout: tuple[Any, ...], requires_grad: bool
) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype).set_(storage, *layout)
    tensor.requires_grad_(requires_grad)
    return tensor
