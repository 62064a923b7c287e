"""The attributes of a sampler before its iteration began.

A sampler may change itself while it is iterated (an epoch counter, a list shuffled in place, a
generator of its own). Replaying it from the start needs its attributes as they were: `freeze`
takes them as plain values, `thaw` puts them back. The content of other objects and of
containers is found by its path, ``"inner.readers.0.rng"``.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from inspect import GEN_CREATED, getgeneratorstate
from types import GeneratorType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from ..errors import SYMPTOMS, CannotSaveError
from ..rng.generators import GLOBAL
from ..saving.pickles.by_reference import each_attribute
from ..saving.states.arrays import NotPlain
from ..saving.states.plain import SCALARS, Later, alike, decode, encode
from .attribute_rngs import ATTRIBUTE_RNGS, spawned
from .unknown import (
    CODE,
    OPAQUE,
    OTHERS,
    SEEDS,
    form_to_compare,
    is_programs,
)

#: an attribute's path from the sampler, which has the path "" -> [kind, plain value]
Frozen = dict[str, list[Any]]


def freeze(sampler: Any, other: Any = None) -> Frozen:
    """The attributes of a sampler, and of what it is made of, that are plain or random states.

    Args:
        sampler: the sampler.
        other: the loader's dataset, which the sampler may refer to and which is none of its own.
    """
    frozen: Frozen = {"": ["object", type(sampler).__qualname__]}
    seen = {id(sampler), id(other), *map(id, GLOBAL.values())}  # those are the program's
    visit = _Visit(frozen, seen, (sampler, other), {})
    visit.parts(sampler, "")
    return frozen


def changed(before: Frozen, *others: Frozen) -> Frozen:
    """The part of ``before`` that is different in any of the others, and can be put back.

    Absent there: attributes that only others have.
    """
    different = {
        path: [form[0], form[1].form] if type(form[1]) is Later else form
        for path, form in before.items()
        if form[0] not in OPAQUE
        and any(path not in other or not alike(form, other[path]) for other in others)
    }
    again = [path for path, form in before.items() if form[0] == "same"]
    touched = _with_owners(different) if again else set()
    different |= {path: before[path] for path in again if before[path][1] in touched}
    added = {path for other in others for path in other if path not in before}
    gone: Frozen = {path: ["absent", None] for path in sorted(added) if _may_lack(before, path)}
    return {**different, **gone}


def _with_owners(paths: Iterable[str]) -> set[str]:
    """The paths, and those of the objects that have them."""
    found: set[str] = set()
    for path in paths:
        while path and path not in found:
            found.add(path)
            path = path.rpartition(".")[0]
    return found


def placeable(frozen: Frozen, there: Frozen, sampler: Any, strict: bool) -> Frozen:
    """The attributes that can be set on a new sampler, which has the attributes ``there``.

    The others are left out: the sampler's state_dict has to make their owners. If ``strict``, an
    attribute of an object that the new sampler lacks raises CannotSaveError; an item of a list not.
    """
    found = {path: form for path, form in frozen.items() if path in there or _may_lack(there, path)}
    for path in frozen.keys() - found.keys() if strict else ():
        owner = path
        while owner not in there:
            owner = owner.rpartition(".")[0]
        kind, form = there[owner]
        if kind == "object" or (kind == "plain" and type(form) in SCALARS):
            what = f"the sampler {type(sampler).__qualname__}"
            why = f"its attribute {path} is of an object that a new sampler does not have"
            raise CannotSaveError(
                what, why, "Make that object in __init__, or hold it in state_dict"
            )
    return found


def small(frozen: Frozen) -> Frozen:
    """The numbers, texts, flags and generators of these attributes."""
    return {
        path: [kind, form]
        for path, (kind, form) in frozen.items()
        if kind in ATTRIBUTE_RNGS or (kind == "plain" and type(form) in SCALARS)
    }


def _may_lack(before: Frozen, path: str) -> bool:
    """A path is of an attribute, and not of an item; its owner was there."""
    owner, _, name = path.rpartition(".")
    kind = before.get(owner, [None])[0]
    return name != SEEDS and (kind == "object" or kind in ATTRIBUTE_RNGS)


def thaw(sampler: Any, frozen: Frozen) -> None:
    """Put attributes back as they were; ValueError if the frozen form is damaged."""
    # An object that several attributes refer to is there before they do.
    for path, entry in sorted(frozen.items(), key=lambda each: each[1][:1] == ["same"]):
        try:
            kind, form = entry
            # An attribute that may not be set need not be.
            if kind not in OPAQUE and not alike(entry, look(sampler, path)):
                _put(sampler, path.split("."), kind, form)
        except SYMPTOMS as error:
            raise ValueError(f"{path}: {error}") from None


def look(sampler: Any, path: str) -> list[Any] | None:
    """The form of the value at a path; None if there is none that can be put back."""
    try:
        return _encode(at_path(sampler, path))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None


def objects_in(sampler: Any, frozen: Frozen) -> dict[str, Any]:
    """By path, the generators, lists, arrays and the like, which its iterators may refer to."""
    return {
        path: at_path(sampler, path)
        for path, (kind, form) in frozen.items()
        if kind in ATTRIBUTE_RNGS or (kind == "plain" and type(form) not in SCALARS)
    }


def rngs_in(sampler: Any, other: Any) -> set[int]:
    """The ids of the generators that `freeze` sees in a sampler; ``other``: see there."""
    frozen = freeze(sampler, other)
    return {
        id(at_path(sampler, path)) for path, form in frozen.items() if form[0] in ATTRIBUTE_RNGS
    }


def _put(sampler: Any, path: list[str], kind: str, form: Any) -> None:
    target, name = _owner(sampler, path), path[-1]
    if kind == "plain":
        _assign(sampler, path, decode(form))
    elif kind == "same":
        known = form.split(".")
        _assign(sampler, path, _get(_owner(sampler, known), known[-1]))
    elif kind == "member":
        _assign(sampler, path, _member(_get(target, name), *form))
    elif kind == "absent":
        # The class may have that name as well: a default, or a descriptor that cannot be deleted.
        own, attribute = getattr(target, "__dict__", {}), name.replace("\t", ".")
        if attribute in own:
            del own[attribute]
        elif not _is_container(target) and name in dict(_parts(target)):
            delattr(target, attribute)
    else:
        _put_rng(target, name, kind, form)


def _owner(sampler: Any, path: list[str]) -> Any:
    """Who has the attribute or item at a path; ValueError if it is none of the sampler's own."""
    target = sampler
    for name in path[:-1]:
        target = _get(target, name)
        if not _is_container(target) and not _belongs_to(_package(sampler), target):
            raise ValueError(f"{name} is not the sampler's own")
    if path[-1].startswith("__"):
        raise ValueError("Python's own attributes are no sampler's")
    return target


