"""What is loaded: datasets whose cost is known."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

__all__ = [
    "ByCost",
    "Busy",
    "Fields",
    "Images",
    "Many",
    "Records",
    "Tiny",
    "collate_records",
    "spin",
]


def spin(seconds: float) -> None:
    """Compute for that much processor time, however many others want the processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Tiny(Dataset[Any]):
    """Samples that cost nothing: what is left is the loader."""

    def __init__(self, length: int, size: int = 16) -> None:
        self.length = length
        self.sample = torch.zeros(size)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.sample


class Fields(Tiny):
    """Samples that are dicts of 20 tensors."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {f"field {i}": self.sample for i in range(20)}


class Images(Tiny):
    """Samples of 3 x 224 x 224 floats; 32 of them are 19 MB."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.sample = torch.zeros(3, 224, 224)


class Records(Tiny):
    """Samples as people have them who do not use torch for their data: a picture and a label."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.pixels = np.zeros((28, 28), np.float32)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixels": self.pixels, "label": index % 10}


def collate_records(samples: list[dict[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """A batch of them, of numpy arrays."""
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


class Busy(Tiny):
    """Samples that take processor time.

    Args:
        length: how many there are.
        seconds: what each takes.
    """

    def __init__(self, length: int, seconds: float) -> None:
        super().__init__(length)
        self.seconds = seconds

    def __getitem__(self, index: int) -> torch.Tensor:
        spin(self.seconds)
        return self.sample


class ByCost(Tiny):
    """Its indices are microseconds, which the sample takes; waiting, as for a disk or a network."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(index / 1e6)
        return self.sample


class Many(Tiny):
    """So many samples that their order is what costs; a batch is fetched at once."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self.sample]
