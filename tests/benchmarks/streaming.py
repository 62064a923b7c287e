"""What it costs that an iterable-style dataset's state is known at every moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, get_worker_info

from .workload import SIDES, Figure, Side, Workload, few

__all__ = ["WORKLOADS"]

_TURNS = 8
_BATCH_SIZE = 32


class Buffered(IterableDataset[Any]):
    """Samples that cost little, and a state that holds a buffer.

    Args:
        kilobytes: of the buffer.
    """

    def __init__(self, kilobytes: int) -> None:
        self.at = 0
        self.buffer = [bytes([at % 256]) * 1024 for at in range(kilobytes)]
        self.sample = torch.zeros(64)

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.at += 1
            if self.buffer:  # as one that shuffles does
                self.buffer[self.at % len(self.buffer)] = self.at.to_bytes(1024, "little")
            yield self.sample + self.at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "buffer": self.buffer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.buffer = state["at"], state["buffer"]


def marked(side: Side, quick: bool, *, kilobytes: int, batches: int) -> tuple[float, ...]:
    """Speed with states at hand, as a share of the speed without, in turn."""
    count = few(batches, quick)
    with_states, without = (iter(loader) for loader in _loaders(side, kilobytes))
    taken = {True: 0.0, False: 0.0}
    for turn in range(2 * _TURNS + 2):
        marks = bool(turn % 2)
        iterator = with_states if marks else without
        begin = time.perf_counter()
        for _ in range(count):
            next(iterator)
        if turn > 1:
            taken[marks] += time.perf_counter() - begin
    return (taken[False] / taken[True],)


def _loaders(side: Side, kilobytes: int) -> tuple[Any, Any]:
    """One that keeps states, as the library does by default, and one that does not."""
    options: dict[str, Any] = {"batch_size": _BATCH_SIZE, "num_workers": 2}
    keeps = side.make(Buffered(kilobytes), **options)
    if side.name == "torchdata":
        return keeps, TorchDataLoader(Buffered(kilobytes), **options)
    return keeps, side.make(Buffered(kilobytes), snapshot_every_n_steps=10**12, **options)


def resumed(side: Side, quick: bool) -> tuple[float, ...]:
    """Milliseconds from a saved state of a stream to its next batch."""
    options: dict[str, Any] = {"batch_size": _BATCH_SIZE, "num_workers": 2}
    loader = side.make(Buffered(100), **options)
    iterator = iter(loader)
    for _ in range(few(4000, quick)):
        next(iterator)
    state = loader.state_dict()
    del iterator, loader
    begin = time.perf_counter()
    loader = side.make(Buffered(100), **options)
    loader.load_state_dict(state)
    next(iter(loader))
    return ((time.perf_counter() - begin) * 1e3,)


class Unequal(IterableDataset[Any]):
    """Streams that cost more or less, which are at a certain sample."""

    def __init__(self, costs_s: list[float], count: int) -> None:
        self.costs_s, self.count = costs_s, count

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        return _Unequal(self.costs_s[info.id], self.count)


class _Unequal(Iterator[int]):
    def __init__(self, cost_s: float, count: int) -> None:
        self.cost_s, self.left = cost_s, count

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        time.sleep(self.cost_s)
        return self.left


def balanced(side: Side, quick: bool) -> tuple[float, ...]:
    """Time, as a multiple of what the workers need who share it evenly.

    Both slow ones of the four streams begin at the same worker.
    """
    costs_s, count = [0.005, 0.0005, 0.005, 0.0005], few(300, quick)
    options: dict[str, Any] = {"num_workers": 2, "num_streams": 4, "schedule": "balanced"}
    loader = side.make(Unequal(costs_s, count), batch_size=None, **options)
    begin = time.perf_counter()
    delivered = sum(1 for _ in loader)
    taken = time.perf_counter() - begin
    assert delivered == count * len(costs_s), f"{delivered} batches were delivered"
    return (taken / (count * sum(costs_s) / 2),)


def _workload(name: str, title: str, limit: float, kilobytes: int, batches: int) -> Workload:
    figure = Figure(title, "of the speed without", more=True, limit=limit, of_torch=False)

    def measure(side: Side, quick: bool) -> tuple[float, ...]:
        return marked(side, quick, kilobytes=kilobytes, batches=batches)

    return Workload(name, measure, (figure,), SIDES[1:])


WORKLOADS = (
    _workload("stream-small", "stream with a state of a few bytes", 0.97, 0, 500),
    _workload("stream-large", "stream with a state of 10 MB", 0.95, 10_000, 2000),
    Workload(
        "stream-skew",
        balanced,
        (
            Figure(
                "2 of 4 streams slow, 2 workers",
                "× ideal time",
                more=False,
                limit=1.25,
                of_torch=False,
            ),
        ),
        SIDES[2:],
    ),
    Workload(
        "stream-resume",
        resumed,
        (
            Figure(
                "resume of a stream after 4000 batches", "ms", more=False, limit=250, of_torch=False
            ),
        ),
        SIDES[1:],
    ),
)
