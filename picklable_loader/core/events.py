"""Events, which the schedule takes, and instructions, which it returns. The driver carries them.

All are values: they compare with ``==`` and pickle. Nobody changes one, but for `Died.lost`, which
grows while the event waits in the engine. Events of every batch are not frozen, which would take
0.4 µs more each. Example: ``Arrived(step=3)`` may lead to ``Deliver(step=3)``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

from ..errors import InvalidTransition
from .feedback import Note
from .streams import StreamPosition
from .task import Task

# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The workers are ready to be given tasks."""

    #: by stream, the state in which it was opened, where that is known
    states: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The consumer asks for the next batch."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """The consumer passes over the next ``count`` batches."""

    count: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """Drawn tasks that are not delivered are given up; `Wanted` asks the sampler again."""


@dataclass(frozen=True, slots=True)
class Told:
    """The consumer says something about the batch that was delivered last, to the sampler."""

    note: Note


@dataclass(frozen=True, slots=True)
class Budgeted:
    """From now on the window may hold this many tasks, and this many bytes of batches."""

    tasks: int
    #: None: any number
    bytes: int | None = None
    #: the window may grow by itself to so many tasks; 0: it does not
    most: int = 0


@dataclass(slots=True)
class Answered:
    """Result of a task that was sent: one of the four below."""

    step: int
    #: the state of the stream after it; None if it was not taken
    state: Any = None
    #: memory that it takes until it is delivered; 0 where nobody counts
    bytes: int = 0
    #: its worker had nothing to do before, for a time that counts beside that of the task
    idled: bool = False
    #: nanoseconds that it has cost its worker; 0 where nobody counts
    cost_ns: int = 0
    #: what its worker says about it, to the sampler and the consumer
    notes: Sequence[Note] = ()


class Arrived(Answered):
    """The batch of a step is here."""

    __slots__ = ()


class Failed(Answered):
    """Fetching a step raised an exception, which is here."""

    __slots__ = ()


class Emptied(Answered):
    """A step has no batch: all of its samples were bad, and are skipped."""

    __slots__ = ()


class Ended(Answered):
    """The stream that was to serve a step has no more data.

    Its state is the one in which the next epoch finds the dataset.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LastStatesWanted:
    """The pass is over, or abandoned: the next epoch needs the last state of each stream."""

    #: how many streams there are
    streams: int


@dataclass(frozen=True, slots=True)
class LastState:
    """The state in which the next epoch finds a stream's dataset is here."""

    stream: int
    #: None: it has none
    state: Any


@dataclass(frozen=True, slots=True)
class Died:
    """A worker is gone; the engine replaces it."""

    worker: int
    #: steps that nobody has, or will answer, any more; it grows until the schedule hears of it
    lost: list[int]
    #: the one of them that the worker was at; None: nobody knows of any
    at_hand: int | None = None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A signal handler's exception has left the consumer without a batch, and without workers.

    Every task that is under way is done again, by workers that know nothing.
    """

    #: steps that were delivered when the consumer had got all of them, for example 3
    handed_over: int


Event = Union[
    Started,
    Wanted,
    Skipped,
    Flushed,
    Told,
    Budgeted,
    Answered,
    LastStatesWanted,
    LastState,
    Died,
    Interrupted,
]


def outline(event: Event) -> Event:
    """The event without states and feedback: 64 of them may be megabytes each."""
    if isinstance(event, Answered):
        bare = event.state is None and not event.notes
        return event if bare else replace(event, state=None, notes=())
    match event:
        case Started():
            return Started()
        case LastState(stream):
            return LastState(stream, None)
        case Told():
            return Told(b"")
    return event


class Past(deque[Event]):
    """Outlines of the last events, for the reader of a bug report."""

    def explained(self, error: InvalidTransition, event: Event) -> InvalidTransition:
        """The error of an event that cannot happen, with those before it."""
        step = getattr(event, "step", error.step)
        return InvalidTransition(error.phase, error.event, step, tuple(map(repr, self)))


# --- instructions --------------------------------------------------------------------------------


@dataclass(slots=True)
class Send:
    """Give a task to a worker."""

    #: None: to whichever is idle first
    worker: int | None
    task: Task
    #: the position at which its stream goes on, if another worker has read it before
    position: StreamPosition | None = None


@dataclass(frozen=True, slots=True)
class AskLast:
    """Ask a stream's worker for the state in which the next epoch finds the dataset."""

    worker: int
    stream: int
    #: the position at which the worker opens the stream first, if its worker has died
    position: StreamPosition | None = None


@dataclass(slots=True)
class Deliver:
    """Hand the batch of a step to the consumer."""

    step: int


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise, in the consumer, what fetching a step raised."""

    step: int


@dataclass(frozen=True, slots=True)
class Condemn:
    """Raise, in the consumer, that workers die of a task; it is not delivered by that."""

    task: Task


@dataclass(frozen=True, slots=True)
class PassEmpty:
    """Go on after a step that has no batch; what came for it says why."""

    step: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget what came for a step: nobody wants it any more."""

    step: int


@dataclass(frozen=True, slots=True)
class Retract:
    """Forget that a step was delivered: the consumer has not got its batch."""

    step: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Raise, in the consumer, what drawing from the user's sampler raised."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Finish:
    """The epoch is over; after `LastStatesWanted`, all streams' last states are known."""


Instruction = Union[Send, AskLast, Deliver, Raise, Condemn, PassEmpty, Drop, Retract, Fault, Finish]
