"""Allocator that records which bytes of an arena are in use. Pure book-keeping, no memory.

It takes the first fit from the lowest address. So used bytes stay together, and bytes that were
used before, whose pages are warm, are used again first.
"""

from __future__ import annotations

from bisect import bisect_left, insort

#: everything is handed out in multiples of this, so that whole pages can be given back
PAGE = 4096


class Blocks:
    """The blocks of an address space that is made of segments; no block spans two of them."""

    def __init__(self) -> None:
        #: by start, lengths of the blocks that are in use; multiples of a page
        self._used: dict[int, int] = {}
        #: starts of the free blocks, ascending; no two touch within a segment
        self._free: list[int] = []
        #: by start, lengths of the free blocks
        self._lengths: dict[int, int] = {}
        #: by the segment's start: where it ends
        self._segments: dict[int, int] = {}
        #: by the segment's start: the end of what was ever used and not given back
        self._warm_ends: dict[int, int] = {}
        #: bytes in use, and the most that there were since `reset_peak` was called last
        self.in_use = 0
        self.peak = 0

    @property
    def warm(self) -> int:
        """Bytes that have pages behind them, at most."""
        return sum(end - start for start, end in self._warm_ends.items())

    def segment_of(self, start: int) -> tuple[int, int]:
        """Start and length of the segment that a block is in."""
        for segment in reversed(self._segments):  # they were added in ascending order
            if segment <= start:
                return segment, self._segments[segment] - segment
        raise KeyError(start)

    def extend(self, start: int, length: int) -> None:
        """Add a segment, above all others."""
        self._segments[start] = start + length
        self._warm_ends[start] = start
        self._put(start, length)

    def allocate(self, size: int) -> int | None:
        """The start of a block of at least that size, from 1; None if none is free."""
        length = -(-size // PAGE) * PAGE
        for at, start in enumerate(self._free):
            rest = self._lengths[start] - length
            if rest >= 0:
                break
        else:
            return None
        del self._lengths[start]
        if rest:
            self._free[at] = start + length
            self._lengths[start + length] = rest
        else:
            del self._free[at]
        self._used[start] = length
        self.in_use += length
        self.peak = max(self.peak, self.in_use)
        segment, _ = self.segment_of(start)
        self._warm_ends[segment] = max(self._warm_ends[segment], start + length)
        return start

    def free(self, start: int) -> None:
        length = self._used.pop(start)
        self.in_use -= length
        self._put(start, length)

    def reset_peak(self) -> None:
        self.peak = self.in_use

    def surplus(self, wanted: int) -> list[tuple[int, int]]:
        """Free ends of segments whose pages can go, until no more than so many bytes are warm.

        They count as cold from now on: the caller gives their pages back.
        """
        found = []
        over = self.warm - wanted
        for segment in reversed(list(self._segments)):
            end = self._warm_ends[segment]
            at = bisect_left(self._free, end) - 1
            if over <= 0 or at < 0 or end == segment:
                continue
            start = self._free[at]
            if start < segment or start + self._lengths[start] < end:
                continue  # its end is in use
            found.append((start, end - start))
            self._warm_ends[segment] = start
            over -= end - start
        return found

    def _put(self, start: int, length: int) -> None:
        """Add a free block; it becomes one with those that it touches."""
        segment, whole = self.segment_of(start)
        at = bisect_left(self._free, start)
        after = self._free[at] if at < len(self._free) else None
        if after == start + length and after < segment + whole:
            length += self._lengths.pop(after)
            del self._free[at]
        before = self._free[at - 1] if at else None
        if before is not None and before >= segment and before + self._lengths[before] == start:
            self._lengths[before] += length
            return
        insort(self._free, start)
        self._lengths[start] = length
