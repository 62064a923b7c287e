"""Codecs: pickle, cloudpickle and dill behind one protocol, and what one of them carries.

What pickle takes is left to whoever pickles the loader: he shares it with what stands beside it,
and ``torch.save`` finds its storages there. What pickle refuses (lambdas, local classes) is
*carried*: a codec writes it as bytes. Whatever pickle takes of that after all, tensors, arrays and
the loader's other parts, stands *beside* those bytes, which refer to it by its number.
"""

from __future__ import annotations

import copy
import copyreg
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from ...errors import CannotLoadError, CannotSaveError
from .dtypes import as_bytes, is_lost
from .mapped_files import MappedFiles
from .picklers import STOCK, dump_with, is_data, needed

__all__ = [
    "Carried",
    "Codec",
    "Opened",
    "bare",
    "load_with",
    "made",
    "moved",
    "name_of",
    "newobj",
    "open_carried",
    "standing_beside",
]

#: makes an object without calling its ``__init__``, in few bytes
newobj: Callable[..., Any] = copyreg.__newobj__  # type: ignore[attr-defined]


def made(kind: Any) -> Any:
    """The same, of a class that is carried; pickles call this."""
    return kind.__new__(kind)


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
    of a class, or a module, that can be imported where the pickle is loaded.

    Attributes:
        name: for messages.
    """

    name: str

    def dumps(self, obj: Any) -> bytes:
        """An object as bytes; raises if that cannot be done."""

    def loads(self, data: bytes) -> Any:
        """The object again."""


def name_of(codec: str | Codec) -> str:
    """A codec as messages call it."""
    return (
        codec if isinstance(codec, str) else str(getattr(codec, "name", type(codec).__qualname__))
    )


class Carried:
    """An object that a codec carries; what it is pickled as opens by itself.

    Args:
        codec: one of `STOCK`, or a `Codec`.
        obj: the object, or a dict of objects by their names.
        known: by ``id`` of objects that are saved elsewhere: the object that stands beside, and
            under which name it is found in that (None: it is that object).
        held: by ``id``, objects that are saved elsewhere as well: each stands beside.
        mapped: arrays and tensors over files are saved by the files' names.
    """

    def __init__(
        self,
        codec: str | Codec,
        obj: Any,
        known: dict[int, tuple[Any, str | None]] | None = None,
        held: dict[int, Any] | None = None,
        mapped: bool = False,
    ) -> None:
        self.codec = codec
        self.obj = obj
        self.known = known or {}
        self.held = held or {}
        self.mapped = mapped

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        python = sys.version_info[:2]
        if not isinstance(self.codec, str):
            return open_carried, (self.codec, _dumped(self.codec, self.obj), [], None, python)
        beside = _Beside(self.known, self.held, MappedFiles() if self.mapped else None)
        buffers: list[Any] | None = [] if protocol >= 5 else None
        data = dump_with(self.codec, self.obj, beside.refer, buffers, containers=True)
        return open_carried, (self.codec, data, beside.things, buffers, python)

    def __deepcopy__(self, memo: dict[int, Any]) -> Carried:
        return Carried(
            self.codec, copy.deepcopy(self.obj, memo), self.known, self.held, self.mapped
        )


class Opened(dict[str, Any]):
    """Parts that were carried, by their names; they can be opened once more."""

    #: makes the parts again, with other things beside them
    again: Callable[[list[Any]], dict[str, Any]]
    #: what stood beside them
    beside: list[Any]

    def beside_others(self, others: dict[int, Any]) -> Opened:
        """The same parts, to be opened beside other things, by the ``id`` of what these replace."""
        copied = Opened(self)
        copied.again = self.again
        copied.beside = [others.get(id(thing), thing) for thing in self.beside]
        return copied


def open_carried(
    codec: str | Codec,
    data: bytes,
    beside: list[Any],
    buffers: Any = None,
    python: tuple[int, ...] = (),
) -> Any:
    """What was carried. Opening it runs the code in it.

    Raises:
        CannotLoadError: another Python wrote it, or something that it needs is not there.
        UsageError: its codec is not installed.
    """
    name = name_of(codec)
    if name in STOCK[1:] and tuple(python) != sys.version_info[:2]:
        raise CannotLoadError(
            f"what {name} carries",
            f"Python {'.'.join(map(str, python))} has written it, and this is "
            f"{'.'.join(map(str, sys.version_info[:2]))}: code is not the same in both",
            "Load it there and take state_dict(), which any Python loads; or put the classes and "
            "functions that it holds into a module",
        )

    def again(things: list[Any]) -> Any:
        return load_with(codec, data, buffers, things)

    try:
        found = again(beside)
    except (AttributeError, ModuleNotFoundError) as error:
        raise moved(f"what {name} carries", error) from error
    except Exception as error:
        if isinstance(codec, str):
            raise
        reason = f"its codec raised {type(error).__name__}: {error}"
        raise CannotLoadError(f"what {name} carries", reason, "Mend its loads") from error
    if type(found) is dict:
        found = Opened(found)
        found.again, found.beside = again, beside
    return found


def moved(what: str, error: Exception) -> CannotLoadError:
    """The error for something that needs a class, or a module, which is not here."""
    return CannotLoadError(
        what,
        f"{type(error).__name__}: {error}",
        "What it needs was moved, or is not installed here: make it importable under that name. "
        'Classes that only a script has travel along with codec="cloudpickle"',
    )


def load_with(codec: str | Codec, data: Any, buffers: Any, beside: list[Any]) -> Any:
    """What `dump_with` has written."""
    with _standing_beside(beside):
        return _loads(codec, data, buffers)


# --- writing -------------------------------------------------------------------------------------


class _Beside:
    """What bytes refer to, in the order of its numbers."""

    def __init__(
        self,
        known: dict[int, tuple[Any, str | None]],
        held: dict[int, Any],
        files: MappedFiles | None,
    ) -> None:
        self._known, self._held = known, held
        self._files = files
        self.things: list[Any] = []
        self._numbers: dict[int, int] = {}

    def refer(self, obj: Any) -> tuple[Any, ...] | None:
        if id(obj) in self._known:
            thing, name = self._known[id(obj)]
            return standing_beside, (self._number(thing), name)
        found = None if self._files is None else self._files.by_name(obj)
        if found is not None:
            return found
        if is_lost(obj):
            return as_bytes(obj)
        if is_data(obj) or id(obj) in self._held:
            return standing_beside, (self._number(obj), None)
        return None

    def _number(self, thing: Any) -> int:
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self.things)
            self.things.append(thing)
        return self._numbers[id(thing)]


def _dumped(codec: Codec, obj: Any) -> bytes:
    """What somebody's own codec makes of an object.

    Raises:
        CannotSaveError: it raises something, or makes no bytes.
    """
    what = " and ".join(f"loader.{name}" for name in obj) if isinstance(obj, dict) else repr(obj)
    advice = 'Mend its dumps, or say codec="auto"'
    try:
        data: Any = codec.dumps(obj)
    except Exception as error:
        reason = f"the codec {name_of(codec)} raised {type(error).__name__}: {error}"
        raise CannotSaveError(what, reason, advice) from error
    if not isinstance(data, bytes):
        reason = f"dumps of the codec {name_of(codec)} gave a {type(data).__name__}, and no bytes"
        raise CannotSaveError(what, reason, advice)
    return data


# --- reading -------------------------------------------------------------------------------------

_BESIDE: ContextVar[list[Any]] = ContextVar("picklable_loader.beside")


def standing_beside(number: int, name: str | None) -> Any:
    """What bytes that are being opened refer to; their pickle calls this."""
    thing = _BESIDE.get()[number]
    if name is None:
        return thing
    return thing[name] if isinstance(thing, dict) else thing.__dict__[name]


@contextmanager
def _standing_beside(things: list[Any]) -> Iterator[None]:
    token = _BESIDE.set(things)
    try:
        yield
    finally:
        _BESIDE.reset(token)


def _loads(codec: str | Codec, data: bytes, buffers: Any) -> Any:
    if not isinstance(codec, str):
        return codec.loads(data)
    for name in STOCK[1 : STOCK.index(codec) + 1]:
        needed(name)
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        make, arguments = pid  # of a list, a dict or a set that stands beside
        return make(*arguments)
