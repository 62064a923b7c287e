"""Feedback to a sampler, and flush: what it sees depends on deliveries and on the budget alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from zoo.invariants import check_schedule
from zoo.orders import rest, sequence

from picklable_loader.core.budget import Policy
from picklable_loader.core.events import (
    Arrived,
    Budgeted,
    Deliver,
    Died,
    Drop,
    Emptied,
    Fault,
    Finish,
    Flushed,
    Interrupted,
    PassEmpty,
    Retract,
    Send,
    Skipped,
    Started,
    Told,
    Wanted,
)
from picklable_loader.core.feedback import Feedback
from picklable_loader.core.plan import Grouping, Plan, Unit
from picklable_loader.core.schedule import Schedule
from picklable_loader.core.shard import Shard
from picklable_loader.core.task import Task
from picklable_loader.errors import UsageError


class Attentive:
    """An order whose next index depends on everything that happened before, and on its moment.

    Args:
        length: how many indices it has.
        takes_back: it has ``put_back``.
        listens: it has ``receive``; None: so has its iterator, which nobody knows before a draw.
    """

    seekable = False

    def __init__(self, length: int, takes_back: bool, listens: bool | None = True) -> None:
        self.left = length
        self.takes_back = takes_back
        self.listens = listens
        self.opened = False
        #: how often it has heard of a step from the program
        self.told = 0
        self.log: list[Any] = []

    def open(self) -> None:
        self.opened = True
        if self.listens is None:
            self.listens = True

    def take(self, count: int) -> list[int]:
        self.open()
        count = min(count, self.left)
        self.left -= count
        items = [crc32(repr((self.log, at)).encode()) for at in range(count)]
        if items:  # an iterator that has ended is not asked again
            self.log.append(items)
        return items

    def receive(self, step: int, notes: Sequence[bytes]) -> None:
        assert self.listens
        told = [note for note in notes if note.startswith(b"about")]
        assert told == [f"about {step}".encode()] * len(told), "it goes to the step it is about"
        self.told += len(told)
        self.log.append((step, [*notes]))

    def put_back(self, batches: list[Any]) -> bool:
        if self.takes_back:
            self.log.append(("back", batches))
            self.left += sum(map(len, batches))
        return self.takes_back

    def iterator(self) -> Any:
        raise NotImplementedError

    def length(self) -> None:
        return None


@dataclass
class Pass_:
    """A program that follows a script, and workers that answer in the order of ``luck``, or die.

    An act of the script is "next", "tell", "flush", "change" (of the live sampler), or a number of
    steps to skip. When it is at its end, the program asks for the rest.
    """

    schedule: Schedule
    script: Sequence[Any]
    empty: frozenset[int] = frozenset()
    luck: list[int] = field(default_factory=list)
    under_way: list[tuple[int, Any]] = field(default_factory=list)
    #: the batches that the consumer has got, by step
    got: dict[int, Any] = field(default_factory=dict)
    #: by step, which act has asked for it
    asked: dict[int, int] = field(default_factory=dict)
    arrived: dict[int, Any] = field(default_factory=dict)
    #: acts that are done
    done: int = 0
    tells: int = 0
    over: bool = False

    @property
    def order(self) -> Any:
        return self.schedule.plan.order  # type: ignore[union-attr]

    def handle(self, event: Any) -> int | None:
        """Carry out what an event leads to; the step that is delivered."""
        delivered = None
        for instruction in self.schedule.handle(event):
            match instruction:
                case Send(_, task):
                    self.under_way.append((task.step, task.indices))
                case Deliver(step):
                    delivered = step
                case PassEmpty(step) | Drop(step):
                    del self.arrived[step]
                case Finish():
                    self.over = True
                    assert not self.arrived, "batches that nobody wants are forgotten"
                case Fault(error):
                    raise error
                case Retract():
                    pass
                case _:
                    raise AssertionError(instruction)
        check_schedule(self.schedule)
        return delivered

    def chance(self) -> int:
        return self.luck.pop() if self.luck else 0

    def work(self) -> int | None:
        """A worker answers, or dies; or the consumer is interrupted."""
        luck = self.chance()
        if luck == 13:
            lost = [step for step, _ in self.under_way[:2]]
            del self.under_way[:2]
            return self.handle(Died(0, lost, lost[0] if lost else None))
        step, indices = self.under_way.pop(luck % len(self.under_way))
        self.arrived[step] = indices
        if step in self.empty:
            return self.handle(Emptied(step))
        return self.handle(Arrived(step, notes=[repr(indices).encode()]))

    def next(self) -> None:
        before = self.schedule.delivered
        step = self.handle(Wanted())
        while step is None and not self.over:
            step = self.work()
        if self.over:
            return
        assert step is not None
        if self.chance() == 13:  # an interruption, before the consumer has the batch
            self.handle(Interrupted(before))
            self.under_way.clear()
            self.arrived.clear()
            self.handle(Started())
            return self.next()
        self.got[step], self.asked[step] = self.arrived.pop(step), self.done

    def act(self, act: Any) -> None:
        if act == "next":
            self.next()
        elif act == "tell":
            if self.schedule.feedback.listening and self.schedule.deliveries.newest >= 0:
                self.tells += 1
                self.handle(Told(f"about {self.schedule.deliveries.newest}".encode()))
        elif act == "flush":
            drawn = 0 if self.order.takes_back else self.drawn()
            self.handle(Flushed())
            assert self.drawn() == drawn, "nothing is drawn again before the program asks"
        elif act == "change":
            self.order.open()
            self.order.log.append("change")
        else:
            self.handle(Skipped(act))

    def drawn(self) -> int:
        plan: Any = self.schedule.plan
        return len(self.schedule.window()) + len(plan.backlog)

    def run(self, acts: int | None = None) -> Pass_:
        """Do so many acts; None: all, and ask for the rest."""
        script = self.script if acts is None else self.script[:acts]
        while self.done < len(script) and not self.over:
            self.act(script[self.done])
            self.done += 1
        while acts is None and not self.over:
            self.next()
        return self

    def behind(self, most: int) -> int:
        """How many deliveries a state may be behind, with all that is done again since then."""
        for count in range(min(most, len(self.schedule.deliveries)), 0, -1):
            first = self.schedule.deliveries.last(count)[-1].task.step
            if first in self.asked and "change" not in self.script[self.asked[first] : self.done]:
                return count
        return 0

    def resumed(self, behind: int, policy: Policy, luck: list[int]) -> Pass_:
        """Another consumer, which goes on from a state; the rest is as after a crash."""
        old = self.schedule
        undone = old.deliveries.last(behind)
        step = undone[-1].delivered if undone else old.delivered
        newest = undone[-1].newest if undone else old.deliveries.newest
        plan: Any = old.plan
        pending = [*(each.task for each in undone), *old.window(), *plan.backlog]
        order = copy.deepcopy(plan.order)
        again = Plan(order, plan.grouping, plan.next_step, plan.position, pending)
        again.tail = [*plan.tail]
        heard = old.feedback.heard(newest, behind > 0) if old.feedback.listening else None
        waits = order.opened and not pending
        feedback = Feedback(again, heard, old.feedback.below(step), waits)
        schedule = Schedule(again, policy, step, (), 3, feedback, newest)
        got = {at: batch for at, batch in self.got.items() if at < step}
        done = self.asked[undone[-1].task.step] if undone else self.done
        passing = Pass_(schedule, self.script, self.empty, luck, got=got, done=done)
        passing.over = self.over and not undone
        if not passing.over:
            passing.handle(Started())
        return passing


def begun(
    policy: Policy,
    script: Sequence[Any],
    length: int,
    back: bool,
    luck: Sequence[int] = (),
    empty: frozenset[int] = frozenset(),
    listens: bool | None = True,
    drop_last: bool = False,
) -> Pass_:
    grouping = Grouping(Unit.SAMPLE_OF_BATCH, 2, drop_last)
    plan = Plan(Attentive(length, back, listens), grouping)
    passing = Pass_(Schedule(plan, policy, remember=3), script, empty, [*luck])
    passing.handle(Started())
    return passing


def seen(passing: Pass_) -> Any:
    """All that the sampler has seen, and all that the consumer has got."""
    return passing.order.log, passing.got


def under(workers: int, budget: int) -> Policy:
    """As a loader sets it for a sampler of one's own."""
    return Policy(workers, budget=budget, most_deaths=ENDLESS, on_demand=budget == 1)


