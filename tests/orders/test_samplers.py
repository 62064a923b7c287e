"""Orders: torch's samplers index by index, found anywhere without walking; and anybody's."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.observe import seed_everything
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from picklable_loader import DataLoader, register_order
from picklable_loader.core.order import Order
from picklable_loader.orders.torch_samplers import is_known, make_order
from picklable_loader.rng.source import Setting, Source

Make = Callable[[], Any]
sizes = st.integers(1, 80)
maybe_generator = st.none() | st.integers(0, 2**32)


def generator(seed: int | None) -> torch.Generator | None:
    if seed is None:
        return None
    made = torch.Generator()
    made.manual_seed(seed)
    return made


@st.composite
def random_samplers(draw: st.DrawFn) -> Make:
    size, replacement = draw(sizes), draw(st.booleans())
    count, seed = draw(st.none() | st.integers(1, 300)), draw(maybe_generator)
    return lambda: RandomSampler(range(size), replacement, count, generator(seed))


@st.composite
def subset_samplers(draw: st.DrawFn) -> Make:
    indices, seed = draw(st.lists(st.integers(0, 10**12))), draw(maybe_generator)
    return lambda: SubsetRandomSampler(indices, generator(seed))


@st.composite
def weighted_samplers(draw: st.DrawFn) -> Make:
    weights = draw(st.lists(st.floats(0.01, 10), min_size=1, max_size=60))
    replacement, seed = draw(st.booleans()), draw(maybe_generator)
    count = draw(st.integers(1, 200 if replacement else len(weights)))
    return lambda: WeightedRandomSampler(weights, count, replacement, generator(seed))


@st.composite
def distributed_samplers(draw: st.DrawFn) -> Make:
    size, replicas = draw(sizes), draw(st.integers(1, 9))
    rank = draw(st.integers(0, replicas - 1))
    arguments = {
        "num_replicas": replicas,
        "rank": rank,
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**31)),
        "drop_last": draw(st.booleans()),
    }
    epoch = draw(st.integers(0, 1000))

    def make() -> Any:
        sampler = DistributedSampler(range(size), **arguments)
        sampler.set_epoch(epoch)
        return sampler

    return make


@st.composite
def sequences(draw: st.DrawFn) -> Make:
    size = draw(st.integers(0, 80))
    kind = draw(st.sampled_from([SequentialSampler, list, tuple, lambda r: r[::-1]]))
    return lambda: kind(range(size))


orders = st.one_of(
    random_samplers(), subset_samplers(), weighted_samplers(), distributed_samplers(), sequences()
)


def order_of(make: Make, saved: dict[str, Any] | None = None) -> Order:
    sampler = make()
    given_one = getattr(sampler, "generator", None)
    generators = {} if given_one is None else {"sampler": given_one}
    return make_order(sampler, Setting(Source(None, generators), 0, saved))


def take_all(order: Order, count: int) -> list[Any]:
    taken: list[Any] = []
    while some := order.take(count):
        taken += some
    return taken


@settings(max_examples=300, deadline=None)
@given(make=orders, count=st.integers(1, 90), seed=st.integers(0, 2**31))
def test_an_order_is_what_torchs_sampler_yields_and_draws(
    make: Make, count: int, seed: int
) -> None:
    torch.manual_seed(seed)
    expected = list(make())
    left = torch.get_rng_state()
    torch.manual_seed(seed)
    order = order_of(make)
    assert order.length() == len(expected)
    assert take_all(order, count) == expected
    assert torch.equal(torch.get_rng_state(), left)
    assert order.take(1) == []


@settings(max_examples=200, deadline=None)
@given(make=orders, data=st.data(), seed=st.integers(0, 2**31))
def test_an_order_is_found_again_anywhere(make: Make, data: st.DataObject, seed: int) -> None:
    torch.manual_seed(seed)
    expected = list(make())
    torch.manual_seed(seed)
    order = order_of(make)
    places = st.integers(0, len(expected))
    walked = data.draw(places)
    assert order.take(walked) == expected[:walked]
    if not walked:
        order.take(1)
    state = json.loads(json.dumps(order.state(live=False)))
    restored = order_of(make, saved=state)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        for sought in (order, restored):
            sought.seek(place)
            count = min(5, data.draw(places))
            found = sought.take(count)
            if seekable_there(sought, order, place, walked, count):
                assert found == expected[place : place + count]


def seekable_there(sought: Order, order: Order, place: int, walked: int, count: int) -> bool:
    """Only what one of the two has drawn from a living generator is known to both."""
    return sought is order or place + count <= walked


@settings(max_examples=150, deadline=None)
@given(make=orders, size=st.integers(1, 20), drop_last=st.booleans(), seed=st.integers(0, 2**31))
def test_a_loader_delivers_the_batches_of_torchs_batch_sampler(
    make: Make, size: int, drop_last: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    torch.empty((), dtype=torch.int64).random_()  # the base seed comes first
    expected = list(BatchSampler(make(), size, drop_last))
    torch.manual_seed(seed)
    loader = DataLoader(_Anything(), size, sampler=make(), drop_last=drop_last, collate_fn=list)
    assert list(loader) == expected
    assert len(loader) == len(expected)


@settings(max_examples=150, deadline=None)
@given(make=orders, size=st.integers(1, 20), data=st.data(), seed=st.integers(0, 2**31))
def test_a_loader_goes_on_anywhere(make: Make, size: int, data: st.DataObject, seed: int) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(_Anything(), size, sampler=make(), collate_fn=list)

    torch.manual_seed(seed)
    first = loader()
    expected = [list(first), list(first)]
    torch.manual_seed(seed)
    iterator = iter(loader())
    step = data.draw(st.integers(0, max(0, len(expected[0]) - 1)))
    assert [next(iterator) for _ in range(min(step, len(expected[0])))] == expected[0][:step]
    state, pickled = iterator.state_dict(), pickle.dumps(iterator)
    torch.manual_seed(seed + 1)
    other, again = loader(), pickle.loads(pickled)
    other.load_state_dict(json.loads(json.dumps(state)))
    assert [list(other), list(other)] == [expected[0][step:], expected[1]]
    assert [list(again), list(again.loader)] == [expected[0][step:], expected[1]]


class _Anything(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: Any) -> Any:
        return index


# --- subclasses and a user's own orders ----------------------------------------------------------


class Reversed(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter([*super().__iter__()][::-1])


class Renamed(RandomSampler):
    """The same sequence, with a method more."""

    def describe(self) -> str:
        return "renamed"


class Halved(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        return iter([*super().__iter__()][::2])


class Strided(DistributedSampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([*super().__iter__()][1:])


class Doubled(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[*batch, *batch] for batch in super().__iter__()])


OVERRIDING: dict[str, Make] = {
    "random": lambda: Reversed(range(9)),
    "sequential": lambda: Halved(range(9)),
    "distributed": lambda: Strided(range(9), 2, 0),
}


@pytest.mark.parametrize("kind", OVERRIDING)
def test_a_subclass_with_an_iter_of_its_own_is_taken_as_it_is(kind: str) -> None:
    make = OVERRIDING[kind]
    assert not is_known(make())
    seed_everything(1)
    torch.empty((), dtype=torch.int64).random_()
    expected = list(make())
    seed_everything(1)
    assert [int(i) for batch in DataLoader(range(9), 2, sampler=make()) for i in batch] == expected


def test_a_batch_sampler_with_an_iter_of_its_own_is_taken_as_it_is() -> None:
    loader = DataLoader(range(9), batch_sampler=Doubled(SequentialSampler(range(4)), 2, False))
    iterator = iter(loader)
    next(iterator)
    again = pickle.loads(pickle.dumps(iterator))
    assert [batch.tolist() for batch in again] == [[2, 3, 2, 3]]


def test_a_subclass_without_one_is_as_seekable_as_its_base() -> None:
    sampler = Renamed(range(9))
    assert is_known(sampler)
    assert make_order(sampler, Setting(Source(None, {}))).seekable


class ShuffledByMethod(SequentialSampler):
    """Looks the same to a glance at the class: __iter__ is put in later."""


def test_an_iter_put_into_the_class_later_is_seen() -> None:
    ShuffledByMethod.__iter__ = lambda self: iter([2, 0, 1])  # type: ignore[method-assign]
    loader = DataLoader(range(3), 3, sampler=ShuffledByMethod(range(3)))
    assert [batch.tolist() for batch in loader] == [[2, 0, 1]]


class Spiral(Sampler[int]):
    def __init__(self, size: int, start: int) -> None:
        self.size, self.start = size, start

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the order that was registered is asked instead")


class InnerSpiral(Spiral):
    """A subclass gets the same order."""


class SpiralOrder:
    """Its state is where the sampler started; the program may turn it meanwhile."""

    seekable = True

    def __init__(self, sampler: Spiral, setting: Setting) -> None:
        saved = setting.saved
        self.size = sampler.size
        self.start = sampler.start if saved is None else saved["start"]
        self.place = 0
        self.fields = ["start"]  # a name of its own, which means nothing to the loader

    def open(self) -> None:
        pass

    def take(self, count: int) -> list[int]:
        places = range(self.place, min(self.place + count, self.size))
        self.place += len(places)
        return [(self.start + 3 * place) % self.size for place in places]

    def seek(self, position: int) -> None:
        self.place = position

    def length(self) -> int:
        return self.size

    def state(self, live: bool) -> dict[str, Any]:
        return {"start": self.start}


register_order(Spiral, SpiralOrder)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [Spiral, InnerSpiral])
def test_a_users_own_order_is_restored_from_its_state_and_a_position(
    kind: type[Spiral], num_workers: int
) -> None:
    expected = [(5 + 3 * place) % 10 for place in range(10)]
    iterator = iter(DataLoader(range(10), 2, sampler=kind(10, 5), num_workers=num_workers))
    found = next(iterator).tolist() + next(iterator).tolist()
    state = iterator.state_dict()
    assert state["order"] == {"start": 5} and state["window"] == []
    other = DataLoader(range(10), 2, sampler=kind(10, 8))
    other.load_state_dict(state)
    assert found + [int(i) for batch in other for i in batch] == expected
    again = pickle.loads(pickle.dumps(iterator))
    assert found + [int(i) for batch in again for i in batch] == expected
    iterator.close()


def test_only_classes_can_be_registered() -> None:
    with pytest.raises(TypeError, match="should be a class"):
        register_order(Spiral(3, 1), SpiralOrder)  # type: ignore[arg-type]


# --- large epochs --------------------------------------------------------------------------------

MILLION = 10**6


class Walked(Exception):
    """An index was looked at that nobody needs."""


class Counting(list[int]):
    """A list that counts which of its items were looked at."""

    def __init__(self, items: Any) -> None:
        super().__init__(items)
        self.looked_at = 0

    def __getitem__(self, index: Any) -> Any:
        self.looked_at += 1 if isinstance(index, int) else len(range(MILLION)[index])
        return super().__getitem__(index)


LARGE: dict[str, Make] = {
    "random": lambda: RandomSampler(range(MILLION)),
    "with a generator": lambda: RandomSampler(range(MILLION), generator=generator(3)),
    "replacement": lambda: RandomSampler(range(MILLION), replacement=True),
    "weighted": lambda: WeightedRandomSampler(torch.ones(MILLION), MILLION),
    "distributed": lambda: DistributedSampler(range(MILLION), 2, 1),
    "sequential": lambda: SequentialSampler(range(MILLION)),
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_million_indices_are_restored_without_walking(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(_Anything(), 8, sampler=LARGE[kind](), collate_fn=list)

    seed_everything(1)
    iterator = iter(loader())
    batches = len(iterator)
    assert iterator.skip(batches * 9 // 10) == batches * 9 // 10
    state, pickled = iterator.state_dict(), pickle.dumps(iterator.state_dict())
    expected = [next(iterator) for _ in range(3)]
    assert len(pickled) < 12_000

    taken = []
    order = type(order_of(LARGE[kind]))
    take = order.take
    monkeypatch.setattr(order, "take", lambda self, n: taken.append(n) or take(self, n))
    other = loader()
    other.load_state_dict(state)
    resumed = iter(other)
    assert [next(resumed) for _ in range(3)] == expected
    assert taken == [8, 8, 8]


def test_of_a_million_chosen_indices_only_those_needed_are_looked_at() -> None:
    indices = Counting(range(MILLION))
    iterator = iter(DataLoader(_Anything(), 8, sampler=SubsetRandomSampler(indices)))
    iterator.skip(100_000)
    indices.looked_at = 0
    next(iterator)
    iterator.state_dict()
    assert indices.looked_at == 8
