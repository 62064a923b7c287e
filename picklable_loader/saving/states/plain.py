"""Encodes values as plain ones that a saved state may hold, and decodes them with their types.

Numbers, text, None and lists of them are written as they are. Anything else is a dict that names
its type, for example ``{"as": "tuple", "value": [1, 2]}``. So a state is JSON, and tensors, which
``torch.save`` and pickle hold. No other object is ever in one.
"""

from __future__ import annotations

import copy
import io
import pickle
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from functools import cached_property
from itertools import chain, islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch

from ...errors import CannotSaveError
from .arrays import (
    TORCH_DTYPES,
    NotPlain,
    decode_array,
    decode_dtype,
    decode_tensor,
    encode_array,
    encode_tensor,
)

#: types of values that are their own form
SCALARS = {int, str, float, bool, type(None)}
#: kinds of numpy's scalars that have a like in Python
_NUMBERS = "biufcSUmM"

#: levels of containers within a value; its form has up to three for each
_LEVELS = 100
DEEPEST = 4 * _LEVELS


class Held:
    """A value as it is, where it has no plain form. A pickle of an iterator may hold it.

    No state does: whoever reads one takes dicts, lists, numbers, text and tensors only.
    """

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(frozen=True)
class Later:
    """A container of numbers, text and such containers, which is encoded when a state needs it.

    A sampler may hold a million records: C writes and compares them in tens of milliseconds.
    """

    written: bytes

    @classmethod
    def of(cls, value: Any) -> Later | None:
        """None: there is something else in it."""
        pickler = _Pickler(buffer := io.BytesIO(), 4)
        pickler.fast = True  # no part is written by a reference: equal values give equal bytes
        try:
            pickler.dump(value)
        except (NotPlain, ValueError, RecursionError):
            return None
        return cls(buffer.getvalue())

    @property
    def value(self) -> Any:
        return pickle.loads(self.written)

    @cached_property
    def form(self) -> Any:
        return encode(self.value)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        raise NotPlain(f"a {type(value).__qualname__}")


def encode(value: Any, level: int = 0) -> Any:
    """The plain form of a value within ``level`` others, as a copy; NotPlain if it has none."""
    kind = type(value)
    if kind in SCALARS:
        is_long = kind is int and value.bit_length() > _MOST_BITS
        return {"as": "int", "value": hex(value)} if is_long else value
    if kind is list and (form := _encode_scalars(value)) is not None:
        return form
    if kind is list or kind in _CONTAINERS:
        if level >= _LEVELS:
            raise NotPlain(_TOO_DEEP)
        if kind is list:
            return _encode_items(value, level + 1)
        return {"as": kind.__name__, "value": _CONTAINERS[kind](value, level + 1)}
    if kind is torch.Tensor:
        return {"as": "Tensor", **encode_tensor(value)}
    if kind in _ENCODERS:
        return _encode_leaf(kind, value)
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
        return _encode_number(value)
    raise NotPlain(f"a {kind.__module__}.{kind.__qualname__}")


def encode_state(value: Any, what: str, live: bool = False) -> Any:
    """The form in which a state, or with ``live`` a pickled iterator, has what people's code gave.

    Without ``live`` a value that has no plain form is a CannotSaveError, which names its path and
    class; ``what`` is the name of the whole there.
    """
    try:
        return encode(value)
    except NotPlain as reason:
        if live:
            return copy.deepcopy(Held(value))
        path, found = _culprit(value, "", reason)
        raise CannotSaveError(
            f"{what}{path}".removesuffix(": "),
            f"it is {found}, and a state holds values only",
            "Give numbers, text, containers, arrays or tensors there; or pickle the iterator "
            "instead of taking its state_dict",
        ) from None


def _culprit(value: Any, path: str, reason: NotPlain) -> tuple[str, NotPlain]:
    """The innermost part that has no plain form, and what it is."""
    if isinstance(value, dict):
        parts = [(f"[{key!r}]", each) for key, each in value.items()]
    elif isinstance(value, list | tuple | deque):
        parts = [(f"[{at}]", each) for at, each in enumerate(value)]
    else:
        parts = []
    for name, part in () if str(reason) == _TOO_DEEP else parts:
        try:
            encode(part)
        except NotPlain as inner:
            return _culprit(part, path + name, inner)
    return path, reason


_TOO_DEEP = f"nested more than {_LEVELS} levels deep, or contains itself"


# --- forms ---------------------------------------------------------------------------------------


def decode(form: Any) -> Any:
    """The value of a plain form, which may be damaged (SYMPTOMS); shares nothing with it."""
    if type(form) is Held:
        return copy.deepcopy(form.value)
    if type(form) is Later:
        return form.value
    _check_tree(form)
    return _decode(form)


