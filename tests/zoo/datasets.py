"""Map-style datasets, most of them with samples that are random in all three ways."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

N = 10


class Boom(Exception):
    """What a broken sample raises."""


def noise() -> list[float]:
    """A number from each generator; the Gaussian ones are made in pairs and half of them kept."""
    return [
        torch.rand(()).item(),
        torch.randn(()).item(),
        np.random.rand(),
        np.random.standard_normal(),
        random.random(),
        random.gauss(0, 1),
    ]


def sample(index: Any) -> torch.Tensor:
    return torch.tensor([float(index), *noise()], dtype=torch.float64)


class Noisy(Dataset[torch.Tensor]):
    #: samples that were read in this process, from any copy
    reads = 0

    def __init__(self, size: int = N) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        Noisy.reads += 1
        return sample(index)


class NoisyInBulk(Noisy):
    """Reads a whole batch at once, with some noise that its samples share."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        Noisy.reads += len(indices)
        shared = random.random()
        return [sample(index) + shared for index in indices]


class Broken(Noisy):
    """Some samples can never be read."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in (4, 8):
            raise Boom(f"sample {index}")
        return super().__getitem__(index)


class NoisyStream(IterableDataset[torch.Tensor]):
    """Iterable-style; each worker yields its share."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(start, N, step):
            Noisy.reads += 1
            yield sample(index)


def noisy_collate(samples: list[torch.Tensor]) -> torch.Tensor:
    """A collate_fn that draws as well."""
    return torch.stack(samples) + torch.rand(())


def as_they_are(samples: Any) -> Any:
    """A collate_fn that joins nothing."""
    return samples


class Numbers(Dataset[int]):
    """Each sample is its own index."""

    def __init__(self, size: int = 12) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index

    def __repr__(self) -> str:
        return f"Numbers({self.size})"


class Epochal(Numbers):
    """Its samples say which epoch it was told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> int:
        return index + 100 * self.epoch


class Reads:
    """A state for the dataset beside it: each sample says how many this copy gave, in any epoch."""

    reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return super().__getitem__(index) + 1000 * self.reads  # type: ignore[misc]

    def state_dict(self) -> dict[str, int]:
        return {"reads": self.reads}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.reads = state["reads"]


class CountedNumbers(Reads, Numbers):
    """Map-style, with a state."""


class CountedNoise(Reads, Noisy):
    """Map-style, with a state and noise."""


class Gated(Numbers):
    """From some sample on it waits until the gate is opened, in whatever process."""

    gate = multiprocessing.get_context("fork").Event()

    def __init__(self, size: int, waiting: range) -> None:
        super().__init__(size)
        self.waiting = waiting

    def __getitem__(self, index: int) -> int:
        assert index not in self.waiting or self.gate.wait(60)
        return index


class Made(Dataset[Any]):
    """Calls `make(index)` for each sample."""

    def __init__(self, make: Callable[[int], Any], size: int = 4) -> None:
        self.make, self.size = make, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Filled(Dataset[torch.Tensor]):
    """Sample i is full of i, on the CPU wherever other tensors are made."""

    def __init__(self, length: int = 80, size: int = 12_000) -> None:
        self.length, self.size = length, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.size,), float(index), device="cpu")
