"""The schedule as a machine: any interleaving of events, no process in sight."""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Set
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.invariants import check_schedule
from zoo.orders import Walked, sequence

from picklable_loader.core.cursor import Cursor
from picklable_loader.core.events import (
    Answered,
    Arrived,
    Budgeted,
    Condemn,
    Deliver,
    Died,
    Drop,
    Emptied,
    Ended,
    Failed,
    Fault,
    Finish,
    Flushed,
    Interrupted,
    LastState,
    LastStatesWanted,
    PassEmpty,
    Raise,
    Retract,
    Send,
    Skipped,
    Started,
    Told,
    Wanted,
)
from picklable_loader.core.order import SequenceOrder
from picklable_loader.core.phases import TRANSITIONS, Phase
from picklable_loader.core.plan import Grouping, Plan, Unit
from picklable_loader.core.schedule import Policy, Schedule
from picklable_loader.core.snapshot import from_plain, to_plain
from picklable_loader.core.task import Task
from picklable_loader.errors import InvalidTransition


class Numbers:
    """Makes the sequence of an order; a class, so that a schedule can be pickled."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self) -> range:
        return range(self.length)


def plan_of(length: int, batch_size: int = 1, drop_last: bool = False) -> Plan:
    grouping = Grouping(Unit.SAMPLE_OF_BATCH, batch_size, drop_last)
    return Plan(SequenceOrder(Numbers(length)), grouping)


def test_a_lazy_schedule_sends_one_task_when_it_is_wanted() -> None:
    schedule = Schedule(plan_of(2), Policy(lazy=True))
    assert schedule.handle(Started()) == []
    assert schedule.handle(Wanted()) == [Send(None, Task(0, [0], 0))]
    assert schedule.handle(Arrived(0)) == [Deliver(0)]
    assert schedule.handle(Wanted()) == [Send(None, Task(1, [1], 1))]
    assert schedule.handle(Failed(1)) == [Raise(1)]
    assert schedule.handle(Wanted()) == [Finish()]


def test_the_window_is_filled_at_the_start_and_before_each_delivery() -> None:
    schedule = Schedule(plan_of(5), Policy(workers=2, budget=2))
    sent = [Send(None, Task(0, [0], 0)), Send(None, Task(1, [1], 1))]
    assert schedule.handle(Started()) == sent
    assert schedule.handle(Arrived(0)) == []
    assert schedule.handle(Wanted()) == [Send(None, Task(2, [2], 2)), Deliver(0)]


def test_what_remains_is_what_the_consumer_has_not_got_also_when_all_is_drawn() -> None:
    schedule = Schedule(plan_of(3), Policy(workers=2, budget=5))
    assert schedule.remaining() == 3
    sent = schedule.handle(Started())
    for left in (2, 1, 0):
        delivered_by(schedule, sent, 1)
        assert schedule.remaining() == left


def test_a_step_is_awaited_from_its_draw_to_its_delivery_and_takes_no_bytes_unless_it_says() -> (
    None
):
    schedule = Schedule(plan_of(2), Policy(workers=1, budget=1))
    assert not schedule.awaits(0)
    schedule.handle(Started())
    assert schedule.awaits(0) and not schedule.awaits(1)
    schedule.handle(Arrived(0))
    assert schedule.waiting == 1 and schedule.held_bytes == 0
    schedule.handle(Wanted())
    assert not schedule.awaits(0)


def test_a_batch_that_is_early_waits_for_the_head_of_the_line() -> None:
    schedule = Schedule(plan_of(2), Policy(workers=2, budget=2))
    schedule.handle(Started())
    assert schedule.handle(Arrived(1)) == []
    assert schedule.handle(Wanted()) == []
    assert schedule.handle(Arrived(0)) == [Deliver(0)]
    assert schedule.handle(Wanted()) == [Deliver(1)]


def test_out_of_order_a_batch_is_delivered_as_it_arrives() -> None:
    schedule = Schedule(plan_of(2), Policy(workers=2, budget=2, in_order=False))
    schedule.handle(Started())
    schedule.handle(Wanted())
    assert schedule.handle(Arrived(1)) == [Deliver(1)]


def test_a_skipped_task_that_a_worker_has_is_awaited_and_dropped() -> None:
    schedule = Schedule(plan_of(2), Policy(workers=1, budget=1))
    schedule.handle(Started())
    assert schedule.handle(Skipped(1)) == [Send(None, Task(1, [1], 1))]
    assert schedule.handle(Arrived(0)) == [Drop(0)]
    assert schedule.delivered == 1


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_the_sampler_raises_waits_for_what_was_drawn_before(interrupted: bool) -> None:
    """An interruption has that drawn again, and the sampler raises only once."""

    class Failing(SequenceOrder):
        seekable = False

        def take(self, count: int) -> list[Any]:
            if self._position == 1:
                self._position += 1
                raise KeyError("sampler")
            return super().take(count)

    plan = Plan(Failing(Numbers(4)), Grouping(Unit.SAMPLE_OF_BATCH))
    schedule = Schedule(plan, Policy(workers=1, budget=3))
    assert schedule.handle(Started()) == [Send(None, Task(0, [0], 0))]
    if interrupted:
        schedule.handle(Interrupted(0))
        assert schedule.handle(Started()) == [Send(None, Task(0, [0], 0))]
    schedule.handle(Arrived(0))
    assert schedule.handle(Wanted()) == [Deliver(0)]
    [fault] = schedule.handle(Wanted())
    assert isinstance(fault, Fault) and isinstance(fault.error, KeyError)
    assert schedule.handle(Wanted())[0] == Send(None, Task(1, [2], 1))


@pytest.mark.parametrize("event", [Arrived(0), Failed(0), Ended(0)])
def test_an_event_of_a_task_that_is_gone_is_a_bug_and_changes_nothing(event: Any) -> None:
    schedule = Schedule(plan_of(3), Policy(lazy=True))
    schedule._past.append(event)  # only the note of it changes
    before = pickle.dumps(schedule)
    schedule._past.clear()
    with pytest.raises(InvalidTransition, match="gone"):
        schedule.handle(event)
    assert pickle.dumps(schedule) == before


def delivered_by(schedule: Schedule, sent: list[Any], count: int) -> list[int]:
    """The next steps that a schedule delivers, if each task is answered as soon as it is sent.

    Args:
        schedule: the schedule.
        sent: instructions that were given before.
        count: how many steps.
    """
    steps: list[int] = []
    while len(steps) < count:
        sent += schedule.handle(Wanted())
        while sent:
            instruction = sent.pop(0)
            if isinstance(instruction, Send):
                sent += schedule.handle(Arrived(instruction.task.step))
            elif isinstance(instruction, Deliver):
                steps.append(instruction.step)
    return steps


@pytest.mark.parametrize("policy", [Policy(lazy=True), Policy(workers=2, budget=3)], ids=str)
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("delivered", [1, 2, 4])
def test_an_interruption_loses_no_step_and_repeats_none(
    policy: Policy, lost: bool, delivered: int
) -> None:
    """The consumer has got all that was delivered, or all but the last batch."""
    schedule = Schedule(plan_of(6), policy)
    delivered_by(schedule, schedule.handle(Started()), delivered)
    retracted = schedule.handle(Interrupted(delivered - lost))
    assert retracted == ([Retract(delivered - 1)] if lost else [])
    check_schedule(schedule)
    assert schedule.delivered == delivered - lost and not schedule.under_way
    left = range(delivered - lost, 6)
    assert delivered_by(schedule, schedule.handle(Started()), len(left)) == list(left)
    assert schedule.handle(Wanted()) == [Finish()]


@pytest.mark.parametrize("lost", [False, True])
def test_an_interruption_that_is_interrupted_is_done_once_more(lost: bool) -> None:
    """At whatever line the second signal comes."""
    at, interrupted = 0, True
    while interrupted:
        at += 1
        schedule = Schedule(plan_of(7), Policy(workers=2, budget=3))
        delivered_by(schedule, schedule.handle(Started()), 2)
        lines, interrupted = 0, False

        def line(frame: Any, event: str, _: Any) -> Any:
            nonlocal lines
            lines += event == "line" and frame.f_code.co_filename.endswith(CORE)
            if lines == at:
                raise KeyboardInterrupt
            return line

        before = sys.gettrace()
        sys.settrace(line)
        try:
            schedule.handle(Interrupted(2 - lost))
        except KeyboardInterrupt:
            interrupted = True
            sys.settrace(before)
            schedule.handle(Interrupted(2 - lost))
        finally:
            sys.settrace(before)
        check_schedule(schedule)
        left = list(range(2 - lost, 7))
        assert schedule.delivered == 2 - lost, f"line {at}"
        assert delivered_by(schedule, schedule.handle(Started()), len(left)) == left, f"line {at}"
        assert schedule.handle(Wanted()) == [Finish()]
    assert at > 30


CORE = ("schedule.py", "plan.py", "deliveries.py", "window.py", "positions.py")


def test_a_step_that_is_flushed_twice_comes_once_where_later_ones_were_delivered() -> None:
    schedule = Schedule(plan_of(3), Policy(budget=2, in_order=False))
    schedule.handle(Started())
    schedule.handle(Arrived(1))
    assert schedule.handle(Wanted())[-1] == Deliver(1)
    for _ in range(2):
        schedule.handle(Flushed())
    assert [task.step for task in schedule.plan.backlog] == [0, 2]
    dropped = [*schedule.handle(Arrived(0)), *schedule.handle(Arrived(2))]
    assert dropped == [Drop(0), Drop(2)]
    assert delivered_by(schedule, [], 2) == [0, 2]


def test_a_task_that_is_drawn_when_a_signal_comes_is_drawn_again() -> None:
    schedule = Schedule(plan_of(3), Policy(budget=2))

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    schedule._window.add = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        schedule.handle(Started())
    assert schedule.handle(Interrupted(0)) == []
    assert delivered_by(schedule, schedule.handle(Started()), 3) == [0, 1, 2]


def test_the_text_of_a_bug_has_the_last_64_events_without_states_and_feedback() -> None:
    schedule = Schedule(plan_of(99), Policy(budget=2))
    schedule.handle(Started({0: "state"}))
    answers = [Arrived(0, "state"), Failed(1, notes=[b"note"]), Arrived(2, notes=[b"note"])]
    for event in (*answers, Told(b"note"), LastStatesWanted(1), LastState(0, "state")):
        schedule.handle(event)
        if isinstance(event, Answered):
            schedule.handle(Wanted())
    with pytest.raises(InvalidTransition) as caught:
        schedule.handle(Failed(0))
    events = [Started(), Arrived(0), Wanted(), Failed(1), Wanted(), Arrived(2), Wanted()]
    events += [Told(b""), LastStatesWanted(1), LastState(0, None), Failed(0)]
    assert caught.value.past == tuple(map(repr, events))
    for _ in range(64):
        schedule.handle(Wanted())
    with pytest.raises(InvalidTransition) as caught:
        schedule.handle(Failed(0))
    assert caught.value.past == (*[repr(Wanted())] * 63, repr(Failed(0)))


@pytest.mark.parametrize("kind", [Arrived, Emptied])
def test_a_second_answer_for_a_task_that_waits_is_a_bug(kind: Any) -> None:
    schedule = Schedule(plan_of(3), Policy(workers=1, budget=2))
    schedule.handle(Started())
    schedule.handle(kind(1))
    with pytest.raises(InvalidTransition, match="here"):
        schedule.handle(kind(1))
    check_schedule(schedule)


def test_every_phase_but_the_last_has_a_way_on() -> None:
    assert {start for start, _ in TRANSITIONS} == set(Phase) - {Phase.GONE}


# --- deaths --------------------------------------------------------------------------------------


def test_what_a_dead_worker_owed_is_done_again() -> None:
    schedule = Schedule(plan_of(3), Policy(workers=2, budget=2))
    first, second = schedule.handle(Started())
    assert schedule.handle(Died(1, [1], 1)) == [second]
    assert schedule.handle(Died(0, [0, 1])) == [first, second]
    schedule.handle(Wanted())
    assert schedule.handle(Arrived(0))[-1] == Deliver(0)


def test_a_task_that_was_skipped_is_not_done_again() -> None:
    schedule = Schedule(plan_of(3), Policy(workers=1, budget=1))
    schedule.handle(Started())
    schedule.handle(Skipped(1))
    assert schedule.handle(Died(0, [0], 0)) == []
    assert schedule.under_way == 1


@pytest.mark.parametrize("in_order", [True, False])
def test_a_task_that_workers_die_of_is_given_up_once_all_before_it_is_delivered(
    in_order: bool,
) -> None:
    schedule = Schedule(plan_of(9), Policy(2, 2, most_deaths=2, in_order=in_order))
    schedule.handle(Started())
    schedule.handle(Died(1, [1], 1))
    assert schedule.handle(Died(0, [1, 0], 1)) == [Send(None, Task(0, [0], 0))]
    assert schedule.handle(Wanted()) == []
    assert schedule.handle(Arrived(0)) == [Send(None, Task(2, [2], 2)), Deliver(0)]
    if not in_order:
        assert schedule.handle(Wanted()) == []
        schedule.handle(Arrived(2))
        assert schedule.handle(Wanted()) == []
        assert schedule.handle(Failed(3))[-1] == Raise(3)
        return
    assert schedule.handle(Wanted()) == [Condemn(Task(1, [1], 1))]
    assert [task.step for task in schedule.window()] == [1, 2]


def test_a_task_is_not_to_blame_for_what_kills_other_tasks_workers() -> None:
    schedule = Schedule(plan_of(3), Policy(workers=2, budget=2, most_deaths=1))
    schedule.handle(Started())
    assert schedule.handle(Died(0, [0, 1])) != []
    assert schedule.handle(Died(1, [0, 1], 0)) == [Send(None, Task(1, [1], 1))]
    assert schedule.handle(Wanted()) == [Condemn(Task(0, [0], 0))]
    assert Drop(0) not in schedule.handle(Skipped(1))
    assert [task.step for task in schedule.window()] == [1, 2]


# --- budget --------------------------------------------------------------------------------------


def test_the_window_grows_while_workers_idle_because_its_head_is_slow() -> None:
    schedule = Schedule(plan_of(20), Policy(workers=2, budget=2, most=5))
    schedule.handle(Started())
    schedule.handle(Wanted())
    grown = [Send(None, Task(step, [step], step)) for step in (2, 3)]
    assert schedule.handle(Arrived(1)) == grown
    assert (schedule.handle(Arrived(2)), schedule.budget) == ([], 4)
    assert schedule.handle(Arrived(3)) == [Send(None, Task(4, [4], 4))]
    assert (schedule.handle(Arrived(4)), schedule.budget) == ([], 5)


def test_the_window_grows_for_small_batches_whenever_a_worker_has_idled() -> None:
    schedule = Schedule(plan_of(20), Policy(workers=2, budget=2, most=5))
    schedule.handle(Started())
    schedule.handle(Wanted())
    grown = [Send(None, Task(step, [step], step)) for step in (2, 3)]
    assert schedule.handle(Arrived(1, bytes=1000, idled=True)) == grown
    assert schedule.handle(Arrived(2, bytes=1000, idled=True)) == [Send(None, Task(4, [4], 4))]
    assert schedule.budget == 5


def test_the_window_does_not_grow_while_the_consumer_is_the_slow_one() -> None:
    schedule = Schedule(plan_of(20), Policy(workers=2, budget=2, most=8))
    schedule.handle(Started())
    schedule.handle(Arrived(0))
    for step in range(1, 6):
        assert schedule.handle(Arrived(step)) == []
        assert len(schedule.handle(Wanted())) == 2
    assert schedule.budget == 2


def test_the_window_does_not_grow_while_a_bound_in_bytes_holds_tasks_back() -> None:
    schedule = Schedule(plan_of(20), Policy(workers=2, budget=4, most=8, bytes=1))
    schedule.handle(Started())
    schedule.handle(Arrived(1, bytes=1))
    assert schedule.handle(Wanted()) == []
    assert (len(schedule.window()), schedule.under_way, schedule.budget) == (4, 1, 4)


def test_the_window_grows_behind_a_slow_head_while_a_bound_in_bytes_is_far_away() -> None:
    schedule = Schedule(plan_of(20), Policy(workers=2, budget=4, most=8, bytes=2**20))
    schedule.handle(Started())
    for step in (1, 2, 3):
        schedule.handle(Arrived(step, bytes=1))
    assert len(schedule.handle(Wanted())) == 2
    assert (len(schedule.window()), schedule.budget) == (6, 6)


def test_a_window_that_has_grown_behind_a_slow_head_falls_back_when_batches_become_large() -> None:
    schedule = Schedule(plan_of(40), Policy(workers=2, budget=4, most=16))
    schedule.handle(Started())
    schedule.handle(Wanted())
    for step in range(1, 16):
        schedule.handle(Arrived(step, bytes=1000))
    assert schedule.budget == 16
    assert schedule.handle(Arrived(0, bytes=50 * 2**20)) == [Deliver(0)]
    assert schedule.budget == 512 // 50
    for step in range(1, 6):
        assert schedule.handle(Wanted()) == [Deliver(step)]
    again = [Send(None, Task(16, [16], 16)), Deliver(6)]
    assert schedule.handle(Wanted()) == again, "the window is as small as the budget"


def test_a_budget_that_was_set_does_not_fall_back() -> None:
    schedule = Schedule(plan_of(40), Policy(workers=2, budget=4, most=16))
    schedule.handle(Started())
    schedule.handle(Arrived(0, bytes=1000, idled=True))
    schedule.handle(Budgeted(12))
    schedule.handle(Arrived(1, bytes=2**40))
    assert schedule.budget == 12


def test_a_budget_may_be_left_to_itself_again() -> None:
    schedule = Schedule(plan_of(40), Policy(workers=2, budget=12))
    schedule.handle(Started())
    schedule.handle(Budgeted(4, most=8))
    assert schedule.budget == 4
    schedule.handle(Arrived(0, bytes=1000, idled=True))
    schedule.handle(Arrived(1, bytes=1000, idled=True))
    assert schedule.budget == 8


def test_a_bound_in_bytes_holds_tasks_back_and_lets_the_head_proceed() -> None:
    schedule = Schedule(plan_of(20), Policy(workers=2, budget=8, bytes=100))
    assert len(schedule.handle(Started())) == 2
    assert len(schedule.handle(Arrived(1, bytes=99))) == 1
    assert schedule.handle(Arrived(2, bytes=1)) == []
    assert schedule.handle(Wanted()) == []
    assert schedule.handle(Arrived(0, bytes=500)) == [Deliver(0)]
    more = [Send(None, Task(step, [step], step)) for step in (3, 4)]
    assert schedule.handle(Wanted()) == [*more, Deliver(1)]
    assert schedule.held_bytes == 1


def test_a_bound_of_no_bytes_fetches_one_batch_at_a_time() -> None:
    schedule = Schedule(plan_of(3), Policy(workers=4, budget=8, bytes=0))
    assert schedule.handle(Started()) == [Send(None, Task(0, [0], 0))]
    assert schedule.handle(Arrived(0, bytes=7)) == []
    assert schedule.handle(Wanted()) == [Send(None, Task(1, [1], 1)), Deliver(0)]


def test_a_new_budget_takes_effect_at_once_and_ends_the_growing() -> None:
    schedule = Schedule(plan_of(20), Policy(workers=1, budget=1, most=8))
    schedule.handle(Started())
    assert len(schedule.handle(Budgeted(3))) == 2
    schedule.handle(Budgeted(1))
    schedule.handle(Wanted())
    assert schedule.handle(Arrived(0)) == [Deliver(0)]
    assert (len(schedule.window()), schedule.budget) == (2, 1)


def test_a_bound_in_bytes_that_is_set_during_an_epoch_holds_tasks_back_at_once() -> None:
    schedule = Schedule(plan_of(20), Policy(workers=1, budget=1))
    schedule.handle(Started())
    assert schedule.handle(Budgeted(4, bytes=0)) == []
    assert (len(schedule.window()), schedule.under_way) == (4, 1)
    assert len(schedule.handle(Budgeted(4))) == 3


@pytest.mark.parametrize("seekable", [True, False])
@pytest.mark.parametrize("tasks", [1, 2])
def test_a_budget_of_one_that_is_set_draws_from_a_custom_sampler_when_the_program_asks(
    tasks: int, seekable: bool
) -> None:
    plan = Plan(sequence(range(9)) if seekable else Walked(range(9)), Grouping(Unit.SAMPLE))
    schedule = Schedule(plan, Policy(budget=2))
    schedule.handle(Started())
    schedule.handle(Budgeted(tasks))
    assert delivered_by(schedule, [Send(None, Task(step, step, step)) for step in (0, 1)], 2)
    ahead = 0 if tasks == 1 and not seekable else tasks
    assert len(schedule.window()) == ahead


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 7),
    st.integers(0, 60),
    st.lists(st.integers(0, 30), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
)
def test_a_bound_in_bytes_does_not_change_how_far_ahead_indices_are_drawn(
    workers: int, budget: int, bound: int, sizes: list[int], chance: random.Random
) -> None:
    """A sampler with a generator that others use would give other indices."""
    free = draws(Policy(workers=workers, budget=budget), sizes, random.Random(0))
    policy = Policy(workers=workers, budget=budget, bytes=bound)
    assert draws(policy, sizes, chance) == free


def draws(policy: Policy, sizes: list[int], chance: random.Random) -> list[int]:
    """For each index, the batches that the consumer has asked for before it is drawn."""
    asked, found = 0, []

    class Noted(Walked):
        def take(self, count: int) -> Any:
            found.extend([asked] * count)
            return super().take(count)

    plan = Plan(Noted(range(len(sizes))), Grouping(Unit.SAMPLE))
    world = World(Schedule(plan, policy))
    for asked in range(1, len(sizes) + 1):
        world.tell(Wanted())
        while len(world.delivered) < asked:
            step = chance.choice(sorted(world.under_way))
            world.under_way.remove(step)
            world.tell(Arrived(step, bytes=sizes[step]))
        if world.under_way and chance.random() < 0.5:
            step = chance.choice(sorted(world.under_way))
            world.under_way.remove(step)
            world.tell(Arrived(step, bytes=sizes[step]))
    return found


#: sizes of batches of which none is more than four times as large as another
LIKE = st.integers(1, 30).flatmap(lambda least: st.lists(st.integers(least, 4 * least)))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 400), LIKE, st.integers(0, 2))
def test_what_waits_is_never_more_than_a_batch_a_worker_above_the_bound(
    workers: int, budget: int, bound: int, sizes: list[int], lost: int
) -> None:
    policy = Policy(workers=workers, budget=budget, bytes=bound, most_deaths=2)
    assert highest(policy, sizes, lost) <= bound + workers * max([*sizes, 0])


def highest(policy: Policy, sizes: list[int], lost: int) -> int:
    """The most bytes that ever wait, of an epoch of batches of these sizes, and a worker's death.

    It has lost so many tasks; 0: none has died.
    """
    most = 0
    world = World(Schedule(plan_of(len(sizes)), policy))
    if lost:
        world.kill(lost)
    for turn, _ in enumerate(sizes):
        for step in sorted(world.under_way, reverse=bool(turn % 2)):
            world.under_way.remove(step)
            world.tell(Arrived(step, bytes=sizes[step]))
            most = max(most, world.schedule.held_bytes)
        world.tell(Wanted())
    world.finish()
    assert world.delivered == list(range(len(sizes)))
    return most


POLICIES = st.builds(
    Policy,
    workers=st.integers(1, 4),
    budget=st.integers(1, 8),
    most=st.integers(0, 12),
    bytes=st.none() | st.integers(0, 12),
    in_order=st.booleans(),
    most_deaths=st.just(10**9),
) | st.just(Policy(lazy=True, most_deaths=10**9))


class World:
    """Workers that answer in any order, and find some steps empty; and a consumer."""

    def __init__(self, schedule: Schedule, empty: Set[int] = frozenset()) -> None:
        self.schedule = schedule
        self.empty = empty
        self.under_way: list[int] = []
        self.delivered: list[int] = []
        self.passed: list[int] = []
        self.over = False
        #: a window that was larger than a new budget may only shrink
        self.largest_window = 0
        self.tell(Started())

    def tell(self, event: Any) -> None:
        self.largest_window = max(self.largest_window, len(self.schedule.window()))
        for instruction in self.schedule.handle(event):
            match instruction:
                case Send(_, task):
                    self.under_way.append(task.step)
                case Deliver(step) | Raise(step):
                    self.delivered.append(step)
                case PassEmpty(step):
                    self.passed.append(step)
                case Finish():
                    self.over = True
                case Drop(step):
                    assert step not in self.delivered
                case _:
                    raise AssertionError(f"no worker and no consumer here knows {instruction}")
        check_schedule(self.schedule)
        assert len(self.schedule.window()) <= max(self.schedule.budget, self.largest_window)
        self.largest_window = min(self.largest_window, len(self.schedule.window()))

    def answer(self, choice: int, failed: bool = False) -> None:
        if self.under_way:
            step = self.under_way.pop(choice % len(self.under_way))
            if step in self.empty:
                self.tell(Emptied(step))
            else:
                self.tell(Failed(step) if failed else Arrived(step, bytes=1 + choice))

    def act(self, action: str, choice: int) -> None:
        if action == "want":
            if not self.over and not self.schedule._wanting:
                self.tell(Wanted())
        elif action == "pickle":
            self.schedule = pickle.loads(pickle.dumps(self.schedule))
        elif action in ("budget", "bytes"):
            self.tell(Budgeted(1 + choice, choice if action == "bytes" else None))
        elif action == "kill":
            self.kill(choice)
        elif action == "flush":
            self.tell(Flushed())
        else:
            self.answer(choice, action == "fail")

    def kill(self, choice: int) -> None:
        """A worker dies, which had some of the tasks; the rest stays in the queue."""
        lost = self.under_way[: choice % 3]
        del self.under_way[: choice % 3]
        self.tell(Died(0, lost, lost[0] if lost else None))

    def finish(self) -> None:
        while not self.over:
            self.tell(Wanted())
            while self.under_way and self.schedule._wanting:
                self.answer(0)
            assert self.over or not self.schedule._wanting, "nothing is under way"


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["want", "answer", "fail", "kill", "pickle", "budget", "bytes", "flush", "flush"]
        ),
        st.integers(0, 7),
    ),
    max_size=60,
)


def test_a_world_fails_at_an_instruction_that_it_does_not_know() -> None:
    world = World(Schedule(plan_of(3), Policy(lazy=True, most_deaths=1)))
    world.tell(Wanted())
    with pytest.raises(AssertionError, match="Condemn"):
        world.kill(1)


#: steps without a batch
EMPTY = st.sets(st.integers(0, 24))


@settings(max_examples=250, deadline=None)
@given(POLICIES, ACTIONS, EMPTY, st.integers(0, 25), st.integers(1, 4), st.booleans())
def test_every_task_is_delivered_or_passed_over_exactly_once_whatever_happens(
    policy: Policy,
    actions: list[tuple[str, int]],
    empty: set[int],
    length: int,
    batch_size: int,
    drop_last: bool,
) -> None:
    world = World(Schedule(plan_of(length, batch_size, drop_last), policy), empty)
    for action, choice in actions:
        if action == "want":
            world.tell(Wanted())  # also while it waits
        else:
            world.act(action, choice)
    world.finish()
    batches = length // batch_size if drop_last else -(-length // batch_size)
    steps = set(range(batches))
    expected = sorted(steps - empty), sorted(steps & empty)
    if policy.in_order:
        assert (world.delivered, world.passed) == expected
    assert (sorted(world.delivered), sorted(world.passed)) == expected
    assert world.schedule.delivered == batches


@settings(max_examples=250, deadline=None)
@given(POLICIES, POLICIES, ACTIONS, EMPTY, st.integers(0, 25), st.integers(1, 4))
def test_a_snapshot_at_any_point_goes_on_under_any_policy(
    policy: Policy,
    other: Policy,
    actions: list[tuple[str, int]],
    empty: set[int],
    length: int,
    batch_size: int,
) -> None:
    world = World(Schedule(plan_of(length, batch_size), policy), empty)
    for action, choice in actions:
        if action in ("want", "answer", "fail", "pickle", "flush"):
            world.act(action, choice)
    plan = world.schedule.plan
    pending = sorted([*world.schedule.window(), *plan.backlog], key=lambda task: task.step)
    cursor = Cursor(
        step=world.schedule.delivered,
        next_step=plan.next_step,
        position=plan.position,
        window=tuple(pending),
    )
    saved = json.loads(json.dumps(to_plain(cursor, {"dataset_length": length})))
    restored, fits = from_plain(saved)
    assert (restored, fits) == (cursor, {"dataset_length": length})
    order = SequenceOrder(Numbers(length))
    order.seek(restored.position)
    grouping = Grouping(Unit.SAMPLE_OF_BATCH, batch_size)
    rest = Plan(order, grouping, restored.next_step, restored.position, restored.window)
    again = World(Schedule(rest, other, restored.step), empty)
    again.finish()
    steps = set(range(-(-length // batch_size)))
    assert sorted(world.delivered + again.delivered) == sorted(steps - empty)
    assert sorted(world.passed + again.passed) == sorted(steps & empty)


@settings(max_examples=150, deadline=None)
@given(POLICIES, st.lists(st.integers(0, 6), max_size=6), st.integers(0, 30), st.integers(0, 7))
def test_skipping_passes_over_the_next_batches_and_no_others(
    policy: Policy, skips: list[int], length: int, answers: int
) -> None:
    world = World(Schedule(plan_of(length), policy))
    passed = 0
    for count in skips:
        for _ in range(answers):
            world.answer(0)
        world.kill(answers)
        before = world.schedule.delivered
        world.tell(Skipped(count))
        passed += world.schedule.delivered - before
    world.finish()
    assert passed == min(sum(skips), length)
    assert sorted(world.delivered) == list(range(passed, length))
