"""What is loaded: data of every kind of state, slow enough to be hit in the middle."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info
from zoo.streams import SavedWalk, Walk

__all__ = ["Counting", "Generated", "Noisy", "Pickled", "Remembering", "Uneven", "WithState"]

#: seconds that a sample takes
_SAMPLE_S = 0.0003


def noisy(index: int) -> dict[str, Any]:
    """A sample with random augmentation, from all three generators."""
    time.sleep(_SAMPLE_S)
    return {
        "index": index,
        "torch": torch.rand(8) + index,
        "numpy": np.random.rand(3),
        "python": random.random(),
    }


class Noisy(Dataset[Any]):
    """Map-style."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**noisy(index), "large": torch.full((4096,), index, dtype=torch.float64)}


class Counting(Noisy):
    """Map-style with a state: how often this copy was read."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.reads = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads += 1
        return {**noisy(index), "reads": self.reads}

    def state_dict(self) -> dict[str, int]:
        return {"reads": self.reads}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.reads = state["reads"]


class Uneven(Sampler[list[int]]):
    """A batch sampler of somebody's own: batches of any size, from a generator of its own."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.chance = random.Random(5)

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(self.length))
        self.chance.shuffle(order)
        while order:
            size = self.chance.randint(1, 7)
            yield order[:size]
            del order[:size]


class Generated(IterableDataset[Any]):
    """Iterable-style: a generator, into which nobody can look; streams of unequal length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def share(self) -> range:
        """The samples of the stream at hand."""
        info = get_worker_info()
        if info is None:
            return range(self.length)
        return range(info.id, self.length - 11 * info.id, info.num_workers)

    def __iter__(self) -> Iterator[Any]:
        for index in self.share():
            yield noisy(index)


class Pickled(Generated):
    """Iterable-style: its iterator is an object that pickle can save."""

    def __iter__(self) -> Iterator[Any]:
        return Walk(self.share(), noisy)


class WithState(Generated):
    """Iterable-style: its iterator has torchdata's protocol."""

    def __iter__(self) -> Iterator[Any]:
        return SavedWalk(self.share(), noisy)


class Remembering(Generated):
    """Iterable-style with a state of its own, which goes on from epoch to epoch."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.reads = self.passes = self.at = 0

    def __iter__(self) -> Iterator[Any]:
        share = self.share()
        while self.at < len(share):
            self.at += 1
            self.reads += 1
            yield {**noisy(share[self.at - 1]), "reads": self.reads, "passes": self.passes}
        self.at = 0
        self.passes += 1

    def state_dict(self) -> dict[str, int]:
        return {"reads": self.reads, "passes": self.passes, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.reads, self.passes, self.at = state["reads"], state["passes"], state["at"]
