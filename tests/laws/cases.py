"""The rows of the matrix: every kind of sampler, dataset and option, as loaders to be built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler
from zoo import odd_samplers as odd
from zoo import samplers as own
from zoo.datasets import Broken, N, Noisy, NoisyInBulk, NoisyStream, noisy_collate

from picklable_loader import DataLoader

DATA = range(N)
Arguments = Callable[[], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Case:
    """A way of building a loader, anew each time that a program would."""

    name: str
    arguments: Arguments
    dataset: Callable[[], Any] = Noisy
    #: batches to take of an epoch; None: all
    limit: int | None = None
    #: torch calls iter(sampler) twice when it starts workers, and this sampler notices
    counts_iters: bool = False
    #: the state goes on under the same number of workers only
    same_workers: bool = False
    #: parts of the state that are the user's own are plain
    json: bool = True
    #: what stands for batch_size=3
    batching: dict[str, Any] = field(default_factory=lambda: {"batch_size": 3})

    def make(self, num_workers: int = 0, **more: Any) -> DataLoader[Any]:
        arguments = {**self.batching, **self.arguments(), "num_workers": num_workers, **more}
        if arguments.get("batch_sampler") is not None:
            del arguments["batch_size"]
        return DataLoader(self.dataset(), **arguments)

    @property
    def has_own_seed(self) -> bool:
        """Nothing is drawn from a global generator."""
        return bool(self.arguments().keys() & {"seed", "generator"})

    def __str__(self) -> str:
        return self.name


def generator(seed: int = 11) -> torch.Generator:
    made = torch.Generator()
    made.manual_seed(seed)
    return made


def four_batches(num_workers: int = 0, **more: Any) -> DataLoader[Any]:
    """A loader of random samples in random order."""
    arguments = {"batch_size": 3, "shuffle": True, "seed": 7, "num_workers": num_workers}
    return DataLoader(Noisy(), **{**arguments, **more})


def sampler(name: str, make: Callable[[], Any], **more: Any) -> Case:
    return Case(name, lambda: {"sampler": make()}, **more)


def batch_sampler(name: str, make: Callable[[], Any], **more: Any) -> Case:
    return Case(name, lambda: {"batch_sampler": make()}, **more)


def distributed(rank: int, **more: Any) -> Callable[[], Any]:
    return lambda: DistributedSampler(range(2 * N - 1), num_replicas=2, rank=rank, **more)


SEEKABLE = [
    Case("sequential", dict),
    Case("drop_last", lambda: {"drop_last": True}),
    Case("shuffle", lambda: {"shuffle": True}),
    Case("shuffle, generator", lambda: {"shuffle": True, "generator": generator()}),
    Case("generator", lambda: {"generator": generator()}),
    sampler("random, generator", lambda: RandomSampler(DATA, generator=generator())),
    Case(
        "two generators",
        lambda: {
            "sampler": RandomSampler(DATA, generator=generator(1)),
            "generator": generator(2),
        },
    ),
    sampler("replacement", lambda: RandomSampler(DATA, replacement=True)),
    sampler("replacement, many", lambda: RandomSampler(DATA, True, 36)),
    sampler("replacement, generator", lambda: RandomSampler(DATA, True, 34, generator())),
    sampler("more than all", lambda: RandomSampler(DATA, num_samples=23)),
    sampler(
        "more than all, generator",
        lambda: RandomSampler(DATA, num_samples=23, generator=generator()),
    ),
    sampler("fewer than all", lambda: RandomSampler(DATA, num_samples=7)),
    sampler("subset", lambda: SubsetRandomSampler([1, 3, 5, 7, 8])),
    sampler("subset, generator", lambda: SubsetRandomSampler([1, 3, 5, 7, 8], generator())),
    sampler("weighted", lambda: WeightedRandomSampler([0.1 * (i + 1) for i in DATA], 14)),
    sampler(
        "weighted, no replacement",
        lambda: WeightedRandomSampler([0.1 * (i + 1) for i in DATA], 8, False, generator()),
    ),
    sampler("distributed", distributed(1, seed=2), dataset=lambda: Noisy(2 * N)),
    sampler("distributed, in order", distributed(0, shuffle=False), dataset=lambda: Noisy(2 * N)),
    sampler("distributed, drop_last", distributed(0, drop_last=True), dataset=lambda: Noisy(2 * N)),
    sampler("range", lambda: range(9, 0, -2)),
    sampler("list", lambda: [3, 1, 4, 1, 5, 9, 2, 6]),
    batch_sampler("list of batches", lambda: [[3, 1], [4], [1, 5, 9], [2]]),
    batch_sampler("batches", lambda: BatchSampler(RandomSampler(DATA), 4, True)),
]

CUSTOM = [
    sampler("torch as it goes", lambda: own.DrawsAsItGoes(own.from_torch)),
    sampler("numpy as it goes", lambda: own.DrawsAsItGoes(own.from_numpy)),
    sampler("random as it goes", lambda: own.DrawsAsItGoes(own.from_python)),
    sampler("torch at once", lambda: own.DrawsAtOnce(own.from_torch), counts_iters=True),
    sampler("numpy at once", lambda: own.DrawsAtOnce(own.from_numpy), counts_iters=True),
    sampler("random at once", lambda: own.DrawsAtOnce(own.from_python), counts_iters=True),
    sampler("own torch generator", own.OwnTorchGenerator),
    sampler("own numpy generator", own.OwnNumpyGenerator),
    sampler("own random.Random", own.OwnPythonGenerator),
    sampler("counts epochs", own.CountsEpochs, counts_iters=True),
    sampler("counts epochs lazily", own.CountsEpochsLazily),
    sampler("shuffles in place", own.ShufflesInPlace, counts_iters=True),
    sampler("shuffles in place lazily", own.ShufflesInPlaceLazily),
    sampler("endless", own.Endless, limit=6, counts_iters=True),
    sampler("without length", own.WithoutLength),
    sampler("plain iterator", own.PlainIterator, counts_iters=True),
    sampler("iterator with state_dict", own.StatefulIterator, counts_iters=True),
    sampler("iterator and generator in one state_dict", own.StatefulDrawing),
    sampler("iterator with state_dict, counts epochs", own.StatefulAndCounting, counts_iters=True),
    sampler("iterator with a position, counts epochs", own.PositionAndCounting, counts_iters=True),
    sampler("set_epoch", own.Told),
    sampler("around a torch sampler", lambda: own.Wrapped(RandomSampler(DATA))),
    sampler(
        "around a generator",
        lambda: own.Wrapped(RandomSampler(DATA, generator=generator())),
    ),
    sampler("permutes again", own.KeepsItsOrder, json=False),
    sampler("torchdata's MySampler", lambda: own.MySampler(N, 1, 10), json=False),
    sampler("MySampler with epochs", lambda: own.MySamplerAgain(N, 1, 10), json=False),
    batch_sampler("custom batches", own.Grouped),
    batch_sampler("tuples of indices", own.GroupedInTuples),
    batch_sampler("one list for all batches", own.GroupedInOneList),
    batch_sampler(
        "BatchSampler around a custom one",
        lambda: BatchSampler(own.DrawsAsItGoes(own.from_torch), 3, False),
    ),
]

ODD = [
    batch_sampler("buckets", odd.Buckets),
    sampler("tuples in a list", odd.OfTuples),
    sampler("numpy's numbers in a list", odd.OfNumpyNumbers, json=False),
    sampler("lists in a dict", odd.OfClasses),
    sampler("generators in a list", odd.ManyGenerators),
    sampler("a helper's state", odd.Helped),
    sampler("slots", odd.InSlots),
    sampler("private slots", odd.InPrivateSlots),
    sampler("a dict of generators by number", odd.ByKeys),
    sampler("frozen", odd.Frozen),
    sampler("read-only", odd.ReadOnly),
    sampler("knows its epoch only", odd.KnowsItsEpochOnly),
    sampler("half of the protocol", odd.SavesOnly),
    sampler("counts its saves", odd.CountsItsSaves),
    batch_sampler("begins again", odd.BeginsAgain),
    Case("a shared generator", odd.with_a_shared_generator),
    sampler("numpy's numbers", odd.InArrays, json=False, counts_iters=True),
    sampler("makes its generator", odd.MakesItsGenerator),
]

WITHOUT_BATCHES: dict[str, Any] = {"batching": {"batch_size": None}}
SHUFFLE: Arguments = lambda: {"shuffle": True}  # noqa: E731

DATASETS = [
    Case("in bulk", SHUFFLE, NoisyInBulk),
    Case("broken samples", SHUFFLE, Broken),
    Case("broken samples, one by one", SHUFFLE, Broken, **WITHOUT_BATCHES),
    Case("no batches, sequential", dict, **WITHOUT_BATCHES),
    Case("no batches, shuffle", SHUFFLE, **WITHOUT_BATCHES),
    sampler("no batches, weighted", lambda: WeightedRandomSampler([1.0] * N, N), **WITHOUT_BATCHES),
    sampler("no batches, custom", lambda: own.DrawsAsItGoes(own.from_torch), **WITHOUT_BATCHES),
    Case("custom, in bulk", lambda: {"sampler": own.ShufflesInPlaceLazily()}, NoisyInBulk),
    Case("custom, broken samples", lambda: {"sampler": own.DrawsAsItGoes(own.from_numpy)}, Broken),
    Case("noisy collate_fn", lambda: {"shuffle": True, "collate_fn": noisy_collate}),
    Case("iterable-style", dict, NoisyStream, same_workers=True),
    Case("iterable-style, drop_last", lambda: {"drop_last": True}, NoisyStream, same_workers=True),
    Case(
        "iterable-style, no batches",
        lambda: {"generator": generator()},
        NoisyStream,
        same_workers=True,
        **WITHOUT_BATCHES,
    ),
]

OPTIONS = [
    Case("seed", lambda: {"shuffle": True, "seed": 5}),
    Case("seed, replacement", lambda: {"sampler": RandomSampler(DATA, True, 34), "seed": 5}),
    Case("seed, more", lambda: {"sampler": RandomSampler(DATA, num_samples=23), "seed": 5}),
    Case(
        "seed, weighted",
        lambda: {"sampler": WeightedRandomSampler([1.0] * N, N), "seed": 5},
    ),
    Case(
        "seed, distributed",
        lambda: {"sampler": distributed(1)(), "seed": 5},
        dataset=lambda: Noisy(2 * N),
    ),
    Case("seed, torch", lambda: {"sampler": own.DrawsAsItGoes(own.from_torch), "seed": 5}),
    Case("seed, numpy", lambda: {"sampler": own.DrawsAtOnce(own.from_numpy), "seed": 5}),
    Case(
        "seed, random",
        lambda: {"sampler": own.ShufflesInPlace(), "seed": 5},
        counts_iters=True,
    ),
    Case("seed, iterable-style", lambda: {"seed": 5}, NoisyStream, same_workers=True),
    Case("seed, state_dict", lambda: {"sampler": own.StatefulIterator(), "seed": 5}),
    Case("seed, set_epoch", lambda: {"sampler": own.Told(), "seed": 5}),
    Case(
        "seed, around a torch sampler",
        lambda: {"sampler": own.Wrapped(RandomSampler(DATA)), "seed": 5},
    ),
    Case("seed, own", lambda: {"sampler": own.OwnNumpyGenerator(), "seed": 5}),
    Case("by sample", lambda: {"shuffle": True, "seeding": "sample"}),
    Case("by sample, seed", lambda: {"shuffle": True, "seeding": "sample", "seed": 5}),
    Case(
        "by sample, custom",
        lambda: {"sampler": own.DrawsAsItGoes(own.from_torch), "seeding": "sample"},
    ),
    Case("by worker", lambda: {"shuffle": True, "seeding": "worker"}, same_workers=True),
    Case(
        "by worker, seed",
        lambda: {"shuffle": True, "seeding": "worker", "seed": 5},
        same_workers=True,
    ),
    Case(
        "by worker, generator",
        lambda: {"shuffle": True, "seeding": "worker", "generator": generator()},
        same_workers=True,
    ),
    Case(
        "by worker, custom",
        lambda: {"sampler": own.ShufflesInPlace(), "seeding": "worker"},
        same_workers=True,
    ),
]

ALL = [*SEEKABLE, *CUSTOM, *ODD, *DATASETS, *OPTIONS]
