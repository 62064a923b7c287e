"""The extension of parts.cpp; workers import this module for its classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from picklable_loader import cpp

#: one build for all tests, and for all processes of a test run
BUILDS = Path(__file__).parents[2] / "build" / "cpp"


def load() -> Any:
    """Put the bound classes into this module."""
    return cpp.load(
        "parts_of_tests",
        [Path(__file__).with_suffix(".cpp")],
        module=__name__,
        extra_cflags=["-O1"],
        build_directory=BUILDS,
    )


extension = load()


def values() -> torch.Tensor:
    """A new tensor: what goes to a spawned worker is moved into shared memory."""
    return torch.arange(10, dtype=torch.float64)


class InPython(extension.Rows):  # type: ignore[misc, name-defined]
    """A subclass with a constructor, an attribute and a method of its own."""

    def __init__(self, length: int) -> None:
        super().__init__(values()[:length], noise=0.5)
        self.factor = 2

    def __getitem__(self, index: int) -> object:
        numbers, number = super().__getitem__(index)
        return numbers * self.factor, number

    def __getitems__(self, indices: list[int]) -> object:
        return [self[index] for index in indices]
