"""Show what this machine has of what the loader uses, and what that means."""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from ... import __version__
from ...fetching.pool.exit import memory_limit
from ...fetching.transport.seqpacket import packets_work_here
from ...saving.pickles.size import in_words
from ..table import Table, show

_MARKS = {"good": "ok", "poor": "!", "bad": "x"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it as JSON")


@dataclass(frozen=True)
class _Sign:
    """Something of the machine: ``"good"``, ``"poor"`` if there is a price, ``"bad"``."""

    name: str
    value: str
    means: str
    health: str = "good"


def run(options: argparse.Namespace) -> int:
    """Look at the machine: 0; 1 if the loader cannot be used as it is."""
    signs = [*_versions(), *(check() for check in _CHECKS)]
    rows = [(f"{_MARKS[each.health]:<2} {each.name}", each.value, each.means) for each in signs]
    show([Table("This machine", rows)], [asdict(each) for each in signs], options.json)
    return int(any(each.health == "bad" for each in signs))


# --- versions ------------------------------------------------------------------------------------

_NEEDED = {"torch": (2, 6), "numpy": (2, 0), "cloudpickle": (2, 2), "dill": (0, 3)}
_OPTIONAL = {
    "matplotlib": "pictures",
    "tqdm": "progress bars",
    "torchdata": "its loader beside ours in benchmarks",
}


def _versions() -> list[_Sign]:
    signs = [_python(), _Sign("picklable_loader", __version__, "")]
    for name, least in _NEEDED.items():
        found = _version(name)
        enough = found is not None and _numbers(found) >= least
        wanted = ".".join(map(str, least))
        means = "" if enough else f"pip install '{name}>={wanted}'"
        signs.append(_Sign(name, found or "missing", means, "good" if enough else "bad"))
    for name, use in _OPTIONAL.items():
        signs.append(_Sign(name, _version(name) or "not installed", f"optional: {use}"))
    return signs


def _python() -> _Sign:
    supported = (3, 10) <= sys.version_info[:2] <= (3, 14)
    means = "" if supported else "the loader is made for Python 3.10 to 3.14"
    return _Sign("Python", platform.python_version(), means, "good" if supported else "poor")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


# --- the machine ---------------------------------------------------------------------------------


def _cores() -> _Sign:
    total = os.cpu_count() or 1
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    means = f"more than {own} workers help only where they wait for disk or network"
    text = str(own) if own == total else f"{own} of {total}"
    return _Sign("cores", text, means)


def _start_methods() -> _Sign:
    methods = multiprocessing.get_all_start_methods()
    default = multiprocessing.get_context().get_start_method()
    means = "workers share the dataset's arrays; a large list they copy: use a PackedList"
    if default != "fork":
        means = "the dataset is pickled for the workers, and scripts need their __main__ guard"
    return _Sign("start methods", f"{default} of {', '.join(methods)}", means)


def _transport() -> _Sign:
    if not packets_work_here():
        means = "batches travel through pipes and torch's shared memory, which is slower"
        return _Sign("transport", "portable, no memfd or no SEQPACKET", means, "poor")
    return _Sign("transport", "arena", "batches travel through memory that both sides map")


def _descriptors() -> _Sign:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _FEW_DESCRIPTORS:
        return _Sign("descriptors", f"{soft} (at most {hard})", "enough for hundreds of workers")
    means = f"a worker takes up to ten; raise it with `ulimit -n {min(hard, 4096)}`"
    return _Sign("descriptors", f"{soft} (at most {hard})", means, "poor")


_FEW_DESCRIPTORS = 512


def _shared_memory() -> _Sign:
    try:
        found = shutil.disk_usage("/dev/shm")
    except OSError:
        means = "only the portable transport needs it, and what the arena cannot hold"
        return _Sign("/dev/shm", "not there", means, "poor")
    text = f"{in_words(found.free)} free of {in_words(found.total)}"
    if found.total < _SMALL_SHM:
        means = "enough for the arena; the portable transport needs docker's --shm-size"
        return _Sign("/dev/shm", text, means, "poor")
    return _Sign("/dev/shm", text, "not used by the arena")


_SMALL_SHM = 1 << 30


def _memory() -> _Sign:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, _ = memory_limit() or (physical, 0)
    if limit >= physical:
        return _Sign("memory", in_words(physical), "no limit of a container below that is seen")
    means = "a worker that passes it is killed, and replaced: prefetch_bytes= bounds batches"
    return _Sign("memory", f"{in_words(limit)} of {in_words(physical)}", means)


_CHECKS: list[Callable[[], _Sign]] = [
    _cores,
    _start_methods,
    _transport,
    _descriptors,
    _shared_memory,
    _memory,
]
