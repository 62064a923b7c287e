"""Plain: values as what any saved state may hold, and back with their types.

Numbers, text, None and lists of them stand for themselves, so that JSON can hold them; anything
else is a dict that says what it is. Tensors and arrays are tensors, which only ``torch.save`` and
pickle can hold.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch

__all__ = ["SYMPTOMS", "NotPlain", "alike", "decode", "encode", "encode_any", "is_plain"]

#: What code raises that meets damaged data; anything else has another reason.
SYMPTOMS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)

_SCALARS = {int, str, float, bool, type(None)}
#: kinds of numpy's scalars that have a like in Python
_NUMBERS = "biufcSUmM"


class NotPlain(TypeError):
    """A value that no state can hold without code."""


def encode(value: Any) -> Any:
    """The plain form of a value; shares nothing with it.

    Raises:
        NotPlain: it has none.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list:
        if _SCALARS.issuperset(map(type, value)):
            return value.copy()
        return [encode(item) for item in value]
    if kind in _ENCODERS:
        return {"as": kind.__name__, "value": _ENCODERS[kind](value)}
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
        return _encode_number(value)
    raise NotPlain(f"a {kind.__qualname__}")


def is_plain(value: Any) -> bool:
    """``torch.load(weights_only=True)`` takes it as it is."""
    kind = type(value)
    if kind in _SCALARS or kind in (bytes, complex, torch.Tensor):
        return True
    if kind is dict or kind is OrderedDict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    return kind in (list, tuple, set) and all(map(is_plain, value))


def encode_any(value: Any) -> Any:
    """The plain form of a value, or a form that holds the value itself."""
    try:
        return encode(value)
    except NotPlain:
        return {"as": "object", "value": value}


def decode(form: Any) -> Any:
    """The value of a plain form.

    Raises:
        ValueError, TypeError, KeyError: the form is damaged.
    """
    if type(form) is not list and type(form) is not dict:
        return form
    _check_tree(form)
    return _decode(form)


def _check_tree(form: Any) -> None:
    """Raise ValueError if a part stands in two places, as no form that was written has it.

    Forty lists of two, each within the next, would be a million million values.
    """
    seen, waiting = set(), [form]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            raise ValueError("a part stands in two places")
        seen.add(id(part))
        if type(part) is dict and part.get("as") == "object":
            continue  # not a form, but the value itself
        parts = part.values() if type(part) is dict else part
        waiting += [each for each in parts if type(each) in (list, dict, tuple)]


def _decode(form: Any) -> Any:
    if type(form) is list:
        return [_decode(item) for item in form]
    if type(form) is not dict:
        return form
    return _DECODERS[form["as"]](form)


def alike(one: Any, other: Any) -> bool:
    """Two plain forms are of equal values."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _equal(one, other)
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is np.ndarray:  # within a form that holds the value itself
        return one.dtype == other.dtype and np.array_equal(one, other)
    if kind is list and _SCALARS.issuperset(map(type, one)):
        return bool(one == other)
    if kind is dict:
        return one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
    if kind is list:
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.layout != other.layout:
        return False
    if one.layout is not torch.strided:  # torch compares no others
        one, other = one.to_dense(), other.to_dense()
    return torch.equal(one, other)


def _encode_number(value: np.generic) -> dict[str, Any]:
    item = value.item()
    if isinstance(item, np.generic) or value.dtype.kind in "mM":  # Python has no such number
        return {"as": "scalar", "value": _encode_array(np.asarray(value))}
    return {"as": "number", "dtype": value.dtype.str, "value": encode(item)}


def _decode_scalar(form: dict[str, Any]) -> Any:
    array = _decode_array(form)
    if array.shape:
        raise ValueError(f"a scalar has no shape, and this one has {array.shape}")
    return array[()]


def _encode_array(array: Any) -> Any:
    try:
        if array.dtype.kind in "biufc" and array.dtype.isnative:
            return torch.from_numpy(array.copy())
    except TypeError:  # numbers that torch has not
        pass
    if array.dtype.hasobject or array.dtype.kind not in "biufcSUMmV":
        raise NotPlain(f"an array of {array.dtype}")
    data = b64encode(array.tobytes()).decode()
    return [_encode_dtype(array.dtype), list(array.shape), data]


def _encode_dtype(dtype: np.dtype[Any]) -> Any:
    """Its name; for records, each field's name, place and type, and the size of all."""
    if dtype.fields is None:
        if dtype.subdtype is not None:
            return [_encode_dtype(dtype.subdtype[0]), list(dtype.subdtype[1])]
        return dtype.str
    names = dtype.names or ()
    fields = [(name, *dtype.fields[name][:2]) for name in names]
    places = [[name, place, _encode_dtype(kind)] for name, kind, place in fields]
    return {"fields": places, "size": dtype.itemsize}


def _decode_dtype(form: Any) -> np.dtype[Any]:
    if type(form) is list:
        kind, shape = form
        form = _decode_dtype(kind), tuple(shape)
    elif type(form) is dict:
        names, places, kinds = map(list, zip(*form["fields"], strict=True))
        formats = [_decode_dtype(kind) for kind in kinds]
        form = {
            "names": names, "offsets": places, "formats": formats, "itemsize": form["size"],
        }  # fmt: skip
    found: np.dtype[Any] = np.dtype(form)
    return found


