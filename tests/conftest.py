"""What every test is held to: nothing is left when it ends."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import multiprocessing.resource_tracker
import os
import random
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from multiprocessing import forkserver, resource_sharer
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from time_limit import pytest_timeout_set_timer  # noqa: F401
from zoo import cuda

try:
    from hypothesis import settings
except ImportError:  # tests/frameworks has an environment without it
    pass
else:  # an example takes longer than 200 ms while other tests have the cores
    settings.register_profile("untimed", settings.default, deadline=None)
    settings.load_profile("untimed")

#: seconds within which workers that were asked to end have ended
_GRACE_S = 10.0


# Tests name the start method that they are about; all others are written for this one, which is
# Linux's default up to Python 3.13.
if sys.version_info >= (3, 14):
    multiprocessing.set_start_method("fork")

# From Python 3.12 on, a fork in a process with threads warns, and torch has threads. Tests count
# warnings.
if sys.version_info >= (3, 12):
    _fork = os.fork

    def _quiet_fork() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return _fork()

    os.fork = _quiet_fork

# Python starts these once a process and keeps them to its end. Workers of "forkserver" find torch
# imported: that takes 2 seconds, which each worker of "spawn" still takes.
multiprocessing.set_forkserver_preload(["torch", "picklable_loader"])
multiprocessing.resource_tracker.ensure_running()
forkserver.ensure_running()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--portable", action="store_true", help="without the arena transport")
    parser.addoption("--pin-memory", action="store_true", help="pin_memory=True where not given")
    parser.addoption("--whole-matrix", action="store_true", help="every cell of every law")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--pin-memory") and not torch.cuda.is_available():
        raise pytest.UsageError("--pin-memory needs a CUDA device: nothing is pinned without one")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test with many parameters, run cells in which every two values meet.

    With ``--portable``, or if a cell takes seconds, each value once is enough: how batches travel
    is a matter of workers only.
    """
    if config.getoption("--whole-matrix"):
        return
    portable, pinned = config.getoption("--portable"), config.getoption("--pin-memory")
    left_out = ["inline"] * portable + ["unpinned"] * pinned
    tests: dict[Any, list[Any]] = {}
    for item in items:
        if not any(item.get_closest_marker(mark) for mark in left_out):
            tests.setdefault((item.path, item.location[2].partition("[")[0]), []).append(item)
    needed = {item for cells in tests.values() for item in _covering(cells, portable)}
    config.hook.pytest_deselected(items=[item for item in items if item not in needed])
    items[:] = [item for item in items if item in needed]


#: two kinds of advice that Linux takes about memory, and the size of its huge pages
_HUGEPAGE, _COLLAPSE, _HUGE = 14, 25, 2 << 20


def pytest_collection_finish() -> None:
    """Move this process's memory into huge pages, which a fork copies and frees sooner.

    Tests fork workers by the ten thousand. The collected tests and torch fill 40,000 small pages,
    whose table each fork copies: 26 ms of CPU for a worker's life, 18 ms from huge ones. A system
    that has none refuses the advice, which changes nothing.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for line in maps.read_text().splitlines():
        addresses, access, _, _, inode, *name = line.split()
        if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            begin = -(-begin // _HUGE) * _HUGE
            for advice in (_HUGEPAGE, _COLLAPSE):
                madvise(begin, max(0, end // _HUGE * _HUGE - begin), advice)


def _covering(items: list[Any], portable: bool) -> list[Any]:
    """Few of a test's cells: all values are in them, or all pairs of values."""
    if portable and items[0].get_closest_marker("matrix"):
        return items[::5]
    together = 1 if portable or items[0].get_closest_marker("costly") else 2
    if not hasattr(items[0], "callspec"):
        return items
    cells = [[(name, id(value)) for name, value in item.callspec.params.items()] for item in items]
    met = [set(combinations(cell, min(together, len(cell)))) for cell in cells]
    chosen, missing, times = set[int](), set[Any]().union(*met), Counter[Any]()
    while missing:  # each value as often as the others: not one number of workers for all
        best = max(
            range(len(met)),
            key=lambda cell: (len(met[cell] & missing), -sum(times[each] for each in cells[cell])),
        )
        chosen.add(best)
        missing -= met[best]
        times.update(cells[best])
    return [items[cell] for cell in sorted(chosen)]


#: processes that the test at hand has started: a system gives numbers out again before long
_started: set[int] = set()


