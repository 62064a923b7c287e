"""A pickle without workers: the dataset is as it is then, its stream as at the last snapshot."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import lists
from torch.utils.data import IterableDataset
from zoo.streams import Reshuffled, WalkOfItsDataset

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning, ReplayWarning

SIZES = pytest.mark.parametrize("size", [20, 20_000])


class Numbers(IterableDataset[Any]):
    """Its iterator pickles, refers to it, and asks it for each sample."""

    def __iter__(self) -> Iterator[Any]:
        return Asking(self)


class Asking(WalkOfItsDataset):
    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration
        return self.dataset.number(self.left.pop(0))


class OwnRandomState(Numbers):
    def __init__(self) -> None:
        self.rng = np.random.RandomState()

    def number(self, index: int) -> float:
        return self.rng.rand()


class OwnTorchGenerator(Numbers):
    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.generator.seed()

    def number(self, index: int) -> float:
        return torch.rand((), generator=self.generator).item()


class ReplayBuffer(Numbers):
    """Writes into the buffer that it draws from."""

    def __init__(self, size: int = 2000) -> None:
        self.buffer = [0.0] * size

    def number(self, index: int) -> float:
        self.buffer[index % 3] += 1 + index
        return sum(self.buffer[:3])


class ArrayBuffer(ReplayBuffer):
    def __init__(self, size: int = 2000) -> None:
        self.buffer: Any = np.zeros(size)


def tensor_buffer(size: int) -> ArrayBuffer:
    dataset = ArrayBuffer()
    dataset.buffer = torch.zeros(size, dtype=torch.float64)
    return dataset


def resumed(loader: DataLoader[Any], steps: int, more: int = 0) -> tuple[list[Any], list[Any]]:
    """The rest of an epoch, straight on and after a pickle, which is pickled again after some."""
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    saved = pickle.dumps(batches)
    straight_on = lists(batches)
    copy = pickle.loads(saved)
    first = lists(next(copy) for _ in range(more))
    saved = pickle.dumps(copy)
    lists(copy)
    return straight_on, first + lists(pickle.loads(saved))


@pytest.mark.parametrize("more", [0, 1, 2])
@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("every", [0, 1, 2, 3])
@pytest.mark.parametrize("make", [OwnRandomState, OwnTorchGenerator, ReplayBuffer, ArrayBuffer])
def test_what_the_iteration_changes_in_its_dataset_is_put_back_for_the_batches_since(
    make: Callable[[], Any], every: int, steps: int, more: int
) -> None:
    straight_on, again = resumed(
        DataLoader(make(), 2, seed=1, snapshot_every_n_steps=every), steps, more
    )
    assert again == straight_on


@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("every", [1, 2, "auto"])
@pytest.mark.parametrize("seeding", ["batch", "worker"])
def test_a_long_list_that_iter_shuffles_in_its_dataset_is_shuffled_once(
    seeding: Any, every: Any, epochs: int
) -> None:
    options = {"seeding": seeding, "snapshot_every_n_steps": every}
    loader = DataLoader(Reshuffled(), 2, seed=1, **options)
    for _ in range(epochs):
        lists(loader)
    straight_on, again = resumed(loader, 3)
    assert again == straight_on


@pytest.mark.filterwarnings(f"ignore::{ReplayWarning.__module__}.{ReplayWarning.__qualname__}")
@pytest.mark.parametrize("seed", [None, 1])
def test_a_state_begins_the_dataset_anew_with_the_generators_that_iter_had(
    seed: int | None,
) -> None:
    random.seed(3)
    loader = DataLoader(Reshuffled(), 2, seed=seed, seeding="worker", snapshot_every_n_steps=2)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    straight_on = lists(batches)
    other = DataLoader(Reshuffled(), 2, seed=seed, seeding="worker", snapshot_every_n_steps=2)
    other.load_state_dict(state)
    assert lists(other) == straight_on


@pytest.mark.parametrize("make", [ArrayBuffer, tensor_buffer])
def test_a_large_array_that_the_iteration_writes_into_is_said_by_name(
    make: Callable[[int], Any],
) -> None:
    batches = iter(DataLoader(make(20_000), 2, seed=1, snapshot_every_n_steps=3))
    next(batches)
    with pytest.warns(LoaderWarning, match=re.escape("changed its attributes buffer")):
        pickle.dumps(batches)


def test_batches_that_a_resume_fetches_again_count_for_the_next_snapshot() -> None:
    """Else a program that stops after each second batch would fetch ever more of them again."""
    batches = iter(DataLoader(ReplayBuffer(), 1, seed=1, snapshot_every_n_steps=3))
    for _ in range(6):
        next(batches)
        next(batches)
        batches = pickle.loads(pickle.dumps(batches))  # a warning of a replay would be an error
    straight_on = iter(DataLoader(ReplayBuffer(), 1, seed=1))
    assert lists(batches) == lists(straight_on)[12:]


@SIZES
def test_a_snapshot_that_has_the_buffer_needs_nothing_put_back(size: int) -> None:
    batches = iter(DataLoader(ArrayBuffer(size), 2, seed=1, snapshot_every_n_steps=1))
    next(batches)
    saved = pickle.dumps(batches)  # a warning would be an error
    assert lists(pickle.loads(saved)) == lists(batches)
