"""What the measurements come to: medians, ratios, and whether targets are reached."""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .workload import Figure

__all__ = ["OURS", "THEIRS", "Row", "machine", "to_json"]

THEIRS, OURS = "torch", "picklable_loader"


@dataclass(frozen=True)
class Row:
    """A figure, as it was measured.

    Attributes:
        figure: which.
        values: by side, one a round.
    """

    figure: Figure
    values: dict[str, list[float]]

    def median(self, side: str) -> float | None:
        """None if it was not measured."""
        values = self.values.get(side)
        return statistics.median(values) if values else None

    def ratio(self, side: str) -> float | None:
        """Its median over torch's."""
        mine, torchs = self.median(side), self.median(THEIRS)
        return mine / torchs if mine is not None and torchs else None

    def spread(self, side: str) -> tuple[float, float] | None:
        """The best and the worst value."""
        values = self.values.get(side)
        if not values:
            return None
        ends = min(values), max(values)
        return ends[::-1] if self.figure.more else ends

    def reached(self) -> bool | None:
        """Ours is what it has to be; None if that was not measured."""
        found = self.ratio(OURS) if self.figure.of_torch else self.median(OURS)
        if found is None:
            return None
        return found >= self.figure.bound if self.figure.more else found <= self.figure.bound

    def times_better(self, value: float) -> float | None:
        """How many times better than torch a value is, or than nothing where torch has none."""
        torchs = self.median(THEIRS) if self.values.get(THEIRS) else 1.0
        if not torchs or not value:
            return None
        return value / torchs if self.figure.more else torchs / value

    def target_times_better(self) -> float | None:
        """The same of the target."""
        torchs = self.median(THEIRS) or 1.0
        bound = self.figure.bound
        return self.times_better(bound * torchs if self.figure.of_torch else bound)

    def to_json(self) -> dict[str, Any]:
        sides = {
            side: {"median": self.median(side), "ratio": self.ratio(side), "values": values}
            for side, values in self.values.items()
        }
        figure = self.figure
        return {
            "name": figure.name,
            "unit": figure.unit,
            "better": "more" if figure.more else "less",
            "target": figure.target,
            "reached": self.reached(),
            "sides": sides,
        }


def machine() -> dict[str, Any]:
    """Where it was measured, as far as figures depend on it."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": platform.machine(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "torchdata", "numpy")},
    }


def to_json(rows: list[Row], rounds: int, failures: list[str]) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "machine": machine(),
        "rounds": rounds,
        "failures": failures,
        "figures": [row.to_json() for row in rows],
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
