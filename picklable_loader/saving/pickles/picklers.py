"""The pickler of each codec, and the reasons why it refuses an object."""

from __future__ import annotations

import copyreg
import io
import pickle
import subprocess
import sys
import threading
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, lru_cache, partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch

from ...errors import UsageError
from ...rng.generators import GLOBAL
from ..states.arrays import READABLE
from .opened import cached, global_generator, restored
from .stock import STOCK, needed

#: gives the reference to an object in a codec's bytes; None: the object itself is written
Refer = Callable[[Any], "tuple[Any, ...] | None"]


def dump_with(
    codec: str, obj: Any, refer: Refer, buffers: list[Any] | None, containers: bool = False
) -> bytes:
    """An object as a codec of `STOCK` writes it; large buffers go to ``buffers``, if that is given.

    With ``containers``, ``refer`` is asked about lists, dicts and sets as well, which takes a call
    for each object. `load_with` reads what it gives for them.
    """
    sink = io.BytesIO()
    _pickler(codec, containers)(sink, refer, buffers).dump(obj)
    return sink.getvalue()


def refusal(
    codec: str, obj: Any, refer: Refer, known: Iterable[Any] = (), containers: bool = False
) -> Exception | None:
    """Why a codec of `STOCK` cannot write an object; None if it can.

    Objects that are ``known`` are not looked into: the pickler is made to believe that it has
    written them, so that nothing is asked about each object in a list of millions.
    """
    try:
        pickler = _pickler(codec, containers)(Sink(), refer, [])
        pickler.memo = {id(each): (at, each) for at, each in enumerate(known)}
        pickler.dump(obj)
    except UsageError:  # it is not installed
        raise
    except Exception as error:  # whatever people's __reduce__ raises
        return error
    return None


def written(codec: str, obj: Any, refer: Refer) -> int | None:
    """How many bytes a codec makes of an object; None if it refuses it."""
    sink = Sink()
    try:
        _pickler(codec)(sink, refer, None).dump(obj)
    except Exception:  # whatever people's __reduce__ raises
        return None
    return sink.count


def reached(obj: Any, refer: Refer) -> dict[int, Any]:
    """The objects that pickle writes for an object, but for texts and numbers, by ``id``.

    The values prevent that an ``id`` is used again.
    """
    things: dict[int, Any] = {}

    def note(each: Any) -> tuple[Any, ...] | None:
        things[id(each)] = each
        return refer(each)

    with suppress(Exception):  # whoever pickles it raises this again
        _pickler(STOCK[0], containers=True)(Sink(), note, []).dump(obj)
    return things


def is_data(obj: Any) -> bool:
    """A tensor or an array, which any pickler takes."""
    kind = type(obj)
    if kind is np.ndarray:
        return not obj.dtype.hasobject
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return True
    return isinstance(obj, torch.Tensor) and _is_like_torchs(obj, kind)


def _is_like_torchs(tensor: torch.Tensor, kind: Any) -> bool:
    """A tensor of a subclass, such as torchvision's ``Image``, that torch pickles as its own."""
    own = {"__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__torch_dispatch__"}
    theirs = torch.nn.Parameter if issubclass(kind, torch.nn.Parameter) else torch.Tensor
    same = all(getattr(kind, name, None) is getattr(theirs, name, None) for name in own)
    return same and not vars(tensor) and kind.__module__ != "__main__" and is_found(kind)


def _pickler(codec: str, containers: bool = False) -> Any:
    """The pickler class of a codec: ``(file, refer, buffers)``; containers: see `dump_with`."""
    base = pickle.Pickler if codec == "pickle" else needed("cloudpickle").Pickler
    return _pickler_over(base, codec, needed("dill") if codec == "dill" else None, containers)


@cache
def _pickler_over(base: Any, codec: str, dill: Any, containers: bool) -> Any:
    class Pickler(base):  # type: ignore[misc]
        dispatch_table = reductions(base)

        def __init__(self, file: Any, refer: Refer, buffers: Any) -> None:
            out_of_band = {} if buffers is None else {"buffer_callback": buffers.append}
            super().__init__(file, pickle.HIGHEST_PROTOCOL, **out_of_band)
            self._refer = refer

        def reducer_override(self, obj: Any) -> Any:
            found = self._refer(obj)
            if found is None and type(obj).__module__ in _END_WITH_PROGRAM:
                _refuse(obj)
            if found is None and codec != "pickle":
                check_movable(obj)
                if type(obj) in _LOCKS:
                    return _LOCKS[type(obj)], ()
                if isinstance(obj, io.IOBase) and (name := _standard(obj)):
                    return getattr, (sys, name)
                found = _by_wrapped(obj) or super().reducer_override(obj)
                # Functions and classes are cloudpickle's in any case: those that dill rebuilds
                # forget their base classes where one of them calls super().
                if dill is not None and found is NotImplemented:
                    found = _by_dill(dill, obj, self.dispatch_table)
            return NotImplemented if found is None else found

    class Asking(Pickler):
        def persistent_id(self, obj: Any) -> Any:
            # Picklers do not ask reducer_override about these.
            return self._refer(obj) if type(obj) in _CONTAINERS else None

    return Asking if containers else Pickler


_CONTAINERS = {list, dict, set, bytearray}


