"""Pickle, cloudpickle and dill behind one protocol, and the parts that one of them carries.

Parts that pickle accepts are pickled normally. So they share their memo and tensor storages with
the rest of the file, and ``torch.save`` finds the storages. Parts that it rejects (lambdas, local
classes) are *carried*: a codec writes them as bytes. Tensors, arrays and the loader's other parts
inside them are not copied: the bytes hold numbers into a list, ``beside``, pickled normally.
"""

from __future__ import annotations

import copy
import copyreg
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ...errors import CannotSaveError
from .mapped_files import MappedFiles
from .opened import made, open_carried, standing_beside
from .picklers import as_bytes, dump_with, is_data, is_lost
from .stock import codec_name

#: makes an object without calling its ``__init__``, in few bytes
newobj: Callable[..., Any] = copyreg.__newobj__  # type: ignore[attr-defined]


def bare(kind: Any, protocol: int) -> tuple[Any, tuple[Any, ...]]:
    """How an instance without a state is pickled: what to call, with what."""
    if not isinstance(kind, type):
        return made, (kind,)
    if protocol < 2:  # as Python itself does it
        return copyreg._reconstructor, (kind, object, None)  # type: ignore[attr-defined]
    return newobj, (kind,)


class Codec(Protocol):
    """Makes bytes of objects, and objects of those bytes.

    It is pickled along with what it has written, so that plain pickle must take it: an instance
    of a class that can be imported where the pickle is loaded. An attribute ``name`` is what
    messages call it; without one they use the name of its class.
    """

    def dumps(self, obj: Any) -> bytes:
        """An object as bytes; raises if that cannot be done."""

    def loads(self, data: bytes) -> Any:
        """The object again."""


@dataclass(eq=False)
class Carried:
    """An object that a codec carries; what it is pickled as opens by itself."""

    #: one of `STOCK`, or a `Codec`
    codec: str | Codec
    #: the object, or a dict of objects by their names
    obj: Any
    #: by ``id`` of objects that are saved elsewhere: the object in ``beside``, and the name under
    #: which it is found in that (None: it is that object)
    known: dict[int, tuple[Any, str | None]] = field(default_factory=dict)
    #: by ``id``, objects that are saved elsewhere as well: each is in ``beside``
    saved: dict[int, Any] = field(default_factory=dict)
    #: arrays and tensors over files are saved by the files' names
    mapped: bool = False

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        python = sys.version_info[:2]
        if not isinstance(self.codec, str):
            return open_carried, (self.codec, _dumped(self.codec, self.obj), [], None, python)
        numbered, files = Numbered(), MappedFiles() if self.mapped else None

        def refer(obj: Any) -> tuple[Any, ...] | None:
            if id(obj) in self.known:
                return numbered.reference(*self.known[id(obj)])
            found = None if files is None else files.by_name(obj)
            if found is not None:
                return found
            if is_lost(obj):
                return as_bytes(obj)
            return numbered.reference(obj) if is_data(obj) or id(obj) in self.saved else None

        buffers: list[Any] | None = [] if protocol >= 5 else None
        data = dump_with(self.codec, self.obj, refer, buffers, containers=True)
        return open_carried, (self.codec, data, numbered.things, buffers, python)

    def __deepcopy__(self, memo: dict[int, Any]) -> Carried:
        return replace(self, obj=copy.deepcopy(self.obj, memo))


class Numbered:
    """The objects that bytes refer to by number, in the order of their numbers."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self._numbers: dict[int, int] = {}

    def reference(self, thing: Any, name: str | None = None) -> tuple[Any, ...]:
        """How bytes refer to a thing, or to what it has under a name."""
        number = self._numbers.setdefault(id(thing), len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return standing_beside, (number, name)


def _dumped(codec: Codec, obj: Any) -> bytes:
    """An object as bytes, by a user's own codec; CannotSaveError if it raises or makes no bytes."""
    what = " and ".join(f"loader.{name}" for name in obj) if isinstance(obj, dict) else repr(obj)
    advice = 'Fix its dumps, or say codec="auto"'
    try:
        data: Any = codec.dumps(obj)
    except Exception as error:
        reason = f"the codec {codec_name(codec)} raised {type(error).__name__}: {error}"
        raise CannotSaveError(what, reason, advice) from error
    if not isinstance(data, bytes):
        reason = (
            f"dumps of the codec {codec_name(codec)} gave a {type(data).__name__}, and no bytes"
        )
        raise CannotSaveError(what, reason, advice)
    return data
