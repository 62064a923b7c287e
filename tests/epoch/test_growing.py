"""A dataset that grows in mid-epoch, as a replay buffer does, leaves the epoch at hand as it is."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler, RandomSampler, SequentialSampler

from picklable_loader import DataLoader, ShuffleSampler
from picklable_loader.errors import DamagedStateError, LoaderWarning, StateMismatch, UsageError
from picklable_loader.saving.states.skip import batches_left, moved_on


class Buffer(Dataset[int]):
    def __init__(self, length: int = 10) -> None:
        self.items = [*range(length)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> int:
        return self.items[index]

    def grow(self, count: int) -> None:
        self.items += range(100, 100 + count)


SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "in sequence": SequentialSampler,
    "shuffled": RandomSampler,
    "shuffled twice and a half": lambda data: RandomSampler(data, num_samples=25),
    "with replacement": lambda data: RandomSampler(data, replacement=True, num_samples=70),
    "indexed": ShuffleSampler,
}


def build(data: Buffer, kind: str, **options: Any) -> Any:
    return DataLoader(data, 4, sampler=SAMPLERS[kind](data), **options)


def values(iterator: Any) -> list[list[int]]:
    return [batch.tolist() for batch in iterator]


def resumed(door: str, iterator: Any, again: Callable[[], Any]) -> Any:
    if door == "pickle":
        return pickle.loads(pickle.dumps(iterator))
    loader = again()
    loader.load_state_dict(iterator.state_dict())
    return iter(loader)


@pytest.mark.parametrize("count", [1, 5, 30])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("door", ["pickle", "state"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_epoch_goes_on_as_it_began_also_after_two_resumes(
    kind: str, num_workers: int, door: str, seed: int | None, count: int
) -> None:
    data = Buffer()
    loader = build(data, kind, num_workers=num_workers, seed=seed)
    iterator = iter(loader)
    next(iterator)
    data.grow(count)
    once = resumed(door, iterator, lambda: build(data, kind, num_workers=2, seed=seed))
    second = [next(iterator).tolist(), next(once).tolist()]
    twice = resumed(door, once, lambda: build(data, kind, seed=seed))
    assert second[0] == second[1]
    assert iterator.remaining == once.remaining == twice.remaining
    assert values(iterator) == values(once) == values(twice)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_it_may_grow_between_iter_and_the_first_batch_of_a_resumed_epoch(
    kind: str, num_workers: int
) -> None:
    data = Buffer()
    iterator = iter(build(data, kind, num_workers=num_workers))
    next(iterator)
    once = resumed("state", iterator, lambda: build(data, kind, num_workers=num_workers))
    data.grow(5)
    assert values(once) == values(iterator)


@pytest.mark.parametrize("door", ["pickle", "state"])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_it_may_not_grow_between_a_load_and_the_beginning_of_its_pass(kind: str, door: str) -> None:
    data = Buffer()
    iterator = iter(build(data, kind))
    next(iterator)
    loader = build(data, kind)
    if door == "pickle":
        again = pickle.loads(pickle.dumps(iterator))
        loader = again.loader
    else:
        loader.load_state_dict(iterator.state_dict())
    loader.dataset.grow(5)
    with pytest.raises(StateMismatch, match="dataset_length: expected 15"):
        next(again if door == "pickle" else iter(loader))


@pytest.mark.parametrize("door", ["pickle", "state"])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_saves_before_and_after_it_has_grown_are_exact(kind: str, door: str) -> None:
    data = Buffer()
    iterator = iter(build(data, kind))
    next(iterator)
    saved = [pickle.dumps(iterator)]
    for count in (0, 3, 4):
        data.grow(count)
        iterator.state_dict()
        saved.append(pickle.dumps(iterator))
    last = resumed(door, iterator, lambda: build(data, kind))
    rest = values(iterator)
    assert values(last) == rest
    assert all(values(pickle.loads(each)) == rest for each in saved)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_next_epoch_has_the_new_samples(kind: str) -> None:
    data = Buffer()
    iterator = iter(build(data, kind, seed=1))
    next(iterator)
    data.grow(90)
    again = pickle.loads(pickle.dumps(iterator))
    assert values(iterator) == values(again)
    following = values(iterator.loader)
    assert values(again.loader) == following
    assert max(max(batch) for batch in following) >= 100


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_state_of_an_epoch_that_is_all_delivered_begins_the_next_one(kind: str) -> None:
    data = Buffer()
    iterator = iter(build(data, kind, at_epoch_end="next"))
    for _ in range(len(iterator)):
        next(iterator)
    data.grow(9)
    loader = build(data, kind, at_epoch_end="next")
    loader.load_state_dict(iterator.state_dict())
    assert next(iter(loader)) is not None
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (1, 1)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_state_is_moved_on_to_the_end_that_its_epoch_had(kind: str) -> None:
    data = Buffer()
    iterator = iter(build(data, kind))
    total = len(iterator)
    next(iterator)
    data.grow(9)
    state = iterator.state_dict()
    assert batches_left(state) == total - 1
    moved = moved_on(state, total - 2)
    loader = build(data, kind)
    loader.load_state_dict(moved)
    *_, last = iterator
    assert torch.equal(next(iter(loader)), last)
    with pytest.raises(UsageError, match=f"has {total - 1} batches left"):
        moved_on(state, total)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_batch_of_the_epoch_at_hand_can_be_had_again(kind: str) -> None:
    data = Buffer()
    loader = build(data, kind, seed=5)
    iterator = iter(loader)
    first = next(iterator)
    data.grow(7)
    assert torch.equal(loader.batch_at(0), first)
    assert torch.equal(loader.batch_at(1), next(iterator))


def test_data_in_sequence_goes_on_to_its_new_end_where_the_state_need_not_fit() -> None:
    data = Buffer()
    iterator = iter(build(data, "in sequence"))
    next(iterator)
    data.grow(1)
    state = iterator.state_dict()
    for length in (11, 12, 9):
        loader = build(Buffer(length), "in sequence")
        loader.load_state_dict(state, strict=False)
        found = values(loader)
        assert sum(found, []) == [*range(4, 10 if length == 11 else length)]


@pytest.mark.parametrize(
    "found", [[10**15, 10], [10, 12], [-1, 10], [10], "10", [10, True], [10.0, 10]]
)
@pytest.mark.parametrize("kind", ["in sequence", "shuffled", "indexed"])
def test_lengths_that_no_dataset_can_have_had_are_refused(kind: str, found: Any) -> None:
    data = Buffer()
    iterator = iter(build(data, kind))
    next(iterator)
    data.grow(1)
    state = iterator.state_dict()
    assert state["order"]["grown_from"] == [10, 10]
    state["order"]["grown_from"] = found
    del state["checksum"]
    with pytest.raises(DamagedStateError, match="grown_from"):
        build(data, kind).load_state_dict(state)
    with pytest.raises(DamagedStateError, match="grown_from"):  # the steps are counted anew
        DataLoader(data, 2, sampler=SAMPLERS[kind](data)).load_state_dict(state, strict=False)


def test_a_state_says_nothing_of_lengths_that_have_not_changed() -> None:
    for kind in SAMPLERS:
        iterator = iter(build(Buffer(), kind))
        next(iterator)
        assert "grown_from" not in (iterator.state_dict()["order"] or {}), kind


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_save_warns_of_a_dataset_that_has_become_shorter(kind: str) -> None:
    data = Buffer()
    iterator = iter(build(data, kind))
    next(iterator)
    data.items.pop()
    with pytest.warns(LoaderWarning, match="data_source of the .*Sampler has changed in mid-epoch"):
        iterator.state_dict()


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_distributed_sampler_pads_with_the_samples_that_it_began_with(shuffle: bool) -> None:
    def padded(grow: int) -> list[list[int]]:
        data = Buffer()
        sampler = DistributedSampler(data, 4, 3, shuffle=shuffle)
        iterator = iter(DataLoader(data, 1, sampler=sampler))
        found = [next(iterator).tolist()]
        data.grow(grow)
        if grow:
            with pytest.warns(LoaderWarning, match="dataset of the DistributedSampler"):
                iterator.state_dict()
        return found + values(iterator)

    assert padded(1) == padded(0)
