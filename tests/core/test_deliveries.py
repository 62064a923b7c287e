"""The last deliveries: what is remembered, what is taken back, and what a state behind them has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zoo.orders import sequence

from picklable_loader.core.deliveries import Deliveries, Delivery
from picklable_loader.core.events import (
    Arrived,
    Emptied,
    Failed,
    Interrupted,
    Skipped,
    Started,
    Wanted,
)
from picklable_loader.core.plan import Grouping, Plan, Unit
from picklable_loader.core.schedule import Policy, Schedule
from picklable_loader.core.streams import StreamPlan, StreamPosition
from picklable_loader.core.task import Task


def delivery(step: int, counts: bool = True) -> Delivery:
    return Delivery(step, Task(step, [step], step), None, counts, step - 1)


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 4))
def test_the_last_so_many_are_remembered_and_the_empty_steps_between_them(
    counts: list[bool], remember: int
) -> None:
    deliveries = Deliveries(remember, -1)
    for step, each in enumerate(counts):
        deliveries.add(delivery(step, each))
    counting = [step for step, each in enumerate(counts) if each]
    assert len(deliveries) == min(remember, len(counting))
    for behind in range(1, len(deliveries) + 1):
        undone = [each.task.step for each in deliveries.last(behind)]
        assert undone == list(range(len(counts) - 1, counting[-behind] - 1, -1))


def test_only_what_the_consumer_has_not_got_is_taken_back() -> None:
    deliveries = Deliveries(3, -1)
    deliveries.add(delivery(0))
    deliveries.add(delivery(1))
    assert deliveries.beyond(handed_over=2) is None
    last = deliveries.beyond(handed_over=1)
    assert last == delivery(1)
    deliveries.take_back(last)
    assert len(deliveries) == 1 and deliveries.beyond(handed_over=1) is None


def test_a_schedule_remembers_one_delivery_unless_more_are_asked_for() -> None:
    for remember, most in (((), 1), ((4,), 4)):
        plan = Plan(sequence(range(9)), Grouping(Unit.SAMPLE))
        schedule = Schedule(plan, Policy(budget=2), 0, (), *remember)
        schedule.handle(Started())
        for step in range(6):
            schedule.handle(Arrived(step))
            schedule.handle(Wanted())
        assert len(schedule.deliveries) == most


def test_the_newest_step_is_the_one_before_unless_a_state_says_that_it_was_skipped() -> None:
    plan = Plan(sequence(range(9)), Grouping(Unit.SAMPLE))
    assert Schedule(plan, Policy()).delivered == 0
    assert Schedule(plan, Policy()).deliveries.newest == -1
    assert Schedule(plan, Policy(), 3).deliveries.newest == 2
    assert Schedule(plan, Policy(), 3, newest=0).deliveries.newest == 0


def test_nothing_is_remembered_from_before_a_skip() -> None:
    schedule = Schedule(Plan(sequence(range(9)), Grouping(Unit.SAMPLE)), Policy(budget=2), 0, (), 3)
    schedule.handle(Started())
    for step in range(3):
        schedule.handle(Arrived(step))
        schedule.handle(Wanted())
    assert len(schedule.deliveries) == 3
    schedule.handle(Skipped(1))
    assert len(schedule.deliveries) == 0


@given(
    st.lists(st.sampled_from([Arrived, Arrived, Failed, Emptied]), min_size=1, max_size=20),
    st.integers(1, 5),
    st.integers(1, 4),
    st.data(),
)
def test_what_is_undone_and_what_is_under_way_are_all_that_was_not_delivered_before(
    kinds: list[type], budget: int, remember: int, data: st.DataObject
) -> None:
    plan = Plan(sequence(range(30)), Grouping(Unit.SAMPLE))
    schedule = Schedule(plan, Policy(budget=budget), 0, (), remember)
    schedule.handle(Started())
    for step, kind in enumerate(kinds):
        schedule.handle(kind(step))
        schedule.handle(Wanted())
        if data.draw(st.integers(0, 9)) == 0:
            schedule.handle(Interrupted(schedule.delivered))  # the consumer has all of them
            schedule.handle(Started())
    for behind in range(1, len(schedule.deliveries) + 1):
        undone = schedule.deliveries.last(behind)
        before = undone[-1].delivered
        steps = [each.task.step for each in undone]
        steps += [task.step for task in (*schedule.window(), *plan.backlog)]
        assert sorted(steps) == list(range(before, plan.next_step))
        got = kinds[before : schedule.delivered]
        assert sum(kind is not Emptied for kind in got) == behind


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_streams_go_back_to_their_positions_before_their_last_batches(behind: int) -> None:
    positions = [StreamPosition(), StreamPosition()]
    schedule = Schedule(StreamPlan(positions, None), Policy(budget=4), 0, positions, 3)
    schedule.handle(Started())
    before = [schedule.positions()]
    for step in range(5):
        schedule.handle(Arrived(step, state={"after": step}))
        schedule.handle(Wanted())
        before.append(schedule.positions())
    assert schedule.positions(schedule.deliveries.last(behind)) == before[-1 - behind]
