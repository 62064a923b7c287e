"""Homes: which worker reads each stream, and when a stream moves to another one.

Every stream has a home, at first worker ``stream % workers`` as under torch. With more streams than
workers some homes may turn out to have more to do than others. Then a stream may move, by its
state: to a worker that has been idle for long, from one that is busy with another stream.

To move costs time: the state is sent, and the dataset is opened there. How much, nobody knows
beforehand. So the *patience* that a move takes doubles with each one: there are few of them,
however costly, and what they settle on stays.
"""

from __future__ import annotations

from collections import Counter

__all__ = ["Homes"]

#: tasks that a worker may have when another is idle: one at hand, and the next
_AT_HAND = 2

#: at first, how many answers of others a worker is idle for, each time that it is the one to move
_PATIENCE = 8


class Homes:
    """Which worker reads each stream.

    Args:
        workers: how many there are, from 1.
        moving: streams may move.
    """

    def __init__(self, workers: int, moving: bool) -> None:
        self.moving = moving
        self._workers = workers
        #: streams that do not live where torch has them
        self._moved: dict[int, int] = {}
        #: tasks under way, by stream and by worker; kept only if streams may move
        self._by_stream: Counter[int] = Counter()
        self._by_worker: Counter[int] = Counter()
        #: by worker, how many answers of others it was idle for, less those that it was not
        self._idle_for = [0] * workers
        self._patience = _PATIENCE

    def of(self, stream: int) -> int:
        """The worker that reads a stream."""
        return self._moved.get(stream, stream % self._workers)

    def sent(self, stream: int) -> None:
        """A task of a stream is under way."""
        self._by_stream[stream] += 1
        self._by_worker[self.of(stream)] += 1

    def answered(self, stream: int) -> None:
        """A task of a stream is not under way any more."""
        home = self.of(stream)
        self._by_stream[stream] -= 1
        self._by_worker[home] -= 1
        for worker in range(self._workers):
            if worker != home:
                change = -1 if self._by_worker[worker] else 1
                self._idle_for[worker] = max(0, self._idle_for[worker] + change)

    def died(self, worker: int) -> None:
        """Nothing is under way at a worker any more."""
        self._by_worker[worker] = self._idle_for[worker] = 0
        for stream in self._by_stream:
            if self.of(stream) == worker:
                self._by_stream[stream] = 0

    def has_room(self, stream: int) -> bool:
        """A stream's home may be given its next task already.

        While another worker is idle it may not be given many: a stream moves between two tasks.
        """
        few = self._by_worker[self.of(stream)] < _AT_HAND
        return few or not self.moving or self._idlest() is None

    def may_move(self, stream: int) -> bool:
        """A stream would be better off elsewhere, and none of its tasks is under way."""
        if not self.moving or self._by_stream[stream] or not self._by_worker[self.of(stream)]:
            return False
        return self._idlest() is not None

    def move(self, stream: int) -> None:
        """A stream goes to the worker that was idle for longest."""
        worker = self._idlest()
        assert worker is not None, "it may not move"
        self._moved[stream] = worker
        self._patience *= 2
        self._idle_for = [0] * self._workers

    def _idlest(self) -> int | None:
        longest = max(self._idle_for)
        if longest < self._patience:
            return None
        worker = self._idle_for.index(longest)
        return None if self._by_worker[worker] else worker
