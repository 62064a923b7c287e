"""Needs code: errors for what the safe door cannot read in an iterator, each with its path."""

from __future__ import annotations

from collections.abc import Iterator
from types import BuiltinMethodType, MethodType
from typing import Any

from ..errors import NeedsCodeError
from ..loader import DataLoader
from ..saving.absent import AbsentDataset, AbsentIterable
from ..saving.codecs import made, open_carried
from ..saving.packing import carrying
from ..standing import Standing

__all__ = ["is_unreadable", "needs_code", "unreadable"]


def needs_code(it: Any, thing: Any, reason: str) -> NeedsCodeError:
    """The error for a class, or a function, that somebody could trust.

    Args:
        it: the iterator, or loader, that refers to it.
        thing: the class or function.
        reason: what it is.
    """
    name = getattr(thing, "__qualname__", repr(thing))
    return NeedsCodeError(
        f"{_path(it, thing)} ({thing.__module__}.{name})",
        f"it is {reason}",
        "Save state_dict() instead, load with weights_only=False if you trust the file, or say "
        "safe_globals(..., trusted=[...]) if it may be called with any arguments",
    )


def is_unreadable(thing: Any) -> bool:
    """Nobody can trust it, whatever a file has it do."""
    return any(thing is each for each in (*_ABSENT, *_OPENED, getattr))


def unreadable(it: Any, thing: Any) -> NeedsCodeError:
    """The error for that."""
    if thing is getattr:
        return _looked_up(it)
    if thing in _OPENED:
        return _carried(it)
    return NeedsCodeError(
        "an iterator without its dataset (pickle_dataset=False)",
        "attach puts together anew what refers to that",
        "Save state_dict() instead, which holds no dataset either",
    )


_ABSENT, _OPENED = (AbsentDataset, AbsentIterable), (made, open_carried)


def _carried(it: Any) -> NeedsCodeError:
    """For what a codec carries."""
    ways = carrying(_loader_of(it))
    first, codec = next(iter(ways.items()), ("the sampler's iterator", "cloudpickle"))
    return NeedsCodeError(
        " and ".join(ways) or first,
        f"{codec} carries it, as code" if len(ways) < 2 else "codecs carry them, as code",
        "Define it at the top level of a module, save state_dict() instead, or load with "
        "weights_only=False if you trust the file",
    )


def _looked_up(it: Any) -> NeedsCodeError:
    """For methods, and functions that are one to pickle, such as ``torch.stack``."""
    path, found = next(
        (entry for entry in _walk(it) if isinstance(entry[1], MethodType | BuiltinMethodType)),
        ("a part of it", None),
    )
    return NeedsCodeError(
        f"{path} ({getattr(found, '__qualname__', 'a method')})",
        "it is looked up with getattr, with which a file could look up anything",
        "Call it in a function at the top level of a module, and trust that one: safe_globals(..., "
        "trusted=[...]); or save state_dict() instead",
    )


def _loader_of(it: Any) -> DataLoader[Any]:
    loader: DataLoader[Any] = it.loader if isinstance(it, Standing) else it
    return loader


def _path(it: Any, thing: Any) -> str:
    """Where in a loader something stands, or else an instance of it."""
    instance = "a part of it"
    for path, found in _walk(it):
        if found is thing:
            return path
        if type(found) is thing and instance == "a part of it":
            instance = path
    return instance


def _walk(it: Any) -> Iterator[tuple[str, Any]]:
    """What stands in a loader, each with its path."""
    waiting: list[tuple[str, Any]] = [("loader", _loader_of(it))]
    seen: set[int] = set()
    for path, found in waiting:  # it grows meanwhile: what is near comes first
        yield path, found
        if id(found) not in seen and len(waiting) < _MOST_PARTS:
            seen.add(id(found))
            waiting += _parts(path, found)


def _parts(path: str, owner: Any) -> list[tuple[str, Any]]:
    if isinstance(owner, dict):
        return [(f"{path}[{key!r}]", value) for key, value in owner.items()]
    if isinstance(owner, list | tuple):
        return [(f"{path}[{at}]", value) for at, value in enumerate(owner)]
    attributes = {} if isinstance(owner, type) else getattr(owner, "__dict__", {})
    if isinstance(owner, DataLoader):
        attributes = owner.__getstate__()  # what is beside that goes into no pickle
    return [(f"{path}.{name}", value) for name, value in attributes.items()]


_MOST_PARTS = 100_000
