"""Steps without a batch: passed over in their turn, counted, and shifting no other."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picklable_loader.core.cursor import Cursor
from picklable_loader.core.events import (
    Arrived,
    Deliver,
    Drop,
    Emptied,
    Finish,
    PassEmpty,
    Send,
    Skipped,
    Started,
    Wanted,
)
from picklable_loader.core.plan import Plan
from picklable_loader.core.schedule import Policy, Schedule
from picklable_loader.core.snapshot import from_plain, to_plain
from picklable_loader.core.streams import StreamPlan, StreamPosition
from picklable_loader.core.task import Task
from picklable_loader.errors import InvalidTransition

from .test_schedule import POLICIES, World, plan_of


def test_an_empty_step_is_passed_over_and_the_next_one_delivered_at_once() -> None:
    schedule = Schedule(plan_of(3), Policy(workers=1, budget=3))
    schedule.handle(Started())
    assert schedule.handle(Emptied(0)) == []
    schedule.handle(Arrived(1))
    assert schedule.delivered == 0, "nobody has asked for it yet"
    assert schedule.handle(Wanted()) == [PassEmpty(0), Deliver(1)]
    assert schedule.delivered == 2


def test_a_lazy_schedule_asks_for_the_next_step_behind_an_empty_one() -> None:
    schedule = Schedule(plan_of(2), Policy(lazy=True))
    schedule.handle(Started())
    schedule.handle(Wanted())
    assert schedule.handle(Emptied(0)) == [Send(None, Task(1, [1], 1)), PassEmpty(0)]
    assert schedule.handle(Arrived(1)) == [Deliver(1)]


def test_an_epoch_may_end_with_empty_steps() -> None:
    schedule = Schedule(plan_of(2), Policy(workers=1, budget=2))
    schedule.handle(Started())
    schedule.handle(Emptied(1))
    schedule.handle(Wanted())
    assert schedule.handle(Emptied(0)) == [PassEmpty(0), PassEmpty(1), Finish()]


def test_an_empty_step_that_is_skipped_is_dropped_like_any_other() -> None:
    schedule = Schedule(plan_of(3), Policy(workers=1, budget=2))
    schedule.handle(Started())
    schedule.handle(Emptied(0))
    assert schedule.handle(Skipped(2))[0] == Drop(0)
    assert schedule.handle(Emptied(1)) == [Drop(1)]
    assert schedule.delivered == 2


def test_a_step_cannot_be_empty_twice() -> None:
    schedule = Schedule(plan_of(3), Policy(workers=1, budget=2))
    schedule.handle(Started())
    schedule.handle(Emptied(1))
    with pytest.raises(InvalidTransition, match="here"):
        schedule.handle(Emptied(1))
    schedule.validate()


def test_the_place_of_a_stream_moves_behind_an_empty_step() -> None:
    position = StreamPosition()
    schedule = Schedule(StreamPlan([position], None), Policy(workers=1, budget=2), 0, [position])
    schedule.handle(Started())
    schedule.handle(Emptied(0, state="after 0"))
    assert schedule.positions() == (position,)
    schedule.handle(Wanted())
    assert schedule.positions() == (StreamPosition(1, state="after 0", state_at=1),)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["want", "answer", "pickle"]), st.integers(0, 7)), max_size=60
)
EMPTY = st.sets(st.integers(0, 24))


@settings(max_examples=250, deadline=None)
@given(POLICIES, ACTIONS, EMPTY, st.integers(0, 25))
def test_each_step_is_either_delivered_or_passed_over_once_and_in_its_turn(
    policy: Policy, actions: list[tuple[str, int]], empty: set[int], length: int
) -> None:
    world = World(Schedule(plan_of(length), policy), empty)
    for action, choice in actions:
        world.act(action, choice)
    world.finish()
    full, void = set(range(length)) - empty, set(range(length)) & empty
    assert (sorted(world.delivered), sorted(world.passed)) == (sorted(full), sorted(void))
    if policy.in_order:
        assert (world.delivered, world.passed) == (sorted(full), sorted(void))
    assert world.schedule.delivered == length


@settings(max_examples=250, deadline=None)
@given(POLICIES, POLICIES, ACTIONS, EMPTY, st.integers(0, 25))
def test_a_snapshot_at_any_point_passes_over_what_had_not_been_passed_over(
    policy: Policy,
    other: Policy,
    actions: list[tuple[str, int]],
    empty: set[int],
    length: int,
) -> None:
    world = World(Schedule(plan_of(length), policy), empty)
    for action, choice in actions:
        world.act(action, choice)
    schedule = world.schedule
    position = schedule.delivered, schedule.plan.next_step, schedule.plan.position
    saved = json.loads(json.dumps(to_plain(Cursor(0, *position, schedule.window()), {})))
    cursor, _ = from_plain(saved)
    plan = plan_of(length)
    plan.order.seek(cursor.position)
    rest = Plan(plan.order, plan.grouping, cursor.next_step, cursor.position, cursor.window)
    again = World(Schedule(rest, other, cursor.step), empty)
    again.finish()
    steps = set(range(length))
    assert sorted(world.delivered + again.delivered) == sorted(steps - empty)
    assert sorted(world.passed + again.passed) == sorted(steps & empty)
