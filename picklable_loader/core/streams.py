"""Positions of streams, and the plan that draws tasks from them in torch's order.

A stream is one replica of an iterable-style dataset with its iteration, or of a map-style dataset
that has a state. It belongs to no process. The schedule moves its position when one of its batches
is delivered, and only then. The *mark* is the stream's state that its worker has sent by that time.

Torch takes the batches of an iterable-style dataset from its workers in turn, and skips workers
that have no more. Batch ``n`` of stream ``s`` is step ``n * streams + s`` here. In ascending order
these are torch's batches, whichever stream ends when; steps of streams that have ended are void.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import CannotSaveError
from .task import Task

#: states of streams, by their numbers; the core never looks into one
Marks = dict[int, Any]


@dataclass(slots=True)
class StreamPosition:
    """The position of a stream."""

    #: batches that were delivered from it in this epoch; one that raised counts
    given: int = 0
    #: it has no more than that
    ended: bool = False
    #: its state after ``marked`` of them; None: it is to begin the epoch anew
    mark: Any = None
    #: at most ``given``; the batches in between are fetched again after a resume
    marked: int = 0
    #: map-style: the tasks in between
    since: list[Task] = field(default_factory=list)

    def deliver(self, task: Task, mark: Any, remember: bool) -> None:
        """A batch of the stream was delivered.

        Args:
            task: the batch's.
            mark: the stream's state after it; None if it was not taken.
            remember: the task is needed to fetch the batch again.
        """
        self.given += 1
        if isinstance(mark, CannotSaveError) and remember:
            # To go on without a state, the tasks are needed; but it cannot be saved any more.
            self.mark = mark if self.marked == 0 else self.mark
            self.since.append(task)
        elif mark is not None:
            self.mark, self.marked = mark, self.given
            self.since.clear()
        elif remember:
            self.since.append(task)

    @property
    def exact(self) -> bool:
        """Whether the state at this very position is known: nothing has to be fetched again."""
        known = self.mark is not None and not isinstance(self.mark, CannotSaveError)
        return known and self.marked == self.given

    def replayable(self) -> StreamPosition:
        """The same position, reached from the start if the state could not be saved."""
        if not isinstance(self.mark, CannotSaveError):
            return self
        return self.copy(mark=None, marked=0)

    def over(self, mark: Any) -> StreamPosition:
        """The same position, now that it is known to be the last one.

        Args:
            mark: the stream's state at its end; None if it was not taken.
        """
        if mark is None:
            return self.copy(ended=True)
        return StreamPosition(self.given, True, mark, self.given)

    def copy(self, **changes: Any) -> StreamPosition:
        """A position that does not move with this one."""
        copy = StreamPosition(self.given, self.ended, self.mark, self.marked, list(self.since))
        return replace(copy, **changes) if changes else copy


class StreamPlan:
    """The tasks of an epoch of iterable-style data.

    Args:
        places: the position of each stream.
        indices: the wish of every task, for example ``[None, None]`` for two samples.
    """

    #: no code of the user's gives the order
    custom = False
    #: each stream has a number of its own for its next batch
    draws_ahead = True
    #: nothing is ever given back: a resume begins with the positions
    backlog: tuple[Task, ...] = ()

    def __init__(self, places: Sequence[StreamPosition], indices: Any) -> None:
        self._indices = indices
        self.restart((), places)

    def restart(self, tasks: Iterable[Task], places: Sequence[StreamPosition]) -> None:
        """Begin at the streams' positions; tasks that were drawn are drawn again.

        Args:
            tasks: tasks that were drawn; ignored, since the positions give them again.
            places: the position of each stream.
        """
        #: By stream, the number of its next batch. One that has ended is asked once more, which
        #: gives its dataset the state for the next epoch; but it is not replayed for that.
        self._next = {
            at: place.given
            for at, place in enumerate(places)
            if place.mark is not None or not place.ended
        }
        self._streams = len(places)
        self.next_step = self.position = 0

    def draw(self) -> Task:
        """The next task.

        Raises:
            StopIteration: every stream has ended.
        """
        if not self._next:
            raise StopIteration
        return self.draw_from(min(self._next, key=self._step_of))

    def next_steps(self) -> dict[int, int]:
        """By stream that has not ended, the step of its next batch."""
        return {stream: self._step_of(stream) for stream in self._next}

    def draw_from(self, stream: int) -> Task:
        """The next task of a stream."""
        task = Task(self._step_of(stream), self._indices, 0, stream)
        self._next[stream] += 1
        return task

    def _step_of(self, stream: int) -> int:
        return self._next[stream] * self._streams + stream

    def end(self, stream: int) -> None:
        """A stream has no more data."""
        self._next.pop(stream, None)

    def advance(self, steps: int) -> int:
        """No batch can be passed over without fetching it."""
        return 0

    def remaining(self) -> None:
        """Nobody knows how many batches there are."""
