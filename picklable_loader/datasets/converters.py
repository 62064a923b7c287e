"""Converters: batches with smaller numbers, made where the data is, and checked."""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import fields, is_dataclass
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

#: a torch dtype, a numpy dtype, or the name of one, such as ``"float16"``
AnyDtype = torch.dtype | np.dtype[Any] | type | str


class DtypeConverter:
    """Converts all tensors and arrays of a sample or batch, however they are nested.

    Dicts, lists, tuples, named tuples and dataclasses are looked into. Anything else, such as
    Python numbers and text, stays as it is. A subclass of dict or list stays one, with its
    attributes; a mapping that cannot be built again becomes a dict.

    Args:
        dtype: the new type, for example ``torch.float16`` or ``"float16"``.
        check: a value that the new type does not hold is an error. Between floating types,
            rounding is allowed. A number beyond the largest one is not, nor an infinity that the
            new type lacks. To or from whole
            numbers and bools, each value has to be equal afterwards: 70,000 is no int16, NaN and
            0.5 are no int32, and 2049 is no float16.

    Raises:
        ValueError: torch or numpy has no such type.
    """

    __module__ = "picklable_loader"

    def __init__(self, dtype: AnyDtype, check: bool = True) -> None:
        self._dtype = _named(dtype)
        self._check = check

    def __call__(self, batch: Any) -> Any:
        """The sample or batch, converted.

        Raises:
            ValueError: a value does not fit; it names the value, where it is, and the range.
        """
        return _mapped(batch, partial(_converted, dtype=self._dtype, check=self._check), "batch")

    def __repr__(self) -> str:
        return f"DtypeConverter({self._dtype!r})"


class KeyBasedDtypeConverter:
    """Converts the values of given keys of dicts, at any depth; all else stays as it is.

    Python numbers of these keys stay as they are, too, and are checked.

    Args:
        dtypes: by key, the new type: ``{"image": "float16", "label": torch.int32}``.
        check: see `DtypeConverter`. Each key has to be in each sample or batch.

    Raises:
        ValueError: torch or numpy has no such type.
    """

    __module__ = "picklable_loader"

    def __init__(self, dtypes: Mapping[Any, AnyDtype], check: bool = True) -> None:
        self._dtypes = {key: _named(dtype) for key, dtype in dtypes.items()}
        self._check = check

    def __call__(self, batch: Any) -> Any:
        """The sample or batch, converted.

        Raises:
            ValueError: a value does not fit; it names the value, its key, and the range.
            The same if the batch has none of a key.
        """
        found: set[Any] = set()
        result = self._walk(batch, "batch", found)
        if self._check and (missing := self._dtypes.keys() - found):
            names = ", ".join(sorted(map(repr, missing)))
            raise ValueError(
                f"KeyBasedDtypeConverter was given {names}, and the batch has no such key: correct "
                "it, or pass check=False if not every batch has it"
            )
        return result

    def __repr__(self) -> str:
        return f"KeyBasedDtypeConverter({self._dtypes!r})"

    def _walk(self, value: Any, path: str, found: set[Any]) -> Any:
        if not isinstance(value, Mapping):
            return _rebuilt(value, path, lambda part, at: self._walk(part, at, found))
        parts = {}
        for key, part in value.items():
            at = f"{path}[{key!r}]"
            if key in self._dtypes:
                found.add(key)
                to = partial(_of_key, dtype=self._dtypes[key], check=self._check)
                parts[key] = _mapped(part, to, at)
            else:
                parts[key] = self._walk(part, at, found)
        return _like(value, parts)


def _converted(value: Any, path: str, dtype: str, check: bool) -> Any:
    """A tensor, array or number of numpy's with another type; anything else as it is."""
    kind: torch.dtype = getattr(torch, dtype)
    if isinstance(value, torch.Tensor):
        if check and value.dtype is not kind:
            _check(_array_of(value, path), kind, path)
        return value.to(kind)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        if not _in_numpy(kind):
            raise ValueError(f"{path} is a numpy array, and numpy has no {dtype}: use float16")
        if check and value.dtype != dtype:
            _check(np.asarray(value), kind, path)
        with np.errstate(all="ignore"):
            return value.astype(dtype)
    return value


