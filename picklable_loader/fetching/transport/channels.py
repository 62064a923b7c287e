"""The channels between a loader and its workers, as protocols.

There are two kinds: `PipeLines`, which any system has, and `PacketLines`, with a queue in the
kernel and an arena for each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .messages import Answer

#: answers, each with its worker
Messages = list[tuple[int, bytes]]


class Channel(Protocol):
    """A worker's side of its line. It blocks."""

    @property
    def allocate(self) -> Callable[[int], Any] | None:
        """Makes memory that is sent without a copy; None where there is none."""

    def receive(self) -> bytes | memoryview:
        """The next request; EOFError if the loader is gone."""

    def note(self, ticket: int) -> None:
        """From now on this request is at hand; the loader sees it even when the worker is gone."""

    def send(self, answer: Answer, began_ns: int) -> None:
        """Send an answer, begun at that ``perf_counter_ns``; EOFError if the loader is gone."""


class WorkersEnd(Protocol):
    """The worker's end of a channel, given to it at its start; pickled on the way to a process."""

    def open(self) -> Channel:
        """The channel; called in the worker."""

    def close(self) -> None:
        """Let go of this process's copy."""


class Lines(Protocol):
    """The loader's side of all its workers' lines. It never blocks but in ``wait``."""

    #: the last ``wait`` has seen that a worker's line, or its sentinel, has ended
    lost_worker: bool

    def open(self, context: Any, worker: int) -> WorkersEnd:
        """A line for a worker: one more, or one whose line was closed."""

    def post(self, worker: int | None, message: bytes) -> int | None:
        """Send a request to a worker, or to whichever is idle first; the worker if known."""

    def watch(self, sentinels: Sequence[int]) -> None:
        """From now on ``wait`` polls these as well: descriptors that end with a worker."""

    def wait(self, timeout_s: float | None) -> Messages | None:
        """The answers that have come, each with its worker; waits for one.

        None: the time is up. An empty list: a worker is lost, and nothing else has come.
        """

    def read(self, worker: int, message: bytes) -> Answer:
        """A worker's answer, read from its message."""

    def at_hand(self, worker: int, owed: Sequence[int]) -> int | None:
        """The ticket of the request that a worker, dead or not, took last; None: not known.

        ``owed`` are those of tasks that were sent to it alone and not answered, in this order.
        """

    def recall(self) -> None:
        """Take back requests to any worker that none has read."""

    def close(self, worker: int) -> Messages:
        """Close the line of a dead worker; returns the answers that it sent and nobody took.

        They can be read until a line is opened for that worker again.
        """

    def hang_up(self) -> None:
        """Let the workers see that the loader is gone, whoever else has copies of its ends."""
