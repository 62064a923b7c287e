"""The arena: what one side can see is never written to by the other, and memory comes back."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from zoo.invariants import check_blocks
from zoo.processes import ForkedChild

from picklable_loader.fetching.transport import arena as arenas
from picklable_loader.fetching.transport import fork_safety
from picklable_loader.fetching.transport.arena import Arena, ArenaFull, ArenaReader, new_memory

MEGABYTE = 1024 * 1024


class Pair:
    """Both sides of an arena, in this process."""

    def __init__(self) -> None:
        self.fd = new_memory()
        self.writer = Arena(self.fd)
        self.reader = ArenaReader(self.fd)

    def send(self, data: Any) -> Any:
        """What the reader has of something that the writer gives."""
        return self.reader.open(self.writer.give(memoryview(data).cast("B")))

    def resident(self) -> int:
        """Bytes that the system keeps for it."""
        return os.fstat(self.fd).st_blocks * 512

    def close(self) -> None:
        self.reader.close()
        self.writer.close()
        os.close(self.fd)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def collected(pair: Pair) -> int:
    """Bytes in use, once what was returned is taken back."""
    gc.collect()
    pair.writer.collect()
    return pair.writer._blocks.in_use


def test_a_copy_comes_over_and_can_be_written_to(pair: Pair) -> None:
    data = np.arange(100_000, dtype=np.uint8)
    seen = pair.send(data)
    seen += 1
    assert (seen == data + np.uint8(1)).all() and data[1] == 1


def test_what_was_allocated_here_is_sent_without_a_copy(pair: Pair) -> None:
    array = pair.writer.allocate(MEGABYTE)
    array[:] = 7
    region = pair.writer.give(array)
    del array
    assert collected(pair) == MEGABYTE
    assert (pair.reader.open(region) == 7).all()
    assert collected(pair) == 0


def test_what_nobody_sends_is_free_when_nobody_sees_it(pair: Pair) -> None:
    array = pair.writer.allocate(MEGABYTE)
    tensor = torch.from_numpy(array)[5:]
    del array
    assert collected(pair) == MEGABYTE
    del tensor
    assert collected(pair) == 0


def test_what_was_sent_and_is_kept_by_the_writer_is_sent_again_as_a_copy(pair: Pair) -> None:
    cached = pair.writer.allocate(MEGABYTE)
    cached[:] = 1
    first = pair.send(cached)
    second = pair.send(cached)
    second[:] = 2
    assert (cached == 1).all() and (first == 1).all()
    del first
    assert collected(pair) == 2 * MEGABYTE  # the writer still sees the one, the reader the other
    third = pair.send(cached)
    assert (third == 1).all()


WAYS_TO_KEEP: dict[str, Callable[[Any], Any]] = {
    "the array": lambda array: array,
    "a slice of it": lambda array: array[10:20],
    "another type of it": lambda array: array.view(np.int32).reshape(2, -1)[:, ::2],
    "a memoryview": lambda array: memoryview(array)[3:9],
    "a tensor": torch.from_numpy,
    "a view of a tensor": lambda array: torch.from_numpy(array).view(torch.float32)[1:3],
    "a tensor over its buffer": lambda array: torch.frombuffer(array, dtype=torch.int16),
    "the array of a tensor": lambda array: torch.from_numpy(array).numpy()[4:],
    "a storage": lambda array: torch.frombuffer(array, dtype=torch.uint8).untyped_storage(),
    "an array over its buffer": lambda array: np.frombuffer(array, np.uint8)[5:],
    "a detached tensor": lambda array: torch.from_numpy(array).detach().data,
    "within a cycle": lambda array: (lambda cell: cell.append(cell) or cell)([array]),
}


@pytest.mark.parametrize("keep", WAYS_TO_KEEP.values(), ids=WAYS_TO_KEEP.keys())
def test_a_region_is_not_used_again_while_anything_sees_it(
    pair: Pair, keep: Callable[[Any], Any]
) -> None:
    held = keep(pair.send(np.full(MEGABYTE, 5, np.uint8)))
    gc.collect()
    assert collected(pair) == MEGABYTE
    assert collected(pair) == MEGABYTE, held
    del held
    assert collected(pair) == 0


def test_memory_goes_back_to_the_system_when_less_is_needed(pair: Pair) -> None:
    many = [pair.send(np.ones(4 * MEGABYTE, np.uint8)) for _ in range(20)]
    assert pair.resident() >= 80 * MEGABYTE
    many.clear()
    for _ in range(3 * arenas._SHRINK_EVERY):
        pair.writer.collect()
        pair.send(np.ones(MEGABYTE, np.uint8))
    assert pair.resident() <= 8 * MEGABYTE
    assert pair.writer.bytes <= 8 * MEGABYTE


def test_a_steady_stream_keeps_its_warm_memory(pair: Pair) -> None:
    sizes = []
    for _ in range(3 * arenas._SHRINK_EVERY):
        pair.writer.collect()
        pair.send(np.ones(4 * MEGABYTE, np.uint8))
        sizes.append(pair.resident())
    assert set(sizes[1:]) == {sizes[1]} and sizes[1] <= 9 * MEGABYTE


def test_a_batch_larger_than_any_segment_so_far_gets_its_own(pair: Pair) -> None:
    small = pair.send(np.full(MEGABYTE, 1, np.uint8))
    large = pair.send(np.full(arenas._SEGMENT + MEGABYTE, 2, np.uint8))
    assert (small == 1).all() and (large == 2).all()


def test_few_descriptors_are_needed_whatever_is_kept(pair: Pair) -> None:
    before = len(os.listdir("/proc/self/fd"))
    kept = [pair.send(bytes(100_000)) for _ in range(3000)]
    assert len(kept) == 3000
    assert len(os.listdir("/proc/self/fd")) - before <= 12


@pytest.mark.parametrize("size", [19_267_584, 3_000_000, 70_000])
def test_a_locked_arena_fits_its_buffers_and_its_writer_makes_all_pages(size: int) -> None:
    fd = new_memory(locked=True)
    try:
        arena = Arena(fd)
        before = os.fstat(fd)
        buffers = [arena.allocate(size) for _ in range(7)]
        after = os.fstat(fd)
        whole, more = -(-size // 4096) * 4096, after.st_size - before.st_size
        assert more % whole == 0 and more <= 7 * whole + 2**24
        assert after.st_blocks * 512 >= more
        assert all(not buffer[::4096].any() for buffer in buffers)
        arena.close()
    finally:
        os.close(fd)


def test_a_reader_of_a_locked_arena_names_the_segments_of_what_it_has_opened() -> None:
    fd = new_memory(locked=True)
    writer, reader = Arena(fd), ArenaReader(fd, locked=True)
    size = arenas._LOCKED_SEGMENT // 2
    regions = [writer.give(bytes(size)) for _ in range(3)]
    opened = [reader.open(region) for region in regions]
    one, same, other = reader.opened_segments()
    assert one is same is not other
    assert not reader.opened_segments()
    del opened
    writer.close(), reader.close(), os.close(fd)


def test_no_memory_is_an_error_that_says_so(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arenas.os, "ftruncate", full)
    with pytest.raises(ArenaFull, match="No space"):
        pair.writer.allocate(MEGABYTE)
    assert pair.writer._blocks.in_use == 0


def test_a_ledger_that_is_full_is_an_error_that_says_so(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arenas, "_SLOTS", 2)
    kept = [pair.send(bytes(MEGABYTE)) for _ in range(2)]
    with pytest.raises(ArenaFull, match="2 regions"):
        pair.writer.allocate(MEGABYTE)
    del kept
    assert collected(pair) == 0
    pair.writer.allocate(MEGABYTE)


# --- forks ---------------------------------------------------------------------------------------


def test_what_a_forked_child_sees_is_not_used_again_before_it_ends(pair: Pair) -> None:
    seen = [pair.send(np.full(MEGABYTE, 5, np.uint8))]
    child = ForkedChild(lambda: bool((seen[0] == 5).all()))
    seen.clear()
    assert collected(pair) == MEGABYTE
    other = pair.send(np.full(MEGABYTE, 6, np.uint8))
    assert child.tell()
    del other
    pair.send(np.zeros(1, np.uint8))
    assert collected(pair) == 0


def test_what_a_child_lets_go_of_stays_its_parents(pair: Pair) -> None:
    seen = [pair.send(np.full(MEGABYTE, 5, np.uint8))]
    child = ForkedChild(seen.clear)
    child.tell()
    assert collected(pair) == MEGABYTE
    assert (seen[0] == 5).all()
    seen.clear()
    assert collected(pair) == 0


def test_a_child_that_sees_nothing_holds_nothing_up(pair: Pair) -> None:
    pair.send(bytes(MEGABYTE))
    gc.collect()
    child = ForkedChild(lambda: None)
    pair.send(bytes(MEGABYTE))
    assert collected(pair) == 0
    child.tell()


def test_children_that_are_forked_together_need_one_pipe(pair: Pair) -> None:
    seen = [pair.send(bytes(MEGABYTE))]
    before = len(os.listdir("/proc/self/fd"))
    children = [ForkedChild(lambda: None) for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) - before <= 3 * 2 + 2
    seen.clear()
    assert collected(pair) == MEGABYTE
    for child in children:
        child.tell()
    pair.send(np.zeros(1, np.uint8))
    assert collected(pair) == 0


#: where a handler may raise; right after a pipe was made, or closed, its descriptors are lost
NOTING = "_note", "note", "_next_children", "_forget_the_dead", "alive", "open"


def free_in_another_thread(lock: Any) -> bool:
    found: list[bool] = []

    def take() -> None:
        found.append(lock.acquire(timeout=5))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found[0]


def test_a_signal_handler_that_raises_while_a_child_is_forked_changes_nothing(pair: Pair) -> None:
    for count in range(1, 200):
        left = count

        def stop(frame: Any, event: str, _: Any) -> None:
            """Raises where a handler can: as a function begins, or right after one of C's."""
            nonlocal left
            code = frame.f_code
            if event in ("call", "c_return") and code.co_filename == fork_safety.__file__:
                left -= code.co_name in NOTING
                if left == 0:
                    left = -1
                    raise KeyboardInterrupt

        seen = [pair.send(np.full(MEGABYTE, 5, np.uint8))]
        before = sys.getprofile()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "unraisablehook", lambda _: None)  # Python prints it
            sys.setprofile(stop)
            child = ForkedChild(lambda: bool((seen[0] == 5).all()))
            sys.setprofile(before)
        seen.clear()
        assert collected(pair) == MEGABYTE
        pair.send(np.full(MEGABYTE, 6, np.uint8))
        assert free_in_another_thread(fork_safety.guard)
        assert child.tell()
        pair.send(np.zeros(1, np.uint8))
        assert collected(pair) == 0
        if left > 0:
            break
    assert 5 < count < 199


