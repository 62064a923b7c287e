"""The attributes of a sampler before its iteration began.

A sampler may change itself while it is iterated (an epoch counter, a list shuffled in place, a
generator of its own). Replaying it from the start needs its attributes as they were: `freeze`
takes them as plain values, `thaw` puts them back. What stands inside of other objects and of
containers is found by its path, ``"inner.readers.0.rng"``.
"""

from __future__ import annotations

import copy
import io
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from ..datasets.protocol import is_stateful
from ..errors import SYMPTOMS, CannotSaveError, DamagedStateError
from ..rng.generators import generator_to_text, set_generator
from ..rng.source import Source
from ..saving.states.plain import SCALARS, NotPlain, alike, decode, encode, encode_state

__all__ = ["Frozen", "changed", "check_known", "freeze", "memory", "prepare", "rngs_in", "thaw"]

#: an attribute's path from the sampler -> [kind, plain value]
Frozen = dict[str, list[Any]]
#: an attribute's path -> a list that stood there, and its form
Lists = dict[str, tuple[list[Any] | None, list[Any] | None]]

#: kinds of which only the identity is known; they can be compared and not be put back
_OPAQUE = ("iterator", "members")

#: what a sampler may refer to and is none of its own state
_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_OTHERS = (*_CODE, Dataset, DataLoader, torch.nn.Module, io.IOBase, Enum)


def freeze(sampler: Any, other: Any = None, lists: Lists | None = None) -> Frozen:
    """The attributes of a sampler, and of what it is made of, that are plain or random states.

    Args:
        sampler: the sampler.
        other: an object that it may refer to and is none of its own: the loader's dataset.
        lists: the lists of earlier calls, which are not encoded again while they are the same.
    """
    frozen: Frozen = {}
    visit = _Visit(frozen, {id(sampler), id(other)}, _package(sampler), lists)
    visit.parts(sampler, "")
    return frozen


def changed(before: Frozen, *others: Frozen) -> Frozen:
    """The part of ``before`` that is different in any of the others, and can be put back."""
    return {
        path: form
        for path, form in before.items()
        if form[0] not in _OPAQUE
        and any(path not in other or not alike(form, other[path]) for other in others)
    }


def check_known(before: Frozen, now: Frozen, sampler: Any) -> None:
    """Raise CannotSaveError if something has changed that cannot be put back, or may have."""
    for path, form in before.items():
        same = path in now and alike(form, now[path])
        if form[0] == "iterator" and same:
            what = "is an iterator, and how far it has come cannot be told"
        elif form[0] == "members" and path in now and not same:
            what = "holds objects whose order or number has changed"
        else:
            continue
        raise CannotSaveError(
            f"the sampler {type(sampler).__qualname__}",
            f"its attribute {path} {what}",
            "Give the sampler's iterator state_dict and load_state_dict, or keep numbers there",
        )


def thaw(sampler: Any, frozen: Frozen) -> None:
    """Put attributes back as they were.

    Raises:
        ValueError: the frozen form is damaged.
    """
    for path, entry in frozen.items():
        try:
            kind, form = entry
            # What may not be set need not be.
            if kind not in _OPAQUE and not alike(entry, look(sampler, path)):
                _put(sampler, path.split("."), kind, form)
        except SYMPTOMS as error:
            raise ValueError(f"{path}: {error}") from None


def look(sampler: Any, path: str) -> list[Any] | None:
    """The form of the value at a path; None if there is none that can be put back."""
    try:
        return _encode(_at(sampler, path))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None


def rngs_in(sampler: Any, other: Any) -> set[int]:
    """The ids of the generators that `freeze` sees in a sampler; ``other``: see there."""
    frozen = freeze(sampler, other)
    return {id(_at(sampler, path)) for path, form in frozen.items() if form[0] in _RNGS}


def memory(sampler: Any, source: Source, started: bool, live: bool = False) -> dict[str, Any]:
    """A sampler's state before its iteration, as far as the program would not rebuild it.

    Args:
        sampler: the sampler.
        source: the source of its draws.
        started: it has been iterated before.
        live: for a pickle, which may hold objects.

    Raises:
        CannotSaveError: it has been iterated before, and keeps something from epoch to epoch that
            cannot be saved; or its state_dict holds more than plain values.
    """
    now = freeze(sampler, source.dataset, source.lists)
    attributes = changed(now, source.origin)
    if is_stateful(sampler):
        state = encode_state(sampler.state_dict(), "state_dict() of the sampler: ", live)
        # It may hold weights, and not the generator that the next epoch is drawn from.
        rngs = {path: form for path, form in attributes.items() if form[0] in _RNGS}
        return {"state": state, **({"attributes": rngs} if rngs else {})}
    if started:
        check_known(source.origin, now, sampler)
    return {"attributes": attributes} if attributes else {}