def _check_tree(form: Any) -> None:
    """Raise ValueError if a part is there twice, as no form that was written has it.

    Forty lists of two, each within the next, would be a million million values.
    """
    seen, waiting = set(), [form]
    while waiting:
        part = waiting.pop()
        if type(part) not in (list, dict):
            continue
        if id(part) in seen:
            raise ValueError("a part is there twice")
        seen.add(id(part))
        waiting += part.values() if type(part) is dict else part


def is_endless(value: Any) -> bool:
    """A copy of a value would be far larger: it contains itself, or has parts in many places.

    Forty tuples of two, each twice within the next, would be a million million values.
    """
    seen: set[int] = set()
    waiting, first, again = [value], 0, 0
    while waiting and again <= _MOST_TIMES * first + _FREE_PARTS:
        parts = parts_of(part := waiting.pop())
        if id(part) in seen:
            again += 1 + len(parts)
        elif parts:
            seen.add(id(part))
            first += len(parts)
        waiting += parts
    return bool(waiting)


#: a program's constants, and a few lists, are in several places
_MOST_TIMES, _FREE_PARTS = 10, 10**5


def parts_of(value: Any) -> list[Any]:
    """The items of a container, and the keys and values of a dict; none of anything else."""
    if type(value) in MAPPINGS:
        return [*dict.keys(value), *dict.values(value)]
    return list(value) if type(value) is list or type(value) in _CONTAINERS else []


def check_hashes(keys: Iterable[Any]) -> None:
    """Raise ValueError if many keys have one hash, which takes a dict for ever."""
    hashes = Counter(map(hash, keys))
    if max(hashes.values(), default=0) > _MOST_ALIKE:
        raise ValueError("keys that were chosen to have one hash")


#: by chance there are not even three
_MOST_ALIKE = 100


def _decode(form: Any) -> Any:
    kind = type(form)
    if kind in SCALARS:
        return form
    if kind is list:
        return [_decode(item) for item in form]
    if kind is not dict:
        raise TypeError(f"a {kind.__qualname__} is no plain form")
    return _DECODERS[form["as"]](form)


def alike(one: Any, other: Any) -> bool:
    """Two plain forms are of equal values."""
    if one is other:
        return True
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    kind = type(one)
    if kind is not type(other):
        if kind is Later:
            return bool(one == Later.of(decode(other)))
        return type(other) is Later and alike(other, one)
    if kind is Held:
        try:
            return bool(one.value == other.value)
        except Exception:  # of arrays in it, or people's own
            return False
    if kind is dict:
        return one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
    if kind is list and not SCALARS.issuperset(map(type, one)):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


#: bits of the longest int that torch's safe reader takes
_MOST_BITS = 2000


def _encode_scalars(values: list[Any]) -> Any:
    """The form of a list of scalars, or of tuples of these; None: it is of something else."""
    kinds, flat = set(map(type, values)), values
    if in_rows := kinds == {tuple}:
        flat = list(chain.from_iterable(values))
        kinds = set(map(type, flat))
    if not kinds <= SCALARS:
        return None
    if int in kinds:
        whole_numbers = flat if len(kinds) == 1 else [each for each in flat if type(each) is int]
        if max(map(int.bit_length, whole_numbers)) > _MOST_BITS:
            return None
    return _encode_rows(values) if in_rows else values.copy()


def _encode_number(value: np.generic) -> dict[str, Any]:
    item = value.item()
    if isinstance(item, np.generic) or value.dtype.kind in "mM":  # Python has no such number
        return {"as": "scalar", "value": encode_array(np.asarray(value))}
    return {"as": "number", "dtype": value.dtype.str, "value": encode(item)}


def _decode_scalar(form: dict[str, Any]) -> Any:
    array = decode_array(form["value"])
    if array.shape:
        raise ValueError(f"a scalar has no shape, and this one has {array.shape}")
    return array[()]


def _decode_number(form: dict[str, Any]) -> Any:
    dtype = decode_dtype(form["dtype"])
    if dtype.fields is not None or dtype.kind not in _NUMBERS:  # np.void(n) would be n bytes
        raise ValueError(f"no number is of {dtype}")
    return dtype.type(_decode(form["value"]))


def _encode_leaf(kind: type[Any], value: Any) -> dict[str, Any]:
    form = {"as": kind.__name__, "value": _ENCODERS[kind](value)}
    if kind in (datetime, time) and value.fold:
        form["fold"] = value.fold
    return form


