"""Channel: whole messages, both ways, between a loader and one worker."""

from __future__ import annotations

from collections import deque
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["Channel", "Outbox"]

#: What may stand unread in a connection: half of what Linux's smallest pipe holds.
_ROOM_BYTES = 32 * 1024


class Channel:
    """The worker's end: it blocks.

    Args:
        connection: an end of a ``multiprocessing.Pipe``.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection

    def send(self, frame: bytes) -> None:
        """Send a message.

        Raises:
            EOFError: the other end is closed.
        """
        try:
            self._connection.send_bytes(frame)
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError from None

    def receive(self) -> bytes:
        """The next message.

        Raises:
            EOFError: the other end is closed.
        """
        try:
            return self._connection.recv_bytes()
        except OSError:  # reset, or ended in the middle of a message
            raise EOFError from None


class Outbox:
    """The loader's way to a worker: it never blocks for ever.

    A worker that sends a large answer does not read, and a loader that sent a large request would
    wait for it while it waits for the loader. So requests are kept here while what the worker has
    not read yet might fill the connection; with nothing unread the worker stands at ``receive``,
    and a request of any size goes through.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._waiting: deque[bytes] = deque()
        #: sizes of requests that were sent and not answered, oldest first
        self._unanswered: deque[int] = deque()
        self._unread_bytes = 0

    def post(self, frame: bytes) -> None:
        """Send a request now, or as soon as earlier ones are answered."""
        self._waiting.append(frame)
        self._flush()

    def answered(self) -> None:
        """Note that the worker has answered its oldest request."""
        self._unread_bytes -= self._unanswered.popleft()
        self._flush()

    def _flush(self) -> None:
        while self._waiting:
            size = len(self._waiting[0])
            if self._unanswered and self._unread_bytes + size > _ROOM_BYTES:
                return
            self._connection.send_bytes(self._waiting.popleft())
            self._unanswered.append(size)
            self._unread_bytes += size
