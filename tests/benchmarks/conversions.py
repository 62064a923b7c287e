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
    print("| batch | from, to | MB | ms a batch | converted, checked | converted, `check=False` |")
    print("|---|---|---|---|---|---|")
    for name, (shape, wide, small) in _ROWS.items():
        megabytes, taken = _measured(shape, wide, small, quick)
        types = ", ".join(str(each).removeprefix("torch.") for each in (wide, small))
        sizes = " -> ".join(f"{each:.3g}" for each in megabytes)
        print(f"| {name} | {types} | {sizes} |", " | ".join(f"{each:.2g}" for each in taken), "|")


def _measured(
    shape: tuple[int, ...], wide: torch.dtype, small: torch.dtype, quick: bool
) -> tuple[list[float], list[float]]:
    """Megabytes of a batch as it is and converted; milliseconds without, checked, unchecked."""
    from picklable_loader import DataLoader, DtypeConverter

    converters = [None, DtypeConverter(small), DtypeConverter(small, check=False)]
    batches = few(200 if torch.Size(shape).numel() > 10**5 else 2000, quick)
    dataset = _Given(batches * _SIZE, shape, wide)
    sizes: list[float] = []
    turns: list[list[float]] = [[] for _ in converters]
    for _ in range(1 if quick else 5):
        for converter, found in zip(converters, turns, strict=True):
            loader: Any = DataLoader(dataset, _SIZE, num_workers=1, convert=converter)
            iterator = iter(loader)
            batch = next(iterator)  # the worker has started
            sizes = [*sizes, batch.nbytes / 1e6][:2]
            begin = time.perf_counter()
            for _ in iterator:
                pass
            found.append((time.perf_counter() - begin) / (batches - 1) * 1e3)
    return sizes, [statistics.median(found) for found in turns]


if __name__ == "__main__":
    main("--quick" in sys.argv)