def prepare(sampler: Any, saved: dict[str, Any], source: Source) -> None:
    """Make a sampler what ``memory`` has seen.

    Raises:
        DamagedStateError: that is not what it saves. The sampler is as it was.
    """
    attributes = saved.get("attributes", {})
    before: Frozen = {}
    for path in (*source.origin, *attributes):
        found = look(sampler, path)
        if found is not None:
            before[path] = found
    state = copy.deepcopy(sampler.state_dict()) if "state" in saved else None
    try:
        thaw(sampler, source.origin)
        if "state" in saved:
            sampler.load_state_dict(decode(saved["state"]))
        thaw(sampler, attributes)
    except Exception as error:
        if state is not None:
            sampler.load_state_dict(state)
        thaw(sampler, before)
        raise DamagedStateError("sampler", "what this sampler saves", error) from error


def _put(sampler: Any, path: list[str], kind: str, form: Any) -> None:
    target, name = sampler, path[-1]
    for owner in path[:-1]:
        target = _get(target, owner)
        if not _is_container(target) and not _belongs_to(_package(sampler), target):
            raise ValueError(f"{owner} is not the sampler's own")
    if name.startswith("__"):
        raise ValueError("Python's own attributes are no sampler's")
    if kind == "plain":
        _set(target, name, decode(form))
        return
    rng = _RNGS[kind]
    try:
        found = _get(target, name)
    except (AttributeError, KeyError):
        found = None
    if not isinstance(found, rng.kind):
        found = rng.make(form)  # the sampler makes it when it is first needed
        _set(target, name, found)
    rng.restore(found, form)


@dataclass(frozen=True)
class _Visit:
    """A walk through a sampler's parts."""

    frozen: Frozen
    seen: set[int]
    home: str
    lists: Lists | None

    def parts(self, owner: Any, prefix: str) -> None:
        for name, value in _parts(owner):
            path = f"{prefix}{name}"
            if id(value) in self.seen:
                continue
            form = self.encode(path, value)
            if form is not None:
                self.frozen[path] = form
            elif _is_container(value) or _belongs_to(self.home, value):
                self.seen.add(id(value))
                if _is_container(value):
                    self.frozen[path] = ["members", [id(item) for item in _items(value)]]
                self.parts(value, f"{path}.")

    def encode(self, path: str, value: Any) -> list[Any] | None:
        if self.lists is None or type(value) is not list:
            return _encode(value)
        earlier, form = self.lists.get(path, (None, None))
        if not _equal(earlier, value):
            form = _encode(value)
            # What stands in another list may change within.
            flat = form is not None and _is_flat(form[1])
            self.lists[path] = (value.copy(), form) if flat else (None, None)
        return form


def _equal(flat: list[Any] | None, value: list[Any]) -> bool:
    try:
        return flat == value
    except (ValueError, RuntimeError):  # an array stands there now
        return False


def _is_flat(form: Any) -> bool:
    """The plain form of a list of scalars, or of tuples of them: nothing in it can change."""
    if type(form) is list:
        return SCALARS.issuperset(map(type, form))
    return type(form) is dict and form.get("as") == "rows"


def _belongs_to(home: str, value: Any) -> bool:
    """An object is the sampler's own: an inner sampler, or a helper of the same package.

    Anything else (a logger, a model, a configuration) may be the whole program's.
    """
    if isinstance(value, _OTHERS):
        return False
    return isinstance(value, Sampler) or _package(value) == home


def _package(thing: Any) -> str:
    return str(type(thing).__module__).partition(".")[0]


def _is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | deque | dict)


def _parts(owner: Any) -> Iterator[tuple[str, Any]]:
    """The named parts of an object or a container."""
    if isinstance(owner, list | tuple | deque):
        yield from ((str(at), item) for at, item in enumerate(_items(owner)))
    elif isinstance(owner, dict):
        yield from ((name, dict.__getitem__(owner, key)) for name, key in _names(owner).items())
    else:
        yield from getattr(owner, "__dict__", {}).items()
        for kind in type(owner).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name.startswith("__") and not name.endswith("__"):
                    name = f"_{kind.__name__.lstrip('_')}{name}"
                if name not in ("__dict__", "__weakref__") and hasattr(owner, name):
                    yield name, getattr(owner, name)


