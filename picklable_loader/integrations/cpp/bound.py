"""Completes the classes that torch_data.h binds: pickling, states, iteration, errors in words.

An instance is saved by the arguments of its constructor, and its state where the class has one. A
sampler or stream has one position, in C++; its newest iterator (`Pass`) moves it.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import reprlib
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ...errors import (
    CannotLoadError,
    CannotSaveError,
    Difference,
    LoaderError,
    StateMismatch,
    UsageError,
)
from ...fetching.worker import collate
from ...rng.current import current_seed, sample_seeds
from .build import imported
from .whole import Whole

# --- called by the header --------------------------------------------------------------------


def seed() -> int:
    """The current seed; outside of a loader of ours, a draw from torch's global generator."""
    try:
        return current_seed()
    except UsageError:
        return int(torch.empty((), dtype=torch.int64).random_())


def worker() -> tuple[int, int]:
    """The number of this worker, and how many there are."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


#: makes memory for a batch
empty = collate.empty


def check_binding(name: str, torch_version: str, needs_gil: bool) -> None:
    """Raise unless a class can be bound: by its library's torch, and by its constructors."""
    here = torch.__version__.partition("+")[0]
    if torch_version.partition("+")[0] != here:
        raise CannotLoadError(
            f"the extension with the class {name}",
            f"it was built for torch {torch_version}, and this is torch {here}",
            "Build it again: a C++ extension fits one version of torch",
        )
    if needs_gil:
        raise UsageError(
            f"a constructor of {name} takes a Python object, and its methods run without the GIL. "
            "Take C++ types (std::function for a callback), or bind the class with hold_gil()"
        )


def complete(cls: Any, kind: str) -> None:
    """Give a bound class what its kind has in Python."""
    built = cls.__init__

    @functools.wraps(built)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        before = torch.default_generator.get_state()
        built(self, *args, **kwargs)
        if kind == "chunks":
            self._reset()  # as torch's ChunkDataset does before it reads
        how: dict[str, Any] = {"args": args, "kwargs": kwargs}
        if not hasattr(cls, "_get_state"):
            if not torch.equal(before, torch.default_generator.get_state()):
                how["rng"] = before  # the constructor has drawn
        self.__dict__["_built"] = how

    cls._built_by, cls.__init__ = built, __init__
    if hasattr(cls, "set_epoch"):
        cls.set_epoch = _noting(cls.set_epoch)
    for name, method in {**_EVERY, **_METHODS[kind]}.items():
        setattr(cls, name, method)
    if kind == "stream":
        IterableDataset.register(cls)


def _noting(set_epoch: Any) -> Any:
    """A set_epoch whose epoch is saved: it is none of the constructor's arguments."""

    def noting(self: Any, epoch: int) -> None:
        set_epoch(self, epoch)
        self.__dict__["_built"]["epoch"] = epoch

    return noting


# --- pickling --------------------------------------------------------------------------------


def _reduce(self: Any, protocol: Any) -> Any:
    cls, saved = type(self), self.__getstate__()
    if vars(cls).get("_library"):
        return _new_of_library, (cls._library, cls.__module__, cls.__qualname__), saved
    return copyreg.__newobj__, (cls,), saved  # type: ignore[attr-defined]


def _getstate(self: Any) -> dict[str, Any]:
    attributes = dict(self.__dict__)
    built = attributes.pop("_built", None)
    if built is None:
        raise CannotSaveError(
            f"a {type(self).__qualname__}",
            "it was not made by a constructor that was bound for it",
            "Give all constructors to the call of bind_...; a subclass's __init__ calls super()'s",
        )
    saved = {**built, "attributes": attributes}
    if hasattr(self, "_get_state"):
        saved["state"] = self._get_state()
    return saved


def _setstate(self: Any, saved: dict[str, Any]) -> None:
    program = torch.default_generator.get_state()
    try:
        if "rng" in saved:
            torch.default_generator.set_state(saved["rng"])
        _constructor_of(type(self))(self, *saved["args"], **saved["kwargs"])
    except TypeError as error:
        raise CannotLoadError(
            f"a {type(self).__qualname__}",
            f"its constructor does not take the arguments that it was made with: {error}",
            "Use the library that it was saved with, or give the class a constructor for these",
        ) from error
    finally:
        torch.default_generator.set_state(program)
    if "rng" in saved:
        self.__dict__["_built"]["rng"] = saved["rng"]
    if "epoch" in saved:
        self.set_epoch(saved["epoch"])
    self.__dict__.update(saved["attributes"])
    if "state" in saved:
        _load_state(self, saved["state"])


def _constructor_of(cls: Any) -> Any:
    """The bound class's own: what a subclass's adds is in the attributes."""
    return next(base.__init__ for base in cls.__mro__ if "_built_by" in vars(base))


def _new_of_library(library: str, module: str, name: str) -> Any:
    """An instance, without its content, of a class that no module has."""
    try:
        cls: Any = getattr(imported(module, Path(library)), name)
    except (ImportError, OSError, AttributeError) as error:
        raise CannotLoadError(
            f"a {name}",
            f"it is of the library {library}: {error}",
            "Build the library here, with load(..., module=__name__) in a module that can be "
            "imported: pickles then name that module",
        ) from error
    return cls.__new__(cls)


def _load_state(self: Any, state: Any) -> None:
    expected = self._get_state()
    try:
        self._set_state(state)
    except Exception as error:
        self._set_state(expected)
        found, wanted = map(_entries, (state, expected))
        raise StateMismatch(
            [Difference(f"state of {type(self).__qualname__}", wanted, found)],
            f"Its load() says: {_first_line(error)}. The state may be of another version of the "
            "class: load it with that version",
        ) from error