ACTS = st.sampled_from(["next", "next", "next", "tell", "tell", "flush", "change", 0, 1, 2])
SCRIPT = st.lists(ACTS, max_size=24)
EMPTY = st.frozensets(st.integers(0, 12), max_size=3)
LISTENS = st.sampled_from([True, None, False])
#: lists that Hypothesis makes are short, and mostly zeros: too little happens under these
LUCK = st.integers(0, 2**32).map(lambda seed: Random(seed).choices(range(14), k=80))
LENGTH = st.integers(0, 30)
ENDLESS = 10**9
#: a flush that gave up nothing, and a state from before it: the batch after it is in its window
FLUSHED_BETWEEN = ["next", "flush", "next"], frozenset[int](), 3, True, False, False, 1


@settings(max_examples=1000, deadline=None)
@given(
    SCRIPT, EMPTY, LENGTH, st.booleans(), LISTENS, st.booleans(), st.integers(1, 4),
    st.integers(1, 5), LUCK,
)  # fmt: skip
def test_a_sampler_sees_the_same_whoever_works(
    script: list[Any],
    empty: frozenset[int],
    length: int,
    back: bool,
    listens: bool | None,
    drop_last: bool,
    workers: int,
    budget: int,
    luck: list[int],
) -> None:
    alone = Policy(lazy=True, budget=1, most_deaths=ENDLESS) if budget == 1 else under(1, budget)
    given_to_both = empty, listens, drop_last
    expected = begun(alone, script, length, back, (), *given_to_both).run()
    found = begun(under(workers, budget), script, length, back, luck, *given_to_both).run()
    assert seen(found) == seen(expected)
    assert found.order.told == found.tells, "nothing that the program says is lost"


