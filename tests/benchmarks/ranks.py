"""One rank of eight: what a share of the order costs, for each batch and at an epoch's start."""

from __future__ import annotations

import time
from typing import Any

from torch.utils.data.distributed import DistributedSampler

from .datasets import Many, Tiny
from .sizes import to_first_batch
from .workload import Figure, Side, Workload, few

__all__ = ["WORKLOADS"]

_RANK, _RANKS = 3, 8


def one_rank(side: Side, dataset: Any, **options: Any) -> Any:
    """The loader of one rank; torch's and torchdata's have a DistributedSampler."""
    if side.name == "picklable_loader":
        share: dict[str, Any] = {"shuffle": "indexed", "seed": 0, "shard": (_RANK, _RANKS)}
    else:
        share = {"sampler": DistributedSampler(dataset, _RANKS, _RANK)}
    return side.make(dataset, batch_size=32, **share, **options)


def tiny(side: Side, quick: bool) -> tuple[float, ...]:
    """Batches a second."""
    timed = few(4000, quick)
    iterator = iter(one_rank(side, Tiny((timed + 100) * 32 * _RANKS), num_workers=2))
    for _ in range(36):
        next(iterator)
    begin = time.perf_counter()
    for _ in range(timed):
        next(iterator)
    return (timed / (time.perf_counter() - begin),)


def start(side: Side, quick: bool) -> tuple[float, ...]:
    """Peak memory of this process, in MB, and seconds to the first batch."""
    return to_first_batch(one_rank(side, Many(10**6 if quick else 10**8), num_workers=0))


WORKLOADS = (
    Workload("ranks", tiny, (Figure("tiny batches, one of 8 ranks", "a second", more=True),)),
    Workload(
        "ranks-start",
        start,
        (
            Figure("one of 8 ranks, 10⁸ samples: peak memory", "MB", more=False, limit=0.25),
            Figure("one of 8 ranks, 10⁸ samples: first batch", "s", more=False, limit=0.1),
        ),
        heavy=True,
    ),
)
