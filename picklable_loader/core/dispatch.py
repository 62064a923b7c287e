"""Gives the tasks that are held to workers: each to that of its stream, which may be a new one."""

from __future__ import annotations

from .budget import Budget
from .events import Instruction, Send
from .placement import Placement
from .plan import Plan
from .positions import StreamPositions
from .streams import StreamPlan, StreamPosition
from .task import Task
from .window import Entry, Window


class Dispatch:
    """Chooses the worker of each task."""

    def __init__(self, window: Window, placement: Placement, streams: StreamPositions) -> None:
        self._window = window
        self._placement = placement
        self._streams = streams

    def draw(self, plan: Plan | StreamPlan, budget: int) -> Task | None:
        """A task for the worker that has fewest; None: each has its share of the window.

        So a slow worker takes its share and no more, and the others go on.

        Raises:
            StopIteration: there is no more task.
        """
        while steps := plan.next_steps():
            owed, stuck = self._window.owed(), self._window.stuck()
            stream = self._placement.least_busy(steps, owed, stuck, budget)
            task = None if stream is None else plan.draw_from(stream)
            if stream is None or task is not None:
                return task
        raise StopIteration

    def hand_out(self, out: list[Instruction], budget: Budget) -> None:
        """Send the tasks that are held, as far as their workers and the budget in bytes have room.

        The first task of the window is always sent: the consumer needs it.
        """
        window = self._window
        if self._streams.awaited is not None:
            return
        first = next(iter(window.entries.values()), None)
        for entry in window.held_back():
            if entry is not first and not budget.has_room(window.bytes, window.under_way):
                return
            stream = entry.task.stream
            if stream is None:
                self._send(entry, out)
                continue
            position = self._streams.open_again(stream)
            if position is not None or self._placement.has_room(stream):
                self._send(entry, out, position)

    def _send(
        self, entry: Entry, out: list[Instruction], position: StreamPosition | None = None
    ) -> None:
        stream, worker = entry.task.stream, None
        self._window.send(entry)
        if stream is not None:
            worker = self._placement.of(stream)
            if self._placement.moving:
                self._placement.sent(stream)
        out.append(Send(worker, entry.task, position))