@settings(max_examples=1500, deadline=None)
@example(*FLUSHED_BETWEEN, [], [], [], 3, 0, 2, 0)
@given(
    SCRIPT, EMPTY, LENGTH, st.booleans(), LISTENS, st.booleans(), st.integers(1, 5), LUCK, LUCK,
    LUCK, st.integers(0, 24), st.integers(0, 24), st.integers(0, 3), st.integers(0, 3),
)  # fmt: skip
def test_a_state_goes_on_with_what_the_sampler_would_have_seen(
    script: list[Any],
    empty: frozenset[int],
    length: int,
    back: bool,
    listens: bool | None,
    drop_last: bool,
    budget: int,
    luck: list[int],
    more: list[int],
    most: list[int],
    acts: int,
    later: int,
    behind: int,
    then_behind: int,
) -> None:
    """The one that goes on is saved once more, at once or later."""
    given_to_both = empty, listens, drop_last
    expected = begun(under(2, budget), script, length, back, (), *given_to_both).run()
    killed = begun(under(2, budget), script, length, back, luck, *given_to_both).run(acts)
    again = killed.resumed(killed.behind(behind), under(1, budget), more).run(acts + later)
    last = again.resumed(again.behind(then_behind), under(3, budget), most)
    assert seen(last.run()) == seen(expected)


class Queue(Attentive):
    """An order that has what it takes back once more, before all others.

    Args:
        items: what it gives.
        gathered: a batch that it takes back is a list of its items, instead of one item.
    """

    def __init__(self, items: Sequence[Any], gathered: bool) -> None:
        super().__init__(0, takes_back=True, listens=False)
        self.items, self.gathered = [*items], gathered

    def take(self, count: int) -> list[Any]:
        taken, self.items = self.items[:count], self.items[count:]
        return taken

    def put_back(self, batches: list[Any]) -> bool:
        self.log.append(batches)
        self.items[:0] = [item for each in batches for item in each] if self.gathered else batches
        return True


SHARDS = st.integers(1, 3).flatmap(
    lambda world: st.tuples(st.just(world), st.sampled_from(["pad", "drop", "uneven"]))
)


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.sampled_from(["next", "next", "flush"]), max_size=16), LENGTH, SHARDS,
    st.sampled_from(Unit), st.booleans(), st.integers(1, 5), LUCK,
)  # fmt: skip
def test_flush_loses_nothing_and_the_samplers_of_all_ranks_are_offered_the_same(
    script: list[str],
    length: int,
    shards: tuple[int, Any],
    unit: Unit,
    drop_last: bool,
    budget: int,
    luck: list[int],
) -> None:
    gathered, (world, tail) = unit is Unit.SAMPLE_OF_BATCH, shards
    items = [[at] for at in range(length)] if unit is Unit.BATCH else range(length)

    def pass_of(rank: int, script: Sequence[str], luck: Sequence[int]) -> Pass_:
        shard = Shard(rank, world, tail)
        size = (2, drop_last) if gathered else (1, False)
        plan = Plan(Queue(items, gathered), Grouping(unit, *size, shard))
        passing = Pass_(Schedule(plan, under(2, budget), remember=3), script, luck=[*luck])
        passing.handle(Started())
        return passing.run()

    offered = []
    for rank in range(world):
        flushed = pass_of(rank, script, luck)
        assert flushed.got == pass_of(rank, [], ()).got
        offered.append(flushed.order.log)
    shorter, *_, longest = sorted(offered, key=len) if world > 1 else (offered[0], offered[0])
    assert all(each == longest[: len(each)] for each in offered)
    assert len(shorter) == len(longest) or tail == "uneven", "a rank may be at its end"


