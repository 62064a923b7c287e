"""States between two epochs, of samplers whose ``load_state_dict`` sets flags."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections.abc import Iterator
from typing import Any, cast

import pytest
from laws.observe import lists
from torch.utils.data import Sampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
from zoo.streams import SavedWalk

from picklable_loader import DataLoader

N = 10


class WithPosition(Sampler[int]):
    """Epoch and position are its state, and `load_state_dict` sets a flag."""

    state_is_position = True

    def __init__(self) -> None:
        self.epoch = self.at = 0
        self.resumed = False

    def order(self) -> list[int]:
        return random.Random(self.epoch).sample(range(N), N)

    def __len__(self) -> int:
        return N

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at, self.resumed = state["epoch"], state["at"], True


class AGenerator(WithPosition):
    """As torchdata's pages show one: the position at an epoch's end is the length."""

    def __iter__(self) -> Iterator[int]:
        if not self.resumed:
            self.at = 0
        self.resumed = False
        while self.at < N:
            self.at += 1
            yield self.order()[self.at - 1]
        self.epoch += 1


class ItsOwnIterator(WithPosition):
    """As lhotse has: after `load_state_dict`, ``iter`` goes on; the next index clears the flag."""

    def __iter__(self) -> Iterator[int]:
        if not self.resumed:
            self.at = 0
        return self

    def __next__(self) -> int:
        self.resumed = False
        if self.at == N:
            self.epoch += 1
            raise StopIteration
        self.at += 1
        return self.order()[self.at - 1]


class Applies(Sampler[int]):
    """Its ``iter`` applies what `load_state_dict` has noted: a number, or a flag beside it."""

    def __init__(self) -> None:
        self.epoch = self.loaded = 0
        self.to_apply: int | None = None
        self.dirty = False

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        if self.to_apply is not None:
            self.epoch, self.to_apply = self.to_apply, None
        if self.dirty:
            self.epoch, self.dirty = self.epoch + self.loaded, False
        order = random.Random(self.epoch).sample(range(N), N)
        self.epoch += 1
        return iter(order)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.to_apply, self.dirty = state["epoch"] - 1, True
        self.loaded = 1


class AppliesItself(Applies):
    """The same, and its own iterator; its state says what is still to be applied."""

    def __iter__(self) -> Iterator[int]:
        self.left = super().__iter__()
        return self

    def __next__(self) -> int:
        return next(self.left)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch if self.to_apply is None else self.to_apply + self.loaded}


class MadeByLoad(ItsOwnIterator):
    """Only `load_state_dict` makes the flag, and the next index removes it."""

    def __init__(self) -> None:
        super().__init__()
        del self.resumed

    def __iter__(self) -> Iterator[int]:
        if not hasattr(self, "resumed"):
            self.at = 0
        return self

    def __next__(self) -> int:
        try:
            return super().__next__()
        finally:
            del self.resumed


class OpensItsSource(ItsOwnIterator):
    """Its ``iter`` opens what it reads, at the position that `load_state_dict` has set."""

    def __iter__(self) -> Iterator[int]:
        super().__iter__()
        self.source = iter(self.order()[self.at :])
        return self

    def __next__(self) -> int:
        self.resumed = False
        try:
            index = next(self.source)
        except StopIteration:
            self.epoch += 1
            raise
        self.at += 1
        return index


class AppliesAPosition(ItsOwnIterator):
    """Its ``iter`` applies what `load_state_dict` has noted, and clears that."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[int]:
        (self.epoch, self.at), self.noted = self.noted or (self.epoch, 0), None
        self.at %= N
        return self

    def state_dict(self) -> dict[str, Any]:
        epoch, at = self.noted or (self.epoch, self.at)
        return {"epoch": epoch, "at": at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.noted = state["epoch"], state["at"]


class AFlagThatIsANumber(AGenerator):
    resumed: Any

    def __init__(self) -> None:
        super().__init__()
        self.resumed = 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.resumed = 1


class ShowsWhatIsLoaded(Applies):
    """Its state is what was loaded, also where only the flag has ``iter`` apply that."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[int]:
        if self.dirty and self.pending:
            self.epoch, self.pending, self.dirty = self.pending["epoch"], None, False
        return super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        return self.pending or {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pending, self.dirty = state, True


class CountsAsTorchdata(WithPosition):
    """As its StatefulDistributedSampler: set_epoch brings the epoch, which no state has."""

    def __init__(self) -> None:
        super().__init__()
        self.next_at: int | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.at, self.next_at = self.next_at or 0, None
        for index in itertools.islice(self.order(), self.at, None):
            self.at += 1
            yield index

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next_at = state["at"]


class LoadsItsOrder(ItsOwnIterator):
    """Its state has the order, which nothing is before the first pass."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[int] | None = None

    def order(self) -> list[int]:
        if self.drawn is None:
            self.drawn = super().order()
        return self.drawn

    def __next__(self) -> int:
        try:
            return super().__next__()
        except StopIteration:
            assert self.drawn is not None
            self.drawn = self.drawn[::-1]  # the next epoch's is made of it
            raise

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.drawn = state["drawn"]


class NeedsWhatIterOpens(ItsOwnIterator):
    """Its `load_state_dict` seeks in what ``iter`` opens."""

    def __init__(self) -> None:
        super().__init__()
        self.source: list[int] | None = None

    def __iter__(self) -> Iterator[int]:
        self.at, self.source = 0, self.order()
        return self

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if 0 < self.at < N:
            assert self.source is not None
            self.source[:] = self.order()

    def __next__(self) -> int:
        assert self.source is not None
        return super().__next__()


class DrawsAPart(ItsOwnIterator):
    """Its ``iter`` makes a part from its generator, and the state has the generator alone."""

    def __init__(self) -> None:
        super().__init__()
        self.rng, self.part = random.Random(3), [0]

    def __iter__(self) -> Iterator[int]:
        super().__iter__()
        self.part[:] = self.rng.sample(range(N), N)
        return self

    def order(self) -> list[int]:
        return self.part

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rng": self.rng.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.rng.setstate(state["rng"])


class HasNextBesides(Sampler[int]):
    """It has ``__next__``, but its ``iter`` returns another object."""

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        return SavedWalk(list(range(N)))

    def __next__(self) -> int:
        return next(iter(self))


class Started(ItsOwnIterator):
    """A flag that epochs change, and `load_state_dict` brings back."""

    def __init__(self) -> None:
        super().__init__()
        self.started = False

    def order(self) -> list[int]:
        return super().order() if self.started else list(range(N))

    def __next__(self) -> int:
        index = super().__next__()
        self.started |= self.at == N
        return index

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "started": self.started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.started = state["started"]


KINDS = [
    *(ItsOwnIterator, Applies, AppliesItself, Started, AGenerator, MadeByLoad, OpensItsSource),
    *(AppliesAPosition, AFlagThatIsANumber, ShowsWhatIsLoaded, CountsAsTorchdata),
    *(NeedsWhatIterOpens, LoadsItsOrder, DrawsAPart, HasNextBesides),
]


@pytest.mark.parametrize("way", ["state", "json", "pickle"])
@pytest.mark.parametrize("iterates", [False, True])
@pytest.mark.parametrize("epochs", [0, 1, 2])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_the_epoch_after_a_state_between_two_is_whole(
    kind: Any, num_workers: int, epochs: int, iterates: bool, way: str
) -> None:
    def build() -> Any:
        return DataLoader(range(N), 4, sampler=kind(), num_workers=num_workers, seed=1)

    loader = build()
    for _ in range(epochs):
        list(loader)
    it = iter(loader) if iterates else None
    if way == "pickle":
        again = pickle.loads(pickle.dumps(loader if it is None else it))
        loaded = iter(again) if it is None else again
        owner = again if it is None else again.loader
    else:
        state = loader.state_dict()
        owner = build()
        owner.load_state_dict(json.loads(json.dumps(state)) if way == "json" else state)
        loaded = iter(owner)
    expected = lists(loader if it is None else it)
    assert len(expected) == 3
    assert (lists(loaded), lists(owner)) == (expected, lists(loader))


def test_what_the_program_has_restored_by_itself_goes_on_in_its_state() -> None:
    """Its flag is True when the first state is taken: this pass is the rest of an epoch."""

    def build(at: int) -> Any:
        sampler = ItsOwnIterator()
        if at:
            sampler.load_state_dict({"epoch": 3, "at": at})
        return DataLoader(range(N), 4, sampler=sampler)

    loader, again = build(5), build(0)
    again.load_state_dict(loader.state_dict())
    expected = lists(loader)
    assert len(expected) == 2
    assert lists(again) == expected


@pytest.mark.parametrize("way", ["state", "pickle"])
@pytest.mark.parametrize("taken", [1, 2, 3])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_goes_on_and_the_epochs_after_it_are_whole(
    kind: Any, num_workers: int, taken: int, way: str
) -> None:
    def build() -> Any:
        options = {"num_workers": num_workers, "seed": 1, "prefetch_budget": 1}
        return DataLoader(range(N), 4, sampler=kind(), at_epoch_end="next", **options)

    loader = build()
    list(loader)
    it = iter(loader)
    for _ in range(taken):
        next(it)
    if way == "pickle":
        again = pickle.loads(pickle.dumps(it))
        owner = again.loader
    else:
        owner = build()
        owner.load_state_dict(it.state_dict())
        again = iter(owner) if taken < 3 else iter(())
    assert lists(again) == lists(it)
    for _ in range(2):
        expected = lists(loader)
        assert len(expected) == 3
        assert lists(owner) == expected


@pytest.mark.parametrize("taken", [None, 0, 1, 2])
@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_torchdatas_distributed_sampler_goes_on_from_a_state(
    epochs: int, taken: int | None
) -> None:
    """Its state is a count of indices: the loader knows the epoch. ``taken``: None: no pass yet."""

    def build() -> Any:
        sampler = StatefulDistributedSampler(cast(Any, range(2 * N)), num_replicas=2, rank=1)
        return DataLoader(range(2 * N), 4, sampler=sampler, seed=1)

    loader, again = build(), build()
    for _ in range(epochs):
        list(loader)
    it = None if taken is None else iter(loader)
    for _ in range(taken or 0):
        next(it)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    expected = lists(loader if it is None else it)
    assert len(expected) == 3 - (taken or 0)
    assert lists(again) == expected
    assert lists(again) == lists(loader)
