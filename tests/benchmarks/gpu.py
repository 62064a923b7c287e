"""On a GPU: our loader next to torch's, and the link's own speed as the limit.

``python -m benchmarks.gpu`` prints a table; it needs a CUDA device.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from picklable_loader import DataLoader
from picklable_loader.fetching.transport.page_lock import registered_bytes

from .processes import cpu_seconds, peak_bytes

#: values of a sample: an image of 224 x 224 in 32 bits. 32 of them are a batch of 19 MB
_IMAGE = 3 * 224 * 224
#: tokens of a sample of the language model
_TOKENS = 512


class Same(Dataset[Any]):
    """One sample again and again: it costs nothing, so that the way to the device is measured."""

    def __init__(self, sample: torch.Tensor, count: int) -> None:
        self.sample, self.count = sample, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


class Stamped(Same):
    """Whole batches, each with the time at which the worker has it."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)  # the consumer waits for each batch
        return self.sample, time.perf_counter_ns()


def link_gb_s(nbytes: int) -> float:
    """The speed of copies from pinned memory that torch has allocated."""
    source = torch.empty(nbytes, dtype=torch.uint8).pin_memory()
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    begin, end = _event(), _event()
    for number in range(25):
        if number == 5:
            begin.record()
        target.copy_(source, non_blocking=True)
    end.record()
    torch.cuda.synchronize()
    return 20 * nbytes / (begin.elapsed_time(end) / 1e3) / 1e9


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)


# --- the loaders ---------------------------------------------------------------------------------


def torchs(dataset: Any, size: Any, workers: int) -> Iterable[Any]:
    return TorchLoader(dataset, size, num_workers=workers, pin_memory=True)


def pinned(dataset: Any, size: Any, workers: int) -> Iterable[Any]:
    return DataLoader(dataset, size, num_workers=workers, pin_memory=True)


def ahead(dataset: Any, size: Any, workers: int) -> Iterable[Any]:
    return DataLoader(dataset, size, num_workers=workers, to_device="cuda")


SIDES: dict[str, Callable[[Any, Any, int], Iterable[Any]]] = {
    "torch": torchs,
    "pin_memory": pinned,
    "to_device": ahead,
}


