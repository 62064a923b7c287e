"""Memory that a GPU reads without a copy: mappings registered with CUDA, and fences.

CUDA's registration locks the pages of a mapping in memory. A copy from it to the device is then
asynchronous, and needs no pinned copy of the batch before. But the program may drop a batch right
after ``batch.to("cuda", non_blocking=True)``, while the device still reads it. So a worker may
write to that memory again only when a *fence* has passed: an event behind all work that the
process has given to its devices, on every stream.

The driver's interface is called directly. Torch has no name for the event, and a registration that
fails in the runtime's interface would be raised by the program's next kernel.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import sys
import threading
from functools import cache
from typing import Any

import numpy as np
import torch

#: registered mappings take at most this part of the machine's memory, over all loaders
_PART = 4
#: flags of the driver's interface: for all contexts; an event without a clock
_PORTABLE, _NO_TIMING = 1, 2


class _Context:
    """The primary context of one device, which torch works in."""

    def __init__(self, driver: Any, device: int) -> None:
        handle, number = ctypes.c_void_p(), ctypes.c_int()
        self._driver, self._handle = driver, handle
        self._spare: list[ctypes.c_void_p] = []
        _check(driver.cuDeviceGet(ctypes.byref(number), device))
        _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(handle), number))

    def __enter__(self) -> None:
        _check(self._driver.cuCtxPushCurrent_v2(self._handle))

    def __exit__(self, *error: object) -> None:
        self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def record(self) -> ctypes.c_void_p:
        """An event behind all work of the context."""
        try:
            event = self._spare.pop()  # another thread may record one at the same time
        except IndexError:
            event = ctypes.c_void_p()
            with self:
                _check(self._driver.cuEventCreate(ctypes.byref(event), _NO_TIMING))
        code = self._driver.cuCtxRecordEvent(self._handle, event)
        if code:
            self._spare.append(event)
        _check(code)
        return event

    def passed(self, event: ctypes.c_void_p) -> bool:
        """All work before the event is done; it may be recorded again then."""
        if self._driver.cuEventQuery(event):  # not ready, or refused
            return False
        self._spare.append(event)
        return True

    def wait(self) -> None:
        with self:
            self._driver.cuCtxSynchronize()


class _Refused(Exception):
    """The driver has returned an error."""


def _check(code: int) -> None:
    if code:
        raise _Refused(code)


@cache
def _library() -> Any:
    """CUDA's driver, if it can record events behind all streams: CUDA 12.5 and later; or None."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        for name in ("cuCtxRecordEvent", "cuMemHostRegister_v2", "cuMemHostUnregister"):
            getattr(driver, name)
    except (OSError, AttributeError):
        return None
    driver.cuMemHostRegister_v2.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
    driver.cuMemHostUnregister.argtypes = (ctypes.c_void_p,)
    return driver


def works_here() -> bool:
    """Memory can be registered; it starts nothing on a device, and may precede a fork."""
    if sys.platform != "linux" or torch.version.cuda is None or _library() is None:
        return False
    return torch.cuda.is_available()


_contexts: dict[int, _Context] = {}


def _active() -> list[_Context]:
    """The contexts of the devices that this process uses."""
    if not torch.cuda.is_initialized():
        return []
    for device in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(device):  # type: ignore[attr-defined]
            _context_of(device)
    return list(_contexts.values())


def _context_of(device: int) -> _Context:
    """The context of a device; it is made if there is none."""
    if device not in _contexts:
        _contexts.setdefault(device, _Context(_library(), device))
    return _contexts[device]


def _any_context() -> _Context:
    """A context in use, as another one would take memory of its device; else the current one."""
    return next(iter(_active()), None) or _context_of(torch.cuda.current_device())


def capturing() -> bool:
    """This thread captures a CUDA graph, which may not be asked for other work."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class Fence:
    """A moment in the work of all devices: it has passed when all that was begun before is done.

    Raises:
        NotNow: this thread captures a CUDA graph, which may not be asked for other work.
    """

    def __init__(self) -> None:
        if capturing():
            raise NotNow
        try:
            self._events = [(context, context.record()) for context in _active()]
        except _Refused as error:  # another thread captures a graph
            raise NotNow from error

    def passed(self) -> bool:
        """All work before the fence is done: memory that it has read may be written again."""
        while self._events:
            context, event = self._events[-1]
            if not context.passed(event):
                return False
            self._events.pop()
        return True


class NotNow(Exception):
    """A CUDA graph is being captured."""


class LockedMap(mmap.mmap):
    """A mapping of a file that devices read without a copy, once it is registered.

    Where it cannot be registered it is an ordinary mapping, whose tensors torch pins by a copy.
    """

    _tried = False
    _address = 0
    _owner = 0

    def register(self) -> None:
        """Let devices read it without a copy, until nothing sees it; only the first call acts."""
        if self._tried:
            return
        self._tried = True
        view: Any = np.frombuffer(self, np.uint8)
        address: int = view.__array_interface__["data"][0]
        # first: Ctrl-C may come when the driver has registered it
        self._address, self._owner = address, os.getpid()
        if not _registered.add(address, len(self)):
            self._address = 0

    def __del__(self) -> None:
        # A forked child has no CUDA. At the end of the process the system does it, and this
        # module's names are None.
        alive = _registered and not _registered.ended
        if self._address and alive and self._owner == os.getpid():
            _registered.remove(self._address, len(self))


class _Registered:
    """The registered mappings, over all loaders of the process."""

    def __init__(self) -> None:
        self.bytes = 0
        self.ended = False
        #: re-entrant, as a garbage collection may remove something anywhere
        self._lock = threading.RLock()
        atexit.register(self._end)

    def add(self, address: int, length: int) -> bool:
        """Register a mapping; False: it would be too much, or the driver refuses."""
        with self._lock:
            if self.bytes + length > most_bytes():
                return False
            self.bytes += length
            try:
                with _any_context():
                    _check(_library().cuMemHostRegister_v2(address, length, _PORTABLE))
            except (_Refused, RuntimeError):  # for example, in a forked child
                self.bytes -= length
                return False
            return True

    def remove(self, address: int, length: int) -> None:
        with self._lock:
            try:
                for context in _active():
                    context.wait()  # for the last copies from it
            finally:  # after Ctrl-C, too: other memory may get this address
                self.bytes -= length
                with _any_context():
                    _library().cuMemHostUnregister(address)

    def _end(self) -> None:
        self.ended = True


_registered = _Registered()


def registered_bytes() -> int:
    """Bytes that are registered now, over all loaders of this process."""
    return _registered.bytes


def most_bytes() -> int:
    """The most that may be registered: a quarter of the machine's memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _PART
