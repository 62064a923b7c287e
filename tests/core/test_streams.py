"""Streams: torch's order of batches, whichever of them ends when; positions move on delivery."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.invariants import check_schedule

from picklable_loader.core.cursor import Cursor
from picklable_loader.core.events import (
    Arrived,
    AskLast,
    Condemn,
    Deliver,
    Died,
    Ended,
    Failed,
    Finish,
    Interrupted,
    LastState,
    LastStatesWanted,
    Raise,
    Retract,
    Send,
    Skipped,
    Started,
    Wanted,
)
from picklable_loader.core.order import SequenceOrder
from picklable_loader.core.plan import Grouping, Plan, Unit
from picklable_loader.core.schedule import Policy, Schedule
from picklable_loader.core.shard import ALONE, Shard, StreamShare, Tail
from picklable_loader.core.snapshot import from_plain, to_plain
from picklable_loader.core.streams import StreamPlan, StreamPosition
from picklable_loader.core.task import Task
from picklable_loader.errors import CannotSaveError

#: a batch, by its stream and its number within it
Batch = tuple[int, int]


def in_turn(lengths: Sequence[int]) -> list[Batch]:
    """The batches of streams of these lengths, in torch's order."""
    rounds = range(max(lengths, default=0))
    return [(stream, at) for at in rounds for stream, length in enumerate(lengths) if at < length]


class World:
    """Workers that read streams of known lengths, each in its own time, and a consumer."""

    def __init__(
        self,
        lengths: Sequence[int],
        policy: Policy,
        positions: Sequence[StreamPosition],
        share: StreamShare | None = None,
        batches: int | None = None,
    ) -> None:
        self.share = share or StreamShare(ALONE, len(lengths))
        self.lengths = lengths
        plan, step = StreamPlan(positions, None, share, batches), sum(
            position.given for position in positions
        )
        self.schedule = Schedule(plan, policy, step, positions)
        self.queues: list[deque[Send]] = [deque() for _ in range(policy.workers)]
        #: by worker, where each replica that it has is; streams are opened once without a position
        self.replicas: list[dict[int, int]] = [{} for _ in range(policy.workers)]
        self.unopened = {stream: position.given for stream, position in enumerate(positions)}
        self.batches: dict[int, Batch] = {}
        self.delivered: list[Batch] = []
        self.moves = 0
        self.over = False
        #: the step whose task kills whoever does it, and whether it was given up
        self.deadly: int | None = None
        self.condemned = False
        self.tell(Started())

    def tell(self, event: Any) -> None:
        for instruction in self.schedule.handle(event):
            match instruction:
                case Send(worker):
                    assert worker is not None
                    self.queues[worker].append(instruction)
                    self.moves += instruction.position is not None
                case Deliver(step) | Raise(step):
                    self.delivered.append(self.batches.pop(step))
                case Retract():
                    self.delivered.pop()
                case Condemn(task):
                    assert task.step == self.deadly
                    self.over = self.condemned = True
                case Finish():
                    self.over = True
                case _:
                    raise AssertionError(f"no worker and no consumer here knows {instruction}")
            if isinstance(instruction, Send) and instruction.position is None:
                assert not self.waits_to_move(instruction.task, 1), "its worker would never be done"
        check_schedule(self.schedule)
        assert len(self.schedule.window()) <= self.schedule.budget
        held = () if self.over else self.schedule._window.held_back()
        assert all(self.waits_to_move(each.task, 0) for each in held), "its worker waits for it"

    def waits_to_move(self, task: Task, but: int) -> bool:
        """Its stream is to move, once the tasks that its worker has are done, ``but`` so many."""
        stream, placement = task.stream, self.schedule._placement
        assert stream is not None
        return placement._is_to_move(stream) and placement._under_way[stream] > but

    def answer(self, choice: int, kind: Any = Arrived, with_state: bool = False) -> None:
        busy = [worker for worker, queue in enumerate(self.queues) if queue]
        if busy:
            self.answer_of(busy[choice % len(busy)], kind, with_state)

    def answer_of(
        self, worker: int, kind: Any = Arrived, with_state: bool = False, cost: int = 1
    ) -> None:
        if self.queues[worker][0].task.step == self.deadly:
            self.kill(worker)
            return
        send = self.queues[worker].popleft()
        task, stream, read = send.task, send.task.stream, self.replicas[worker]
        assert stream is not None
        if send.position is not None:
            read[stream] = send.position.given
            self.unopened.pop(stream, None)
        elif stream in self.unopened:
            read[stream] = self.unopened.pop(stream)
        elif stream >= len(self.share):
            read.setdefault(stream, 0)  # it is read once more
        if read[stream] == self.lengths[self.share.number(stream)]:
            self.tell(Ended(task.step, ["end", stream]))
            return
        if stream < len(self.share):
            assert task.step == read[stream] * len(self.share) + stream
        assert task.step not in self.batches
        self.batches[task.step] = stream, read[stream]
        read[stream] += 1
        state = [stream, read[stream]] if with_state else None
        if kind is Arrived:
            self.tell(Arrived(task.step, state=state, cost_ns=cost))
        else:
            self.tell(kind(task.step, state))

    def kill(self, choice: int, done: int = 0) -> None:
        """A worker dies, which has done some of its tasks and has not been heard."""
        worker = choice % len(self.queues)
        lost = [send.task.step for send in self.queues[worker]]
        if self.deadly in lost:
            done = min(done, lost.index(self.deadly))
        at_hand = lost[done] if done < len(lost) else None
        if self.deadly is not None and at_hand != self.deadly:
            at_hand = None  # no other task is to be blamed
        self.queues[worker].clear()
        self.replicas[worker].clear()
        self.tell(Died(worker, lost, at_hand))

    def interrupt(self, lost: int) -> None:
        """A signal ends all workers; the consumer has not got the last ``lost`` batches."""
        for queue, read in zip(self.queues, self.replicas):
            queue.clear()
            read.clear()
        self.batches.clear()
        self.tell(Interrupted(self.schedule.delivered - lost))
        positions = self.schedule.positions()
        self.unopened = {stream: position.given for stream, position in enumerate(positions)}
        self.tell(Started())

    def finish(self) -> None:
        while not self.over:
            self.tell(Wanted())
            while any(self.queues) and self.schedule._wanting:
                self.answer(0)
            assert self.over or not self.schedule._wanting, "nothing is under way"


LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=5)
POLICIES = st.builds(
    Policy,
    workers=st.integers(1, 4),
    budget=st.integers(1, 8),
    in_order=st.booleans(),
    moving=st.booleans(),
    most_deaths=st.just(10**9),
) | st.just(Policy(lazy=True))
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["want", "answer", "fail", "mark", "kill", "pickle", "interrupt"]),
        st.integers(0, 7),
    ),
    max_size=60,
)


def act(world: World, actions: list[tuple[str, int]]) -> None:
    for action, choice in actions:
        if action == "want":
            if not world.schedule._wanting and not world.over:
                world.tell(Wanted())
        elif action == "pickle":
            world.schedule = pickle.loads(pickle.dumps(world.schedule))
        elif action == "kill":
            if not world.schedule.policy.lazy:
                world.kill(choice, choice // 2)
        elif action == "interrupt":
            if not world.over:
                world.interrupt(lost=choice % 2)
        else:
            world.answer(choice, Failed if action == "fail" else Arrived, action == "mark")


@settings(max_examples=200, deadline=None)
@given(LENGTHS, POLICIES, ACTIONS)
def test_batches_come_in_torchs_order_whichever_stream_ends_when(
    lengths: list[int], policy: Policy, actions: list[tuple[str, int]]
) -> None:
    world = World(lengths, policy, [StreamPosition() for _ in lengths])
    act(world, actions)
    world.finish()
    if policy.in_order:
        assert world.delivered == in_turn(lengths)
    assert sorted(world.delivered) == sorted(in_turn(lengths))
    assert world.schedule.last_states() == {s: ["end", s] for s in range(len(lengths))}


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 4),
    st.lists(st.integers(1, 9), min_size=3, max_size=8),
    st.booleans(),
    st.sampled_from([2, 8]),
)
def test_streams_move_between_workers_of_unequal_load_and_the_order_stays(
    workers: int, costs: list[int], out_of_step: bool, ahead: int
) -> None:
    lengths = [40 + out_of_step * at for at in range(len(costs))]
    policy = Policy(workers=workers, budget=ahead * workers, moving=True)
    world = World(lengths, policy, [StreamPosition() for _ in lengths])
    run_in_time(world, costs)
    assert world.delivered == in_turn(lengths)
    assert world.moves <= 8  # each one takes twice the patience of the one before


