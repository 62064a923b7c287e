"""Checks of arguments: each raises ValueError or TypeError, and names the argument."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """An argument as an int; numpy's whole numbers are accepted.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is below the ``least`` one that is allowed.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} should be a whole number, got {name}={value!r}") from None
    if least is not None and number < least:
        raise ValueError(f"{name} should be from {least}, got {name}={number}")
    return number


def check_choice(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise ValueError unless the value is one of those allowed."""
    choices = tuple(allowed)
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"{name} should be one of {listed}, got {name}={value!r}")
