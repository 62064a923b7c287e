"""A sampler is given feedback in mid-epoch, and batches that it takes back."""

from __future__ import annotations

import copy
import pickle
from types import FunctionType
from typing import Any, NamedTuple

from ..errors import UsageError
from ..saving.states.notes import notes_from_plain, objects_of
from ..saving.states.plain import decode


class Event(NamedTuple):
    """Something that a sampler was given in mid-epoch."""

    #: indices that it had given by then
    taken: int
    #: the step that the notes are about; None: batches were put back
    step: int | None
    #: the notes, or the batches
    given: list[Any]
    #: its iterator had come to its end, since batches were put back last
    ended: bool = False
    #: the class of the exception that it has raised; None: it has raised none
    raised: str | None = None

    @property
    def bytes(self) -> int:
        """Memory that it takes in a state, or so."""
        notes = self.given if self.step is not None else [pickle.dumps(self.given)]
        return sum(map(len, notes))


def event_of(
    taken: int, step: int | None, form: Any, ended: bool = False, raised: str | None = None
) -> Event:
    """The event of a saved form; raises one of SYMPTOMS if that is damaged."""
    if type(taken) is not int or type(step) not in (int, type(None)):
        raise TypeError("an event has whole numbers")
    if type(ended) is not bool or type(raised) not in (str, type(None)):
        raise TypeError("an event says whether the end had come, and which class was raised")
    given = decode(form) if step is None else notes_from_plain(form)
    return Event(taken, step, given, ended, raised)


def receiver_of(*candidates: Any) -> Any:
    """The first that receives feedback: a sampler's iterator, or the sampler; None: none does."""
    return next((each for each in candidates if callable(getattr(each, "receive", None))), None)


def taker_of(*candidates: Any) -> Any:
    """The first that takes batches back; None: none does."""
    return next((each for each in candidates if callable(getattr(each, "put_back", None))), None)


def goes_on(iterator: Any) -> bool:
    """An iterator that has come to its end may give more; generators, and those of C, never do."""
    written = isinstance(getattr(type(iterator), "__next__", None), FunctionType)
    return written or taker_of(iterator) is not None


def give(event: Event, *candidates: Any) -> None:
    """Give a sampler, or its iterator, what an event says; raises what it raises.

    Raises:
        UsageError: neither takes it.
    """
    taker = receiver_of(*candidates) if event.step is not None else taker_of(*candidates)
    if taker is None:
        method = "put_back(batches)" if event.step is None else "receive(step, objs)"
        raise UsageError(f"{type(candidates[-1]).__qualname__} has no method {method} any more")
    if event.step is None:
        taker.put_back(copy.deepcopy(event.given))
    else:
        taker.receive(event.step, objects_of(event.given))
