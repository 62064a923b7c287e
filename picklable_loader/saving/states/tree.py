"""Checks a state as somebody gives it, before anything else is done with it.

`copied` looks at the types, and `check_checksum` at whether anything has changed since the save.

A state is JSON and tensors. Torch's safe reader builds more than that (bytearrays, parameters,
ordered dicts), and other programs' dicts hold anything; all of it is refused here, by its exact
type, before something is copied, compared or called.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from itertools import pairwise
from typing import Any

import torch

from ...errors import CannotSaveError, DamagedStateError
from .arrays import whole
from .checksum import checksum, text_checksum
from .plain import DEEPEST, SCALARS

#: The path of what has a part, and the part's name or number there; None for the whole. It is made
#: into text for errors only: names may be long, and levels many.
Path = tuple[Any, str | int] | None

#: dicts that are often empty, which some programs lose (``torch.distributed.checkpoint``)
_OFTEN_EMPTY = ("sampler", "rng", "workers")
#: types of which equal values have equal texts, in a field of one type
_STEADY = {int, str, bool, type(None)}


def copied(state: Any) -> Any:
    """A copy of a state as somebody gives it, made of plain containers, numbers, text and tensors.

    It takes time in proportion to the number of parts, however they are nested. An ordered dict
    becomes a dict; torch's safe reader may have given it attributes, so its methods are not called.

    Raises:
        DamagedStateError: something else is in it; a part of it is there twice; or it is
            nested too deep. The text names the path.
    """
    root: list[Any] = [None]
    seen: set[Any] = set()
    waiting: list[tuple[Any, Any, Any, Any, int]] = [(state, root, 0, None, 0)]
    while waiting:
        part, owner, key, path, level = waiting.pop()
        kind = type(part)
        if kind in SCALARS:
            owner[key] = part
            continue
        if kind not in (dict, OrderedDict, list, torch.Tensor):
            raise DamagedStateError(text_of(path), _EXPECTED.get(kind, "a plain value"), part)
        if level > DEEPEST:
            raise DamagedStateError(text_of(path), f"nested {DEEPEST} levels deep at most", part)
        identity = _identity(part, path) if kind is torch.Tensor else id(part)
        if identity in seen:
            raise DamagedStateError(text_of(path), "a part that is there once", part)
        seen.add(identity)
        if kind is torch.Tensor:
            owner[key] = part.detach().clone()
        elif kind is list:
            owner[key] = made = [None] * len(part)
            waiting += [(p, made, at, (path, at), level + 1) for at, p in enumerate(part)]
        elif set(map(type, part)) <= {str}:
            owner[key] = named = dict.fromkeys(part)
            waiting += [(p, named, name, (path, name), level + 1) for name, p in dict.items(part)]
        else:
            raise DamagedStateError(text_of(path), "a dict whose keys are text", part)
    found = root[0]
    if type(found) is dict and "checksum" in found:  # which is the same without the empty dicts
        return {**{name: {} for name in _OFTEN_EMPTY}, **found}
    return found


_EXPECTED: dict[type[Any], str] = {tuple: "a list, of which some program has made a tuple"}


def _identity(tensor: torch.Tensor, path: Any) -> Any:
    """The identity of a tensor's memory: equal for two tensors that share it."""
    try:
        whole(tensor)
    except ValueError as error:
        raise DamagedStateError(text_of(path), f"no {error}", tuple(tensor.shape)) from None
    return "storage", tensor.untyped_storage().data_ptr() or id(tensor)


# --- the checksum --------------------------------------------------------------------------------


def with_checksum(state: dict[str, Any], writer: Writer | None = None) -> dict[str, Any]:
    """A state as it is saved: with a checksum of all that is in it, however dicts are ordered.

    It shows damage, edited fields, and parts of two states in one. It is no signature. The writer
    is that of the same pass's states.

    Raises:
        CannotSaveError: the state of an order that somebody has registered is no plain value.
    """
    try:
        return {**state, "checksum": _checksum(state, writer)}
    except TypeError as error:
        raise CannotSaveError(
            "the order",
            f"its state() holds no plain value ({error})",
            "Give numbers and text there",
        ) from None


