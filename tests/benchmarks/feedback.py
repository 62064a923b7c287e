"""What feedback costs a batch: where nothing is said, from the dataset, from the training loop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from .workload import SIDES, Figure, Side, Workload, few

__all__ = ["WORKLOADS"]

_TURNS = 15
#: µs; a difference below is noise, and the chart's axis has no number below 0
_LEAST = 0.1


class _Numbers(Dataset[int]):
    def __init__(self, sends: Callable[[Any], None] | None = None, every: int = 8) -> None:
        self.sends, self.every = sends, every

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        if self.sends is not None and index % self.every == 0:
            self.sends(0.5)
        return index


class _Silent(Sampler[int]):
    """Draws for ever."""

    def __iter__(self) -> Iterator[int]:
        return self

    def __init__(self) -> None:
        self.at = 0

    def __next__(self) -> int:
        self.at = (self.at + 1) % 1000
        return self.at


class Listens(_Silent):
    heard = 0

    def receive(self, step: int, objs: list[Any]) -> None:
        self.heard += 1


def _passes(side: Side) -> list[tuple[Any, Any]]:
    """Endless iterators, each with what the training loop says about each batch, or None."""
    from picklable_loader import send_feedback

    def iterator(sampler: Any, *sends: Any) -> Any:
        return iter(side.make(_Numbers(*sends), batch_size=8, sampler=sampler, seed=1))

    return [
        (iterator(_Silent()), None),
        (iterator(Listens()), None),
        (iterator(Listens(), send_feedback), None),
        (iterator(Listens(), send_feedback, 1), None),
        (iterator(Listens()), 0.5),
        (iterator(Listens()), torch.rand(32)),
    ]


def feedback(side: Side, quick: bool) -> tuple[float, ...]:
    """Microseconds of processor time a batch, beyond those of a sampler that does not listen.

    The passes take turns, and each figure is the median of the differences within a turn.
    """
    passes, batches = _passes(side), few(2000, quick)
    more: list[list[float]] = [[] for _ in passes[1:]]
    for _ in range(_TURNS):
        taken = []
        for iterator, said in passes:
            begin = time.process_time()
            for _ in range(batches):
                next(iterator)
                if said is not None:
                    iterator.tell(said)
            taken.append((time.process_time() - begin) / batches * 1e6)
        for found, each in zip(more, taken[1:], strict=True):
            found.append(each - taken[0])
    return tuple(max(_LEAST, statistics.median(each)) for each in more)


def _figure(title: str, limit: float) -> Figure:
    return Figure(title, "µs more", more=False, limit=limit, of_torch=False)


WORKLOADS = (
    Workload(
        "feedback",
        feedback,
        (
            _figure("a sampler that listens, nothing said", 1),
            _figure("feedback from the dataset, a number a batch", 10),
            _figure("feedback from the dataset, a number a sample, 8 a batch", 20),
            _figure("feedback from the training loop, a number a batch", 10),
            _figure("feedback from the training loop, a tensor of 32 losses a batch", 25),
        ),
        SIDES[2:],
    ),
)
