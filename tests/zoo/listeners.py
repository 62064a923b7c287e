"""Samplers that receive feedback, saved in each of the three ways; picklable by reference."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import (
    Dataset,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from picklable_loader import send_feedback

SAMPLES = 40
#: indices in an epoch
GIVEN = 44


class Sending(Dataset[torch.Tensor]):
    """Each sample has noise, and says which number it has.

    Args:
        deadly: a worker dies of this one, if a file says so.
        flag: the file, which is removed then.
    """

    def __init__(self, deadly: int = -1, flag: str = "") -> None:
        self.deadly, self.flag = deadly, flag

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.deadly and os.path.exists(self.flag):
            os.remove(self.flag)
            os.kill(os.getpid(), signal.SIGKILL)
        send_feedback(index)
        return torch.tensor([index, torch.rand(1).item()])


class SendingStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        for number in range(12):
            send_feedback(f"number {number}")
            yield number


class Weights:
    """The iterator: the heaviest sample comes next, and what it hears moves the weights."""

    def __init__(self) -> None:
        self.weights = [0.0] * SAMPLES
        self.given = 0
        #: what it has received, and been offered
        self.heard: list[Any] = []

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.given == GIVEN:
            raise StopIteration
        self.given += 1
        index = max(range(SAMPLES), key=self.weights.__getitem__)
        self.weights[index] -= 3 + index % 3
        return index

    def receive(self, step: int, objs: list[Any]) -> None:
        self.heard.append([step, *objs])
        for obj in objs:
            self.weights[int(abs(obj) * 1000 + step) % SAMPLES] += 2

    def put_back(self, batches: list[list[int]]) -> None:
        self.heard.append(["back", *batches])
        for batch in batches:
            self.given -= len(batch)
            for index in batch:
                self.weights[index] += 5


class StatefulWeights(Weights):
    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.__dict__)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(copy.deepcopy(state))


class Picklable(Sampler[int]):
    """A pickle has the iterator; a state replays it."""

    made: type[Weights] = Weights

    def __iter__(self) -> Iterator[int]:
        return self.made()


class Stateful(Picklable):
    """The iterator has a ``state_dict``."""

    made = StatefulWeights


class Generated(Weights, Sampler[int]):
    """The iterator is a generator, and the sampler listens in its stead: always a replay."""

    def __iter__(self) -> Iterator[int]:
        Weights.__init__(self)
        while self.given < GIVEN:
            yield next(self)


class Batches(Sampler[list[int]]):
    """A batch sampler whose iterator takes whole batches back."""

    def __iter__(self) -> Iterator[list[int]]:
        return _BatchesOf()


class _BatchesOf(StatefulWeights):
    def __next__(self) -> list[int]:  # type: ignore[override]
        first = super().__next__()
        return [first, *(super(_BatchesOf, self).__next__() for _ in range(self.given % 3))]


LISTENERS = [Picklable, Stateful, Generated, Batches]


class Learning(Weights, Sampler[int]):
    """A generator that goes on with what it has learnt in earlier epochs, and halves it at its end.

    It refuses feedback that is no number, after it has noted it.
    """

    def __init__(self) -> None:
        Weights.__init__(self)

    def __iter__(self) -> Iterator[int]:
        self.given = 0
        while self.given < GIVEN:
            yield next(self)
        self.weights = [weight / 2 for weight in self.weights]

    put_back = None  # type: ignore[assignment]


class Counted(Learning):
    """It has a length, so that a program may count its batches."""

    def __len__(self) -> int:
        return GIVEN


class ByLoss(WeightedRandomSampler):
    """Torch's own sampler, whose weights the feedback sets."""

    def __init__(self) -> None:
        super().__init__([1.0] * SAMPLES, GIVEN)

    def receive(self, step: int, objs: list[Any]) -> None:
        for obj in objs:
            self.weights[int(abs(obj) * 1000 + step) % SAMPLES] += 2


class SavedByLoss(ByLoss):
    """It saves its weights, and no position."""

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights[:] = state["weights"]


class Labelled(SubsetRandomSampler):
    """Active learning: each answer adds an index for later epochs."""

    def __init__(self) -> None:
        super().__init__([*range(20)])

    def receive(self, step: int, objs: list[Any]) -> None:
        self.indices = [*self.indices, int(abs(objs[-1]) * 1000 + step) % SAMPLES]


class Pile(Sampler[int]):
    """Indices in an order of which batches are put back at the beginning.

    Args:
        kind: of the iterator: a generator, one of a list, or one of a class in Python.
        stubborn: it refuses its first batches, after it has taken the last index off.
    """

    def __init__(self, kind: str, stubborn: bool = False) -> None:
        self.kind, self.stubborn = kind, stubborn

    def __iter__(self) -> Iterator[int]:
        self.pile, self.refuses = list(range(20)), self.stubborn
        if self.kind == "list":
            return iter(self.pile)
        return self.generated() if self.kind == "generator" else PileIterator(self.pile)

    def generated(self) -> Iterator[int]:
        while self.pile:
            yield self.pile.pop(0)

    def put_back(self, batches: list[list[int]]) -> None:
        if self.refuses:
            self.refuses = False
            del self.pile[-1:]
            raise ValueError("not yet")
        if self.kind == "list":
            self.pile += [index for batch in batches for index in batch]
        else:
            self.pile[:0] = [index for batch in batches for index in batch]


class PileIterator:
    def __init__(self, pile: list[int]) -> None:
        self.pile = pile

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self.pile:
            raise StopIteration
        return self.pile.pop(0)
