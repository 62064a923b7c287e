"""Lines: what connects a loader with its workers.

There are two kinds: `PipeLines`, which any system has, and `PacketLines`, with a queue that the
kernel keeps and an arena for each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .frames import Answer

__all__ = ["Channel", "Frames", "Lines", "WorkersEnd"]


#: answers, each with its worker
Frames = list[tuple[int, bytes]]


class Channel(Protocol):
    """A worker's side of its line. It blocks."""

    @property
    def allocate(self) -> Callable[[int], Any] | None:
        """Makes memory that is sent without a copy; None where there is none."""

    def receive(self) -> bytes | memoryview:
        """The next request.

        Raises:
            EOFError: the loader is gone.
        """

    def send(self, answer: Answer, began_ns: int) -> None:
        """Send an answer, begun at that ``time.perf_counter_ns``.

        Raises:
            EOFError: the loader is gone.
        """


class WorkersEnd(Protocol):
    """What a worker is given when it is started; pickles on the way to a process."""

    def open(self) -> Channel:
        """The channel; called in the worker."""

    def close(self) -> None:
        """Let go of this process's copy."""


class Lines(Protocol):
    """The loader's side of all its workers' lines. It never blocks but in ``wait``."""

    def open(self, context: Any) -> WorkersEnd:
        """A line for one more worker."""

    def post(self, worker: int | None, frame: bytes) -> None:
        """Send a request to a worker, or to whichever is idle first."""

    def wait(self, sentinels: Sequence[int], timeout_s: float | None) -> Frames | None:
        """The answers that have come, each with its worker; waits for one.

        None when the time is up; empty if a worker has hung up, or a sentinel tells of its death.
        """

    def read(self, worker: int, frame: bytes) -> Answer:
        """What a worker's answer says."""

    def hang_up(self) -> None:
        """Let the workers see that the loader is gone, whoever else has copies of its ends."""
