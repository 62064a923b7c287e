"""Shared memory that a worker writes batches to and the loader reads them from.

An arena is one file in memory (``memfd``), mapped by both sides and grown in segments. The *writer*
puts a batch's large buffers into *regions*, and the message that follows names them. The *reader*
makes arrays over them. When the last object that can see a region is gone, the reader sets the
region's byte in the *ledger*, at the file's beginning. The writer then uses the region again: its
pages are warm, so that neither side pays for a page fault.

The ledger ends with a flag and a *note*, a number that outlives the writer.

A *locked* arena is read by a GPU. Its pages must stay in memory, so the writer gives none back.
The reader returns a region only when the devices have read it, too. Before its first batch goes to
a device, each segment is registered with CUDA. That takes 34 ms for 64 MiB, of which 31 make the
pages. So the worker makes these.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .allocator import PAGE, Blocks
from .fork_safety import Forks
from .page_lock import Fence, LockedMap, NotNow, capturing

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

#: One byte for each region: the reader sets it, and the writer clears it when it has seen that.
_LEDGER = 1024 * PAGE
_NOTE = struct.Struct("<q")
_SLOTS = _LEDGER - _NOTE.size - 1
#: the flag: the arena is locked
_LOCKED = _SLOTS
_RETURNED = 1
_RETURNED_BYTE = bytes([_RETURNED])

#: The first segment's size; later ones double the whole. Memory is used only as far as it is
#: written to, and each mapping costs a descriptor, so segments are few and large.
_SEGMENT = 64 * 1024 * 1024

#: A locked arena grows by this, or by a quarter: all of it takes memory, and time to register.
_LOCKED_SEGMENT = 16 * 1024 * 1024

#: memory is given back every so many batches, down to this multiple of the peak since then
_SHRINK_EVERY = 64
_SPARE = 1.25


class ArenaFull(OSError):
    """There is no memory, or no slot in the ledger, for another region."""


class Region(NamedTuple):
    """The location of a buffer in the arena, as a message names it."""

    slot: int
    start: int
    length: int
    #: the segment that it is in
    segment: int
    segment_length: int


@dataclass(slots=True, eq=False)
class _Owned:
    """The writer's view of a region."""

    region: Region
    #: lives as long as anything of this process can see the region; None: nothing can
    here: weakref.ref[Bytes] | None = None
    #: the reader has it
    there: bool = False
    #: where it is, if it was allocated and not copied
    address: int = 0


def new_memory(locked: bool = False) -> int:
    """The descriptor of a new arena's file; OSError if the system has none, or no more."""
    fd = os.memfd_create("picklable_loader", os.MFD_CLOEXEC)
    os.ftruncate(fd, _LEDGER)
    if locked:
        os.pwrite(fd, b"\1", _LOCKED)
    return fd