def _decode_number(form: dict[str, Any]) -> Any:
    dtype = np.dtype(form["dtype"])
    if dtype.kind not in _NUMBERS:  # np.void(n) would be n bytes
        raise ValueError(f"no number is of {dtype}")
    return dtype.type(_decode(form["value"]))


def _decode_array(form: dict[str, Any]) -> Any:
    held = form["value"]
    if isinstance(held, torch.Tensor):
        return _whole(held).numpy().copy()
    name, shape, data = held
    dtype = _decode_dtype(name)
    if dtype.hasobject or dtype.kind not in "biufcSUMmV":
        raise ValueError(f"no array is of {dtype}")
    return np.frombuffer(b64decode(data, validate=True), dtype).reshape(shape).copy()


def _decode_torchs_dtype(form: dict[str, Any]) -> torch.dtype:
    found = getattr(torch, form["value"])
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {form['value']}")
    return found


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that has memory for each of its numbers: 2**40 of them may be views of one."""
    if tensor.layout is torch.strided and not tensor.is_quantized:
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError("a tensor of more numbers than it holds")
    return tensor


def _encode_pairs(pairs: dict[Any, Any]) -> list[Any]:
    return [[encode(key), encode(value)] for key, value in pairs.items()]


def _encode_items(items: Any) -> list[Any]:
    return encode(list(items))  # type: ignore[no-any-return]


def _encode_defaults(value: defaultdict[Any, Any]) -> list[Any]:
    name = getattr(value.default_factory, "__name__", None)
    if _FACTORIES.get(name) is not value.default_factory:
        raise NotPlain(f"a defaultdict of {value.default_factory!r}")
    return [name, _encode_pairs(value)]


def _encode_time(value: datetime | time) -> str:
    if value.fold or type(value.tzinfo) not in (timezone, type(None)):
        raise NotPlain(f"a time in {value.tzinfo!r}")
    return value.isoformat()


def _decode_pairs(pairs: list[Any]) -> dict[Any, Any]:
    return {_decode(key): _decode(value) for key, value in pairs}


def _decode_defaults(form: dict[str, Any]) -> defaultdict[Any, Any]:
    factory, pairs = form["value"]
    return defaultdict(_FACTORIES[factory], _decode_pairs(pairs))


#: what a defaultdict may begin its values with
_BEGINNINGS: Any = (bool, complex, float, int, str, bytes, tuple, list, set, dict, Counter, deque)
_FACTORIES: dict[str | None, Any] = {kind.__name__: kind for kind in _BEGINNINGS} | {None: None}

_ENCODERS: dict[type[Any], Callable[[Any], Any]] = {
    tuple: _encode_items,
    set: _encode_items,
    frozenset: _encode_items,
    deque: lambda value: [value.maxlen, _encode_items(value)],
    dict: _encode_pairs,
    OrderedDict: _encode_pairs,
    Counter: _encode_pairs,
    defaultdict: _encode_defaults,
    datetime: _encode_time,
    time: _encode_time,
    date: date.isoformat,
    timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    type(Path()): str,
    PurePosixPath: str,
    PureWindowsPath: str,
    bytes: lambda value: b64encode(value).decode(),
    bytearray: lambda value: b64encode(value).decode(),
    complex: lambda value: [value.real, value.imag],
    torch.dtype: lambda value: str(value).partition(".")[2],
    torch.device: str,
    torch.Size: list,
    torch.Tensor: lambda value: value.detach().clone(),
    np.ndarray: _encode_array,
}

_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tuple": lambda form: tuple(_decode(form["value"])),
    "set": lambda form: set(_decode(form["value"])),
    "frozenset": lambda form: frozenset(_decode(form["value"])),
    "deque": lambda form: deque(_decode(form["value"][1]), form["value"][0]),
    "dict": lambda form: _decode_pairs(form["value"]),
    "OrderedDict": lambda form: OrderedDict(_decode_pairs(form["value"])),
    "Counter": lambda form: Counter(_decode_pairs(form["value"])),
    "defaultdict": _decode_defaults,
    "datetime": lambda form: datetime.fromisoformat(form["value"]),
    "time": lambda form: time.fromisoformat(form["value"]),
    "date": lambda form: date.fromisoformat(form["value"]),
    "timedelta": lambda form: timedelta(*form["value"]),
    "PosixPath": lambda form: Path(form["value"]),  # a file's name in this system
    "WindowsPath": lambda form: Path(form["value"]),
    "PurePosixPath": lambda form: PurePosixPath(form["value"]),
    "PureWindowsPath": lambda form: PureWindowsPath(form["value"]),
    "bytes": lambda form: b64decode(form["value"], validate=True),
    "bytearray": lambda form: bytearray(b64decode(form["value"], validate=True)),
    "complex": lambda form: complex(*form["value"]),
    "dtype": _decode_torchs_dtype,
    "device": lambda form: torch.device(form["value"]),
    "Size": lambda form: torch.Size(form["value"]),
    "Tensor": lambda form: _whole(form["value"]).clone(),
    "ndarray": _decode_array,
    "number": _decode_number,
    "scalar": _decode_scalar,
    "object": lambda form: form["value"],
}