def run_in_time(world: World, costs: Sequence[int]) -> int:
    """How long it takes if a batch of each stream costs so much, and the consumer nothing."""
    now, busy_until = 0, [0] * len(world.queues)
    world.tell(Wanted())
    while not world.over:
        while not world.schedule._wanting and not world.over:
            world.tell(Wanted())
        ends = {}
        for worker, queue in enumerate(world.queues):
            if queue:
                stream = queue[0].task.stream
                assert stream is not None
                ends[worker] = max(now, busy_until[worker]) + costs[stream]
                if busy_until[worker] > now:
                    ends[worker] = busy_until[worker]
                busy_until[worker] = ends[worker]
        if world.over:
            break
        assert ends, "nothing is under way"
        worker = min(ends, key=lambda worker: ends[worker])
        now = ends[worker]
        busy_until[worker] = 0
        stream = world.queues[worker][0].task.stream
        assert stream is not None
        world.answer_of(worker, with_state=True, cost=costs[stream])
    return now


def test_two_slow_streams_of_one_worker_part() -> None:
    costs, lengths = [10, 1, 10, 1], [200] * 4
    taken = {}
    for moving in (False, True):
        policy = Policy(workers=2, budget=4, moving=moving)
        world = World(lengths, policy, [StreamPosition() for _ in lengths])
        taken[moving] = run_in_time(world, costs)
        assert world.delivered == in_turn(lengths)
    assert taken[False] >= 200 * 20
    assert taken[True] <= 200 * 12.5  # where 11 is the least


def test_a_stream_that_has_ended_is_no_reason_for_another_to_move() -> None:
    policy = Policy(workers=2, budget=4, moving=True)
    world = World([2, 60, 60], policy, [StreamPosition() for _ in range(3)])
    run_in_time(world, [15, 1, 10])
    assert (len(world.delivered), world.moves) == (122, 0)


def test_streams_part_also_after_the_death_of_their_worker() -> None:
    policy = Policy(workers=2, budget=4, moving=True, most_deaths=2)
    world = World([200] * 4, policy, [StreamPosition() for _ in range(4)])
    world.kill(0)
    assert run_in_time(world, [10, 1, 10, 1]) <= 200 * 12.5
    assert world.delivered == in_turn([200] * 4)


def test_states_in_which_streams_were_opened_are_not_for_those_that_have_ended_without() -> None:
    """The engine has opened a later state, or an end, and knows more of the dataset by then."""
    later, end = StreamPosition(2, False, "later", 1), StreamPosition(2, True, "end", 2)
    positions = [StreamPosition(), later, StreamPosition(0, True), StreamPosition(1), end]
    schedule = Schedule(StreamPlan(positions, None), Policy(), 0, positions)
    schedule.handle(Started({0: "a", 1: "b", 2: "c", 3: "d", 4: "e"}))
    assert [position.state for position in schedule.positions()] == ["a", "b", None, "d", "e"]


@pytest.mark.parametrize(
    "position, exact",
    [
        (StreamPosition(3, state="here", state_at=3), True),
        (StreamPosition(3, state="earlier", state_at=2), False),
        (StreamPosition(), False),
        (StreamPosition(state=CannotSaveError("the dataset", "it is open", "Close it.")), False),
    ],
    ids=str,
)
def test_a_position_is_exact_where_its_own_state_is_known(
    position: StreamPosition, exact: bool
) -> None:
    assert position.exact is exact