def test_the_tail_that_no_batch_is_made_of_is_offered_as_well() -> None:
    grouping = Grouping(Unit.SAMPLE_OF_BATCH, 2, drop_last=True)
    plan = Plan(Queue(range(5), True), grouping)
    passing = Pass_(Schedule(plan, under(2, 4), remember=3), ["next", "flush"])
    passing.handle(Started())
    passing.run(2)
    assert passing.order.log == [[[2, 3], [4]]]
    passing.order.items.append(5)
    assert passing.run().got == {0: [0, 1], 1: [2, 3], 2: [4, 5]}


def test_the_tail_is_offered_when_all_batches_were_delivered() -> None:
    plan = Plan(Queue(range(5), True), Grouping(Unit.SAMPLE_OF_BATCH, 2, drop_last=True))
    assert [task.indices for task in rest(plan)] == [[0, 1], [2, 3]]
    assert plan.put_back([])
    plan.order.items.append(5)  # type: ignore[attr-defined]
    assert [task.indices for task in rest(plan)] == [[4, 5]]


def test_a_sampler_hears_of_a_batch_before_later_ones_are_skipped() -> None:
    passing = begun(Policy(workers=2), ["next", "tell"], 8, back=False).run(2)
    passing.handle(Skipped(1))
    assert [step for step, *_ in passing.order.log[1:2]] == [0] and passing.order.told == 1


def test_after_flush_a_state_is_behind_no_delivery_before_it_where_a_backlog_was_given_up() -> None:
    order = sequence(range(6))
    order.seek(4)
    plan = Plan(order, Grouping(Unit.SAMPLE), 4, 4, [Task(1, 1, 1), Task(3, 3, 3)])
    schedule = Schedule(plan, Policy(lazy=True), 2, remember=3)
    schedule.handle(Started())
    schedule.handle(Wanted())
    assert schedule.handle(Arrived(1)) == [Deliver(1)] and len(schedule.deliveries) == 1
    schedule.handle(Flushed())
    assert len(schedule.deliveries) == 0


def test_a_sampler_that_has_heard_something_is_not_drawn_from_before_the_consumer_asks() -> None:
    assert Feedback(None, heard=0).waits and not Feedback(None).waits


def test_with_a_budget_of_one_a_batch_is_drawn_with_all_feedback_of_those_before() -> None:
    log, got = seen(begun(Policy(workers=2), ["next", "tell"] * 3, 6, back=False).run())
    notes = [repr(got[step]).encode() for step in range(3)]
    rows = [(step, [notes[step], f"about {step}".encode()]) for step in range(3)]
    assert log == [got[0], rows[0], got[1], rows[1], got[2], rows[2]]


def test_a_budget_of_three_lets_the_sampler_be_two_batches_ahead() -> None:
    log, got = seen(begun(Policy(workers=2, budget=3), ["next"] * 2, 8, back=False).run(2))
    assert log == [*log[:3], (0, [repr(got[0]).encode()]), log[4]]


def test_flush_gives_up_what_was_drawn_and_the_sampler_is_asked_again() -> None:
    passing = begun(Policy(workers=2, budget=3), ["next", "flush"], 8, back=True)
    log, got = seen(passing.run())
    offered = log[4]
    assert offered == ("back", log[1:3])
    assert sorted(got) == [0, 1, 2, 3]
    assert not any(batch in log[1:3] for batch in got.values())


def test_without_put_back_flush_gives_nothing_up() -> None:
    with_flush = begun(Policy(workers=2, budget=3), ["next", "flush"], 8, False)
    without = begun(Policy(workers=2, budget=3), [], 8, False)
    assert seen(with_flush.run())[1] == seen(without.run())[1]


