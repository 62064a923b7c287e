"""Generators in global variables that dataset, collate_fn or sampler read: seeded, or told of."""

from __future__ import annotations

import functools
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import expected_warnings, lists
from torch.utils.data import Dataset, IterableDataset, Sampler, default_collate, get_worker_info
from zoo import own_generators
from zoo.datasets import Numbers
from zoo.own_generators import noise as noise_of_another_module

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning
from picklable_loader.rng.owned import owned_in

N, BATCH = 12, 4

generator = np.random.default_rng(0)
legacy = np.random.RandomState(0)
bits = np.random.PCG64(0)
of_python = random.Random(0)
of_torch = torch.Generator().manual_seed(0)
never_read = np.random.default_rng(1)
order = np.random.default_rng(2)


def noise() -> float:
    return generator.random() + of_python.random()


def noisy(sample: int) -> float:
    return sample + noise()


def noisy_batch(samples: list[Any]) -> Any:
    return default_collate([sample + legacy.random() for sample in samples])


class Items(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        drawn = bits.random_raw() / 2**64, torch.rand((), generator=of_torch).item()
        return index, generator.random(), legacy.random(), of_python.random(), *drawn


class Batches(Items):
    def __getitems__(self, indices: list[int]) -> Any:
        return [generator.random() + index for index in indices]


class ByMethod(Items):
    def __getitem__(self, index: int) -> Any:
        return self.augmented(index) + self.shifted()

    def augmented(self, index: int) -> float:
        return index

    @staticmethod
    def shifted() -> float:
        return noise()


class Overridden(ByMethod):
    def augmented(self, index: int) -> float:
        return sum([legacy.random() for _ in range(2)])


class Transformed(Items):
    def __init__(self, transform: Callable[[int], float] = noisy) -> None:
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(index)


class Stream(IterableDataset[float]):
    def __iter__(self) -> Iterator[float]:
        info = get_worker_info()
        for index in range(0 if info is None else info.id, N, 1 if info is None else 2):
            yield index + noise()


class Wrong(Items):
    """It has an attribute of a global variable's name, and reads that alone."""

    def __init__(self) -> None:
        self.never_read = 0.5

    def __getitem__(self, index: int) -> Any:
        return index + self.never_read + np.random.rand() + random.random()


class OfAnotherModule(Items):
    def __getitem__(self, index: int) -> Any:
        return index + own_generators.generator.random() + torch.rand(()).item()


class ByAnotherModule(Items):
    def __getitem__(self, index: int) -> Any:
        return index + noise_of_another_module() + own_generators.noise()


class Shuffles(Sampler[int]):
    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        yield from order.permutation(N).tolist()


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "of each type": lambda: {"dataset": Items()},
    "a batch at once": lambda: {"dataset": Batches()},
    "by a method and a function": lambda: {"dataset": ByMethod()},
    "in a comprehension of an overridden method": lambda: {"dataset": Overridden()},
    "a transform": lambda: {"dataset": Transformed()},
    "a partial": lambda: {"dataset": Transformed(functools.partial(noisy))},
    "a collate_fn": lambda: {"dataset": Numbers(N), "collate_fn": noisy_batch},
    "of another module": lambda: {"dataset": OfAnotherModule()},
    "by a function of another module": lambda: {"dataset": ByAnotherModule()},
    "a stream": lambda: {"dataset": Stream()},
}
BY_KIND = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, workers: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader(**KINDS[kind](), batch_size=BATCH, seed=1, num_workers=workers, **options)


def two_epochs(iterator: Any, loader: Any) -> list[Any]:
    return [lists(iterator), lists(loader)]


@BY_KIND
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_draws_the_same_numbers(kind: str, workers: int) -> None:
    for epoch, step in (0, 1), (1, 1):
        loader = make(kind, workers, persistent_workers=workers > 0)
        for _ in range(epoch):
            lists(loader)
        iterator = iter(loader)
        for _ in range(step):
            next(iterator)
        state, data = iterator.state_dict(), pickle.dumps(iterator)  # warnings are errors
        expected = two_epochs(iterator, loader)
        again, copied = make(kind, workers), pickle.loads(data)
        again.load_state_dict(state)
        with expected_warnings():
            assert two_epochs(iter(again), again) == expected
            assert two_epochs(copied, copied.loader) == expected


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "a stream"])
def test_the_numbers_are_the_same_under_any_workers(kind: str) -> None:
    assert lists(make(kind)) == lists(make(kind, 1)) == lists(make(kind, 2))


@BY_KIND
@pytest.mark.parametrize(
    "save", [lambda it: it.state_dict(), pickle.dumps], ids=["state", "pickle"]
)
def test_a_save_warns_of_each_that_is_not_seeded(kind: str, save: Callable[[Any], Any]) -> None:
    iterator = iter(make(kind, seed_dataset="off"))
    next(iterator)
    with pytest.warns(LoaderWarning, match=r"__globals__\.(\w+\.)?(generator|legacy)"):
        save(iterator)


@pytest.mark.parametrize("options", [{}, {"seed_dataset": "off"}], ids=str)
def test_what_no_code_reads_is_left_alone(options: Any) -> None:
    before = never_read.bit_generator.state
    iterator = iter(DataLoader(Wrong(), BATCH, seed=1, **options))
    next(iterator)
    iterator.state_dict(), pickle.dumps(iterator)  # warnings are errors
    list(iterator)
    assert never_read.bit_generator.state == before
    assert list(owned_in({"dataset": Wrong()}, set())) == []


@pytest.mark.parametrize(
    "save", [lambda it: it.state_dict(), pickle.dumps], ids=["state", "pickle"]
)
def test_a_save_warns_of_a_sampler_that_draws_its_order(save: Callable[[Any], Any]) -> None:
    """From the second epoch on: a program that is built anew has it as it was before the first."""
    loader = DataLoader(Numbers(N), BATCH, sampler=Shuffles(), seed=1)
    iterator = iter(loader)
    next(iterator)
    save(iterator)  # warnings are errors
    list(iterator)
    iterator = iter(loader)
    next(iterator)
    with pytest.warns(LoaderWarning, match=r"loader\.sampler\.__globals__\.order"):
        save(iterator)
    save(iterator)
