"""Tensors and arrays in messages: small ones within the message, large ones where they fit best.

Torch makes a file of shared memory for every storage and hands its descriptor over a socket:
about 330 µs each. Below a few dozen kilobytes, copying the bytes twice is much cheaper. Larger ones
go into the worker's arena, where it has one, and otherwise torch sends them. Torch also sends
tensors that are no plain memory: sparse and quantised ones, and tensors on other devices.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
import torch.multiprocessing  # noqa: F401  (registers torch's reductions with ForkingPickler)

from ...saving.pickles.picklers import is_found

#: Buffers up to this size travel within the message.
INLINE_BYTES = 64 * 1024

#: is given each large buffer; returns True if it is to be within the message
Aside = Callable[[pickle.PickleBuffer], bool]


def dumps(obj: Any) -> bytes:
    """Pickle an object for a process of this loader; ``pickle.loads`` reads it."""
    return dump(obj)[0]


def dump(
    obj: Any, aside: Aside | None = None, again: Callable[[], object] = bool
) -> tuple[bytes, int]:
    """Pickle an object for a process of this loader.

    Args:
        obj: what to pickle.
        aside: puts a large buffer elsewhere; None sends large tensors in torch's way.
        again: called when all has to be done once more; what was put aside is not needed then.

    Returns:
        Bytes for ``pickle.loads``, which needs the buffers that were put aside, in their order;
        and how many bytes travel in torch's way.
    """
    known = _Known()
    while True:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, aside, known)
        pickler.dump(obj)
        if not known.too_late:
            return buffer.getvalue(), pickler.by_torch_bytes
        again()
        known.passes += 1
        known.too_late = False


class _Known:
    """Facts about an object's storages, as passes over it have learned them.

    A storage of which more is seen than its first tensor was pickled with makes a pass void. It
    goes on, and sends no more tensors, to learn of all others as well: two passes do. More are
    needed only where objects make new tensors whenever they are pickled, and one has to be last.
    """

    def __init__(self) -> None:
        self.passes = 0
        #: something was learned after it was needed
        self.too_late = False
        #: storages of which more is seen than by one tensor alone
        self.whole: set[int] = set()
        #: storages that something sees which travels in torch's way
        self.by_torch: set[int] = set()

    @property
    def is_last(self) -> bool:
        return self.passes >= 2


class _Pickler(pickle.Pickler):
    """Python's pickler, with the reductions that people have registered for messages."""

    def __init__(self, buffer: io.BytesIO, aside: Aside | None, known: _Known) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL, buffer_callback=aside)
        self._aside = aside
        self._known = known
        #: by storage, the first tensor over it, and the bytes of it that it was pickled with;
        #: two views of one storage stay views of one
        self._firsts: dict[int, tuple[torch.Tensor, int, int]] = {}
        self.by_torch_bytes = 0

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is torch.Tensor:
            reduced = self._reduce(obj)
            # Torch's own reduction loses attributes: `tensor.label = 3`.
            attributes = obj.__dict__
            return (*reduced, attributes, None, None, _give) if attributes else reduced
        if kind is np.ndarray:
            # Protocol 5 leaves an array read-only, or big-endian. What torch's workers give can be
            # written to, and is native, up to Python 3.13, whose default is protocol 4.
            as_it_is = obj.flags.writeable and obj.dtype.isnative
            return obj.__reduce_ex__(5) if as_it_is else obj.__reduce__()
        if isinstance(obj, type):
            return _numbered(obj) or NotImplemented
        if kind is torch.nn.Parameter and _is_lazy(obj):
            return kind, (obj.detach(), obj.requires_grad)
        if isinstance(obj, _SEES_A_STORAGE):
            self._note_torchs(obj)
            if self._known.too_late and not isinstance(obj, torch.Tensor):
                return _NOTHING  # each storage would leave a descriptor that nobody fetches
        by_process = _REDUCTIONS.get(kind)
        return NotImplemented if by_process is None else by_process(obj)

    def _reduce(self, tensor: torch.Tensor) -> Any:
        array = _as_array(tensor)
        if array is None and not _is_plain(tensor):
            return _reduce_lazy(tensor) if _is_lazy(tensor) else self._in_torchs_way(tensor)
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self._known.by_torch:
            return self._in_torchs_way(tensor)
        if key in self._firsts:
            first, start, end = self._firsts[key]
            low, high = _seen(tensor)
            if low < start or high > end:
                self._known.whole.add(key)
                self._known.too_late = True
            return _over, (first, *_layout(tensor, start))
        start, end = 0, nbytes
        if nbytes > INLINE_BYTES and key not in self._known.whole and not self._known.is_last:
            start, end = _seen(tensor)
            if 2 * (end - start) > nbytes:
                start, end = 0, nbytes
        if self._aside is None and end - start > INLINE_BYTES:
            return self._in_torchs_way(tensor)
        self._firsts[key] = tensor, start, end
        if self._known.too_late:
            return _NOTHING
        if array is not None and 0 < array.nbytes == end - start and _is_dense(tensor, array):
            return _whole, (pickle.PickleBuffer(array), _DTYPES[tensor.dtype], array.shape)
        return _over, (_data(storage, start, end), *_layout(tensor, start))

    def _note_torchs(self, obj: Any) -> None:
        """Something that is no plain tensor shares its storage in torch's way alone."""
        try:
            storage = obj.untyped_storage() if isinstance(obj, torch.Tensor) else obj
            key = getattr(storage, "_untyped_storage", storage)._cdata
        except (RuntimeError, NotImplementedError):
            return  # it has none
        self._known.by_torch.add(key)
        if key in self._firsts and not self._known.is_last:
            self._known.too_late = True

    def _in_torchs_way(self, tensor: torch.Tensor) -> Any:
        self._note_torchs(tensor)
        # Other layouts are made of strided tensors, which come here as well.
        if tensor.layout is torch.strided:
            self.by_torch_bytes += tensor.numel() * tensor.element_size()
        return _REDUCTIONS[torch.Tensor](tensor)


