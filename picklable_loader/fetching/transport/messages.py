"""Requests and answers between a loader and its workers, each written as one string of bytes.

An answer is a fixed header (`_HEADER`), the list of its regions in the arena, and a pickled body.
If the body cannot be unpickled (a class that does not exist on this side), the header still says
which step failed.
"""

from __future__ import annotations

import pickle
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from traceback import walk_tb
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from torch._utils import ExceptionWrapper

from ...core.events import Answered, Arrived, Emptied, Ended, Failed, LastState
from ...core.feedback import Note
from ...core.streams import StreamPosition
from ...core.task import Task
from ...errors import fails_again
from .arena import Arena, ArenaFull, Region
from .open_files import explained, lacks_descriptors
from .page_lock import LockedMap
from .tensors import INLINE_BYTES, dump, dumps


class EpochStart(NamedTuple):
    """An epoch begins."""

    base_seed: int
    #: the epoch to set on the dataset, by its set_epoch, unless it has it already
    announced: int | None = None
    #: DataPipes: the seed that all workers share
    shared_seed: int | None = None
    #: states of the global generators to go on with (``seeding="worker"``)
    states: dict[str, Any] | None = None
    #: people's code sees torch's worker information
    worker_info: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """A task for a worker, and the epoch's beginning if the worker may not know of it."""

    run: int
    #: a number is a stream: it is asked for the state that it leaves to the next epoch
    task: Task | int
    begin: EpochStart | None = None
    #: where the stream goes on, if it does not begin the epoch
    position: StreamPosition | None = None
    #: its number among all that were sent, from 1: after a flush a step may have another task
    ticket: int = 0


@dataclass(slots=True)  # frozen ones take several times as long to make
class Answer:
    """Result of a task, with its batch."""

    #: the number of the run that asked; an answer to an earlier run is not awaited any more
    run: int
    #: of a `LastState`, the stream
    step: int
    worker: int
    #: which event it is; None: the worker can do nothing here, and the payload says why
    kind: type[Answered | LastState] | None
    #: Arrived: the batch. Failed: the exception, from a worker in torch's ExceptionWrapper.
    #: Emptied: the samples that were skipped. Ended, LastState: None
    payload: Any
    #: the worker's generators afterwards (``seeding="worker"``)
    states: dict[str, Any] | None = None
    #: the stream's state afterwards
    stream_state: Any = None
    #: nanoseconds that the worker was busy with it
    busy_ns: int = 0
    #: memory that it takes until it is delivered
    bytes: int = 0
    #: memory that the worker's arena takes
    arena_bytes: int = 0
    #: nanoseconds that the worker has waited for it, after the task before
    idle_ns: int = 0
    #: False: the worker could not start, and fetches nothing
    started: bool = True
    #: feedback that people's code has sent with the batch
    notes: Sequence[Note] = ()
    #: of the request; no two have the same one
    ticket: int = 0
    #: paths to generators that the first batch of the worker's epoch has made, and to what people's
    #: code has collected meanwhile; was a batch that was fetched again another one? () if nothing
    found: tuple[tuple[str, ...], tuple[str, ...], bool] | tuple[()] = ()
    #: memory that the batch is in, to be registered with CUDA before a device reads it
    segments: Sequence[LockedMap] = ()

    def register(self) -> None:
        """Have devices read the batch where it is, if they can."""
        for segment in self.segments:
            segment.register()
        self.segments = ()

    def event(self) -> Answered | LastState:
        """The event for the schedule."""
        assert self.kind is not None
        if self.kind is not Arrived:
            return self.kind(self.step, self.stream_state)
        idled = self.idle_ns > self.busy_ns // _IDLE_PART
        return Arrived(self.step, self.stream_state, self.bytes, idled, self.busy_ns, self.notes)

    def reraise(self) -> NoReturn:
        """Raise what fetching the batch has raised."""
        error, self.payload = self.payload, None
        try:
            if isinstance(error, ExceptionWrapper):
                error.reraise()
            raise error
        finally:
            del error  # its traceback has this frame, and a cycle would have the iterator live on


