"""``batch_at``: any batch again. ``skip``: go on without fetching."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from laws.cases import ALL, CUSTOM, DATASETS, OPTIONS, SEEKABLE, Case
from laws.observe import epochs, plain, random_states, seed_everything, seen, seen_next
from torch.utils.data import Dataset, RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler
from zoo.datasets import Boom, N, Noisy, NoisyStream
from zoo.samplers import MySamplerAgain

from picklable_loader import DataLoader, register_order
from picklable_loader.errors import LoaderError, ReplayWarning

MAP_STYLE = [c for c in ALL if "iterable" not in c.name and "by worker" not in c.name]
#: their state_dict goes forwards only
STATEFUL = ("state_dict", "MySampler")
REPEATABLE = [c for c in MAP_STYLE if not any(word in c.name for word in STATEFUL)]
#: two states are equal where nothing happened between them
STEADY = [c for c in REPEATABLE if c.name != "counts its saves"]


def at(loader: DataLoader[Any], step: int, epoch: int | None = None) -> Any:
    try:
        return plain(loader.batch_at(step, epoch))
    except Boom:
        return "boom"


def named(name: str) -> Case:
    return next(case for case in ALL if case.name == name)


# --- batch_at ------------------------------------------------------------------------------------


def test_batch_at_of_a_loaded_state_does_not_mind_that_another_pass_has_ended() -> None:
    loader = DataLoader(Noisy(), 3, shuffle=True, seed=1)
    iterator = iter(loader)
    state = iterator.state_dict()
    expected = seen(iterator)
    loader.load_state_dict(state)
    assert seen(iterator) == []
    assert [at(loader, step) for step in range(4)] == expected


@pytest.mark.inline
@pytest.mark.parametrize("case", REPEATABLE, ids=str)
def test_batch_at_gives_every_batch_again_at_any_step(case: Case) -> None:
    seed_everything(1)
    expected = epochs(case, case.make(), 2)
    seed_everything(1)
    loader = case.make()
    seen(iter(loader), case.limit)
    iterator = iter(loader)
    for step in range(len(expected[1])):
        seen_next(iterator)
        assert [at(loader, again) for again in range(step + 1)] == expected[1][: step + 1]


@pytest.mark.inline
@pytest.mark.parametrize("case", STEADY, ids=str)
def test_batch_at_touches_no_iterator_and_no_random_state(case: Case) -> None:
    seed_everything(1)
    expected = epochs(case, case.make(), 2)
    seed_everything(1)
    loader = case.make()
    iterator = iter(loader)
    found = [seen_next(iterator)]
    while True:
        before = random_states(), repr(loader.state_dict()), iterator.step
        at(loader, 0)
        at(loader, iterator.step - 1)
        assert (random_states(), repr(loader.state_dict()), iterator.step) == before
        if len(found) == case.limit:
            break
        try:
            found.append(seen_next(iterator))
        except StopIteration:
            break
    assert [found, seen(iter(loader), case.limit)] == expected


@pytest.mark.parametrize("case", [SEEKABLE[2], SEEKABLE[3], CUSTOM[0], OPTIONS[0]], ids=str)
def test_batch_at_beside_workers_asks_none_of_them(case: Case) -> None:
    seed_everything(1)
    expected = seen(iter(case.make()))
    seed_everything(1)
    loader = case.make(2)
    iterator = iter(loader)
    found = seen(iterator, 2)
    assert [at(loader, step) for step in range(2)] == expected[:2]
    assert len(multiprocessing.active_children()) == 2
    assert found + seen(iterator) == expected


@pytest.mark.parametrize("case", [SEEKABLE[2], SEEKABLE[3], CUSTOM[1], OPTIONS[0]], ids=str)
def test_batch_at_on_a_resumed_loader(case: Case) -> None:
    seed_everything(1)
    expected = seen(iter(case.make()))
    seed_everything(1)
    iterator = iter(case.make())
    seen(iterator, 2)
    loader = case.make()
    loader.load_state_dict(iterator.state_dict())
    pickled = pickle.dumps(iterator)
    seed_everything(9)
    steps = range(len(expected))
    assert [at(loader, step) for step in steps] == expected
    resumed = iter(loader)
    assert [at(loader, step) for step in steps] == expected
    assert seen(resumed) == expected[2:]
    unpickled = pickle.loads(pickled)
    assert [at(unpickled.loader, step) for step in steps] == expected
    assert seen(unpickled) == expected[2:]


@pytest.mark.parametrize("case", [c for c in OPTIONS if "seed" in c.name], ids=str)
def test_with_a_seed_batches_of_other_epochs_are_known(case: Case) -> None:
    if case not in REPEATABLE or case.name in ("seed, random", "seed, own"):
        return  # these samplers go on from the epoch before
    expected = epochs(case, case.make(), 3)
    fresh = case.make()
    for epoch in (2, 0, 1):
        assert [at(fresh, step, epoch) for step in range(len(expected[0]))] == expected[epoch]
    assert epochs(case, fresh, 3) == expected
    for epoch in (2, 0, 1):
        assert at(fresh, 1, epoch) == expected[epoch][1]


def test_without_a_seed_another_epoch_is_not_known_and_the_error_says_so() -> None:
    loader = named("shuffle").make()
    seen(iter(loader))
    with pytest.raises(LoaderError, match="seed="):
        loader.batch_at(0, epoch=5)


@pytest.mark.parametrize("step", [4, 100, -1])
@pytest.mark.parametrize("name", ["shuffle", "sequential", "torch as it goes", "custom batches"])
def test_a_step_that_the_epoch_does_not_have_is_an_index_error(name: str, step: int) -> None:
    loader = named(name).make()
    seen(iter(loader), 1)
    with pytest.raises(IndexError, match=f"no step {step}"):
        loader.batch_at(step)


def test_batch_at_needs_map_style_data() -> None:
    with pytest.raises(LoaderError, match="map-style"):
        DataLoader(NoisyStream()).batch_at(0)


def test_batch_at_needs_batches_that_do_not_depend_on_those_before() -> None:
    with pytest.raises(LoaderError, match='seeding="batch"'):
        DataLoader(Noisy(), seeding="worker").batch_at(0)


def test_batch_at_cannot_go_back_in_a_sampler_that_was_restored_by_its_state_dict() -> None:
    loader = DataLoader(Noisy(), 3, sampler=MySamplerAgain(N, 1, 10))
    first = seen(iter(loader), 2)
    assert [at(loader, 0), at(loader, 1)] == first
    other = DataLoader(Noisy(), 3, sampler=MySamplerAgain(N, 1, 10))
    other.load_state_dict(loader.state_dict())
    with pytest.raises(LoaderError, match="state_dict"):
        other.batch_at(0)


class Reading(Dataset[int]):
    """Notes what was read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


