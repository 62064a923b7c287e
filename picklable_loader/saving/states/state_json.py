"""Writes states as JSON that people read, compare and edit, and reads them back bit for bit.

Numbers, text, lists and dicts are written as they are. A value that JSON does not have is a dict
that names its type under ``"$type"``: bytes and tensors as base64, tuples, infinite numbers, dicts
whose keys are not text. Every state begins with ``"$skip": 0``: the number to edit to move it on.
"""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from ...core.snapshot import FORMAT
from ...errors import SYMPTOMS, CannotSaveError, DamagedStateError, LoaderError, UsageError
from .arrays import TORCH_DTYPES, NotPlain, bytes_of, whole
from .plain import check_hashes, decode, encode, is_endless
from .skip import MOST_TASKS, moved_on, tasks_claimed
from .tree import Path, text_of

_TYPE, _SKIP = "$type", "$skip"
#: where the paths of all values begin
_STATE: Path = (None, "state")
_WIDTH = 100
#: longer numbers are written in hexadecimal: reading decimals takes time that grows as a square
_LONGEST = 2**4096


def to_json(state: Any) -> str:
    """A state as text that can be read, compared line by line, and edited.

    A state is moved on by editing the number at ``"$skip"``, the first line of it: so many batches
    are passed over when it is read back. Other fields hang together, and are best left alone.

    Args:
        state: what ``state_dict`` returned, or a dict with such states and other plain values.

    Returns:
        JSON, in the same order for every state of the same kind.

    Raises:
        CannotSaveError: something in it is no plain value; the text says where.
    """
    try:
        if is_endless(state):
            raise CannotSaveError(
                "the state",
                "its text would be endless: it contains itself, or has parts in so many places",
                "Use pickle, or torch.save",
            )
        return "\n".join(_written(_form(state, _STATE))[0]) + "\n"
    except RecursionError:
        raise CannotSaveError(
            "the state", "it is nested some hundred levels deep", "Keep flatter values there"
        ) from None


to_json.__module__ = "picklable_loader"  # pickles hold this name


def from_json(text: str) -> Any:
    """The state that `to_json` has written. Reading it runs no code.

    Args:
        text: the JSON, edited or not.

    Returns:
        For ``load_state_dict``; the same values of the same types, bit for bit, moved on where
        ``"$skip"`` was edited.

    Raises:
        DamagedStateError: it is no JSON, or no such value; the text says where.
        UsageError: ``"$skip"`` was edited in a state that cannot be moved on exactly; or this is no
            text, but a state.
    """
    if not isinstance(text, str):
        raise UsageError(
            f"from_json reads the text that to_json has written, got a {type(text).__name__}. A "
            "state that is a dict already goes to load_state_dict"
        )
    try:
        return _Reader(len(text)).value(_parsed(text), _STATE)
    except RecursionError:
        raise DamagedStateError("state", "nested some hundred levels deep at most", text) from None


from_json.__module__ = "picklable_loader"  # pickles hold this name


# --- writing -------------------------------------------------------------------------------------


def _form(value: Any, path: Path) -> Any:
    """The JSON form of a value."""
    kind = type(value)
    if kind in (bool, type(None)):
        return value
    if kind in _FORMS:
        return _FORMS[kind](value)
    if kind is list:
        return _form_items(value, path)
    if kind is tuple:
        return {_TYPE: "tuple", "items": _form_items(value, path)}
    if kind is dict:
        return _form_dict(value, path)
    try:
        return {_TYPE: "plain", "value": _form(encode(value), path)}
    except NotPlain as found:
        raise CannotSaveError(
            text_of(path),
            f"JSON cannot hold {found}",
            "Use pickle, or torch.save, or keep numbers there",
        ) from None


def _form_items(items: Any, path: Path) -> list[Any]:
    return [_form(item, (path, at)) for at, item in enumerate(items)]


def _form_dict(value: dict[Any, Any], path: Path) -> dict[str, Any]:
    if not all(type(key) is str and not key.startswith("$") for key in value):
        pairs = [_form_items(pair, path) for pair in value.items()]
        return {_TYPE: "dict", "items": pairs}
    form = {key: _form(each, (path, key)) for key, each in value.items()}
    found = value.get("format")
    return {_SKIP: 0, **form} if type(found) is str and found == FORMAT else form


def _form_float(value: float) -> Any:
    if math.isfinite(value):
        return value
    return {_TYPE: "float", "bits": struct.pack(">d", value).hex()}


def _form_text(value: str) -> Any:
    try:
        value.encode()
        return value
    except UnicodeEncodeError:  # halves of characters, which JSON would join
        return {_TYPE: "str", "base64": _base64(value.encode("utf-8", "surrogatepass"))}


def _form_tensor(value: torch.Tensor) -> Any:
    try:
        whole(value)
    except ValueError as error:
        advice = "Put its dense clone() there, or use torch.save"
        raise CannotSaveError("a tensor in the state", f"it is {error}", advice) from None
    form = {
        _TYPE: "Tensor",
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "base64": _base64(bytes_of(value)),
    }
    return {**form, "requires_grad": True} if value.requires_grad else form


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


_FORMS: dict[type[Any], Callable[[Any], Any]] = {
    int: lambda value: value if abs(value) < _LONGEST else {_TYPE: "int", "hex": f"{value:x}"},
    float: _form_float,
    str: _form_text,
    bytes: lambda value: {_TYPE: "bytes", "base64": _base64(value)},
    torch.Tensor: _form_tensor,
}