#: a worker that has waited for this part of a task's time, or longer, might have done more
_IDLE_PART = 8

#: kinds of answers, by their number in a header
_KINDS = (Arrived, Failed, Ended, Emptied, LastState, None)

#: run, step, worker, kind, whether the rest is in the arena, how many regions the batch has,
#: busy_ns, bytes, arena_bytes, idle_ns, whether the worker has started; at the end the ticket.
#: The five from busy_ns on are fields of `Answer`, one after the other, in this order
_HEADER = struct.Struct("<qqiBBiqqqq?q")
_REGION = struct.Struct("<iqqqq")

#: A body up to this size is in the message itself; no socket is too small for it.
SHORT_BYTES = 32 * 1024


_INT = frozenset({int})


def encode_request(request: Request) -> bytes:
    # Tuples: pickle is several times as fast with them as with dataclasses.
    task, begin, numbers = request.task, request.begin, False
    what: Any = task
    if isinstance(task, Task):
        # A worker's `position` has the other ranks' samples before these in it, as `first` has.
        what = task.step, task.indices, task.position + task.offset, task.stream
        numbers = type(task.indices) is list and _INT.issuperset(map(type, task.indices))
    content = request.run, what, begin and tuple(begin), request.position, request.ticket
    if numbers and request.position is None:  # no tensors: five times as fast
        return pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return dumps(content)


def read_request(message: bytes | memoryview) -> Request:
    run, what, beginning, position, ticket = pickle.loads(message)
    task = what if type(what) is int else Task(*what)
    return Request(run, task, beginning and EpochStart(*beginning), position, ticket)


def encode_answer(answer: Answer, arena: Arena | None = None, began_ns: int | None = None) -> bytes:
    """An answer as bytes; a payload that cannot be pickled becomes a failure that says so.

    Large buffers and long bodies go into the arena; without one all is within the message, or is
    sent in torch's way.
    """
    stream_state = answer.stream_state
    apart = len(stream_state) if isinstance(stream_state, bytes) else 0
    if apart:  # a large one is copied once: into the arena
        stream_state = pickle.PickleBuffer(stream_state)
    kind, states = answer.kind, answer.states
    try:
        content = answer.payload, states, stream_state, answer.found, *answer.notes
        aside, count, weight, rest = _encode(content, arena)
    except Exception:
        kind = Failed
        aside, count, weight, rest = _encode(
            (_failure(answer), states, stream_state, answer.found), arena
        )
    busy = 0 if began_ns is None else time.perf_counter_ns() - began_ns
    arena_bytes = 0 if arena is None else arena.bytes
    run, step, worker = answer.run, answer.step, answer.worker
    # The state is no part of the batch: budgets would take all batches for as large as it.
    figures = busy, weight - apart, arena_bytes, answer.idle_ns, answer.started
    head = run, step, worker, _KINDS.index(kind), aside, count, *figures, answer.ticket
    return _HEADER.pack(*head) + rest


def read_answer(message: bytes, open_region: Callable[[Region], Any] | None = None) -> Answer:
    """The answer; a body that cannot be unpickled becomes a failure that says so.

    ``open_region`` gives an array over a region of the worker's arena.

    Raises:
        ConnectionError, FileNotFoundError, EOFError: the worker that owns a tensor's shared memory
            is gone, perhaps.
    """
    run, step, worker, kind, aside, count, *figures, ticket = _HEADER.unpack_from(message)
    body = memoryview(message)[_HEADER.size :]
    try:
        payload, states, stream_state, found, *notes = _decode(body, aside, count, open_region)
        if isinstance(stream_state, memoryview):  # it lives for long, and its region should not
            stream_state = bytes(stream_state)
    except (ConnectionError, FileNotFoundError, EOFError):
        raise
    except Exception as error:
        lacking = error if isinstance(error, OSError) and lacks_descriptors(error) else None
        if lacking is None and _while_receiving(error.__traceback__):
            raise
        # The first error still has the first arrays, so that no region is returned twice. A tensor
        # in torch's shared memory comes only once: a batch that had one cannot be decoded again.
        if not fails_again(_decode, body, aside, count, open_region):
            raise
        failure: Any = ExceptionWrapper(where="while unpickling what a DataLoader worker had sent")
        if lacking is not None:
            failure = explained(lacking, f"the batch of step {step} is here and cannot be opened")
        more = None, None, *figures, (), ticket
        return Answer(run, step, worker, Failed, failure, *more)
    kind = _KINDS[kind]
    more = *figures, notes or (), ticket, found
    return Answer(run, step, worker, kind, payload, states, stream_state, *more)


