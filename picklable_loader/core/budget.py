"""Budget: how far ahead of the consumer is fetched, in tasks and in bytes.

In-order delivery needs a deep window: while the head of the line is slow, everybody else works on
what comes after it, and stands idle once the window is full. So the budget may grow (``most``)
whenever that is seen to happen. Where batches are so small that a deep window costs nothing, it
also grows when a worker was idle for another reason: the consumer is fast, but not awake at once.

What has grown for either reason counts only as far as that many batches, each as large as the
largest so far, keep to a bound of that reason: when batches turn out to be larger later, the budget
falls back.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Budget", "Policy"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How tasks are handed out and batches delivered; none of it changes what a batch holds."""

    #: how many workers there are, from 1
    workers: int = 1
    #: the window holds no more tasks than this at first, from 1
    budget: int = 1
    #: it may grow to this many while workers idle
    most: int = 0
    #: nothing is sent while batches that wait for delivery take this many bytes; None: no bound
    bytes: int | None = None
    #: False: batches are delivered as they arrive
    in_order: bool = True
    #: streams may move to workers that are idle
    moving: bool = False
    #: workers that may die of a task, from 1, before it is given up
    most_deaths: int = 3
    #: draw only when the consumer asks (num_workers=0)
    lazy: bool = False


#: reasons to grow, each by its bound in bytes: a slow head, and whatever else lets a worker idle
_SLOW_HEAD = 512 * 1024 * 1024
_IDLE = 16 * 1024 * 1024

#: under a bound in bytes, how much larger the next batches may be than all before, to keep to it
_TIMES_LARGER = 4


class Budget:
    """How many tasks the window may hold.

    Args:
        policy: what it begins with, and how far it may grow.
        largest: bytes of the largest batch so far; 0: none has come.
    """

    def __init__(self, policy: Policy, largest: int = 0) -> None:
        self.tasks = policy.budget
        self.largest = largest
        self._policy = policy
        #: by reason, how far it has grown
        self._grown: dict[int, int] = {}

    def note(self, size: int) -> None:
        """A batch of so many bytes has come."""
        if size > self.largest:
            self.largest = size
            fitting = [min(grown, bound // size) for bound, grown in self._grown.items()]
            self.tasks = max(self._policy.budget, *fitting, 0)

    def grow_behind_a_head(self) -> bool:
        """Workers idle, the window being full and its head slow. Tells whether that changed it."""
        return self._grow(_SLOW_HEAD)

    def grow_for_an_idler(self) -> bool:
        """A worker has idled for any other reason."""
        return self._grow(_IDLE)

    def _grow(self, bound: int) -> bool:
        grown = self.tasks + self._policy.workers
        if self.tasks >= self._policy.most or grown * self.largest > bound:
            return False
        self.tasks = self._grown[bound] = min(grown, self._policy.most)
        return True

    def has_room(self, held: int, under_way: int) -> bool:
        """Another task keeps to the bound in bytes: one batch a worker above it at most.

        Nobody knows how large the batches are that are under way. Each worker may have one, as long
        as there is room at all. More, which wait for their workers, may be only if they all fit,
        though they were a few times as large as the largest so far.
        """
        most = self._policy.bytes
        if most is None:
            return True
        waiting = under_way + 1 - self._policy.workers
        if waiting <= 0:
            return held < most
        expected = _TIMES_LARGER * self.largest
        return expected > 0 and held + waiting * expected < most
