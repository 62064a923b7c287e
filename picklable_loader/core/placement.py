"""Assignment of streams to workers, and when a stream moves to another worker.

Every stream is assigned to a worker, at first to ``stream % workers`` as under torch. With more
streams than workers, some workers may have more to do than others. The schedule may then move a
stream, by its state, if that lessens the busiest worker's work by a tenth at least.

Moving a stream has an unknown cost: its state is sent, and the other worker opens the dataset.
So each move doubles the number of answers to observe before the next one (the *patience*). The
number of moves is therefore logarithmic in the number of batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set

#: at first, how many batches of each stream are looked at before one may move
_PATIENCE = 4

#: the busiest worker's share of its work after a move, at most, for the move to be worth it
_WORTH = 0.9

#: batches over which the cost of a stream's is averaged
_RECENT = 16


class Placement:
    """The worker that each stream is assigned to.

    Args:
        workers: how many there are, from 1.
        streams: how many, from 0.
        moving: streams may move, if there are more of them than workers.
    """

    def __init__(self, workers: int, streams: int, moving: bool) -> None:
        self.moving = moving and streams > workers
        self._workers = workers
        #: without those that are read again
        self.streams = streams
        #: streams that have moved, each with the worker that reads it now
        self._moved: dict[int, int] = {}
        #: by stream, tasks under way; counted only if streams may move
        self._under_way: Counter[int] = Counter()
        #: by stream, what a batch costs, and how many have come
        self._costs: dict[int, float] = {}
        self._came: Counter[int] = Counter()
        #: answers since the last move, and how many it takes to the next
        self._answers = 0
        self._patience = _PATIENCE * streams
        #: the stream that is to move as soon as possible, and the worker it goes to
        self._wish: tuple[int, int] | None = None

    def of(self, stream: int) -> int:
        """The worker that reads a stream."""
        return self._moved.get(stream, stream % self._workers)

    def sent(self, stream: int) -> None:
        """A task of a stream is under way."""
        self._under_way[stream] += 1

    def answered(self, stream: int, cost: float) -> None:
        """A task of a stream has come; ``cost`` is its worker's time, 0 if not known."""
        self._under_way[stream] -= 1
        if cost:
            self._came[stream] += 1
            known = self._costs.get(stream, 0.0)
            share = 1 / min(self._came[stream], _RECENT)
            self._costs[stream] = known + (cost - known) * share
        self._answers += 1
        if self._answers % self.streams == 0 and self._answers >= self._patience:
            self._consider()

    def least_busy(
        self,
        steps: Mapping[int, int],
        owed: Mapping[int | None, int],
        stuck: Set[int | None],
        budget: int,
    ) -> int | None:
        """The stream to draw a task from, whose worker has fewest; None: each has its share.

        Args:
            steps: by stream, its next step, if there is one.
            owed: by stream, tasks that are still to be answered.
            stuck: streams that cannot go on.
            budget: tasks that all workers may have together.
        """
        load: Counter[int] = Counter()
        for stream, count in owed.items():
            if stream is not None and stream not in stuck:
                load[self.of(stream)] += count
        share = max(1, budget // len(set(map(self.of, steps))))
        found = [(load[self.of(s)], step, s) for s, step in steps.items() if s not in stuck]
        fewest, _, least = min(found, default=(share, 0, None))
        return least if fewest < share else None

    def ended(self, stream: int) -> None:
        """A stream costs nothing any more."""
        self._costs[stream] = 0.0

    def died(self, worker: int) -> None:
        """Nothing is under way at a worker any more."""
        for stream in self._under_way:
            if self.of(stream) == worker:
                self._under_way[stream] = 0

    def has_room(self, stream: int) -> bool:
        """Whether the stream's next task may be sent: a stream moves between two tasks."""
        return not (self._is_to_move(stream) and self._under_way[stream])

    def may_move(self, stream: int) -> bool:
        """Whether the stream is to move to another worker, with none of its tasks under way."""
        return self._is_to_move(stream) and not self._under_way[stream]

    def move(self, stream: int) -> None:
        """Assign a stream to the less busy worker that was chosen for it."""
        assert self._wish is not None and self._wish[0] == stream, "it may not move"
        self._moved[stream] = self._wish[1]
        self._wait_longer()

    def _is_to_move(self, stream: int) -> bool:
        return self._wish is not None and self._wish[0] == stream

    def _consider(self) -> None:
        if self._answers >= 2 * self._patience:  # it could not move: its state is never known
            self._wait_longer()
            return
        work = dict.fromkeys(range(self._workers), 0.0)
        for stream, cost in self._costs.items():
            work[self.of(stream)] += cost
        full, empty = max(work, key=work.__getitem__), min(work, key=work.__getitem__)

        def left(stream: int) -> float:
            return max(work[full] - self._costs[stream], work[empty] + self._costs[stream])

        self._wish = None
        best = min((s for s in self._costs if self.of(s) == full), key=left, default=None)
        if best is not None and left(best) <= _WORTH * work[full]:
            self._wish = best, empty

    def _wait_longer(self) -> None:
        self._wish, self._answers = None, 0
        self._patience *= 2