def _names(owner: dict[Any, Any]) -> dict[str, Any]:
    """The keys of a dict by names without points: a tab stands for one, as no repr has a tab."""
    keys = [key for key in dict.__iter__(owner) if type(key) in SCALARS]
    plain = {k: k for k in keys if type(k) is str and "." not in k and k[:1] != "["}
    return plain | {f"[{key!r}]".replace(".", "\t"): key for key in keys if key not in plain}


def _items(container: Any) -> list[Any]:
    """The items of a container, whatever ``__iter__`` its class has: a sampler's own draws."""
    kind: Any = next(kind for kind in (list, tuple, deque, dict) if isinstance(container, kind))
    return list(kind.values(container) if kind is dict else kind.__iter__(container))


def _at(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = _get(owner, name)
    return owner


def _get(owner: Any, name: str) -> Any:
    if isinstance(owner, dict):
        return owner[_names(owner)[name] if name[:1] == "[" else name]
    return owner[int(name)] if isinstance(owner, list | tuple | deque) else getattr(owner, name)


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, list | deque):
        owner[int(name)] = value
    elif isinstance(owner, dict):
        owner[_names(owner)[name] if name[:1] == "[" else name] = value
    elif not isinstance(owner, tuple):  # what stands in a tuple cannot have changed
        setattr(owner, name, value)


def _encode(value: Any) -> list[Any] | None:
    """[kind, plain value] of what can be compared as a whole."""
    for name, rng in _RNGS.items():
        if isinstance(value, rng.kind) and not isinstance(value, random.SystemRandom):
            return [name, rng.save(value)]
    if hasattr(value, "__next__") and not hasattr(value, "__dict__"):
        return ["iterator", id(value)]
    try:
        return ["plain", encode(value)]
    except NotPlain:
        return None


def _random_state(value: random.Random) -> list[Any]:
    version, words, gauss = value.getstate()
    return [version, list(words), gauss]


def _numpy_state(value: np.random.RandomState) -> list[Any]:
    state: Any = value.get_state(legacy=True)
    name, key, position, has_gauss, gauss = state
    return [name, key.tolist(), position, has_gauss, gauss]


def _set_numpy_state(rng: np.random.RandomState, state: Any) -> None:
    name, key, position, has_gauss, gauss = state
    _check_place(position, 624)
    rng.set_state((name, key, position, has_gauss, gauss))


def _set_bits(rng: np.random.Generator, state: Any) -> None:
    if state["bit_generator"] == "MT19937":
        _check_place(state["state"]["pos"], 624)
    if "buffer_pos" in state:
        _check_place(state["buffer_pos"], 4)
    rng.bit_generator.state = state


def _check_place(place: Any, most: int) -> None:
    """Raise ValueError unless a generator can stand there: numpy reads memory at any place."""
    if type(place) is not int or not 0 <= place <= most:
        raise ValueError(f"a generator stands from 0 to {most}, and not at {place!r}")


def _numbers(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _numbers(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray | np.generic) else state


#: what numpy's generators draw bits from, by the names in their states
_BITS: dict[str, Any] = {
    name: kind
    for name, kind in vars(np.random).items()
    if isinstance(kind, type) and issubclass(kind, np.random.BitGenerator)
}


class _Rng(NamedTuple):
    """How random number generators of a kind are saved."""

    kind: type[Any]
    save: Callable[[Any], Any]
    restore: Callable[[Any, Any], object]
    #: a new one, for a saved state
    make: Callable[[Any], Any]


_RNGS = {
    "generator": _Rng(
        torch.Generator,
        save=generator_to_text,
        restore=set_generator,
        make=lambda _: torch.Generator(),
    ),
    "random": _Rng(
        random.Random,
        save=_random_state,
        restore=lambda rng, state: rng.setstate((state[0], tuple(state[1]), state[2])),
        make=lambda _: random.Random(),
    ),
    "RandomState": _Rng(
        np.random.RandomState,
        save=_numpy_state,
        restore=_set_numpy_state,
        make=lambda _: np.random.RandomState(),
    ),
    "Generator": _Rng(
        np.random.Generator,
        save=lambda rng: _numbers(rng.bit_generator.state),
        restore=_set_bits,
        make=lambda state: np.random.Generator(_BITS[state["bit_generator"]]()),
    ),
}
