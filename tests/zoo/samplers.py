"""Samplers of people's own, each with a habit that is hard to save; picklable by reference."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler, Sampler

from .datasets import N
from .streams import Walk


def from_torch(size: int) -> int:
    return int(torch.randint(size, ()))


def from_numpy(size: int) -> int:
    return int(np.random.randint(size))


def from_python(size: int) -> int:
    return random.randrange(size)


class Sized(Sampler[Any]):
    def __len__(self) -> int:
        return N


class DrawsAsItGoes(Sized):
    """Draws each index from a global generator when it is asked for it."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            yield self.draw(N)


class DrawsAtOnce(DrawsAsItGoes):
    """Draws the whole epoch inside of __iter__."""

    def __iter__(self) -> Iterator[int]:
        return iter([self.draw(N) for _ in range(N)])


class OwnTorchGenerator(Sized):
    def __init__(self) -> None:
        self.rng = torch.Generator()
        self.rng.manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            yield int(torch.randint(N, (), generator=self.rng))


class OwnNumpyGenerator(Sized):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            yield int(self.rng.integers(N))


class OwnPythonGenerator(Sized):
    def __init__(self) -> None:
        self.rng = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            yield self.rng.randrange(N)


class CountsEpochs(Sized):
    """Counts the calls of __iter__ and goes by the count."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order = list(range(N))
        random.Random(self.epoch).shuffle(order)
        return iter(order)


class CountsEpochsLazily(CountsEpochs):
    """Counts when the first index is asked for, and again after the last one."""

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        yield from ((index + self.epoch) % N for index in range(N))
        self.epoch += 1


class ShufflesInPlace(Sized):
    """Shuffles its list in place, with Python's global generator."""

    def __init__(self) -> None:
        self.indices = list(range(N))

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.indices)
        return iter(self.indices)


class ShufflesInPlaceLazily(ShufflesInPlace):
    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.indices)
        yield from self.indices


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(N).tolist()


class WithoutLength(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(N).tolist()


class Grouped(Sampler[list[int]]):
    """As batch_sampler: batches of 1, 2, 3, ... indices."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(N).tolist()
        for size in (1, 2, 3, 4):
            yield order[:size]
            order = order[size:]


class GroupedInTuples(Grouped):
    def __iter__(self) -> Iterator[Any]:
        yield from map(tuple, super().__iter__())


class GroupedInOneList(Grouped):
    """Uses one list again for every batch."""

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for indices in super().__iter__():
            batch[:] = indices
            yield batch


class _StatefulPlaces(Walk):
    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self.items), "place": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.items, self.at = list(state["order"]), state["place"]


class PlainIterator(Sized):
    def __iter__(self) -> Iterator[int]:
        return Walk(torch.randperm(N).tolist())


class StatefulIterator(Sized):
    def __iter__(self) -> Iterator[int]:
        return _StatefulPlaces(torch.randperm(N).tolist())


class _CountingDown:
    """Draws as it goes from its sampler's generator, and says where it is in its state_dict."""

    def __init__(self, sampler: StatefulDrawing) -> None:
        self.sampler = sampler
        self.left = N

    def __iter__(self) -> _CountingDown:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.sampler.rng.randrange(N)

    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = self.sampler.rng.getstate()
        return {"left": self.left, "rng": [version, list(words), gauss]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["rng"]
        self.left = state["left"]
        self.sampler.rng.setstate((version, tuple(words), gauss))


class StatefulDrawing(Sized):
    """The state of its iterator is also that of its generator."""

    def __init__(self) -> None:
        self.rng = random.Random(5)

    def __iter__(self) -> Iterator[int]:
        return _CountingDown(self)


class MySampler(Sampler[int]):
    """The sampler of torchdata's tutorial, whose second epoch is empty."""

    def __init__(self, high: int, seed: int, limit: int) -> None:
        self.seed, self.high, self.limit = seed, high, limit
        self.g = torch.Generator()
        self.g.manual_seed(self.seed)
        self.i = 0

    def __iter__(self) -> Iterator[int]:
        while self.i < self.limit:
            val = int(torch.randint(high=self.high, size=(1,), generator=self.g))
            self.i += 1
            yield val

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.i = state_dict["i"]
        self.g.set_state(state_dict["rng"])

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i, "rng": self.g.get_state()}


class MySamplerAgain(MySampler):
    """The same, with a next epoch."""

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.i = 0


class StatefulAndCounting(CountsEpochs):
    """Its iterator has a state_dict, and __iter__ counts epochs beside it."""

    def __iter__(self) -> Iterator[int]:
        return _StatefulPlaces(list(super().__iter__()))


class _Positioned(Walk):
    def state_dict(self) -> dict[str, Any]:
        return {"place": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["place"]


class PositionAndCounting(CountsEpochs):
    """Its iterator's state_dict has the position alone; the order comes of the count."""

    def __iter__(self) -> Iterator[int]:
        return _Positioned(list(super().__iter__()))


class PositionAlone(Sized):
    """Its state_dict has the position in an order that the first next draws, and no generator."""

    def __init__(self, own: bool = False) -> None:
        self.at, self.rng = 0, torch.Generator().manual_seed(3) if own else None

    def __iter__(self) -> Iterator[Any]:
        yield from self.walk(self.draw())

    def draw(self) -> list[Any]:
        return torch.randperm(N, generator=self.rng).tolist()  # type: ignore[no-any-return]

    def walk(self, order: list[Any]) -> Iterator[Any]:
        for index in order[self.at :]:
            self.at += 1
            yield index
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class PositionAloneAtOnce(PositionAlone):
    def __iter__(self) -> Iterator[int]:
        return self.walk(self.draw())


class PositionAndWeights(PositionAlone):
    """Its weights are as long as a generator's state."""

    weights = [1.0] * 1000

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "weights": self.weights}


class PositionAndAnotherGenerator(PositionAlone):
    """It draws from its own generator, and its state has the program's, as DeepSpeed's sampler."""

    def __init__(self, kind: str) -> None:
        super().__init__(own=True)
        self.kind = kind

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "rng": OF_PROGRAM[self.kind]()}


