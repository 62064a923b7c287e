"""A loader with ``shard=``: one position for all ranks, saved by one, and resumed by any number."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from zoo.datasets import Noisy, NoisyInBulk, NoisyStream
from zoo.samplers import DrawsAsItGoes, OwnTorchGenerator, StatefulIterator, from_numpy

from picklable_loader import DataLoader, ShuffleSampler
from picklable_loader.errors import StateMismatch, UsageError
from picklable_loader.saving.states.skip import batches_left, moved_on

N = 23


def odd_batches() -> list[list[int]]:
    """Of one to three samples; N in all."""
    return [[*range(i, min(i + 1 + i % 3, N))] for i in _starts()]


def _starts() -> Iterator[int]:
    start = 0
    while start < N:
        yield start
        start += 1 + start % 3


#: arguments that give an order which can be sought in
KNOWN: dict[str, Callable[[], dict[str, Any]]] = {
    "in sequence": dict,
    "shuffled": lambda: {"shuffle": True},
    "indexed": lambda: {"shuffle": "indexed"},
    "with replacement": lambda: {"sampler": RandomSampler(range(N), replacement=True)},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * N, N)},
    "longer than the data": lambda: {"sampler": RandomSampler(range(N), num_samples=2 * N)},
    "a list": lambda: {"sampler": [*range(N)][::-1]},
    "without batches": lambda: {"shuffle": True, "batch_size": None},
}
#: arguments that give an order which can be walked through only
CUSTOM: dict[str, Callable[[], dict[str, Any]]] = {
    "draws as it goes": lambda: {"sampler": DrawsAsItGoes(from_numpy)},
    "its own generator": lambda: {"sampler": OwnTorchGenerator()},
    "a state of its own": lambda: {"sampler": StatefulIterator()},
    "a batch sampler": lambda: {"batch_sampler": [[0, 1], [2], [3, 4, 5], [6], [7, 8]]},
    "a generator of batches": lambda: {
        "batch_sampler": Batches([[0, 1], [2], [3, 4, 5], [6], [7, 8]])
    },
}
both = pytest.mark.parametrize("order", [*KNOWN, *CUSTOM])


class Batches:
    """A batch sampler that nobody knows."""

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.batches


class Named(Dataset[Any]):
    """A sample is its index, and some noise."""

    def __init__(self, size: int = N) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, float]:
        return int(index), torch.rand(()).item()


class Counting(Dataset[int]):
    """A map-style dataset with a state."""

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return index + 100 * self.count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def as_it_is(samples: Any) -> Any:
    return samples if isinstance(samples, list) else [samples]


def loader(order: str, rank: int, world: int, **options: Any) -> Any:
    given = {**KNOWN, **CUSTOM}[order]()
    if "batch_sampler" not in given:
        given.setdefault("batch_size", options.pop("batch_size", 2))
    options.pop("batch_size", None)
    settings = {"collate_fn": as_it_is, "seed": 7, **given, **options}
    return DataLoader(Named(), shard=(rank, world), **settings)


def indices(batches: Any) -> list[int]:
    return [index for batch in batches for index, _ in batch]


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    return [batch for _, batch in zip(range(count), iterator)]


# --- one order -----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_order_of_a_loader_on_its_own(
    order: str, num_workers: int, world: int
) -> None:
    alone = indices(loader(order, 0, 1))
    options: dict[str, Any] = {"num_workers": num_workers, "shard_tail": "uneven"}
    ranks = [indices(loader(order, rank, world, **options)) for rank in range(world)]
    if "batch_sampler" in {**KNOWN, **CUSTOM}[order]():
        assert sorted(sum(ranks, [])) == sorted(alone)
    else:
        assert ranks == [alone[rank::world] for rank in range(world)]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
@both
def test_a_loader_is_as_long_as_it_says(order: str, tail: str, drop_last: bool) -> None:
    if drop_last and order in ("without batches", "a batch sampler", "a generator of batches"):
        pytest.skip("torch refuses it")
    for rank in range(3):
        of_rank = loader(order, rank, 3, shard_tail=tail, drop_last=drop_last)
        assert len(of_rank) == len(iter(of_rank)) == len([*of_rank])


def test_ranks_have_other_noise_and_samples_keep_theirs() -> None:
    noise = {index: value for batch in loader("shuffled", 0, 1) for index, value in batch}
    ranks = [[value for batch in loader("shuffled", r, 2) for _, value in batch] for r in range(2)]
    assert not set(ranks[0]) & set(ranks[1])
    assert {*noise.values()} != {*ranks[0], *ranks[1]}
    options = {"seeding": "sample", "shard_tail": "uneven"}
    by_sample = [
        {
            index: value
            for rank in range(world)
            for batch in loader("shuffled", rank, world, **options)
            for index, value in batch
        }
        for world in (1, 2, 5)
    ]
    assert by_sample[0] == by_sample[1] == by_sample[2]


@pytest.mark.filterwarnings("ignore:seeding=.sample. cannot seed")
@pytest.mark.parametrize("dataset", [Noisy(N), NoisyInBulk(N)])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("seeding", ["batch", "sample"])
def test_a_rank_reads_the_same_in_this_process_and_in_workers(
    dataset: Any, on_error: Any, seeding: Any
) -> None:
    def batches(num_workers: int) -> list[Any]:
        made: Any = DataLoader(
            dataset, 4, shuffle=True, seed=1, shard=(1, 3), num_workers=num_workers,
            on_error=on_error, seeding=seeding,
        )  # fmt: skip
        return [batch.tolist() for batch in made]

    assert batches(0) == batches(2)


def test_each_epoch_has_an_order_of_its_own_which_set_epoch_chooses() -> None:
    ranks = [loader("shuffled", rank, 2) for rank in range(2)]
    epochs = [[indices(rank) for rank in ranks] for _ in range(2)]
    assert epochs[0] != epochs[1]
    for rank in ranks:
        rank.set_epoch(0)
    assert [indices(rank) for rank in ranks] == epochs[0]


# --- one state -----------------------------------------------------------------------------------


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "state_dict": lambda it, fresh: fresh.load_state_dict(it.state_dict()) or iter(fresh),
    "the iterator's": lambda it, fresh: _loaded(iter(fresh), it.state_dict()),
    "a pickle": lambda it, fresh: _on_rank(pickle.loads(pickle.dumps(it)), fresh.shard),
    "deepcopy": lambda it, fresh: _on_rank(copy.deepcopy(it), fresh.shard),
}


def _loaded(iterator: Any, state: Any) -> Any:
    iterator.load_state_dict(state)
    return iterator


def _on_rank(iterator: Any, shard: Any) -> Any:
    iterator.loader.shard = shard
    return iterator


@both
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_state_of_rank_0_restores_each_rank(
    order: str, way: str, num_workers: int, step: int
) -> None:
    first = iter(loader(order, 0, 3, num_workers=num_workers))
    take(first, step)
    for rank in range(3):
        whole = [*loader(order, rank, 3, num_workers=num_workers)]
        fresh = loader(order, rank, 3, num_workers=num_workers, seed=7)
        assert [*WAYS[way](first, fresh)] == whole[step:]
        if way == "state_dict":  # and the next epoch
            again = loader(order, rank, 3)
            assert take(iter(again), 99) == whole
            assert [*fresh] == [*again]
    first.close()


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
@pytest.mark.parametrize("order", KNOWN)
@pytest.mark.parametrize("tail", ["pad", "uneven"])
@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("worlds", [(1, 4), (4, 1), (4, 2), (2, 3), (3, 8), (8, 3)], ids=str)
@pytest.mark.parametrize("step", [1, 2])
def test_a_state_restores_any_number_of_ranks_and_no_sample_is_lost_or_read_twice(
    order: str, tail: str, sizes: tuple[int, int], worlds: tuple[int, int], step: int
) -> None:
    seen: list[int] = []
    before = [
        iter(loader(order, rank, worlds[0], batch_size=sizes[0], shard_tail=tail))
        for rank in range(worlds[0])
    ]
    if len(loader(order, 0, worlds[0], batch_size=sizes[0], shard_tail=tail)) < step:
        pytest.skip("the epoch is over before that: its state begins the next one")
    for iterator in before:
        seen += indices(take(iterator, step))
    state = before[0].state_dict()
    for rank in range(worlds[1]):
        of_rank = loader(order, rank, worlds[1], batch_size=sizes[1], shard_tail=tail, seed=None)
        of_rank.load_state_dict(state, at_epoch_end="stop")
        seen += indices(of_rank)
    whole = indices(loader(order, 0, 1))
    if tail == "uneven":
        assert sorted(seen) == sorted(whole)
    else:
        extra = len(seen) - len(whole)
        assert 0 <= extra < max(worlds)
        assert sorted(seen) == sorted([*whole, *whole[:extra]])


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
@pytest.mark.parametrize("shuffle", [True, "indexed"])
@pytest.mark.parametrize("after", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize("before", [1, 2, 3, 4, 8, 64])
def test_up_to_64_ranks_go_on_with_the_noise_that_each_sample_has_on_one(
    before: int, after: int, shuffle: Any
) -> None:
    def ranks(world: int, size: int) -> list[Any]:
        settings: Any = {"shuffle": shuffle, "seeding": "sample", "shard_tail": "uneven"}
        return [
            DataLoader(Named(300), size, seed=7, shard=(rank, world), collate_fn=list, **settings)
            for rank in range(world)
        ]

    (alone,) = ranks(1, 4)
    expected = sorted(pair for batch in alone for pair in batch)
    iterators = [iter(of_rank) for of_rank in ranks(before, 2)]
    found = [pair for iterator in iterators for batch in take(iterator, 2) for pair in batch]
    assert len(found) == 4 * before
    state = iterators[0].state_dict()
    for of_rank in ranks(after, 3):
        of_rank.load_state_dict(state, at_epoch_end="stop")
        found += [pair for batch in of_rank for pair in batch]
    assert sorted(found) == expected


def test_with_as_many_samples_in_a_global_step_each_one_has_the_same_samples() -> None:
    def steps(world: int, size: int, state: Any = None) -> list[list[int]]:
        options: dict[str, Any] = {"batch_size": size, "shard_tail": "uneven"}
        ranks = [loader("shuffled", rank, world, **options) for rank in range(world)]
        for of_rank in ranks:
            if state is not None:
                of_rank.load_state_dict(state)
        return [sorted(indices(filter(None, step))) for step in zip_longest(*ranks)]

    first = iter(loader("shuffled", 0, 4, batch_size=1, shard_tail="uneven"))
    take(first, 2)
    state, whole = first.state_dict(), steps(4, 1)
    assert steps(2, 2, state) == steps(1, 4, state) == steps(4, 1, state) == whole[2:]
    assert state["step"] == 2


def test_a_state_is_small_and_says_where_all_ranks_are() -> None:
    iterator = iter(loader("shuffled", 2, 4))
    take(iterator, 2)
    state = iterator.state_dict()
    assert (state["step"], state["position"]) == (2, 16)
    assert (state["fits"]["world_size"], state["fits"]["batch_size"]) == (4, 2)
    assert "rank" not in state
    assert len(str(state)) < 1024
    assert state == {**_state_of(3, 4), "checksum": state["checksum"]}


def _state_of(rank: int, world: int) -> Any:
    iterator = iter(loader("shuffled", rank, world))
    take(iterator, 2)
    return iterator.state_dict()


@pytest.mark.parametrize("order", ["draws as it goes", "its own generator", "a state of its own"])
def test_where_the_sampler_cannot_go_back_another_number_of_ranks_is_refused(order: str) -> None:
    iterator = iter(loader(order, 0, 2, num_workers=1))
    take(iterator, 1)
    state = iterator.state_dict()
    iterator.close()
    other = loader(order, 0, 3, num_workers=1, shard_tail="pad")
    before = other.state_dict()
    with pytest.raises(StateMismatch, match="register_order"):
        other.load_state_dict({**state})
    assert other.state_dict() == before


def test_where_nothing_is_drawn_ahead_a_custom_sampler_goes_on_on_other_ranks() -> None:
    order = "a state of its own"
    whole, iterator = indices(loader(order, 0, 1)), iter(loader(order, 0, 2, shard_tail="pad"))
    take(iterator, 1)
    ranks = [loader(order, rank, 3, shard_tail="pad") for rank in range(3)]
    for of_rank in ranks:
        of_rank.load_state_dict(iterator.state_dict())
    rest = [indices(of_rank) for of_rank in ranks]
    assert sorted({*sum(rest, [])}) == sorted({*whole[4:]})


def test_a_state_that_is_one_ranks_alone_is_refused_on_another() -> None:
    options: dict[str, Any] = {"num_workers": 1, "shard_tail": "uneven"}
    iterator = iter(loader("draws as it goes", 1, 2, **options))
    take(iterator, 1)
    state = iterator.state_dict()
    iterator.close()
    assert state["rank"] == [1, 2]  # shard_tail="uneven": this rank may have no last batch
    for rank, world in ((0, 2), (1, 3)):
        with pytest.raises(StateMismatch, match="one rank's"):
            loader("draws as it goes", rank, world, **options).load_state_dict(state)
    loader("draws as it goes", 1, 2, **options).load_state_dict(state)


def test_a_state_out_of_order_is_one_ranks() -> None:
    options: dict[str, Any] = {"num_workers": 2, "in_order": False}
    iterator = iter(loader("shuffled", 0, 2, **options))
    take(iterator, 2)
    state = iterator.state_dict()
    iterator.close()
    with pytest.raises(StateMismatch, match="one rank's"):
        loader("shuffled", 1, 2, **options).load_state_dict(state)


def test_a_dataset_with_a_state_makes_it_one_ranks_between_epochs_too() -> None:
    def made(rank: int, world: int) -> Any:
        return DataLoader(Counting(), 2, seed=1, shard=(rank, world))

    first = made(0, 2)
    assert [*first]
    state = first.state_dict()
    for rank, world in ((1, 2), (0, 4)):
        with pytest.raises(StateMismatch, match="one rank's"):
            made(rank, world).load_state_dict(state)
    made(0, 2).load_state_dict(state)


def test_batches_of_a_batch_sampler_go_to_other_ranks_from_an_epochs_beginning_only() -> None:
    order = "a batch sampler"
    before = loader(order, 0, 2)
    states = [before.state_dict(), [*before] and before.state_dict()]
    for state in states:
        whole = [loader(order, rank, 3, shard_tail="uneven") for rank in range(3)]
        for of_rank in whole:
            of_rank.load_state_dict(state)
        assert sorted(sum(map(indices, whole), [])) == [*range(9)]
    iterator = iter(before)
    take(iterator, 1)
    with pytest.raises(StateMismatch, match="whole batches"):
        loader(order, 0, 3).load_state_dict(iterator.state_dict())


def test_the_seed_of_a_shuffle_sampler_belongs_to_its_state() -> None:
    def made(seed: int) -> Any:
        return DataLoader(Named(), 2, sampler=ShuffleSampler(N, seed=seed), collate_fn=as_it_is)

    with pytest.raises(StateMismatch, match="seed=1"):
        made(2).load_state_dict(made(1).state_dict())


def test_a_shared_state_is_refused_by_a_loader_that_is_not_shared() -> None:
    alone: Any = DataLoader(Named(), 2, seed=7, collate_fn=as_it_is)
    with pytest.raises(StateMismatch, match='shard="auto"'):
        alone.load_state_dict(loader("in sequence", 0, 2).state_dict())


def test_a_state_of_a_loader_on_its_own_restores_ranks() -> None:
    alone: Any = DataLoader(Named(), 2, seed=7, shuffle=True, collate_fn=as_it_is)
    iterator = iter(alone)
    before = indices(take(iterator, 3))
    ranks = [loader("shuffled", rank, 4, shard_tail="uneven") for rank in range(4)]
    for of_rank in ranks:
        of_rank.load_state_dict(iterator.state_dict())
    assert sorted(before + sum(map(indices, ranks), [])) == [*range(N)]


@both
def test_each_step_after_a_resume_on_other_ranks_can_be_had_again(order: str) -> None:
    iterator = iter(loader(order, 0, 4, num_workers=0))
    take(iterator, 1)
    resumed = loader(order, 1, 3)
    try:
        resumed.load_state_dict(iterator.state_dict())
    except StateMismatch:  # whole batches are not shared anew in mid-epoch
        assert "batch" in order
        return
    again = iter(resumed)
    first = again.step
    for step, batch in enumerate(again, first):
        try:
            assert resumed.batch_at(step) == batch
        except UsageError as error:
            assert "how the epoch began is not known" in str(error)
    if order in KNOWN and order != "without batches":
        with pytest.raises(UsageError, match=f"was before step {first}"):
            resumed.batch_at(0)


def test_a_rank_without_a_share_of_the_last_step_begins_no_epoch_before_the_others() -> None:
    first = iter(loader("in sequence", 0, 2, batch_size=2, shard_tail="uneven"))
    take(first, 5)  # 3 of 23 samples are left
    state = first.state_dict()
    ranks = [
        loader("in sequence", rank, 4, shard_tail="uneven", at_epoch_end="next")
        for rank in range(4)
    ]
    for of_rank in ranks:
        of_rank.load_state_dict(state)
        assert of_rank.epoch == 0
    assert [indices(of_rank) for of_rank in ranks] == [[20], [21], [22], []]
    assert [of_rank.epoch for of_rank in ranks] == [1, 1, 1, 1]


# --- what else a loader can do -------------------------------------------------------------------


@both
def test_skip_and_batch_at_go_by_the_ranks_own_batches(order: str) -> None:
    whole = [*loader(order, 1, 2)]
    of_rank = loader(order, 1, 2)
    iterator = iter(of_rank)
    assert iterator.skip(2) == 2
    assert of_rank.batch_at(1) == whole[1]
    assert [*iterator] == whole[2:]


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
def test_a_state_is_moved_on_without_its_loader(tail: str) -> None:
    state = loader("shuffled", 0, 3, shard_tail=tail).state_dict()
    whole = [*loader("shuffled", 0, 3, shard_tail=tail)]
    assert batches_left(state) == len(whole)
    for rank in range(3):
        whole = [*loader("shuffled", rank, 3, shard_tail=tail)]
        of_rank = loader("shuffled", rank, 3, shard_tail=tail)
        of_rank.load_state_dict(moved_on(state, 2))
        assert [*of_rank] == whole[2:]


def test_a_loader_takes_the_seed_of_the_state_that_it_loads() -> None:
    state = loader("shuffled", 0, 2).state_dict()
    fresh = loader("shuffled", 1, 2, seed=None)
    fresh.load_state_dict(state)
    assert fresh.seed == 7
    assert [*fresh] == [*loader("shuffled", 1, 2)]


def test_a_loader_of_one_rank_draws_its_seed_as_torch_draws_one() -> None:
    torch.manual_seed(5)
    alone = loader("shuffled", 0, 1, seed=None)
    assert alone.seed is None
    first = [*alone]
    assert [*loader("shuffled", 0, 1, seed=alone.seed)] == first
    torch.manual_seed(5)
    assert [*loader("shuffled", 0, 1, seed=None)] == first


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("generator", [None, 3])
def test_a_state_of_before_the_seed_was_drawn_draws_the_same_one(
    strict: bool, generator: int | None
) -> None:
    def made() -> Any:
        given = None if generator is None else torch.Generator().manual_seed(generator)
        return loader("shuffled", 0, 1, seed=None, generator=given)

    torch.manual_seed(5)
    first = made()
    state = first.state_dict()
    batches = [*first], [*first]
    torch.manual_seed(6)
    again = made()
    again.load_state_dict(state, strict=strict)
    assert ([*again], [*again]) == batches
    assert again.seed == first.seed


def test_a_loader_with_a_seed_refuses_a_state_of_before_one_was_drawn() -> None:
    state = loader("shuffled", 0, 1, seed=None).state_dict()
    with pytest.raises(StateMismatch, match="seed: expected 7"):
        loader("shuffled", 0, 1).load_state_dict(state)


@pytest.mark.parametrize("replacement", [False, True])
def test_a_random_sampler_of_another_source_is_another_order(replacement: bool) -> None:
    def made(size: int) -> Any:
        sampler: Any = RandomSampler(range(size), replacement, num_samples=12)
        return DataLoader(Named(), 2, sampler=sampler, seed=1, collate_fn=as_it_is)

    iterator = iter(made(N))
    take(iterator, 1)
    for size in (N - 1, 12):
        with pytest.raises(StateMismatch, match=f"expected .*found {N}"):
            made(size).load_state_dict(iterator.state_dict())
    beginning = made(N).state_dict()
    made(N - 1).load_state_dict(beginning, strict=False)  # the next epoch has its samples


def test_the_seed_comes_from_the_generator_that_was_given() -> None:
    def first(seed: int) -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        return [*loader("shuffled", 0, 1, seed=None, generator=generator)]

    assert first(1) == first(1) != first(2)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shard", "error", "text"),
    [
        ("all", ValueError, "DeviceMesh"),
        ((2, 2), ValueError, "from 0 to world_size - 1"),
        ((-1, 2), ValueError, "from 0 to world_size - 1"),
        ((0, 0), ValueError, "from 0 to world_size - 1"),
        ((0, 1, 2), ValueError, "pair"),
        ((0.5, 2), TypeError, "shard"),
        (3, ValueError, "pair"),
    ],
)
def test_a_share_that_is_none_is_refused(shard: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        DataLoader(Named(), shard=shard)


def test_what_cannot_be_shared_is_refused() -> None:
    def refused(text: str, dataset: Any = None, **options: Any) -> None:
        with pytest.raises(ValueError, match=text):
            DataLoader(Named() if dataset is None else dataset, shard=(0, 2), **options)

    sampler: Any = DistributedSampler(Named(), 2, 0)
    refused("DistributedSampler", sampler=sampler)
    refused("DistributedSampler", batch_sampler=BatchSampler(sampler, 2, False))
    refused("in the sampler you passed", batch_sampler=Around(sampler))
    refused("in the sampler you passed", sampler=Around({"a": [Around(sampler)]}))
    refused("stream_length", NoisyStream())
    refused("worker", seeding="worker")
    refused("shard_tail", shard_tail="cut")


class Around(Sampler[Any]):
    """Gives what the sampler within it gives."""

    def __init__(self, within: Any) -> None:
        self.within, self.indices = within, [*range(1000)]

    def __iter__(self) -> Iterator[Any]:
        yield from self.within


def test_ranks_without_a_process_group_need_a_seed() -> None:
    with pytest.raises(UsageError, match="pass seed="):
        iter(loader("shuffled", 0, 2, seed=None))
    iter(loader("shuffled", 0, 2))


def test_the_share_is_read_from_torchruns_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    auto: Any = DataLoader(Named(), 2, seed=7, shard="auto", collate_fn=as_it_is)
    assert indices(auto) == [*range(N)]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert indices(auto) == [*range(1, N, 2), 0]
    auto.shard = None
    assert indices(auto) == [*range(N)]


@pytest.mark.parametrize(
    ("rank", "world"),
    [("2", "2"), ("-1", "2"), ("0", "0"), ("one", "2"), ("1", None), (None, "2"), ("0", "")],
)
def test_an_environment_that_names_no_rank_is_refused_where_the_share_is_asked_for(
    rank: str | None, world: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ("RANK", rank), ("WORLD_SIZE", world):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    auto: Any = DataLoader(Named(), 2, seed=7, shard="auto")
    for ask in (len, iter, DataLoader.state_dict):
        with pytest.raises(UsageError, match="RANK from 0 to WORLD_SIZE - 1"):
            ask(auto)
    made: Any = DataLoader(Named(), 2, seed=7, collate_fn=as_it_is)
    assert indices(made) == [*range(N)]


def test_a_loader_may_be_built_before_its_launcher_names_the_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    auto: Any = DataLoader(Named(), 2, seed=7, shard="auto", collate_fn=as_it_is)
    monkeypatch.setenv("RANK", "1")
    assert indices(auto) == [*range(1, N, 2), 0]


def test_one_rank_needs_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "1")
    auto: Any = DataLoader(Named(), 2, seed=7, shard="auto", collate_fn=as_it_is)
    assert indices(auto) == [*range(N)]


def test_samplers_are_as_torch_has_them() -> None:
    for sampler in (SequentialSampler(range(N)), ShuffleSampler(N), range(N)):
        made: Any = DataLoader(Named(), 2, sampler=sampler, shard=(0, 2), seed=1)
        assert len(made) == 6
