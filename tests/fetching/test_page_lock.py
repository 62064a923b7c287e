"""Registering memory with CUDA, over a driver that only remembers; tests/gpu has the real one."""

from __future__ import annotations

import mmap
import os
import threading
from typing import Any

import pytest
from zoo.cuda import Driver, pretend

from picklable_loader.fetching.transport.page_lock import Fence, LockedMap, registered_bytes


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return pretend(monkeypatch)


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
