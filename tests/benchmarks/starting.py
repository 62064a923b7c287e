"""How soon the first batch comes: of a loader, and of its next epoch."""

from __future__ import annotations

import statistics
import time
from typing import Any

from .datasets import Tiny
from .workload import Figure, Side, Workload

__all__ = ["WORKLOADS"]

#: in an epoch
_BATCHES = 20


def _make(side: Side, method: str, **options: Any) -> Any:
    options = {"batch_size": 32, "num_workers": 2, "multiprocessing_context": method, **options}
    return side.make(Tiny(_BATCHES * 32), **options)


def first_batch(side: Side, method: str) -> float:
    """Milliseconds from iter() to the first batch."""
    loader = _make(side, method)
    begin = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    return (time.perf_counter() - begin) * 1e3


def turn_around(side: Side, method: str, epochs: int, persistent: bool) -> float:
    """Milliseconds from an epoch's last batch to the first of the next one; the median of them."""
    loader = _make(side, method, persistent_workers=persistent)
    iterator = iter(loader)
    next(iterator)
    taken = []
    for _ in range(epochs):
        for _ in range(_BATCHES - 1):
            next(iterator)
        begin = time.perf_counter()
        assert next(iterator, None) is None, "the epoch has more batches than it should"
        del iterator  # as a for loop does
        iterator = iter(loader)
        next(iterator)
        taken.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(taken)


def _first(name: str, title: str, method: str, limit: float | None, **counts: int) -> Workload:
    """Args: ``counts`` are of loaders: ``before`` is not timed, ``timed`` gives the median."""
    before, timed = counts.get("before", 0), counts.get("timed", 1)

    def measure(side: Side, quick: bool) -> tuple[float, ...]:
        taken = [first_batch(side, method) for _ in range(before + timed)]
        return (statistics.median(taken[before:]),)

    return Workload(name, measure, (Figure(title, "ms", more=False, limit=limit),))


def _turn(
    name: str, title: str, method: str, limit: float, epochs: int, persistent: bool = False
) -> Workload:
    def measure(side: Side, quick: bool) -> tuple[float, ...]:
        return (turn_around(side, method, 1 if quick else epochs, persistent),)

    return Workload(name, measure, (Figure(title, "ms", more=False, limit=limit),))


WORKLOADS = (
    _first("first-fork", "first batch, fork", "fork", 1.0, timed=5),
    _first("first-spawn", "first batch, spawn", "spawn", 1.0),
    _first("first-server", "first batch, forkserver, cold", "forkserver", None),
    _first("first-server-warm", "first batch, forkserver, warm", "forkserver", 0.1, before=1),
    _turn("turn-fork", "next epoch, new workers, fork", "fork", 0.8, 9),
    _turn("turn-server", "next epoch, new workers, forkserver", "forkserver", 0.05, 3),
    _turn("turn-kept", "next epoch, persistent workers", "fork", 0.7, 51, persistent=True),
)
