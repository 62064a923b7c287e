"""Kinds: the loaders that are tormented."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from picklable_loader import DataLoader

from .datasets import Counting, Generated, Noisy, Pickled, Remembering, Uneven, WithState

__all__ = ["KINDS", "Kind"]

_SAMPLES = 96
_BATCH = 4
#: streams of iterable-style data; the number of workers is another one each time
_STREAMS = 3


@dataclass(frozen=True)
class Kind:
    """A loader that can be built anew.

    Attributes:
        name: what it is called.
        arguments: makes its dataset, its sampler and all that decides about its batches.
        workers: how many workers there may be.
        epochs: how many a run has.
        unordered: ``in_order=False``: only which batches come in an epoch is certain.
        lives_on: ``persistent_workers=True``.
    """

    name: str
    arguments: Callable[[], dict[str, Any]]
    workers: tuple[int, ...] = (0, 1, 2, 3, 4)
    epochs: int = 8
    unordered: bool = False
    lives_on: bool = False

    def loader(self, workers: int, **circumstances: Any) -> DataLoader[Any]:
        """Build it."""
        arguments = {"seed": 11, **circumstances, **self.arguments()}
        persistent = self.lives_on and workers > 0
        return DataLoader(
            num_workers=workers,
            persistent_workers=persistent,
            in_order=not self.unordered,
            max_task_deaths=_NEVER_GIVE_UP,
            **arguments,
        )


#: here, that a worker dies is never the task's fault
_NEVER_GIVE_UP = 10**6


def _shuffled(**more: Any) -> dict[str, Any]:
    return {"dataset": Noisy(_SAMPLES), "batch_size": _BATCH, "shuffle": True, **more}


def _generator() -> dict[str, Any]:
    return _shuffled(seed=None, generator=torch.Generator().manual_seed(3))


def _worker_seeds() -> dict[str, Any]:
    return _shuffled(seeding="worker", schedule="round_robin")


def _sampled() -> dict[str, Any]:
    return {"dataset": Noisy(_SAMPLES), "batch_sampler": Uneven(_SAMPLES)}


def _streams(dataset: type[Generated], **more: Any) -> dict[str, Any]:
    return {"dataset": dataset(_SAMPLES), "batch_size": _BATCH, "num_streams": _STREAMS, **more}


def _counting() -> dict[str, Any]:
    return _shuffled(dataset=Counting(_SAMPLES), num_streams=_STREAMS)


def _remembering() -> dict[str, Any]:
    return _streams(Remembering, snapshot_every_n_steps=4)


_SOME = (1, 2, 3, 4)

KINDS = {
    kind.name: kind
    for kind in (
        Kind("map", _shuffled),
        Kind("map-persistent", _shuffled, lives_on=True),
        Kind("map-generator", _generator),
        Kind("map-sample-seeds", lambda: _shuffled(seeding="sample")),
        Kind("map-worker-seeds", _worker_seeds, workers=(2,)),
        Kind("map-unordered", _shuffled, unordered=True),
        Kind("sampler", _sampled),
        Kind("stateful-map", _counting),
        Kind("stateful-map-persistent", _counting, workers=_SOME, lives_on=True),
        Kind("state-dict", lambda: _streams(WithState)),
        Kind("state-dict-now-and-then", lambda: _streams(WithState, snapshot_every_n_steps=7)),
        Kind("state-dict-persistent", lambda: _streams(WithState), workers=_SOME, lives_on=True),
        Kind("state-dict-unordered", lambda: _streams(WithState), unordered=True),
        Kind("remembering", lambda: _streams(Remembering)),
        Kind("remembering-persistent", _remembering, workers=_SOME, lives_on=True),
        Kind("pickled", lambda: _streams(Pickled)),
        Kind("generator", lambda: _streams(Generated)),
    )
}
