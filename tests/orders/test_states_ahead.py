"""Samplers that yield objects and have a state, as lhotse's: workers have some objects ahead."""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import Dataset, Sampler

from picklable_loader import DataLoader
from picklable_loader.errors import CannotSaveError

N = 24


class Cut:
    """No state can hold it."""

    def __init__(self, number: int) -> None:
        self.number = number


class Speech(Dataset[Any]):
    def __getitem__(self, index: Any) -> Any:
        cuts = index if isinstance(index, list) else [index]
        return [cut.number for cut in cuts], random.random()


class Stats:
    def __init__(self) -> None:
        self.drawn = 0


class Cuts(Sampler[Any]):
    """It is its own iterator, and begins a new log with each epoch."""

    def __init__(self, log: Any) -> None:
        self.at, self.epoch, self.log = 0, 0, log

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return N

    def __next__(self) -> Any:
        if self.at == N:
            self.at, self.epoch = 0, self.epoch + 1
            raise StopIteration
        if isinstance(self.log, dict):
            stats = self.log.setdefault(self.epoch, Stats())
        else:
            if len(self.log) <= self.epoch:
                self.log.append(Stats())
            stats = self.log[self.epoch]
        stats.drawn += 1
        self.at += 1
        return Cut((self.at * 7 + self.epoch) % N)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]
        if not isinstance(self.log, dict):
            self.log.extend(Stats() for _ in range(self.epoch - len(self.log)))


class Shuffled(Cuts):
    """Its generator is not in its state: it is made anew for each epoch."""

    def __init__(self, log: Any) -> None:
        super().__init__(log)
        self.rng = random.Random(0)

    def __next__(self) -> Any:
        cut = super().__next__()
        self.rng.seed(cut.number)
        return Cut(self.rng.randrange(1000))


LOGS = {"list": list, "dict": dict, "deque": deque}


def build(sampler: Any, workers: int, batch_size: int | None = None, **options: Any) -> Any:
    return DataLoader(
        Speech(),
        batch_size,
        sampler=sampler,
        num_workers=workers,
        seed=1,
        collate_fn=as_they_are,
        **options,
    )


def as_they_are(samples: Any) -> Any:
    return samples


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("workers, later", [(0, 0), (0, 2), (2, 0), (2, 3)])
@pytest.mark.parametrize("log", LOGS)
def test_a_state_has_the_sampler_s_state_from_before_what_workers_have_ahead(
    log: str, workers: int, later: int, batch_size: int | None, epoch: int, steps: int
) -> None:
    loader = build(Cuts(LOGS[log]()), workers, batch_size)
    for _ in range(epoch):
        list(loader)
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    again = build(Cuts(LOGS[log]()), later, batch_size)
    again.load_state_dict(state)
    assert list(again) == list(iterator)
    assert list(again) == list(loader)


def test_a_save_after_a_resume_is_exact_as_well() -> None:
    loader = build(Cuts([]), 2)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
        again = build(Cuts([]), 2)
        again.load_state_dict(loader.state_dict())
        loader, iterator, left = again, iter(again), iterator
        next(left), next(iterator)
    assert list(iterator) == list(left)


def test_one_with_a_generator_has_to_say_that_its_state_is_its_position() -> None:
    iterator = iter(build(Shuffled([]), 2))
    next(iterator)
    with pytest.raises(CannotSaveError, match="state_is_position = True"):
        iterator.state_dict()
    sampler = Shuffled([])
    sampler.state_is_position = True  # type: ignore[attr-defined]
    iterator = iter(build(sampler, 2))
    next(iterator)
    again = build(Shuffled([]), 2)
    again.load_state_dict(iterator.state_dict())
    assert list(again) == list(iterator)


class NotItsOwnIterator(Cuts):
    def __iter__(self) -> Iterator[Any]:
        for number in range(N):
            yield Cut(number)


def test_with_another_iterator_a_save_says_how_to_draw_nothing_ahead() -> None:
    iterator = iter(build(NotItsOwnIterator([]), 2))
    next(iterator)
    with pytest.raises(CannotSaveError, match="prefetch_budget=1 draws none ahead"):
        iterator.state_dict()


class Counts:
    def __init__(self) -> None:
        self.given = 0


class Walk:
    """An iterator with a state, which counts in what its sampler has made for it."""

    def __init__(self, counts: Counts) -> None:
        self.at, self.counts = 0, counts

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> int:
        if self.at == N:
            raise StopIteration
        self.at += 1
        self.counts.given += 1
        return (self.at + self.counts.given) % N

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class MakesItsCounts(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        self.counts = Counts()
        return Walk(self.counts)


def test_attributes_of_an_object_that_iter_makes_are_put_back() -> None:
    def walking() -> Any:
        return DataLoader(range(N), 3, sampler=MakesItsCounts())  # type: ignore[arg-type]

    iterator = iter(walking())
    next(iterator), next(iterator)
    once = walking()
    once.load_state_dict(iterator.state_dict())
    resumed = iter(once)
    next(resumed), next(iterator)
    twice = walking()
    twice.load_state_dict(resumed.state_dict())
    rest = [batch.tolist() for batch in iterator]
    assert rest == [batch.tolist() for batch in resumed] == [batch.tolist() for batch in twice]


class MakesItsCountsLate(Sampler[int]):
    """It makes them in its first epoch, and goes on counting in later ones."""

    def __iter__(self) -> Iterator[int]:
        if "counts" not in vars(self):
            self.counts = Counts()
        self.counts.given += 1
        return WalkAlone(self.counts)


class WalkAlone(Walk):
    """It looks at the counts, and does not change them."""

    def __next__(self) -> int:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return (self.at + self.counts.given) % N


def test_attributes_of_an_object_that_a_new_sampler_lacks_are_refused_at_the_save() -> None:
    loader: Any = DataLoader(range(N), 3, sampler=MakesItsCountsLate())  # type: ignore[arg-type]
    list(loader)
    iterator = iter(loader)
    next(iterator), next(iterator)
    with pytest.raises(CannotSaveError, match="counts.given is of an object that a new sampler"):
        iterator.state_dict()


class HoldsItsOrder(Cuts):
    """Its state is large."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "order": [*range(100_000)]}


def test_a_large_state_is_not_written_before_each_draw() -> None:
    sampler = HoldsItsOrder([])
    iterator = iter(build(sampler, 2))
    next(iterator)
    with pytest.raises(CannotSaveError, match="prefetch_budget=1"):
        iterator.state_dict()
    alone = iter(build(HoldsItsOrder([]), 2, prefetch_budget=1))
    next(alone)
    again = build(HoldsItsOrder([]), 0)
    again.load_state_dict(alone.state_dict())
    assert list(again) == list(alone)


class MakesItsLogLate(Cuts):
    """An object that a new sampler does not have."""

    def __init__(self) -> None:
        super().__init__([])
        self.stats: Stats | None = None

    def __next__(self) -> Any:
        self.stats = self.stats or Stats()
        self.stats.drawn += 1
        return super().__next__()


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("workers", [0, 2])
def test_attributes_beside_the_state_of_its_own_iterator_are_left_out(
    workers: int, epoch: int
) -> None:
    loader = build(MakesItsLogLate(), workers)
    for _ in range(epoch):
        list(loader)
    iterator = iter(loader)
    next(iterator), next(iterator)
    again = build(MakesItsLogLate(), workers)
    again.load_state_dict(loader.state_dict())
    assert list(again) == list(iterator)
