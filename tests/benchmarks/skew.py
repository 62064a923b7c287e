"""Batches of unequal cost, delivered in order: time, against what idle-free workers would need."""

from __future__ import annotations

import random
import time

from .datasets import ByCost
from .workload import Figure, Side, Workload, few

__all__ = ["WORKLOADS"]

_SLOW, _FAST = 20, 1


def every(count: int, period: int) -> list[int]:
    """Costs of which each ``period``-th is high: with as many workers, all of them are one's."""
    return [_FAST if i % period else _SLOW for i in range(count)]


def one_in_twenty(count: int) -> list[int]:
    """Costs of which 5% are high, the same ones each time."""
    slow = set(random.Random(0).sample(range(count), max(1, count // 20)))
    return [_SLOW if i in slow else _FAST for i in range(count)]


def over_ideal(side: Side, costs_us: list[int], workers: int) -> float:
    """Time of an epoch, as a multiple of the sum of its costs divided by the workers.

    The workers' start does not count: they live on from an epoch before, which cost nothing.
    """
    batches = [[0]] * (2 * workers)
    loader = side.make(
        ByCost(1), batch_sampler=batches, num_workers=workers, persistent_workers=True
    )
    for _ in loader:
        pass
    batches[:] = [[cost] for cost in costs_us]
    begin = time.perf_counter()
    delivered = sum(1 for _ in loader)
    taken = time.perf_counter() - begin
    assert delivered == len(costs_us), f"{delivered} of {len(costs_us)} batches were delivered"
    return taken / (sum(costs_us) / 1e6 / workers)


def _workload(name: str, title: str, limit: float, count: int, period: int | None) -> Workload:
    """Args: ``period`` is also the number of workers; None: 5% at random, 8 workers."""
    workers = period or 8
    fast_us = 3000 if workers == 2 else 2000

    def measure(side: Side, quick: bool) -> tuple[float, ...]:
        number = few(count, quick)
        costs = one_in_twenty(number) if period is None else every(number, period)
        return (over_ideal(side, [cost * fast_us for cost in costs], workers),)

    figure = Figure(title, "× ideal time", more=False, limit=limit, of_torch=False)
    return Workload(name, measure, (figure,))


WORKLOADS = (
    _workload("skew-2", "every 2nd batch slow, 2 workers", 1.10, 100, 2),
    _workload("skew-8", "every 8th batch slow, 8 workers", 1.30, 800, 8),
    _workload("skew-5%", "5% of batches cost 20 ×, 8 workers", 1.35, 2000, None),
)
