"""The extension of parts.cpp; workers import this module for its classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from picklable_loader import cpp

#: one build for all tests, and for all processes of a test run
BUILDS = Path(__file__).parents[2] / "build" / "cpp"
FLAGS = ["-O0"]


def load() -> Any:
    """Put the bound classes into this module."""
    return cpp.load(
        "parts_of_tests",
        [Path(__file__).with_suffix(".cpp")],
        module=__name__,
        extra_cflags=FLAGS,
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


class Doubled(extension.Rows):  # type: ignore[misc, name-defined]
    """Says only what a sample is."""

    def __getitem__(self, index: int) -> object:
        numbers, number = super().__getitem__(index)
        return numbers * 2, number


class EnginesOneByOne(extension.Engines):  # type: ignore[misc, name-defined]
    """One call into C++ for each sample."""

    def __getitem__(self, index: int) -> object:
        return super().__getitem__(index)


class HundredMore(extension.Shuffled):  # type: ignore[misc, name-defined]
    """Goes around the order in C++."""

    def __iter__(self) -> Iterator[int]:
        for index in super().__iter__():
            yield index + 100


class HundredMoreOfStream(extension.Counter):  # type: ignore[misc, name-defined]
    """The same of a stream."""

    def __iter__(self) -> Iterator[object]:
        for number, noise in super().__iter__():
            yield number + 100, noise


class CountsEpochs(extension.DistributedRandomSampler):  # type: ignore[misc, name-defined]
    """Overrides set_epoch, and needs an attribute of its own for it."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.epochs.append(epoch)


class MadeAnew(extension.Samples):  # type: ignore[misc, name-defined]
    """Says itself how it is pickled."""

    def __reduce__(self) -> object:
        return MadeAnew, (7,)