_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _written(form: Any, indent: str = "") -> tuple[list[str], str | None]:
    """The lines of a form, the first one without its indent; and all of it as one line, if short.

    Each field of a dict has a line of its own. Other forms are on one line if they fit.
    """
    room, is_dict = _WIDTH - len(indent), type(form) is dict
    if not form or type(form) not in (dict, list):
        return [text := _dumps(form)], text
    values, is_value = list(form.values()) if is_dict else form, not is_dict or _TYPE in form
    is_flat = not any(type(each) in (dict, list) for each in values)
    if is_value and (is_flat or (is_dict and "base64" in form)):
        text = _dumps(form)
        fits = len(text) <= room
        return [text] if fits or is_dict else _rows(form, indent), text if fits else None
    inner = indent + "  "
    names = [f"{_dumps(name)}: " for name in form] if is_dict else [""] * len(values)
    parts = [_written(each, inner) for each in values]
    short = [f"{name}{text}" for name, (_, text) in zip(names, parts) if text is not None]
    flat = None
    if len(short) == len(parts) and sum(map(len, short)) + 2 * len(short) <= room:
        flat = ", ".join(short).join("{}" if is_dict else "[]")
        if is_value:
            return [flat], flat
    lines = []
    for name, ((own, *rest), _) in zip(names, parts):
        lines += [f"{inner}{name}{own}", *rest]
        lines[-1] += ","
    lines[-1] = lines[-1][:-1]
    first, last = "{}" if is_dict else "[]"
    return [first, *lines, indent + last], flat


def _rows(items: list[Any], indent: str) -> list[str]:
    """A long list of numbers or texts: as many on a line as it has room for."""
    rows = ["["]
    row = indent + "  "
    for at, item in enumerate(items):
        text = _dumps(item) + ("," if at < len(items) - 1 else "")
        if len(row) + len(text) > _WIDTH and row.strip():
            rows.append(row.rstrip())
            row = indent + "  "
        row += text + " "
    return [*rows, row.rstrip(), indent + "]"]


# --- reading -------------------------------------------------------------------------------------


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        found = text[max(0, error.pos - 20) : error.pos + 20]
        raise DamagedStateError(where, f"JSON ({error.msg})", found) from None
    except DamagedStateError:  # of the functions below
        raise
    except ValueError as error:  # a number of thousands of digits
        raise DamagedStateError("state", f"JSON ({error})", text) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise DamagedStateError(twice, "there once", [v for n, v in pairs if n == twice])
    return found


def _refuse(constant: str) -> NoReturn:
    raise DamagedStateError("state", "a number as JSON has it", constant)


class _Reader:
    """Makes values of their forms. No more tasks than the text's size, but for a state or two."""

    def __init__(self, size: int) -> None:
        self._tasks_left = size + MOST_TASKS

    def value(self, form: Any, path: Path) -> Any:
        """The value of a form."""
        if type(form) is list:
            return [self.value(item, (path, at)) for at, item in enumerate(form)]
        if type(form) is not dict:
            return form
        if _TYPE not in form:
            return self.dict(form, path)
        try:
            return _VALUES[form[_TYPE]](self, form, path)
        except LoaderError:
            raise
        except (*SYMPTOMS, MemoryError, struct.error) as error:
            raise DamagedStateError(text_of(path), "a value as to_json writes it", form) from error

    def dict(self, form: dict[str, Any], path: Path) -> dict[str, Any]:
        """A dict, moved on if it is a state that was edited."""
        found = {n: self.value(each, (path, n)) for n, each in form.items() if n != _SKIP}
        count = form.get(_SKIP, 0)
        if type(count) is not int or count < 0:
            raise DamagedStateError(
                f"{text_of(path)}.{_SKIP}", "a number of batches, from 0", count
            )
        if not count:
            return found
        self._tasks_left -= tasks_claimed(found)
        if self._tasks_left < 0:
            raise DamagedStateError(text_of(path), "a window of tasks like the text's size", found)
        return moved_on(found, count)

    def pairs(self, form: Mapping[str, Any], path: Path) -> Any:
        """A dict whose keys are any values."""
        pairs = [(self.value(key, path), self.value(each, path)) for key, each in form["items"]]
        check_hashes(key for key, _ in pairs)
        return dict(pairs)


def _tensor(form: dict[str, Any]) -> torch.Tensor:
    dtype, shape, data = TORCH_DTYPES[form["dtype"]], form["shape"], _bytes(form)
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("no tensor's shape")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes are no tensor of that shape")
    if not data:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)


def _bytes(form: dict[str, Any]) -> bytes:
    return b64decode(form["base64"], validate=True)


_VALUES: dict[str, Callable[[_Reader, dict[str, Any], Path], Any]] = {
    "tuple": lambda reader, form, path: tuple(reader.value(form["items"], path)),
    "dict": _Reader.pairs,
    "int": lambda reader, form, path: int(form["hex"], 16),
    "float": lambda reader, form, path: struct.unpack(">d", bytes.fromhex(form["bits"]))[0],
    "str": lambda reader, form, path: _bytes(form).decode("utf-8", "surrogatepass"),
    "bytes": lambda reader, form, path: _bytes(form),
    "Tensor": lambda reader, form, path: _tensor(form).requires_grad_("requires_grad" in form),
    "plain": lambda reader, form, path: decode(reader.value(form["value"], path)),
}