# --- any order of events -------------------------------------------------------------------------


class ArenaMachine(RuleBasedStateMachine):
    """A writer that sends, caches and drops, and a reader that keeps what it likes, and forks."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.number = 0
        #: what each side can see, and what must stand there
        self.kept: list[tuple[Any, int]] = []
        self.cached: list[tuple[Any, int]] = []
        #: processes that were forked, each with what it must still see when it ends
        self.children: list[tuple[ForkedChild, list[tuple[int, int]]]] = []

    def _next(self) -> int:
        self.number = (self.number + 1) % 251
        return self.number

    @rule(size=st.integers(1, 900_000), keep=st.booleans())
    def send_a_copy(self, size: int, keep: bool) -> None:
        number = self._next()
        seen = self.pair.send(np.full(size, number, np.uint8))
        assert len(seen) == size and seen[0] == seen[-1] == number
        if keep:
            self.kept.append((seen, number))

    @rule(size=st.integers(1, 900_000), keep=st.booleans(), cache=st.booleans())
    def send_what_was_allocated(self, size: int, keep: bool, cache: bool) -> None:
        number = self._next()
        array = self.pair.writer.allocate(size)
        array[:] = number
        seen = self.pair.send(array)
        if cache:
            self.cached.append((array, number))
        if keep:
            self.kept.append((seen, number))

    @rule(place=st.integers(0, 50), keep=st.booleans())
    def send_again(self, place: int, keep: bool) -> None:
        if self.cached:
            array, number = self.cached[place % len(self.cached)]
            seen = self.pair.send(array)
            if keep:
                self.kept.append((seen, number))

    @rule(place=st.integers(0, 50))
    def drop(self, place: int) -> None:
        if self.kept:
            del self.kept[place % len(self.kept)]

    @rule(place=st.integers(0, 50))
    def uncache(self, place: int) -> None:
        if self.cached:
            del self.cached[place % len(self.cached)]

    @precondition(lambda self: len(self.children) < 3)
    @rule()
    def fork(self) -> None:
        kept = list(self.kept)
        child = ForkedChild(lambda: [(int(array[0]), int(array[-1])) for array, _ in kept])
        self.children.append((child, [(number, number) for _, number in kept]))

    @rule()
    def a_child_ends(self) -> None:
        if self.children:
            child, expected = self.children.pop(0)
            assert child.tell() == expected

    @rule(times=st.integers(1, 70))
    def collect(self, times: int) -> None:
        for _ in range(times):
            self.pair.writer.collect()

    @invariant()
    def everything_that_is_seen_stands(self) -> None:
        for array, number in (*self.kept, *self.cached):
            assert array[0] == array[len(array) // 2] == array[-1] == number
        check_blocks(self.pair.writer._blocks)

    def teardown(self) -> None:
        while self.children:
            self.a_child_ends()
        self.kept.clear()
        self.pair.send(bytes(1))  # the reader looks for what its children have left
        self.cached.clear()
        for _ in range(2 * arenas._SHRINK_EVERY):
            self.pair.writer.collect()
        assert self.pair.writer._blocks.in_use == 0
        assert not self.pair.writer._by_slot and not self.pair.writer._by_address
        self.pair.close()


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
