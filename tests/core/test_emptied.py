"""Steps without a batch: passed over in their turn, counted, and shifting no other."""

from __future__ import annotations

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
from picklable_loader.core.schedule import Policy, Schedule
from picklable_loader.core.streams import StreamPlan, StreamPosition
from picklable_loader.core.task import Task

from .test_schedule import plan_of


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


def test_the_place_of_a_stream_moves_behind_an_empty_step() -> None:
    position = StreamPosition()
    schedule = Schedule(StreamPlan([position], None), Policy(workers=1, budget=2), 0, [position])
    schedule.handle(Started())
    schedule.handle(Emptied(0, state="after 0"))
    assert schedule.positions() == (position,)
    schedule.handle(Wanted())
    assert schedule.positions() == (StreamPosition(1, state="after 0", state_at=1),)
