"""Pickling of bound classes: the constructor's arguments, and the state where there is one."""

from __future__ import annotations

import copy
import reprlib
from array import array
from collections.abc import Iterator, MappingView
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from ...errors import CannotLoadError, CannotSaveError, Difference, StateMismatch
from ...saving.pickles.by_reference import attributes_of, set_attributes
from .explained import first_line


def reduce(self: Any, protocol: Any) -> Any:
    """For ``__reduce_ex__``; the oldest protocols know no ``__getstate__``.

    A subclass in Python may have a ``__reduce__`` or ``__getnewargs__`` of its own.
    """
    return object.__reduce_ex__(self, max(2, protocol))


def getstate(self: Any) -> dict[str, Any]:
    """For ``__getstate__``: how it was made, its attributes in Python, its state in C++."""
    attributes = attributes_of(self)
    built = attributes.pop("_built", None)
    if built is None:
        raise CannotSaveError(
            f"a {type(self).__qualname__}",
            "it was not made by a constructor that was bound for it",
            "Give all constructors to the call of bind_...; a subclass's __init__ calls super()'s",
        )
    arguments = (*built["args"], *built["kwargs"].values())
    if any(isinstance(each, Iterator | MappingView) for each in arguments):
        raise CannotSaveError(
            f"a {type(self).__qualname__}",
            "its constructor was given an iterator, which can be read only once, or a dict's view",
            "Give it a list",
        )
    saved = {**built, "attributes": attributes}
    if hasattr(self, "_get_state") and (state := state_or_none(self)) is not None:
        saved["state"] = state
    return saved


def setstate(self: Any, saved: dict[str, Any]) -> None:
    """For ``__setstate__``: made anew, and given its state."""
    program = torch.default_generator.get_state()
    try:
        if "rng" in saved:
            torch.default_generator.set_state(saved["rng"])
        # the bound class's own: what a subclass's adds is in the attributes
        bound_of(type(self)).__init__(self, *saved["args"], **saved["kwargs"])
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
    if "epoch" in saved:  # not by a subclass's set_epoch, which may count its calls
        bound_of(type(self)).set_epoch(self, saved["epoch"])
    if "state" in saved:
        load_state(self, saved["state"])
    set_attributes(self, saved["attributes"])  # with them, it may be in the midst of a pass


def bound_of(cls: Any) -> Any:
    """The class of C++ itself, of a subclass."""
    return next(base for base in cls.__mro__ if "_built_by" in vars(base))


def recorded(argument: Any) -> Any:
    """A constructor's argument; containers are copied, as the program may change its own."""
    if type(argument) in (list, tuple, set):
        return type(argument)(map(recorded, argument))
    if type(argument) is dict:
        return {key: recorded(value) for key, value in argument.items()}
    if isinstance(argument, list | set | dict | np.ndarray | bytearray | array):
        return copy.copy(argument)
    return argument


def state_of(self: Any) -> Any:
    """The state in C++, which does not move on with the object: a tensor may be its member."""
    try:
        return _cloned(self._get_state())
    except Exception as error:
        raise CannotSaveError(
            f"a {type(self).__qualname__}",
            f"its save() raises {type(error).__name__}: {first_line(error)}",
            "Let save() write all that the rest of the epoch depends on, in entries with names "
            "like those of variables, no keywords of Python. A stream whose save() writes nothing "
            "is replayed",
        ) from error


def state_or_none(self: Any) -> Any:
    """The state in C++; None for a sampler or stream of which no pass has begun and which has none.

    Its save() needs what the first reset() makes, and its arguments make such an object.
    """
    try:
        return state_of(self)
    except CannotSaveError as error:
        is_new = hasattr(self, "_next") and "_under_way" not in vars(self)
        # of values.h: save() has written, and it will write the same again
        if not is_new or str(error.__cause__).startswith("save() writes"):
            raise
        return None


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
    expected = None
    with suppress(CannotSaveError):  # save() may need what the first reset() makes
        expected = state_of(self)
    try:
        try:
            _set(self, state)
        except Exception:
            if not hasattr(self, "_reset"):
                raise
            _reset_unseen(self)  # load() or save() may need that, too
            _set(self, state)
    except Exception as error:
        if expected is not None:
            with suppress(Exception):  # the one at hand says more
                self._set_state(expected)
        found, wanted = map(_entries, (state, expected))
        raise StateMismatch(
            [Difference(f"state of {type(self).__qualname__}", wanted, found)],
            f"Its load() says: {first_line(error)}. The state may be of another version of the "
            "class: load it with that version",
        ) from error


def _set(self: Any, state: Any) -> None:
    self._set_state(_cloned(state))
    now = state_of(self)
    if type(state) is dict and now.keys() != state.keys():
        raise ValueError("load() does not read all of these entries")


def _reset_unseen(self: Any) -> None:
    """Begin a pass, whose draws the state will replace; the program's generator does not move."""
    program = torch.default_generator.get_state()
    try:
        self._reset()
    finally:
        torch.default_generator.set_state(program)


def _entries(state: Any) -> Any:
    if not isinstance(state, dict):
        return reprlib.repr(state)
    return [f"{name}: {_kind(state[name])}" for name in sorted(state)]


def _kind(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2:  # see to_python() in values.h
        return f"list of {value[0]}"
    return type(value).__name__