def check_checksum(state: dict[str, Any]) -> None:
    """Raise DamagedStateError if a state, copied, is another one than was saved.

    One without a checksum was edited on purpose.
    """
    if "checksum" not in state:
        return
    expected = _checksum(state, None)
    if state["checksum"] != expected:
        what = f"{expected!r}, that of the state as it is now"
        raise DamagedStateError("checksum", what, state["checksum"], _CHANGED)


_CHANGED = (
    "some of it has changed since it was saved, or it is made of two states, as "
    "torch.distributed.checkpoint does without LoaderState. Use an earlier checkpoint; or, if you "
    "have edited the state and know how its fields hang together, delete its field 'checksum'"
)


def _checksum(state: dict[str, Any], writer: Writer | None) -> str:
    if "checksum" in state:
        state = {name: part for name, part in state.items() if name != "checksum"}
    try:
        return text_checksum(writer.text(state) if writer else _JSON.encode(_filled(state)))
    except ValueError:  # a number of thousands of digits
        return text_checksum(_JSON.encode(_in_hexadecimal(_filled(state))))


class Writer:
    """Writes the states of one pass as JSON, for their checksums.

    From save to save often only three numbers move. The text between them is written once, as long
    as nothing else is different: equal values of a pass have equal types, but in its order.
    """

    def __init__(self) -> None:
        #: the last state, without these numbers; and the types in its order
        self._rest: dict[str, Any] | None = None
        self._types: Any = None
        self._around = ["", "", "", ""]

    def text(self, state: dict[str, Any]) -> str:
        """The text of a state without a checksum."""
        rest, order = {**state, "next_step": 0, "position": 0, "step": 0}, state["order"]
        types = order and [*map(type, order.values())]
        if types != self._types or rest != self._rest:
            self._around = [_fields_between(rest, *ends) for ends in pairwise(_MOVING)]
            self._rest, self._types = _unshared(rest), types
        head, order, rng, tail = self._around
        return (
            f'{{{head}"next_step": {state["next_step"]}, {order}"position": {state["position"]}, '
            f'{rng}"step": {state["step"]}, {tail[:-2]}}}'
        )


#: the numbers that each batch moves, between the first name and the last
_MOVING = ("", "next_step", "position", "step", "~")


def _fields_between(state: dict[str, Any], name: str, other: str) -> str:
    """The text of the fields whose names are between two others."""
    part = {each: state[each] for each in state if name < each < other}
    text = _JSON.encode(_filled(part))[1:-1]
    return text and f"{text}, "


def _unshared(state: dict[str, Any]) -> dict[str, Any] | None:
    """A copy of a state; None if more is in it than numbers, text, and dicts of these."""
    copy = {name: {**part} if type(part) is dict else part for name, part in state.items()}
    for part in copy.values():
        parts = part.values() if type(part) is dict else [part]
        if not _STEADY.issuperset(map(type, parts)) and part != []:
            return None
    return copy


def _filled(part: dict[str, Any]) -> dict[str, Any]:
    """Without empty dicts, see `_OFTEN_EMPTY`."""
    if dict not in map(type, part.values()):
        return part
    filled = {n: _filled(each) if type(each) is dict else each for n, each in part.items()}
    return {n: each for n, each in filled.items() if type(each) is not dict or each}


def _in_hexadecimal(part: Any) -> Any:
    if type(part) is dict:
        return {name: _in_hexadecimal(each) for name, each in part.items()}
    if type(part) is list:
        return [_in_hexadecimal(each) for each in part]
    return [f"{part:x}"] if type(part) is int else part


def _tensor(tensor: torch.Tensor) -> Any:
    """The form of a tensor in the checksum, whatever device it is on."""
    if type(tensor) is not torch.Tensor:
        raise TypeError(f"a {type(tensor).__qualname__}")
    return [str(tensor.dtype), list(tensor.shape), checksum([tensor])]


_JSON = json.JSONEncoder(sort_keys=True, check_circular=False, default=_tensor)


def text_of(path: Path) -> str:
    """A path in words, of a long one its beginning."""
    names: list[str] = []
    while path is not None:
        path, name = path
        names.append(f"[{name}]" if type(name) is int else f".{name}"[:80])
    return "".join(reversed(names)).lstrip(".")[:200] or "state"