def ticket_of(message: bytes) -> int:
    """The ticket of the request that a message answers."""
    *_, ticket = _HEADER.unpack_from(message)
    return int(ticket)


def pack_region(region: Region) -> bytes:
    return _REGION.pack(*region)


def unpack_region(data: bytes | memoryview) -> Region:
    return Region(*_REGION.unpack(data))


def _decode(
    body: memoryview, aside: bool, count: int, open_region: Callable[[Region], Any] | None
) -> Any:
    """The content of `_encode`'s bytes, which may be in a region."""
    buffers = []
    if open_region is not None:
        if aside:
            body = memoryview(open_region(Region(*_REGION.unpack(body))))
        for at in range(0, count * _REGION.size, _REGION.size):
            buffers.append(open_region(Region(*_REGION.unpack_from(body, at))))
    return pickle.loads(body[count * _REGION.size :], buffers=buffers)


#: modules by which a worker's descriptors are received
_RECEIVING = "multiprocessing.connection", "multiprocessing.reduction"


def _while_receiving(trace: TracebackType | None) -> bool:
    """Descriptors were being received: the error is a signal handler's.

    The worker may then wait for an answer that never comes, and gives no descriptor any more.
    """
    names = (frame.f_globals.get("__name__") for frame, _ in walk_tb(trace))
    return not set(_RECEIVING).isdisjoint(names)


def _encode(content: Any, arena: Arena | None) -> tuple[bool, int, int, bytes]:
    """Whether the body is in the arena; how many regions it lists; how much memory
    all takes; and the bytes, or the region where they are.
    """
    regions: list[Region] = []
    try:
        body, elsewhere = _dump(content, arena, regions)
        rest = b"".join((*(_REGION.pack(*region) for region in regions), body))
        weight = elsewhere + len(rest) + sum(region.length for region in regions)
        if arena is None or len(rest) <= SHORT_BYTES:
            return False, len(regions), weight, rest
        return True, len(regions), weight, _REGION.pack(*arena.give(memoryview(rest)))
    except BaseException as error:
        if arena is not None:
            arena.withdraw(regions)
        if not isinstance(error, ArenaFull):
            raise
        body, elsewhere = dump(content)  # large tensors may still find room in torch's way
        if len(body) > SHORT_BYTES:
            raise
        return False, 0, elsewhere + len(body), body


def _dump(content: Any, arena: Arena | None, regions: list[Region]) -> tuple[bytes, int]:
    """A pickle, whose large buffers are given to the arena, and the bytes that are elsewhere."""
    if arena is None:
        return dump(content)

    def aside(buffer: pickle.PickleBuffer) -> bool:
        try:
            data = buffer.raw()
        except BufferError:  # a buffer that is in pieces is pickle's to judge
            return True
        if data.nbytes <= INLINE_BYTES:
            return True
        regions.append(arena.give(data))
        return False

    def withdraw() -> None:
        arena.withdraw(regions)
        regions.clear()

    return dump(content, aside, withdraw)


def _failure(answer: Answer) -> ExceptionWrapper:
    """The failure to send instead of a payload that cannot be pickled."""
    if answer.kind is not Failed:
        return ExceptionWrapper(where="while a DataLoader worker pickled a batch")
    # An exception of a class that only exists in the worker: keep its text.
    failure: ExceptionWrapper = answer.payload
    name = failure.exc_type.__name__
    return TextFailure(f"Caught {name} {failure.where}.\nOriginal {failure.exc_msg}")


class TextFailure(ExceptionWrapper):
    """An exception whose class cannot be sent: raised as a RuntimeError with the same text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def reraise(self) -> None:
        raise RuntimeError(self.text)
