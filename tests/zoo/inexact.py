"""Datasets and samplers that the laws leave out: of most of them nothing exact can be saved."""

from __future__ import annotations

import random
import types
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from .datasets import N, Noisy, sample
from .samplers import Sized
from .streams import share


def local_noisy() -> Dataset[torch.Tensor]:
    """A dataset that pickle refuses: its class has no name that could be looked up."""

    class Local(Noisy):
        def __init__(self) -> None:
            super().__init__()
            self.transform = lambda value: value + 1

        def __getitem__(self, index: int) -> torch.Tensor:
            return self.transform(super().__getitem__(index))

    return Local()


class OwnGenerator(Noisy):
    """Augments with a generator of its own, and has no state."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(7)

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + self.rng.random()


def noisily(samples: list[Any]) -> Any:
    """A collate_fn that draws, too."""
    return default_collate(samples), torch.rand(())


# --- samplers whose generator is no attribute ----------------------------------------------------


class Hidden(Sized):
    """Draws from a generator by way of whatever holds it."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        yield from self.draw(N).tolist()


def by_method() -> Hidden:
    return Hidden(np.random.default_rng(3).permutation)


def by_lambda() -> Hidden:
    generator = np.random.default_rng(3)
    return Hidden(lambda count: generator.permutation(count))


def by_partial() -> Hidden:
    generator = torch.Generator().manual_seed(3)
    return Hidden(partial(torch.randperm, generator=generator))


def by_namespace() -> Hidden:
    return Hidden(_Permuting(types.SimpleNamespace(rng=np.random.default_rng(3))))


class _Permuting:
    def __init__(self, holder: Any) -> None:
        self.holder = holder

    def __call__(self, count: int) -> Any:
        return self.holder.rng.permutation(count)


class OfItsClass(Sized):
    """Its generator is the class's."""

    rng = random.Random(3)

    def __init__(self) -> None:
        type(self).rng = random.Random(3)  # every trial begins anew

    def __iter__(self) -> Iterator[int]:
        yield from self.rng.sample(range(N), N)


# --- samplers that the training changes ----------------------------------------------------------


class Listening(Sized):
    """Draws by weights that follow the training."""

    def __init__(self) -> None:
        self.weights = [1.0] * N
        self.rng = random.Random(6)

    def feedback(self, index: int) -> None:
        """The training has seen this sample."""
        self.weights[index] /= 2

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            yield self.rng.choices(range(N), self.weights)[0]


class ListeningWithWeights(Listening):
    """Its state has the weights, and not how far it has come."""

    def state_dict(self) -> dict[str, Any]:
        return {"weights": list(self.weights)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = list(state["weights"])


class ListeningWithState(Listening):
    """Its state has all."""

    def __init__(self) -> None:
        super().__init__()
        self.left = N

    def __iter__(self) -> Iterator[int]:
        while self.left:
            self.left -= 1
            yield self.rng.choices(range(N), self.weights)[0]
        self.left = N

    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = self.rng.getstate()
        rng = [version, list(words), gauss]
        return {"weights": list(self.weights), "left": self.left, "rng": rng}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights, self.left = list(state["weights"]), state["left"]
        version, words, gauss = state["rng"]
        self.rng.setstate((version, tuple(words), gauss))


# --- iterable-style data that changes itself -----------------------------------------------------


class CountsPasses(IterableDataset[torch.Tensor]):
    """Shuffles by the number of its pass."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = list(share())
        random.Random(self.passes).shuffle(order)
        self.passes += 1
        yield from map(sample, order)


class ShufflesItself(IterableDataset[torch.Tensor]):
    """Shuffles its list in place, with a generator of its own."""

    def __init__(self) -> None:
        self.order = list(share(13))
        self.rng = np.random.default_rng(2)

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.rng.shuffle(self.order)
        mine = share(len(self.order))
        yield from (sample(self.order[place]) for place in mine)
