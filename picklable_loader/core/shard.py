"""The share of one rank in what all ranks read, as a pure function of their numbers.

Map-style data: all ranks have one order, and one plan of *global* steps. A global step takes
``world`` times as many items of the order as a loader on its own takes; item ``i`` of these goes to
rank ``i % world``, as with torch's DistributedSampler. So a position is the same on every rank.

Iterable-style data: all ranks have one list of streams. Stream ``i`` goes to rank ``i % world``, so
a position is that of each stream, whichever rank reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Literal

Tail = Literal["pad", "drop", "uneven"]


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank among all that share an order."""

    #: from 0 to ``world - 1``
    rank: int = 0
    #: number of ranks, from 1
    world: int = 1
    #: what becomes of the last items, which are fewer than one for each rank. "pad": items are
    #: repeated, so that all ranks have as many; "drop": nobody has them; "uneven": the first ranks
    #: have one more
    tail: Tail = "pad"

    def of(self, items: Sequence[Any], first: Callable[[int], list[Any]]) -> list[Any]:
        """This rank's share of a global step.

        Args:
            items: those of all ranks; their number is a multiple of ``world``, but at the end.
            first: gives the order's first so many items, as far as these can be had again.
        """
        over = len(items) % self.world
        if over and self.tail == "pad":
            missing = self.world - over
            padding = first(missing) or list(items)
            items = [*items, *islice(cycle(padding), missing)]
        elif over and self.tail == "drop":
            items = items[: len(items) - over]
        return list(items[self.rank :: self.world])

    def count(self, left: int) -> int:
        """Items of this rank, of so many that are left of the order."""
        if self.tail == "uneven":
            return max(0, left - self.rank + self.world - 1) // self.world
        return (left + (self.world - 1) * (self.tail == "pad")) // self.world


#: a loader on its own
ALONE = Shard()


@dataclass(frozen=True, slots=True)
class StreamShare:
    """One rank's streams, of those that all ranks have.

    Within a rank streams are counted from 0: its stream 1 is stream ``rank + world`` of all.
    """

    shard: Shard
    #: streams of all ranks together
    total: int

    @property
    def own(self) -> range:
        """The numbers, among all streams, of those that this rank reads."""
        return range(self.shard.rank, self.total, self.shard.world)

    def __len__(self) -> int:
        return len(self.own)

    def number(self, index: int) -> int:
        """The number, among all streams, of the stream that is ``index`` within this rank.

        After its own ones come those that it reads again while other ranks have more: first its
        own once more, then those of others.
        """
        own, count = self.own, len(self.own)
        if index < 2 * count:
            return own[index % count]
        others = (number for number in range(self.total) if number not in own)
        return next(islice(others, index - 2 * count, None))

    def batches(self, left: Sequence[int]) -> int | None:
        """Batches that this rank delivers, of those ``left`` by stream of all ranks.

        None: as many as its streams have.
        """
        shard = self.shard
        if shard.world == 1 or shard.tail == "uneven":
            return None
        ranks = [sum(left[rank :: shard.world]) for rank in range(shard.world)]
        return min(ranks) if shard.tail == "drop" else max(ranks)
