"""Positions of all streams, and the position at which a worker reopens a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .deliveries import Delivery
from .events import AskLast
from .placement import Placement
from .streams import StreamPosition
from .task import Task
from .window import Window


class StreamPositions:
    """Positions of an epoch's streams. They move when a batch is delivered or skipped.

    Args:
        places: one for each stream; none where streams have no states.
        placement: which worker reads each of them.
        window: the tasks that were drawn and are not delivered.
        remember: tasks are needed to fetch their batches again.
    """

    def __init__(
        self, places: Iterable[StreamPosition], placement: Placement, window: Window, remember: bool
    ) -> None:
        self._places = [place.copy() for place in places]
        self._placement = placement
        self._window = window
        self._remember = remember
        #: streams whose worker has died; they are opened again with their next task
        self._astray: set[int] = set()
        #: streams that have no more data, each with the last mark from its worker
        self._over: dict[int, Any] = {}
        #: streams whose last states are awaited; None: nobody has asked, as the pass goes on
        self.awaited: set[int] | None = None
        #: those that have come
        self._last: dict[int, Any] = {}

    # --- reading ---------------------------------------------------------------------------------

    def now(self, undone: Iterable[Delivery] = ()) -> tuple[StreamPosition, ...]:
        """The position of each stream, as copies that do not move any more.

        Args:
            undone: the last deliveries, which do not count, the newest first.
        """
        before = {done.task.stream: done.place for done in undone}
        over = self._over.keys() - self._window.waiting_streams() - before.keys()
        return tuple(
            place.over(self._over[at]) if at in over else (before.get(at) or place).copy()
            for at, place in enumerate(self._places)
        )

    def copy_of(self, stream: int | None) -> StreamPosition | None:
        """A stream's position; None where streams have no states."""
        return self._places[stream].copy() if self._places and stream is not None else None

    def last_marks(self) -> dict[int, Any]:
        """By stream, the state in which the next epoch finds its dataset, if a worker sent it."""
        said = {stream: mark for stream, mark in self._over.items() if mark is not None}
        return said | self._last

    # --- moving ----------------------------------------------------------------------------------

    def grow(self, streams: int) -> None:
        """There are so many streams now: one is read again, from its beginning."""
        self._places += [StreamPosition() for _ in range(len(self._places), streams)]

    def begin(self, marks: Mapping[int, Any]) -> None:
        """Set the streams' states at the epoch's beginning, where they are known.

        A stream with a later state does not need it, and one that has ended must not have it.
        """
        for stream, mark in marks.items():
            if self._places and not self._places[stream].marked and not self._places[stream].ended:
                self._places[stream].mark = mark

    def deliver(self, task: Task, mark: Any) -> None:
        """A batch was delivered; ``mark`` is its stream's state after it."""
        if self._places and task.stream is not None:
            self._places[task.stream].deliver(task, mark, self._remember)

    def pass_over(self, step: int, count: int) -> None:
        """Skip ``count`` steps, beginning with ``step``. Workers are not notified."""
        if self._places and self._remember:
            for passed in range(step, step + count):
                self._places[passed % len(self._places)].given += 1

    def put_back(self, stream: int | None, place: StreamPosition | None) -> None:
        """Set a stream's position to an earlier one."""
        if place is not None and stream is not None:
            self._places[stream] = place

    def end(self, stream: int, mark: Any) -> None:
        """A stream has no more data; ``mark`` is the last state that its worker has sent."""
        self._over.setdefault(stream, mark)
        self._placement.ended(stream)

    def died(self, worker: int) -> None:
        """A worker has died: nobody reads its streams any more."""
        streams = range(len(self._places))
        self._astray.update(stream for stream in streams if self._placement.of(stream) == worker)
        self._placement.died(worker)

    def reopened(self, stream: int) -> StreamPosition | None:
        """The position at which a worker opens a stream whose worker has died; None: it has not."""
        if stream not in self._astray:
            return None
        self._astray.discard(stream)
        return self._beyond(stream)

    def leave(self, streams: int) -> None:
        """The pass is over, or given up; the last states of these streams are awaited."""
        self.awaited = set(range(streams)) - self.last_marks().keys()

    def asks(self, dead: int | None = None) -> list[AskLast]:
        """The requests for last states; when a worker has died, those that it cannot answer."""
        asked = [(self._placement.of(stream), stream) for stream in sorted(self.awaited or ())]
        return [AskLast(w, s, self.reopened(s)) for w, s in asked if dead in (None, w)]

    def come(self, stream: int, mark: Any) -> None:
        """A stream's last state has come."""
        assert self.awaited is not None, "it was asked for"
        self._last[stream] = mark
        self.awaited.discard(stream)

    def open_again(self, stream: int) -> StreamPosition | None:
        """The position at which the worker opens a stream with its next task; None: it has it open.

        Moves the stream to another worker first, if that has less to do.
        """
        place = self.reopened(stream)
        if place is not None:
            return place
        if stream in self._over or not self._placement.may_move(stream):
            return None
        place = self._beyond(stream)
        if not place.exact:
            return None
        self._placement.move(stream)
        return place

    def _beyond(self, stream: int) -> StreamPosition:
        place = self._window.beyond(self._places[stream], stream, self._remember)
        if stream in self._over:
            place = place.over(self._over[stream])
        return place.replayable()

    def validate(self) -> None:
        """Raise AssertionError unless no position is behind its mark and its tasks."""
        assert all(place.marked + len(place.since) <= place.given for place in self._places)