def _of_key(value: Any, path: str, dtype: str, check: bool) -> Any:
    """The same for a value of a key. A Python number has no type, and is checked all the same."""
    kind: torch.dtype = getattr(torch, dtype)
    if check and isinstance(value, int | float | complex) and not isinstance(value, np.generic):
        real = not isinstance(value, complex)
        if not (real and _in_range(value, value, kind, isinstance(value, float))):
            if (number := np.asarray(value)).dtype.hasobject:  # more than 64 bits
                raise _misfit(path, value, kind)
            _check(number, kind, path)
    return _converted(value, path, dtype, check)


def _array_of(tensor: torch.Tensor, path: str) -> np.ndarray[Any, Any]:
    """The values of a tensor, in its own memory unless numpy has no such type."""
    if not _in_numpy(tensor.dtype):
        tensor = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)
    try:
        return tensor.numpy(force=True)
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"{path} is a tensor whose values cannot be checked ({error}): make it a dense one, or "
            "pass check=False to the converter"
        ) from None


def _check(value: np.ndarray[Any, Any], kind: torch.dtype, path: str) -> None:
    """Raise unless a type holds each value of an array; see `DtypeConverter`."""
    if not value.size or value.dtype.kind == "b":
        return
    if value.dtype.kind == "c":
        if not kind.is_complex:
            raise _misfit(path, value.flat[0].item(), kind)
    else:
        if value.dtype == np.float16:  # numpy compares these one at a time
            value = value.astype(np.float32)
        if _in_range(value.min().item(), value.max().item(), kind, value.dtype.kind == "f"):
            return
    with np.errstate(all="ignore"):
        wrong = _not_held(value, kind)
    if wrong.any():
        raise _misfit(path, value[wrong].flat[0].item(), kind)


def _in_range(lowest: Any, highest: Any, kind: torch.dtype, floats: bool) -> bool:
    """All values between two fit, without a look at each; NaN is in no range.

    Args:
        lowest, highest: the two.
        kind: the new type.
        floats: the values may have fractions.
    """
    if kind.is_floating_point or kind.is_complex:
        # Whole numbers up to 2 / eps are exact: 2,048 of a float16.
        most = torch.finfo(kind).max if floats else 2 / _eps(kind)
        return bool(-most <= lowest and highest <= most)
    if floats or kind is torch.bool:
        return False
    return bool(torch.iinfo(kind).min <= lowest and highest <= torch.iinfo(kind).max)


def _not_held(value: np.ndarray[Any, Any], kind: torch.dtype) -> np.ndarray[Any, Any]:
    """Which values of an array a type does not hold."""
    if kind is torch.bool:
        return np.asarray((value != 0) & (value != 1))
    if not (kind.is_floating_point or kind.is_complex):
        info = torch.iinfo(kind)
        # Not `> info.max`: 2**63 - 1 is no float64, and 2**63 is the next one.
        outside = (value < info.min) | (value >= info.max + 1)
        return np.asarray(outside | (value != np.trunc(value)))
    if value.dtype.kind == "c":
        return np.asarray(_out_of_range(value.real, kind) | _out_of_range(value.imag, kind))
    if value.dtype.kind == "f":
        return _out_of_range(value, kind)
    numbers, whole = _floating(value, kind).real, np.iinfo(value.dtype)
    inside = (numbers >= whole.min) & (numbers < float(whole.max + 1))
    return np.asarray(~inside | (np.where(inside, numbers, 0).astype(value.dtype) != value))


def _out_of_range(value: np.ndarray[Any, Any], kind: torch.dtype) -> np.ndarray[Any, Any]:
    """Which floating numbers are beyond a type's largest, or infinite where the type is not."""
    beyond = np.abs(value) > torch.finfo(kind).max
    infinite = torch.tensor(math.inf).to(kind).to(torch.complex128).real.isinf().item()
    return np.asarray(beyond & np.isfinite(value) if infinite else beyond)


def _eps(kind: torch.dtype) -> float:
    """The distance from 1 to the next larger number."""
    return 0.25 if kind is torch.float8_e5m2fnuz else torch.finfo(kind).eps  # torch says 0.125


