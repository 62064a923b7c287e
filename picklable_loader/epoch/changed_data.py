"""Changes in dataset or collate_fn that the workers of a pass and of its resume see differently.

The program may make them while workers have copies: these go on with the earlier value, as in
torch. Workers of a resume are new, and have the later one. Or a sampler makes them in ``__iter__``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ..core.cursor import Cursor
from ..errors import warn
from ..fetching.worker.collected import Look
from ..fetching.worker.collected import changed as changed_items
from ..fetching.worker.collected import look
from ..rng.reads import ATOMS
from .spec import Spec

#: how many datasets are looked at, how many attributes of each, and how many datasets in a list
_MOST = 64


def noted(parts: dict[str, Any], defaults: bool = True) -> dict[str, Any]:
    """By path, what the attributes of a loader's parts, and of datasets in them, are at the moment.

    ``parts`` are the dataset, collate_fn and the like by their names; the workers' job refers to
    them, so no other object has their ``id`` meanwhile.

    Numbers and text are noted as they are, containers, arrays and transforms by their identity.
    An attribute that is None or empty may be filled when it is first needed: None. With
    ``defaults``, numbers and text of a class count for an object that may be given its own.
    """
    found: dict[str, Any] = {f"loader.{name}": id(part) for name, part in parts.items()}
    owners = (owner for name, part in parts.items() for owner in within(part, f"loader.{name}"))
    for path, owner in owners:
        of_class = _defaults(type(owner)) if defaults else {}
        for name, value in {**of_class, **dict(_attributes(owner))}.items():
            at, kind = f"{path}.{name}", type(value)
            if kind in ATOMS:
                found[at] = value if value is None else (kind, value)
            elif kind in (list, tuple, dict, set):
                found[at] = (kind, id(value)) if value else None
            elif kind in (np.ndarray, torch.Tensor) or callable(value):
                found[at] = kind, id(value)
    return found


def within(dataset: Any, path: str = "loader.dataset") -> Iterator[tuple[str, Any]]:
    """By path, a dataset, and those in its attributes and in the lists and dicts there."""
    ahead, seen = [(path, dataset)], {id(dataset)}
    for path, owner in ahead:
        yield path, owner
        for name, value in _attributes(owner):
            held: Any = {"": value}
            if type(value) in (list, tuple):
                held = {f"[{n}]": each for n, each in enumerate(value[:_MOST])}
            elif type(value) is dict:
                held = {f"[{key!r}]": value[key] for key in islice(value, _MOST)}
            for at, each in held.items():
                if isinstance(each, Dataset) and id(each) not in seen and len(seen) < _MOST:
                    seen.add(id(each))
                    ahead.append((f"{path}.{name}{at}", each))


def _attributes(owner: Any) -> list[tuple[str, Any]]:
    return list(islice(getattr(owner, "__dict__", {}).items(), _MOST))


def _defaults(kind: type[Any]) -> dict[str, Any]:
    """Numbers and text that a class of the program's has."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] not in ("torch", "typing", "builtins"):
            found |= {name: each for name, each in vars(base).items() if type(each) in ATOMS}
    return {name: each for name, each in found.items() if not name.startswith("__")}


def changed(parts: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """The paths to what has changed since workers were started, where ``given`` was `noted`."""
    now = noted(parts, defaults=False) if given else {}
    return [at for at, was in given.items() if was is not None and now.get(at, was) != was]


def warn_of_changed(parts: dict[str, Any], given: dict[str, Any]) -> None:
    """Warn, once for some persistent workers, of what has `changed`; ``given`` is then cleared."""
    if names := changed(parts, given):
        given.clear()
        warn(
            f"{', '.join(names[:4])}{', ...' if names[4:] else ''} has changed since the "
            "persistent workers were started: they go on with the earlier value, and the new "
            "workers of a resume would have this one. Build a new loader where you change it; or "
            "give the dataset set_epoch(), which loader.set_epoch() calls in the workers as well"
        )


def watch_replay(spec: Spec, cursor: Cursor, replay: Callable[[], None], unpickled: bool) -> None:
    """Bring a sampler to its position; warn if it changes the dataset on the way.

    Args:
        spec, cursor: of the pass that goes on.
        replay: does it; it calls ``iter(sampler)``, perhaps.
        unpickled: the dataset came with the sampler, and is as the pass had changed it.
    """
    if spec.known or spec.iterable or cursor.order is None:
        replay()
        return
    parts = {"dataset": spec.dataset}
    before = look(parts)
    replay()
    now = look(parts)
    if not (spec.workers or unpickled):
        if not cursor.epoch:
            return
        now = Look(now.items, {})  # to set a number again changes nothing
    if names := changed_items(before, now):
        warn(
            f"the sampler {type(spec.sampler).__qualname__} has changed loader.{names[0]} while "
            "its indices were drawn again for this resume. Workers get the dataset as it is now, "
            "and those of the saved pass may have had another one; so may num_workers=0 after an "
            "earlier epoch, or in a pickle. If samples depend on it, the resume gives other ones. "
            "Change the dataset in a set_epoch(epoch) of its own, by the epoch alone: loader."
            "set_epoch() calls it in workers as well"
        )
