"""Datasets whose ``iter`` draws, or changes them, and whose iterator saves only where it is."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import DOORS, lists
from torch.utils.data import IterableDataset
from zoo.streams import SavedWalk, share

from picklable_loader import DataLoader, Interleave, ShuffleBuffer
from picklable_loader.errors import LoaderWarning


class Shuffled(IterableDataset[Any]):
    """Shuffles its files in each ``iter``, by the global generators and by one of its own."""

    def __init__(self, rng: Any = None, give: Callable[[int], Any] = int) -> None:
        self.files, self.give = list(range(20)), give
        self.rng = np.random.default_rng(5) if rng is None else rng

    def __iter__(self) -> Iterator[Any]:
        random.shuffle(self.files)
        order = [self.files[at] for at in torch.randperm(20).tolist()]
        self.rng.shuffle(order)
        return SavedWalk([order[at] for at in share(20)], self.give)


def with_noise(item: int) -> list[float]:
    return [item, random.random()]


def noisy() -> Shuffled:
    return Shuffled(give=with_noise)


class Counting(IterableDataset[int]):
    """The dataset has the state. A pass that was loaded goes on; any other one begins anew."""

    def __init__(self) -> None:
        self.at, self.resumed = 0, False

    def __iter__(self) -> Iterator[int]:
        self.at, self.resumed = self.at if self.resumed else 0, False
        while self.at < 12:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.resumed = state["at"], True


SHAPES: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "plain": lambda make: make(),
    "in a buffer": lambda make: ShuffleBuffer(make(), 4),
    "in a buffer that rereads": lambda make: ShuffleBuffer(make(), 4, state="rebuild"),
    "interleaved": lambda make: Interleave([make(), make()], weights=[1, 3]),
    "nested": lambda make: Interleave([make(), ShuffleBuffer(make(), 3)], weights=[9, 1]),
    "twice": lambda make: ShuffleBuffer(Interleave([ShuffleBuffer(make(), 3), make()]), 4),
}
REPLAYS = pytest.mark.filterwarnings("ignore:.*is resumed by replay")


@REPLAYS
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("seeding", ["batch", "worker"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_iter_draws_the_same_order_again_after_a_resume(
    shape: str, num_workers: int, seeding: Any, door: str
) -> None:
    options: dict[str, Any] = {"num_workers": num_workers, "seeding": seeding, "seed": 3}
    make = Shuffled if "rereads" in shape else noisy  # what is read again has other noise

    def loader() -> DataLoader[Any]:
        return DataLoader(SHAPES[shape](make), 2, **options)

    batches = iter(loader())
    for _ in range(4):
        next(batches)
        saved = DOORS[door](batches)
        rest = iter(loader()) if door == "state" else pickle.loads(saved)
        if door == "state":
            other = loader()
            other.load_state_dict(saved)
            rest = iter(other)
        at = batches.step
        assert lists(rest) == lists(iter_from(loader(), at))


def iter_from(loader: DataLoader[Any], step: int) -> Iterator[Any]:
    batches = iter(loader)
    for _ in range(step):
        next(batches)
    return batches


@REPLAYS
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_generator_that_the_system_has_seeded_shuffles_again_in_another_program(
    num_workers: int,
) -> None:
    """The iterator's state is ``{"at": 4}``: the order comes from ``iter`` alone."""

    def loader() -> DataLoader[Any]:
        data = Shuffled(np.random.default_rng())
        return DataLoader(data, 2, seed=3, num_workers=num_workers, seed_dataset="off")

    batches = iter(loader())
    next(batches)
    next(batches)
    other = loader()
    other.load_state_dict(batches.state_dict())
    assert lists(other) == lists(batches)