def test_a_stream_moves_only_where_its_state_is_known() -> None:
    policy = Policy(workers=2, budget=4, moving=True)
    world = World([60] * 4, policy, [StreamPosition() for _ in range(4)])
    while not world.over:
        world.tell(Wanted())
        while world.schedule._wanting and any(world.queues):
            worker = 1 if world.queues[1] else 0
            world.answer_of(worker, cost=1 if worker else 10)
        assert world.over or not world.schedule._wanting, "nothing is under way"
    assert world.moves == 0


def test_where_nobody_counts_what_batches_cost_no_stream_moves() -> None:
    policy = Policy(workers=2, budget=4, moving=True)
    uncounted = partial(Arrived)
    world = World([60, 0, 60, 0], policy, [StreamPosition() for _ in range(4)])
    while not world.over:
        world.tell(Wanted())
        while world.schedule._wanting and any(world.queues):
            world.answer(0, uncounted, with_state=True)
    assert (len(world.delivered), world.moves) == (120, 0)


def test_a_stream_whose_state_cannot_be_saved_is_read_again_from_its_start() -> None:
    positions = [StreamPosition()]
    schedule = Schedule(StreamPlan(positions, None), Policy(workers=1, budget=1), 0, positions)
    schedule.handle(Started())
    schedule.handle(
        Arrived(0, state=CannotSaveError("the dataset", "it has an open file", "Close it."))
    )
    schedule.handle(Wanted())
    assert schedule.handle(Died(0, [1], 1)) == [Send(0, Task(1, None, 0, 0), StreamPosition(1))]


def test_a_schedule_checks_its_window_and_the_positions_of_its_streams() -> None:
    schedule = left_after_one_batch()
    check_schedule(schedule)
    schedule._window.under_way += 1
    with pytest.raises(AssertionError):
        check_schedule(schedule)
    ahead = StreamPosition(given=1, state="one", state_at=1, since=[Task(3, None, 0, 0)])
    positions = [ahead]
    schedule = Schedule(StreamPlan(positions, None), Policy(workers=1, budget=1), 0, positions)
    with pytest.raises(AssertionError):
        check_schedule(schedule)


def test_out_of_turn_an_answer_makes_room_for_another_task_of_its_worker() -> None:
    """It need not be delivered: each worker has its share of what is under way."""
    positions = [StreamPosition(), StreamPosition()]
    policy = Policy(workers=2, budget=3, in_order=False)
    schedule = Schedule(StreamPlan(positions, None), policy, 0, positions)
    assert [each.task.step for each in schedule.handle(Started())] == [0, 1]
    assert [each.task.step for each in schedule.handle(Arrived(1))] == [3]
    assert schedule.handle(Arrived(3)) == []


def test_a_stream_that_had_ended_is_opened_at_its_end_when_its_worker_dies() -> None:
    positions = [StreamPosition(), StreamPosition()]
    schedule = Schedule(StreamPlan(positions, None), Policy(workers=2, budget=4), 0, positions)
    schedule.handle(Started())
    schedule.handle(Arrived(0, state="one"))
    schedule.handle(Wanted())
    schedule.handle(Ended(2, state="end"))
    [again] = schedule.handle(Died(0, [4], 4))
    assert again == Send(0, Task(4, None, 0, 0), StreamPosition(1, True, "end", 1))


# --- the states that the next epoch begins with --------------------------------------------------


def left_after_one_batch() -> Schedule:
    """A pass over three streams and two workers, of which the first batch was delivered."""
    positions = [StreamPosition() for _ in range(3)]
    schedule = Schedule(StreamPlan(positions, None), Policy(workers=2, budget=3), 0, positions)
    schedule.handle(Started())
    schedule.handle(Arrived(0, state="one"))
    assert schedule.handle(Wanted())[-1] == Deliver(0)
    return schedule


def test_a_pass_that_is_left_asks_each_streams_worker_and_ends_with_the_last_answer() -> None:
    schedule = left_after_one_batch()
    expected = schedule.window(), schedule.positions()
    assert schedule.handle(LastStatesWanted(3)) == [AskLast(0, 0), AskLast(1, 1), AskLast(0, 2)]
    assert schedule.handle(LastState(1, "b")) == schedule.handle(LastState(0, None)) == []
    assert not schedule.last_states_known
    assert schedule.handle(LastState(2, "c")) == [Finish()]
    assert schedule.last_states_known and schedule.last_states() == {0: None, 1: "b", 2: "c"}
    assert (schedule.window(), schedule.positions()) == expected, "a state has them ahead still"


