"""Blocks: what is in use never overlaps; what is free is found again; cold ends are given back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.invariants import check_blocks

from picklable_loader.fetching.transport.allocator import PAGE, Blocks


def blocks_of(*pages: int) -> Blocks:
    """Segments of so many pages, one after the other."""
    blocks, start = Blocks(), 0
    for count in pages:
        blocks.extend(start, count * PAGE)
        start += count * PAGE
    return blocks


def test_the_lowest_place_that_fits_is_taken() -> None:
    blocks = blocks_of(8)
    first, second, third = (blocks.allocate(2 * PAGE) for _ in range(3))
    assert (first, second, third) == (0, 2 * PAGE, 4 * PAGE)
    blocks.free(0)
    assert blocks.allocate(3 * PAGE) is None
    assert blocks.allocate(1) == 0


def test_only_ends_that_are_free_are_surplus_and_the_highest_go_first() -> None:
    blocks = blocks_of(4, 4)
    taken = [blocks.allocate(2 * PAGE) for _ in range(4)]
    assert blocks.warm == 8 * PAGE
    for start in taken[1:]:
        assert start is not None
        blocks.free(start)
    assert blocks.surplus(8 * PAGE) == []
    assert blocks.surplus(5 * PAGE) == [(4 * PAGE, 4 * PAGE)]
    assert blocks.surplus(0) == [(2 * PAGE, 2 * PAGE)]
    assert (blocks.warm, blocks.surplus(0)) == (2 * PAGE, [])


def test_a_block_that_is_not_in_use_is_not_taken_back() -> None:
    with pytest.raises(KeyError):
        blocks_of(2).free(PAGE)


KINDS = st.sampled_from(["take", "take", "give", "surplus", "extend", "rest"])
STEPS = st.lists(st.tuples(KINDS, st.integers(0, 60)), max_size=80)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_blocks_never_overlap_and_none_is_lost(steps: list[tuple[str, int]]) -> None:
    blocks, end, taken = blocks_of(16), 16 * PAGE, []
    for step, number in steps:
        if step == "take":
            size = 1 + number * PAGE // 5
            start = blocks.allocate(size)
            if start is not None:
                taken.append((start, size))
        elif step == "give" and taken:
            blocks.free(taken.pop(number % len(taken))[0])
        elif step == "surplus":
            before = blocks.warm
            found = blocks.surplus(number * PAGE)
            assert before - blocks.warm == sum(length for _, length in found)
            for cold, length in found:
                assert all(start + size <= cold or cold + length <= start for start, size in taken)
        elif step == "extend":
            blocks.extend(end, (1 + number) * PAGE)
            end += (1 + number) * PAGE
        elif step == "rest":
            blocks.reset_peak()
            assert blocks.peak == blocks.in_use
        check_blocks(blocks)
        spans = sorted(taken)
        assert all(one[0] + one[1] <= other[0] for one, other in zip(spans, spans[1:]))
    for start, _ in taken:
        blocks.free(start)
    assert blocks.in_use == 0
    assert blocks.allocate(16 * PAGE) == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 60))
def test_a_stream_of_like_batches_uses_the_same_pages_again(
    sizes: list[int], kept: int, batches: int
) -> None:
    blocks = blocks_of(4096)
    window: list[list[int]] = []
    for _ in range(batches):
        if len(window) == kept:
            for start in window.pop(0):
                blocks.free(start)
        taken = [blocks.allocate(size * PAGE) for size in sizes]
        window.append([start for start in taken if start is not None])
    batch = sum(sizes) * PAGE
    assert blocks.warm <= 2 * kept * batch
