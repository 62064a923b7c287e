"""Delivery out of order: a slow worker holds up its own streams, and nobody else's."""

from __future__ import annotations

import json
import pickle
from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.invariants import check_schedule

from picklable_loader.core.cursor import Cursor
from picklable_loader.core.events import (
    Arrived,
    Deliver,
    Died,
    Emptied,
    Ended,
    Failed,
    Finish,
    PassEmpty,
    Raise,
    Send,
    Skipped,
    Started,
    Wanted,
)
from picklable_loader.core.plan import MOST_ASIDE, Plan
from picklable_loader.core.schedule import Policy, Schedule
from picklable_loader.core.snapshot import from_plain, to_plain
from picklable_loader.core.streams import StreamPlan, StreamPosition
from picklable_loader.core.task import Task
from picklable_loader.errors import DamagedStateError

from .test_schedule import plan_of

BATCH_SIZE = 3
FITS = {"batch_size": BATCH_SIZE}


@dataclass(frozen=True)
class Data:
    """What is read: streams of these lengths, or a sampler's batches that streams serve in turn."""

    streams: int
    #: iterable-style: batches of each stream
    lengths: tuple[int, ...] = ()
    #: map-style: samples of the order, and whether the dataset has a state
    samples: int = 0
    stateful: bool = False

    def steps(self) -> list[int]:
        """Every step that has a batch."""
        if self.lengths:
            each = enumerate(self.lengths)
            return sorted(n * self.streams + s for s, length in each for n in range(length))
        return list(range(-(-self.samples // BATCH_SIZE)))

    def schedule(
        self, policy: Policy, saved: dict[str, Any] | None = None, most_aside: int = MOST_ASIDE
    ) -> Schedule:
        """One that begins, or goes on from a saved form, as a run does."""
        cursor = Cursor() if saved is None else from_plain(saved, live=True)[0]
        has_places = self.lengths or self.stateful
        new = tuple(StreamPosition() for _ in range(self.streams)) if has_places else ()
        positions = cursor.streams or new
        if self.lengths:
            return Schedule(StreamPlan(positions, None), policy, cursor.step, positions)
        plan = plan_of(self.samples, BATCH_SIZE)
        backlog = []
        for task in cursor.window:
            plan.order.seek(task.position)
            indices, stream = plan.order.take(BATCH_SIZE), task.step % self.streams
            backlog.append(Task(task.step, indices, task.position, stream))
        plan.order.seek(cursor.position)
        start = cursor.next_step, cursor.position
        rest = Plan(plan.order, plan.grouping, *start, backlog, self.streams, most_aside)
        return Schedule(rest, policy, cursor.step, positions)

    def saved(self, schedule: Schedule) -> dict[str, Any]:
        """Its saved form, as a run makes it."""
        plan, step = schedule.plan, schedule.delivered
        positions = tuple(
            position.copy(since=[Task(t.step, None, t.position, t.stream) for t in position.since])
            for position in schedule.positions()
        )
        cursor = Cursor(step=step, next_step=step, streams=positions)
        if not self.lengths:
            pending = sorted([*schedule.window(), *plan.backlog], key=lambda task: task.step)
            window = tuple(Task(t.step, None, t.position, t.stream) for t in pending)
            start = {"next_step": plan.next_step, "position": plan.position}
            cursor = Cursor(step=step, window=window, streams=positions, **start)
        return json.loads(json.dumps(to_plain(cursor, FITS)))  # type: ignore[no-any-return]


class World:
    """Workers that each do their tasks in the order that they get them, and a consumer."""

    def __init__(self, data: Data, schedule: Schedule, skip: int = 0) -> None:
        self.data = data
        self.schedule = schedule
        self.queues: list[deque[int]] = [deque() for _ in range(schedule.policy.workers)]
        self.delivered: list[int] = []
        self.passed: list[int] = []
        self.over = False
        self.tell(Skipped(skip))
        self.tell(Started())

    def tell(self, event: Any) -> None:
        for instruction in self.schedule.handle(event):
            match instruction:
                case Send(worker, task):
                    assert worker is not None
                    self.queues[worker].append(task.step)
                case Deliver(step) | Raise(step):
                    self.delivered.append(step)
                case PassEmpty(step):
                    self.passed.append(step)
                case Finish():
                    self.over = True
                case _:
                    raise AssertionError(f"no worker and no consumer here knows {instruction}")
        check_schedule(self.schedule)
        assert len(self.schedule.window()) <= self.schedule.budget

    def answer(self, worker: int, kind: Any = Arrived, state: Any = None) -> None:
        step = self.queues[worker].popleft()
        stream, batch = step % self.data.streams, step // self.data.streams
        ended = self.data.lengths and batch >= self.data.lengths[stream]
        self.tell(Ended(step) if ended else kind(step, state=state))

    def kill(self, worker: int) -> None:
        lost = list(self.queues[worker])
        self.queues[worker].clear()
        self.tell(Died(worker, lost, None))

    def busy(self, silent: set[int] = frozenset()) -> list[int]:  # type: ignore[assignment]
        return [w for w, queue in enumerate(self.queues) if queue and w not in silent]

    def run(self, silent: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """Until nothing comes any more: the epoch is over, or only silent workers have tasks."""
        while not self.over:
            if not self.schedule._wanting:
                self.tell(Wanted())
            elif busy := self.busy(silent):
                self.answer(busy[0])
            else:
                return

    def act(self, actions: list[tuple[str, int]]) -> None:
        for action, choice in actions:
            busy = self.busy()
            if action == "pickle":
                self.schedule = pickle.loads(pickle.dumps(self.schedule))
            elif action == "kill":
                self.kill(choice % len(self.queues))
            elif action == "want":
                if not self.schedule._wanting and not self.over:
                    self.tell(Wanted())
            elif busy:
                kind = {"fail": Failed, "empty": Emptied}.get(action, Arrived)
                state = {"at": choice} if action == "mark" else None
                self.answer(busy[choice % len(busy)], kind, state)


DATA = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=5).map(
        lambda lengths: Data(len(lengths), lengths=tuple(lengths))
    ),
    st.builds(
        Data,
        streams=st.integers(1, 5),
        samples=st.integers(0, 90),
        stateful=st.booleans(),
    ),
)


def policy_of(workers: int, budget: int, in_order: bool = False) -> Policy:
    return Policy(workers=workers, budget=budget, in_order=in_order, most_deaths=10**9)


POLICIES = st.builds(policy_of, st.integers(1, 4), st.integers(1, 12), st.booleans())
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["want", "answer", "mark", "fail", "empty", "kill", "pickle"]),
        st.integers(0, 7),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(DATA, st.integers(2, 4), st.integers(0, 9), st.data())
def test_workers_that_never_answer_hold_up_nothing_but_their_own_streams(
    data: Data, workers: int, more: int, draw: st.DataObject
) -> None:
    silent = draw.draw(st.sets(st.integers(0, workers - 1), max_size=workers - 1))
    world = World(data, data.schedule(policy_of(workers, workers + more)))
    world.run(silent)
    others = [s for s in data.steps() if s % data.streams % workers not in silent]
    assert sorted(world.delivered) == others
    owed = [len(queue) for queue in world.queues]
    assert sum(owed) <= world.schedule.budget
    saved = data.saved(world.schedule)
    assert len(saved["window"]) <= data.streams, "one entry for all tasks that wait for a worker"
    assert saved["step"] == len(others)
    world.run()
    assert world.over and sorted(world.delivered) == data.steps()
    again = World(data, data.schedule(policy_of(1, 1), saved))
    again.run()
    assert sorted(others + again.delivered) == data.steps()


@settings(max_examples=300, deadline=None)
@given(DATA, POLICIES, POLICIES, ACTIONS)
def test_each_batch_comes_once_wherever_it_is_saved_and_in_the_order_of_its_stream(
    data: Data, policy: Policy, other: Policy, actions: list[tuple[str, int]]
) -> None:
    world = World(data, data.schedule(policy))
    world.act(actions)
    again = World(data, data.schedule(other, data.saved(world.schedule)))
    before, passed = list(world.delivered), list(world.passed)
    for each in (world, again):
        each.run()
        assert each.over
        came = before + passed if each is again else []
        assert sorted([*came, *each.delivered, *each.passed]) == data.steps()
        by_stream = sorted(before + each.delivered, key=lambda step: step % data.streams)
        if each is again:
            assert by_stream == sorted(by_stream, key=lambda step: (step % data.streams, step))
    if policy.in_order:
        assert world.delivered == sorted(world.delivered)


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 4), st.integers(0, 30), st.integers(1, 4), st.data())
def test_no_more_tasks_wait_for_a_slow_worker_than_may_be_set_aside(
    workers: int, most_aside: int, each: int, draw: st.DataObject
) -> None:
    data = Data(workers, samples=BATCH_SIZE * 100)
    world = World(data, data.schedule(policy_of(workers, each * workers), None, most_aside))
    silent = {draw.draw(st.integers(0, workers - 1))}
    world.run(silent)
    plan = world.schedule.plan
    assert len(plan.backlog) <= most_aside
    others = [step for step in data.steps() if step % workers not in silent]
    if most_aside and sorted(world.delivered) != others:
        assert len(plan.backlog) > most_aside - workers
    world.run()
    assert sorted(world.delivered) == data.steps()


