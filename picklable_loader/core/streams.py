"""Positions of streams, and the plan that draws tasks from them in torch's order.

A stream is one replica of an iterable-style dataset with its iteration, or of a map-style dataset
that has a state. It belongs to no process. The schedule moves its position when one of its batches
is delivered, and only then. With it goes the stream's state that its worker has sent by that time.

Torch takes the batches of an iterable-style dataset from its workers in turn, and skips workers
that have no more. Batch ``n`` of stream ``s`` is step ``n * streams + s`` here. In ascending order
these are torch's batches, whichever stream ends when; steps of streams that have ended are void.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ..errors import CannotSaveError
from .shard import ALONE, StreamShare
from .task import Task

#: states of streams, by their numbers; the core never looks into one
StreamStates = dict[int, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """The checksum of a batch, in the place of a state: its stream can only be replayed."""

    checksum: int


@dataclass(slots=True)
class StreamPosition:
    """The position of a stream."""

    #: its batches that were delivered or skipped in this epoch; one that raised counts
    given: int = 0
    #: it has no more than that
    ended: bool = False
    #: its state after ``state_at`` of them; None: it is to begin the epoch anew
    state: Any = None
    #: at most ``given``; the batches in between are fetched again after a resume
    state_at: int = 0
    #: map-style: the tasks in between
    since: list[Task] = field(default_factory=list)
    #: the number of one of these, from 1, and its checksum, with which a replay is compared
    seen: tuple[int, int] | None = None

    def deliver(self, task: Task, state: Any, remember: bool) -> None:
        """A batch of the stream was delivered.

        Args:
            task: the batch's.
            state: the stream's state after it, or the batch's checksum; None if none was taken.
            remember: the task is needed to fetch the batch again.
        """
        self.given += 1
        if isinstance(state, CannotSaveError) and remember:
            # To go on without a state, the tasks are needed; but it cannot be saved any more.
            self.state = state if self.state_at == 0 else self.state
            self.since.append(task)
        elif isinstance(state, Seen):
            self.seen = self.given, state.checksum
        elif state is not None:
            self.state, self.state_at, self.seen = state, self.given, None
            self.since.clear()
        elif remember:
            self.since.append(task)

    @property
    def exact(self) -> bool:
        """Whether the state at this very position is known: nothing has to be fetched again."""
        known = self.state is not None and not isinstance(self.state, CannotSaveError)
        return known and self.state_at == self.given

    @property
    def from_start(self) -> bool:
        """A resume begins the epoch anew, and fetches the batches that were given again."""
        return not (self.state_at or self.ended)

    def replayable(self) -> StreamPosition:
        """The same position, reached from the start if the state could not be saved."""
        if not isinstance(self.state, CannotSaveError):
            return self
        return self.copy(state=None, state_at=0)

    def over(self, state: Any) -> StreamPosition:
        """The same position, now that it is the last one; None: its state was not taken."""
        if state is None:
            return self.copy(ended=True)
        return StreamPosition(self.given, True, state, self.given)

    def copy(self, **changes: Any) -> StreamPosition:
        """A position that does not move with this one."""
        since = list(self.since)
        copy = StreamPosition(self.given, self.ended, self.state, self.state_at, since, self.seen)
        return replace(copy, **changes) if changes else copy


#: Steps of streams that are read again: above all others, ascending from stream to stream.
_REPEATED = 2**60
_FROM_ONE_TO_THE_NEXT = 2**32


class StreamPlan:
    """The tasks of an epoch of iterable-style data.

    Args:
        positions: the position of each stream.
        indices: what every task asks for, for example ``[None, None]`` for two samples.
        share: the rank's streams; after these, ``positions`` has those that it reads again.
        batches: see `Cursor`.
    """

    #: no code of the user's gives the order
    custom = False
    #: each stream has a number of its own for its next batch
    draws_ahead = True
    #: nothing is ever given back: a resume begins with the positions
    backlog: tuple[Task, ...] = ()

    def __init__(
        self,
        positions: Sequence[StreamPosition],
        indices: Any,
        share: StreamShare | None = None,
        batches: int | None = None,
    ) -> None:
        self._indices = indices
        self._share = share or StreamShare(ALONE, len(positions))
        self.batches = batches
        #: tasks that are drawn at most; None: each stream is read to its end
        self.limit = batches if self._share.shard.tail == "drop" else None
        #: streams of this rank, without those that are read again
        self.streams = len(self._share)
        self.restart((), positions)

    def restart(self, tasks: Iterable[Task], positions: Sequence[StreamPosition]) -> None:
        """Begin at the streams' positions, which give the tasks again that were drawn."""
        #: By stream, the number of its next batch. One that has ended is asked once more, which
        #: gives its dataset the state for the next epoch; but it is not replayed for that.
        self._next = {
            at: position.given
            for at, position in enumerate(positions[: self.streams])
            if position.state is not None or not position.ended
        }
        #: By stream that is read again and has not ended, the number of its next batch. The first
        #: one is read to its end before the next one goes on.
        self._again = {
            at: positions[at].given
            for at in range(self.streams, len(positions))
            if not positions[at].ended
        }
        #: streams of the rank, and those that it has begun to read again
        self._begun = len(positions)
        #: tasks that may be drawn of the latter
        self._more = 0

    def draw(self) -> Task:
        """The next task.

        Raises:
            StopIteration: every stream has ended.
        """
        if self._next:
            return self.draw_from(min(self._next, key=self._step_of))
        for stream in self.next_steps():
            return self.draw_from(stream)
        raise StopIteration

    def next_steps(self) -> dict[int, int]:
        """By stream that has not ended, the step of its next batch."""
        streams = self._next or (dict(islice(self._again.items(), 1)) if self._more else {})
        return {stream: self._step_of(stream) for stream in streams}

    def draw_from(self, stream: int) -> Task:
        """The next task of a stream."""
        task = Task(self._step_of(stream), self._indices, 0, stream)
        if stream in self._next:
            self._next[stream] += 1
        else:
            self._again[stream] += 1
            self._more -= 1
        return task

    def _step_of(self, stream: int) -> int:
        if stream in self._next:
            return self._next[stream] * self.streams + stream
        before = (stream - self.streams) * _FROM_ONE_TO_THE_NEXT
        return _REPEATED + before + self._again[stream]

    @property
    def cut(self) -> bool:
        """The streams of this rank have not been read to their ends."""
        return bool(self._next)

    def end(self, stream: int) -> None:
        """A stream has no more data."""
        self._next.pop(stream, None)
        self._again.pop(stream, None)

    def repeat(self, made: int) -> int:
        """Read streams again if other ranks have more batches; all of this rank's have ended.

        So many batches were delivered, or are in the window. Returns how many streams have begun by
        then; 0: none is read again.
        """
        self._more = (self.batches or 0) - made
        if self._more <= 0:
            return 0
        if not self._again:
            if self._begun == self.streams + self._share.total:
                return 0  # nobody has any data
            self._again = {self._begun: 0}
            self._begun += 1
        return self._begun

    def advance(self, steps: int) -> int:
        """No batch can be passed over without fetching it."""
        return 0

    def remaining(self) -> None:
        """Nobody knows how many batches there are."""
