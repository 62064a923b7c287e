"""The table of docs/conversions.md: what smaller numbers save, in bytes and in time.

    python -m benchmarks.conversions [--quick]

prints it. Batches of 64 from one worker, medians of five turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch

from .datasets import Tiny
from .workload import few

__all__ = ["main"]

_SIZE = 64
#: by what a sample is: its shape, its dtype and the smaller one; megabytes decide how many batches
_ROWS: dict[str, tuple[tuple[int, ...], torch.dtype, torch.dtype]] = {
    "images, 3 x 224 x 224": ((3, 224, 224), torch.float32, torch.float16),
    "embeddings, 512 x 768": ((512, 768), torch.float32, torch.float16),
    "token ids, 4096": ((4096,), torch.int64, torch.int32),
    "attention masks, 4096": ((4096,), torch.int64, torch.uint8),
    "labels, a number each": ((), torch.int64, torch.int32),
    "positions, 4096": ((4096,), torch.int64, torch.int16),
}


class _Given(Tiny):
    """Samples of a shape and a type, which are there already."""

    def __init__(self, length: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__(length)
        self.sample = torch.ones(shape, dtype=dtype)


def main(quick: bool) -> None:
    """Measure, and print the table."""
    print("| batch | from, to | MB | sent, ms | ms a batch | converted, checked | `check=False` |")
    print("|---|---|---|---|---|---|---|")
    for name, (shape, wide, small) in _ROWS.items():
        types = ", ".join(str(each).removeprefix("torch.") for each in (wide, small))
        values = torch.Size((_SIZE, *shape)).numel()
        sizes = " -> ".join(f"{values * each.itemsize / 1e6:.3g}" for each in (wide, small))
        sent, sent_small, *others = _measured(shape, wide, small, quick)
        taken = [f"{sent:.2g} -> {sent_small:.2g}", *(f"{each:.2g}" for each in others)]
        print(f"| {name} | {types} | {sizes} |", " | ".join(taken), "|")


def _measured(
    shape: tuple[int, ...], wide: torch.dtype, small: torch.dtype, quick: bool
) -> list[float]:
    """Milliseconds a batch: ready ones of either type sent; then collated, and converted."""
    from picklable_loader import DtypeConverter

    count = few(200 if torch.Size(shape).numel() > 10**5 else 2000, quick)
    ready = [_Given(count, (_SIZE, *shape), dtype) for dtype in (wide, small)]
    samples = _Given(count * _SIZE, shape, wide)
    loaders: list[dict[str, Any]] = [
        *({"dataset": each, "batch_size": None} for each in ready),
        {"dataset": samples, "batch_size": _SIZE},
        {"dataset": samples, "batch_size": _SIZE, "convert": DtypeConverter(small)},
        {"dataset": samples, "batch_size": _SIZE, "convert": DtypeConverter(small, check=False)},
    ]
    turns = [[_turn(options) for options in loaders] for _ in range(1 if quick else 5)]
    return [statistics.median(each) for each in zip(*turns, strict=True)]


def _turn(options: dict[str, Any]) -> float:
    from picklable_loader import DataLoader

    iterator = iter(DataLoader(**options, num_workers=1))
    next(iterator)  # the worker has started
    begin, batches = time.perf_counter(), 0
    for _ in iterator:
        batches += 1
    return (time.perf_counter() - begin) / batches * 1e3


if __name__ == "__main__":
    main("--quick" in sys.argv)
