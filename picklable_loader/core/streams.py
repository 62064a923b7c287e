"""Streams: replicas of a dataset that stand somewhere, each at a place of its own.

A stream is one replica of an iterable-style dataset with its iteration, or of a map-style dataset
that has a state. It is tied to no process. The schedule moves its place when a batch of it is
delivered, and only then; what the worker has said of its state by that time is the *mark*.

Torch takes the batches of an iterable-style dataset from its workers in turn, and passes over those
that have no more. Batch ``n`` of stream ``s`` is step ``n * streams + s`` here. In ascending order
these are torch's batches, whichever stream ends when; steps of streams that have ended are void.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import CannotSaveError
from .task import Task

__all__ = ["Marks", "Place", "StreamPlan"]

#: states of streams, by their numbers; what they are is no matter of the core's
Marks = dict[int, Any]


@dataclass(slots=True)
class Place:
    """Where a stream stands."""

    #: batches that were delivered from it in this epoch; one that raised counts
    given: int = 0
    #: it has no more than that
    ended: bool = False
    #: its state after ``marked`` of them; None: it is to begin the epoch anew
    mark: Any = None
    #: at most ``given``; what comes in between is fetched again by whoever goes on
    marked: int = 0
    #: map-style: the tasks in between
    since: list[Task] = field(default_factory=list)

    def deliver(self, task: Task, mark: Any, remember: bool) -> None:
        """A batch of it was delivered.

        Args:
            task: which.
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
        """Its state is known where it stands: nothing has to be fetched again."""
        known = self.mark is not None and not isinstance(self.mark, CannotSaveError)
        return known and self.marked == self.given

    def replayable(self) -> Place:
        """The same place, from the start if its state could not be saved."""
        if not isinstance(self.mark, CannotSaveError):
            return self
        return self.copy(mark=None, marked=0)

    def over(self, mark: Any) -> Place:
        """The same place, now that it is known to be the last one.

        Args:
            mark: the stream's state at its end; None if it was not taken.
        """
        if mark is None:
            return self.copy(ended=True)
        return Place(self.given, True, mark, self.given)

    def copy(self, **changes: Any) -> Place:
        """One that does not move with this one."""
        return replace(self, **{"since": list(self.since), **changes})


class StreamPlan:
    """The tasks of an epoch of iterable-style data.

    Args:
        places: where each stream stands.
        indices: what every task asks for.
    """

    #: no code of the user's gives the order
    custom = False
    #: each stream has a number of its own for its next batch
    draws_ahead = True
    #: nothing is ever given back: whoever goes on begins with the places
    backlog: tuple[Task, ...] = ()

    def __init__(self, places: Sequence[Place], indices: Any) -> None:
        self._indices = indices
        self.restart((), places)

    def restart(self, tasks: Iterable[Task], places: Sequence[Place]) -> None:
        """Begin where the streams are; tasks that were drawn are drawn again.

        Args:
            tasks: those; their streams know them.
            places: the position of each stream.
        """
        #: By stream, the number of its next batch. One that has ended is asked once more, so that
        #: its dataset is put where the next epoch finds it; but it is not replayed for that.
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
