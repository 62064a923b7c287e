"""The objects that functions and classes refer to, which a codec carries along with their code."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any


def held_by_code(code: Any) -> Iterator[tuple[str, Any]]:
    """The objects that a function, method or class refers to, each with its step of a path."""
    if isinstance(code, type):
        yield from _held_by_class(code)
    elif isinstance(code, MethodType):
        yield ".__func__", code.__func__
    elif isinstance(code, FunctionType):
        yield from _held_by_function(code)
    elif hasattr(code, "__wrapped__"):  # functools has wrapped it
        yield ".__wrapped__", code.__wrapped__


def _held_by_class(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        inner = getattr(value, "__func__", value)  # of static methods, and those of the class
        if isinstance(value, property):
            inner = value.fget
        if name not in ("__dict__", "__weakref__", "__doc__"):
            yield f".{name}", inner


def _held_by_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f".__closure__[{name!r}]", cell.cell_contents
        except ValueError:  # it is not filled yet
            continue
    for at, value in enumerate(function.__defaults__ or ()):
        yield f".__defaults__[{at}]", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f".__kwdefaults__[{name!r}]", value
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if value is not None and not isinstance(value, ModuleType):
            yield f".__globals__[{name!r}]", value
