"""Channels over a two-way pipe for each worker; they work on every system."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from .channels import Messages
from .fork_safety import guard, loaders_ends
from .messages import Answer, encode_answer, read_answer

#: Bytes that may be unread in a connection, and those that a message takes there besides its own:
#: with these, no more than a third of the bytes that Linux's smallest socket holds.
_ROOM_BYTES = 32 * 1024
_OVERHEAD_BYTES = 1024


class PipeChannel:
    """The worker's side, before it is opened there and afterwards."""

    allocate = None

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection

    def open(self) -> PipeChannel:
        return self

    def close(self) -> None:
        self._connection.close()

    def receive(self) -> bytes:
        try:
            return self._connection.recv_bytes()
        except OSError:  # reset, or ended in the middle of a message
            raise EOFError from None

    def note(self, ticket: int) -> None:
        """The loader knows: a worker takes its tasks in their order."""

    def send(self, answer: Answer, began_ns: int) -> None:
        try:
            self._connection.send_bytes(encode_answer(answer, None, began_ns))
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError from None


class Outbox:
    """The loader's end of a worker's pipe: it never blocks for ever.

    A worker that sends a large answer does not read. A loader that sent a large request would wait
    for the worker, while the worker waits for the loader. So requests wait here while unread ones
    might fill the connection. With nothing unread the worker is at ``receive``, and a request of
    any size goes through.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._waiting: deque[bytes] = deque()
        #: sizes of requests that were sent and not answered, oldest first
        self._unanswered: deque[int] = deque()
        self._unread_bytes = 0

    @property
    def load(self) -> int:
        """Requests that are not answered yet."""
        return len(self._waiting) + len(self._unanswered)

    def post(self, message: bytes) -> None:
        """Send a request now, or as soon as earlier ones are answered."""
        self._waiting.append(message)
        self._flush()

    def answered(self) -> None:
        """Note that the worker has answered its oldest request."""
        self._unread_bytes -= self._unanswered.popleft()
        self._flush()

    def _flush(self) -> None:
        while self._waiting:
            size = len(self._waiting[0]) + _OVERHEAD_BYTES
            if self._unanswered and self._unread_bytes + size > _ROOM_BYTES:
                return
            message = self._waiting.popleft()
            self._unanswered.append(size)
            self._unread_bytes += size
            try:
                self._connection.send_bytes(message)
            except (BrokenPipeError, ConnectionResetError):
                pass  # a dead worker is noticed by those who wait


class PipeLines:
    """The loader's side: a request for anybody goes to the worker that has fewest."""

    def __init__(self) -> None:
        self.lost_worker = False
        self._connections: dict[int, Connection[Any, Any]] = {}
        self._outboxes: dict[int, Outbox] = {}
        #: sentinels of the workers
        self._watched: list[int] = []

    def open(self, context: Any, worker: int) -> PipeChannel:
        ours, theirs = context.Pipe()
        loaders_ends.add(ours)
        self._connections[worker] = ours
        self._outboxes[worker] = Outbox(ours)
        return PipeChannel(theirs)

    def post(self, worker: int | None, message: bytes) -> int | None:
        if worker is None:
            worker = min(self._outboxes, key=lambda worker: self._outboxes[worker].load)
        self._outboxes[worker].post(message)
        return worker

    def watch(self, sentinels: Sequence[int]) -> None:
        self._watched = list(sentinels)

    def wait(self, timeout_s: float | None) -> Messages | None:
        ready = wait([*self._connections.values(), *self._watched], timeout_s)
        if not ready:
            return None
        answers = []
        for worker, connection in self._connections.items():
            if connection in ready:
                message = _receive(connection)
                if message is not None:
                    answers.append((worker, message))
                    self._outboxes[worker].answered()
        self.lost_worker = len(answers) < len(ready)
        return answers

    def read(self, worker: int, message: bytes) -> Answer:
        return read_answer(message)

    def at_hand(self, worker: int, owed: Sequence[int]) -> int | None:
        return owed[0] if owed else None

    def recall(self) -> None:
        """Each request is at a worker."""

    def close(self, worker: int) -> Messages:
        connection, answers = self._connections.pop(worker), []
        while message := _receive(connection):
            answers.append((worker, message))
        del self._outboxes[worker]
        with guard:
            connection.close()
        return answers

    def hang_up(self) -> None:
        for connection in self._connections.values():
            with socket.socket(fileno=os.dup(connection.fileno())) as line:
                try:
                    line.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the worker has closed its end
            with guard:
                connection.close()
        self._connections.clear()
        self._outboxes.clear()


def _receive(connection: Connection[Any, Any]) -> bytes | None:
    try:
        return connection.recv_bytes()
    except TimeoutError:
        raise  # a signal handler's: these connections have no timeout
    except (EOFError, OSError):  # the worker is gone, perhaps in the middle of an answer
        return None