# --- the steps -----------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """A block of ResNet-50 that changes no size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        narrow = width // 4
        sizes = (width, narrow, 1), (narrow, narrow, 3), (narrow, width, 1)
        layers = [
            layer
            for into, out, kernel in sizes
            for layer in (
                nn.Conv2d(into, out, kernel, padding=kernel // 2),
                nn.BatchNorm2d(out),
                nn.ReLU(),
            )
        ]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(inputs + self.layers(inputs))


def resnet() -> nn.Module:
    stem = nn.Unflatten(1, (3, 224, 224)), nn.Conv2d(3, 256, 7, 4, 3), nn.BatchNorm2d(256)
    blocks = (Bottleneck(256) for _ in range(4))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def gpt() -> nn.Module:
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    return nn.Sequential(nn.Embedding(5000, 768), nn.TransformerEncoder(layer, 3))


class Step:
    """What the GPU does with a batch, for about ``ms`` milliseconds.

    Args:
        kind: "sleep" waits on the device; "resnet" and "gpt" train a model, on the same batch as
            often as is needed to take that long.
    """

    def __init__(self, kind: str, ms: float, batch: torch.Tensor) -> None:
        self.kind, self.repeats, self._cycles = kind, 1, 0
        if kind == "sleep":
            self._cycles = int(ms * _cycles_a_ms())
            return
        self._model = {"resnet": resnet, "gpt": gpt}[kind]().cuda()
        self._optimizer = torch.optim.SGD(self._model.parameters(), 1e-4)
        for _ in range(3):  # the first one is slow
            begin, end = _event(), _event()
            begin.record()
            self(batch)
            end.record()
            torch.cuda.synchronize()
        self.repeats = max(1, round(ms / begin.elapsed_time(end)))

    def __call__(self, batch: torch.Tensor) -> None:
        if self.kind == "sleep":
            if self._cycles:
                torch.cuda._sleep(self._cycles)
            batch.view(-1)[0].add_(1)
            return
        for _ in range(self.repeats):
            with torch.autocast("cuda", torch.bfloat16):
                loss = self._model(batch).float().square().mean()
            loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


_rates: list[float] = []


def _cycles_a_ms() -> float:
    if not _rates:
        for _ in range(2):  # the first one wakes the clock
            begin, end = _event(), _event()
            begin.record()
            torch.cuda._sleep(100_000_000)
            end.record()
            torch.cuda.synchronize()
            _rates[:] = [100_000_000 / begin.elapsed_time(end)]
    return _rates[0]


# --- the measurements ----------------------------------------------------------------------------


class Row(NamedTuple):
    """A workload: ``size`` samples a batch, and the step that is done with each."""

    sample: str
    size: int
    workers: int
    kind: str
    step_ms: float
    #: batches that are measured, after the first ``warm``
    batches: int
    warm: int


#: with the most important ones first
ROWS = [
    Row("image", 32, 8, "sleep", 0, 100, 60),
    Row("image", 32, 8, "sleep", 20, 35, 15),
    Row("image", 32, 8, "resnet", 20, 35, 15),
    Row("image", 333, 8, "sleep", 20, 20, 24),
    Row("image", 32, 16, "sleep", 0, 100, 60),
    Row("image", 32, 2, "sleep", 0, 100, 60),
    Row("image", 32, 8, "sleep", 5, 100, 40),
    Row("image", 333, 8, "sleep", 0, 24, 24),
    Row("image", 32, 8, "resnet", 5, 100, 40),
    Row("tokens", 32, 8, "gpt", 20, 35, 15),
    Row("image", 32, 8, "resnet", 80, 10, 5),
    Row("image", 333, 8, "sleep", 80, 10, 5),
    Row("tokens", 8, 8, "gpt", 5, 100, 40),
    Row("tokens", 32, 8, "gpt", 80, 10, 5),
]


def sample_of(kind: str) -> torch.Tensor:
    return torch.rand(_IMAGE) if kind == "image" else torch.randint(5000, (_TOKENS,))


def measure(side: str, row: Row, step: Step, sample: torch.Tensor) -> dict[str, float]:
    """One pass: time of a batch and a step, GB/s, idle share of the device, CPU ms a batch.

    *early* is the idle share of the first batches: memory is registered then.
    """
    warm, total = row.warm, row.warm + row.batches
    dataset = Same(sample, total * row.size)
    spans, nbytes, cpu_s, began_s, registered = [], 0, 0.0, 0.0, 0
    for number, batch in enumerate(SIDES[side](dataset, row.size, row.workers)):
        if number == warm:
            torch.cuda.synchronize()
            cpu_s, began_s = cpu_seconds(), time.perf_counter()
        batch = batch.to("cuda", non_blocking=True)
        begin, end = _event(), _event()
        begin.record()
        step(batch)
        end.record()
        nbytes, registered = batch.nbytes, registered_bytes()
        spans.append((begin, end))
        if number > 1:
            spans[-2][1].synchronize()  # a program that logs its loss is one step ahead
        if number == total - 1:
            torch.cuda.synchronize()
            wall_s, cpu_s = time.perf_counter() - began_s, cpu_seconds() - cpu_s
    return {
        "ms a batch": 1e3 * wall_s / row.batches,
        "GB/s": (row.batches - 1) * nbytes / wall_s / 1e9,
        "idle %": _idle(spans[warm:]),
        "early idle %": _idle(spans[1:warm]),
        "CPU ms": 1e3 * cpu_s / row.batches,
        "registered MB": registered / 1e6,
    }


def workers_gb_s(row: Row, sample: torch.Tensor) -> float:
    """How fast workers alone are: their batches are dropped as they come."""
    warm, total = row.warm, row.warm + row.batches
    loader = DataLoader(Same(sample, total * row.size), row.size, num_workers=row.workers)
    for number, batch in enumerate(loader):
        if number == warm:
            began_s = time.perf_counter()
        nbytes = batch.nbytes
    return (row.batches - 1) * nbytes / (time.perf_counter() - began_s) / 1e9


def _idle(spans: list[tuple[Any, Any]]) -> float:
    """The share of the time between the first step's begin and the last one's end, in percent."""
    busy_ms = sum(begin.elapsed_time(end) for begin, end in spans)
    return 100 * (1 - busy_ms / spans[0][0].elapsed_time(spans[-1][1]))


def latency_ms(side: str, sample: torch.Tensor) -> float:
    """From the moment at which a worker has a batch to that at which it is on the device."""
    found = []
    for batch, made_ns in SIDES[side](Stamped(sample, 40), None, 1):
        batch.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        found.append((time.perf_counter_ns() - made_ns) / 1e6)
    return statistics.median(found[10:])


def soak(side: str, batches: int) -> None:
    """Memory over many batches of 1.2 MB."""
    loader = SIDES[side](Same(sample_of("image"), 2 * batches), 2, 8)
    for number, batch in enumerate(loader, 1):
        batch.to("cuda", non_blocking=True)
        if number in (batches // 100, batches // 10, batches // 2, batches):
            torch.cuda.synchronize()
            print(
                f"{side}, {number} batches of {batch.nbytes / 1e6:.1f} MB: process "
                f"{peak_bytes() / 1e6:.0f} MB, registered {registered_bytes() / 1e6:.0f} MB, "
                f"device {torch.cuda.memory_reserved() / 1e6:.0f} MB",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--soak", type=int, default=100_000, metavar="BATCHES")
    asked = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for size in (32, 333):
        print(f"link, {size * _IMAGE * 4 / 1e6:.0f} MB: {link_gb_s(size * _IMAGE * 4):.1f} GB/s")
    batch = sample_of("image").expand(32, -1).contiguous()
    for side in SIDES:
        rounds = [latency_ms(side, batch) for _ in range(asked.rounds)]
        print(f"latency, 19 MB: {side}: {statistics.median(rounds):.2f} ms", flush=True)
    for side in ("pin_memory", "to_device"):
        soak(side, asked.soak)
    for row in ROWS:
        sample = sample_of(row.sample)
        step = Step(row.kind, row.step_ms, sample.expand(row.size, -1).cuda())
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(asked.rounds):
            for side in SIDES:
                found[side].append(measure(side, row, step, sample))
        megabytes = row.size * sample.nbytes / 1e6
        kind = f"{row.kind} {row.step_ms} ms (x {step.repeats})"
        print(f"{megabytes:.2f} MB, {row.workers} workers, {kind}:")
        if row.step_ms == 0:
            speeds = [workers_gb_s(row, sample) for _ in range(asked.rounds)]
            print(f"    workers alone: {statistics.median(speeds):.2f} GB/s")
        for side, rounds in found.items():
            figures = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
            text = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
            print(f"    {side}: {text}", flush=True)


if __name__ == "__main__":
    main()
