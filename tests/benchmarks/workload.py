"""What a benchmark is: a workload, the figures it yields, and what they have to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SIDES", "Figure", "Side", "Workload", "few"]

#: whom we measure; the first is what the others are compared with
SIDES = ("torch", "torchdata", "picklable_loader")

#: where nothing better is promised, we may be this much worse than torch, which is its noise
_NOT_WORSE = 0.97


@dataclass(frozen=True)
class Side:
    """A loader under measurement.

    Attributes:
        name: one of `SIDES`.
        make: its class, which takes the arguments of torch's DataLoader.
    """

    name: str
    make: Callable[..., Any]


@dataclass(frozen=True)
class Figure:
    """One number that a measurement yields.

    Attributes:
        name: what it is, as a row of the table.
        unit: of the number.
        more: a larger number is better.
        limit: what ours has to reach; None: not to be worse than torch.
        of_torch: the limit is for the ratio to torch's number, not for the number itself.
    """

    name: str
    unit: str
    more: bool
    limit: float | None = None
    of_torch: bool = True

    @property
    def bound(self) -> float:
        """The limit, stated or not."""
        if self.limit is not None:
            return self.limit
        return _NOT_WORSE if self.more else 1 / _NOT_WORSE

    @property
    def target(self) -> str:
        """The limit, in signs."""
        return f"{'≥' if self.more else '≤'} {self.bound:.3g}{' ×' if self.of_torch else ''}"


@dataclass(frozen=True)
class Workload:
    """Something to measure a loader with.

    Attributes:
        name: what it is called on the command line.
        measure: takes a loader's class, and whether to be quick; returns a number for each figure.
        figures: what the numbers are.
        sides: who can do it.
        heavy: takes gigabytes or a minute; left out of quick runs unless it is asked for.
    """

    name: str
    measure: Callable[[Side, bool], tuple[float, ...]]
    figures: tuple[Figure, ...]
    sides: tuple[str, ...] = field(default=SIDES)
    heavy: bool = False


def few(count: int, quick: bool) -> int:
    """How many, where a quick run makes do with a twentieth, from 4."""
    return max(4, count // 20) if quick else count
