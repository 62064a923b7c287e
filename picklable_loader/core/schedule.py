"""Schedule: events in, instructions out, through one method.

A task is *drawn* from the plan and sent to a worker in one go; from then on it stands in the
*window* until it is delivered. What may happen to it there is the table ``TRANSITIONS``; anything
else is a bug and raises before anything has changed. The batch itself never comes in here: the
engine keeps it, the schedule only knows that the step has arrived.

One schedule serves any number of workers, none included: ``num_workers=0`` is one worker that is
given a task only when the consumer asks (``lazy``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..errors import InvalidTransition
from .events import (
    Arrived,
    Deliver,
    Drop,
    Ended,
    Event,
    Failed,
    Fault,
    Finish,
    Instruction,
    Raise,
    Send,
    Skipped,
    Started,
    Task,
    Wanted,
)
from .plan import Plan

__all__ = ["TRANSITIONS", "Phase", "Policy", "Schedule"]


class Phase(Enum):
    """Where a task stands."""

    SENT = "sent"
    ARRIVED = "arrived"
    FAILED = "failed"
    FORGOTTEN = "forgotten"  # skipped while a worker had it: its result is awaited and dropped
    GONE = "gone"  # delivered, raised, dropped, or void since its stream had ended


TRANSITIONS: dict[tuple[Phase, type[Any]], Phase] = {
    (Phase.SENT, Arrived): Phase.ARRIVED,
    (Phase.SENT, Failed): Phase.FAILED,
    (Phase.SENT, Ended): Phase.GONE,
    (Phase.SENT, Skipped): Phase.FORGOTTEN,
    (Phase.ARRIVED, Wanted): Phase.GONE,
    (Phase.ARRIVED, Skipped): Phase.GONE,
    (Phase.FAILED, Wanted): Phase.GONE,
    (Phase.FAILED, Skipped): Phase.GONE,
    (Phase.FORGOTTEN, Arrived): Phase.GONE,
    (Phase.FORGOTTEN, Failed): Phase.GONE,
    (Phase.FORGOTTEN, Ended): Phase.GONE,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """How tasks are handed out and batches delivered; none of it changes what a batch holds."""

    #: how many workers there are, from 1
    workers: int = 1
    #: the window never holds more tasks than this, from 1
    budget: int = 1
    #: False: batches are delivered as they arrive
    in_order: bool = True
    #: tasks go to the workers in turn; otherwise to the one that has fewest
    pinned: bool = False
    #: draw only when the consumer asks (num_workers=0)
    lazy: bool = False


@dataclass(slots=True)
class _Entry:
    task: Task
    worker: int
    phase: Phase = Phase.SENT


class Schedule:
    """The state machine that decides what is fetched where and delivered when.

    Args:
        plan: the epoch's tasks.
        policy: how they are handed out.
        delivered: batches of the epoch that were delivered before.
    """

    def __init__(self, plan: Plan, policy: Policy, delivered: int = 0) -> None:
        self.plan = plan
        self.policy = policy
        #: batches delivered in this epoch; never decreases
        self.delivered = delivered
        #: drawn and not delivered, by step, ascending; never more than ``policy.budget``
        self._window: dict[int, _Entry] = {}
        #: skipped while a worker had them; disjoint from the window
        self._forgotten: dict[int, _Entry] = {}
        #: steps in the window that arrived or failed, in that order
        self._ready: list[int] = []
        #: per worker, tasks sent and not answered: in the window (SENT) or forgotten
        self._loads = [0 for _ in range(policy.workers)]
        #: workers whose stream has no more data; they are given no task
        self._ended: set[int] = set()
        #: the worker whose turn it is, once a stream has ended (until then: step modulo workers)
        self._turn = 0
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
            Arrived: self._answered,
            Failed: self._answered,
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

    def remaining(self) -> int | None:
        """Batches that are still to be delivered; None where the sampler has no length."""
        left = 0 if self._exhausted else self.plan.remaining()
        return None if left is None else left + len(self._window)

    # --- one handler an event --------------------------------------------------------------------

    def _started(self, event: Started, out: list[Instruction]) -> None:
        if not self.policy.lazy:
            self._refill(out)

    def _wanted(self, event: Wanted, out: list[Instruction]) -> None:
        self._wanting = True
        self._refill(out)
        self._serve(out)

    def _answered(self, event: Arrived | Failed | Ended, out: list[Instruction]) -> None:
        step = event.step
        forgotten = step in self._forgotten
        entry = self._forgotten.get(step) if forgotten else self._window.get(step)
        if entry is None:
            raise InvalidTransition(Phase.GONE.value, type(event).__name__, step)
        entry.phase = _move(entry.phase, event, step)
        self._loads[entry.worker] -= 1
        if type(event) is Ended:
            self._ended.add(entry.worker)
        if forgotten:
            del self._forgotten[step]
            out.append(Drop(step))
        elif entry.phase is Phase.GONE:
            del self._window[step]
            self._refill_eagerly(out)
        else:
            self._ready.append(step)
        self._serve(out)

    def _skipped(self, event: Skipped, out: list[Instruction]) -> None:
        passed = 0
        for step in list(self._window)[: event.count]:
            entry = self._window.pop(step)
            was, entry.phase = entry.phase, _move(entry.phase, event, step)
            if was is Phase.SENT:
                self._forgotten[step] = entry
            else:
                self._ready.remove(step)
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
        step = self._next_ready()
        if step is not None:
            entry = self._window.pop(step)
            self._ready.remove(step)
            failed = entry.phase is Phase.FAILED
            entry.phase = _move(entry.phase, _WANTED, step)
            self.delivered += 1
            self._wanting = False
            # Torch draws the next index before it returns a batch: a sampler that uses the global
            # random number generator must see the same state of it here.
            self._refill_eagerly(out)
            out.append(Raise(step) if failed else Deliver(step))
        elif not self._window:
            self._wanting = False
            if self._fault is not None:
                out.append(Fault(self._fault))
                self._fault = None
            else:
                out.append(Finish())

    def _next_ready(self) -> int | None:
        if not self._ready:
            return None
        if not self.policy.in_order:
            return self._ready[0]
        head = next(iter(self._window))
        return None if self._window[head].phase is Phase.SENT else head

    def _refill_eagerly(self, out: list[Instruction]) -> None:
        if not self.policy.lazy:
            self._refill(out)

    def _refill(self, out: list[Instruction]) -> None:
        """Draw tasks up to the budget and hand them out."""
        while len(self._window) < self.policy.budget and not self._exhausted:
            if self._fault is not None:
                return
            if len(self._ended) == self.policy.workers:
                self._exhausted = True
                return
            try:
                task = self.plan.draw()
            except StopIteration:
                self._exhausted = True
                return
            except Exception as error:  # the user's sampler; what was drawn before comes first
                self._fault = error
                return
            worker = self._choose(task.step)
            self._window[task.step] = _Entry(task, worker)
            self._loads[worker] += 1
            out.append(Send(worker, task))

    def _choose(self, step: int) -> int:
        workers = self.policy.workers
        if not self.policy.pinned:
            return self._loads.index(min(self._loads))
        worker = self._turn if self._ended else step % workers
        while worker in self._ended:
            worker = (worker + 1) % workers
        self._turn = (worker + 1) % workers
        return worker

    # --- the invariants once more, as a check ----------------------------------------------------

    def validate(self) -> None:
        """Raise AssertionError unless every invariant beside the fields holds."""
        assert len(self._window) <= self.policy.budget
        assert list(self._window) == sorted(self._window)
        assert all(entry.task.step == step for step, entry in self._window.items())
        assert not self._window.keys() & self._forgotten.keys()
        assert all(entry.phase is Phase.FORGOTTEN for entry in self._forgotten.values())
        here = {s for s, e in self._window.items() if e.phase in (Phase.ARRIVED, Phase.FAILED)}
        assert here == set(self._ready) and len(here) == len(self._ready)
        assert all(e.phase is Phase.SENT for s, e in self._window.items() if s not in here)
        loads = [0] * self.policy.workers
        for entry in (*self._window.values(), *self._forgotten.values()):
            loads[entry.worker] += entry.phase in (Phase.SENT, Phase.FORGOTTEN)
        assert loads == self._loads
        assert self.policy.pinned or not self._ended or self.policy.workers == 1


_WANTED = Wanted()


def _move(phase: Phase, event: Event, step: int) -> Phase:
    try:
        return TRANSITIONS[phase, type(event)]
    except KeyError:
        raise InvalidTransition(phase.value, type(event).__name__, step) from None