def reductions(pickler: Any) -> Any:
    """The ``dispatch_table`` of a pickler class that writes the global generators by name.

    Whatever draws from one would draw from a copy after loading, which nobody seeds. An equal
    partial has equal bytes: a look at its ``__dict__`` makes one, which pickle would write.
    """
    given: Any = copyreg.dispatch_table
    if pickler is not pickle.Pickler:  # which has a descriptor of that name
        given = pickler.dispatch_table

    def reduce(obj: Any) -> Any:
        for name, generator in GLOBAL.items():
            if obj is generator:
                return global_generator, (name,)
        registered = given.get(type(obj))
        if registered is not None:
            return registered(obj)
        return obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)

    def reduce_partial(obj: Any) -> Any:
        make, function, (*parts, attributes) = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return make, function, (*parts, attributes or None)

    own = {type(each): reduce for each in GLOBAL.values()}
    return ChainMap(own, given, {partial: reduce_partial})


def _by_wrapped(obj: Any) -> Any:
    """How a function is pickled that lru_cache has wrapped, if no name leads to it; else None.

    Pickles know such functions by their names alone. The copy's cache is empty.
    """
    if not isinstance(obj, _CACHED):
        return None
    if obj.__module__ != "__main__" and is_found(obj):
        return None
    return cached, (obj.__wrapped__, obj.cache_parameters())


def is_found(obj: Any) -> bool:
    """A class, or a function, is what its name leads to."""
    found: Any = sys.modules.get(obj.__module__)
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


_CACHED = type(lru_cache(lambda: None))

#: what is pickled by its name
_NAMED = (type, FunctionType, BuiltinFunctionType)


def _by_dill(dill: Any, obj: Any, known: Any) -> Any:
    """How dill pickles an object that pickle refuses; NotImplemented for any other."""
    if type(obj) in known or isinstance(obj, _NAMED):
        return NotImplemented
    try:
        obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:  # whatever people's __reduce__ raises
        return dill.loads, (dill.dumps(obj),)
    return NotImplemented


def check_movable(obj: Any) -> None:
    """Raise TypeError for an object that would silently be something else after loading.

    cloudpickle makes a StringIO of an open file, and bytes of a memoryview. dill makes an empty
    temporary file of one that is gone. Both copy a thread, or a weak reference, that leads nowhere.
    """
    if ends_with_program(obj):
        _refuse(obj)
    if not isinstance(obj, BOUND_TO_PROCESS) or _standard(obj) or _says_what(obj):
        return
    raise TypeError(f"a {type(obj).__name__} belongs to its process, and cannot go into a pickle")


def ends_with_program(obj: Any) -> bool:
    """A Manager's dict, or shared memory: pickle writes an address or a name that will be gone."""
    return type(obj).__module__ in _END_WITH_PROGRAM


_END_WITH_PROGRAM = frozenset({"multiprocessing.managers", "multiprocessing.shared_memory"})


def _refuse(obj: Any) -> None:
    name = type(obj).__name__
    raise TypeError(f"a {name} ends with this program, and no other one can load its pickle")


def _standard(obj: Any) -> str:
    """The name of a standard stream, of which each process has its own; else empty."""
    names = ("stdin", "stdout", "stderr")
    return next((name for name in names if obj is getattr(sys, name)), "")


def _says_what(obj: Any) -> bool:
    """Its class says what is pickled of it, as BytesIO does, and files of fsspec."""
    names = ("__getstate__", "__reduce__", "__reduce_ex__")
    if all(getattr(type(obj), name, None) is getattr(object, name, None) for name in names):
        return False
    try:
        obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:  # whatever people's __reduce__ raises
        return False
    return not isinstance(obj, weakref.ReferenceType)


#: what means something in one process only, and codecs take all the same
BOUND_TO_PROCESS = (
    io.IOBase, memoryview, weakref.ReferenceType, threading.Thread, subprocess.Popen,
)  # fmt: skip

#: The thread that holds a lock is not in the program that gets its copy: it comes back free. From
#: dill it would come back locked, and no thread could release it.
_LOCKS: dict[type[Any], Callable[[], Any]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
}


# --- tensors of types that torch pickles and cannot unpickle, such as ``torch.uint16`` ------------
# Torch 2.13 raises AttributeError when it reads them; ``torch.save`` has no such trouble. Here they
# are written as bytes and the name of the type.


def is_lost(obj: Any) -> bool:
    """It is a tensor that pickle writes, and cannot read."""
    plain = type(obj) is torch.Tensor and obj.layout is torch.strided
    return plain and obj.dtype not in READABLE


def as_bytes(tensor: torch.Tensor) -> tuple[Any, ...]:
    """How such a tensor is pickled: what to call, with what."""
    storage = tensor.untyped_storage()
    data = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    layout = tensor.shape, tensor.stride(), tensor.storage_offset()
    return restored, (data, tensor.dtype, *layout, tensor.requires_grad)


def to_bytes(obj: Any, buffer: io.BytesIO | None = None) -> bytes:
    """Pickle an object, such tensors in it as bytes.

    A buffer may be used many times: memory that is used again is written to several times as fast.
    """
    buffer = io.BytesIO() if buffer is None else buffer
    buffer.seek(0)
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _BY_BYTES
    pickler.dump(obj)
    buffer.truncate()
    return buffer.getvalue()


def _reduce(tensor: torch.Tensor) -> Any:
    return as_bytes(tensor) if is_lost(tensor) else tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


_BY_BYTES: Any = ChainMap({torch.Tensor: _reduce}, copyreg.dispatch_table)


class Sink:
    """A file of which nobody wants to know more than how much was written."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, data: Any) -> int:
        self.count += len(data)
        return len(data)
