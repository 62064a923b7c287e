"""Datasets in C++: whole batches in plain loops, torch's operators, and the build."""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.data import Dataset

from picklable_loader import cpp

from .throughput import steady
from .workload import Figure, Side, Workload, few

__all__ = ["WORKLOADS"]

_SOURCE = Path(__file__).with_name("crops.cpp")
_BUILDS = Path(__file__).parents[2] / "build" / "cpp"
_BATCH_SIZE = 256
_CROP = 32


@cache
def _extension() -> Any:
    return cpp.load("crops", [_SOURCE], __name__, ["-O3"], build_directory=_BUILDS)


def _images() -> torch.Tensor:
    return torch.randint(256, (1000, 3, 40, 40), dtype=torch.uint8)


class PythonOperators(Dataset[Any]):
    """What Operators is in crops.cpp."""

    def __init__(self, images: torch.Tensor, length: int) -> None:
        self.images, self.length = images, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        y, x, flip = torch.randint(9, (3,)).tolist()
        image = self.images[index % len(self.images)]
        crop = image.narrow(1, y, _CROP).narrow(2, x, _CROP).to(torch.float32).div_(255)
        return crop.flip(2) if flip % 2 else crop, torch.tensor(index)


def loops(side: Side, quick: bool, num_workers: int) -> float:
    """Batches a second of whole batches in plain loops."""
    images = _images()
    make = partial(_extension().Loops, images)
    options = {"batches": 4000, "batch_size": _BATCH_SIZE, "num_workers": num_workers}
    return steady(side, quick, dataset=make, **options)[0]


def in_workers(side: Side, quick: bool) -> tuple[float, ...]:
    return (loops(side, quick, num_workers=2),)


def without_workers(side: Side, quick: bool) -> tuple[float, ...]:
    return (loops(side, quick, num_workers=0),)


def beside_native(side: Side, quick: bool) -> tuple[float, ...]:
    """In the place of torch's loader is the one in C++."""
    if side.name == "picklable_loader":
        return without_workers(side, quick)
    timed = few(4000, quick)
    return (_extension().native(_images(), _BATCH_SIZE, timed // 10 + 8, timed),)


def operators(side: Side, quick: bool) -> tuple[float, ...]:
    """How many times as many batches a second as the same dataset in Python gives."""
    options = {"batches": 200, "batch_size": _BATCH_SIZE, "num_workers": 0}
    kinds = [_extension().Operators, PythonOperators]
    in_cpp, in_python = (
        steady(side, quick, dataset=partial(kind, _images()), **options)[0] for kind in kinds
    )
    return (in_cpp / in_python,)


def building(side: Side, quick: bool) -> tuple[float, ...]:
    """Seconds of processor time, gigabytes, and milliseconds of a load that builds nothing."""
    with TemporaryDirectory() as folder:
        cpp.load("crops", [_SOURCE], build_directory=folder)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        again = [sys.executable, "-c", _WARM, str(_SOURCE), folder]
        warm = float(subprocess.run(again, check=True, capture_output=True).stdout)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6, warm * 1e3


_WARM = """
import sys, time
from picklable_loader import cpp
begin = time.perf_counter()
cpp.load("crops", [sys.argv[1]], build_directory=sys.argv[2])
print(time.perf_counter() - begin)
"""


def _figure(name: str, limit: float | None, unit: str = "batches/s", more: bool = True) -> Figure:
    return Figure(name, unit, more, limit, of_torch=unit == "batches/s")


_OURS = ("picklable_loader",)

WORKLOADS = (
    Workload("cpp-2", in_workers, (_figure("whole batches of crops in C++, 2 workers", 5.0),)),
    Workload(
        "cpp-0", without_workers, (_figure("whole batches of crops in C++, no workers", 0.9),)
    ),
    Workload(
        "cpp-native",
        beside_native,
        (_figure("the same; torch: its loader in C++ (make_data_loader)", 0.9),),
        sides=("torch", "picklable_loader"),
    ),
    Workload(
        "cpp-operators",
        operators,
        (_figure("a sample in torch's operators: rate of C++ / of Python", 1.2, "×"),),
        sides=_OURS,
    ),
    Workload(
        "cpp-build",
        building,
        (
            _figure("cold build of an extension, processor time", 40, "s", more=False),
            _figure("cold build, memory", 1.5, "GB", more=False),
            _figure("warm load", 50, "ms", more=False),
        ),
        sides=_OURS,
        heavy=True,
    ),
)