def test_a_sampler_that_notices_is_drawn_from_in_turn_and_no_further_ahead_than_the_budget() -> (
    None
):
    data = Data(2, samples=BATCH_SIZE * 40)
    world = World(data, data.schedule(policy_of(2, 4), most_aside=0))
    world.run({0})
    assert world.delivered == [1, 3, 5]
    assert world.schedule.plan.next_step == len(world.delivered) + 4


def test_while_all_are_as_fast_tasks_are_drawn_in_the_order_of_their_steps() -> None:
    for data in (Data(2, samples=BATCH_SIZE * 10), Data(2, lengths=(5, 5))):
        world = World(data, data.schedule(policy_of(2, 4)))
        for step in range(10):
            assert world.queues[step % 2][0] == step
            world.answer(step % 2)
            world.tell(Wanted())
        assert world.delivered == list(range(10))


def test_a_share_of_the_window_grows_as_other_workers_end() -> None:
    data = Data(3, lengths=(0, 9, 0))
    world = World(data, data.schedule(policy_of(3, 6)))
    assert [len(queue) for queue in world.queues] == [2, 2, 2]
    for worker in (0, 2, 0, 2):
        world.answer(worker)
    assert [len(queue) for queue in world.queues] == [0, 6, 0]


def test_skipping_passes_over_what_was_set_aside_first() -> None:
    data = Data(2, samples=BATCH_SIZE * 20)
    world = World(data, data.schedule(policy_of(2, 4)))
    for _ in range(6):
        world.tell(Wanted())
        world.answer(1)
    assert world.delivered == [1, 3, 5, 7, 9, 11]
    rest = World(data, data.schedule(policy_of(2, 4), data.saved(world.schedule)), skip=7)
    rest.run()
    assert sorted(rest.delivered) == list(range(13, 20))