def _entries(state: Any) -> Any:
    return sorted(state) if isinstance(state, dict) else reprlib.repr(state)


# --- datasets --------------------------------------------------------------------------------


def _getitem(self: Any, index: Any) -> Any:
    try:
        return self._get(index)
    except Exception as error:
        raise _explained(error, self, index)


def _getitems(self: Any, indices: Any) -> Any:
    try:
        return self._get_batch(indices, sample_seeds() or [])
    except Exception as error:
        raise _explained(error, self, indices)


def _getitems_at_once(self: Any, indices: Any) -> list[Whole]:
    return [Whole(_getitems(self, indices))]


def _explained(error: Exception, dataset: Any, asked: Any) -> Exception:
    """An error of C++ that names its sample; in our words where pybind11's are riddles."""
    name, text, failed = type(dataset).__qualname__, str(error), dataset._failed_index()
    if "Unregistered type" in text or "Unable to convert function return value" in text:
        return UsageError(
            f"{name} returns a C++ type that Python does not know ({_first_line(error)}). Name its "
            "fields with PICKLABLE_LOADER_FIELDS(Type, ...), or bind it with py::class_"
        )
    if "PyGILState_Check" in text:
        return UsageError(f"{name} uses Python objects without the GIL: bind it with hold_gil()")
    if len(error.args) == 1 and not isinstance(error, LoaderError):  # add_note is Python 3.11's
        asked = reprlib.repr(asked if failed < 0 else failed)
        error.args = (f"{text} ({name} was asked for {asked})",)
    return error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].strip()


# --- samplers and streams --------------------------------------------------------------------


class Pass:
    """An iterator over a sampler or a stream, which has the position.

    A sampler has one position, and generators that go on from epoch to epoch. So its newest pass
    moves the sampler itself. A pass over a stream has a copy of the stream, as a worker has.
    """

    #: for CustomOrder: a replay would begin without what the sampler has in C++
    state_is_position = True

    def __init__(self, source: Any, batch_size: int | None = None, drop_last: bool = False) -> None:
        is_stream = isinstance(source, IterableDataset)
        self._source: Any = copy.copy(source) if is_stream else source
        self._batch_size, self._drop_last = batch_size, drop_last
        self._begun = False  # torch calls iter(sampler) twice when it starts workers

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._begun:
            self._take_over()
            self._source._reset()
            self._begun = True
        if _newest[self._source]() is not self:
            raise UsageError(
                f"another iterator of this {type(self._source).__qualname__} has begun since, and "
                "has moved its only position. Give each loader an object of its own"
            )
        count = self._batch_size or 1
        try:
            taken = self._source._next(count)
        except Exception as error:
            raise _explained(error, self._source, f"the next {count}")
        if taken is None:
            raise StopIteration
        if not isinstance(taken, list):
            return taken  # a whole batch
        if len(taken) < (count if self._drop_last else 1):
            raise StopIteration
        return taken[0] if self._batch_size is None else taken

    def state_dict(self) -> Any:
        """The position."""
        return {**_state_dict(self._source), "begun": self._begun}

    def load_state_dict(self, state: Any) -> None:
        """Go on from that position."""
        self._take_over()
        is_stream = isinstance(self._source, IterableDataset)
        if is_stream:
            self._source._reset()  # it may open what load() needs; a sampler's would draw
        _load_state_dict(self._source, state)
        self._begun = state["begun"]

    def __getstate__(self) -> dict[str, Any]:
        _state_dict(self._source)
        return self.__dict__

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)
        self._take_over()

    def _take_over(self) -> None:
        _newest[self._source] = weakref.ref(self)


#: the pass that moves a source's position
_newest: weakref.WeakKeyDictionary[Any, weakref.ref[Pass]] = weakref.WeakKeyDictionary()


def _state_dict(self: Any) -> dict[str, Any]:
    if not hasattr(self, "_get_state"):
        raise NotImplementedError(f"{type(self).__qualname__} has no save() and load()")
    epoch = self.__dict__["_built"].get("epoch")
    return {"source": self._get_state(), **({} if epoch is None else {"epoch": epoch})}


def _load_state_dict(self: Any, state: dict[str, Any]) -> None:
    if "epoch" in state:
        self.set_epoch(state["epoch"])
    _load_state(self, state["source"])


class Batches:
    """A sampler in batches, for ``batch_sampler=``. Attributes are those of torch's, or its own."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool = False) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[Any]:
        return Pass(self.sampler, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        count = len(self.sampler)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(vars(self)["sampler"], name)


class StreamBatches(Batches):
    """A stream in batches, for ``batch_size=None``."""


IterableDataset.register(StreamBatches)


_EVERY = {"__reduce_ex__": _reduce, "__getstate__": _getstate, "__setstate__": _setstate}

_METHODS: dict[str, dict[str, Any]] = {
    "dataset": {"__getitem__": _getitem, "__getitems__": _getitems},
    "chunks": {"__getitem__": _getitem, "__getitems__": _getitems},
    "batch dataset": {"__getitems__": _getitems_at_once},
    "sampler": {
        "__iter__": lambda self: Pass(self),
        "batches": lambda self, *how, **named: Batches(self, *how, **named),
        "state_dict": _state_dict,
        "load_state_dict": _load_state_dict,
    },
    "stream": {
        "__iter__": lambda self: Pass(self),
        "batches": lambda self, *how, **named: StreamBatches(self, *how, **named),
    },
    "collate": {},
}
