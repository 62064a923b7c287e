"""Seeding of the global random number generators before people's code is called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ..core import seeds
from ..core.task import Task
from ..errors import UsageError
from ..randomness import seed_all

__all__ = ["Seeder", "current_seed"]


class _Here(threading.local):
    """The seed that this thread fetches with."""

    seed: int | None = None


_here = _Here()
#: the one set last, for threads that a dataset has started
_latest: int | None = None


def current_seed() -> int:
    """The seed of the batch (or sample) that is being fetched, for generators of your own.

    Python's, numpy's and torch's global generators are seeded from it already. Call this in a
    dataset or a ``collate_fn`` to seed any other one: a ``numpy.random.Generator``, a library with
    a generator of its own, CUDA.

    Returns:
        An int from 0 to 2**62 - 1 that depends on the loader's seed, the epoch and the step
        (``seeding="batch"``), or on the sample's position in the order (``"sample"``); with
        ``seeding="worker"`` the worker's seed, the same for all its batches.

    Raises:
        UsageError: no batch is being fetched here.
    """
    seed = _latest if _here.seed is None else _here.seed
    if seed is None:
        raise UsageError("current_seed() is known only while a batch is being fetched")
    return seed


def set_current(seed: int | None) -> int | None:
    """Make it the current seed; return the one before."""
    global _latest
    before, _here.seed, _latest = _here.seed, seed, seed
    return before


@dataclass(frozen=True, slots=True)
class Seeder:
    """Seeds everything, as one epoch's seeding mode says."""

    mode: str
    base_seed: int
    hooks: tuple[Callable[[int], object], ...] = ()

    @property
    def per_sample(self) -> bool:
        return self.mode == "sample"

    def before_batch(self, task: Task) -> None:
        """Before a map-style batch is fetched."""
        if self.mode == "batch":
            self._seed(seeds.batch_seed(self.base_seed, task.step))

    def before_sample(self, position: int) -> None:
        """Before the sample at that place of the order is fetched (``seeding="sample"``)."""
        self._seed(seeds.sample_seed(self.base_seed, position))

    def before_collate(self, position: int) -> None:
        """Before samples are collated, of which the first has that place in the order."""
        if self.mode == "sample":
            self._seed(seeds.batch_seed(self.base_seed, position))

    def before_stream(self, stream: int, ordinal: int) -> None:
        """Before a stream's ``ordinal``-th batch is fetched; 0 is the call of ``iter``."""
        if self.mode != "worker":
            self._seed(seeds.stream_seed(self.base_seed, stream, ordinal))

    def _seed(self, seed: int) -> None:
        set_current(seed)
        seed_all(seed)
        for hook in self.hooks:
            hook(seed)
