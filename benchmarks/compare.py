"""Our loader against torch's and torchdata's, in one process, in turn.

    python benchmarks/compare.py [--rounds 7] [--json FILE] [WORKLOAD ...]

Each round measures every loader once on a workload, in an order that changes from round to round;
printed are medians, and ratios of medians to torch's. Figures of a machine that is also doing
something else are noise: look at the spread.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from picklable_loader import DataLoader

try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:
    StatefulDataLoader = None  # type: ignore[assignment, misc]


class Tiny(Dataset[torch.Tensor]):
    """Samples that cost nothing: what is left is the loader."""

    def __init__(self, length: int, size: int = 16) -> None:
        self.length = length
        self.sample = torch.zeros(size)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


class Fields(Tiny):
    """Samples that are dicts of 20 tensors."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {f"field {i}": self.sample for i in range(20)}


class Images(Dataset[torch.Tensor]):
    """Samples of 3 x 224 x 224 floats."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.sample = torch.zeros(3, 224, 224)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


def loaders() -> dict[str, Any]:
    found: dict[str, Any] = {"torch": TorchDataLoader, "picklable_loader": DataLoader}
    if StatefulDataLoader is not None:
        found["torchdata"] = StatefulDataLoader
    return found


def per_batch(dataset: Any, **options: Any) -> Callable[[Any], float]:
    """Microseconds a batch, over an epoch, workers' start not counted."""

    def measure(kind: Any) -> float:
        loader = kind(dataset, **options)
        iterator = iter(loader)
        next(iterator)
        begin = time.perf_counter()
        count = sum(1 for _ in iterator)
        return (time.perf_counter() - begin) / count * 1e6

    return measure


def first_batch(dataset: Any, **options: Any) -> Callable[[Any], float]:
    """Milliseconds from iter() to the first batch."""

    def measure(kind: Any) -> float:
        loader = kind(dataset, **options)
        begin = time.perf_counter()
        iterator = iter(loader)
        next(iterator)
        taken = (time.perf_counter() - begin) * 1e3
        del iterator
        return taken

    return measure


def restore(length: int) -> Callable[[Any], float]:
    """Milliseconds from load_state_dict to the next batch, at 90% of a shuffled epoch."""

    def measure(kind: Any) -> float:
        if kind is TorchDataLoader:
            return float("nan")
        options: dict[str, Any] = {"batch_size": 100, "shuffle": True}
        loader = kind(range(length), **options)
        iterator = iter(loader)
        next(iterator)
        state = _at(loader, iterator, length // 100 * 9 // 10)
        again = kind(range(length), **options)
        begin = time.perf_counter()
        again.load_state_dict(state)
        next(iter(again))
        return (time.perf_counter() - begin) * 1e3

    return measure


def _at(loader: Any, iterator: Any, step: int) -> Any:
    if hasattr(iterator, "skip"):
        iterator.skip(step - 1)
        next(iterator)
    else:
        for _ in range(step):
            next(iterator)
    return loader.state_dict()


def saving(length: int) -> Callable[[Any], float]:
    """Microseconds for a pickle of the state."""

    def measure(kind: Any) -> float:
        import pickle

        if kind is TorchDataLoader:
            return float("nan")
        loader = kind(range(length), batch_size=100, shuffle=True)
        iterator = iter(loader)
        next(iterator)
        begin = time.perf_counter()
        for _ in range(20):
            pickle.dumps(loader.state_dict())
        return (time.perf_counter() - begin) / 20 * 1e6

    return measure


WORKLOADS: dict[str, tuple[str, Callable[[Any], float]]] = {
    "tiny, 0 workers": ("µs", per_batch(Tiny(32 * 3000), batch_size=32)),
    "tiny, 0 workers, shuffle": ("µs", per_batch(Tiny(32 * 3000), batch_size=32, shuffle=True)),
    "one sample, 0 workers": ("µs", per_batch(Tiny(4000), batch_size=1)),
    "tiny, 2 workers": ("µs", per_batch(Tiny(32 * 1500), batch_size=32, num_workers=2)),
    "20 tensors, 2 workers": ("µs", per_batch(Fields(16 * 150), batch_size=16, num_workers=2)),
    "19 MB, 2 workers": ("µs", per_batch(Images(32 * 30), batch_size=32, num_workers=2)),
    "first batch, fork": ("ms", first_batch(Tiny(640), batch_size=32, num_workers=2)),
    "first batch, spawn": (
        "ms",
        first_batch(Tiny(640), batch_size=32, num_workers=2, multiprocessing_context="spawn"),
    ),
    "first batch, forkserver": (
        "ms",
        first_batch(Tiny(640), batch_size=32, num_workers=2, multiprocessing_context="forkserver"),
    ),
    "resume at 90% of 10^6": ("ms", restore(10**6)),
    "resume at 90% of 10^7": ("ms", restore(10**7)),
    "pickle of the state, 10^6": ("µs", saving(10**6)),
}


def run(name: str, rounds: int) -> dict[str, list[float]]:
    _, measure = WORKLOADS[name]
    kinds = list(loaders().items())
    figures: dict[str, list[float]] = {kind: [] for kind, _ in kinds}
    for turn in range(rounds):
        for kind, loader in kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]:
            gc.collect()
            figures[kind].append(measure(loader))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", nargs="*", help="a part of its name; all if none is given")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="write all figures to this file")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, medians of {asked.rounds}, [fastest, slowest]")
    results = {}
    for name, (unit, _) in WORKLOADS.items():
        if asked.workload and not any(part in name for part in asked.workload):
            continue
        results[name] = figures = run(name, asked.rounds)
        base = statistics.median(figures["torch"])
        print(f"\n{name} ({unit})")
        for kind, values in figures.items():
            middle = statistics.median(values)
            ratio = "" if base != base else f"   {middle / base:5.2f} x torch"
            print(f"  {kind:17s} {middle:9.1f}  [{min(values):.1f}, {max(values):.1f}]{ratio}")
        sys.stdout.flush()
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
