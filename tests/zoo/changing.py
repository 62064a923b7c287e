"""Iterable-style datasets made at random, which change in ``iter``, in ``next`` and at the end.

All attributes are built in ``__init__``: one that epochs make is taken to be set anew by each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from picklable_loader import Interleave, ShuffleBuffer

from .streams import SavedWalk, Walk, share

#: samples of all streams together
LENGTH = 13


class Part:
    """An object within the dataset."""

    def __init__(self, size: int) -> None:
        self.counts, self.count = [0] * size, 0


@dataclass(frozen=True)
class Plan:
    """What a dataset has, and does.

    Attributes:
        sizes: of a list, an array, a tensor, a list in a dict and one in an object.
        rng: makes a generator of its own; None: it has none.
        in_iter, in_next, at_end: names of `CHANGES`.
        iterator: how it is iterated over; see `ITERATORS`.
        draws, draws_own: each sample, from the global generators and from that of its own.
        shape: see `SHAPES`.
    """

    sizes: tuple[int, ...]
    rng: Callable[[int], Any]
    in_iter: tuple[str, ...]
    in_next: tuple[str, ...]
    at_end: tuple[str, ...]
    iterator: str
    shape: str
    draws: bool
    draws_own: bool

    @classmethod
    def at_random(cls, number: int) -> Plan:
        chance = random.Random(number)
        iterator = chance.choice(list(ITERATORS))
        whole = iterator != "its state"  # that state says where it is: only `iter` may change more
        return cls(
            sizes=tuple(chance.choice([5, 5, 3000, 20_000]) for _ in range(5)),
            rng=chance.choice(GENERATORS),
            in_iter=tuple(chance.sample(list(CHANGES), chance.choice([0, 1, 1, 2, 3]))),
            in_next=tuple(chance.sample(list(CHANGES), chance.choice([0, 1, 2]) * whole)),
            at_end=tuple(chance.sample(list(CHANGES), chance.choice([0, 0, 1]) * whole)),
            iterator=iterator,
            shape=chance.choice(list(SHAPES)),
            draws=chance.random() < 0.6,
            draws_own=whole and chance.random() < 0.6,
        )

    def dataset(self) -> Any:
        return SHAPES[self.shape](lambda: ITERATORS[self.iterator](self))


class Changing(IterableDataset[Any]):
    """Gives what its attributes are, and random numbers."""

    def __init__(self, plan: Plan) -> None:
        self.plan, (a, b, c, d, e) = plan, plan.sizes
        self.listed = list(range(a))
        self.array = np.arange(b, dtype=float)
        self.tensor = torch.arange(c, dtype=torch.float64)
        self.named = {"counts": [0] * d}
        self.part = Part(e)
        self.count = 0
        self.rng = plan.rng(7)

    def change(self, names: tuple[str, ...], at: int = 0) -> None:
        for name in names:
            CHANGES[name](self, at)

    def begin(self) -> None:
        self.change(self.plan.in_iter)

    def give(self, at: int) -> list[float]:
        found = [
            *(at, self.count, self.listed[at % 3], len(self.listed), self.array[:99].sum()),
            *(self.tensor[:99].sum(), sum(self.named["counts"]), self.part.count),
            *(self.part.counts[at % 3], drawn(self.rng) if self.plan.draws_own else 0),
            *(
                (random.random(), np.random.rand(), torch.rand(()).item())
                if self.plan.draws
                else ()
            ),
        ]
        self.change(self.plan.in_next, at)
        return [float(number) for number in found]

    def end(self) -> None:
        self.change(self.plan.at_end)


class ByGenerator(Changing):
    def __iter__(self) -> Iterator[Any]:
        self.begin()
        for at in share(LENGTH):
            yield self.give(at)
        self.end()


class ByWalk(Changing):
    """Its iterator pickles."""

    walk: type[Walk] = Walk

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        return self.walk(share(LENGTH), self.give)


class BySavedWalk(ByWalk):
    """Its iterator has a state, which says where it is."""

    walk = SavedWalk


class Itself(Changing):
    """Is its own iterator."""

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        self.left = list(share(LENGTH))
        return self

    def __next__(self) -> Any:
        if not self.left:
            self.end()
            raise StopIteration
        return self.give(self.left.pop(0))


def drawn(generator: Any) -> float:
    if isinstance(generator, torch.Generator):
        return torch.rand((), generator=generator, dtype=torch.float64).item()
    return 0.0 if generator is None else float(generator.uniform(0, 1))


def _none(seed: int) -> None:
    return None


def _torchs(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _swap(dataset: Changing, at: int) -> None:
    other = int(drawn(dataset.rng) * len(dataset.listed))
    dataset.listed[0], dataset.listed[other] = dataset.listed[other], dataset.listed[0]
    dataset.listed.reverse()


def _assign(name: str, value: Callable[[Any], Any]) -> Callable[[Changing, int], None]:
    return lambda dataset, at: setattr(dataset, name, value(getattr(dataset, name)))


def _write(dataset: Changing, at: int) -> None:
    dataset.listed[at % 3] += 1 + at


def _write_array(dataset: Changing, at: int) -> None:
    dataset.array[at % 5] += 1 + at


def _write_dict(dataset: Changing, at: int) -> None:
    dataset.named["counts"][0] += 1


def _write_part(dataset: Changing, at: int) -> None:
    dataset.part.counts[at % 3] += 1
    dataset.part.count += 1


CHANGES: dict[str, Callable[[Changing, int], Any]] = {
    "counts": _assign("count", lambda count: count + 1),
    "shuffles its list": lambda dataset, at: random.shuffle(dataset.listed),
    "shuffles its array": lambda dataset, at: np.random.shuffle(dataset.array),
    "swaps by its generator": _swap,
    "makes another list": _assign("listed", lambda listed: [each + 1 for each in listed]),
    "makes another tensor": _assign("tensor", lambda tensor: tensor * 2 + torch.rand(())),
    "writes into its list": _write,
    "writes into its array": _write_array,
    "writes into its tensor": lambda dataset, at: dataset.tensor.add_(1),
    "writes into its dict": _write_dict,
    "writes into its object": _write_part,
    "appends": lambda dataset, at: dataset.listed.append(at),
}
ITERATORS: dict[str, type[Changing]] = {
    "generator": ByGenerator, "pickle": ByWalk, "its state": BySavedWalk, "itself": Itself
}  # fmt: skip
GENERATORS: list[Callable[[int], Any]] = [
    _none, random.Random, np.random.default_rng, np.random.RandomState, _torchs
]  # fmt: skip
SHAPES: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "plain": lambda make: make(),
    "in a buffer": lambda make: ShuffleBuffer(make(), 4, seed=1),
    "interleaved": lambda make: Interleave([make(), make()], weights=[1, 2], seed=3),
    "both": lambda make: ShuffleBuffer(Interleave([make(), make()]), 4, seed=1),
}