def _assign(sampler: Any, path: list[str], value: Any) -> None:
    """Set what is at a path.

    An object that may not be changed, as one of a frozen dataclass, is replaced by another one.
    """
    target, name = _owner(sampler, path), path[-1]
    try:
        _set(target, name, value)
    except AttributeError:
        if target is not sampler:
            target = copy.copy(target)
        object.__setattr__(target, name.replace("\t", "."), value)
        if target is not sampler:
            _assign(sampler, path[:-1], target)


def _put_rng(target: Any, name: str, kind: str, form: Any) -> None:
    rng = ATTRIBUTE_RNGS[kind]
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
    #: the sampler, and the object that is none of its own
    ends: tuple[Any, Any]
    #: by ``id``, the first path to an object
    paths: dict[int, str]

    def parts(self, owner: Any, prefix: str) -> None:
        for name, value in _parts(owner):
            path = f"{prefix}{name}"
            if isinstance(owner, Dataset) and not isinstance(value, Sampler):
                continue  # all else in there is data: Lightning's has a list of all indices
            if id(value) in self.seen:
                if id(value) in self.paths:
                    self.frozen[path] = ["same", self.paths[id(value)]]
                continue
            form = _encode(value)
            if form is not None:
                self.frozen[path] = form
                if form[0] in ATTRIBUTE_RNGS:
                    self._of_rng(path, value)
                elif isinstance(value, _MUTABLE):
                    self._note(path, value)
            elif _is_container(value) or _belongs_to(_package(self.ends[0]), value):
                self._note(path, value)
                if _is_container(value):
                    self.frozen[path] = ["members", [id(item) for item in _items(value)]]
                else:
                    self.frozen[path] = ["object", type(value).__qualname__]
                self.parts(value, f"{path}.")
            else:
                kind = "foreign" if is_programs(value) else "unknown"
                self.frozen[path] = [kind, form_to_compare(value, *self.ends)]

    def _note(self, path: str, value: Any) -> None:
        """The next attribute that refers to the object says so."""
        self.seen.add(id(value))
        self.paths[id(value)] = path

    def _of_rng(self, path: str, value: Any) -> None:
        if (seeds := spawned(value)) is not None:
            self.frozen[f"{path}.{SEEDS}"] = ["unknown", seeds]
        if id(value) not in self.paths and _belongs_to(_package(self.ends[0]), value):
            self.paths[id(value)] = path  # of a class of the program's, which may have attributes
            self.parts(value, f"{path}.")


