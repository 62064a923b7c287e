"""Batches a second, once all workers run."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from .datasets import Busy, Fields, Images, Records, Tiny, collate_records
from .processes import cpu_seconds
from .workload import Figure, Side, Workload, few

__all__ = ["WORKLOADS"]

#: batches left at the end, so that the time of the last ones is not that of an empty window
_AHEAD = 64


def look_at_nothing(batch: Any) -> None:
    """A consumer that costs nothing."""


def read_each_page(batch: Any) -> None:
    """What any use of a batch costs at least: memory that is mapped has to be looked at."""
    batch.view(-1)[::1024].sum()


def steady(
    side: Side,
    quick: bool,
    *,
    dataset: Callable[[int], Any],
    batches: int,
    consume: Callable[[Any], None] = look_at_nothing,
    batch_size: int = 32,
    **options: Any,
) -> tuple[float, float]:
    """Batches a second, and microseconds of processor time that all processes take for one."""
    timed = few(batches, quick)
    warm = timed // 10 + 8
    length = (warm + timed + _AHEAD) * batch_size
    iterator = iter(side.make(dataset(length), batch_size=batch_size, **options))
    for _ in range(warm):
        consume(next(iterator))
    cpu, begin = cpu_seconds(), time.perf_counter()
    for _ in range(timed):
        consume(next(iterator))
    taken, used = time.perf_counter() - begin, cpu_seconds() - cpu
    return timed / taken, used / timed * 1e6


def _workload(
    name: str, title: str, limit: float | None, cpu: str | None = None, **options: Any
) -> Workload:
    """Args: ``cpu`` is the title of a second figure, processor time a batch, if it is wanted."""
    figures = [Figure(title, "batches/s", more=True, limit=limit)]
    if cpu is not None:
        figures.append(Figure(cpu, "µs", more=False, limit=0.25))
    count = len(figures)

    def measure(side: Side, quick: bool) -> tuple[float, ...]:
        return steady(side, quick, **options)[:count]

    return Workload(name, measure, tuple(figures))


WORKLOADS = (
    _workload(
        "tiny-0", "tiny batches, no workers", 0.9, dataset=Tiny, batches=20_000, num_workers=0
    ),
    _workload("tiny-1", "tiny batches, 1 worker", 6.0, dataset=Tiny, batches=4000, num_workers=1),
    _workload(
        "tiny-2",
        "tiny batches, 2 workers",
        7.0,
        "processor time for a tiny batch, all processes",
        dataset=Tiny,
        batches=4000,
        num_workers=2,
    ),
    _workload(
        "large",
        "19 MB batches, each page read",
        5.0,
        dataset=Images,
        batches=100,
        consume=read_each_page,
        num_workers=2,
    ),
    _workload(
        "dict",
        "dicts of 20 tensors",
        8.0,
        dataset=Fields,
        batches=400,
        batch_size=16,
        num_workers=2,
    ),
    _workload(
        "numpy",
        "numpy dicts, custom collate_fn",
        4.0,
        dataset=Records,
        batches=2000,
        collate_fn=collate_records,
        num_workers=2,
    ),
    _workload(
        "busy",
        "2 ms of processor time a sample",
        1.0,
        dataset=partial(Busy, seconds=0.002),
        batches=80,
        batch_size=16,
        num_workers=2,
    ),
)
