"""Datasets whose samples are random in all three ways; small, and picklable by reference."""

from __future__ import annotations

import random
from collections.abc import Iterator
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
