"""Datasets, samplers and exceptions for the parity tests; all of them can be pickled."""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


class Echo(Dataset[tuple[str, str]]):
    """Says what it was asked for; takes any index at all."""

    def __getitem__(self, index: Any) -> tuple[str, str]:
        return type(index).__name__, repr(index)


class Inside(Dataset[dict[str, Any]]):
    """Each sample is all that can be seen, from where it is fetched, of the worker."""

    def __init__(self, size: int = 12) -> None:
        self.size = size
        self.at_start: Any = None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "at start": self.at_start, **view_of_worker(self)}


class InsideStream(IterableDataset[dict[str, Any]]):
    """The same for a stream that shards itself by worker."""

    def __init__(self, size: int = 12) -> None:
        self.size = size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index in my_share(self.size):
            yield {"index": index, **view_of_worker(self)}


def note_start(worker_id: int) -> None:
    """As `worker_init_fn`: let the dataset remember what could be seen at the worker's start."""
    info = get_worker_info()
    info.dataset.at_start = {"given": worker_id, **view_of_worker(info.dataset)}


def view_of_worker(dataset: Any) -> dict[str, Any]:
    info = get_worker_info()
    assert info is not None
    public = (name for name in dir(info) if not name.startswith("_") and name != "dataset")
    return {
        "info": {name: getattr(info, name) for name in public},
        "info's type": type(info).__name__,
        "info.dataset is the dataset": info.dataset is dataset,
        "torch.initial_seed": torch.initial_seed(),
        "threads": torch.get_num_threads(),
        "daemon": multiprocessing.current_process().daemon,
        "main thread": threading.current_thread() is threading.main_thread(),
        "process name": Path("/proc/self/comm").read_text(),
        **draws(),
    }


def draws() -> dict[str, Any]:
    return {
        "torch": torch.rand(2),
        "torch's Gaussian": torch.randn(3),
        "numpy": np.random.rand(),
        "numpy's Gaussian": np.random.standard_normal(),
        "python": random.random(),
        "python's Gaussian": random.gauss(0, 1),
    }


def draws_beside(samples: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """A collate_fn that draws, too."""
    return samples, draws()


class Stream(IterableDataset[int]):
    """`sizes[i]` numbers from worker i, counted from 100 * i."""

    def __init__(self, sizes: Sequence[int], length: int | None = None) -> None:
        self.sizes = tuple(sizes)
        if length is not None:
            self.length = length

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return iter(range(100 * worker, 100 * worker + self.sizes[worker]))

    def __repr__(self) -> str:
        return f"Stream({self.sizes})"


class SizedStream(Stream):
    """A stream that says a length, be it true or not."""

    def __len__(self) -> int:
        return self.length


def my_share(size: int) -> range:
    info = get_worker_info()
    return range(size) if info is None else range(info.id, size, info.num_workers)


class DrawsAsItGoes(Sampler[int]):
    """Draws each index from a global random number generator when it is asked for it."""

    def __init__(self, size: int, source: str) -> None:
        self.size = size
        self.source = source

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.size):
            yield draw_index(self.source, self.size)


class DrawsAtOnce(DrawsAsItGoes):
    """Draws the whole epoch within `__iter__`."""

    def __iter__(self) -> Iterator[int]:
        return iter([draw_index(self.source, self.size) for _ in range(self.size)])


def draw_index(source: str, size: int) -> int:
    if source == "torch":
        return int(torch.randint(size, ()))
    if source == "numpy":
        return int(np.random.randint(size))
    return random.randrange(size)


class Turning(Sampler[int]):
    """Starts one further in each pass."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        for place in range(self.size):
            yield (place + self.passes) % self.size


class Endless(Sampler[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self.size).tolist()


class Grouped(Sampler[list[int]]):
    """A custom batch sampler without a length: batches of 1, 2, 3, ... indices in random order."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.size).tolist()
        for length in range(1, self.size):
            if order:
                yield order[:length]
                order = order[length:]
