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
        positions: one for each stream; none where streams have no states.
        placement: which worker reads each of them.
        window: the tasks that were drawn and are not delivered.
        remember: tasks are needed to fetch their batches again.
    """

    def __init__(
        self,
        positions: Iterable[StreamPosition],
        placement: Placement,
        window: Window,
        remember: bool,
    ) -> None:
        self._positions = [each.copy() for each in positions]
        self._placement = placement
        self._window = window
        self._remember = remember
        #: streams whose worker has died; they are opened again with their next task
        self._astray: set[int] = set()
        #: streams that have no more data, each with the last state from its worker
        self._over: dict[int, Any] = {}
        #: streams whose last states are awaited; None: nobody has asked, as the pass goes on
        self.awaited: set[int] | None = None
        #: those that have come
        self._last: dict[int, Any] = {}

    # --- reading ---------------------------------------------------------------------------------

    def now(self, undone: Iterable[Delivery] = ()) -> tuple[StreamPosition, ...]:
        """The position of each stream, as copies that do not move any more.

        The deliveries that are ``undone`` do not count: the last ones, the newest first.
        """
        before = {done.task.stream: done.position for done in undone}
        over = self._over.keys() - self._window.waiting_streams() - before.keys()
        found = [
            position.over(self._over[at]) if at in over else (before.get(at) or position).copy()
            for at, position in enumerate(self._positions)
        ]
        while len(found) > self._placement.streams and not found[-1].given:
            if all(each.ended for each in found[:-1]):
                break
            found.pop()  # it was begun ahead of the consumer, or by an undone delivery
        return tuple(found)

    def copy_of(self, stream: int) -> StreamPosition:
        """A stream's position, which does not move any more."""
        return self._positions[stream].copy()

    def last_states(self) -> dict[int, Any]:
        """By stream, the state in which the next epoch finds its dataset, if a worker sent it."""
        said = {stream: state for stream, state in self._over.items() if state is not None}
        return said | self._last

    # --- moving ----------------------------------------------------------------------------------

    def grow(self, streams: int) -> None:
        """There are so many streams now: one is read again, from its beginning."""
        self._positions += [StreamPosition() for _ in range(len(self._positions), streams)]

    def begin(self, states: Mapping[int, Any]) -> None:
        """Set the states in which streams were opened, where they are known.

        A stream that has ended without one must not be given that of the epoch's beginning.
        """
        for stream, state in states.items():
            position = self._positions[stream] if self._positions else None
            if position is not None and not (position.ended and position.state is None):
                position.state = state

    def deliver(self, stream: int, task: Task, state: Any) -> None:
        """A batch of a stream was delivered; ``state`` is the stream's state after it."""
        self._positions[stream].deliver(task, state, self._remember)

    def pass_over(self, step: int, count: int) -> None:
        """Skip ``count`` steps, beginning with ``step``. Workers are not notified."""
        if self._positions:
            for passed in range(step, step + count):
                self._positions[passed % len(self._positions)].given += 1

    def end(self, stream: int, state: Any) -> None:
        """A stream has no more data; ``state`` is the last state that its worker has sent."""
        self._over.setdefault(stream, state)
        self._placement.ended(stream)

    def died(self, worker: int) -> None:
        """A worker has died: nobody reads its streams any more."""
        streams = range(len(self._positions))
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
        self.awaited = set(range(streams)) - self.last_states().keys()

    def asks(self, dead: int | None = None) -> list[AskLast]:
        """The requests for last states; when a worker has died, those that it cannot answer."""
        asked = [(self._placement.of(stream), stream) for stream in sorted(self.awaited or ())]
        return [AskLast(w, s, self.reopened(s)) for w, s in asked if dead in (None, w)]

    def come(self, stream: int, state: Any) -> None:
        """A stream's last state has come."""
        assert self.awaited is not None, "it was asked for"
        self._last[stream] = state
        self.awaited.discard(stream)

    def open_again(self, stream: int) -> StreamPosition | None:
        """The position at which the worker opens a stream with its next task; None: it has it open.

        Moves the stream to another worker first, if that has less to do.
        """
        position = self.reopened(stream)
        if position is not None:
            return position
        if stream in self._over or not self._placement.may_move(stream):
            return None
        position = self._beyond(stream)
        if not position.exact:
            return None
        self._placement.move(stream)
        return position

    def _beyond(self, stream: int) -> StreamPosition:
        position = self._window.beyond(self._positions[stream], stream, self._remember)
        if stream in self._over:
            position = position.over(self._over[stream])
        return position.replayable()
