"""The loaders whose saved states are kept for ever, and what they must go on to yield."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from laws.samplers import (
    DrawsAsItGoes,
    Grouped,
    MySamplerAgain,
    OwnPythonGenerator,
    ShufflesInPlaceLazily,
    StatefulAndCounting,
    from_numpy,
    from_torch,
)
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from picklable_loader import DataLoader, current_seed

N = 10
FOLDER = Path(__file__).parent


def seed_and_indices(samples: list[Any]) -> Any:
    """A batch: the seed of its augmentation, and which samples it has."""
    return [current_seed(), samples]


@dataclass(frozen=True)
class Golden:
    """One kept state."""

    name: str
    arguments: Callable[[], dict[str, Any]]
    #: batches that were delivered when it was saved; None: all of them, and StopIteration
    delivered: int | None = 2

    def make(self) -> DataLoader[Any]:
        arguments = {"batch_size": 3, "collate_fn": seed_and_indices, **self.arguments()}
        if "batch_sampler" in arguments:
            del arguments["batch_size"]
        return DataLoader(list(range(2 * N)), **arguments)

    def path(self, version: int) -> Path:
        """Where it is kept; states that hold tensors are not text."""
        suffix = "pt" if "MySampler" in self.name else "json"
        return FOLDER / f"format_{version}" / f"{self.name.replace(' ', '_')}.{suffix}"

    def __str__(self) -> str:
        return self.name


def generator() -> torch.Generator:
    made = torch.Generator()
    made.manual_seed(4)
    return made


GOLDEN = [
    Golden("sequential", dict),
    Golden("before the first", lambda: {"shuffle": True}, 0),
    Golden("after the end", lambda: {"shuffle": True}, None),
    Golden("shuffle", lambda: {"shuffle": True}),
    Golden("generator", lambda: {"shuffle": True, "generator": generator()}),
    Golden("seed", lambda: {"shuffle": True, "seed": 6}),
    Golden("seed after the end", lambda: {"shuffle": True, "seed": 6}, None),
    Golden("by sample", lambda: {"shuffle": True, "seed": 6, "seeding": "sample"}),
    Golden("by worker", lambda: {"shuffle": True, "seed": 6, "seeding": "worker"}),
    Golden("drop_last", lambda: {"drop_last": True, "seed": 6}),
    Golden(
        "replacement",
        lambda: {"sampler": RandomSampler(range(N), True, 40, generator())},
        12,
    ),
    Golden("repeated", lambda: {"sampler": RandomSampler(range(N), num_samples=25)}, 6),
    Golden("subset", lambda: {"sampler": SubsetRandomSampler(range(0, N, 2))}, 1),
    Golden("weighted", lambda: {"sampler": WeightedRandomSampler([1.0] * N, N)}),
    Golden("distributed", lambda: {"sampler": DistributedSampler(range(2 * N), 2, 1), "seed": 6}),
    Golden("draws from torch", lambda: {"sampler": DrawsAsItGoes(from_torch)}),
    Golden("draws from numpy", lambda: {"sampler": DrawsAsItGoes(from_numpy), "seed": 6}),
    Golden("own generator", lambda: {"sampler": OwnPythonGenerator()}),
    Golden("shuffles in place", lambda: {"sampler": ShufflesInPlaceLazily()}),
    Golden("stateful iterator", lambda: {"sampler": StatefulAndCounting()}),
    Golden("MySampler", lambda: {"sampler": MySamplerAgain(N, 1, 10)}),
    Golden("custom batches", lambda: {"batch_sampler": Grouped()}),
]
