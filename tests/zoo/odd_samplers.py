"""Samplers that keep their state in odd places."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from .datasets import N
from .samplers import Sized


class Buckets(Sampler[list[int]]):
    """Shuffles a list of lists in place: the ordinary batch sampler by buckets."""

    def __init__(self) -> None:
        self.batches = [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        random.shuffle(self.batches)
        yield from self.batches


class OfTuples(Sized):
    """Shuffles a list of (index, length) in place: the ordinary sampler by length."""

    def __init__(self) -> None:
        self.samples = [(index, 3 * index % 7) for index in range(N)]

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.samples)
        yield from (index for index, _ in self.samples)


class OfNumpyNumbers(Sized):
    """Shuffles a list of numpy's numbers in place."""

    def __init__(self) -> None:
        self.indices = list(np.arange(N))

    def __iter__(self) -> Iterator[Any]:
        random.shuffle(self.indices)
        yield from self.indices


class OfClasses(Sized):
    """Shuffles the lists in a dict."""

    def __init__(self) -> None:
        self.classes = {"even": list(range(0, N, 2)), "odd": list(range(1, N, 2))}

    def __iter__(self) -> Iterator[int]:
        for members in self.classes.values():
            random.shuffle(members)
        for pair in zip(*self.classes.values()):
            yield from pair


class ManyGenerators(Sized):
    """Draws from the generators in a list, in turns."""

    def __init__(self) -> None:
        self.rngs = [random.Random(place) for place in range(3)]

    def __iter__(self) -> Iterator[int]:
        for place in range(N):
            yield self.rngs[place % 3].randrange(N)


class Helper:
    """What a sampler leaves to another object."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(4)
        self.count = 0

    def pick(self) -> int:
        self.count += 1
        return int(self.rng.integers(N)) * self.count % N


class Helped(Sized):
    def __init__(self) -> None:
        self.helper = Helper()

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            yield self.helper.pick()


class InSlots:
    """No dict: its attributes stand in slots."""

    __slots__ = ("epoch",)

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        for index in range(N):
            yield (index * 3 + self.epoch) % N


class InPrivateSlots:
    """Slots whose names Python changes."""

    __slots__ = ("__epoch",)

    def __init__(self) -> None:
        self.__epoch = 0

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        self.__epoch += 1
        for index in range(N):
            yield (index * 3 + self.__epoch) % N


class ByKeys(Sized):
    """Generators and helpers in a dict by keys that are no names: numbers, texts with points."""

    def __init__(self) -> None:
        self.parts: dict[Any, Any] = {0: random.Random(1), None: Helper(), "a.b": random.Random(2)}
        self.parts |= {
            -1.5: random.Random(3),
            "[0]": random.Random(4),
            True: Helper(),
            "": Helper(),
        }

    def __iter__(self) -> Iterator[int]:
        for place in range(N):
            part = list(self.parts.values())[place % len(self.parts)]
            yield part.pick() if isinstance(part, Helper) else part.randrange(N)


@dataclass(frozen=True)
class Frozen:
    """Lets no one set its attributes."""

    size: int = N

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.size).tolist()


class ReadOnly(Sized):
    """An attribute that is a property of the same name in its dict."""

    def __init__(self) -> None:
        self.__dict__["size"] = N

    @property
    def size(self) -> int:
        return int(self.__dict__["size"])

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.size).tolist()


class KnowsItsEpochOnly(Sized):
    """Its state_dict tells the epoch, and not how far it has come."""

    def __init__(self) -> None:
        self.epoch = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]

    def __iter__(self) -> Iterator[int]:
        order = list(range(N))
        random.Random(self.epoch).shuffle(order)
        yield from order
        self.epoch += 1


class CountsItsSaves(KnowsItsEpochOnly):
    """Its state is another one at each call, also where nothing was drawn."""

    saves = 0

    def state_dict(self) -> dict[str, int]:
        self.saves += 1
        return {"epoch": self.epoch, "saves": self.saves}


class SavesOnly(KnowsItsEpochOnly):
    """Half of the protocol is none."""

    load_state_dict = None  # type: ignore[assignment]


class BeginsAgain(Sampler[list[int]]):
    """Its own iterator, which begins again whenever iter() is called."""

    def __init__(self) -> None:
        self.place = 0

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> BeginsAgain:
        self.place = 0
        return self

    def __next__(self) -> list[int]:
        if self.place == 4:
            raise StopIteration
        self.place += 1
        return [2 * self.place - 2, 2 * self.place - 1]


class SharesAGenerator(Sampler[list[int]]):
    """Draws from the generator that its loader was given as well."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(N, generator=self.generator).tolist()
        for place in range(4):
            yield order[2 * place : 2 * place + 2]


class InArrays(Sized):
    """Yields numpy's numbers."""

    def __iter__(self) -> Iterator[Any]:
        return iter(np.random.permutation(N))


class MakesItsGenerator(Sized):
    """Has no generator before it needs one, and keeps it."""

    def __init__(self) -> None:
        self.rng: random.Random | None = None

    def __iter__(self) -> Iterator[int]:
        self.rng = self.rng or random.Random(8)
        for _ in range(N):
            yield self.rng.randrange(N)


class GoesRound(Sized):
    """How far a cycle has come, no one can tell."""

    def __init__(self) -> None:
        self.cycle = itertools.cycle([3, 1, 4, 1, 5, 9, 2])

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            yield next(self.cycle)


class ShufflesSamplers(Sized):
    """Shuffles other samplers, which no plain value can tell apart."""

    def __init__(self) -> None:
        self.samplers = [OfClasses(), ManyGenerators()]

    def __iter__(self) -> Iterator[int]:
        self.samplers.reverse()
        yield from self.samplers[0]


def with_a_shared_generator() -> dict[str, Any]:
    generator = torch.Generator()
    generator.manual_seed(9)
    return {"batch_sampler": SharesAGenerator(generator), "generator": generator}
