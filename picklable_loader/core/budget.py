"""The prefetch budget: how far workers fetch ahead of the consumer, in tasks and in bytes.

In-order delivery needs a deep window. While the first task is slow, the other workers fetch later
tasks, and idle once the window is full. The schedule then lets the budget grow, up to ``most``.
If batches are so small that a deep window costs nothing, any other idle worker also makes it grow:
the consumer is fast, but does not wake up at once.

Each reason has a bound in bytes: 512 MiB for a slow first task, 16 MiB for any other idle worker.
A grown budget, times the largest batch so far, stays within the bound. When later batches turn out
to be larger, the budget falls back.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """How tasks are sent and batches delivered. No field changes the contents of a batch."""

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
    #: so do workers (prefetch_budget=1, and a custom sampler)
    on_demand: bool = False


#: reasons to grow, each by its bound in bytes: a slow head, and whatever else lets a worker idle
_SLOW_HEAD = 512 * 1024 * 1024
_IDLE = 16 * 1024 * 1024

#: under a bound in bytes, how much larger the next batches may be than all before, to keep to it
_TIMES_LARGER = 4


class Budget:
    """How many tasks the window may hold.

    Args:
        policy: the first budget, and how far it may grow.
        largest: bytes of the largest batch so far; 0: none has come.
    """

    def __init__(self, policy: Policy, largest: int = 0) -> None:
        self.tasks = policy.budget
        self.largest = largest
        self._policy = policy
        #: by reason, how far it has grown
        self._grown: dict[int, int] = {}

    def note(self, size: int) -> None:
        """Take note that a batch of ``size`` bytes has arrived."""
        if size > self.largest:
            self.largest = size
            fitting = [min(grown, bound // size) for bound, grown in self._grown.items()]
            self.tasks = max([self._policy.budget, *fitting])

    def grow_behind_a_head(self) -> bool:
        """Grow because workers idle: the window is full and its first task slow. True if grown."""
        return self._grow(_SLOW_HEAD)

    def grow_for_an_idler(self) -> bool:
        """Grow because a worker has idled for any other reason. True if grown."""
        return self._grow(_IDLE)

    def _grow(self, bound: int) -> bool:
        grown = self.tasks + self._policy.workers
        if self.tasks >= self._policy.most or grown * self.largest > bound:
            return False
        self.tasks = self._grown[bound] = min(grown, self._policy.most)
        return True

    def has_room(self, held: int, under_way: int) -> bool:
        """Whether another task keeps to the bound in bytes: one batch a worker above it at most.

        The sizes of batches under way are unknown. Each worker may have one task, as long as the
        ``held`` bytes are below the bound. Further tasks wait for their workers. They are allowed
        only if they all fit at four times the size of the largest batch so far.
        """
        most = self._policy.bytes
        if most is None:
            return True
        waiting = under_way + 1 - self._policy.workers
        if waiting <= 0:
            return held < most
        expected = _TIMES_LARGER * self.largest
        return expected > 0 and held + waiting * expected < most
