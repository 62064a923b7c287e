"""One rank of eight, or all: what a share of the order costs, by batch and at an epoch's start."""

from __future__ import annotations

import time
from functools import partial
from multiprocessing import get_context
from typing import Any

from torch.utils.data.distributed import DistributedSampler

from .datasets import Many, Tiny
from .sizes import to_first_batch
from .workload import Figure, Side, Workload, few

__all__ = ["WORKLOADS"]

_RANK, _RANKS = 3, 8


def one_rank(
    side: Side, dataset: Any, rank: int = _RANK, shuffle: Any = "indexed", **options: Any
) -> Any:
    """The loader of one rank; torch's and torchdata's have a DistributedSampler."""
    if side.name == "picklable_loader":
        share: dict[str, Any] = {"shuffle": shuffle, "seed": 0, "shard": (rank, _RANKS)}
    else:
        share = {"sampler": DistributedSampler(dataset, _RANKS, rank)}
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


def all_start(side: Side, quick: bool, shuffle: Any) -> tuple[float, ...]:
    """The most memory that one of 8 ranks takes, in MB, and seconds to the last one's first batch.

    Of torch it is one rank, alone: eight would take 40 GB.
    """
    ranks = range(_RANKS) if side.name == "picklable_loader" else [_RANK]
    fork = get_context("fork")
    barrier, figures = fork.Barrier(len(ranks)), fork.SimpleQueue()

    def begin(rank: int) -> None:
        loader = one_rank(side, Many(10**6 if quick else 10**8), rank, shuffle, num_workers=0)
        barrier.wait()
        figures.put(to_first_batch(loader))

    processes = [fork.Process(target=begin, args=(rank,)) for rank in ranks]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert not any(process.exitcode for process in processes), "a rank has failed"
    memory, seconds = zip(*(figures.get() for _ in ranks))
    return max(memory), max(seconds)


def _all_start(name: str, shuffle: Any, memory: float, seconds: float) -> Workload:
    """Args: ``memory`` and ``seconds`` are limits, as a part of what one rank of torch takes."""
    title = f"8 ranks, 10⁸ samples, shuffle={shuffle!r} (torch: 1 rank)"
    figures = (
        Figure(f"{title}: peak memory of each", "MB", more=False, limit=memory),
        Figure(f"{title}: first batch of the last", "s", more=False, limit=seconds),
    )
    sides = ("torch", "picklable_loader")
    return Workload(name, partial(all_start, shuffle=shuffle), figures, sides, heavy=True)


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
    _all_start("ranks-indexed", "indexed", memory=0.25, seconds=0.1),
    # Eight permutations at a time on fewer cores: as long as eight of torch's would take.
    _all_start("ranks-shuffled", True, memory=0.25, seconds=_RANKS),
)
