"""States and pickles without ``shard=`` of one of several ranks: where else may they be loaded?"""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from multiprocessing import Event
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
)

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning, OrderMismatch, StateMismatch
from picklable_loader.integrations.dcp import LoaderState

N = 48
Be = Callable[[int, int], None]


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Be:
    """This process is a rank of so many, as torchrun says."""

    def be(rank: int, world: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))

    return be


class EachRank(Sampler[int]):
    """As timm's and detectron2's samplers, it shares the indices out by itself."""

    def __init__(self, rank: int, world: int, own: bool) -> None:
        self.own, self.rng = list(range(rank, N, world)), random.Random(rank) if own else None

    def __len__(self) -> int:
        return len(self.own)

    def __iter__(self) -> Iterator[int]:
        own = self.own if self.rng is None else self.rng.sample(self.own, len(self.own))
        return iter(own)


class Stream(IterableDataset[int]):
    """It shares the samples out by itself, and has a state."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world, self.at = rank, world, 0

    def __iter__(self) -> Iterator[int]:
        own = range(self.rank, N, self.world)
        for at in range(self.at, len(own)):
            self.at = at + 1
            yield own[at]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Counting(Dataset[int]):
    """Map-style, with a state."""

    count = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return index

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def shared_out(rank: int, world: int, own: bool = False, **options: Any) -> DataLoader[Any]:
    sampler = EachRank(rank, world, own)
    return DataLoader(range(N), batch_size=3, sampler=sampler, seed=1, **options)


def distributed(
    rank: int, world: int, dataset: Any = range(N), seed: int | None = 1, **options: Any
) -> DataLoader[Any]:
    sampler = DistributedSampler(dataset, world, rank, shuffle=False)
    return DataLoader(dataset, batch_size=3, sampler=sampler, seed=seed, **options)


def some(loader: DataLoader[Any], batches: int = 2) -> tuple[Any, list[int]]:
    """An iterator after some batches, and their samples."""
    iterator = iter(loader)
    return iterator, [i for _ in range(batches) for i in next(iterator).tolist()]


def rest(iterator: Any) -> list[int]:
    return [i for batch in iterator for i in batch.tolist()]


WORLDS = [(4, 2), (2, 4), (1, 2), (2, 1)]


@pytest.mark.parametrize("worlds", WORLDS)
def test_a_sampler_that_shares_out_by_itself_goes_on_on_as_many_ranks_only(
    be: Be, worlds: tuple[int, int]
) -> None:
    before, now = worlds
    be(0, before)
    state = some(shared_out(0, before))[0].state_dict()
    be(0, now)
    loader = shared_out(0, now)
    loader.load_state_dict(state)
    with pytest.raises(OrderMismatch):
        iter(loader)
    loader = shared_out(0, now)
    loader.load_state_dict(state, strict=False)
    assert rest(loader) == list(range(0, N, now))[6:]


@pytest.mark.parametrize("worlds", WORLDS)
def test_a_sampler_that_gives_all_ranks_the_same_goes_on_on_any_number(
    be: Be, worlds: tuple[int, int]
) -> None:
    """An evaluation on rank 0, for example, or a look at a checkpoint in one process."""
    before, now = worlds
    be(0, before)
    iterator, _ = some(shared_out(0, 1))
    state = iterator.state_dict()
    be(now - 1, now)
    loader = shared_out(0, 1)
    loader.load_state_dict(state)
    assert rest(loader) == rest(iterator)


def test_the_state_of_rank_0_serves_all_ranks_of_as_many_if_nothing_is_drawn(be: Be) -> None:
    seen = Counter[int]()
    be(0, 2)
    state = some(shared_out(0, 2))[0].state_dict()
    for rank in range(2):
        be(rank, 2)
        seen.update(some(shared_out(rank, 2))[1])
        loader = shared_out(rank, 2)
        loader.load_state_dict(state)
        seen.update(rest(loader))
    assert seen == Counter(range(N))


def test_no_other_rank_takes_a_samplers_generator(be: Be) -> None:
    be(0, 2)
    loader = shared_out(0, 2, own=True)
    list(loader)
    iterator, _ = some(loader)
    state = iterator.state_dict()
    expected = rest(iterator)
    be(1, 2)
    with pytest.raises(StateMismatch, match="The sampler has drawn from generators"):
        shared_out(1, 2, own=True).load_state_dict(state)
    be(0, 2)
    loader = shared_out(0, 2, own=True)
    loader.load_state_dict(state)
    assert rest(loader) == expected


@pytest.mark.parametrize("worlds", [(4, 2), (2, 4), (1, 2), (2, 1), (2, 2)])
def test_a_stream_on_another_number_of_ranks_is_warned_of(be: Be, worlds: tuple[int, int]) -> None:
    before, now = worlds
    be(0, before)
    loader = DataLoader(Stream(0, before), batch_size=3)
    state = some(loader)[0].state_dict()
    be(now - 1, now)
    loader = DataLoader(Stream(now - 1, now), batch_size=3)
    same = nullcontext() if before == now else pytest.warns(LoaderWarning, match=f"of {before}, ")
    with same:
        loader.load_state_dict(state)
    assert rest(loader) == list(range(now - 1, N, now))[6:]


class Gated(Dataset[int]):
    """Sample 0 comes last."""

    def __init__(self) -> None:
        self.gate = Event()

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        if index == 0:
            assert self.gate.wait(30)
        return index


def test_batches_out_of_order_are_their_ranks_own(be: Be) -> None:
    be(0, 2)
    data = Gated()
    loader = distributed(0, 2, data, num_workers=2, in_order=False)
    iterator, seen = some(loader)
    state = iterator.state_dict()
    data.gate.set()
    assert 0 not in seen and sorted(seen + rest(iterator)) == list(range(0, N, 2))
    be(1, 2)
    with pytest.raises(StateMismatch, match="It holds batches that its rank has drawn"):
        distributed(1, 2, data, in_order=False).load_state_dict(state)
    be(0, 2)
    again = distributed(0, 2, data, in_order=False)
    again.load_state_dict(state)
    assert sorted(seen + rest(again)) == list(range(0, N, 2))


def test_the_state_of_a_dataset_is_its_ranks_own(be: Be) -> None:
    be(0, 2)
    state = some(distributed(0, 2, Counting()))[0].state_dict()
    be(1, 2)
    with pytest.raises(StateMismatch, match="the state that the dataset has on its rank"):
        distributed(1, 2, Counting()).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_pickle_with_a_distributed_sampler_is_refused_on_another_rank(
    be: Be, workers: int
) -> None:
    be(0, 2)
    iterator, _ = some(distributed(0, 2, num_workers=workers))
    saved = pickle.dumps(iterator)
    expected = rest(iterator)
    assert rest(pickle.loads(saved)) == expected
    for here in ((1, 2), (0, 4)):
        be(*here)
        again = pickle.loads(saved)
        with pytest.raises(StateMismatch, match='Or pass shard="auto" in place of the sampler'):
            next(again)
        with pytest.raises(StateMismatch, match="rank"):
            iter(again.loader)
    be(0, 1)  # to look at it, perhaps
    again = pickle.loads(saved)
    with pytest.warns(LoaderWarning, match="rank 0 of 2 has pickled this loader"):
        first = next(again).tolist()
    assert first + rest(again) == expected


def test_a_pickle_of_a_tensor_parallel_rank_serves_the_others_of_its_share(be: Be) -> None:
    be(0, 4)
    iterator, _ = some(distributed(0, 2))  # ranks 0 and 1 have share 0 of 2
    saved = pickle.dumps(iterator)
    be(1, 4)
    again = pickle.loads(saved)
    with pytest.warns(LoaderWarning, match="rank 0 of 4 has pickled this loader"):
        found = next(again).tolist()
    assert found + rest(again) == rest(iterator)
    be(0, 4)
    saved = pickle.dumps(distributed(0, 1))  # each rank reads all
    be(1, 4)
    assert rest(pickle.loads(saved)) == list(range(N))


def test_a_pickle_may_be_given_the_share_of_another_rank(be: Be) -> None:
    be(0, 2)
    loader = pickle.dumps(distributed(0, 2))
    be(1, 2)
    again = pickle.loads(loader)
    again.sampler.rank = 1
    assert rest(again) == list(range(1, N, 2))


def test_a_pickle_that_shares_by_itself_serves_any_rank(be: Be) -> None:
    be(0, 2)
    loader = DataLoader(range(N), batch_size=3, shard="auto", seed=1)
    saved = pickle.dumps(some(loader)[0])
    be(1, 4)
    assert rest(pickle.loads(saved)) == list(range(13, N, 4))


@pytest.mark.parametrize(
    "options, shared",
    [
        ({}, True),
        ({"seed": None}, False),  # each rank draws from its own generators
        ({"in_order": False}, False),
        ({"dataset": Counting()}, False),
        ({"seeding": "worker"}, False),
    ],
)
def test_dcp_has_one_value_for_all_ranks_only_if_it_serves_them(
    be: Be, options: dict[str, Any], shared: bool
) -> None:
    be(1, 2)
    loader = distributed(1, 2, **options)
    (key,) = LoaderState(loader).state_dict()
    assert key == ("of all ranks" if shared else "of rank 1 of 2")


def test_dcp_has_a_value_for_each_rank_of_a_subclass_and_one_for_a_batch_sampler(be: Be) -> None:
    class Mine(DistributedSampler[int]):
        def __iter__(self) -> Iterator[int]:
            return reversed(list(super().__iter__()))

    be(1, 2)
    loader = DataLoader(range(N), sampler=Mine(range(N), 2, 1), seed=1)
    assert [*LoaderState(loader).state_dict()] == ["of rank 1 of 2"]
    batches = BatchSampler(DistributedSampler(range(N), 2, 1), 3, False)
    loader = DataLoader(range(N), batch_sampler=batches, seed=1)
    assert [*LoaderState(loader).state_dict()] == ["of all ranks"]


def test_ranks_that_read_all_samples_share_a_state(be: Be) -> None:
    """Tensor parallel ranks, for example."""
    be(0, 2)
    sampler = RandomSampler(range(N), generator=torch.Generator().manual_seed(3))
    loader = DataLoader(range(N), batch_size=3, sampler=sampler)
    iterator, _ = some(loader)
    state = iterator.state_dict()
    be(1, 2)
    sampler = RandomSampler(range(N), generator=torch.Generator().manual_seed(3))
    again = DataLoader(range(N), batch_size=3, sampler=sampler)
    again.load_state_dict(state)
    assert rest(again) == rest(iterator)
