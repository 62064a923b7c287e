"""Seeding of the global random number generators before people's code is called."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from ...core.seeds import batch_seed, sample_seed, stream_seed
from ...core.task import Task
from ...rng.current import asked, set_current, with_sample_seeds
from ...rng.generators import capture_all, seed_all


@dataclass(frozen=True, slots=True)
class Seeder:
    """Seeds everything, as one epoch's seeding mode says."""

    #: "none": each worker goes on drawing (``seeding="worker"``), or nobody draws
    mode: Literal["batch", "sample", "none"]
    base_seed: int
    hooks: tuple[Callable[[int], object], ...] = ()
    rank: int = 0
    world: int = 1

    def before_batch(self, task: Task) -> None:
        """Before a map-style batch is fetched."""
        if self.mode == "batch":
            number = task.step * self.world + self.rank  # of the batch, over all ranks
            self._seed(batch_seed(self.base_seed, number))

    def before_sample(self, position: int) -> None:
        """Before the sample at that position in the order is fetched (``seeding="sample"``)."""
        self._seed(sample_seed(self.base_seed, position))

    def for_samples(self, positions: range) -> AbstractContextManager[None]:
        """While one call fetches samples at these positions (``seeding="sample"``)."""
        self.before_sample(positions[0])
        return with_sample_seeds(lambda: [sample_seed(self.base_seed, at) for at in positions])

    def before_collate(self, position: int) -> None:
        """Before samples are collated, of which the first has that position in the order."""
        if self.mode == "sample":  # the sample's, which no other batch has
            self._seed(batch_seed(self.base_seed, position))

    def before_stream(self, stream: int, ordinal: int) -> None:
        """Before a stream's ``ordinal``-th batch is fetched; 0 is the call of ``iter``."""
        if self.mode != "none":
            self._seed(stream_seed(self.base_seed, stream, ordinal))

    def _seed(self, seed: int) -> None:
        set_current(seed, of_batch=True)
        seed_all(seed)
        for hook in self.hooks:
            hook(seed)


class Draws:
    """Notes whether random numbers are drawn while samples are read.

    Args:
        hooked: a generator that nobody can look into is seeded as well.
    """

    def __init__(self, hooked: bool) -> None:
        #: some were
        self.some = hooked
        self._before: Any = None

    def begin(self) -> None:
        """Samples are going to be read."""
        self._before = None if self.some else (capture_all(), asked())

    def end(self) -> None:
        """They were read."""
        if self._before is not None:
            self.some = self._before != (capture_all(), asked())
            self._before = None