def _encode_rows(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Tuples of scalars, one after the other: samplers hold millions of them."""
    sizes, values = list(map(len, rows)), list(chain.from_iterable(rows))
    alike = len(set(sizes)) == 1 and values
    return {"as": "rows", "sizes": sizes[0] if alike else sizes, "value": values}


def _decode_rows(form: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The list of tuples: ``{"as": "rows", "sizes": 2, "value": [5, 0.5, 7, 0.1]}``."""
    sizes, values = form["sizes"], form["value"]
    if type(values) is not list or not SCALARS.issuperset(map(type, values)):
        raise ValueError("rows hold numbers and text")
    rest, count = iter(values), len(values)
    counts = [sizes] * (count // sizes) if type(sizes) is int and 0 < sizes <= count else sizes
    if type(counts) is not list or min(counts) < 0 or sum(counts) != count:
        raise ValueError(f"{count} values in rows of {sizes}")
    return [tuple(islice(rest, size)) for size in counts]


def _encode_pairs(pairs: dict[Any, Any], level: int) -> list[Any]:
    return [[encode(key, level), encode(value, level)] for key, value in pairs.items()]


def _encode_items(items: Any, level: int) -> list[Any]:
    return [encode(item, level) for item in items]


def _encode_defaults(value: defaultdict[Any, Any], level: int) -> list[Any]:
    name = getattr(value.default_factory, "__name__", None)
    if _FACTORIES.get(name) is not value.default_factory:
        raise NotPlain(f"a defaultdict of {value.default_factory!r}")
    return [name, _encode_pairs(value, level)]


def _encode_time(value: datetime | time) -> str:
    if type(value.tzinfo) not in (timezone, type(None)):
        raise NotPlain(f"a time in {value.tzinfo!r}")
    return value.isoformat()


def _folded(value: Any, form: dict[str, Any]) -> Any:
    return value.replace(fold=form["fold"]) if "fold" in form else value


def _decode_pairs(pairs: list[Any]) -> dict[Any, Any]:
    decoded = [(_decode(key), _decode(value)) for key, value in pairs]
    check_hashes(key for key, _ in decoded)
    return dict(decoded)


def _decode_items(form: dict[str, Any]) -> list[Any]:
    items: list[Any] = _decode(form["value"])
    check_hashes(items)
    return items


def _decode_defaults(form: dict[str, Any]) -> defaultdict[Any, Any]:
    factory, pairs = form["value"]
    return defaultdict(_FACTORIES[factory], _decode_pairs(pairs))


#: what a defaultdict may begin its values with
_BEGINNINGS: Any = (bool, complex, float, int, str, bytes, tuple, list, set, dict, Counter, deque)
_FACTORIES: dict[str | None, Any] = {kind.__name__: kind for kind in _BEGINNINGS} | {None: None}

_CONTAINERS: dict[type[Any], Callable[[Any, int], Any]] = {
    tuple: _encode_items,
    set: _encode_items,
    frozenset: _encode_items,
    deque: lambda value, level: [value.maxlen, _encode_items(value, level)],
    dict: _encode_pairs,
    OrderedDict: _encode_pairs,
    Counter: _encode_pairs,
    defaultdict: _encode_defaults,
}

#: the types of dicts
MAPPINGS = {dict, OrderedDict, Counter, defaultdict}

_ENCODERS: dict[type[Any], Callable[[Any], Any]] = {
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
    np.ndarray: encode_array,
}

_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "rows": _decode_rows,
    "tuple": lambda form: tuple(_decode(form["value"])),
    "set": lambda form: set(_decode_items(form)),
    "frozenset": lambda form: frozenset(_decode_items(form)),
    "deque": lambda form: deque(_decode(form["value"][1]), form["value"][0]),
    "dict": lambda form: _decode_pairs(form["value"]),
    "OrderedDict": lambda form: OrderedDict(_decode_pairs(form["value"])),
    "Counter": lambda form: Counter(_decode_pairs(form["value"])),
    "defaultdict": _decode_defaults,
    "datetime": lambda form: _folded(datetime.fromisoformat(form["value"]), form),
    "time": lambda form: _folded(time.fromisoformat(form["value"]), form),
    "int": lambda form: int(form["value"], 16),
    "date": lambda form: date.fromisoformat(form["value"]),
    "timedelta": lambda form: timedelta(*form["value"]),
    "PosixPath": lambda form: Path(form["value"]),  # a file's name in this system
    "WindowsPath": lambda form: Path(form["value"]),
    "PurePosixPath": lambda form: PurePosixPath(form["value"]),
    "PureWindowsPath": lambda form: PureWindowsPath(form["value"]),
    "bytes": lambda form: b64decode(form["value"], validate=True),
    "bytearray": lambda form: bytearray(b64decode(form["value"], validate=True)),
    "complex": lambda form: complex(*form["value"]),
    "dtype": lambda form: TORCH_DTYPES[form["value"]],
    "device": lambda form: torch.device(form["value"]),
    "Size": lambda form: torch.Size(form["value"]),
    "Tensor": decode_tensor,
    "ndarray": lambda form: decode_array(form["value"]),
    "number": _decode_number,
    "scalar": _decode_scalar,
}