def test_tasks_that_are_as_many_steps_apart_as_there_are_streams_are_saved_as_one_entry() -> None:
    tasks = [Task(3 * n + s, None, 3 * n + s, s) for n in range(50) for s in (0, 2)]
    cursor = Cursor(step=50, next_step=150, position=150, window=tuple(tasks))
    saved = json.loads(json.dumps(to_plain(cursor, {"batch_size": None})))
    assert saved["window"] == [[0, 0, None, 50, 3], [2, 2, None, 50, 3]]
    restored, _ = from_plain(saved)
    assert [(t.step, t.position) for t in restored.window] == [(t.step, t.position) for t in tasks]


@pytest.mark.parametrize(
    "window",
    [
        [[0, 0, None, 5, 0]],
        [[0, 0, None, 5, "3"]],
        [[0, 0, None, 5, 3, 1]],
        [[0, 0, None, 6, 3]],
        [[0, 0, [1], 2, 3]],
        [[0, 0, None, 3, 2], [2, 2, None]],
        [[0, 0, None, 10**5 + 1, 1]],
    ],
    ids=str,
)
def test_an_entry_that_is_never_written_is_damage(window: list[Any]) -> None:
    good = to_plain(Cursor(step=9, next_step=15), {"batch_size": None})
    assert len(from_plain({**good, "window": [[0, 0, None, 5, 3]]})[0].window) == 5
    with pytest.raises(DamagedStateError, match="window"):
        from_plain({**good, "window": window})
