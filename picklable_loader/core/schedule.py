"""The state machine of a pass: it takes events and returns instructions, through one method.

The schedule *draws* a task from the plan and sends it to a worker, at once unless its stream may
have to move first. From then on the task is in the *window* until it is delivered. The table in
``phases`` lists the events that it may meet there. Any other event is a bug, and raises before
anything has changed. The engine holds the batch; the schedule only knows that the step has arrived.

One schedule serves any number of workers. ``num_workers=0`` is one worker that is given a task only
when the consumer asks (``lazy``). The *budget* is how many tasks the window may hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from ..errors import InvalidTransition
from .budget import Budget, Policy
from .deliveries import Deliveries, Delivery
from .dispatch import Dispatch
from .events import (
    Answered,
    Arrived,
    Budgeted,
    Condemn,
    Deliver,
    Died,
    Drop,
    Emptied,
    Ended,
    Event,
    Failed,
    Fault,
    Finish,
    Flushed,
    Instruction,
    Interrupted,
    LastState,
    LastStatesWanted,
    PassEmpty,
    Past,
    Raise,
    Retract,
    Send,
    Skipped,
    Started,
    Told,
    Wanted,
    outline,
)
from .feedback import Feedback
from .phases import Phase
from .placement import Placement
from .plan import Plan
from .positions import StreamPositions
from .streams import StreamPlan, StreamPosition
from .task import Task
from .window import Entry, Window


class Schedule:
    """Decides what is fetched where and delivered when.

    Args:
        plan: the epoch's tasks.
        policy: how they are handed out.
        delivered: batches of the epoch that were delivered before.
        positions: the position of each stream, if streams serve the tasks and have states.
        remember: how many deliveries a state may be behind, from 1.
        feedback: of a state, what a sampler that listens is to receive; None: there is none.
        newest: the step that the consumer has got last, -1 for none; None: the last one delivered.
    """

    def __init__(
        self,
        plan: Plan | StreamPlan,
        policy: Policy,
        delivered: int = 0,
        positions: Sequence[StreamPosition] = (),
        remember: int = 1,
        feedback: Feedback | None = None,
        newest: int | None = None,
    ) -> None:
        self.plan, self.policy = plan, policy
        self.feedback = feedback or Feedback(plan if isinstance(plan, Plan) else None)
        self.deliveries = Deliveries(remember, delivered - 1 if newest is None else newest)
        self._past = Past(maxlen=64)
        #: what drawing raised; nothing new is drawn until the consumer has got it
        self._fault: Exception | None = None
        self._begin(delivered, positions)

    def _begin(self, delivered: int, positions: Sequence[StreamPosition]) -> None:
        """Begin with nothing under way."""
        plan, policy = self.plan, self.policy
        #: steps that were delivered, skipped, or had no batch; an interruption may decrease it
        self.delivered = delivered
        #: the window's largest size; the policy's, until it grows or the user sets it
        self._budget = Budget(policy)
        #: drawn and not delivered; never more than the budget once drawn
        self._window = Window()
        self._placement = Placement(policy.workers, plan.streams if positions else 0, policy.moving)
        #: streams with states serve the tasks
        self._streamed = bool(positions)
        needs_tasks = type(plan) is Plan
        self._streams = StreamPositions(positions, self._placement, self._window, needs_tasks)
        self._dispatch = Dispatch(self._window, self._placement, self._streams)
        #: no task is ever held: no stream may move, no bytes are counted, and no worker has died
        self._sends_at_once = not self._placement.moving and policy.bytes is None
        #: tasks are drawn in order of their steps; otherwise each for the worker with fewest
        self._in_turn = policy.in_order or not plan.draws_ahead
        self._wanting = False  # the consumer waits for a batch
        #: a task that was drawn and is not in the window yet
        self._drawn: Task | None = None
        #: the plan has no more tasks
        self._exhausted = False

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what is to be done about it, in this order.

        No ``Deliver``, ``Raise``, ``Fault`` or ``Finish`` among the answers to ``Wanted`` means:
        wait, and report the next event; the batch comes with the answer to a later one.

        Raises:
            InvalidTransition: the event cannot happen to its task; nothing has changed.
        """
        instructions: list[Instruction] = []
        kind = type(event)
        # `outline` would leave these two as they are, and they come with each batch.
        light = kind is Wanted or (
            kind is Arrived
            and event.state is None  # type: ignore[union-attr]
            and not event.notes  # type: ignore[union-attr]
        )
        self._past.append(event if light else outline(event))
        try:
            _HANDLERS[kind](self, event, instructions)
        except InvalidTransition as error:
            raise self._past.explained(error, event) from None
        return instructions

    def window(self) -> tuple[Task, ...]:
        """The tasks that were drawn and not delivered, in order of their steps."""
        return self._window.tasks()

    def awaits(self, step: int) -> bool:
        """The consumer is still to be given this step."""
        return step in self._window.entries

    def positions(self, undone: Sequence[Delivery] = ()) -> tuple[StreamPosition, ...]:
        """See `StreamPositions.now`."""
        return self._streams.now(undone)

    def last_states(self) -> dict[int, Any]:
        """By stream, the state in which the next epoch finds its dataset, if a worker sent it."""
        return self._streams.last_states()

    @property
    def last_states_known(self) -> bool:
        """The streams' last states were asked for, and have come."""
        return self._streams.awaited is not None and not self._streams.awaited

    @property
    def fault(self) -> Exception | None:
        """An exception of the user's sampler that the consumer has not got yet."""
        return self._fault

    @property
    def budget(self) -> int:
        """How many tasks the window may hold."""
        return self._budget.tasks

    @property
    def under_way(self) -> int:
        """Tasks that were sent and not answered."""
        return self._window.under_way

    @property
    def waiting(self) -> int:
        """Batches that have arrived, or failed, or are none, and wait for delivery."""
        return len(self._window.ready)

    @property
    def held_bytes(self) -> int:
        """Memory that these take."""
        return self._window.bytes

    def remaining(self) -> int | None:
        """Batches that are still to be delivered; None where the sampler has no length."""
        left = 0 if self._exhausted else self.plan.remaining()
        return None if left is None else left + len(self._window.entries)

    def _started(self, event: Started, out: list[Instruction]) -> None:
        self._streams.begin(event.states)
        self.feedback.look(self.policy)
        self._refill(out)
        self.feedback.look(self.policy)  # it may just have been opened

    def _wanted(self, event: Wanted, out: list[Instruction]) -> None:
        self._wanting = True
        self._refill(out)
        if self.feedback.unsure:
            self.feedback.look(self.policy)
        self._serve(out)

    def _told(self, event: Told, out: list[Instruction]) -> None:
        self.feedback.add(self.deliveries.newest, (event.note,))

    def _flushed(self, event: Flushed, out: list[Instruction]) -> None:
        self._hear()
        plan, tasks = self.plan, self._window.tasks()
        assert isinstance(plan, Plan), "streams cannot go back"
        drawn = bool(tasks or plan.backlog)
        if plan.put_back(tasks):
            out.extend(map(Drop, self._window.give_up()))
            # A state from before it would have the sampler take back what was drawn only later.
            if drawn or plan.custom:
                self.deliveries.forget()
            self._exhausted, self.feedback.waits = False, True

    def _answered(self, event: Answered, out: list[Instruction]) -> None:
        entry, forgotten = self._window.answer(event)
        if self._placement.moving:
            self._placement.answered(cast(int, entry.task.stream), event.cost_ns)
        if type(event) is Ended:
            stream = cast(int, entry.task.stream)
            self._streams.end(stream, event.state)
            self.plan.end(stream)
            self._exhausted = False  # there may be a stream to read again
        if forgotten:
            out.append(Drop(event.step))
        more = type(event) is Ended or not self._in_turn
        more |= forgotten
        if type(event) is Arrived:
            if event.bytes > self._budget.largest:
                self._budget.note(event.bytes)
            more |= event.idled and self._budget.grow_for_an_idler()
        if more:  # than before the answer may be drawn now
            self._refill(out)
        elif self._window.held:
            self._dispatch.hand_out(out, self._budget)
        self._serve(out)

    def _died(self, event: Died, out: list[Instruction]) -> None:
        self._sends_at_once = False
        self._window.lose(event, self.policy.most_deaths)
        self._streams.died(event.worker)
        self._dispatch.hand_out(out, self._budget)
        if self._wanting:  # steps that it had and were given up may be drawn again
            self._refill(out)
        self._serve(out)
        out.extend(self._streams.asks(event.worker))

    def _last_states_wanted(self, event: LastStatesWanted, out: list[Instruction]) -> None:
        # Batches fetched ahead stay in the window: a state of this pass still has them ahead.
        self._wanting = False
        self._streams.leave(event.streams)
        out.extend(self._streams.asks() or [Finish()])

    def _last_state(self, event: LastState, out: list[Instruction]) -> None:
        self._streams.come(event.stream, event.state)
        if self.last_states_known:
            out.append(Finish())

    def _budgeted(self, event: Budgeted, out: list[Instruction]) -> None:
        if self.policy.lazy:
            return  # one at a time, when the consumer asks
        policy = replace(self.policy, budget=event.tasks, most=event.most, bytes=event.bytes)
        self.policy = replace(policy, on_demand=event.tasks == 1 and self.plan.custom)
        self._budget = Budget(self.policy, self._budget.largest)
        self._sends_at_once = self._sends_at_once and event.bytes is None
        self._refill(out)

    def _skipped(self, event: Skipped, out: list[Instruction]) -> None:
        if event.count:
            self._hear()
        passed, here = self._window.skip(event)
        out.extend(map(Drop, here))
        if not self._exhausted:
            passed += self._advance(event.count - passed)
        self._streams.pass_over(self.delivered, passed)
        self.delivered += passed
        self.deliveries.forget()
        self.feedback.look(self.policy)  # it may just have been opened
        self._refill(out)

    def _advance(self, count: int) -> int:
        """Have the plan pass over tasks, up to one at which the user's sampler raises."""
        if not self.plan.custom:
            return self.plan.advance(count)
        passed = 0
        try:
            while passed < count and not self._fault and self.plan.advance(1):
                passed += 1
        except Exception as error:
            self._fault = error
        return passed

    def _hear(self) -> None:
        """Have the sampler hear while the consumer asks for nothing.

        No state of before, with ``behind=``, can be taken afterwards.
        """
        if self.feedback.listening:
            self._fault = self.feedback.hear() or self._fault
            self.deliveries.forget()

    def _interrupted(self, event: Interrupted, out: list[Instruction]) -> None:
        # A second signal may come at any line: then all of this is done once more.
        if self._drawn is not None:
            self._window.take_back(self._drawn)
        if (last := self.deliveries.beyond(event.handed_over)) is not None:
            self.delivered = last.delivered
            self.feedback.retract(last.task.step)
            self._window.take_back(last.task)
        plan, tasks, skipped = self.plan, self._window.tasks(), False
        if type(plan) is Plan:  # which a skip or a flush may have left halfway
            tasks = tuple([task for task in tasks if task.step < plan.next_step])
            pending = {task.step for task in (*tasks, *plan.backlog)}
            before, self.delivered = self.delivered, plan.next_step - len(pending)
            skipped = before != self.delivered
        positions = self.positions(() if last is None else (last,))
        plan.restart(tasks, positions)
        self._begin(self.delivered, positions)
        if skipped:
            self.deliveries.forget()
        elif last is not None:
            self.deliveries.take_back(last)
            out.append(Retract(last.task.step))

    def _serve(self, out: list[Instruction]) -> None:
        """Give the consumer what it waits for, if it is here."""
        if not self._wanting:
            return
        window = self._window
        in_order = self.policy.in_order
        while (entry := window.next_ready(in_order) if window.ready else None) is not None:
            if self.delivered == self.plan.batches:
                break  # other ranks have no more
            step, kind = entry.task.step, type(self._move_on(entry))
            self._wanting = kind is Emptied
            # Torch draws the next index before it returns a batch: a sampler that uses the global
            # random number generator must see the same state of it here.
            self._refill(out)
            if not self._wanting:
                out.append(Raise(step) if kind is Failed else Deliver(step))
                return
            out.append(PassEmpty(step))
        head = next(iter(window.entries.values()), None)
        if window.given_up and window.redraws:
            return
        if head is None or entry is not None:
            self._wanting = False
            fault, self._fault = self._fault, None
            out.append(Finish() if fault is None else Fault(fault))
        elif head.phase is Phase.LETHAL and (in_order or not window.under_way):
            self._wanting = False
            out.append(Condemn(head.task))
        elif (
            window.under_way < self.policy.workers
            and len(window.entries) >= self.budget
            and (self.policy.bytes is None or not window.held)  # other tasks would be held, too
        ):
            if self._budget.grow_behind_a_head():  # workers idle, and the head is slow
                self._refill(out)

    def _move_on(self, entry: Entry) -> Answered:
        """Move on past a step; returns its answer."""
        task, kind = entry.task, type(entry.answer)
        stream = task.stream if self._streamed else None
        position = None if stream is None else self._streams.copy_of(stream)
        newest = self.deliveries.newest
        self.deliveries.add(Delivery(self.delivered, task, position, kind is not Emptied, newest))
        answer = self._window.take(entry, Wanted)
        self.delivered += 1
        if answer.notes:
            self.feedback.add(task.step, answer.notes)
        if stream is not None:
            self._streams.deliver(stream, task, answer.state)
        return answer

    def _refill(self, out: list[Instruction]) -> None:
        """Draw tasks up to the budget and hand them out."""
        plan, policy, window, budget = self.plan, self.policy, self._window, self._budget
        dispatch = self._dispatch
        on_demand = policy.lazy or policy.on_demand or self.feedback.waits
        if on_demand and not self._wanting:
            return
        fault = self.feedback.hear(self.delivered) if self.feedback.waits else None
        self._fault = fault or self._fault
        while len(window.entries) < budget.tasks and self._may_draw():
            try:
                # In one line, which black must not split: no signal comes before it is noted.
                self._drawn = plan.draw() if self._in_turn else dispatch.draw(plan, budget.tasks)
            except StopIteration:
                streams = plan.repeat(self.delivered + len(window.entries))
                self._exhausted = not streams
                self._streams.grow(streams)
            except Exception as error:
                if not plan.custom:
                    raise  # a signal handler's
                self._fault = error  # the user's sampler; what was drawn before comes first
            else:
                if (task := self._drawn) is None:
                    break
                window.add(task, held=not self._sends_at_once)
                self._drawn = None
                if self._sends_at_once:
                    stream = task.stream
                    worker = None if stream is None else self._placement.of(stream)
                    out.append(Send(worker, task))
        if window.held:
            dispatch.hand_out(out, budget)

    def _may_draw(self) -> bool:
        """There may be more tasks."""
        over = self._exhausted or self._streams.awaited is not None
        if over or (self._window.given_up and self._window.redraws):
            return False
        if self._fault and not self.plan.backlog:  # which was drawn before that
            return False
        limit, drawn = self.plan.limit, len(self._window.entries)
        return limit is None or self.delivered + drawn < limit


#: outside of the class: with bound methods a schedule, and all that its plan refers to, would live
#: until the garbage collector runs
_HANDLERS: dict[type[Any], Callable[[Schedule, Any, list[Instruction]], None]] = {
    Started: Schedule._started,
    Wanted: Schedule._wanted,
    Told: Schedule._told,
    Skipped: Schedule._skipped,
    Flushed: Schedule._flushed,
    Budgeted: Schedule._budgeted,
    Arrived: Schedule._answered,
    Failed: Schedule._answered,
    Emptied: Schedule._answered,
    Ended: Schedule._answered,
    LastStatesWanted: Schedule._last_states_wanted,
    LastState: Schedule._last_state,
    Died: Schedule._died,
    Interrupted: Schedule._interrupted,
}
