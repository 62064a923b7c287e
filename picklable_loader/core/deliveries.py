"""The last deliveries of a pass. An interruption takes one back, and a state may be behind some."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from ..errors import UsageError
from .streams import StreamPosition
from .task import Task


class Delivery(NamedTuple):
    """A step that was delivered, or passed over as it had no batch."""

    #: `Schedule.delivered` before it
    delivered: int
    task: Task
    #: its stream's position before it; None where streams have no states
    position: StreamPosition | None
    #: the consumer has got a batch, or what fetching it raised
    counts: bool
    #: `Deliveries.newest` before it
    newest: int


_counts: Callable[[Delivery], bool] = attrgetter("counts")


def check_behind(behind: int, known: int) -> None:
    """Raise UsageError for a state behind more deliveries than the ``known`` ones."""
    if behind > known:
        raise UsageError(
            f"behind={behind} is more than the {known} last batches that this pass remembers: use "
            f"DataLoader(..., remember={behind}). A pass remembers none from before it began, was "
            "loaded, skipped batches, or was flushed"
        )


class Deliveries:
    """The last deliveries of a pass, and the steps without a batch between them.

    Args:
        remember: how many deliveries, from 1.
        newest: see below.
    """

    def __init__(self, remember: int, newest: int) -> None:
        self._remember = remember
        #: the step that the consumer has got last; -1: none
        self.newest = newest
        # No count of them besides: a signal handler may raise between any two lines.
        self._last: deque[Delivery] = deque()

    def __len__(self) -> int:
        """How many deliveries are remembered."""
        return min(self._remember, sum(map(_counts, self._last)))

    def add(self, delivery: Delivery) -> None:
        """A step is about to be delivered or passed over; the oldest ones are forgotten."""
        last = self._last
        last.append(delivery)
        if delivery.counts:
            self.newest = delivery.task.step
        if len(last) > self._remember:
            for _ in range(sum(map(_counts, last)) - self._remember):
                while not last.popleft().counts:
                    pass

    def last(self, count: int) -> list[Delivery]:
        """The last ``count`` deliveries and the steps between them, the newest first."""
        found = []
        for delivery in reversed(self._last):
            if not count:
                break
            found.append(delivery)
            count -= delivery.counts
        return found

    def beyond(self, handed_over: int) -> Delivery | None:
        """The newest one, unless the consumer has it; see `Interrupted`."""
        if not self._last or self._last[-1].delivered < handed_over:
            return None
        return self._last[-1]

    def take_back(self, last: Delivery) -> None:
        """Forget the newest one, which this is."""
        self.newest = last.newest
        self._last.pop()

    def forget(self) -> None:
        """Forget all of them: no state can be behind a skip."""
        self._last.clear()
