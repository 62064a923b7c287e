"""Schedule: events in, instructions out, through one method.

A task is *drawn* from the plan and sent to a worker in one go; from then on it stands in the
*window* until it is delivered. What may happen to it there is the table ``TRANSITIONS``; anything
else is a bug and raises before anything has changed. The batch itself never comes in here: the
engine keeps it, the schedule only knows that the step has arrived.

One schedule serves any number of workers, none included: ``num_workers=0`` is one worker that is
given a task only when the consumer asks (``lazy``).

The *budget* is how many tasks the window may hold; it grows and falls back by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ..errors import InvalidTransition
from .budget import Budget, Policy
from .events import (
    Answered,
    Arrived,
    Budgeted,
    Deliver,
    Drop,
    Emptied,
    Ended,
    Event,
    Failed,
    Fault,
    Finish,
    Instruction,
    Pass,
    Raise,
    Send,
    Skipped,
    Started,
    Wanted,
)
from .plan import Plan
from .streams import Place, StreamPlan
from .task import Task

__all__ = ["TRANSITIONS", "Phase", "Policy", "Schedule"]


class Phase(Enum):
    """Where a task stands."""

    SENT = "sent"
    ARRIVED = "arrived"
    FAILED = "failed"
    EMPTY = "empty"  # it has no batch, and is passed over when its turn comes
    FORGOTTEN = "forgotten"  # skipped while a worker had it: its result is awaited and dropped
    GONE = "gone"  # delivered, raised, passed over, dropped, or void since its stream had ended


TRANSITIONS: dict[tuple[Phase, type[Any]], Phase] = {
    (Phase.SENT, Arrived): Phase.ARRIVED,
    (Phase.SENT, Failed): Phase.FAILED,
    (Phase.SENT, Emptied): Phase.EMPTY,
    (Phase.SENT, Ended): Phase.GONE,
    (Phase.SENT, Skipped): Phase.FORGOTTEN,
    (Phase.ARRIVED, Wanted): Phase.GONE,
    (Phase.ARRIVED, Skipped): Phase.GONE,
    (Phase.FAILED, Wanted): Phase.GONE,
    (Phase.FAILED, Skipped): Phase.GONE,
    (Phase.EMPTY, Wanted): Phase.GONE,
    (Phase.EMPTY, Skipped): Phase.GONE,
    (Phase.FORGOTTEN, Arrived): Phase.GONE,
    (Phase.FORGOTTEN, Failed): Phase.GONE,
    (Phase.FORGOTTEN, Emptied): Phase.GONE,
    (Phase.FORGOTTEN, Ended): Phase.GONE,
}


@dataclass(slots=True)
class _Entry:
    task: Task
    phase: Phase = Phase.SENT
    #: memory that its batch takes, and the state of its stream after it, once it is here
    bytes: int = 0
    mark: Any = None


class Schedule:
    """The state machine that decides what is fetched where and delivered when.

    Args:
        plan: the epoch's tasks.
        policy: how they are handed out.
        delivered: batches of the epoch that were delivered before.
        places: where each stream stands, if streams serve the tasks and have states.
    """

    def __init__(
        self,
        plan: Plan | StreamPlan,
        policy: Policy,
        delivered: int = 0,
        places: Sequence[Place] = (),
    ) -> None:
        self.plan = plan
        self.policy = policy
        #: batches delivered in this epoch, steps that had none included; never decreases
        self.delivered = delivered
        #: the window's largest size; the policy's, until it grows or the user sets it
        self._budget = Budget(policy)
        #: drawn and not delivered, by step, ascending; never more than the budget once drawn
        self._window: dict[int, _Entry] = {}
        #: skipped while a worker had them; disjoint from the window
        self._forgotten: dict[int, _Entry] = {}
        #: steps in the window that arrived, failed or have no batch, in that order
        self._ready: list[int] = []
        #: tasks sent and not answered: in the window (SENT) or forgotten
        self._under_way = 0
        #: what the batches in the window that have arrived take together
        self.held_bytes = 0
        #: where the streams stand; moves on delivery only
        self._places = [place.copy() for place in places]
        #: streams that have no more data, each with what its worker has said last
        self._over: dict[int, Any] = {}
        #: the consumer waits for a batch
        self._wanting = False
        #: the plan has no more tasks
        self._exhausted = False
        #: what drawing raised; nothing is drawn until the consumer was told
        self._fault: Exception | None = None
        self._handlers: dict[type[Any], Callable[[Any, list[Instruction]], None]] = {
            Started: self._started,
            Wanted: self._wanted,
            Skipped: self._skipped,
            Budgeted: self._budgeted,
            Arrived: self._answered,
            Failed: self._answered,
            Emptied: self._answered,
            Ended: self._answered,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_handlers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["plan"], state["policy"])  # type: ignore[misc]
        self.__dict__.update(state)

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what is to be done about it, in this order.

        No ``Deliver``, ``Raise``, ``Fault`` or ``Finish`` among the answers to ``Wanted`` means:
        wait, and report the next event; the batch comes with the answer to a later one.

        Raises:
            InvalidTransition: the event cannot happen to its task; nothing has changed.
        """
        instructions: list[Instruction] = []
        self._handlers[type(event)](event, instructions)
        return instructions

    def window(self) -> tuple[Task, ...]:
        """The tasks that were drawn and not delivered, in order of their steps."""
        return tuple(entry.task for entry in self._window.values())

    def awaits(self, step: int) -> bool:
        """The consumer is still to be given this step."""
        return step in self._window

    def places(self) -> tuple[Place, ...]:
        """Where each stream stands; they do not move any more."""
        left = {e.task.stream for e in self._window.values() if e.phase is not Phase.SENT}
        return tuple(
            place.over(self._over[stream]) if stream in self._over.keys() - left else place.copy()
            for stream, place in enumerate(self._places)
        )

    def last_marks(self) -> dict[int, Any]:
        """By stream, the state that the next epoch finds its dataset in, if that was told."""
        return {stream: mark for stream, mark in self._over.items() if mark is not None}

    @property
    def budget(self) -> int:
        """How many tasks the window may hold."""
        return self._budget.tasks

    @property
    def bytes(self) -> int | None:
        """How many bytes of batches may wait for delivery; None: any number."""
        return self.policy.bytes

    @property
    def under_way(self) -> int:
        """Tasks that were sent and not answered."""
        return self._under_way

    @property
    def waiting(self) -> int:
        """Batches that have arrived, or failed, or are none, and wait for delivery."""
        return len(self._ready)

    def remaining(self) -> int | None:
        """Batches that are still to be delivered; None where the sampler has no length."""
        left = 0 if self._exhausted else self.plan.remaining()
        return None if left is None else left + len(self._window)

    # --- one handler an event --------------------------------------------------------------------

    def _started(self, event: Started, out: list[Instruction]) -> None:
        for stream, mark in event.marks.items():
            if self._places and not self._places[stream].given:
                self._places[stream].mark = mark
        if not self.policy.lazy:
            self._refill(out)

    def _wanted(self, event: Wanted, out: list[Instruction]) -> None:
        self._wanting = True
        self._refill(out)
        self._serve(out)

    def _answered(self, event: Answered, out: list[Instruction]) -> None:
        step = event.step
        forgotten = step in self._forgotten
        entry = self._forgotten.get(step) if forgotten else self._window.get(step)
        if entry is None:
            raise InvalidTransition(Phase.GONE.value, type(event).__name__, step)
        entry.phase = _move(entry.phase, event, step)
        self._under_way -= 1
        entry.mark = event.mark
        if type(event) is Ended:
            self._end(entry.task.stream, event.mark)
        if forgotten:
            del self._forgotten[step]
            out.append(Drop(step))
        elif entry.phase is Phase.GONE:
            del self._window[step]
            self._refill_eagerly(out)
        else:
            self._ready.append(step)
            if type(event) is Arrived:
                entry.bytes = event.bytes
                self.held_bytes += event.bytes
                self._budget.note(event.bytes)
                if event.idled and self._budget.grow_for_an_idler():
                    self._refill_eagerly(out)
        if self.policy.bytes is not None:
            self._refill_eagerly(out)
        self._serve(out)

    def _budgeted(self, event: Budgeted, out: list[Instruction]) -> None:
        if self.policy.lazy:
            return  # one at a time, when the consumer asks
        self.policy = replace(self.policy, budget=event.tasks, most=event.most, bytes=event.bytes)
        self._budget = Budget(self.policy, self._budget.largest)
        self._refill_eagerly(out)

    def _skipped(self, event: Skipped, out: list[Instruction]) -> None:
        passed = 0
        for step in list(self._window)[: event.count]:
            entry = self._window.pop(step)
            was, entry.phase = entry.phase, _move(entry.phase, event, step)
            if was is Phase.SENT:
                self._forgotten[step] = entry
            else:
                self._ready.remove(step)
                self.held_bytes -= entry.bytes
                out.append(Drop(step))
            passed += 1
        if not self._exhausted:
            passed += self.plan.advance(event.count - passed)
        self.delivered += passed
        self._refill_eagerly(out)

    # --- what they share -------------------------------------------------------------------------

    def _serve(self, out: list[Instruction]) -> None:
        """Give the consumer what it waits for, if it is here."""
        if not self._wanting:
            return
        while (step := self._next_ready()) is not None:
            was = self._leave(step)
            self._wanting = was is Phase.EMPTY
            # Torch draws the next index before it returns a batch: a sampler that uses the global
            # random number generator must see the same state of it here.
            self._refill_eagerly(out)
            if not self._wanting:
                out.append(Raise(step) if was is Phase.FAILED else Deliver(step))
                return
            out.append(Pass(step))
        if not self._window:
            self._wanting = False
            if self._fault is not None:
                out.append(Fault(self._fault))
                self._fault = None
            else:
                out.append(Finish())
        elif self._idle_for_the_head() and self._budget.grow_behind_a_head():
            self._refill_eagerly(out)

    def _leave(self, step: int) -> Phase:
        """Move on behind a step; returns what it was."""
        entry = self._window.pop(step)
        self._ready.remove(step)
        self.held_bytes -= entry.bytes
        was, entry.phase = entry.phase, _move(entry.phase, _WANTED, step)
        self.delivered += 1
        if self._places and entry.task.stream is not None:
            remember = type(self.plan) is Plan
            self._places[entry.task.stream].deliver(entry.task, entry.mark, remember)
        return was

    def _idle_for_the_head(self) -> bool:
        """Workers idle, the window being full and its head slow."""
        return len(self._window) >= self.budget and self._under_way < self.policy.workers

    def _next_ready(self) -> int | None:
        if not self._ready:
            return None
        if not self.policy.in_order:
            return self._ready[0]
        head = next(iter(self._window))
        return None if self._window[head].phase is Phase.SENT else head

    def _refill_eagerly(self, out: list[Instruction]) -> None:
        if self._wanting or not self.policy.lazy:
            self._refill(out)

    def _refill(self, out: list[Instruction]) -> None:
        """Draw tasks up to the budget and hand them out."""
        while len(self._window) < self.budget and not self._exhausted:
            if self._fault is not None or not self._has_room():
                return
            try:
                task = self.plan.draw()
            except StopIteration:
                self._exhausted = True
                return
            except Exception as error:  # the user's sampler; what was drawn before comes first
                self._fault = error
                return
            self._window[task.step] = _Entry(task)
            self._under_way += 1
            out.append(Send(self._worker_of(task), task))

    def _has_room(self) -> bool:
        return not self._window or self._budget.has_room(self.held_bytes, self._under_way)

    def _end(self, stream: int | None, mark: Any) -> None:
        assert stream is not None, "only streams end"
        self._over.setdefault(stream, mark)
        self.plan.end(stream)

    def _worker_of(self, task: Task) -> int | None:
        return None if task.stream is None else task.stream % self.policy.workers

    # --- the invariants once more, as a check ----------------------------------------------------

    def validate(self) -> None:
        """Raise AssertionError unless every invariant beside the fields holds."""
        assert list(self._window) == sorted(self._window)
        assert all(entry.task.step == step for step, entry in self._window.items())
        assert not self._window.keys() & self._forgotten.keys()
        assert all(entry.phase is Phase.FORGOTTEN for entry in self._forgotten.values())
        waits = (Phase.ARRIVED, Phase.FAILED, Phase.EMPTY)
        here = {s for s, e in self._window.items() if e.phase in waits}
        assert here == set(self._ready) and len(here) == len(self._ready)
        assert all(e.phase is Phase.SENT for s, e in self._window.items() if s not in here)
        entries = (*self._window.values(), *self._forgotten.values())
        waited_for = [e for e in entries if e.phase in (Phase.SENT, Phase.FORGOTTEN)]
        assert len(waited_for) == self._under_way
        assert self.held_bytes == sum(entry.bytes for entry in self._window.values())
        assert all(place.marked + len(place.since) <= place.given for place in self._places)


_WANTED = Wanted()


def _move(phase: Phase, event: Event, step: int) -> Phase:
    try:
        return TRANSITIONS[phase, type(event)]
    except KeyError:
        raise InvalidTransition(phase.value, type(event).__name__, step) from None
