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
        #: storages that are in the message already: two views of one stay views of one
        self._memory: dict[int, _Memory] = {}
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
        storage = tensor.untyped_storage() if _is_plain(tensor) else None
        if storage is None or (self._aside is None and storage.nbytes() > INLINE_BYTES):
            # What is not strided is made of tensors that are, which come here as well.
            if tensor.layout is torch.strided:
                self.by_torch_bytes += tensor.numel() * tensor.element_size()
            return _REDUCTIONS[torch.Tensor](tensor)
        memory = self._memory.get(storage._cdata)
        if memory is None:
            memory = self._memory[storage._cdata] = _Memory(storage)
        layout = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        return _rebuild, (memory, tensor.dtype, layout, tensor.requires_grad)


#: multiprocessing's and torch's; people add to it by ``ForkingPickler.register``
_REDUCTIONS: Any = ForkingPickler._extra_reducers  # type: ignore[attr-defined]


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    # Protocol 5 keeps an array read-only; torch's workers give one that can be written to.
    return array.__reduce_ex__(5) if array.flags.writeable else array.__reduce__()


class _Memory:
    """The bytes of a storage; unpickled as a storage of their own."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage

    def __reduce__(self) -> Any:
        if not self.storage.nbytes():
            return torch.UntypedStorage, (0,)
        view = torch.empty(0, dtype=torch.uint8).set_(self.storage)
        data: Any = view.numpy()
        return _storage, (pickle.PickleBuffer(data),)


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


def _storage(data: Any) -> torch.UntypedStorage:
    return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()


def _rebuild(
    storage: torch.UntypedStorage, dtype: torch.dtype, layout: tuple[Any, ...], requires_grad: bool
) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype).set_(storage, *layout)
    tensor.requires_grad_(requires_grad)
    return tensor
