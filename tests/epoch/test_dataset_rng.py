"""Streams that are read again, of datasets whose generators the operating system has seeded."""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import lists
from torch.utils.data import IterableDataset
from zoo.streams import DrawnWalk

from picklable_loader import DataLoader, ShuffleBuffer, from_json, merge_states, to_json
from picklable_loader.errors import DamagedStateError, LoaderWarning, ReplayWarning

pytestmark = pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")

N = 24


class Transform:
    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __call__(self, value: int) -> float:
        if isinstance(self.rng, torch.Generator):
            return value + float(torch.rand((), generator=self.rng))
        bits = isinstance(self.rng, np.random.BitGenerator)
        return value + float(np.random.Generator(self.rng).random() if bits else self.rng.random())


class Rows(IterableDataset[float]):
    """Without a state: its iterator is a generator."""

    def __init__(self, rng: Any) -> None:
        self.transform = Transform(rng)

    def __iter__(self) -> Iterator[float]:
        for row in range(N):
            yield self.transform(row)


def of_torch() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator


#: each seeded by the operating system
RNGS = {
    "numpy": np.random.default_rng,
    "bits": np.random.PCG64,
    "legacy": np.random.RandomState,
    "python": random.Random,
    "torch": of_torch,
}


def build(kind: str, num_workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(Rows(RNGS[kind]()), 4, num_workers=num_workers, seed=1, **options)


def by_json(loader: Any) -> dict[str, Any]:
    return from_json(to_json(loader.state_dict()))


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", RNGS)
def test_a_state_has_the_generators_that_a_replay_draws_from(
    kind: str, num_workers: int, steps: int
) -> None:
    loader = build(kind, num_workers)
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    again = build(kind, num_workers)
    again.load_state_dict(by_json(loader))
    resumed = iter(again)
    next(resumed), next(iterator)
    third = build(kind, num_workers)
    third.load_state_dict(by_json(again))
    rest = lists(iterator)
    assert lists(resumed) == rest == lists(third)
    following = lists(loader)
    assert lists(again) == following == lists(third)


@pytest.mark.parametrize("kind", RNGS)
def test_so_has_a_state_of_an_epoch_s_end(kind: str) -> None:
    loader = build(kind, 2)
    list(loader)
    again = build(kind, 2)
    again.load_state_dict(by_json(loader))
    assert lists(again) == lists(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_so_has_one_of_a_pass_that_goes_on_from_a_pickle(num_workers: int) -> None:
    iterator = iter(build("numpy", num_workers))
    next(iterator)
    unpickled = pickle.loads(pickle.dumps(iterator))
    next(unpickled), next(iterator)
    again = build("numpy", num_workers)
    again.load_state_dict(by_json(unpickled))
    rest = lists(iterator)
    assert lists(unpickled) == rest == lists(again)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_that_is_attached_gets_them_as_well(num_workers: int) -> None:
    iterator = iter(build("numpy", num_workers, pickle_dataset=False))
    next(iterator)
    unpickled = pickle.loads(pickle.dumps(iterator))
    unpickled.attach(Rows(np.random.default_rng()))
    assert lists(unpickled) == lists(iterator)


class WithState(Rows):
    def __init__(self, rng: Any) -> None:
        super().__init__(rng)
        self.at = 0

    def __iter__(self) -> Iterator[float]:
        while self.at < N:
            self.at += 1
            yield self.transform(self.at)
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "rng": self.transform.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.transform.rng.bit_generator.state = state["at"], state["rng"]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_that_saves_its_own_needs_them_where_copies_of_it_begin(
    num_workers: int, persistent: bool
) -> None:
    """Copies begin with streams that have not begun, and with the next epoch's new workers."""

    def stateful() -> Any:
        lives_on = persistent and num_workers > 0
        dataset = WithState(np.random.default_rng())
        return DataLoader(dataset, 4, num_workers=num_workers, persistent_workers=lives_on)

    needed = []
    for steps in range(1, 4):
        loader = stateful()
        iterator = iter(loader)
        for _ in range(steps):
            next(iterator)
        state = by_json(loader)
        needed.append("dataset_rng" in state)
        again = stateful()
        again.load_state_dict(state)
        assert lists(again) == lists(iterator)
        assert lists(again) == lists(loader), "in the next epoch"
    new_each_epoch = num_workers > 0 and not persistent
    assert needed == [num_workers > 0, new_each_epoch, new_each_epoch]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_that_is_loaded_at_the_end_of_an_epoch_gives_the_next_one(num_workers: int) -> None:
    def stateful() -> Any:
        return DataLoader(WithState(np.random.default_rng()), 4, num_workers=num_workers)

    loader = stateful()
    list(loader)
    again = stateful()
    again.load_state_dict(by_json(loader))
    assert lists(again) == lists(loader)


def state_of(rng: Any, rank: int) -> dict[str, Any]:
    loader: Any = DataLoader(Rows(rng), 4, shard=(rank, 2), shard_tail="uneven", seed=1)
    iterator = iter(loader)
    next(iterator)
    state: dict[str, Any] = loader.state_dict()
    return state


def test_a_merged_state_has_those_that_all_ranks_have_in_one_state() -> None:
    alike = merge_states([state_of(np.random.default_rng(5), rank) for rank in range(2)])
    assert [*alike["dataset_rng"]] == ["dataset.transform.rng"]
    needed, other = (state_of(np.random.default_rng(5), rank) for rank in range(2))
    del other["dataset_rng"], other["checksum"]  # as of a rank whose streams have states
    for states in ([needed, other], [other, needed]):
        assert [*merge_states(states)["dataset_rng"]] == ["dataset.transform.rng"]
    with pytest.warns(LoaderWarning, match="Seed them alike on all ranks"):
        apart = merge_states([state_of(np.random.default_rng(), rank) for rank in range(2)])
    assert "dataset_rng" not in apart


class DrawsAnOrder(Rows):
    """Its iterator has a state, and it has none."""

    def __iter__(self) -> Iterator[int]:
        return DrawnWalk([int(row) for row in self.transform.rng.permutation(N)])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_merged_state_whose_later_epochs_differ_is_warned_of(num_workers: int) -> None:
    """The iterators' states have the rest of this epoch, and only the datasets have the next."""

    def of(rank: int) -> dict[str, Any]:
        options: Any = {"num_workers": num_workers, "snapshot_every_n_steps": 1, "seed": 1}
        dataset = DrawsAnOrder(np.random.default_rng())
        loader: Any = DataLoader(dataset, 4, shard=(rank, 2), shard_tail="uneven", **options)
        iterator = iter(loader)
        next(iterator)
        state: dict[str, Any] = iterator.state_dict()
        return state

    states = [of(0), of(1)]
    with pytest.warns(LoaderWarning, match="and later epochs, may differ"):
        merge_states(states)


def test_a_dataset_without_that_generator_is_named() -> None:
    loader = build("numpy", 0)
    next(iter(loader))
    again: Any = DataLoader(Rows(np.random.RandomState()), 4, seed=1)
    with pytest.warns(LoaderWarning, match="generator dataset.transform.rng, and the dataset Rows"):
        again.load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    "found",
    [
        ["numpy", {}],
        ["Generator", {"bit_generator": "os"}],
        ["Generator", 5],
        ["generator", "low:"],
        "Generator",
        ["random", [3, [1], None]],
    ],
)
def test_what_is_no_generator_s_state_is_refused_and_nothing_is_loaded(found: Any) -> None:
    loader = build("numpy", 0)
    next(iter(loader))
    state = loader.state_dict()
    state["dataset_rng"] = {"dataset.transform.rng": found}
    del state["checksum"]
    again = build("numpy", 0)
    before = again.dataset.transform.rng.bit_generator.state  # type: ignore[attr-defined]
    with pytest.raises(DamagedStateError, match="dataset_rng"):
        again.load_state_dict(state)
    after = again.dataset.transform.rng.bit_generator.state  # type: ignore[attr-defined]
    assert before == after


def test_a_replay_still_says_how_much_it_reads_again() -> None:
    loader = build("numpy", 0)
    next(iter(loader))
    again = build("numpy", 0)
    again.load_state_dict(loader.state_dict())
    with pytest.warns(ReplayWarning, match="1 batch"):
        next(iter(again))


class Drawing(IterableDataset[float]):
    """The generator is an attribute of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __iter__(self) -> Iterator[float]:
        for row in range(N):
            yield row + self.rng.random()


@pytest.mark.parametrize("steps", [0, 2, 6])
def test_a_later_epoch_without_workers_is_exact_and_no_save_warns(steps: int) -> None:
    loader: Any = DataLoader(Drawing(), 4, seed=1)
    list(loader)
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    state = loader.state_dict()
    if steps == 6:
        assert next(iterator, None) is None
        state, iterator = loader.state_dict(), iter(loader)
    again: Any = DataLoader(Drawing(), 4, seed=1)
    again.load_state_dict(state)
    assert lists(again) == lists(iterator)
    assert lists(again) == lists(loader)


class Several(IterableDataset[float]):
    def __init__(self) -> None:
        self.transforms = deque(Transform(np.random.default_rng()) for _ in range(3))

    def __iter__(self) -> Iterator[float]:
        for row in range(N):
            yield sum(transform(row) for transform in self.transforms)


def shuffled() -> Any:
    return ShuffleBuffer(Drawing(), size=5)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", [Several, shuffled])
def test_generators_in_a_deque_and_in_a_dataset_within_another_are_held_each(
    make: Any, num_workers: int
) -> None:
    loader: Any = DataLoader(make(), 4, seed=1, num_workers=num_workers)
    iterator = iter(loader)
    next(iterator), next(iterator)
    again: Any = DataLoader(make(), 4, seed=1, num_workers=num_workers)
    again.load_state_dict(by_json(loader))
    assert lists(again) == lists(iterator)
