"""Anatomy: what a loader is made of, as far as its order and its state depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset

from ..core.checks import check_count
from ..core.order import SequenceOrder
from ..core.plan import Grouping, Plan, Unit
from ..orders.attributes import Frozen, freeze, memory
from ..orders.torch_samplers import data_of, describe, draws_at_once, is_known
from ..rng.generators import RNGS
from ..saving.states.checksum import checksum
from .options import check_budget

if TYPE_CHECKING:
    from ..loader.loader import DataLoader

__all__ = [
    "Anatomy",
    "anatomy",
    "built",
    "draws_from",
    "fingerprint",
    "generators",
    "is_iterable",
    "length_of",
    "position",
    "remaining",
    "unstarted",
]


@dataclass(frozen=True)
class Anatomy:
    """How a loader's sampler becomes tasks."""

    #: None for iterable-style data
    sampler: Any
    #: there is an order for samplers of this kind
    known: bool
    grouping: Grouping
    #: torch's loader itself calls iter() of the sampler, at once; a BatchSampler does so later
    opened_by_loader: bool


class _LiveGrouping:
    """A grouping whose batch size may be changed in mid-epoch, as BatchSampler lets it be."""

    unit = Unit.SAMPLE_OF_BATCH
    drop_last = False

    def __init__(self, batch_sampler: BatchSampler) -> None:
        self._batch_sampler = batch_sampler

    @property
    def batch_size(self) -> int:
        return self._batch_sampler.batch_size


def is_iterable(loader: DataLoader[Any]) -> bool:
    """The loader's dataset is iterable-style."""
    return isinstance(loader.dataset, IterableDataset)


def anatomy(loader: DataLoader[Any]) -> Anatomy:
    """The anatomy of a loader as it is set up now."""
    batch_sampler: Any = loader.batch_sampler
    if is_iterable(loader):
        size = loader.batch_size
        unit = Unit.SAMPLE if size is None else Unit.SAMPLE_OF_BATCH
        return Anatomy(None, True, Grouping(unit, size or 1), False)
    if batch_sampler is None:
        return _around(loader.sampler, Grouping(Unit.SAMPLE), True)
    if isinstance(batch_sampler, BatchSampler) and _plain(batch_sampler):
        unit, size = Unit.SAMPLE_OF_BATCH, batch_sampler.batch_size
        grouping = Grouping(unit, size, batch_sampler.drop_last)
        if not batch_sampler.drop_last:
            grouping = cast(Grouping, _LiveGrouping(batch_sampler))
        return _around(batch_sampler.sampler, grouping, False)
    return _around(batch_sampler, Grouping(Unit.BATCH), True)


def _around(sampler: Any, grouping: Grouping, opened_by_loader: bool) -> Anatomy:
    return Anatomy(sampler, is_known(sampler), grouping, opened_by_loader)


def _plain(batch_sampler: BatchSampler) -> bool:
    return type(batch_sampler).__iter__ is BatchSampler.__iter__


def generators(loader: DataLoader[Any]) -> dict[str, torch.Generator]:
    """The generators that the loader and its sampler were given."""
    sampler = anatomy(loader).sampler
    given = {"loader": loader.generator, "sampler": getattr(sampler, "generator", None)}
    return {name: generator for name, generator in given.items() if generator is not None}


def budget_for(loader: DataLoader[Any], wish: Any) -> tuple[int, int]:
    """What a ``prefetch_budget`` begins with, and how far it may grow; 0: not at all.

    Raises:
        ValueError, TypeError: it is neither "auto" nor a whole number from 1.
    """
    if not isinstance(wish, str):
        check_count("prefetch_budget", wish)
        return int(wish), 0
    check_budget(wish)
    return 2 * loader.num_workers, 8 * loader.num_workers if draws_unnoticed(loader) else 0


def draws_unnoticed(loader: DataLoader[Any]) -> bool:
    """Nobody can notice how far ahead of the consumer the sampler is drawn from.

    Samplers that are not torch's may; so may those who look at the generator that they gave, or use
    it for something else, unless its draws are over.
    """
    parts = anatomy(loader)
    return parts.known and (not generators(loader) or draws_at_once(parts.sampler))


def fingerprint(loader: DataLoader[Any], parts: Anatomy | None = None) -> dict[str, Any]:
    """The properties that must be the same where a state is loaded."""
    parts = parts or anatomy(loader)
    fits: dict[str, Any] = {
        "dataset_length": None if is_iterable(loader) else length_of(loader.dataset),
        "sampler": "iterable-style dataset" if is_iterable(loader) else describe(parts.sampler),
        "sampler_length": length_of(parts.sampler) if parts.known else None,
        "batch_size": parts.grouping.batch_size,
        "batches_from": parts.grouping.unit.value,
        "drop_last": bool(loader.drop_last),
        "seeding": loader._pl.options.seeding,
        "seed": loader._pl.options.seed,
    }
    data = data_of(parts.sampler)
    if data is not None:
        fits["sampler_checksum"] = checksum(data)
    if loader._pl.options.seeding == "worker":
        fits["num_workers"] = loader.num_workers
    if loader._pl.streamed:
        fits["dataset"] = type(loader.dataset).__qualname__
    return fits


def remaining(loader: DataLoader[Any], state: dict[str, Any]) -> int | None:
    """Batches that a state leaves to be delivered; None where the sampler has no length."""
    parts = anatomy(loader)
    length = None if is_iterable(loader) else length_of(parts.sampler)
    if length is None:
        return None
    order = SequenceOrder(lambda: range(length))
    plan = Plan(order, parts.grouping, state["next_step"], state["position"])
    drawn = sum(entry[3] if len(entry) > 3 else 1 for entry in state["window"])
    return (plan.remaining() or 0) + drawn


def built(loader: DataLoader[Any]) -> Frozen:
    """The attributes of a loader's custom sampler."""
    parts = anatomy(loader)
    return {} if parts.known else freeze(parts.sampler, loader.dataset, loader._pl.source.lists)


def position(loader: DataLoader[Any], state: dict[str, Any], at_epoch_end: str) -> tuple[int, int]:
    """Epoch and step at which a loader goes on from a state."""
    if at_epoch_end == "next" and state["step"] and remaining(loader, state) == 0:
        return state["epoch"] + 1, 0
    return state["epoch"], state["step"]


def unstarted(
    loader: DataLoader[Any], parts: Anatomy | None = None, live: bool = False
) -> dict[str, Any]:
    """What must be known of a sampler whose iteration is yet to begin.

    Args:
        live: for a pickle, which may hold objects.
    """
    parts = parts or anatomy(loader)
    if not parts.known:
        return memory(parts.sampler, loader._pl.source, loader._pl.run is not None, live)
    told = getattr(parts.sampler, "epoch", None)
    if not isinstance(told, int | np.integer):
        return {}
    return {"attributes": {"epoch": ["plain", int(told)]}}


def draws_from(parts: Anatomy) -> set[str]:
    """The global generators that a loader's sampler may draw from, now or later."""
    return set() if parts.known else set(RNGS)


def length_of(dataset: Any) -> int | None:
    """How many samples a dataset has, or indices a sampler; None if it has no length."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
