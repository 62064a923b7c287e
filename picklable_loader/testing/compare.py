"""Compares two batches bit for bit, and says where they first differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from ..saving.states.arrays import bytes_of


def difference(expected: Any, found: Any, path: str) -> str | None:
    """The first difference, in words; None if both are equal bit for bit."""
    if type(expected) is not type(found):
        return f"{path}: expected {type(expected).__name__}, found {type(found).__name__}"
    if isinstance(expected, torch.Tensor | np.ndarray):
        if _same_array(expected, found):
            return None
        return _differ(expected, found, path) + _how_far(expected, found)
    if isinstance(expected, Mapping):
        if list(expected) != list(found):
            return _differ(list(expected), list(found), f"{path}.keys()")
        pairs = [(expected[key], found[key], f"{path}[{key!r}]") for key in expected]
    elif is_dataclass(expected):
        names = [field.name for field in fields(expected)]
        pairs = [(getattr(expected, n), getattr(found, n), f"{path}.{n}") for n in names]
    elif isinstance(expected, list | tuple):
        if len(expected) != len(found):
            return _differ(len(expected), len(found), f"len({path})")
        pairs = [(a, b, f"{path}[{at}]") for at, (a, b) in enumerate(zip(expected, found))]
    else:
        same = expected == found or (expected != expected and found != found)
        return None if same else _differ(expected, found, path)
    return next(filter(None, (difference(a, b, at) for a, b, at in pairs)), None)


def _same_array(expected: Any, found: Any) -> bool:
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return False
    if isinstance(expected, np.ndarray):
        return bool(expected.tobytes() == found.tobytes())
    if expected.layout is not torch.strided or expected.is_quantized:
        return repr(expected) == repr(found)
    return bytes_of(expected) == bytes_of(found)


def _differ(expected: Any, found: Any, path: str) -> str:
    return f"{path}: expected {_short(expected)}, found {_short(found)}"


def _how_far(expected: Any, found: Any) -> str:
    """How far two arrays of floats are apart: a repr does not show the last bits."""
    try:
        one, other = (torch.as_tensor(each).double() for each in (expected, found))
        most = float((one - other).abs().max())
    except Exception:  # other shapes, or a dtype without numbers
        return ""
    return f" (at most {most:.1e} apart)"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 160 else text[:157] + "..."
