"""Converters: batches with smaller numbers, made where the data is, and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

#: a torch dtype, a numpy dtype, or the name of one, such as ``"float16"``
AnyDtype = torch.dtype | np.dtype[Any] | type | str


class DtypeConverter:
    """Converts all tensors and arrays of a sample or batch, however they are nested.

    Dicts, lists, tuples, named tuples and dataclasses are looked into. Anything else, such as
    Python numbers and text, stays as it is.

    Args:
        dtype: the new type, for example ``torch.float16`` or ``"float16"``.
        check: a value that the new type does not hold is an error. Between floating types,
            rounding is allowed, and a number that would become infinite is not. To or from whole
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
        return _mapped(batch, self._convert, "batch")

    def __repr__(self) -> str:
        return f"DtypeConverter({self._dtype!r})"

    def _convert(self, value: Any, path: str) -> Any:
        return converted(value, self._dtype, path, self._check)


class KeyBasedDtypeConverter:
    """Converts the values of given keys of dicts, at any depth; all else stays as it is.

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
                parts[key] = _mapped(part, self._to(self._dtypes[key]), at)
            else:
                parts[key] = self._walk(part, at, found)
        return _like(value, parts)

    def _to(self, dtype: str) -> Callable[[Any, str], Any]:
        return lambda value, path: converted(value, dtype, path, self._check)


def converted(value: Any, dtype: str, path: str, check: bool) -> Any:
    """A tensor, array or number of numpy's with another type; anything else as it is."""
    if isinstance(value, torch.Tensor):
        kind = getattr(torch, dtype)
        if check and value.is_complex() and not kind.is_complex and value.numel():
            raise _misfit(path, value.flatten()[0].item(), dtype)
        result = value.to(kind)
        if check and result.dtype is not value.dtype:
            _check_tensor(value, result, path)
        return result
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        return _converted_array(value, dtype, path, check)
    return value


def _converted_array(value: Any, dtype: str, path: str, check: bool) -> Any:
    """A numpy array, or number, with another type; its values are checked as a tensor's are."""
    if dtype == "bfloat16":
        raise ValueError(f"{path} is a numpy array, and numpy has no bfloat16: use float16")
    if check and value.dtype.kind == "c" and not dtype.startswith("complex") and value.size:
        raise _misfit(path, value.flat[0].item(), dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        if value.size and value.dtype.kind in "iuf":
            low, high = value.min().item(), value.max().item()
            check = check and not _in_range(low, high, dtype, value.dtype.kind == "f")
        result = value.astype(dtype)
        if not check or result.dtype == value.dtype:
            return result
        if value.dtype.kind == "f" == result.dtype.kind:
            wrong = np.isinf(result) & ~np.isinf(value)
        elif result.dtype.kind == "c":
            return result
        else:
            wrong = (result.astype(value.dtype) != value) | np.isinf(np.asarray(result, float))
    if np.any(wrong):
        first = np.asarray(value)[wrong].flat[0]
        raise _misfit(path, first.item(), dtype)
    return result


def _in_range(lowest: Any, highest: Any, dtype: str, floats: bool) -> bool:
    """All values between two fit, without a look at each; NaN is in no range.

    Args:
        lowest, highest: the two.
        dtype: the new type.
        floats: the values may have fractions.
    """
    kind: torch.dtype = getattr(torch, dtype)
    if kind.is_floating_point:
        info = torch.finfo(kind)
        # Whole numbers up to 2 / eps are exact: 2,048 of a float16.
        most = info.max if floats else 2 / info.eps
        return bool(-most <= lowest and highest <= most)
    if floats or kind.is_complex or kind is torch.bool:
        return False
    return bool(torch.iinfo(kind).min <= lowest and highest <= torch.iinfo(kind).max)


def _check_tensor(value: torch.Tensor, result: torch.Tensor, path: str) -> None:
    name = str(result.dtype).removeprefix("torch.")
    if value.numel() and not value.is_complex() and value.dtype is not torch.bool:
        low, high = (each.item() for each in value.aminmax())
        if _in_range(low, high, name, value.is_floating_point()):
            return
    floats = value.is_floating_point(), result.is_floating_point()
    if all(floats):
        wrong = result.isinf() & ~value.isinf()
    elif result.is_complex():
        return
    else:
        wrong = result.to(value.dtype) != value
        if floats[1]:
            wrong |= result.isinf()
    if wrong.any():
        first = value[wrong].flatten()[0].item()
        raise _misfit(path, first, name)


def _misfit(path: str, value: Any, dtype: str) -> ValueError:
    kind: Any = getattr(torch, dtype)
    if dtype == "bool":
        holds = "False and True"
    elif kind.is_floating_point or kind.is_complex:
        largest = torch.finfo(kind).max
        holds = f"numbers from {-largest:g} to {largest:g}, and of whole numbers not all of these"
    else:
        info = torch.iinfo(kind)
        holds = f"whole numbers from {info.min:,} to {info.max:,}"
    return ValueError(
        f"{path} has the value {value!r}, which {dtype} does not hold: it holds {holds}. Choose a "
        "larger type, or pass check=False to the converter"
    )


def _named(dtype: AnyDtype) -> str:
    """The name of a type, which torch has."""
    name = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
    if not isinstance(dtype, str | torch.dtype):
        name = np.dtype(dtype).name
    if not isinstance(getattr(torch, name, None), torch.dtype):
        raise ValueError(
            f"dtype should be a number type of torch's, such as 'int16', got {dtype!r}"
        )
    return name


def _mapped(value: Any, convert: Callable[[Any, str], Any], path: str) -> Any:
    """A nested value, whose leaves are converted."""
    if isinstance(value, Mapping):
        return _like(value, {k: _mapped(v, convert, f"{path}[{k!r}]") for k, v in value.items()})
    parts = _rebuilt(value, path, lambda part, at: _mapped(part, convert, at))
    return convert(value, path) if parts is value else parts


def _rebuilt(value: Any, path: str, act: Callable[[Any, str], Any]) -> Any:
    """A list, tuple or dataclass of new parts; anything else is itself."""
    if isinstance(value, list | tuple):
        parts = [act(part, f"{path}[{at}]") for at, part in enumerate(value)]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
        return type(value)(parts) if type(value) in (list, tuple) else parts
    if is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value) if each.init]
        return replace(value, **{n: act(getattr(value, n), f"{path}.{n}") for n in names})
    return value


def _like(value: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return parts
    try:
        return type(value)(parts)  # type: ignore[call-arg]
    except TypeError:
        return parts