def test_a_pass_that_is_left_draws_no_more_and_sends_nothing_again() -> None:
    schedule = left_after_one_batch()
    schedule.handle(LastStatesWanted(3))
    assert schedule.handle(Arrived(1)) == []
    assert schedule.handle(Died(0, [2, 3], 2)) == [
        AskLast(0, 0, StreamPosition(1, state="one", state_at=1)),
        AskLast(0, 2, StreamPosition()),
    ]


def test_a_stream_that_has_said_its_last_state_is_not_asked() -> None:
    schedule = left_after_one_batch()
    schedule.handle(Ended(1, state="end"))
    assert schedule.handle(LastStatesWanted(2)) == [AskLast(0, 0)]
    assert schedule.handle(Died(1, [])) == []
    assert schedule.handle(LastState(0, "a")) == [Finish()]
    assert schedule.last_states() == {0: "a", 1: "end"}


def test_a_pass_without_streams_is_left_at_once() -> None:
    schedule = Schedule(StreamPlan([], None), Policy(), 0)
    assert schedule.handle(LastStatesWanted(0)) == [Finish()] and schedule.last_states_known


def test_a_stream_whose_batch_kills_its_workers_stops_before_it() -> None:
    policy = Policy(workers=2, budget=4, most_deaths=2)
    schedule = Schedule(
        StreamPlan([StreamPosition(), StreamPosition()], None),
        policy,
        0,
        [StreamPosition(), StreamPosition()],
    )
    schedule.handle(Started())
    schedule.handle(Arrived(0))
    assert schedule.handle(Died(0, [2], 2)) == [Send(0, Task(2, None, 0, 0), StreamPosition(1))]
    assert schedule.handle(Died(0, [2], 2)) == []
    schedule.handle(Arrived(1))
    assert schedule.handle(Wanted()) == [Deliver(0)]  # and no more of the stream is fetched
    assert Deliver(1) in schedule.handle(Wanted())
    assert schedule.handle(Wanted()) == [Condemn(Task(2, None, 0, 0))]
    assert [position.given for position in schedule.positions()] == [1, 1]
    assert schedule.window()[0] == Task(2, None, 0, 0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), POLICIES, ACTIONS, st.data())
def test_whatever_else_dies_all_before_a_deadly_batch_is_delivered_and_then_it_is_given_up(
    lengths: list[int], policy: Policy, actions: list[tuple[str, int]], data: st.DataObject
) -> None:
    most = 10**9 if policy.lazy else data.draw(st.integers(1, 2))
    world = World(lengths, replace(policy, most_deaths=most), [StreamPosition() for _ in lengths])
    stream = data.draw(st.integers(0, len(lengths) - 1))
    at = data.draw(st.integers(0, lengths[stream] - 1))
    world.deadly = None if policy.lazy else at * len(lengths) + stream
    act(world, [action for action in actions if action[0] != "kill" or not world.over])
    world.finish()
    expected = in_turn(lengths)
    if world.deadly is None:
        assert world.delivered == expected
        return
    assert world.condemned
    if policy.in_order:
        assert world.delivered == expected[: expected.index((stream, at))]
    assert set(world.delivered) >= set(expected[: expected.index((stream, at))])
    assert not any(s == stream and n >= at for s, n in world.delivered)


def test_what_was_lost_unheard_before_a_deadly_batch_is_read_again() -> None:
    policy = Policy(workers=1, budget=4, most_deaths=1)
    schedule = Schedule(StreamPlan([StreamPosition()], None), policy, 0, [StreamPosition()])
    schedule.handle(Started())
    assert schedule.handle(Died(0, [0, 1, 2, 3], 2)) == [
        Send(0, Task(0, None, 0, 0), StreamPosition(0)),
        Send(0, Task(1, None, 0, 0)),
    ]


