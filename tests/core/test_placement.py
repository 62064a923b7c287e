"""Which worker reads a stream: one that has less to do, once that is known."""

from __future__ import annotations

from picklable_loader.core.placement import Placement


def answer(placement: Placement, costs: list[int], count: int) -> list[int]:
    """Streams that may move once so many batches have come, of each stream in turn."""
    for number in range(count):
        stream = number % len(costs)
        placement.sent(stream)
        placement.answered(stream, costs[stream])
    return [stream for stream in range(len(costs)) if placement.may_move(stream)]


def test_no_stream_moves_before_four_batches_of_each_have_come() -> None:
    costs = [10, 1, 10, 1]
    assert answer(Placement(2, 4, moving=True), costs, 15) == []
    assert answer(Placement(2, 4, moving=True), costs, 16) == [0]


def test_no_stream_moves_if_the_busiest_worker_would_have_more_than_nine_tenths_as_much() -> None:
    assert answer(Placement(2, 3, moving=True), [10, 10, 10], 12) == []
    assert answer(Placement(2, 3, moving=True), [10, 1, 10], 12) == [0]
    assert answer(Placement(2, 3, moving=True), [20, 19, 1], 12) == []
