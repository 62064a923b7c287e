"""The names that pickled loaders and iterators hold. Never move or rename anything in here.

A pickle has the name of each function that rebuilds a part, and of each class:
``picklable_loader.saving.pickles.opened.open_carried``, for example. Pickles of earlier versions
need these names. Public classes have the short name instead, ``picklable_loader.DataLoader``.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from ...errors import CannotLoadError, UsageError
from ...rng.generators import GLOBAL
from .stock import STOCK, codec_name, needed


def made(kind: Any) -> Any:
    """The same, of a class that is carried; pickles call this."""
    return kind.__new__(kind)


def cached(function: Any, parameters: dict[str, Any]) -> Any:
    """Wrap a function by lru_cache again; pickles call this."""
    return lru_cache(**parameters)(function)


def global_generator(name: str) -> Any:
    """The generator of the process that opens the pickle: torch's, NumPy's or Python's."""
    return GLOBAL[name]


class Pickled(bytes):
    """A stream's state in a pickled iterator. No reader of states makes one."""


# --- parts that a codec carries ------------------------------------------------------------------


class Opened(dict[str, Any]):
    """Parts that were carried, by their names; they can be opened once more."""

    #: opens the bytes once more; they refer by number to the objects of another list
    again: Callable[[list[Any]], dict[str, Any]]
    #: the list that they referred to
    beside: list[Any]

    def beside_others(self, others: dict[int, Any]) -> Opened:
        """The same parts; ``others`` has the objects that replace some of the list, by their id."""
        copied = Opened(self)
        copied.again = self.again
        copied.beside = [others.get(id(thing), thing) for thing in self.beside]
        return copied


def open_carried(
    codec: Any,
    data: bytes,
    beside: list[Any],
    buffers: Any = None,
    python: tuple[int, ...] = (),
) -> Any:
    """Open a part that a codec carried. This runs the code in it."""
    name = codec_name(codec)
    if isinstance(codec, str) and codec in STOCK[1:] and tuple(python) != sys.version_info[:2]:
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
        raise CannotLoadError(f"what {name} carries", reason, "Fix its loads") from error
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


def load_with(codec: Any, data: Any, buffers: Any, beside: list[Any]) -> Any:
    """Load an object that `dump_with` has written."""
    token = _BESIDE.set(beside)
    try:
        if not isinstance(codec, str):
            return codec.loads(data)
        for name in STOCK[1 : STOCK.index(codec) + 1]:
            needed(name)
        return _Unpickler(io.BytesIO(data), buffers=buffers).load()
    finally:
        _BESIDE.reset(token)


_BESIDE: ContextVar[list[Any]] = ContextVar("picklable_loader.beside")


def standing_beside(number: int, name: str | None) -> Any:
    """The object that bytes being opened refer to by number; their pickle calls this."""
    thing = _BESIDE.get()[number]
    if name is None:
        return thing
    return thing[name] if isinstance(thing, dict) else thing.__dict__[name]


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        make, arguments = pid  # of a list, a dict or a set that is saved beside it
        return make(*arguments)


# --- tensors and arrays --------------------------------------------------------------------------


def restored(
    data: torch.Tensor, dtype: torch.dtype, shape: Any, stride: Any, offset: int, wants_grad: bool
) -> torch.Tensor:
    """The tensor again; pickles call this."""
    whole = data[: data.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    return whole.as_strided(shape, stride, offset).requires_grad_(wants_grad)


class Span(NamedTuple):
    """A part of a file: absolute path, first byte, bytes; the file's size and time of change."""

    path: str
    start: int
    length: int
    size: int
    changed_ns: int


def open_array(
    span: Span, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], start: int
) -> np.ndarray[Any, Any]:
    """An array over a part of a file; pickles call this."""
    found: np.ndarray[Any, Any]
    found = np.ndarray(shape, dtype, _mapped(span), start, strides)
    return found


def open_tensor(
    span: Span, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    """A tensor over a part of a file; pickles call this."""
    return torch.frombuffer(_mapped(span), dtype=dtype).as_strided(shape, strides)


def _mapped(span: Span) -> memoryview:
    """A part of a file in memory; what is written there does not reach the file."""
    advice = "Put the file back, or save with pickle_mapped=True, which takes its data along"
    try:
        with open(span.path, "rb") as file:
            now = os.fstat(file.fileno())
            if (now.st_size, now.st_mtime_ns) != (span.size, span.changed_ns):
                reason = f"it has {now.st_size} bytes and had {span.size}, or was changed since"
                raise CannotLoadError(f"the file {span.path}", reason, advice)
            before = span.start % mmap.ALLOCATIONGRANULARITY
            start, length = span.start - before, span.length + before
            whole = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=start)
    except OSError as error:
        raise CannotLoadError(f"the file {span.path}", str(error), advice) from error
    return memoryview(whole)[before:]


# --- absent datasets -----------------------------------------------------------------------------

#: methods of which it makes a difference that there are none
_PROTOCOL = ("state_dict", "load_state_dict", "set_epoch")


class _Absent:
    """The placeholder of a dataset: its class, its length, and the loader's fingerprint."""

    def __init__(self, name: str, length: int | None, fits: dict[str, Any]) -> None:
        self.name = name
        self.length = length
        self.fits = fits

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError(f"the absent dataset {self.name} has no length")
        return self.length

    def __repr__(self) -> str:
        return f"<absent dataset: {self.name}, {self.length} samples>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in _PROTOCOL:
            raise AttributeError(name)
        return AbsentMethod(self, name)  # collate_fn may be a method of the dataset's

    def __deepcopy__(self, memo: dict[int, Any]) -> _Absent:
        return self  # functions are not copied, and may refer to it: it is replaced everywhere

    def missing(self) -> NoReturn:
        raise UsageError(
            f"this was saved without its dataset (pickle_dataset=False): call attach(dataset) with "
            f"the {self.name} first"
        )


class AbsentMethod:
    """A method of an absent dataset."""

    def __init__(self, owner: _Absent, name: str) -> None:
        self.owner, self.name = owner, name

    def __call__(self, *arguments: Any, **options: Any) -> NoReturn:
        self.owner.missing()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.owner, self.name)


class AbsentDataset(_Absent, Dataset[Any]):
    """In place of a map-style dataset."""

    def __getitem__(self, index: Any) -> NoReturn:
        self.missing()


class AbsentIterable(_Absent, IterableDataset[Any]):
    """In place of an iterable-style dataset."""

    def __iter__(self) -> Iterator[Any]:
        self.missing()