@settings(max_examples=200, deadline=None)
@given(LENGTHS, POLICIES, POLICIES, ACTIONS)
def test_places_saved_at_any_point_go_on_under_any_number_of_workers(
    lengths: list[int], policy: Policy, other: Policy, actions: list[tuple[str, int]]
) -> None:
    world = World(lengths, policy, [StreamPosition() for _ in lengths])
    act(world, actions)
    step = len(world.delivered)
    cursor = Cursor(step=step, next_step=step, streams=world.schedule.positions())
    restored, _ = from_plain(json.loads(json.dumps(to_plain(cursor, {}))), live=True)
    assert restored == cursor
    again = World(lengths, other, restored.streams)
    again.finish()
    both = world.delivered + again.delivered
    assert sorted(both) == sorted(in_turn(lengths))
    if policy.in_order and other.in_order:
        assert both == in_turn(lengths)


@settings(max_examples=200, deadline=None)
@given(LENGTHS, POLICIES, ACTIONS)
def test_a_position_is_that_of_the_last_batch_delivered_and_its_state_is_no_later(
    lengths: list[int], policy: Policy, actions: list[tuple[str, int]]
) -> None:
    world = World(lengths, policy, [StreamPosition() for _ in lengths])
    act(world, actions)
    for stream, position in enumerate(world.schedule.positions()):
        given = [at for of, at in world.delivered if of == stream]
        assert given == list(range(position.given))
        assert position.state_at <= position.given <= lengths[stream]
        if position.ended:
            assert (position.given, position.state) == (lengths[stream], ["end", stream])
        else:
            assert position.state == ([stream, position.state_at] if position.state_at else None)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_stream_whose_last_batch_is_taken_back_has_not_ended(in_order: bool) -> None:
    world = World([1], Policy(budget=1, in_order=in_order), [StreamPosition()])
    act(world, [("want", 0), ("answer", 0), ("answer", 0)])
    assert world.schedule.positions()[0].ended
    world.interrupt(lost=1)
    assert world.schedule.positions() == (StreamPosition(),)
    world.finish()
    assert world.delivered == [(0, 0)]


def test_places_that_were_handed_out_do_not_move() -> None:
    order = SequenceOrder(lambda: range(6))
    plan = Plan(order, Grouping(Unit.SAMPLE), streams=2)
    schedule = Schedule(plan, Policy(workers=1, budget=2), 0, [StreamPosition(), StreamPosition()])
    schedule.handle(Started())
    before = schedule.positions()
    schedule.handle(Arrived(0))
    schedule.handle(Wanted())
    assert before == (StreamPosition(), StreamPosition())
    assert schedule.positions()[0] == StreamPosition(1, since=[Task(0, 0, 0, 0)])


def test_tasks_of_map_style_data_go_round_the_streams_and_are_kept_until_the_next_mark() -> None:
    plan = Plan(SequenceOrder(lambda: range(8)), Grouping(Unit.SAMPLE), streams=2)
    schedule = Schedule(plan, Policy(workers=2, budget=2), 0, [StreamPosition(), StreamPosition()])
    sent = schedule.handle(Started())
    for step in range(6):
        schedule.handle(Arrived(step, state="three" if step == 3 else None))
        sent += [i for i in schedule.handle(Wanted()) if type(i) is Send]
    assert [send.worker for send in sent if type(send) is Send] == [0, 1] * 4
    even, odd = schedule.positions()
    assert [task.step for task in even.since] == [0, 2, 4]
    assert (odd.state, odd.state_at, [task.step for task in odd.since]) == ("three", 2, [5])


# --- ranks ---------------------------------------------------------------------------------------

WORLDS = st.integers(1, 5)
TAILS = st.sampled_from(["pad", "drop", "uneven"])


def levelled(lengths: Sequence[int], share: StreamShare) -> list[Batch]:
    """The batches of a rank, in order, its own streams and those that it reads again."""
    own = in_turn([lengths[number] for number in share.own])
    batches = share.batches(lengths)
    again = [
        (index, at)
        for index in range(len(share), len(share) + share.total)
        for at in range(lengths[share.number(index)])
    ]
    return own if batches is None else [*own, *again][:batches]


