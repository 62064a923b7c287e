"""CUDA, before the first test that uses it; and a driver that only remembers, without a GPU."""

from __future__ import annotations

import mmap
import os
from typing import Any

import pytest
import torch

from picklable_loader.fetching.transport import page_lock
from picklable_loader.fetching.transport.page_lock import LockedMap


def open_its_files() -> None:
    """CUDA opens descriptors with its first copy, stream and registration; they are no test's."""
    if torch.cuda.is_available():
        descriptor = os.memfd_create("warm")
        os.ftruncate(descriptor, mmap.PAGESIZE)
        LockedMap(descriptor, mmap.PAGESIZE).register()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.ones(9).pin_memory().to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        os.close(descriptor)


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


def pretend(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Let loaders lock memory without a GPU."""
    made = Driver()
    monkeypatch.setattr(page_lock, "_library", lambda: made)
    monkeypatch.setattr(page_lock, "_contexts", {})
    monkeypatch.setattr(page_lock, "capturing", lambda: False)
    monkeypatch.setattr(page_lock, "works_here", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: True, raising=False)
    return made
