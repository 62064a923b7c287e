"""Transport: frames, tensors and channels bring over what they are given, or say what is wrong."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity.identical import assert_identical
from torch._utils import ExceptionWrapper

from picklable_loader.core.events import Arrived, Emptied, Ended, Failed
from picklable_loader.core.task import Task
from picklable_loader.fetching.transport import messages as frames
from picklable_loader.fetching.transport.arena import Arena, ArenaReader, new_memory
from picklable_loader.fetching.transport.channels import Lines
from picklable_loader.fetching.transport.messages import (
    SHORT_BYTES,
    Answer,
    EpochStart,
    Request,
    encode_answer,
    encode_request,
    read_answer,
    read_request,
)
from picklable_loader.fetching.transport.pipes import Outbox, PipeLines
from picklable_loader.fetching.transport.seqpacket import PacketLines
from picklable_loader.fetching.transport.tensors import INLINE_BYTES, dumps

#: more than any pipe holds
LARGE = 4 * 1024 * 1024

#: seconds that a test waits for what is sure to come
PATIENCE_S = 60.0

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
STATES = st.none() | st.dictionaries(st.sampled_from(["torch", "numpy", "python"]), st.binary())
COUNT_OR_NONE = st.none() | st.integers(0, 2**62)
TASKS = st.builds(Task, INT64, PLAIN, INT64)
BEGINS = st.builds(EpochStart, st.integers(0, 2**62), COUNT_OR_NONE, COUNT_OR_NONE, STATES)
REQUESTS = st.builds(Request, INT64, TASKS, st.none() | BEGINS)
KINDS = [Arrived, Failed, Emptied, Ended, None]
ANSWERS = st.builds(Answer, INT64, INT64, INT32, st.sampled_from(KINDS), PLAIN, STATES)


Over = Callable[[Any], Any]


def by_message(thing: Any) -> Any:
    """What comes out on the other side, in this process, with large tensors in torch's way."""
    return pickle.loads(dumps(thing))


def by_arena(thing: Any) -> Any:
    """The same, with large buffers in an arena."""
    fd = new_memory()
    try:
        arena, reader = Arena(fd), ArenaReader(fd)
        frame = encode_answer(Answer(0, 0, 0, Arrived, thing), arena)
        answer = read_answer(frame, reader.open)
    finally:
        os.close(fd)
    if answer.kind is Failed:
        answer.payload.reraise()
    return answer.payload


EITHER_WAY = pytest.mark.parametrize("over", [by_message, by_arena])


# --- frames --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(REQUESTS)
def test_a_request_comes_over(request: Request) -> None:
    assert read_request(encode_request(request)) == request


@settings(deadline=None)
@given(ANSWERS)
def test_an_answer_comes_over(answer: Answer) -> None:
    again = read_answer(encode_answer(answer))
    assert again == replace(answer, bytes=again.bytes)


@pytest.mark.parametrize("length", [0, 9, LARGE])
@pytest.mark.parametrize("in_an_arena", [False, True])
def test_a_streams_state_comes_over_as_bytes_that_are_no_part_of_the_batch(
    length: int, in_an_arena: bool
) -> None:
    state = os.urandom(length)
    without = Answer(1, 2, 3, Arrived, torch.zeros(9))
    fd = new_memory()
    arena, reader = (Arena(fd), ArenaReader(fd)) if in_an_arena else (None, None)
    bare, again = (
        read_answer(encode_answer(answer, arena), reader and reader.open)
        for answer in (without, replace(without, stream_state=state))
    )
    os.close(fd)
    assert type(again.stream_state) is bytes and again.stream_state == state
    assert again.bytes <= bare.bytes + 100


def test_a_streams_state_takes_no_room_in_the_arena_for_long() -> None:
    fd = new_memory()
    arena, reader = Arena(fd), ArenaReader(fd)
    kept = []
    for _ in range(9):
        arena.collect()
        answer = Answer(1, 2, 3, Arrived, None, stream_state=bytes(LARGE))
        kept.append(read_answer(encode_answer(answer, arena), reader.open).stream_state)
    os.close(fd)
    assert LARGE <= arena.bytes < 2 * LARGE


