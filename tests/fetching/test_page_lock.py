"""Registering memory with CUDA, over a driver that only remembers; tests/gpu has the real one."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from picklable_loader.fetching.transport import page_lock
from picklable_loader.fetching.transport.page_lock import Fence, LockedMap, registered_bytes


class Driver:
    """Remembers what is registered, and which events are recorded and not queried."""

    def __init__(self) -> None:
        self.registered: set[int] = set()
        self.recorded: list[int] = []
        self.query_code = 0
        self.stops: Any = None

    def _stop(self, name: str) -> None:
        if self.stops == name:
            self.stops = None
            raise KeyboardInterrupt

    def cuDeviceGet(self, *_: Any) -> int:
        return 0

    cuDevicePrimaryCtxRetain = cuCtxPushCurrent_v2 = cuCtxPopCurrent_v2 = cuDeviceGet
    cuEventCreate = cuDeviceGet

    def cuCtxRecordEvent(self, _: Any, event: Any) -> int:
        self.recorded.append(id(event))
        return 0

    def cuEventQuery(self, event: Any) -> int:
        return self.query_code

    def cuCtxSynchronize(self) -> int:
        self._stop("wait")
        return 0

    def cuMemHostRegister_v2(self, address: int, *_: Any) -> int:
        self.registered.add(address)
        self._stop("register")
        return 0

    def cuMemHostUnregister(self, address: int) -> int:
        self.registered.discard(address)
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    monkeypatch.setattr(page_lock, "_library", lambda: made)
    monkeypatch.setattr(page_lock, "_contexts", {})
    monkeypatch.setattr(page_lock, "capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: True, raising=False)
    yield made


def new_map() -> LockedMap:
    descriptor = os.memfd_create("locked")
    os.ftruncate(descriptor, mmap.PAGESIZE)
    made = LockedMap(descriptor, mmap.PAGESIZE)
    os.close(descriptor)
    return made


def test_a_mapping_is_registered_once_and_given_back(driver: Driver) -> None:
    before, locked = registered_bytes(), new_map()
    assert not driver.registered
    for _ in range(2):
        locked.register()
        assert len(driver.registered) == 1
        assert registered_bytes() == before + mmap.PAGESIZE
    del locked
    assert not driver.registered and registered_bytes() == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("moment", ["register", "wait"])
def test_after_ctrl_c_no_memory_that_is_gone_is_registered(driver: Driver, moment: str) -> None:
    before, locked = registered_bytes(), new_map()
    driver.stops = moment
    if moment == "register":
        with pytest.raises(KeyboardInterrupt):
            locked.register()
    else:
        locked.register()
    del locked
    assert driver.stops is None and not driver.registered and registered_bytes() == before


def test_a_fence_that_the_driver_does_not_answer_for_has_not_passed(driver: Driver) -> None:
    fence = Fence()
    for driver.query_code in (600, 900):  # not ready; not permitted, as a graph is captured
        assert not fence.passed()
    driver.query_code = 0
    assert fence.passed()


def test_no_two_fences_share_an_event_whatever_the_threads(driver: Driver) -> None:
    Fence().passed()  # there is a spare one
    inside, both = driver.cuCtxRecordEvent, threading.Barrier(2, timeout=60)

    def record(context: Any, event: Any) -> int:
        both.wait()  # two threads are here at once
        return inside(context, event)

    driver.cuCtxRecordEvent = record  # type: ignore[method-assign]
    fences: list[Fence] = []
    threads = [threading.Thread(target=lambda: fences.append(Fence())) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    events = [id(event) for fence in fences for _, event in fence._events]
    assert len(set(events)) == 2 == len(fences)
    assert sorted(driver.recorded[-2:]) == sorted(events)
