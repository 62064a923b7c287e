"""Memory: what travels between processes, and what an order of 10^8 samples takes."""

from __future__ import annotations

import time
from typing import Any

from .datasets import Images, Many
from .processes import peak_bytes, shared_bytes
from .workload import Figure, Side, Workload, few

__all__ = ["WORKLOADS"]

_MEGABYTE = 1e6


def held(side: Side, quick: bool) -> tuple[float, ...]:
    """The most shared memory at any step, in MB, while the consumer is slower than the workers."""
    batches = few(60, quick)
    loader = side.make(Images(batches * 32), batch_size=32, num_workers=2)
    most = 0
    for batch in loader:
        time.sleep(0.05)  # a training step on an accelerator; the workers fill their window
        most = max(most, shared_bytes())
        del batch
    return (most / _MEGABYTE,)


def to_first_batch(loader: Any) -> tuple[float, float]:
    """Peak memory of this process, in MB, and seconds from iter() to the first batch."""
    begin = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    return peak_bytes() / _MEGABYTE, time.perf_counter() - begin


def shuffle(side: Side, quick: bool) -> tuple[float, ...]:
    """Peak memory of this process, in MB, and seconds to the first batch."""
    dataset = Many(10**6 if quick else 10**8)
    return to_first_batch(side.make(dataset, batch_size=32, shuffle=True, num_workers=2))


WORKLOADS = (
    Workload(
        "held",
        held,
        (Figure("shared memory, slow consumer, 19 MB batches", "MB", more=False, limit=1.3),),
    ),
    Workload(
        "shuffle",
        shuffle,
        (
            Figure("shuffling 10⁸ samples: peak memory", "MB", more=False, limit=0.25),
            Figure("shuffling 10⁸ samples: first batch", "s", more=False, limit=0.6),
        ),
        heavy=True,
    ),
)