@settings(max_examples=300, deadline=None)
@given(LENGTHS, WORLDS, TAILS, st.integers(0, 4), POLICIES, POLICIES, ACTIONS)
def test_ranks_that_are_to_have_as_many_batches_have_them_whatever_happens(
    lengths: list[int],
    world: int,
    tail: Tail,
    rank: int,
    policy: Policy,
    other: Policy,
    actions: list[tuple[str, int]],
) -> None:
    world = min(world, len(lengths))
    share = StreamShare(Shard(rank % world, world, tail), len(lengths))
    batches, positions = share.batches(lengths), [StreamPosition() for _ in share.own]
    first = World(lengths, policy, positions, share, batches)
    act(first, actions)
    step, positions = len(first.delivered), first.schedule.positions()
    assert step == sum(position.given for position in positions)
    again = World(lengths, other, positions, share, batches)
    again.finish()
    both, expected = first.delivered + again.delivered, levelled(lengths, share)
    assert len(both) == len(expected)
    if batches is not None and sum(lengths):
        assert len(both) == batches
    if policy.in_order and other.in_order:
        assert both == expected
    elif tail != "drop":
        assert {*both} >= {*in_turn([lengths[number] for number in share.own])}


@given(LENGTHS, WORLDS)
def test_every_stream_is_of_one_rank_and_is_read_again_by_any(
    lengths: list[int], world: int
) -> None:
    total = len(lengths)
    shares = [StreamShare(Shard(rank, world), total) for rank in range(world)]
    assert sorted(number for share in shares for number in share.own) == [*range(total)]
    for share in shares:
        assert [share.number(at) for at in range(len(share))] == [*share.own]
        again = [share.number(len(share) + at) for at in range(total)]
        assert sorted(again) == [*range(total)] and again[: len(share)] == [*share.own]


def test_a_rank_whose_streams_have_more_than_was_said_ends_with_the_others() -> None:
    share = StreamShare(Shard(0, 2), 2)
    world = World([5, 3], Policy(workers=1, budget=3), [StreamPosition()], share, batches=3)
    world.finish()
    assert world.delivered == [(0, 0), (0, 1), (0, 2)]
    assert world.schedule.waiting and world.schedule.plan.cut


def test_a_stream_that_is_read_again_ahead_of_the_consumer_has_no_position_yet() -> None:
    share, positions = StreamShare(Shard(0, 2), 2), [StreamPosition()]
    plan = StreamPlan(positions, None, share, batches=4)
    schedule = Schedule(plan, Policy(budget=4), 0, positions)
    schedule.handle(Started())
    for event in (Arrived(0), Arrived(1), Ended(2)):
        schedule.handle(event)
    assert any(task.stream == 1 for task in schedule.window())
    assert schedule.handle(Wanted())[-1] == Deliver(0)
    assert schedule.positions() == (StreamPosition(1),)
    assert schedule.handle(Wanted())[-1] == Deliver(1)
    assert schedule.positions() == (StreamPosition(2, ended=True), StreamPosition())


def test_a_rank_that_reads_to_the_shortest_ranks_end_draws_no_task_beyond_it() -> None:
    share, positions = StreamShare(Shard(0, 2, "drop"), 2), [StreamPosition()]
    plan = StreamPlan(positions, None, share, batches=3)
    schedule = Schedule(plan, Policy(budget=9), 0, positions)
    assert len(schedule.handle(Started())) == 3
    schedule.handle(Arrived(0))
    assert schedule.handle(Wanted()) == [Deliver(0)]


