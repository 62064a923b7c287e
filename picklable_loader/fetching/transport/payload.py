"""The payload of freshly started worker processes: the dataset and the rest of their job.

The loader writes it once, however many workers there are. Its large buffers go into memory that
each worker maps, so that the system has one copy of them until a worker changes its own. Some
objects travel only when a process is started: tensors in torch's shared memory, and locks and
queues of ``multiprocessing``. They are sent with it.

Torch moves each tensor into shared memory. Then workers see each other's changes, and batches
differ from those under fork; and a fork server takes no more than 250 tensors. So only large
tensors go that way, which would be copied otherwise, and those that are shared already.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
import weakref
from collections.abc import Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from types import FunctionType
from typing import Any

import torch.multiprocessing
from torch.multiprocessing.reductions import rebuild_typed_storage
from torch.storage import TypedStorage

from ...saving.pickles.codecs import Numbered
from ...saving.pickles.opened import load_with
from ...saving.pickles.picklers import dump_with

#: buffers begin at multiples of this, as processors like them to
_ALIGNED = 64

#: objects that multiprocessing sends, or torch by it; of these, methods and partials are no
#: different anywhere
_SENT = ForkingPickler(io.BytesIO()).dispatch_table
_ORDINARY = ("builtins", "functools", "re")

#: a tensor whose memory has as many bytes goes into shared memory, as under torch: no copy is made
_LARGE = 1 << 24


class Payload:
    """An object on its way to several processes.

    Args:
        obj: the object.
        codecs: the first that can write it does; raises what the last one raises.
        by_value: what ``__main__`` defines goes along: the new process will not have it. Otherwise
            it is the new process's own, whatever else a codec has to carry.
    """

    def __init__(self, obj: Any, codecs: Sequence[str], by_value: bool = False) -> None:
        for self._codec in codecs:
            packer = _Packer(by_value)
            buffers: list[pickle.PickleBuffer] = []
            # The names are noted while the object is written, and written after it.
            parts = obj, packer.names
            try:
                body = dump_with(self._codec, parts, packer.refer, buffers)
                break
            except Exception:  # whatever people's __reduce__ raises
                if self._codec == codecs[-1]:
                    raise
        self._beside = packer.numbered.things
        self._memory = _Memory([body, *buffers])

    def open(self) -> Any:
        """The object; called once, in a new process."""
        body, *buffers = self._memory.pieces()
        obj, main = load_with(self._codec, body, buffers, self._beside)
        # The loader knows objects of these classes by the module that defines them.
        for name, value in main.items():
            sys.modules["__main__"].__dict__.setdefault(name, value)
        return obj

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()


class _Packer:
    """Decides what is referred to by number, and notes what ``__main__`` has defined."""

    def __init__(self, by_value: bool) -> None:
        self._main = vars(sys.modules["__main__"])
        self._by_value = by_value
        self.numbered = Numbered()
        self.names: dict[str, Any] = {}

    def refer(self, obj: Any) -> tuple[Any, ...] | None:
        kind = type(obj)
        if getattr(obj, "__module__", None) == "__main__" and isinstance(obj, type | FunctionType):
            name = obj.__qualname__
            if self._main.get(name) is obj and not self._by_value:
                return of_main, (name,)
            if self._main.get(name) is obj and isinstance(obj, type):
                self.names[name] = obj
        if isinstance(obj, torch.Tensor | TypedStorage | torch.UntypedStorage):
            parts: tuple[Any, ...] | None = _own(obj)
            if parts is not NotImplemented:
                return parts
        sent = kind in _SENT and kind.__module__ not in _ORDINARY
        # The module of Cython's functions is no text: their class has an attribute of that name.
        if not sent and not str(kind.__module__).startswith("multiprocessing."):
            return None
        return self.numbered.reference(obj)


def of_main(name: str) -> Any:
    """The object that the new process's ``__main__`` defines under that name."""
    return getattr(sys.modules["__main__"], name)


def _own(obj: torch.Tensor | TypedStorage | torch.UntypedStorage) -> Any:
    """How a tensor, or its memory, is written for a process that has it for itself.

    None: as pickle writes it. NotImplemented: another process cannot have it so, or not cheaply.
    """
    if isinstance(obj, TypedStorage):
        memory = obj._untyped_storage
        return (
            (rebuild_typed_storage, (memory, obj.dtype))
            if _can_be_copied(memory)
            else NotImplemented
        )
    if not _can_be_copied(obj):
        return NotImplemented
    if isinstance(obj, torch.UntypedStorage):
        if obj.is_shared() or obj.nbytes() >= _LARGE:
            return NotImplemented
        array: Any = torch.empty(0, dtype=torch.uint8).set_(obj).numpy()
        return storage_of, (pickle.PickleBuffer(array),)
    if type(obj) is not torch.Tensor:
        return None
    # Multiprocessing's way forgets quantizers, and that a tensor is conjugated.
    make, (first, *more), *rest = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if isinstance(first, torch.UntypedStorage):  # of 8-bit floats; `make` expects what has a type
        first = TypedStorage(wrap_storage=first, dtype=torch.uint8, _internal=True)
    return make, (first, *more), *rest


def _can_be_copied(obj: torch.Tensor | torch.UntypedStorage) -> bool:
    """It is in the CPU's memory, and no result of autograd's, which torch refuses to send."""
    if obj.device.type != "cpu":
        return False
    return isinstance(obj, torch.UntypedStorage) or obj.is_leaf or not obj.requires_grad


def storage_of(buffer: memoryview) -> torch.UntypedStorage:
    """The memory of a tensor, in a new process: its own, as it maps the buffer for itself."""
    if not len(buffer):
        return torch.UntypedStorage(0)
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


class _Memory:
    """A file in memory that several processes map; bytes, where there is none."""

    def __init__(self, data: Sequence[Any]) -> None:
        views = [memoryview(each if isinstance(each, bytes) else each.raw()) for each in data]
        #: where each piece begins, and how long it is
        self._pieces: list[tuple[int, int]] = []
        end = 0
        for view in views:
            self._pieces.append((end, view.nbytes))
            end += -(-view.nbytes // _ALIGNED) * _ALIGNED
        self._end = max(end, 1)
        self._fd: int | None = None
        self._copy = b""
        try:
            self._fd = os.memfd_create("picklable_loader_job", os.MFD_CLOEXEC)
        except (AttributeError, OSError):  # not on this system, or no more descriptors
            self._copy = b"".join(bytes(v) + bytes(-v.nbytes % _ALIGNED) for v in views)
            return
        self._close = weakref.finalize(self, os.close, self._fd)
        os.ftruncate(self._fd, self._end)
        for (start, _), view in zip(self._pieces, views, strict=True):
            while view.nbytes:
                count = os.pwrite(self._fd, view[: 1 << 30], start)
                view, start = view[count:], start + count

    def pieces(self) -> list[Any]:
        whole: Any = bytearray(self._copy)
        if self._fd is not None:  # what a process changes there is its own
            whole = mmap.mmap(self._fd, self._end, access=mmap.ACCESS_COPY)
            os.close(self._fd)
        view = memoryview(whole)
        return [view[start : start + length] for start, length in self._pieces]

    def close(self) -> None:
        if self._fd is not None:
            self._close()

    def __getstate__(self) -> dict[str, Any]:
        sent: Any = None if self._fd is None else DupFd(self._fd)
        state = {"_pieces": self._pieces, "_end": self._end, "_copy": self._copy}
        return {**state, "_fd": sent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if state["_fd"] is not None:
            self._fd = state["_fd"].detach()
