"""Channels over packet sockets: a task queue in the kernel, and an arena for each worker.

The queue is one pair of sockets whose reading end all workers share. Reading takes exactly one
whole message, so idle workers pull tasks and balance the load by themselves. There is no lock that
a dead worker could hold, and no thread that feeds the queue. Each worker answers over a socket of
its own, which also brings the tasks that are for it alone.

No message is longer than a few dozen kilobytes: longer contents go into an arena. So a worker never
waits for long in the middle of a message. The loader never waits when it sends: it holds back
messages that a full socket does not take.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Sequence
from multiprocessing import context as processes
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

from .arena import Arena, ArenaReader, new_memory
from .channels import Messages
from .fork_safety import guard, loaders_ends
from .messages import SHORT_BYTES, Answer, encode_answer, pack_region, read_answer, unpack_region

#: the first byte of a request: it follows, or the region that holds it does
_HERE, _ASIDE = b"h", b"a"

#: room for every message: what is short, and its header
_LONGEST = SHORT_BYTES + 1024


def packets_work_here() -> bool:
    """This system has what it takes, and lets a message of any length of ours through."""
    if not hasattr(os, "memfd_create") or not hasattr(socket, "SOCK_SEQPACKET"):
        return False
    try:
        os.close(new_memory())
        one, other = _pair()
        with one, other:
            one.send(bytes(_LONGEST), socket.MSG_DONTWAIT)
            return len(other.recv(_LONGEST)) == _LONGEST
    except TimeoutError:
        raise  # a signal handler's: these sockets have no timeout
    except OSError:
        return False


def _pair() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (one, other):
        end.settimeout(None)  # a program's default is for its own sockets: ours wait as they must
    return one, other


def _blocking(descriptor: int) -> socket.socket:
    """A socket over a descriptor that was sent to this process.

    With a default timeout Python would, for a moment, keep all processes that share it from
    waiting: each worker reads from the same queue.
    """
    default_s = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)
    try:
        return socket.socket(fileno=descriptor)
    finally:
        socket.setdefaulttimeout(default_s)


class PacketChannel:
    """The worker's side: requests come from ``tasks``, answers go to ``line``."""

    def __init__(
        self, tasks: socket.socket, line: socket.socket, arena: int, requests: int
    ) -> None:
        self._tasks = tasks
        self._line = line
        self._arena = Arena(arena)
        self._requests = ArenaReader(requests)
        self.allocate = self._arena.allocate

    def receive(self) -> bytes | memoryview:
        try:
            message = self._tasks.recv(_LONGEST)
        except OSError:
            raise EOFError from None
        if not message:
            raise EOFError
        self._arena.collect()
        if message[:1] == _HERE:
            return memoryview(message)[1:]
        return self._requests.open(unpack_region(message[1:])).data

    def note(self, ticket: int) -> None:
        self._arena.note(ticket)

    def send(self, answer: Answer, began_ns: int) -> None:
        message = encode_answer(answer, self._arena, began_ns)
        try:
            self._line.send(message)
        except OSError:
            raise EOFError from None


class PacketEnd(NamedTuple):
    """The worker's end: task queue, own socket, and descriptors of the arenas."""

    tasks: socket.socket
    line: socket.socket
    arena: int
    requests: int

    def open(self) -> PacketChannel:
        return PacketChannel(*self)

    def close(self) -> None:
        """Close the worker's end of its line; the rest belongs to the loader."""
        self.line.close()

    def __reduce__(self) -> Any:
        assert processes.get_spawning_popen() is not None, "only on the way to a process"
        ends = dict.fromkeys((self.tasks, self.line))  # both may be one
        descriptors = self.arena, self.requests, *(end.fileno() for end in ends)
        return _received, tuple(map(DupFd, descriptors))


def _received(arena: Any, requests: Any, *ends: Any) -> PacketEnd:
    sockets = [_blocking(end.detach()) for end in ends]
    return PacketEnd(sockets[0], sockets[-1], arena.detach(), requests.detach())