@pytest.fixture(autouse=True, scope="session")
def processes_are_known() -> Iterator[None]:
    start = BaseProcess.start

    def start_and_note(process: BaseProcess) -> None:
        start(process)
        assert process.pid is not None
        _started.add(process.pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseProcess, "start", start_and_note)
        yield


@pytest.fixture(autouse=True, scope="session")
def the_transport_is_the_one_asked_for(request: pytest.FixtureRequest) -> Iterator[None]:
    """With ``--portable``, "auto" means pipes."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--portable"):
            patch.setattr(
                "picklable_loader.fetching.engine.engine.default_transport", lambda: "portable"
            )
        yield


@pytest.fixture(autouse=True, scope="session")
def loaders_pin_if_asked_for(request: pytest.FixtureRequest) -> Iterator[None]:
    """With ``--pin-memory``, our loader's ``pin_memory`` is True by default.

    Not in forked processes, which cannot use CUDA.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--pin-memory"):
            from picklable_loader import DataLoader
            from picklable_loader.epoch import driver

            def pin_nothing() -> None:
                driver.pin = lambda batch: batch  # type: ignore[attr-defined]

            os.register_at_fork(after_in_child=pin_nothing)
            cuda.open_its_files()
            make: Any = DataLoader.__init__
            arguments = make.__code__.co_varnames[1 : make.__code__.co_argcount]
            defaults = list(make.__defaults__)
            defaults[arguments.index("pin_memory") - len(arguments)] = True
            patch.setattr(make, "__defaults__", tuple(defaults))
        yield


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No child process, descriptor or shared memory of this process outlives a test."""
    _set_modules_aside()
    _started.clear()
    descriptors, shared = _descriptors(), _shared_memory()
    yield
    gc.collect()
    resource_sharer.stop()  # Python's thread that gives away descriptors of shared memory
    _until_none(lambda: set(map(repr, multiprocessing.active_children())), "child processes")
    _until_none(lambda: _descriptors() - descriptors, "descriptors")
    _until_none(lambda: _own(_shared_memory() - shared), "shared memory")
    if request.node.get_closest_marker("inline"):
        assert not _started, "the test is marked as one in which no worker takes part"


@pytest.fixture
def ctrl_c_is_heard() -> Iterator[None]:
    """A program that a shell has started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets a package be one that is not installed."""

    def hide(package: str) -> None:
        for name in {package, *sys.modules}:
            if name.partition(".")[0] == package:
                monkeypatch.setitem(sys.modules, name, None)

    return hide


@pytest.fixture(autouse=True)
def known_random_states() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)  # torch.manual_seed notes the stack: 0.5 ms under pytest


#: how many modules there were when what they have made was set aside
_modules_aside = 0


def _set_modules_aside() -> None:
    """To look for garbage in what modules have made, after each test, takes most of the time.

    Some are imported by tests only: some libraries are loaded when something of them is needed.
    """
    global _modules_aside
    if len(sys.modules) > _modules_aside:
        gc.collect()
        gc.freeze()
        _modules_aside = len(sys.modules)


def _until_none(left: Callable[[], set[str]], what: str) -> None:
    deadline = time.monotonic() + _GRACE_S
    while found := left():
        assert time.monotonic() < deadline, f"{what} left after the test: {sorted(found)}"
        gc.collect()


def _descriptors() -> set[str]:
    """Open sockets, pipes and shared memory, each once for every descriptor.

    Python's fork server holds a pipe of this process; a test may end the server, and have another.
    """
    found = set()
    servers = str(getattr(forkserver, "_forkserver")._forkserver_alive_fd)
    for entry in os.listdir("/proc/self/fd"):
        if entry == servers:
            continue
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if target.startswith(("socket:", "pipe:", "/dev/shm/", "/memfd:")):
            found.add(f"{entry}={target}")
    return found


def _shared_memory() -> set[str]:
    """Blocks of torch's shared memory, whoever has made them."""
    folder = Path("/dev/shm")
    return {path.name for path in (folder.iterdir() if folder.is_dir() else ())}


def _own(blocks: set[str]) -> set[str]:
    """Those that this process or one that the test has started has made.

    Other tests run at the same time, some of which kill torch's workers: those leave theirs.
    """
    made = {os.getpid(), *_started}
    makers = {block: re.match(r"torch_(\d+)_", block) for block in blocks}
    return {block for block, maker in makers.items() if maker and int(maker[1]) in made}
