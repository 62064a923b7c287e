"""What is always true of the objects of core/ and of an arena's blocks, as checks."""

from __future__ import annotations

from picklable_loader.core.phases import Phase
from picklable_loader.core.positions import StreamPositions
from picklable_loader.core.schedule import Schedule
from picklable_loader.core.window import Window
from picklable_loader.fetching.transport.allocator import Blocks


def check_schedule(schedule: Schedule) -> None:
    """Fail unless the window, the positions and the dispatch agree."""
    check_window(schedule._window)
    check_positions(schedule._streams)
    assert not (schedule._sends_at_once and schedule._window.held)


def check_window(window: Window) -> None:
    """Fail unless every invariant in the comments of the window's fields holds."""
    entries = window.entries
    assert list(entries) == sorted(entries)
    assert all(entry.task.step == step for step, entry in entries.items())
    assert not entries.keys() & window._forgotten.keys()
    assert all(entry.phase is Phase.FORGOTTEN for entry in window._forgotten.values())
    phases = [entry.phase for entry in entries.values()]
    assert Phase.GONE not in phases and Phase.FORGOTTEN not in phases
    here = {step for step, entry in entries.items() if entry.phase is Phase.HERE}
    assert here == {step for step, entry in entries.items() if entry.answer is not None}
    assert here == set(window.ready) and len(here) == len(window.ready)
    assert window.held == phases.count(Phase.HELD)
    assert window.under_way == phases.count(Phase.SENT) + len(window._forgotten)
    assert window.bytes == sum(entry.answer.bytes for entry in entries.values() if entry.answer)


def check_positions(positions: StreamPositions) -> None:
    """Fail if a position is behind its state and its tasks."""
    assert all(each.state_at + len(each.since) <= each.given for each in positions._positions)


def check_blocks(blocks: Blocks) -> None:
    """Fail unless used and free blocks fill the segments exactly."""
    assert blocks._free == sorted(blocks._lengths)
    assert blocks.in_use == sum(blocks._used.values()) <= blocks.peak
    spans = sorted([*blocks._used.items(), *blocks._lengths.items()])
    for segment, end in blocks._segments.items():
        address = segment
        for start, length in spans:
            if segment <= start < end:
                assert start == address and length > 0
                address += length
        assert address == end
        assert segment <= blocks._warm_ends[segment] <= end
    for start, length in blocks._used.items():
        segment, _ = blocks.segment_of(start)
        assert start + length <= blocks._warm_ends[segment]
