"""On a GPU: our loader next to torch's, and the link's own speed as the limit.

``python -m benchmarks.gpu`` prints a table; it needs a CUDA device.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from picklable_loader import DataLoader
from picklable_loader.fetching.transport.page_lock import registered_bytes

from .processes import cpu_seconds, shared_bytes

#: values of a sample of 600 KB; 32 of them are a batch of 19 MB
_SAMPLE = 150_528


class Images(Dataset[Any]):
    """Samples that cost next to nothing, so that the way to the device is what is measured."""

    def __init__(self, count: int) -> None:
        self.count, self.image = count, torch.rand(_SAMPLE)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.image


def link_gb_s(nbytes: int) -> float:
    """The speed of copies from pinned memory that torch has allocated."""
    source = torch.empty(nbytes, dtype=torch.uint8).pin_memory()
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for number in range(25):
        if number == 5:
            begin.record()
        target.copy_(source, non_blocking=True)
    end.record()
    torch.cuda.synchronize()
    return 20 * nbytes / (begin.elapsed_time(end) / 1e3) / 1e9


def torchs(batches: int, size: int, workers: int) -> Iterable[torch.Tensor]:
    loader = TorchLoader(Images(batches * size), size, num_workers=workers, pin_memory=True)
    return (batch.to("cuda", non_blocking=True) for batch in loader)


def pinned(batches: int, size: int, workers: int) -> Iterable[torch.Tensor]:
    loader = DataLoader(Images(batches * size), size, num_workers=workers, pin_memory=True)
    return (batch.to("cuda", non_blocking=True) for batch in loader)


def ahead(batches: int, size: int, workers: int) -> Iterable[torch.Tensor]:
    return DataLoader(Images(batches * size), size, num_workers=workers, to_device="cuda")


SIDES: dict[str, Callable[[int, int, int], Iterable[torch.Tensor]]] = {
    "torch": torchs,
    "pin_memory": pinned,
    "to_device": ahead,
}


#: batches before the first that counts: workers start, and memory is registered
_WARM = 100


def measure(side: str, size: int, workers: int, step_ms: float, batches: int) -> dict[str, float]:
    """One epoch, after its first batches: GB/s, idle share of the device, CPU ms a batch."""
    cycles = int(step_ms * _cycles_a_ms())
    spans, nbytes = [], 0
    iterator = iter(SIDES[side](batches + _WARM, size, workers))
    cpu_s = began_s = 0.0
    for number, batch in enumerate(iterator):
        if number == _WARM:
            torch.cuda.synchronize()
            cpu_s, began_s = cpu_seconds(), time.perf_counter()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        if cycles:
            torch.cuda._sleep(cycles)
        batch[0, 0].add_(1)
        end.record()
        nbytes = batch.nbytes
        if number >= _WARM:
            spans.append((begin, end))
        if number >= _WARM + 2:
            spans[-2][1].synchronize()  # a program that logs its loss is one step ahead
        if number == batches + _WARM - 1:
            break
    torch.cuda.synchronize()
    wall_s, cpu_s = time.perf_counter() - began_s, cpu_seconds() - cpu_s
    busy_ms = sum(begin.elapsed_time(end) for begin, end in spans)
    whole_ms = spans[0][0].elapsed_time(spans[-1][1])
    return {
        "GB/s": (batches - 1) * nbytes / wall_s / 1e9,
        "idle %": 100 * (1 - busy_ms / whole_ms),
        "CPU ms": 1e3 * cpu_s / batches,
        "shared MB": shared_bytes() / 1e6,
        "pinned MB": registered_bytes() / 1e6,
    }


_rates: list[float] = []


def _cycles_a_ms() -> float:
    if not _rates:
        for _ in range(2):  # the first one wakes the clock
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.cuda._sleep(100_000_000)
            end.record()
            torch.cuda.synchronize()
            _rates[:] = [100_000_000 / begin.elapsed_time(end)]
    return _rates[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=100)
    asked = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for size in (32, 333):
        print(f"link, {size * _SAMPLE * 4 / 1e6:.0f} MB: {link_gb_s(size * _SAMPLE * 4):.1f} GB/s")
    for size, workers, step_ms in (
        *((32, 8, 0.0), (32, 16, 0.0), (333, 8, 0.0)),
        *((32, 8, 5.0), (32, 8, 20.0), (333, 8, 20.0), (333, 8, 80.0)),
    ):
        batches = max(10, int(asked.batches / (1 + (size > 32) * 3 + step_ms / 10)))
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(asked.rounds):
            for side in SIDES:
                found[side].append(measure(side, size, workers, step_ms, batches))
        for side, rounds in found.items():
            figures = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
            text = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
            print(
                f"{size * _SAMPLE * 4 / 1e6:.0f} MB, {workers} workers, step {step_ms} ms: "
                f"{side}: {text}",
                flush=True,
            )


if __name__ == "__main__":
    main()