OF_PROGRAM: dict[str, Callable[[], Any]] = {
    "python": random.getstate,
    "numpy": np.random.get_state,
    "numpy, as a dict": partial(np.random.get_state, legacy=False),
    "torch": torch.get_rng_state,
}


class PositionOfBatches(PositionAlone):
    """Batches of an order that an inner sampler draws from its own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = RandomSampler(range(N), generator=torch.Generator().manual_seed(4))

    def draw(self) -> list[Any]:
        order = list(self.inner)
        return [order[at : at + 2] for at in range(0, N, 2)]


class PositionOfIterator(Sized):
    """The state_dict is the iterator's."""

    def __iter__(self) -> Iterator[int]:
        return _Positioned(torch.randperm(N).tolist())


class PositionOfDrawingIterator(Sized):
    """The iterator draws as it goes, from a generator of its own."""

    def __iter__(self) -> Iterator[int]:
        return _Drawing([*range(N)])


class _Drawing(_Positioned):
    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.rng = random.Random(5)

    def __next__(self) -> int:
        return (super().__next__() + self.rng.randrange(N)) % N  # type: ignore[no-any-return]


class Resumed(Sized):
    """Begins at its position if load_state_dict has said so, which the first next takes back."""

    def __init__(self) -> None:
        self.epoch, self.at, self.resumed = 0, 0, False

    def __iter__(self) -> Iterator[int]:
        if not self.resumed:
            self.at = 0
        self.resumed = False
        order = torch.randperm(N, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.at < N:
            self.at += 1
            yield order[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at, self.resumed = state["epoch"], state["at"], True


class ResumedAndCounting(Resumed):
    """Its end begins another epoch."""

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.epoch += 1


class ResumedWithGenerator(Sized):
    """The state has its generator as it was when the epoch began."""

    def __init__(self) -> None:
        self.rng, self.at, self.resumed = torch.Generator().manual_seed(5), 0, False
        self.begun = self.rng.get_state()

    def __iter__(self) -> Iterator[int]:
        if not self.resumed:
            self.begun, self.at = self.rng.get_state(), 0
        self.resumed = False
        self.rng.set_state(self.begun)
        order = torch.randperm(N, generator=self.rng).tolist()
        while self.at < N:
            self.at += 1
            yield order[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.begun, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begun, self.at, self.resumed = state["rng"], state["at"], True


class Told(Sized):
    """Goes by the epoch that it was told last, as torch's DistributedSampler does."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(range(N))
        random.Random(self.epoch).shuffle(order)
        return iter(order)


class Wrapped(Sized):
    """Has one of torch's samplers inside of it, as trainers wrap them."""

    def __init__(self, inner: Sampler[int]) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        for index in self.inner:
            yield (index + 1) % N


class KeepsItsOrder(Sized):
    """Permutes the permutation of the epoch before."""

    def __init__(self) -> None:
        self.order = torch.arange(N)

    def __iter__(self) -> Iterator[int]:
        self.order = self.order[torch.randperm(N)]
        yield from self.order.tolist()
