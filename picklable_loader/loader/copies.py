"""Copies of loaders and iterators that no other thread moves, and that share what cannot change."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from ..errors import CannotSaveError, UsageError
from ..rng.generators import GLOBAL
from ..saving.pickles.parts import Decision
from .internals import Owner
from .setup import packing_of, spec_of


def shared() -> dict[int, Any]:
    """The memo of a deepcopy that shares the program's global generators."""
    return {id(each): each for each in GLOBAL.values()}


@contextmanager
def named_copy(
    what: str = "the loader",
    why: str = "a copy needs a sampler and other parts of its own, and copying them failed",
    way_out: str = "Take state_dict() instead",
) -> Iterator[None]:
    """A context for copies of people's objects: an error says what was copied, and the way out."""
    try:
        yield
    except (CannotSaveError, UsageError, Warning):  # a filter may make an error of a warning
        raise
    except Exception as error:  # whatever is in people's samplers and datasets
        raise CannotSaveError(what, f"{why} ({type(error).__name__}: {error})", way_out) from error


def alone(iterator: Any, behind: int = 0) -> dict[str, Any]:
    """The pickled form of an iterator, with a loader of its own that shares what cannot change.

    Two iterators of one loader draw from the same generators and the same sampler. A copy of an
    iterator is to go on undisturbed, so it has copies of these. For ``behind`` see
    `LoaderIterator.state_dict`.
    """
    saved: dict[str, Any] = iterator._saved(behind)
    saved["loader"], memo = _alone(saved["loader"])
    saved["state"] = copy.deepcopy(saved["state"], memo)
    return saved


def apart(owner: Any) -> Any:
    """A copy of a loader, or of an iterator's state, to pickle while another thread moves it.

    Pickle reads sampler, generators and dataset one after the other, long after it has asked for
    them. So it gets copies, which nobody moves. CannotSaveError: something cannot be copied.
    """
    is_loader = isinstance(owner, TorchDataLoader)
    loader: Any = owner if is_loader else owner.loader
    # An iteration in this process changes the dataset itself.
    spec = spec_of(loader)
    moves_data = spec.iterable and not (spec.workers or spec.stateful)
    with named_copy(
        "the sampler, or the dataset of an iteration in this process,",
        "another thread calls next(), so that it has to be copied, which failed",
        "Take state_dict() instead, or pickle in the thread that calls next()",
    ):
        if is_loader:
            copied = found = copy.deepcopy(loader) if moves_data else _alone(loader)[0]
        else:
            found = copy.deepcopy(owner.__getstate__()) if moves_data else alone(owner)
            copied = found["loader"]
        copied._pl.decision = Decision(packing_of(loader).codecs)
        return found


def _alone(loader: Owner[Any]) -> tuple[Owner[Any], dict[int, Any]]:
    """A copy of a loader with a sampler and generators of its own; what was copied for it."""
    memo: dict[int, Any] = {id(loader.dataset): loader.dataset, **shared()}
    if spec_of(loader).known:
        owned = getattr(loader.sampler, "__dict__", {}).values()
        memo.update({id(value): value for value in owned if not isinstance(value, torch.Generator)})
    copied = copy.copy(loader)
    for name in ("sampler", "batch_sampler", "generator"):
        copied.__dict__[name] = copy.deepcopy(loader.__dict__[name], memo)
    copied._pl.history.source.generators = spec_of(copied).generators
    return copied, memo