def read_again(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """The streams and steps of a rank's tasks once its own two streams have ended.

    ``lengths`` are those of all streams, by their indices within the rank.
    """
    share = StreamShare(Shard(0, 2), 4)
    plan = StreamPlan([StreamPosition(0, True)] * 2, None, share, batches=99)
    found = []
    while plan.repeat(len(found)):
        task = plan.draw()
        assert task.stream is not None
        if lengths[task.stream] == sum(stream == task.stream for stream, _ in found):
            plan.end(task.stream)
        else:
            found.append((task.stream, task.step))
        assert len(found) < 99
    return found


@given(st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_each_step_of_a_stream_that_is_read_again_is_above_all_before_it(
    lengths: list[int],
) -> None:
    # the first two are its own, which have ended
    assert read_again([0, 0, *lengths]) == [
        (2 + index, 2**60 + index * 2**32 + at)
        for index, length in enumerate(lengths)
        for at in range(length)
    ]


def test_streams_are_read_again_once_that_is_asked_for_and_for_so_many_batches() -> None:
    share = StreamShare(Shard(0, 2), 2)
    positions = [StreamPosition(2, True), StreamPosition(1)]
    plan = StreamPlan(positions, None, share, batches=5)
    assert plan.next_steps() == {}
    with pytest.raises(StopIteration):
        plan.draw()
    assert plan.repeat(5) == 0
    assert plan.repeat(3) == 2
    assert [plan.draw().step, plan.draw().step] == [2**60 + 1, 2**60 + 2]
    with pytest.raises(StopIteration):
        plan.draw()


def test_one_stream_at_a_time_is_read_again_by_a_resumed_rank() -> None:
    share = StreamShare(Shard(0, 2), 4)
    own, again = [StreamPosition(0, True)] * 2, [StreamPosition(1), StreamPosition()]
    plan = StreamPlan([*own, *again], None, share, batches=5)
    plan.repeat(1)
    assert plan.next_steps() == {2: 2**60 + 1}
    plan.end(2)
    assert plan.next_steps() == {3: 2**60 + 2**32}


def test_a_rank_that_has_read_all_streams_again_reads_none_any_more() -> None:
    share = StreamShare(Shard(0, 2), 2)
    plan = StreamPlan([StreamPosition(0, True)], None, share, batches=5)
    for begun in (2, 3):
        assert plan.repeat(0) == begun
        plan.end(begun - 1)
    assert plan.repeat(0) == 0


def test_tasks_after_a_state_that_could_not_be_taken_are_remembered_to_be_fetched_again() -> None:
    error = CannotSaveError("the dataset", "it is open", "Close it.")
    first, third = (Task(step, [step], step, 0) for step in (0, 2))
    begun, later = StreamPosition(), StreamPosition(2, state="two", state_at=2)
    begun.deliver(first, error, remember=True)
    assert begun == StreamPosition(1, state=error, since=[first])
    later.deliver(third, error, remember=True)
    assert later == StreamPosition(3, state="two", state_at=2, since=[third])


def test_more_streams_than_workers_share_them() -> None:
    plan = StreamPlan([StreamPosition() for _ in range(5)], None)
    sent = Schedule(plan, Policy(workers=2, budget=5)).handle(Started())
    workers = [(send.worker, send.task.stream) for send in sent if type(send) is Send]
    assert workers == [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4)]


def test_a_stream_that_is_behind_catches_up_first() -> None:
    plan = StreamPlan([StreamPosition(3), StreamPosition(1), StreamPosition(9, ended=True)], None)
    drawn = itertools.islice(iter(plan.draw, None), 6)
    assert [(task.stream, task.step) for task in drawn if task] == [
        (1, 4), (1, 7), (0, 9), (1, 10), (0, 12), (1, 13),
    ]  # fmt: skip


def test_what_is_passed_over_is_no_batch_that_its_stream_is_asked_for_again() -> None:
    order, grouping = SequenceOrder(lambda: range(20)), Grouping(Unit.SAMPLE_OF_BATCH, 2)
    positions = [StreamPosition(), StreamPosition()]
    schedule = Schedule(Plan(order, grouping, streams=2), Policy(2, 2), 0, positions)
    sent = [*schedule.handle(Skipped(3)), *schedule.handle(Started())]
    assert [send.task.step for send in sent if isinstance(send, Send)] == [3, 4]
    assert [(position.given, position.since) for position in schedule.positions()] == [
        (2, []),
        (1, []),
    ]
    schedule.handle(Arrived(3))
    schedule.handle(Wanted())
    assert [position.given for position in schedule.positions()] == [2, 2]
    check_schedule(schedule)