def failure(error: Exception) -> ExceptionWrapper:
    try:
        raise error
    except Exception:
        return ExceptionWrapper(where="in a test")


def test_an_exception_comes_over_with_its_class_and_text() -> None:
    answer = Answer(0, 0, 0, Failed, failure(KeyError("lost")))
    again = read_answer(encode_answer(answer))
    with pytest.raises(KeyError, match="in a test") as raised:
        again.payload.reraise()
    assert "lost" in str(raised.value)


def test_a_batch_that_cannot_be_pickled_becomes_a_failure_that_says_so() -> None:
    answer = Answer(4, 5, 6, Arrived, lambda: None, {"torch": b"1"})
    again = read_answer(encode_answer(answer))
    assert (again.run, again.step, again.worker) == (4, 5, 6)
    assert (again.kind, again.states) == (Failed, {"torch": b"1"})
    with pytest.raises(Exception, match="while a DataLoader worker pickled a batch"):
        again.payload.reraise()


def test_an_exception_of_a_class_that_cannot_be_sent_keeps_its_name_and_text() -> None:
    class Local(Exception):
        pass

    answer = Answer(4, 5, 6, Failed, failure(Local("what went wrong")))
    again = read_answer(encode_answer(answer))
    assert (again.run, again.step, again.worker, again.kind) == (4, 5, 6, Failed)
    with pytest.raises(RuntimeError, match="(?s)Caught Local in a test.*what went wrong"):
        again.payload.reraise()


class Unreadable:
    """Pickles, and fails when it is unpickled."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return raising, (self.error,)


def raising(error: type[Exception]) -> None:
    raise error("not on this side")


@pytest.mark.parametrize("error", [ValueError, ImportError, AttributeError, pickle.PickleError])
def test_a_batch_that_cannot_be_unpickled_becomes_a_failure_of_its_step(
    error: type[Exception],
) -> None:
    again = read_answer(encode_answer(Answer(4, 5, 6, Arrived, Unreadable(error))))
    assert (again.run, again.step, again.worker) == (4, 5, 6)
    assert (again.kind, again.states) == (Failed, None)
    with pytest.raises(error, match="(?s)while unpickling.*not on this side"):
        again.payload.reraise()


class Reluctant:
    """Unpickling raises, the first few times."""

    times = 0

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        if Reluctant.times > 0:
            Reluctant.times -= 1
            raise ValueError("not now")


@pytest.mark.parametrize("times", [1, 10])
def test_a_signal_handlers_exception_while_a_batch_is_unpickled_is_not_the_batchs(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not come again; and in either case the memory is returned, once."""
    fd = new_memory()
    arena, reader = Arena(fd), ArenaReader(fd)
    returned: list[int] = []
    give_back = reader._return

    def counted(slot: int) -> None:
        returned.append(slot)
        give_back(slot)

    monkeypatch.setattr(reader, "_return", counted)
    frame = encode_answer(Answer(4, 5, 6, Arrived, Reluctant(torch.zeros(LARGE))), arena)
    monkeypatch.setattr(Reluctant, "times", times)
    if times == 1:
        with pytest.raises(ValueError, match="not now"):
            read_answer(frame, reader.open)
    else:
        assert read_answer(frame, reader.open).kind is Failed
    gc.collect()
    assert len(returned) == 1
    os.close(fd)


@pytest.mark.parametrize("error", [ConnectionResetError, FileNotFoundError, EOFError])
def test_shared_memory_that_is_gone_with_its_worker_is_no_failure_of_the_batch(
    error: type[Exception],
) -> None:
    frame = encode_answer(Answer(4, 5, 6, Arrived, Unreadable(error)))
    with pytest.raises(error):
        read_answer(frame)


