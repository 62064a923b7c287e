"""The share of one rank in a step of all ranks, as a pure function of their numbers.

All ranks have one order, and one plan of *global* steps. A global step takes ``world`` times as
many items of the order as a loader on its own takes; item ``i`` of these goes to rank
``i % world``, as with torch's DistributedSampler. So a position is the same on every rank.
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