def test_a_step_that_was_given_up_is_not_drawn_again_while_a_worker_has_it() -> None:
    passing = begun(Policy(workers=2, budget=3), [], 8, back=True)
    passing.next()
    assert passing.under_way, "workers have later steps"
    passing.handle(Flushed())
    waiting, passing.under_way = passing.under_way, []
    assert passing.handle(Wanted()) is None and not passing.under_way and not passing.over
    passing.under_way = waiting
    assert len(passing.run().got) == 4


def test_a_second_flush_does_not_forget_what_workers_have_of_the_first() -> None:
    once = begun(Policy(workers=2, budget=3), ["next", "flush"], 8, back=True)
    often = begun(Policy(workers=2, budget=3), ["next", *["flush"] * 3], 8, back=True)
    assert seen(often.run()) == seen(once.run())


@pytest.mark.parametrize("quick", [0, 1])
def test_after_flush_nothing_is_drawn_before_the_program_asks_however_quick_workers_were(
    quick: int,
) -> None:
    """Near the end all that was drawn may have arrived: no worker has what is given up."""
    passing = begun(under(2, 3), ["next", "flush", "change"], 6, True, [quick] * 4, listens=False)
    passing.run(3)
    assert bool(passing.under_way) != quick
    assert passing.order.log[-2][0] == "back" and passing.order.log[-1] == "change"
    assert len(passing.run().got) == 3


def test_what_receive_raises_reaches_the_consumer_and_the_pass_goes_on() -> None:
    passing = begun(Policy(workers=1), [], 6, back=False)
    order: Any = passing.schedule.plan.order  # type: ignore[union-attr]
    passing.next()

    def refuse(step: int, notes: Sequence[bytes]) -> None:
        order.receive = Attentive.receive.__get__(order)
        raise ZeroDivisionError(step)

    order.receive = refuse
    with pytest.raises(ZeroDivisionError):
        passing.next()
    assert len(passing.run().got) == 3
    assert (0, [repr(passing.got[0]).encode()]) not in order.log  # it counts as received


@pytest.mark.parametrize("act", ["next", "flush", 0])
def test_what_the_sampler_raises_is_not_lost_while_it_receives_feedback(act: Any) -> None:
    passing = begun(under(2, 3), [], 12, back=False)
    order: Any = passing.schedule.plan.order  # type: ignore[union-attr]

    def fail(count: int) -> list[int]:
        if len(order.log) == 2:
            order.take = Attentive.take.__get__(order)
            raise ZeroDivisionError
        return Attentive.take(order, count)

    order.take = fail
    passing.next()
    assert len(passing.got) == 1, "two batches were drawn before it failed"
    passing.act(act)
    with pytest.raises(ZeroDivisionError):
        while len(passing.got) < 3:
            passing.next()
    assert len(passing.got) == 2
    assert len(passing.run().got) == 6


@pytest.mark.parametrize("event", [Started(), Skipped(1)])
@pytest.mark.parametrize("listens", [True, None])
def test_whether_a_sampler_listens_is_known_as_soon_as_it_or_its_iterator_says(
    listens: bool | None, event: Any
) -> None:
    plan = Plan(Attentive(8, False, listens), Grouping(Unit.SAMPLE_OF_BATCH, 2))
    schedule = Schedule(plan, Policy(workers=2, budget=3))
    drawn = schedule.handle(event)
    assert schedule.feedback.listening
    assert len(drawn) == (3 if listens is None and event == Started() else 0)


def test_a_larger_budget_from_the_program_counts_from_the_next_batch() -> None:
    passing = begun(Policy(workers=2), [], 12, back=False)
    passing.next()
    passing.handle(Budgeted(3))
    passing.next()
    assert len(passing.schedule.window()) == 2


@pytest.mark.parametrize(
    "policy, shard, named",
    [
        (Policy(in_order=False), Shard(), "in_order=False"),
        (Policy(), Shard(0, 2), "shard="),
    ],
)
def test_a_listener_is_refused_where_more_than_the_budget_decides(
    policy: Policy, shard: Shard, named: str
) -> None:
    plan = Plan(Attentive(8, False), Grouping(Unit.SAMPLE_OF_BATCH, 2, shard=shard))
    for feedback in (Feedback(plan), Feedback(plan, heard=0)):  # the latter is of a state
        with pytest.raises(UsageError, match=named):
            Schedule(plan, policy, feedback=feedback).handle(Started())