def _floating(value: np.ndarray[Any, Any], kind: torch.dtype) -> np.ndarray[Any, Any]:
    """Values rounded to a floating or complex type, in the widest of numpy's."""
    if _in_numpy(kind):
        return value.astype(_name(kind)).astype(np.complex128 if kind.is_complex else np.float64)
    wide = torch.complex128 if kind.is_complex else torch.float64
    return torch.from_numpy(value).to(kind).to(wide).numpy()


def _misfit(path: str, value: Any, kind: torch.dtype) -> ValueError:
    if kind is torch.bool:
        holds = "False and True"
    elif kind.is_floating_point or kind.is_complex:
        largest = torch.finfo(kind).max
        holds = f"numbers from {-largest:g} to {largest:g}, and of whole numbers not all of these"
    else:
        info = torch.iinfo(kind)
        holds = f"whole numbers from {info.min:,} to {info.max:,}"
    return ValueError(
        f"{path} has the value {value!r}, which {_name(kind)} does not hold: it holds {holds}. "
        "Choose a larger type, or pass check=False to the converter"
    )


def _named(dtype: AnyDtype) -> str:
    """The name of a type of numbers that torch has: ``"float32"`` for ``"float"`` as well."""
    refusal = f"dtype should be a number type of torch's, such as 'int16', got {dtype!r}"
    if dtype is None:  # numpy's default would be float64
        raise ValueError(refusal)
    name = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
    if not isinstance(dtype, str | torch.dtype):
        name = np.dtype(dtype).name
    kind = getattr(torch, name, None)
    try:
        if isinstance(kind, torch.dtype) and "e8m0" not in name:  # it has no sign, and no zero
            torch.zeros(1, device="cpu").to(kind)
            return _name(kind)
    except RuntimeError:  # "qint8", "bits8"
        pass
    raise ValueError(refusal)


def _in_numpy(kind: torch.dtype) -> bool:
    """numpy has the type; it has no bfloat16, no float8 and no complex32."""
    floating = kind.is_floating_point or kind.is_complex
    return not floating or kind in (
        *(torch.float16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
    )


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _mapped(value: Any, convert: Callable[[Any, str], Any], path: str) -> Any:
    """A nested value, whose leaves are converted."""
    if isinstance(value, Mapping):
        return _like(value, {k: _mapped(v, convert, f"{path}[{k!r}]") for k, v in value.items()})
    parts = _rebuilt(value, path, lambda part, at: _mapped(part, convert, at))
    return convert(value, path) if parts is value else parts


def _rebuilt(value: Any, path: str, act: Callable[[Any, str], Any]) -> Any:
    """A list, tuple or dataclass of new parts; anything else is itself."""
    if isinstance(value, PackedSequence):  # its other tensors are lengths and orders
        return value._replace(data=act(value.data, f"{path}.data"))
    if isinstance(value, list | tuple):
        parts = [act(part, f"{path}[{at}]") for at, part in enumerate(value)]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
        if type(value) is tuple:
            return tuple(parts)
        if isinstance(value, list):
            alike = copy(value)
            alike[:] = parts
            return alike
        return value if all(map(is_, parts, value)) else parts
    if is_dataclass(value) and not isinstance(value, type):
        # Not dataclasses.replace: __post_init__ would run a second time.
        result = copy(value)
        for name in (each.name for each in fields(value) if hasattr(value, each.name)):
            # A frozen dataclass has no other way.
            object.__setattr__(result, name, act(getattr(value, name), f"{path}.{name}"))
        return result
    return value


def _like(value: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """A mapping of other values, in the class of one if that can be: what a batch has besides."""
    if type(value) is dict:
        return parts
    for make in (_copied, lambda value, parts: type(value)(parts)):
        with suppress(Exception):  # people's classes; an immutable one takes no item
            result = make(value, parts)
            if result.keys() == parts.keys():
                return result
    return parts


def _copied(value: Any, parts: dict[Any, Any]) -> Any:
    """A copy with other values, whose attributes are as they were."""
    if not isinstance(value, dict | UserDict) and not hasattr(value, "__copy__"):
        raise TypeError("its copy may share the values")
    result = copy(value)
    if getattr(value, "__dict__", None) is value:  # a dict whose items are its attributes
        result.__dict__ = result
    for key, part in parts.items():  # some classes have no update
        result[key] = part
    return result
