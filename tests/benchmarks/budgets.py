"""The table of docs/live_samplers.md: how long a step takes, by workers and prefetch_budget.

    python -m benchmarks.budgets [--quick]

prints it. A sample takes 20 ms, a training step 10 ms, and a batch is one sample.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings

from .datasets import ByCost
from .feedback import Listens
from .workload import few

__all__ = ["main"]

_FETCH_US, _TRAIN_S = 20_000, 0.01
_ROWS = ((0, 1), (2, 1), (2, 2), (2, 4), (4, 4))


class _Same(Listens):
    """Each sample takes as long."""

    def __next__(self) -> int:
        return _FETCH_US


def main(quick: bool) -> None:
    """Measure, and print the table."""
    from picklable_loader import DataLoader

    print("| workers | `prefetch_budget` | ms a step |\n|---|---|---|")
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    steps = few(100, quick)
    for workers, budget in _ROWS:
        turns = []
        for _ in range(1 if quick else 5):
            how = {"num_workers": workers, "prefetch_budget": budget}
            iterator = iter(DataLoader(ByCost(_FETCH_US + 1), 1, sampler=_Same(), **how))
            for _ in range(5):  # the workers have started
                next(iterator)
            begin = time.perf_counter()
            for _ in range(steps):
                next(iterator)
                time.sleep(_TRAIN_S)
            turns.append((time.perf_counter() - begin) / steps * 1e3)
            iterator.close()
        print(f"| {workers} | {budget} | {statistics.median(turns):.1f} |")


if __name__ == "__main__":
    main("--quick" in sys.argv)