class _Memory:
    """The descriptor of an arena's file."""

    def __init__(self, locked: bool = False) -> None:
        self.fd = new_memory(locked)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class PacketLines:
    """The loader's side.

    Args:
        workers_fixed: each task is for a certain worker, without the queue.
        locked: a GPU reads the batches in the workers' arenas.
    """

    def __init__(self, workers_fixed: bool, locked: bool = False) -> None:
        self._locked = locked
        self.lost_worker = False
        self._workers_fixed = workers_fixed
        self._queue, self._queues_end = _pair()
        self._owned = [self._queue, self._queues_end]
        loaders_ends.add(self._queue)
        #: holds requests that are too long for a message
        self._requested = _Memory()
        self._requests = Arena(self._requested.fd)
        #: what each worker writes to
        self._written: dict[int, _Memory] = {}
        self._lines: dict[int, socket.socket] = {}
        self._readers: dict[int, ArenaReader] = {}
        #: by socket, requests that it did not take yet
        self._unsent: dict[socket.socket, deque[bytes]] = {}
        self._poll = select.poll()
        self._workers: dict[int, int] = {}
        #: sentinels of the workers
        self._watched: list[int] = []

    def open(self, context: Any, worker: int) -> PacketEnd:
        ours, theirs = _pair()
        ours.setblocking(False)
        loaders_ends.add(ours)
        # A process that is forked from now on needs no channel of another worker.
        loaders_ends.update(self._written.values())
        if worker in self._written:  # a dead worker's, whose last answers were read
            self._written[worker].close()
        self._written[worker] = memory = _Memory(self._locked)
        self._workers[ours.fileno()] = worker
        self._poll.register(ours, select.POLLIN)
        self._lines[worker] = ours
        self._readers[worker] = ArenaReader(memory.fd, self._locked)
        tasks = theirs if self._workers_fixed else self._queues_end
        return PacketEnd(tasks, theirs, memory.fd, self._requested.fd)

    def post(self, worker: int | None, message: bytes) -> int | None:
        line = self._queue if worker is None else self._lines[worker]
        if len(message) <= SHORT_BYTES:
            packet = _HERE + message
        else:
            self._requests.collect()
            packet = _ASIDE + pack_region(self._requests.give(memoryview(message)))
        waiting = self._unsent.get(line)
        if waiting or not _sent(line, packet):
            self._unsent.setdefault(line, deque()).append(packet)
        return worker

    def watch(self, sentinels: Sequence[int]) -> None:
        for sentinel in self._watched:
            self._poll.unregister(sentinel)
        for sentinel in sentinels:
            self._poll.register(sentinel, select.POLLIN)
        self._watched = list(sentinels)

    def wait(self, timeout_s: float | None) -> Messages | None:
        self.lost_worker = False
        ready = self._poll.poll(None if timeout_s is None else timeout_s * 1000)
        if not ready:
            return None
        answers = []
        for fd, _ in ready:
            worker = self._workers.get(fd)
            message = b"" if worker is None else _received_from(self._lines[worker])
            if worker is not None and message:
                answers.append((worker, message))
            else:
                self.lost_worker = True
        for line, waiting in list(self._unsent.items()):
            while waiting and _sent(line, waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._unsent[line]
        return answers

    def read(self, worker: int, message: bytes) -> Answer:
        reader = self._readers[worker]
        answer = read_answer(message, reader.open)
        answer.segments = reader.opened_segments()
        return answer

    def at_hand(self, worker: int, owed: Sequence[int]) -> int | None:
        return self._readers[worker].noted() or None

    def recall(self) -> None:
        self._unsent.pop(self._queue, None)
        while packet := _received_from(self._queues_end, socket.MSG_DONTWAIT):
            if packet[:1] == _ASIDE:
                self._requests.withdraw([unpack_region(packet[1:])])

    def close(self, worker: int) -> Messages:
        line, answers = self._lines.pop(worker), []
        while message := _received_from(line):
            answers.append((worker, message))
        self._unsent.pop(line, None)
        self._poll.unregister(line)
        del self._workers[line.fileno()]
        with guard:
            line.close()
        return answers

    def hang_up(self) -> None:
        for line in (self._queue, *self._lines.values()):
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the worker has closed its end
        with guard:
            for line in (*self._owned, *self._lines.values()):
                line.close()
            for memory in (self._requested, *self._written.values()):
                memory.close()
        for reader in self._readers.values():
            reader.close()
        self._requests.close()
        self._lines.clear()
        self._unsent.clear()


def _sent(line: socket.socket, packet: bytes) -> bool:
    """Send it, unless the socket is full; to a dead worker, it is lost."""
    try:
        line.send(packet, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except TimeoutError:
        raise  # as above
    except OSError:
        pass  # noticed by those who wait
    return True


def _received_from(line: socket.socket, how: int = 0) -> bytes:
    try:
        return line.recv(_LONGEST, how)
    except TimeoutError:
        raise  # as above
    except OSError:
        return b""
