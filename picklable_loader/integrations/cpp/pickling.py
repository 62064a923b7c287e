"""Pickling of bound classes: the constructor's arguments, and the state where there is one."""

from __future__ import annotations

import copy
import copyreg
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ...errors import CannotLoadError, CannotSaveError, Difference, StateMismatch
from .build import imported
from .explained import first_line


def reduce(self: Any, protocol: Any) -> Any:
    """For ``__reduce_ex__``; a subclass in Python may have a ``__reduce__`` of its own."""
    cls: Any = type(self)
    if cls.__reduce__ is not object.__reduce__:
        return self.__reduce__()
    saved = self.__getstate__()
    if vars(cls).get("_library"):
        return _new_of_library, (cls._library, cls.__module__, cls.__qualname__), saved
    return copyreg.__newobj__, (cls,), saved  # type: ignore[attr-defined]


def getstate(self: Any) -> dict[str, Any]:
    """For ``__getstate__``: how it was made, its attributes in Python, its state in C++."""
    attributes = dict(self.__dict__)
    built = attributes.pop("_built", None)
    if built is None:
        raise CannotSaveError(
            f"a {type(self).__qualname__}",
            "it was not made by a constructor that was bound for it",
            "Give all constructors to the call of bind_...; a subclass's __init__ calls super()'s",
        )
    if any(isinstance(each, Iterator) for each in (*built["args"], *built["kwargs"].values())):
        raise CannotSaveError(
            f"a {type(self).__qualname__}",
            "its constructor was given an iterator, which can be read only once",
            "Give it a list",
        )
    saved = {**built, "attributes": attributes}
    if hasattr(self, "_get_state"):
        saved["state"] = state_of(self)
    return saved


def setstate(self: Any, saved: dict[str, Any]) -> None:
    """For ``__setstate__``: made anew, and given its state."""
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
        load_state(self, saved["state"])


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


def recorded(argument: Any) -> Any:
    """A constructor's argument; containers are copied, as the program may change its own."""
    if type(argument) in (list, tuple, set):
        return type(argument)(map(recorded, argument))
    if type(argument) is dict:
        return {key: recorded(value) for key, value in argument.items()}
    return argument


def state_of(self: Any) -> Any:
    """The state in C++, which does not move on with the object: a tensor may be its member."""
    return _cloned(self._get_state())


def _cloned(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.detach().clone().requires_grad_(state.requires_grad)
    if type(state) in (list, tuple):
        return type(state)(map(_cloned, state))
    if type(state) is dict:
        return {key: _cloned(value) for key, value in state.items()}
    return copy.copy(state)


def load_state(self: Any, state: Any) -> None:
    """Set the state in C++; if it is refused, the old one is back."""
    expected = state_of(self)
    try:
        self._set_state(_cloned(state))
    except Exception as error:
        self._set_state(expected)
        found, wanted = map(_entries, (state, expected))
        raise StateMismatch(
            [Difference(f"state of {type(self).__qualname__}", wanted, found)],
            f"Its load() says: {first_line(error)}. The state may be of another version of the "
            "class: load it with that version",
        ) from error


def _entries(state: Any) -> Any:
    return sorted(state) if isinstance(state, dict) else reprlib.repr(state)
