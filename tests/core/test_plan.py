"""The plan and its orders: every way to cut an order into tasks, and to pass over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.orders import Walked, rest, sequence

from picklable_loader.core.order import Order, SequenceOrder
from picklable_loader.core.plan import Grouping, Plan, Unit
from picklable_loader.core.shard import Shard
from picklable_loader.core.task import Task
from picklable_loader.errors import UsageError


class Counted(SequenceOrder):
    """The order of a range, which counts the indices that were taken one by one."""

    def __init__(self, length: int) -> None:
        super().__init__(lambda: range(length))
        self.taken = 0

    def take(self, count: int) -> list[Any]:
        taken = super().take(count)
        self.taken += len(taken)
        return taken


def by_size(length: int, batch_size: int, drop_last: bool = False) -> Plan:
    grouping = Grouping(Unit.SAMPLE_OF_BATCH, batch_size, drop_last)
    return Plan(sequence(range(length)), grouping)


@given(
    st.integers(1, 30), st.integers(1, 5), st.integers(1, 5), st.integers(1, 8), st.integers(1, 2)
)
def test_an_order_gives_tasks_again_unless_another_size_would_cut_them_elsewhere(
    length: int, size: int, later: int, count: int, ranks: int
) -> None:
    def plan(size: int) -> Plan:
        grouping = Grouping(Unit.SAMPLE_OF_BATCH, size, shard=Shard(0, ranks, "uneven"))
        return Plan(sequence(range(length)), grouping)

    drawn, again = plan(size), plan(later)
    tasks = rest(drawn, count)
    drawn.grouping = again.grouping
    assert drawn.gives_again(tasks) == (tasks == rest(again, len(tasks)))


# --- units ---------------------------------------------------------------------------------------


def test_samples_are_gathered_into_batches() -> None:
    assert rest(by_size(5, 2)) == [Task(0, [0, 1], 0), Task(1, [2, 3], 2), Task(2, [4], 4)]


def test_an_incomplete_batch_is_dropped_where_that_is_wished() -> None:
    assert rest(by_size(5, 2, drop_last=True)) == [Task(0, [0, 1], 0), Task(1, [2, 3], 2)]
    assert rest(by_size(1, 2, drop_last=True)) == []


def test_a_sample_may_be_a_task_of_its_own() -> None:
    plan = Plan(sequence("ab"), Grouping(Unit.SAMPLE))
    assert rest(plan) == [Task(0, "a", 0), Task(1, "b", 1)]


def test_a_sample_with_a_length_counts_as_one_sample() -> None:
    plan = Plan(sequence([(3, 4), (5, 6)]), Grouping(Unit.SAMPLE))
    assert rest(plan) == [Task(0, (3, 4), 0), Task(1, (5, 6), 1)]


def test_batches_of_a_batch_sampler_stay_as_they_are() -> None:
    batches = [[1, 2], [], (3,), [4, 5, 6]]
    tasks = rest(Plan(sequence(batches), Grouping(Unit.BATCH)))
    assert [task.indices for task in tasks] == batches
    assert [task.position for task in tasks] == [0, 2, 2, 3]


def test_a_batch_without_a_length_counts_as_one_sample() -> None:
    plan = Plan(sequence([7, 8]), Grouping(Unit.BATCH))
    assert [task.position for task in rest(plan)] == [0, 1]


@pytest.mark.parametrize("unit", Unit)
def test_an_empty_order_gives_no_task(unit: Unit) -> None:
    plan = Plan(sequence([]), Grouping(unit))
    assert plan.remaining() == 0
    assert rest(plan) == []


def test_after_the_end_there_is_never_another_task() -> None:
    for drop_last in (False, True):
        plan = by_size(5, 2, drop_last)
        rest(plan)
        for _ in range(3):
            with pytest.raises(StopIteration):
                plan.draw()


def test_a_plan_goes_on_at_a_step_and_a_position() -> None:
    order = sequence(range(7))
    order.seek(4)
    plan = Plan(order, Grouping(Unit.SAMPLE_OF_BATCH, 2), next_step=2, position=4)
    assert plan.remaining() == 2
    assert rest(plan) == [Task(2, [4, 5], 4), Task(3, [6], 6)]


# --- backlog -------------------------------------------------------------------------------------


def backlogged() -> Plan:
    """Steps 1 and 3 were drawn before; the order goes on with step 4."""
    order = sequence(range(11))
    order.seek(8)
    backlog = [Task(1, [2, 3], 2), Task(3, [6, 7], 6)]
    return Plan(order, Grouping(Unit.SAMPLE_OF_BATCH, 2), 4, 8, backlog)


def test_the_backlog_comes_first() -> None:
    assert [task.step for task in rest(backlogged())] == [1, 3, 4, 5]


def test_the_backlog_moves_neither_step_nor_position() -> None:
    plan = backlogged()
    plan.draw()
    plan.draw()
    assert (plan.next_step, plan.position) == (4, 8)
    assert plan.draw() == Task(4, [8, 9], 8)


def test_a_backlog_with_gaps_that_is_put_back_often_comes_once() -> None:
    """Steps 0 and 2 were delivered out of order, so that the order itself cannot go back."""
    plan = backlogged()
    for _ in range(2):
        assert plan.put_back([plan.draw()])
        assert plan.put_back([])
    assert rest(plan) == rest(backlogged())


def test_tasks_that_the_order_can_give_again_are_no_backlog_once_they_are_put_back() -> None:
    plan = by_size(10, 2)
    assert plan.put_back([plan.draw(), plan.draw()])
    assert (plan.backlog, plan.next_step, plan.position) == ([], 0, 0)
    assert rest(plan) == rest(by_size(10, 2))


def test_items_that_make_no_batch_are_nothing_to_put_back_where_the_order_gives_them_again() -> (
    None
):
    plan = by_size(5, 2, drop_last=True)
    rest(plan)
    assert plan.put_back([]) and rest(plan) == []


def test_the_backlog_is_counted_among_what_remains() -> None:
    plan = backlogged()
    for left in (4, 3, 2, 1):
        assert plan.remaining() == left
        plan.draw()
    assert plan.remaining() == 0


@pytest.mark.parametrize("steps", range(7))
def test_advance_passes_over_the_backlog_first(steps: int) -> None:
    plan = backlogged()
    assert plan.advance(steps) == min(steps, 4)
    assert rest(plan) == rest(backlogged())[steps:]


# --- advance -------------------------------------------------------------------------------------


@st.composite
def plans(draw: st.DrawFn) -> Callable[[], Plan]:
    """A way to make equal plans, of any unit and rank, over any order, with any backlog."""
    unit = draw(st.sampled_from(list(Unit)))
    if unit is Unit.BATCH:
        items: Sequence[Any] = draw(st.lists(st.lists(st.integers(), max_size=3), max_size=12))
    else:
        items = range(draw(st.integers(0, 25)))
    size = draw(st.integers(1, 5)) if unit is Unit.SAMPLE_OF_BATCH else 1
    world = draw(st.integers(1, 3))
    tail: Any = draw(st.sampled_from(["pad", "drop", "uneven"]))
    shard = Shard(draw(st.integers(0, world - 1)), world, tail)
    grouping = Grouping(unit, size, draw(st.booleans()) and unit is Unit.SAMPLE_OF_BATCH, shard)
    orders: list[Callable[[], Order]] = [
        lambda: sequence(items),
        lambda: Walked(items),
        lambda: Walked(items, says_length=False),
    ]
    order = draw(st.sampled_from(orders))
    kept = draw(st.sets(st.integers(0, 3)))

    def make() -> Plan:
        drawn = Plan(order(), grouping)
        before = rest(drawn, limit=4)
        backlog = [task for task in before if task.step in kept]
        return Plan(drawn.order, grouping, drawn.next_step, drawn.position, backlog)

    return make


@settings(deadline=None)
@given(plans(), st.integers(0, 30))
def test_to_advance_is_to_draw_so_many_times(make: Callable[[], Plan], steps: int) -> None:
    advanced, drawn = make(), make()
    assert advanced.advance(steps) == len(rest(drawn, limit=steps))
    assert rest(advanced, limit=10) == rest(drawn, limit=10)


@settings(deadline=None)
@given(plans(), st.integers(0, 30))
def test_what_remains_is_what_can_be_drawn(make: Callable[[], Plan], steps: int) -> None:
    plan = make()
    plan.advance(steps)
    left = plan.remaining()
    if plan.order.length() is None:
        # Nobody knows what remains, not even at the end.
        assert left is None
    else:
        assert left == len(rest(plan))
        assert plan.remaining() == 0


def test_an_epoch_that_is_passed_over_ends_at_its_last_sample() -> None:
    plan = by_size(5, 2)
    assert (plan.advance(9), plan.next_step, plan.position) == (3, 3, 5)


def test_after_the_end_no_batch_is_passed_over_though_the_first_ones_were_repeated() -> None:
    for limit in (2, 3):  # the third draw finds the end
        plan = Plan(sequence([[1], [2], [3]]), Grouping(Unit.BATCH, shard=Shard(1, 2)))
        assert [task.indices for task in rest(plan, limit=limit)] == [[2], [1]]
        assert plan.advance(1) == 0


def test_a_seekable_order_is_leapt_through() -> None:
    order = Counted(10**9)
    plan = Plan(order, Grouping(Unit.SAMPLE_OF_BATCH, 10))
    assert plan.advance(10**8 - 1) == 10**8 - 1
    assert order.taken == 0
    assert plan.draw() == Task(10**8 - 1, list(range(10**9 - 10, 10**9)), 10**9 - 10)
    assert plan.advance(1) == 0


def test_a_batch_samplers_order_is_walked_for_its_positions() -> None:
    plan = Plan(sequence([[1, 2, 3], [4], [5, 6]]), Grouping(Unit.BATCH))
    assert plan.advance(2) == 2
    assert plan.draw() == Task(2, [5, 6], 4)


# --- remaining -----------------------------------------------------------------------------------


def test_without_a_length_it_is_unknown_what_remains() -> None:
    plan = Plan(Walked([1, 2], says_length=False), Grouping(Unit.SAMPLE))
    assert plan.remaining() is None


def test_a_batch_samplers_length_counts_batches() -> None:
    plan = Plan(sequence([[1, 2, 3], [4]]), Grouping(Unit.BATCH))
    assert plan.remaining() == 2
    plan.draw()
    assert plan.remaining() == 1


def test_less_than_nothing_never_remains() -> None:
    plan = Plan(Walked([[1], [2], [3]]), Grouping(Unit.BATCH))
    plan.order.size = 2  # type: ignore[attr-defined]  # a sampler that gives more than it says
    assert len(rest(plan)) == 3
    assert plan.remaining() == 0


@pytest.mark.parametrize("streams, most_aside, ahead", [(0, 9, False), (1, 1, True), (2, 0, False)])
def test_tasks_are_drawn_ahead_if_streams_serve_them_and_one_may_be_set_aside(
    streams: int, most_aside: int, ahead: bool
) -> None:
    grouping = Grouping(Unit.SAMPLE)
    plan = Plan(sequence("abc"), grouping, streams=streams, most_aside=most_aside)
    assert plan.draws_ahead is ahead
    assert not Plan(sequence("abc"), grouping, streams=streams).draws_ahead


def test_the_next_step_of_each_stream_is_at_most_a_round_ahead() -> None:
    plan = Plan(sequence(range(9)), Grouping(Unit.SAMPLE), streams=3, most_aside=9)
    plan.draw()
    assert plan.next_steps() == {0: 3, 1: 1, 2: 2}


# --- orders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [sequence([1]), Walked([1])])
def test_each_order_keeps_the_protocol(order: Order) -> None:
    assert isinstance(order, Order)


@settings(deadline=None)
@given(st.lists(st.integers()), st.lists(st.integers(0, 4)))
def test_a_sequence_is_taken_in_parts(items: list[int], parts: list[int]) -> None:
    order = sequence(items)
    assert order.length() == len(items)
    taken: list[int] = []
    for part in parts:
        got = order.take(part)
        assert len(got) == min(part, len(items) - len(taken))
        taken += got
    assert taken == items[: sum(parts)]


@settings(deadline=None)
@given(st.integers(0, 12), st.integers(0, 12))
def test_a_sequence_is_sought_in(position: int, count: int) -> None:
    items = list("abcdefghij")
    order = sequence(items)
    order.take(3)
    order.seek(position)
    assert order.take(count) == items[position : position + count]


def test_a_sequence_that_is_over_gives_empty_lists_ever_after() -> None:
    order = sequence([1])
    assert [order.take(2), order.take(2), order.take(2)] == [[1], [], []]


def test_a_sequence_is_made_when_it_is_first_needed_and_once() -> None:
    made: list[str] = []

    def make() -> list[int]:
        made.append("now")
        return [1, 2]

    order = SequenceOrder(make)
    assert not made
    order.seek(1)  # its dataset may grow from now on
    order.open()
    order.open()
    assert order.take(1) == [2] and order.length() == 2
    assert made == ["now"]


def test_a_sequence_is_made_by_take_if_nobody_opened_it() -> None:
    assert SequenceOrder(lambda: range(3)).take(2) == [0, 1]


def test_the_length_of_a_sequence_is_asked_anew_until_it_is_opened() -> None:
    items = [1]
    order = SequenceOrder(lambda: list(items))
    assert order.length() == 1
    items.append(2)
    assert order.length() == 2
    order.open()
    items.append(3)
    assert order.length() == 2


@pytest.mark.parametrize("live", [False, True])
def test_orders_that_follow_from_their_position_have_no_state(live: bool) -> None:
    order = sequence([1, 2])
    order.take(1)
    assert order.state(live) is None


# --- interruptions, and long lists ---------------------------------------------------------------


class Interrupted(SequenceOrder):
    """A signal comes when the order has given what no task has."""

    armed = False

    def take(self, count: int) -> list[Any]:
        taken = super().take(count)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return taken


@pytest.mark.parametrize("unit", [Unit.SAMPLE_OF_BATCH, Unit.BATCH])
def test_an_order_that_was_interrupted_gives_the_same_again(unit: Unit) -> None:
    batches = [[0, 1], [2, 3], [4, 5]]
    order = Interrupted(lambda: batches if unit is Unit.BATCH else [*range(6)])
    plan = Plan(order, Grouping(unit, 1 if unit is Unit.BATCH else 2))
    plan.draw()
    order.armed = True
    with pytest.raises(KeyboardInterrupt):
        plan.draw()
    plan.restart([], [])
    assert [task.indices for task in rest(plan)] == batches[1:]


class Walks(Walked):
    """An order that cannot be sought in; what is raised comes in the midst of a task."""

    error: BaseException | None = None

    def take(self, count: int) -> list[Any]:
        taken, error = super().take(count), self.error
        self.error = None
        if error is not None:
            raise error
        return taken


def test_a_custom_order_whose_draw_was_interrupted_gives_no_task_any_more() -> None:
    order = Walks([*range(6)])
    plan = Plan(order, Grouping(Unit.SAMPLE_OF_BATCH, 2))
    first = plan.draw()
    order.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        plan.draw()
    plan.restart([first], [])
    assert plan.lost and plan.draw() == first, "what it has given before is known"
    for _ in range(2):
        with pytest.raises(UsageError, match="position is unknown"):
            plan.draw()


@pytest.mark.parametrize("error", [None, ValueError()])
def test_a_custom_order_goes_on_after_an_interruption_elsewhere_and_after_its_own_errors(
    error: Exception | None,
) -> None:
    order = Walks([*range(6)])
    plan = Plan(order, Grouping(Unit.SAMPLE_OF_BATCH, 2))
    order.error = error
    with pytest.raises(ValueError) if error else nullcontext():
        plan.draw()
    plan.restart([], [])
    assert [task.indices for task in rest(plan)] == [[2, 3], [4, 5]]


def test_thousands_of_listed_batches_are_passed_over_and_no_more() -> None:
    plan = Plan(sequence([[number] for number in range(9000)]), Grouping(Unit.BATCH))
    assert plan.advance(5000) == 5000
    task = plan.draw()
    assert (task.step, task.indices, task.position) == (5000, [5000], 5000)
