"""Datasets whose ``load_state_dict`` sets a flag for the ``iter``, or the sample, that follows."""

from __future__ import annotations

import io
import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from laws.observe import lists
from torch.utils.data import IterableDataset
from zoo.streams import SavedWalk

from picklable_loader import DataLoader, ShuffleBuffer

N = 8


class AGenerator(IterableDataset[int]):
    """Its ``iter`` begins anew, unless the flag says that a state was loaded."""

    def __init__(self) -> None:
        self.epoch = self.at = 0
        self.resumed = False

    def __iter__(self) -> Iterator[int]:
        if not self.resumed:
            self.at = 0
        self.resumed = False
        while self.at < N:
            self.at += 1
            yield self.at + 100 * self.epoch
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at, self.resumed = state["epoch"], state["at"], True


class MadeByLoad(AGenerator):
    """Only `load_state_dict` makes the flag, and ``iter`` removes it."""

    def __init__(self) -> None:
        super().__init__()
        del self.resumed

    def __iter__(self) -> Iterator[int]:
        self.resumed = hasattr(self, "resumed")
        for sample in super().__iter__():
            vars(self).pop("resumed", None)
            yield sample
        vars(self).pop("resumed", None)


class Applies(AGenerator):
    """Its ``iter`` applies what `load_state_dict` has noted, and begins where its state says."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[int]:
        (self.epoch, self.at), self.noted = self.noted or (self.epoch, self.at), None
        self.resumed = True
        yield from super().__iter__()
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        epoch, at = self.noted or (self.epoch, self.at)
        return {"epoch": epoch, "at": at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.noted = state["epoch"], state["at"]


class OpensItsSource(AGenerator):
    """Its own iterator, whose ``iter`` opens what it reads, at the position of the state."""

    def __iter__(self) -> Iterator[int]:
        if not self.resumed:
            self.at = 0
        self.source = iter(range(self.at + 1, N + 1))
        return self

    def __next__(self) -> int:
        self.resumed = False
        self.at = next(self.source, N + 1)
        if self.at > N:
            self.at, self.epoch = N, self.epoch + 1
            raise StopIteration
        return self.at + 100 * self.epoch


class TakesItApart(AGenerator):
    """Its `load_state_dict` removes what it has read."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({name: state.pop(name) for name in ("epoch", "at")})


class WithATime(AGenerator):
    """Its state is never twice the same."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "time": next(TIMES)}


class NeedsWhatIterOpens(AGenerator):
    """Its own iterator, whose `load_state_dict` seeks in what ``iter`` opens."""

    file: Any = None

    def __iter__(self) -> Iterator[int]:
        self.file = io.StringIO("".join(f"{number}\n" for number in range(N)))
        return self

    def __next__(self) -> int:
        return int(next(self.file))

    def state_dict(self) -> dict[str, Any]:
        return {"at": 0 if self.file is None else self.file.tell()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["at"]:
            self.file.seek(state["at"])


class HasNextBesides(IterableDataset[int]):
    """It has ``__next__``, but its ``iter`` returns another object."""

    def __iter__(self) -> Iterator[int]:
        return SavedWalk(list(range(N)))

    def __next__(self) -> int:
        return next(iter(self))


TIMES = itertools.count()
KINDS = [
    *(AGenerator, MadeByLoad, Applies, OpensItsSource, TakesItApart, WithATime),
    *(HasNextBesides,),
]


def alone(dataset: Any) -> Any:
    return dataset


def in_a_buffer(dataset: Any) -> Any:
    return ShuffleBuffer(dataset, 3)


@pytest.mark.parametrize("way", ["state", "json", "pickle"])
@pytest.mark.parametrize("taken", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("epochs", [0, 1, 2])
@pytest.mark.parametrize("persistent", [None, False, True])
@pytest.mark.parametrize("wrapped", [alone, in_a_buffer])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_goes_on_and_the_epochs_after_it_are_whole(
    kind: Any, wrapped: Any, persistent: bool | None, epochs: int, taken: int | None, way: str
) -> None:
    """``taken``: batches of the pass when it is saved; None: there is no pass yet."""
    workers = {} if persistent is None else {"num_workers": 1, "persistent_workers": persistent}

    def build() -> Any:
        options = {"snapshot_every_n_steps": 1, "at_epoch_end": "next", **workers}
        return DataLoader(wrapped(kind()), 3, seed=1, **options)

    loader = build()
    for _ in range(epochs):
        list(loader)
    it = None if taken is None else iter(loader)
    for _ in range(taken or 0):
        next(it)
    saved = loader if it is None else it
    if way == "pickle":
        again = pickle.loads(pickle.dumps(saved))
        owner = again if it is None else again.loader
        again = iter(owner) if it is None else again
    else:
        state = saved.state_dict()
        owner = build()
        owner.load_state_dict(json.loads(json.dumps(state)) if way == "json" else state)
        again = iter(owner) if taken != 3 else iter(())
    expected = lists(loader if it is None else it)
    assert len(expected) == 3 - (taken or 0)
    assert lists(again) == expected
    for _ in range(2):
        expected = lists(loader)
        assert len(expected) == 3
        assert lists(owner) == expected


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("taken", [1, 2])
def test_a_load_that_needs_what_iter_opens_comes_after_it(num_workers: int, taken: int) -> None:
    def build() -> Any:
        options: Any = {"num_workers": num_workers, "snapshot_every_n_steps": 1}
        return DataLoader(NeedsWhatIterOpens(), 3, seed=1, **options)

    loader, again = build(), build()
    it = iter(loader)
    for _ in range(taken):
        next(it)
    again.load_state_dict(it.state_dict())
    assert lists(again) == lists(it)