@settings(deadline=None)
@given(ANSWERS, st.data())
def test_an_answer_that_was_cut_short_is_never_taken_for_a_batch(
    answer: Answer, data: st.DataObject
) -> None:
    frame = encode_answer(answer)
    cut = frame[: data.draw(st.integers(frames._HEADER.size, len(frame) - 1))]
    try:
        again = read_answer(cut)
    except EOFError:
        return
    assert (again.run, again.step, again.worker) == (answer.run, answer.step, answer.worker)
    assert again.kind is Failed


@settings(deadline=None)
@given(REQUESTS, st.data())
def test_a_request_that_was_cut_short_is_refused(request: Request, data: st.DataObject) -> None:
    frame = encode_request(request)
    cut = frame[: data.draw(st.integers(0, len(frame) - 1))]
    with pytest.raises((EOFError, pickle.UnpicklingError)):
        read_request(cut)


# --- tensors -------------------------------------------------------------------------------------

DTYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """The same, to the last bit, in the same place of the same storage."""
    return (
        one.untyped_storage().tolist() == other.untyped_storage().tolist()
        and one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.storage_offset() == other.storage_offset()
        and one.requires_grad == other.requires_grad
    )


@EITHER_WAY
@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
@pytest.mark.parametrize("dtype", [each for each in DTYPES if "q" not in str(each)], ids=str)
def test_a_tensor_of_any_type_comes_over(dtype: torch.dtype, over: Over) -> None:
    storage = torch.arange(64, dtype=torch.uint8).fmod(2).untyped_storage()
    tensor = torch.empty(0, dtype=dtype).set_(storage, 0, (64 // dtype.itemsize,), (1,))
    assert len(tensor) == 64 // dtype.itemsize
    assert same(over(tensor), tensor)


@EITHER_WAY
@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (3, 0), (0, 3), (2, 3, 4), (1, 1, 1, 1)], ids=str
)
def test_a_tensor_of_any_shape_comes_over(shape: tuple[int, ...], over: Over) -> None:
    tensor = torch.rand(shape)
    assert same(over(tensor), tensor)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A small tensor that sees some of its storage, in some order."""
    tensor = torch.arange(24, dtype=draw(st.sampled_from(WHOLE))).view(2, 3, 4)
    tensor = tensor.permute(draw(st.permutations([0, 1, 2])))
    for axis in range(3):
        start = draw(st.integers(0, tensor.shape[axis]))
        step = draw(st.integers(1, 3))
        tensor = tensor[(slice(None),) * axis + (slice(start, None, step),)]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(2, *tensor.shape)
    return tensor


@EITHER_WAY
@settings(deadline=None)
@given(views())
def test_a_view_comes_over_with_its_strides(over: Over, tensor: torch.Tensor) -> None:
    assert same(over(tensor), tensor)


@EITHER_WAY
@pytest.mark.parametrize("size", [8, INLINE_BYTES // 4, INLINE_BYTES // 4 + 1, LARGE // 4])
def test_views_of_one_storage_stay_views_of_one(size: int, over: Over) -> None:
    whole = torch.zeros(size)
    first, second = over((whole, whole[1:]))
    first[1] = 5.0
    assert second[0] == 5.0


@EITHER_WAY
@pytest.mark.parametrize("size", [8, LARGE])
def test_one_tensor_twice_is_one_tensor_twice(size: int, over: Over) -> None:
    tensor = torch.zeros(size)
    first, second = over([tensor, tensor])
    assert first is second


@EITHER_WAY
def test_of_a_large_storage_only_what_is_seen_is_sent(over: Over) -> None:
    whole = torch.arange(LARGE, dtype=torch.float64)
    for view in (whole[70:80], whole[1001:2001:10], whole[5:5], whole.view(-1, 64)[3:5, ::7]):
        again = over(view)
        assert torch.equal(again, view) and again.stride() == view.stride()
        assert again.untyped_storage().nbytes() < 20_000


@EITHER_WAY
def test_views_that_see_little_of_one_storage_still_share_it(over: Over) -> None:
    whole = torch.zeros(LARGE)
    first, second, third = over((whole[10:20], whole[15:30], whole.view(torch.int32)[12:14]))
    first[5] = 1.0
    assert second[0] == 1.0
    second[:] = 2.0
    assert third.tolist() == [0, 0] and first[5:].tolist() == [2.0] * 5


class Count:
    """Objects that say how often they were pickled."""

    def __init__(self) -> None:
        self.pickled = 0

    def __reduce__(self) -> Any:
        self.pickled += 1
        return Count, ()


@EITHER_WAY
def test_however_many_storages_are_seen_in_parts_all_is_pickled_twice_at_most(over: Over) -> None:
    count = Count()
    bases = [torch.full((20_000,), float(number)) for number in range(30)]
    parts = over([count, *((base[:100], base[-100:]) for base in bases)])[1:]
    assert count.pickled == 2
    for number, (first, second) in enumerate(parts):
        assert bool((first == number).all() and (second == number).all())
        assert first.untyped_storage()._cdata == second.untyped_storage()._cdata


def test_storages_that_travel_in_torchs_way_are_learned_of_all_at_once() -> None:
    count = Count()
    bases = [torch.full((10,), float(number)) for number in range(30)]
    before = len(os.listdir("/proc/self/fd"))
    pairs = [(base, torch.nn.Parameter(base, requires_grad=False)) for base in bases]
    found = by_message([count, *pairs])[1:]
    assert count.pickled == 2
    for number, (plain, parameter) in enumerate(found):
        assert plain.tolist() == parameter.tolist() == [number] * 10
        plain[0] = -1.0
        assert float(parameter[0]) == -1.0
    del found, plain, parameter
    left = len(os.listdir("/proc/self/fd")) - before
    assert left < 2 * len(bases), "the pass that was void has left descriptors"


class Fresh:
    """Makes a new storage whenever it is pickled, of which two tensors see different parts."""

    def __init__(self, parts: Any = None) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        base = torch.arange(20_000)
        return Fresh, ([base[:5], base[-5:], torch.nn.Parameter(base[9:12].float())],)


@EITHER_WAY
def test_objects_that_make_new_tensors_whenever_they_are_pickled_come_over(over: Over) -> None:
    first, last, _ = over([Fresh() for _ in range(20)])[7].parts
    assert (first.tolist(), last.tolist()) == ([0, 1, 2, 3, 4], [19995, 19996, 19997, 19998, 19999])


@EITHER_WAY
def test_tensors_of_different_messages_share_nothing(over: Over) -> None:
    tensor = torch.zeros(4)
    first, second = over(tensor), over(tensor)
    first[0] = 1
    assert tensor.tolist() == second.tolist() == [0.0] * 4


@EITHER_WAY
@pytest.mark.parametrize("size", [3, LARGE])
def test_a_leaf_that_wants_a_gradient_still_wants_it(size: int, over: Over) -> None:
    tensor = torch.ones(size, requires_grad=True)
    again = over(tensor)
    assert again.requires_grad and again.is_leaf
    again.sum().backward()
    assert again.grad.sum() == size


@pytest.mark.parametrize("size", [3, LARGE])
def test_a_tensor_within_a_graph_is_refused_with_the_way_out(size: int) -> None:
    tensor = torch.ones(size, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="detach"):
        dumps(tensor)


@EITHER_WAY
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_a_sparse_tensor_comes_over(over: Over) -> None:
    tensor = torch.eye(3).to_sparse()
    assert torch.equal(over(tensor).to_dense(), tensor.to_dense())


def test_a_small_tensor_needs_no_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))
    frame = dumps([torch.zeros(INLINE_BYTES // 8, dtype=torch.float64) for _ in range(10)])
    assert set(os.listdir("/proc/self/fd")) == before
    assert len(frame) > 10 * INLINE_BYTES


def test_a_large_tensor_travels_outside_of_the_message() -> None:
    frame = dumps(torch.ones(LARGE, dtype=torch.uint8))
    assert len(frame) < 10_000
    assert pickle.loads(frame).sum() == LARGE


@EITHER_WAY
def test_an_array_comes_over_and_can_be_written_to(over: Over) -> None:
    array = np.arange(6.0).reshape(2, 3)
    kept = array.copy()
    kept.flags.writeable = False
    for given_array in (array, array.T, kept, array[:, ::2], array[:0]):
        again = over(given_array)
        assert np.array_equal(again, given_array) and again.dtype == given_array.dtype
        assert again.flags.writeable


# --- lines ---------------------------------------------------------------------------------------


class Line:
    """A loader's lines and one worker's channel, both in this process."""

    def __init__(self, lines: Lines, workers: int = 1) -> None:
        self.lines = lines
        self.ends = [
            lines.open(multiprocessing.get_context("fork"), worker) for worker in range(workers)
        ]
        self.channels = [end.open() for end in self.ends]
        self.channel = self.channels[0]

    def answers(self) -> list[Answer]:
        found = self.lines.wait(PATIENCE_S)
        assert found is not None, "no answer came"
        return [self.lines.read(worker, frame) for worker, frame in found]

    def close(self) -> None:
        self.lines.hang_up()
        for end in self.ends:
            end.close()
        self.channels.clear()
        del self.channel


LINES: dict[str, Callable[[], Lines]] = {
    "queue": lambda: PacketLines(workers_fixed=False),
    "packets": lambda: PacketLines(workers_fixed=True),
    "pipes": PipeLines,
}


@pytest.fixture(params=LINES)
def line(request: pytest.FixtureRequest) -> Iterator[Line]:
    made = Line(LINES[request.param]())
    yield made
    made.close()
    gc.collect()


def to_whom(line: Line) -> int | None:
    """Whom a request is for: a line with a queue gives it to anybody."""
    return None if getattr(line.lines, "_workers_fixed", True) is False else 0


def arrived(step: int, payload: Any = None, worker: int = 0) -> Answer:
    return Answer(1, step, worker, Arrived, payload)


def test_requests_come_whole_and_in_order(line: Line) -> None:
    frames = [b"", b"a", bytes(1000), b"b"]
    for frame in frames:
        line.lines.post(to_whom(line), frame)
        assert bytes(line.channel.receive()) == frame
        line.channel.send(arrived(0), 0)
        line.answers()


def test_answers_come_whole_and_in_order(line: Line) -> None:
    for step, payload in enumerate([None, "a", bytes(LARGE), torch.arange(LARGE // 4)]):
        line.lines.post(to_whom(line), b"")
        line.channel.receive()
        sender = Thread(target=line.channel.send, args=(arrived(step, payload), 0))
        sender.start()
        [answer] = line.answers()
        sender.join()
        assert (answer.run, answer.step, answer.worker) == (1, step, 0)
        assert_identical(answer.payload, payload)
        assert answer.bytes >= (LARGE if step > 1 else 0) and answer.busy_ns > 0


def test_a_request_of_any_length_comes_whole(line: Line) -> None:
    for length in (1, SHORT_BYTES, SHORT_BYTES + 1, LARGE, LARGE):
        frame = os.urandom(length)
        sender = Thread(target=line.lines.post, args=(to_whom(line), frame))
        sender.start()
        assert bytes(line.channel.receive()) == frame
        sender.join()
        line.channel.send(arrived(0), 0)
        line.answers()


def test_a_loader_is_never_held_up_by_requests_that_nobody_reads(line: Line) -> None:
    frames = [bytes([step % 251]) * (step % 3000) for step in range(3000)]
    for frame in frames:
        line.lines.post(to_whom(line), frame)
    for frame in frames:
        assert bytes(line.channel.receive()) == frame
        line.channel.send(arrived(0), 0)
        line.answers()


def test_the_loader_hanging_up_is_an_end_of_file(line: Line) -> None:
    line.lines.hang_up()
    with pytest.raises(EOFError):
        line.channel.receive()
    with pytest.raises(EOFError):
        line.channel.send(arrived(0), 0)


def test_a_worker_that_is_gone_is_no_answer_and_no_timeout(line: Line) -> None:
    assert line.lines.wait(0.0) is None
    line.lines.post(to_whom(line), b"")
    line.channel.receive()
    line.channel.send(arrived(7), 0)
    line.ends[0].close()
    assert [answer.step for answer in line.answers()] == [7]
    assert line.lines.wait(PATIENCE_S) == []
    line.lines.post(to_whom(line), b"nobody reads this")


def test_whoever_is_idle_takes_the_next_task_from_the_queue() -> None:
    line = Line(PacketLines(workers_fixed=False), workers=3)
    frames = [bytes([step]) for step in range(9)]
    for frame in frames:
        line.lines.post(None, frame)
    order = [2, 0, 0, 1, 2, 2, 2, 1, 0]
    assert [bytes(line.channels[worker].receive()) for worker in order] == frames
    line.close()


def test_over_pipes_a_task_goes_to_the_worker_that_has_fewest() -> None:
    line = Line(PipeLines(), workers=2)
    for step in range(4):
        line.lines.post(None, bytes([step]))
    quick, slow = line.channels
    for step in (0, 2):
        assert quick.receive() == bytes([step])
        quick.send(arrived(step), 0)
        line.answers()
    for step in (4, 5):
        line.lines.post(None, bytes([step]))
    assert [quick.receive(), quick.receive()] == [b"\x04", b"\x05"]
    assert [slow.receive(), slow.receive()] == [b"\x01", b"\x03"]
    line.close()


# --- the outbox ----------------------------------------------------------------------------------

Pipe = tuple["Connection[Any, Any]", "Connection[Any, Any]"]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ours, theirs = multiprocessing.Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


def unread(connection: Connection[Any, Any]) -> list[bytes]:
    """What stands in a connection at this moment."""
    found = []
    while connection.poll():
        found.append(connection.recv_bytes())
    return found


def test_small_requests_are_sent_at_once_and_in_order(pipe: Pipe) -> None:
    outbox = Outbox(pipe[0])
    requests = [bytes([number]) * 10 for number in range(20)]
    for request in requests:
        outbox.post(request)
    assert unread(pipe[1]) == requests


def test_requests_that_might_fill_the_pipe_wait_for_answers(pipe: Pipe) -> None:
    outbox = Outbox(pipe[0])
    requests = [bytes([number]) * 20_000 for number in range(4)]
    for request in requests:
        outbox.post(request)
    for request in requests:
        assert unread(pipe[1]) == [request]
        outbox.answered()
    assert unread(pipe[1]) == []


def test_a_small_request_does_not_overtake_a_large_one(pipe: Pipe) -> None:
    outbox = Outbox(pipe[0])
    for request in (b"first", b"second" * 10_000, b"third"):
        outbox.post(request)
    assert unread(pipe[1]) == [b"first"]
    reader = Thread(target=outbox.answered)
    reader.start()
    assert pipe[1].recv_bytes() == b"second" * 10_000
    reader.join()
    outbox.answered()
    assert unread(pipe[1]) == [b"third"]


def test_a_request_of_any_size_goes_through_to_a_worker_that_reads(pipe: Pipe) -> None:
    outbox = Outbox(pipe[0])
    received: list[bytes] = []
    reader = Thread(target=lambda: received.append(pipe[1].recv_bytes()))
    reader.start()
    outbox.post(bytes(LARGE))
    reader.join()
    assert [len(each) for each in received] == [LARGE]


@settings(deadline=None)
@given(st.lists(st.integers(0, 60_000), max_size=8))
def test_an_outbox_never_blocks_while_there_is_something_unread(sizes: list[int]) -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        outbox = Outbox(ours)
        requests = [bytes([number]) * size for number, size in enumerate(sizes)]
        for request in requests:
            outbox.post(request)
        received: list[bytes] = []
        while len(received) < len(requests):
            some = unread(theirs)
            assert some
            for each in some:
                received.append(each)
                outbox.answered()
        assert received == requests
