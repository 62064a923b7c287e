"""Generators that people's code for a batch owns, in all kinds of places."""

from __future__ import annotations

import random
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, default_collate

from picklable_loader import DataLoader

from .datasets import Noisy

N, BATCH = 12, 4


class Draws(Dataset[float]):
    """Draws from whatever it is given."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> float:
        return index + float(self.rng.random())


class InSlots:
    __slots__ = ("rng", "never_set")

    def __init__(self) -> None:
        self.rng = random.Random(3)

    def random(self) -> float:
        return self.rng.random()


class ByTorch:
    def __init__(self) -> None:
        self.generators = {"train": [torch.Generator().manual_seed(3)]}

    def random(self) -> float:
        return torch.rand((), generator=self.generators["train"][0]).item()


class Epochs:
    """Each number is of the next epoch of a loader."""

    def __init__(self, **options: Any) -> None:
        self.inner = DataLoader(range(1000), shuffle=True, **options)

    def random(self) -> float:
        return float(next(iter(self.inner)))


class Batches:
    """The numbers are one epoch of a loader."""

    def __init__(self) -> None:
        self.batches = iter(DataLoader(range(1000)))

    def random(self) -> float:
        return float(next(self.batches))


def jittered(samples: list[Any], rng: Any) -> Any:
    return default_collate(samples) + rng.random()


class Collates:
    def __init__(self) -> None:
        self.rng = np.random.RandomState(3)

    def collate(self, samples: list[Any]) -> Any:
        return jittered(samples, self.rng)

    def convert(self, batch: Any) -> Any:
        return batch + self.rng.random_sample()

    def replace(self, error: Exception, index: int) -> float:
        return self.rng.random_sample()


class EachSecond(Dataset[float]):
    """Every second sample is bad."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> float:
        if index % 2:
            raise ValueError(index)
        return float(index)


#: the code of other modules reads it
generator = random.Random(3)


def noise() -> float:
    return generator.random()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(N)


class AnyOf:
    def __init__(self, rngs: Any) -> None:
        self.rngs = rngs

    def random(self) -> float:
        return float(next(iter(self.rngs)).random())


class InDict(AnyOf):
    def random(self) -> float:
        return float(self.rngs["rng"].random())

    def __reduce__(self) -> Any:  # pickle takes no read-only dict
        return _in_dict, (dict(self.rngs),)


def _in_dict(rngs: dict[str, Any]) -> InDict:
    return InDict(types.MappingProxyType(rngs))


class OfClass(Draws):
    rng: Any = None

    def __init__(self) -> None:
        pass


class OfDefault(Draws):
    def __init__(self) -> None:
        pass

    def __getitem__(self, index: int, rng: Any = random.Random(3)) -> float:
        return index + float(rng.random())


def _of_class() -> dict[str, Any]:
    OfClass.rng = random.Random(3)
    return of_map(dataset=OfClass())


def _of_default() -> dict[str, Any]:
    OfDefault.__getitem__.__defaults__[0].seed(3)  # type: ignore[index]
    return of_map(dataset=OfDefault())


def of_map(**arguments: Any) -> dict[str, Any]:
    return {"dataset": range(N), **arguments}


_local = threading.local()
_context_rng = ContextVar("_context_rng", default=random.Random(3))


class OfThread(Noisy):
    def __getitem__(self, index: int) -> Any:
        return index + _local.rng.random()


class OfContext(Noisy):
    def __getitem__(self, index: int) -> Any:
        return index + _context_rng.get().random()


def _of_thread() -> dict[str, Any]:
    """A new program has the generator at its beginning."""
    _local.rng = random.Random(3)
    return of_map(dataset=OfThread(N))


def _of_context() -> dict[str, Any]:
    _context_rng.get().seed(3)
    return of_map(dataset=OfContext(N))


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "dataset": lambda: of_map(dataset=Draws(np.random.default_rng(3))),
    "nested": lambda: of_map(dataset=ConcatDataset([Subset(Draws(random.Random(3)), range(N))])),
    "slots": lambda: of_map(dataset=Draws(InSlots())),
    "containers": lambda: of_map(dataset=Draws(ByTorch())),
    "partial": lambda: of_map(collate_fn=partial(jittered, rng=np.random.default_rng(3))),
    "method": lambda: of_map(collate_fn=Collates().collate),
    "convert": lambda: of_map(convert=Collates().convert),
    "on_error": lambda: of_map(dataset=EachSecond(), on_error=Collates().replace),
    "of a stream": lambda: of_map(dataset=Stream(), collate_fn=Collates().collate),
    "set": lambda: of_map(dataset=Draws(AnyOf({random.Random(3)}))),
    "deque": lambda: of_map(dataset=Draws(AnyOf(deque([random.Random(3)])))),
    "array of objects": lambda: of_map(dataset=Draws(AnyOf(np.array([random.Random(3)])))),
    "read-only dict": lambda: of_map(
        dataset=Draws(InDict(types.MappingProxyType({"rng": random.Random(3)})))
    ),
    "loader with a seed": lambda: of_map(dataset=Draws(Epochs(seed=3))),
    "loader with a generator": lambda: of_map(
        dataset=Draws(Epochs(generator=torch.Generator().manual_seed(3)))
    ),
    "iterator of a loader": lambda: of_map(dataset=Draws(Batches())),
    "loader": lambda: of_map(dataset=Draws(Epochs())),
    "of a thread": _of_thread,
    "of a context": _of_context,
    "class": _of_class,
    "default of a method": _of_default,
    "none": lambda: of_map(dataset=Noisy(N)),
}


class Saves(Draws):
    def state_dict(self) -> dict[str, Any]:
        return {"rng": repr(self.rng.getstate())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError
