"""What a sampler was like before its iteration began.

A sampler may change itself while it is iterated (an epoch counter, a list shuffled in place, a
generator of its own). Replaying it from the start needs its attributes as they were: `freeze`
takes them as plain values, `thaw` puts them back.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from .randomness import generator_to_text, set_generator

__all__ = ["Frozen", "changed", "freeze", "thaw"]

#: an attribute's path from the sampler -> [kind, plain value]
Frozen = dict[str, list[Any]]

_SCALARS = (bool, int, float, str, bytes, type(None))
_COLLECTIONS: dict[type[Any], str] = {list: "list", tuple: "tuple", set: "set", deque: "deque"}


def freeze(sampler: Any) -> Frozen:
    """The attributes of a sampler, and of samplers inside it, that are plain or random states."""
    frozen: Frozen = {}
    for name, value in getattr(sampler, "__dict__", {}).items():
        if isinstance(value, Sampler):
            frozen.update({f"{name}.{path}": kept for path, kept in freeze(value).items()})
            continue
        kept = _encode(value)
        if kept is not None:
            frozen[name] = kept
    return frozen


def changed(before: Frozen, *others: Frozen) -> Frozen:
    """The part of ``before`` that is different in any of the others."""
    return {
        path: kept
        for path, kept in before.items()
        if any(path not in other or not _same(kept, other[path]) for other in others)
    }


def thaw(sampler: Any, frozen: Frozen) -> None:
    """Put attributes back as they were.

    Raises:
        ValueError: the frozen form is damaged.
    """
    for path, kept in frozen.items():
        *owners, name = path.split(".")
        target = sampler
        for owner in owners:
            target = getattr(target, owner)
        try:
            kind, value = kept
            _decode(target, name, kind, value)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: {error}") from None


def _encode(value: Any) -> list[Any] | None:
    if isinstance(value, _SCALARS):
        return ["plain", value]
    if type(value) in _COLLECTIONS and all(type(item) in _SCALARS for item in value):
        return [_COLLECTIONS[type(value)], list(value)]
    if type(value) is dict and all(
        type(k) in _SCALARS and type(v) in _SCALARS for k, v in value.items()
    ):
        return ["dict", [list(pair) for pair in value.items()]]
    if type(value) is torch.Tensor:
        return ["tensor", value.detach().clone()]
    if type(value) is np.ndarray and value.dtype.kind in "biufc":
        return ["array", torch.from_numpy(value.copy())]
    return _encode_generator(value)


def _encode_generator(value: Any) -> list[Any] | None:
    if isinstance(value, torch.Generator):
        return ["generator", generator_to_text(value)]
    if isinstance(value, random.Random):
        version, words, gauss = value.getstate()
        return ["random", [version, list(words), gauss]]
    if isinstance(value, np.random.RandomState):
        state: Any = value.get_state(legacy=True)
        name, key, position, has_gauss, gauss = state
        return ["RandomState", [name, key.tolist(), position, has_gauss, gauss]]
    if isinstance(value, np.random.Generator):
        return ["Generator", _plain(value.bit_generator.state)]
    return None


def _decode(target: Any, name: str, kind: str, value: Any) -> None:
    restore: dict[str, Callable[[], object]] = {
        "generator": lambda: set_generator(getattr(target, name), value),
        "random": lambda: getattr(target, name).setstate((value[0], tuple(value[1]), value[2])),
        "RandomState": lambda: getattr(target, name).set_state(tuple(value)),
        "Generator": lambda: setattr(getattr(target, name).bit_generator, "state", value),
    }
    if kind in restore:
        restore[kind]()
        return
    make: dict[str, Callable[[], object]] = {
        "plain": lambda: value,
        "list": lambda: list(value),
        "tuple": lambda: tuple(value),
        "set": lambda: set(value),
        "deque": lambda: deque(value, getattr(getattr(target, name, None), "maxlen", None)),
        "dict": lambda: dict(value),
        "tensor": lambda: value.clone(),
        "array": lambda: value.numpy().copy(),
    }
    setattr(target, name, make[kind]())


def _same(one: list[Any], other: list[Any]) -> bool:
    if one[0] != other[0]:
        return False
    if isinstance(one[1], torch.Tensor):
        return torch.equal(one[1], other[1])
    return bool(one[1] == other[1])


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray | np.generic) else state