class Squares(Sampler[int]):
    """A sampler of a user's own, for which a seekable order is registered."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return (place * place % self.size for place in range(self.size))


class SquaresOrder:
    """Seekable; counts the indices that were taken of it."""

    seekable = True
    taken = 0

    def __init__(self, sampler: Squares, setting: Any) -> None:
        self.size = sampler.size
        self.place = 0

    def open(self) -> None:
        pass

    def take(self, count: int) -> list[int]:
        places = range(self.place, min(self.place + count, self.size))
        self.place += len(places)
        SquaresOrder.taken += len(places)
        return [place * place % self.size for place in places]

    def seek(self, position: int) -> None:
        self.place = position

    def length(self) -> int:
        return self.size

    def state(self, live: bool) -> None:
        return None


register_order(Squares, SquaresOrder)


def taken_by(act: Callable[[], Any]) -> int:
    """Indices that are taken of orders meanwhile."""
    before = SquaresOrder.taken
    act()
    return SquaresOrder.taken - before


def test_batch_at_skip_and_resume_do_not_walk_through_a_seekable_order() -> None:
    data = Reading(1000)
    loader = DataLoader(data, 10, sampler=Squares(1000))
    iterator = iter(loader)
    assert taken_by(lambda: next(iterator)) == 10
    assert taken_by(lambda: loader.batch_at(90)) == 10
    assert data.read[-10:] == [place * place % 1000 for place in range(900, 910)]
    assert taken_by(lambda: iterator.skip(50)) == 0
    assert len(data.read) == 20
    again = pickle.loads(pickle.dumps(iterator))
    assert taken_by(lambda: next(again)) == 10
    other = DataLoader(Reading(1000), 10, sampler=Squares(1000))
    other.load_state_dict(iterator.state_dict())
    assert taken_by(lambda: next(iter(other))) == 10
    assert next(iterator).tolist() == [place * place % 1000 for place in range(510, 520)]


def test_a_registered_order_equals_its_sampler() -> None:
    loader = DataLoader(range(23), 4, sampler=Squares(23))
    assert [int(i) for batch in loader for i in batch] == list(Squares(23))


# --- skip ----------------------------------------------------------------------------------------

#: a batch depends on those before: `skip` fetches them
FETCHED = ("iterable", "by worker")


@pytest.mark.inline
@pytest.mark.parametrize("case", ALL, ids=str)
def test_after_skip_the_batches_are_those_of_a_walk(case: Case) -> None:
    seed_everything(1)
    expected = epochs(case, case.make(), 2)
    for before, count in ((0, 1), (0, 3), (1, 1), (1, 2), (2, 0)):
        if before + count > len(expected[0]):
            continue
        seed_everything(1)
        loader = case.make()
        iterator = iter(loader)
        seen(iterator, before)
        if "broken" in case.name or not any(word in case.name for word in FETCHED):
            reads = Noisy.reads
            assert iterator.skip(count) == count
            assert Noisy.reads == reads
        else:
            assert iterator.skip(count) == count
        assert iterator.step == before + count
        left = None if case.limit is None else case.limit - before - count
        assert seen(iterator, left) == expected[0][before + count :]
        assert seen(iter(loader), case.limit) == expected[1]


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(
    "case",
    [
        SEEKABLE[2],
        SEEKABLE[11],
        CUSTOM[0],
        CUSTOM[13],
        DATASETS[1],
        named("custom batches"),
        *(case for case in ALL if "by worker" in case.name),
    ],
    ids=str,
)
def test_skip_with_workers_drops_what_they_have_fetched(case: Case, num_workers: int) -> None:
    seed_everything(1)
    expected = seen(iter(case.make(num_workers)), case.limit)
    for end in range(1, len(expected) + 1):
        before = end % 2
        seed_everything(1)
        iterator = iter(case.make(num_workers))
        seen(iterator, before)
        assert iterator.skip(end - before) == end - before
        left = None if case.limit is None else case.limit - end
        assert seen(iterator, left) == expected[end:]
        iterator.close()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "name", ["shuffle", "torch as it goes", "iterable-style", "custom batches"]
)
def test_skip_says_how_many_there_were(name: str, num_workers: int) -> None:
    case = named(name)
    length = len(seen(iter(case.make(num_workers))))
    iterator = iter(case.make(num_workers))
    next(iterator)
    assert iterator.skip(100) == length - 1
    assert iterator.skip(1) == 0
    assert next(iterator, None) is None
    assert iterator.skip(1) == 0


@pytest.mark.parametrize("seeding", ["batch", "worker"])
@pytest.mark.parametrize("over", [0, 1, 9])
def test_after_a_skip_over_the_end_the_next_epoch_is_saved_as_after_a_walk(
    over: int, seeding: Any
) -> None:
    """What persistent workers have left is a part of its state."""

    def made() -> Any:
        options: Any = {"seeding": seeding, "persistent_workers": True, "shuffle": True}
        return DataLoader(Noisy(N), 3, num_workers=1, **options)

    seed_everything(1)
    next(iterator := iter(loader := made()))
    assert iterator.skip(3 + over) == 3 and next(iterator, None) is None
    following, resumed = iter(loader), made()
    resumed.load_state_dict(following.state_dict())
    assert seen(iter(resumed)) == seen(following)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", ["shuffle", "torch as it goes", "numpy at once", "by worker"])
def test_a_state_after_skip_is_that_of_the_place(name: str, num_workers: int) -> None:
    case = named(name)
    seed_everything(1)
    expected = seen(iter(case.make(num_workers)))
    for skipped in (1, 2):
        seed_everything(1)
        iterator = iter(case.make(num_workers))
        next(iterator)
        iterator.skip(skipped)
        pickled, state = pickle.dumps(iterator), iterator.state_dict()
        iterator.close()
        seed_everything(9)
        again = pickle.loads(pickled)
        workers = again.loader.num_workers = num_workers if case.same_workers else 0
        loader = case.make(workers)
        loader.load_state_dict(state)
        assert seen(again) == seen(iter(loader)) == expected[1 + skipped :]


@pytest.mark.parametrize("name", ["shuffle", "torch as it goes", "custom batches"])
def test_an_unpickled_iterator_skips_at_once(name: str) -> None:
    case = named(name)
    seed_everything(1)
    expected = seen(iter(case.make()))
    seed_everything(1)
    iterator = iter(case.make())
    next(iterator)
    again = pickle.loads(pickle.dumps(iterator))
    assert again.skip(2) == 2
    assert seen(again) == expected[3:]


def test_skip_on_resumed_iterable_style_data_counts_from_the_saved_step() -> None:
    expected = seen(iter(DataLoader(NoisyStream(), 2, seed=1)))
    iterator = iter(DataLoader(NoisyStream(), 2, seed=1))
    seen(iterator, 2)
    again = pickle.loads(pickle.dumps(iterator))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplayWarning)
        assert again.skip(1) == 1
        assert seen(again) == expected[3:]


@pytest.mark.parametrize("count", [-1, -100])
def test_skip_does_not_go_back(count: int) -> None:
    iterator = iter(DataLoader(Noisy()))
    with pytest.raises(ValueError, match="count should be from 0"):
        iterator.skip(count)


@pytest.mark.parametrize("count", [1.5, "3", None, True])
def test_skip_takes_whole_numbers(count: Any) -> None:
    iterator = iter(DataLoader(Noisy()))
    with pytest.raises(TypeError, match="count should be a whole number, got count="):
        iterator.skip(count)
    assert iterator.skip(np.int64(2)) == 2


def test_skip_after_the_last_batch_of_torchs_random_sampler_draws_what_a_walk_draws() -> None:
    """With a generator of the user's the next epoch's order depends on it."""
    orders = []
    for skipped in (0, 1, 3, 8, 100):
        generator = torch.Generator()
        generator.manual_seed(4)
        sampler = RandomSampler(range(10), num_samples=23, generator=generator)
        loader = DataLoader(Noisy(), 3, sampler=sampler, seed=None, generator=generator)
        iterator = iter(loader)
        iterator.skip(skipped)
        seen(iterator)
        orders.append([row[0] for batch in seen(iter(loader)) for row in batch])
    assert orders == [orders[0]] * len(orders)


def test_a_distributed_order_is_found_at_once_in_any_epoch() -> None:
    sampler = DistributedSampler(range(100), num_replicas=4, rank=3)
    loader = DataLoader(Noisy(100), 5, sampler=sampler, seed=2)
    expected = [seen(iter(loader)) for _ in range(3)]
    assert at(loader, 3, 1) == expected[1][3]
    assert sampler.epoch == 2


class Shuffles(Sampler[int]):
    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(20), 20))


@pytest.mark.parametrize("made", [(None, 0), (None, 1), (Shuffles, 0), (Shuffles, 1)], ids=str)
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_after_a_state_of_another_batch_size_batch_at_gives_what_is_delivered(
    steps: int, made: Any
) -> None:
    """Workers have drawn the rest of the epoch, whose last batch is short, when it is saved."""
    sampler, workers = made

    def make(size: int, num_workers: int) -> DataLoader[Any]:
        order: Any = {"shuffle": True} if sampler is None else {"sampler": sampler()}
        return DataLoader(range(20), size, seed=2, num_workers=num_workers, **order)

    iterator = iter(make(5, 0))
    next(iterator), next(iterator)
    loader = make(3, workers)
    loader.load_state_dict(iterator.state_dict(), strict=False)
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    state = loader.state_dict()
    loader = make(3, workers)
    loader.load_state_dict(state)
    iterator = iter(loader)
    for _ in range(4 - steps):
        assert loader.batch_at(iterator.step).tolist() == next(iterator).tolist()
    assert next(iterator, None) is None