class Arena:
    """The writer's side. The file's descriptor stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._ledger = mmap.mmap(fd, _LEDGER)
        self._locked = bool(self._ledger[_LOCKED])
        self._blocks = Blocks()
        self._maps: dict[int, mmap.mmap] = {}
        self._end = _LEDGER
        self._by_slot: dict[int, _Owned] = {}
        self._by_address: dict[int, _Owned] = {}
        self._free_slots: list[int] = []
        self._slots_used = 0
        #: batches since memory was given back
        self._collected = 0
        self._owner = os.getpid()
        #: a worker may make batches in several threads
        self._lock = threading.Lock()
        #: regions that nothing here can see any more
        self._unseen: deque[_Owned] = deque()

    @property
    def bytes(self) -> int:
        """Memory that it takes, at most."""
        return self._end - _LEDGER if self._locked else self._blocks.warm

    def allocate(self, length: int) -> Bytes:
        """New memory, to be sent by `give`; freed when nothing sees it. Or ArenaFull."""
        with self._lock:
            array, owned = self._new(length)
            owned.address = _address(array)
            self._by_address[owned.address] = owned
            # A garbage collection, at any moment and in any thread, only makes a note here.
            owned.here = weakref.ref(array, lambda _: self._unseen.append(owned))
        return array

    def give(self, data: memoryview | Bytes) -> Region:
        """Hand a buffer over: as it is if it was allocated here, else as a copy. Or ArenaFull."""
        source = np.frombuffer(data, np.uint8)
        with self._lock:
            owned = self._by_address.get(_address(source)) if self._by_address else None
            # The reader may have changed a region that it has already.
            if owned is None or owned.there or owned.region.length != len(source):
                copy, owned = self._new(len(source))
                copy[:] = source
            owned.there = True
            return owned.region

    def note(self, number: int) -> None:
        """Leave a number for the reader."""
        _NOTE.pack_into(self._ledger, _LOCKED + 1, number)

    def withdraw(self, regions: list[Region]) -> None:
        """Take back what was given and never sent."""
        with self._lock:
            for region in regions:
                self._take_back(region.slot)

    def collect(self) -> None:
        """Take back what the reader has returned; give memory back that is not needed."""
        with self._lock:
            ledger, used = self._ledger, self._slots_used
            slot = ledger.find(_RETURNED_BYTE, 0, used)
            while slot >= 0:
                self._take_back(slot)
                slot = ledger.find(_RETURNED_BYTE, slot + 1, used)
            self._free_unseen()
            self._collected += 1
            # A registered page that left the file would still be the one that a device reads.
            if self._collected >= _SHRINK_EVERY and not self._locked:
                self._collected = 0
                wanted = int(self._blocks.peak * _SPARE) + _SEGMENT // 16
                self._blocks.reset_peak()
                for start, length in self._blocks.surplus(wanted):
                    segment, _ = self._blocks.segment_of(start)
                    self._maps[segment].madvise(mmap.MADV_REMOVE, start - segment, length)

    def close(self) -> None:
        """Nothing is written any more. Regions that were given stay valid."""
        self._by_slot.clear()
        self._by_address.clear()
        self._maps.clear()
        self._ledger.close()

    def _new(self, length: int) -> tuple[Bytes, _Owned]:
        if os.getpid() != self._owner:
            raise ArenaFull("the arena is its parent's")
        self._free_unseen()
        if not self._free_slots and self._slots_used == _SLOTS:
            raise ArenaFull(f"all {_SLOTS} regions are in use")
        start = self._blocks.allocate(length)
        if start is None:
            self._grow(length)
            start = self._blocks.allocate(length)
            assert start is not None
        segment, segment_length = self._blocks.segment_of(start)
        array = np.frombuffer(self._maps[segment], np.uint8, length, start - segment)
        if not self._free_slots:
            self._free_slots.append(self._slots_used)
            self._slots_used += 1
        slot = self._free_slots.pop()
        owned = self._by_slot[slot] = _Owned(Region(slot, start, length, segment, segment_length))
        return array, owned

    def _take_back(self, slot: int) -> None:
        self._ledger[slot] = 0
        owned = self._by_slot[slot]
        owned.there = False
        if owned.here is None:
            self._free(owned)

    def _free_unseen(self) -> None:
        """Free what this process saw last, unless the reader has it."""
        while self._unseen:
            owned = self._unseen.popleft()
            owned.here = None
            self._by_address.pop(owned.address, None)
            if not owned.there:
                self._free(owned)

    def _free(self, owned: _Owned) -> None:
        self._by_slot.pop(owned.region.slot, None)
        self._free_slots.append(owned.region.slot)
        self._blocks.free(owned.region.start)

    def _grow(self, length: int) -> None:
        whole, used = -(-length // PAGE) * PAGE, self._end - _LEDGER
        more = max(whole, _SEGMENT, used)
        if self._locked:  # as many whole buffers of this size as fit
            more = max(_LOCKED_SEGMENT, used // 4) // whole * whole or whole
        try:
            self._extend(more)
        except (OSError, ValueError):
            try:  # as much as is needed may still be possible
                self._extend(whole)
            except (OSError, ValueError) as error:
                raise ArenaFull(f"no memory for {length} bytes more: {error}") from error

    def _extend(self, size: int) -> None:
        os.ftruncate(self._fd, self._end + size)
        segment = self._maps[self._end] = mmap.mmap(self._fd, size, offset=self._end)
        if self._locked:  # or the consumer's thread would make its pages
            np.frombuffer(segment, np.uint8)[::PAGE] = 0
        self._blocks.extend(self._end, size)
        self._end += size


class _Loan(weakref.ref[Any]):
    """Watches the array over a region that is with the reader."""

    __slots__ = ("slot",)
    slot: int


class ArenaReader:
    """The reader's side. The file's descriptor stays the caller's.

    Of a ``locked`` arena, devices read the mappings without a copy.
    """

    def __init__(self, fd: int, locked: bool = False) -> None:
        self._fd = fd
        self._map = LockedMap if locked else mmap.mmap
        #: of a locked arena, slots that are gone here; and fences, each with slots behind it
        self._dropped: list[int] | None = [] if locked else None
        self._fences: deque[tuple[Fence, list[int]]] = deque()
        self._owner = os.getpid()
        self._maps: dict[int, mmap.mmap] = {}
        #: of a locked arena, the segments that were opened since `opened_segments` was called last
        self._opened: list[LockedMap] = []
        self._ledger: mmap.mmap | None = None
        #: by slot, what was opened and can still be seen
        self._loans: dict[int, _Loan] = {}
        #: slots that are gone here, and still visible to a process that was forked
        self._forked: set[int] = set()
        self._forks = Forks(self._loans)

    def open(self, region: Region) -> Bytes:
        """An array over a region. When nothing sees it any more, the region is returned."""
        for slot in list(self._forked):
            if not self._forks.see(slot):
                self._forked.discard(slot)
                self._return(slot)
        if self._dropped or self._fences:
            self._return_read()
        if self._ledger is None:
            self._ledger = mmap.mmap(self._fd, _LEDGER)
        segment = self._maps.get(region.segment)
        if segment is None:
            segment = self._map(self._fd, region.segment_length, offset=region.segment)
            self._maps[region.segment] = segment
        if isinstance(segment, LockedMap):
            self._opened.append(segment)
        offset = region.start - region.segment
        array = np.frombuffer(segment, np.uint8, region.length, offset)
        loan = _Loan(array, self._unseen)
        loan.slot = region.slot
        self._loans[region.slot] = loan
        return array

    def opened_segments(self) -> Sequence[LockedMap]:
        """Segments of a locked arena that regions were opened in, since the last call."""
        if not self._opened:
            return ()
        opened, self._opened = self._opened, []
        return opened

    def noted(self) -> int:
        """The number that the writer has noted last; 0 if it has not."""
        if self._ledger is None:
            self._ledger = mmap.mmap(self._fd, _LEDGER)
        (number,) = _NOTE.unpack_from(self._ledger, _LOCKED + 1)
        return int(number)

    def close(self) -> None:
        """Nobody waits for returned regions any more. Opened ones stay valid."""
        self._loans.clear()
        self._forked.clear()
        self._fences.clear()
        self._maps.clear()
        self._ledger = self._dropped = None
        self._forks.forget()

    def _unseen(self, loan: _Loan) -> None:
        if not _at_work:
            return  # the interpreter ends, and has taken this module's names away
        if os.getpid() != self._owner:
            return  # a forked copy is gone; the region is its owner's
        self._loans.pop(loan.slot, None)
        if self._forks.see(loan.slot):
            self._forked.add(loan.slot)
        else:
            self._return(loan.slot)

    def _return(self, slot: int) -> None:
        if self._dropped is not None:
            self._dropped.append(slot)  # a collection may come at any line: `open` does the rest
        elif (ledger := self._ledger) is not None:  # None: it was closed meanwhile
            ledger[slot] = _RETURNED

    def _return_read(self) -> None:
        """Return what no device can be reading any more."""
        if capturing():
            return
        fences, ledger = self._fences, self._ledger
        assert ledger is not None
        # A signal handler may raise right after a call. Slots must not be lost, or returned twice.
        if self._dropped:
            try:
                fence = Fence()
                dropped, self._dropped = self._dropped, []
                fences.append((fence, dropped))
            except NotNow:
                pass
        while fences and fences[0][0].passed():
            slots = fences[0][1]
            while slots:
                ledger[slots[-1]] = _RETURNED
                del slots[-1]
            fences.popleft()


#: becomes None when the interpreter ends
_at_work = True


def _address(array: Bytes) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