def _belongs_to(package: str, value: Any) -> bool:
    """An object is the sampler's own: an inner sampler, or a helper of the same package.

    Anything else (a logger, a model, a configuration) may be the whole program's.
    """
    if isinstance(value, (*CODE, *OTHERS, Enum)):
        # Lightning's DistributedSamplerWrapper has the program's sampler in a "dataset".
        within = vars(value).values() if isinstance(value, Dataset) else ()
        return any(isinstance(part, Sampler) for part in within)
    return isinstance(value, Sampler) or _package(value) == package


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
        for name, value in each_attribute(owner):
            yield name.replace(".", "\t"), value  # as in a dict


def _names(owner: dict[Any, Any]) -> dict[str, Any]:
    """The keys of a dict by names without points: a tab replaces one, as no repr has a tab."""
    keys = [key for key in dict.__iter__(owner) if type(key) in SCALARS]
    plain = {k: k for k in keys if type(k) is str and "." not in k and k[:1] != "["}
    return plain | {f"[{key!r}]".replace(".", "\t"): key for key in keys if key not in plain}


def _items(container: Any) -> list[Any]:
    """The items of a container, whatever ``__iter__`` its class has: a sampler's own draws."""
    kind: Any = next(kind for kind in (list, tuple, deque, dict) if isinstance(container, kind))
    return list(kind.values(container) if kind is dict else kind.__iter__(container))


def at_path(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = _get(owner, name)
    return owner


def _get(owner: Any, name: str) -> Any:
    if isinstance(owner, dict):
        return owner[_names(owner)[name] if name[:1] == "[" else name]
    if isinstance(owner, list | tuple | deque):
        return owner[int(name)]
    return getattr(owner, name.replace("\t", "."))


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, list | deque):
        owner[int(name)] = value
    elif isinstance(owner, dict):
        owner[_names(owner)[name] if name[:1] == "[" else name] = value
    elif not isinstance(owner, tuple):  # the values of a tuple cannot have changed
        setattr(owner, name.replace("\t", "."), value)


#: plain values that stay one object where several attributes refer to it
_MUTABLE = (list, dict, set, deque, bytearray, np.ndarray, torch.Tensor)
#: containers that C can write
_BUILT_IN = (list, tuple, dict, set, frozenset)


def _encode(value: Any) -> list[Any] | None:
    """[kind, plain value] of what can be compared as a whole."""
    for name, rng in ATTRIBUTE_RNGS.items():
        if isinstance(value, rng.kind) and not isinstance(value, random.SystemRandom):
            return [name, rng.save(value)]
    if hasattr(value, "__next__") and not hasattr(value, "__dict__"):
        if isinstance(value, GeneratorType) and getgeneratorstate(value) == GEN_CREATED:
            return ["unread", value.__qualname__]  # a new sampler has one that gives the same
        return ["iterator", id(value)]
    try:
        if isinstance(value, Enum):
            return ["member", [type(value).__qualname__, encode(value.value)]]
        if type(value) in _BUILT_IN and (written := Later.of(value)) is not None:
            return ["plain", written]
        return ["plain", encode(value)]
    except NotPlain:
        return None


def _member(found: Any, kind: str, form: Any) -> Enum:
    """A member of the class of the present member."""
    if not isinstance(found, Enum) or type(found).__qualname__ != kind:
        raise ValueError(f"there is no member of {kind}")
    return type(found)(decode(form))