#: replaces a tensor in a pass that is void
_NOTHING: Any = (bool, ())

_SEES_A_STORAGE = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)

#: multiprocessing's and torch's; people add to it by ``ForkingPickler.register``
_REDUCTIONS: Any = ForkingPickler._extra_reducers  # type: ignore[attr-defined]


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
        and not tensor.is_quantized
        and not _is_lazy(tensor)
        and tensor.is_leaf
        and not tensor._backward_hooks
    )


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Its values are not what its memory holds: ``t.conj()``, ``t.conj().imag``, or no memory."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_leaf
        and (tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor())
    )


def _reduce_lazy(tensor: torch.Tensor) -> Any:
    """The tensor that its memory holds, and what to do with it again; torch loses that."""
    plain, conj, neg = tensor.detach(), tensor.is_conj(), tensor.is_neg()
    if tensor._is_zerotensor():
        plain = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    else:
        plain = torch._neg_view(plain) if neg else plain
        plain = plain.conj() if conj else plain
    return _lazy, (plain, conj, neg, tensor.requires_grad)


def _as_array(tensor: torch.Tensor) -> Any:
    """A tensor as numpy sees it; None for most that are not plain, and for some that are."""
    try:  # torch 2.6 gives an array over no memory for a zero tensor
        return None if tensor.requires_grad or tensor._is_zerotensor() else tensor.numpy()
    except (RuntimeError, TypeError):
        return None


def _is_dense(tensor: torch.Tensor, array: np.ndarray[Any, Any]) -> bool:
    """Does each step follow from the shape? Where there is one element only, any step will do."""
    if not array.flags.c_contiguous:
        return False
    return (
        1 not in array.shape or tensor.stride() == torch.empty(array.shape, device="meta").stride()
    )


#: a tensor of any type may begin at a multiple of this
_ALIGNED = 64


def _seen(tensor: torch.Tensor) -> tuple[int, int]:
    """Where the bytes of its storage begin and end that a tensor sees."""
    offset, size = tensor.storage_offset(), tensor.itemsize
    start = int(offset * size) // _ALIGNED * _ALIGNED
    if not tensor.numel():
        return start, int(offset * size)
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
    return start, int((offset + last + 1) * size)


def _data(storage: torch.UntypedStorage, start: int, end: int) -> pickle.PickleBuffer | None:
    """Some bytes of a storage; None for none."""
    if start == end:
        return None
    view = torch.empty(0, dtype=torch.uint8, device="cpu").set_(
        storage, start, (end - start,), (1,)
    )
    data: Any = view.numpy()
    return pickle.PickleBuffer(data)


def _layout(tensor: torch.Tensor, start: int) -> tuple[Any, ...]:
    """A tensor's type, offset from ``start``, shape, strides, requires_grad."""
    offset = tensor.storage_offset() - start // tensor.itemsize
    shape, stride = tuple(tensor.shape), tensor.stride()
    return _DTYPES[tensor.dtype], offset, shape, stride, tensor.requires_grad


def _numbered(kind: type[Any]) -> Any:
    """The pickled form of a class that no module has under its name; None for all others.

    cloudpickle gives a number to each class that it writes, and makes a class of that number once
    in a process. Workers have such classes from a fork, or from their payload, so both sides know
    the number. One example is a class from a notebook cell that was loaded elsewhere.
    """
    tracker = sys.modules.get("cloudpickle.cloudpickle")
    if tracker is None:  # then nobody has given it one
        return None
    number = getattr(tracker, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {}).get(kind)
    return None if number is None or is_found(kind) else (_of_number, (number,))


# --- what a message is unpickled with ------------------------------------------------------------

#: Types by their number in a message; both sides run the same torch.
_TYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)
_DTYPES = {dtype: number for number, dtype in enumerate(_TYPES)}


def _whole(data: Any, dtype: int, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor that is all of its storage, in its natural order."""
    tensor = torch.frombuffer(data, dtype=_TYPES[dtype])
    return tensor if len(shape) == 1 else tensor.resize_(shape)


def _lazy(plain: torch.Tensor, conj: bool, neg: bool, requires_grad: bool) -> torch.Tensor:
    """A tensor that sees another one's memory, and conjugates or negates what it finds there."""
    tensor = plain.conj() if conj else plain
    tensor = torch._neg_view(tensor) if neg else tensor
    return tensor.requires_grad_(requires_grad)


def _give(tensor: torch.Tensor, attributes: dict[str, Any]) -> None:
    """Give a tensor attributes."""
    tensor.__dict__.update(attributes)


def _over(
    source: Any,
    dtype: int,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
) -> torch.Tensor:
    """A tensor that sees some bytes, none (None), or some of another tensor's storage."""
    if source is None:
        storage = torch.UntypedStorage(0)
    elif isinstance(source, torch.Tensor):
        storage = source.untyped_storage()
    else:
        storage = torch.frombuffer(source, dtype=torch.uint8).untyped_storage()
    tensor = torch.empty(0, dtype=_TYPES[dtype], device="cpu").set_(storage, offset, shape, stride)
    return tensor.requires_grad_(requires_grad)


def _of_number(number: str) -> Any:
    """The class that cloudpickle knows by a number."""
    return import_module("cloudpickle.cloudpickle")._DYNAMIC_CLASS_TRACKER_BY_ID[number]