class Replaces(Shuffled):
    """``iter`` replaces a large tensor by one that is made from it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = torch.arange(size, dtype=torch.float64)
        self.parts = [torch.zeros(size), torch.ones(size)]

    def __iter__(self) -> Iterator[Any]:
        self.table = self.table * 2 + 1
        self.parts.reverse()
        return SavedWalk(share(20), self.look_up)

    def look_up(self, item: int) -> list[float]:
        return [self.table[item].item(), self.parts[0][0].item()]


@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("size", [20, 20_000])
def test_a_pickle_undoes_what_iter_has_done_to_tensors_of_any_size(size: int, epochs: int) -> None:
    loader = DataLoader(Replaces(size), 2, seed=1)
    for _ in range(epochs):
        lists(loader)
    batches = iter(loader)
    next(batches)
    again = pickle.loads(pickle.dumps(batches))
    assert lists(again) == lists(batches)
    assert lists(again.loader) == lists(loader)


@pytest.mark.parametrize("shape", ["in a buffer", "twice"])
@pytest.mark.parametrize("size", [20, 20_000])
def test_a_change_beside_a_lambda_is_said_to_be_lost_below_any_wrapper(
    size: int, shape: str
) -> None:
    def make() -> Replaces:
        dataset = Replaces(size)
        dataset.give = lambda item: item  # plain pickle refuses it, and a wrapper has no length
        return dataset

    batches = iter(DataLoader(SHAPES[shape](make), 2, seed=1))
    next(batches)
    with pytest.warns(LoaderWarning, match="changed its attributes dataset"):
        pickle.dumps(batches)


class WritesAndReplaces(Replaces):
    """``iter`` writes into a large tensor before it replaces it."""

    def __iter__(self) -> Iterator[Any]:
        self.table.add_(1)
        return super().__iter__()


@pytest.mark.parametrize("pickle_dataset", [False, True])
def test_a_replaced_tensor_that_was_written_into_is_said_to_be_lost(pickle_dataset: bool) -> None:
    data = WritesAndReplaces(20_000)
    batches = iter(DataLoader(data, 2, seed=1, pickle_dataset=pickle_dataset))
    next(batches)
    with pytest.warns(LoaderWarning, match=re.escape("changed its attributes table")):
        pickle.dumps(batches)


class Writes(Shuffled):
    """``iter`` writes into a large array."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = np.zeros(size)

    def __iter__(self) -> Iterator[Any]:
        self.table += 1
        return SavedWalk(share(20), self.table.__getitem__)


def test_a_pickle_that_cannot_undo_what_iter_has_done_says_so() -> None:
    batches = iter(DataLoader(Writes(20_000), 2, seed=1))
    next(batches)
    with pytest.warns(LoaderWarning, match=re.escape("changed its attributes table")):
        pickle.dumps(batches)


@pytest.mark.parametrize(
    "table",
    [
        np.array([{} for _ in range(20_000)], dtype=object),
        np.zeros((300, 300)).T,
        np.zeros(90_000, dtype="datetime64[s]"),
        np.zeros(20_000, dtype=[("number", "f8"), ("flag", "?")]),
        np.zeros((200, 200, 3))[::2],
        np.ma.zeros(100_000),
    ],
    ids=lambda table: f"{type(table).__name__} of {table.dtype}",
)
def test_large_arrays_of_any_kind_that_stay_as_they_are_cause_no_warning(table: Any) -> None:
    dataset = Shuffled()
    dataset.table = table  # type: ignore[attr-defined]
    batches = iter(DataLoader(dataset, 2, seed=1))
    next(batches)
    again = pickle.loads(pickle.dumps(batches))
    assert lists(again) == lists(batches)


@pytest.mark.parametrize("size", [20, 3_000_000])
def test_a_tensor_too_large_to_be_written_is_said_to_be_lost(size: int) -> None:
    batches = iter(DataLoader(Replaces(size), 2, seed=1))
    next(batches)
    if size == 20:
        pickle.dumps(batches)  # a warning would be an error
        return
    with pytest.warns(LoaderWarning, match=re.escape("changed its attributes table")):
        pickle.dumps(batches)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("shape", ["plain", "in a buffer"])
@pytest.mark.parametrize("options", [{}, {"snapshot_every_n_steps": 3}])
def test_a_state_of_the_beginning_after_a_pass_that_was_left_is_warned_of(
    options: dict[str, Any], shape: str, door: str
) -> None:
    loader = DataLoader(SHAPES[shape](Counting), 2, seed=1, **options)
    for batch in loader:
        break
    batches = iter(loader)
    if options:
        next(batches)
    with pytest.warns(LoaderWarning, match="the epoch before was left in its middle"):
        DOORS[door](batches)
    for _ in range(3):
        next(batches)
    DOORS[door](batches)  # now there is a snapshot: a warning would be an error


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_pass_that_was_left_in_persistent_workers_is_begun_anew_after_a_resume_too(
    shape: str, door: str
) -> None:
    def loader() -> DataLoader[Any]:
        data = SHAPES[shape](Counting)
        return DataLoader(data, 2, seed=1, num_workers=1, persistent_workers=True)

    straight_on = loader()
    for batch in straight_on:
        break
    batches = iter(straight_on)
    saved = DOORS[door](batches)
    if door == "state":
        again: Any = loader()
        again.load_state_dict(saved)
    else:
        again = pickle.loads(saved)
    assert lists(again) == lists(batches)
