"""The phases of a task from being drawn to being gone, and the events that each phase allows.

The table ``TRANSITIONS`` is all there is; anything else is a bug.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from ..errors import InvalidTransition
from .events import Arrived, Died, Emptied, Ended, Failed, Send, Skipped, Wanted


class Phase(Enum):
    """The state of a task."""

    # Enum hashes a name, in Python: a third of a microsecond, three times a batch.
    __hash__ = object.__hash__

    HELD = "held"  # drawn, and to be sent when it is clear who is to have its stream
    SENT = "sent"
    HERE = "here"  # answered: there is a batch, an error, or no batch, as its answer says
    LETHAL = "lethal"  # several workers have died of it: it is not sent again
    FORGOTTEN = "forgotten"  # skipped while a worker had it: its result is awaited and dropped
    GONE = "gone"  # delivered, raised, passed over, dropped, or void since its stream had ended


class _Table(dict[tuple[Phase, type[Any]], Phase]):
    """The next phase of a task, by its phase and the kind of an event, or `Send`.

    Raises:
        InvalidTransition: that cannot happen to it there.
    """

    def __missing__(self, key: tuple[Phase, type[Any]]) -> Phase:
        phase, happened = key
        raise InvalidTransition(phase.value, happened.__name__, None)


TRANSITIONS = _Table()
TRANSITIONS |= {
    (Phase.HELD, Send): Phase.SENT,
    (Phase.HELD, Skipped): Phase.GONE,
    (Phase.HELD, Died): Phase.LETHAL,  # once too often
    (Phase.SENT, Arrived): Phase.HERE,
    (Phase.SENT, Failed): Phase.HERE,
    (Phase.SENT, Emptied): Phase.HERE,
    (Phase.SENT, Ended): Phase.GONE,
    (Phase.SENT, Skipped): Phase.FORGOTTEN,
    (Phase.SENT, Died): Phase.HELD,
    (Phase.HERE, Wanted): Phase.GONE,
    (Phase.HERE, Skipped): Phase.GONE,
    (Phase.LETHAL, Skipped): Phase.GONE,
    (Phase.FORGOTTEN, Arrived): Phase.GONE,
    (Phase.FORGOTTEN, Failed): Phase.GONE,
    (Phase.FORGOTTEN, Emptied): Phase.GONE,
    (Phase.FORGOTTEN, Ended): Phase.GONE,
    (Phase.FORGOTTEN, Died): Phase.GONE,
}
