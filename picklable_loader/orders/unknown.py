"""Attributes of a kind that no state holds: they can be compared, and not be put back."""

from __future__ import annotations

import io
import weakref
from collections.abc import Collection, Iterator
from functools import partial
from hashlib import blake2b
from operator import length_hint
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ..errors import CannotSaveError, warn
from ..saving.pickles.by_reference import dumps
from ..saving.pickles.picklers import refusal
from ..saving.states.plain import alike, encode_state

#: what a sampler may refer to and is none of its own state
CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
#: the same; such an object is the same while nobody puts another one in its place
OTHERS = (Dataset, DataLoader, torch.nn.Module, io.IOBase)

#: an object of other people's that is larger when pickled is not looked into
_MOST_BYTES = 1 << 16


#: advice on generators that a sampler owns and its state_dict does not hold
IS_POSITION = (
    "If the sampler goes on exactly from its state_dict alone, set its attribute "
    "state_is_position = True"
)


def once_only(sampler: Any) -> CannotSaveError:
    """The error for a sampler that is an iterator, for example a generator."""
    return CannotSaveError(
        f"the sampler, a {type(sampler).__qualname__}",
        "it is an iterator, which cannot begin again",
        "Pass an object whose __iter__ begins the order anew",
    )


def saved_indices(drawn: Any, live: bool) -> Any:
    """The saved form of what a sampler has given for a task that is not delivered.

    Raises:
        CannotSaveError: it is None, which means "no indices" in a state; or it is no plain value.
    """
    if drawn is None:
        raise CannotSaveError(
            "the position",
            "the sampler has given None as the index of a sample, and workers have it ahead",
            "Give another index, for example -1; or use num_workers=0, which draws none ahead",
        )
    try:
        return encode_state(drawn, "an index that the sampler has given: ", live)
    except CannotSaveError as error:
        error.advice += (
            f". Workers have it ahead: prefetch_budget=1 draws none ahead. {IS_POSITION}"
        )
        raise


def is_programs(value: Any) -> bool:
    """It may be an object of the whole program, such as a configuration that counts epochs."""
    if isinstance(value, (*CODE, *OTHERS, np.ndarray, partial)):
        return False
    return hasattr(value, "__dict__")


def form_to_compare(value: Any, sampler: Any, other: Any) -> Any:
    """Equal to that of an equal value; unlike that of a value that has changed.

    Code is compared by its name, and others by their pickle, without the sampler and the other
    object. An object without a pickle, or with a large one, is compared by its identity.
    """
    if isinstance(value, CODE):
        return [getattr(value, "__module__", ""), getattr(value, "__qualname__", str(value))]
    if isinstance(value, OTHERS):
        return _Identity(value)
    # Data is pickled whatever its size, as a plain attribute is copied.
    is_data = isinstance(value, np.ndarray) or not hasattr(value, "__dict__")
    most_bytes = None if is_data else _MOST_BYTES
    try:
        pickled = dumps(value, sampler, False, {id(other): "other"}, most_bytes, to_compare=True)
    except Exception:  # whatever people's __reduce__ raises
        return _Identity(value)
    return [type(value).__qualname__, blake2b(pickled, digest_size=16).hexdigest()]


class _Identity:
    """An object of which only the identity is known. A weak reference to it, if it has one."""

    def __init__(self, value: Any) -> None:
        try:
            self._found: Any = weakref.ref(value)
        except TypeError:
            self._found = lambda: value

    def __eq__(self, other: object) -> bool:
        found = self._found()
        return isinstance(other, _Identity) and found is not None and other._found() is found

    __hash__ = None  # type: ignore[assignment]


#: below a numpy generator: how many seeds were spawned from it
SEEDS = "seed_seq"

#: kinds that can be compared and not be put back, and what is wrong where they are different
OPAQUE = {
    "iterator": "is an iterator, and how far it has come is unknown",
    "unread": "is a generator that was read since, and how far it has come is unknown",
    "members": "holds objects whose order or number has changed",
    "object": "is an object of another class than before",
    "unknown": "has changed, and is of a kind that no state can hold",
    "foreign": "has changed, and is an object of another package, which no state holds",
}


def check_known(
    before: dict[str, list[Any]],
    now: dict[str, list[Any]],
    sampler: Any,
    kinds: Collection[str] = tuple(OPAQUE),
) -> None:
    """Raise CannotSaveError unless what is now can be made what was before.

    For an unpickled loader ``now`` is empty: nobody knows what the program builds.
    """
    for path, kind in lost(before, now) if now else ():
        if kind not in kinds:
            continue
        if kind == "foreign":  # the program may set it again, as it does a configuration
            _warn(f"{type(sampler).__qualname__}: its attribute {path} {OPAQUE[kind]}")
            continue
        raise CannotSaveError(
            f"the sampler {type(sampler).__qualname__}",
            f"its attribute {path} {OPAQUE[kind]}",
            "Give the sampler's iterator state_dict and load_state_dict, or keep numbers there",
        )


def warn_of_iterator(path: str, iterator: Any, sampler: Any) -> None:
    """Warn, between two epochs, of an iterator that may have more: the next one may go on in it.

    Or it makes a new one there. Nobody can know that before.
    """
    if isinstance(iterator, GeneratorType):
        over = iterator.gi_frame is None
    else:
        over = type(iterator).__module__ == "builtins" and not length_hint(iterator, 1)
    if not over:
        _warn(f"{type(sampler).__qualname__}: its attribute {path} {OPAQUE['iterator']}")


def lost(before: dict[str, list[Any]], now: dict[str, list[Any]]) -> Iterator[tuple[str, str]]:
    """Paths and kinds of what cannot be put back, and has changed or may have."""
    for path, form in before.items():
        kind, found = form[0], now.get(path)
        if found is None and path.endswith(f".{SEEDS}") and form[1] == 0:
            continue  # the sampler has made its generator itself, and has spawned none from it
        same = found is not None and alike(form, found)
        # Only the present value of a member's class is known.
        if kind == "member" and not (found and found[0] == kind and found[1][0] == form[1][0]):
            yield path, "unknown"
        elif kind == "iterator":
            if same or (found and found[0] == "unread"):  # a new sampler's begins anew
                yield path, kind
        elif kind in OPAQUE and not same:
            yield path, kind


def _warn(what: str) -> None:
    warn(
        f"this state does not hold all of the sampler {what}. If the order depends on it, set it "
        "again before the resume, or give the sampler state_dict and load_state_dict",
    )


def pickles(iterator: Any, sampler: Any) -> bool:
    """Pickle takes a sampler's iterator; the sampler itself is not looked into."""
    if type(iterator).__module__ in ("builtins", "itertools"):
        return False  # generators cannot be, and a list's iterator would take the list along
    known = [sampler, *getattr(sampler, "__dict__", {}).values()]
    return refusal("pickle", iterator, lambda _: None, known) is None
