"""Which worker reads a stream: one that has less to do, once that is known."""

from __future__ import annotations

import pytest

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
    assert answer(Placement(2, 3, moving=True), [9, 5, 1], 12) == [2], "exactly nine tenths"


def test_no_stream_moves_where_each_has_a_worker_of_its_own() -> None:
    assert not Placement(2, 2, moving=True).moving
    assert Placement(2, 3, moving=True).moving
    assert not Placement(2, 3, moving=False).moving


def test_a_streams_cost_is_the_average_of_its_batches_however_many_have_come() -> None:
    placement = Placement(2, 3, moving=True)
    for stream, cost in [(0, 100)] * 6 + [(1, 88)] * 5 + [(2, 12)]:
        placement.sent(stream)
        placement.answered(stream, cost)
    assert placement.may_move(2), "of 112 the busiest worker has 100 then"


def test_a_stream_that_has_ended_is_no_work_of_its_worker() -> None:
    costs = [15, 1, 10]
    assert answer(Placement(2, 3, moving=True), costs, 12) == [2]
    placement = Placement(2, 3, moving=True)
    answer(placement, costs, 11)
    placement.ended(0)
    placement.sent(2)
    placement.answered(2, 10)
    assert not placement.may_move(2)


def test_a_stream_that_cannot_move_is_given_up_after_twice_the_patience_which_doubles() -> None:
    placement, costs = Placement(2, 4, moving=True), [10, 1, 10, 1]
    assert answer(placement, costs, 31) == [0]
    assert answer(placement, costs, 1) == []
    assert answer(placement, costs, 31) == []
    assert answer(placement, costs, 1) == [0]


def test_only_the_stream_that_was_chosen_moves() -> None:
    placement, costs = Placement(2, 4, moving=True), [10, 1, 10, 1]
    answer(placement, costs, 16)
    with pytest.raises(AssertionError, match="may not move"):
        placement.move(2)
    placement.move(0)
    assert [placement.of(stream) for stream in range(4)] == [1, 1, 0, 1]
    with pytest.raises(AssertionError, match="may not move"):
        placement.move(0)


def test_what_a_dead_worker_had_is_not_under_way_any_more() -> None:
    for dead, may_move in ((0, [0]), (1, [])):
        placement = Placement(2, 4, moving=True)
        for stream in range(4):
            placement.sent(stream)
        placement.died(dead)
        assert answer(placement, [10, 1, 10, 1], 16) == may_move


def test_tasks_behind_one_that_workers_die_of_are_no_work_of_their_worker() -> None:
    placement, steps = Placement(2, 4, moving=False), {0: 9, 1: 10}
    assert placement.least_busy(steps, {2: 3}, {2}, budget=4) == 0
    assert placement.least_busy(steps, {2: 3}, set(), budget=4) == 1
    assert placement.least_busy(steps, {2: 2, 3: 2}, set(), budget=4) is None


def test_a_budget_of_one_task_for_each_worker_is_one_for_each() -> None:
    placement = Placement(2, 2, moving=False)
    assert placement.least_busy({0: 9, 1: 10}, {0: 1, 1: 1}, set(), budget=2) is None
    assert placement.least_busy({0: 9, 1: 10}, {0: 1}, set(), budget=1) == 1
    assert placement.least_busy({0: 9, 1: 10}, {0: 1, 1: 1}, set(), budget=1) is None
