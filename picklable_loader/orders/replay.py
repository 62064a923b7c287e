"""Replay: a sampler does again what it has done, in the random states that it found then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..errors import SYMPTOMS, DamagedStateError, OrderMismatch, StateError, warn
from ..rng.generators import RNGS, GeneratorStates, Isolated, states_from_text, states_to_text
from ..saving.states.checksum import BEGINNING, checksum
from ..saving.states.notes import notes_as_plain
from ..saving.states.plain import alike, encode_state
from .attributes import Frozen, thaw
from .given import Event, event_of, give

#: A sampler that draws from a global generator at every batch, while the program draws from it in
#: between, can be replayed only with the generator's state at each of these draws.
_LOG_LIMIT = 1024
_END = object()
#: bytes of feedback that are recorded for a replay, and those in a state that are worth a warning
_MOST_HEARD, _MUCH_HEARD = 64 << 20, 1 << 20
#: torch itself calls iter(sampler) twice in an epoch, where it starts workers
_MOST_OPENS = 8
#: what a state restores an order by: one of these
_WAYS = {"log", "iterator", "iterator_state", "sampler_state"}


@dataclass
class Record:
    """The progress of a sampler in an epoch, as far as a replay needs it."""

    #: times that iter(sampler) was called
    opens: int = 0
    #: indices that its newest iterator has given
    taken: int = 0
    #: the iterator has come to its end, and what it drew on the way there is drawn
    ended: bool = False
    #: of the indices that were taken; None: not known, as in the state of another rank
    checksum: str | None = BEGINNING
    #: [opens, taken, states]: where the sampler drew from global generators that others had moved
    #: (or, at first, from any), and the states it found; None: too many, or see ``unlogged``
    log: list[list[Any]] | None = field(default_factory=list)
    #: the sampler's attributes before the first iter()
    before: Frozen = field(default_factory=dict)
    #: those that others have changed between the last iter() and the first index
    between: Frozen = field(default_factory=dict)
    #: feedback that it has received, and batches that it has taken back
    events: list[Event] = field(default_factory=list)
    #: memory that these take, or so
    heard_bytes: int = 0
    #: [taken, ended, attributes]: what other iterators of the sampler have changed, and when
    others: list[list[Any]] = field(default_factory=list)
    #: an attribute that they have changed in a manner that no replay can repeat; None: none
    unclear: str | None = None
    #: the class of what its iterator has raised; None: nothing
    failed: str | None = None
    #: it went on from a state or a pickle without a log
    unlogged: bool = False
    #: ``id`` of what the sampler has raised in a replay
    raised: int | None = None
    #: the global generators that it has drawn from, in the states in which it has left them
    left: dict[str, Any] = field(default_factory=dict)
    #: the program was warned of the bytes that it has heard
    warned: bool = False

    @classmethod
    def read(cls, saved: dict[str, Any]) -> Record:
        """Raises StateError if it is damaged."""
        try:
            return cls.from_plain(saved)
        except StateError:
            raise
        except SYMPTOMS as error:
            what = "what a custom sampler's order saves"
            raise DamagedStateError("order", what, error) from error

    @classmethod
    def from_plain(cls, saved: dict[str, Any]) -> Record:
        """Raises one of SYMPTOMS if it is damaged."""
        opens, taken, ended = saved["opens"], saved["taken"], saved["ended"]
        before, between = dict(saved.get("sampler", {})), dict(saved.get("between", {}))
        states_from_text(saved.get("universe", {}))
        if not 0 < opens <= _MOST_OPENS or taken < 0:
            raise ValueError(f"no iterator is opened {opens} times, or gives {taken} indices")
        if not saved.keys() & _WAYS:
            raise ValueError(f"none of {sorted(_WAYS)} leads to its position")
        log = None
        if "log" in saved:
            log = [[o, t, states_from_text(texts)] for o, t, texts in saved["log"]]
            if not {type(number) for entry in log for number in entry[:2]} <= {int}:
                raise TypeError("a log has whole numbers")
        found = saved.get("checksum")
        if found is not None and len(bytes.fromhex(found)) != 8:
            raise ValueError("a checksum is 16 hexadecimal digits")
        events = [event_of(*form) for form in saved.get("events", ())]
        heard = sum(event.bytes for event in events)
        others = [[at, over, dict(moved)] for at, over, moved in saved.get("others", ())]
        if not {(type(at), type(over)) for at, over, _ in others} <= {(int, bool)}:
            raise TypeError("what others have changed has a number, and whether the end had come")
        parts = opens, taken, ended, found, log, before, between, events, heard, others
        return cls(*parts, unlogged=log is None)

    def move(self, found: Frozen, unclear: str | None = None) -> None:
        """Other iterators of the sampler have changed these attributes; see `SamplerTurns`."""
        if not found:
            return
        if self.others and self.others[-1][:2] == [self.taken, self.ended]:
            self.others[-1][2] = {**self.others[-1][2], **found}
        else:
            self.others.append([self.taken, self.ended, found])
        # An iterator that has come to its end reads nothing more. Before or after an event?
        crossed = bool(self.events) and self.events[-1].taken == self.taken
        if crossed or len(self.others) > _LOG_LIMIT:
            unclear = next(iter(found))
        if crossed or not self.ended:
            self.unclear = self.unclear or unclear

    def drew(self, opens: int, taken: int, found: dict[str, Any], left: dict[str, Any]) -> None:
        """The sampler has drawn: it found global generators in these states, and left them so."""
        moved = [name for name in RNGS if found[name] != left[name]]
        strange = {name: found[name] for name in moved if found[name] != self.left.get(name)}
        self.left.update({name: left[name] for name in moved})
        if not strange or self.log is None:
            return
        self.log.append([opens, taken, strange])
        # Before the end, or after batches were put back after it?
        unclear = any(event.ended and event.taken == taken for event in self.events)
        if unclear or len(self.log) > _LOG_LIMIT:
            self.log = None

    def why_not(self) -> tuple[str, str]:
        """Why there can be no replay, and the way out."""
        state = "its iterator state_dict and load_state_dict, or what pickle can save"
        if self.unclear is not None:
            return (
                f"another iterator has changed the sampler's attribute {self.unclear} since this "
                "one began, and this one may read it",
                f"Read other passes from a loader with a sampler of its own, or give {state}",
            )
        if self.failed is not None:
            return (
                f"it has raised {self.failed} in this epoch and has gone on, and a replay would "
                "raise that as well",
                f"Save between two epochs, or give {state}",
            )
        if self.unlogged:
            return (
                "it went on from a pickle of itself, or from its state_dict, and the indices "
                "before that cannot be replayed",
                f"Pickle the loader's iterator, or give {state}",
            )
        if self.heard_bytes > _MOST_HEARD:
            return (
                f"it has received, or taken back, {self.heard_bytes:,} bytes in this epoch, and a "
                f"state can hold at most {_MOST_HEARD:,} of these for a replay",
                f"Give {state}, or give it less: `tell` and `send_feedback` numbers, not arrays",
            )
        return (
            "it draws from a global random number generator that the program draws from in "
            "between, and has done so too often to be replayed",
            "Pass seed= to the DataLoader, give the sampler a generator of its own, or give "
            + state,
        )

    def give(self, event: Event, *candidates: Any) -> None:
        """Give a sampler, or its iterator, what an event says; see `give`."""
        try:
            give(event, *candidates)
        except Exception as error:
            event = event._replace(raised=type(error).__qualname__)
            raise
        finally:  # it may have done a part
            self._heard(event)

    def _heard(self, event: Event) -> None:
        """The sampler was given that; too much of it makes a replay impossible."""
        if self.log is None:
            return
        if self.others and self.others[-1][:2] == [event.taken, True]:
            self.unclear = next(iter(self.others[-1][2]))
        self.events.append(event)
        self.heard_bytes += event.bytes
        if self.heard_bytes > _MOST_HEARD:
            self.log = None
            self.events.clear()

    def events_as_plain(self, live: bool) -> list[list[Any]]:
        """The events, for a state; CannotSaveError if one has what no state can hold."""
        if self.heard_bytes > _MUCH_HEARD and not self.warned:
            self.warned = True
            warn(
                "each state holds all feedback that the sampler has received in this epoch, for a "
                f"replay: {self.heard_bytes:,} bytes so far. With more than {_MOST_HEARD:,} none "
                "can be saved. Give its iterator state_dict and load_state_dict, or give it less: "
                "`tell` and `send_feedback` numbers, not arrays"
            )
        plain = []
        for taken, step, given, ended, raised in self.events:
            if step is None:
                form = encode_state(given, "a batch that was put back: ", live)
            else:
                form = notes_as_plain(given, live)
            more = [ended, raised] if raised is not None else [ended] if ended else []
            plain.append([taken, step, form, *more])
        return plain

    def log_as_text(self) -> list[list[Any]]:
        return [[opens, taken, states_to_text(states)] for opens, taken, states in self.log or ()]


class Replay:
    """The order of a sampler's epoch from its beginning, and on beyond what was recorded.

    Args:
        sampler: becomes what it was at the beginning.
        record: what was done; with a log.
        world: what the sampler's draws come from; the recorded states are put there. A generator
            without a state is the global one.
        beyond: what they come from after what was recorded.
    """

    seekable = False

    def __init__(
        self,
        sampler: Any,
        record: Record,
        world: GeneratorStates,
        beyond: AbstractContextManager[Any],
    ) -> None:
        self._sampler = sampler
        self._record = record
        self._world, self._beyond = world, beyond
        self._found = {(opens, taken): states for opens, taken, states in record.log or ()}
        self._taken = 0
        self._events, self._others = deque(record.events), deque(record.others)
        #: the iterator has come to its end, since batches were put back last
        self._ended = False
        #: of the indices that were given so far, up to those that are recorded
        self.checksum = BEGINNING
        stops = {taken for opens, taken in self._found if opens == record.opens}
        self._stops = sorted(
            stops | {event.taken for event in record.events} | {moved[0] for moved in record.others}
        )
        thaw(sampler, record.before)
        self.iterator: Iterator[Any] = iter(())
        for opens in range(record.opens):
            self._find(opens, 0)
            with self._acting():
                self.iterator = iter(sampler)
        thaw(sampler, record.between)

    def open(self) -> None:
        pass

    def take(self, count: int) -> list[Any]:
        """The next indices; OrderMismatch if those that were recorded were others."""
        items: list[Any] = []
        while len(items) < count:
            some = self._run(count - len(items))
            if self._taken < self._record.taken:
                self._compare(some)
            if not some:
                break
            items += some
            self._taken += len(some)
        return items

    def moved(self, state_of: Callable[[], Any], count: int) -> list[bool]:
        """Whether each of the next ``count`` indices changes a state, and a call alone does not."""
        found = []
        for _ in range(count):
            before = state_of()
            steady = alike(before, state_of())
            self.take(1)
            found.append(steady and not alike(before, state_of()))
        return found

    def complete(self) -> None:
        """Do all that was recorded and is not done yet; OrderMismatch: see `take`."""
        self.take(max(0, self._record.taken - self._taken))
        self._find(self._record.opens, self._taken)
        self._give()
        if self._record.ended:
            self._end()
        self._move(ended=True)

    def seek(self, position: int) -> None:
        raise NotImplementedError("a replay goes on where it is")

    def length(self) -> int | None:
        return None

    def state(self, live: bool) -> dict[str, Any] | None:
        return None

    def _run(self, count: int) -> list[Any]:
        """The next items, at most up to where the sampler found other states."""
        total = self._record.taken
        if self._taken >= total:
            with self._beyond:
                return list(next_items(self.iterator, count))
        self._find(self._record.opens, self._taken)
        self._give()
        stop = min([total, *(stop for stop in self._stops if stop > self._taken)])
        with self._acting():
            return list(next_items(self.iterator, min(count, stop - self._taken)))

    def _give(self) -> None:
        """Give the sampler what it was given at this moment, as others have left it."""
        self._move(ended=False)
        while self._events and self._events[0].taken <= self._taken:
            event = self._events.popleft()
            if event.ended:
                self._end()
            try:
                with self._acting():
                    give(event, self.iterator, self._sampler)
            except Exception as error:
                if type(error).__qualname__ != event.raised:
                    raise
            if event.step is None and event.raised is None:
                self._ended = False

    def _move(self, ended: bool) -> None:
        """Set the attributes that other iterators had changed by this moment."""
        others = self._others
        while others and others[0][0] <= self._taken and others[0][1] <= ended:
            thaw(self._sampler, others.popleft()[2])

    def _end(self) -> None:
        """Have the iterator come to its end, unless it has."""
        if self._ended:
            return
        with self._acting():
            self._ended = next(self.iterator, _END) is _END
        if not self._ended and self._record.checksum is not None:
            raise OrderMismatch(type(self._sampler).__qualname__, self._taken)

    def _compare(self, some: list[Any]) -> None:
        """Compare the indices so far with those recorded, as soon as there are as many."""
        record, self.checksum = self._record, checksum(some, self.checksum)
        others = record.checksum not in (None, self.checksum)
        if not some or (others and self._taken + len(some) == record.taken):
            raise OrderMismatch(type(self._sampler).__qualname__, record.taken)

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """The sampler acts in its world; the record has what it raises.

        A generator that it has not moved may be moved now: to seed it may have changed nothing.
        """
        with Isolated(), self._world:
            try:
                yield
            except Exception as error:
                self._record.raised = id(error)
                raise

    def _find(self, opens: int, taken: int) -> None:
        self._world.states.update(self._found.get((opens, taken), {}))


def next_items(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """The next items of an iterator, each as it is at that moment.

    ``iter`` is not called again: the iterator may begin anew.
    """
    for _ in range(count):
        try:
            item = next(iterator)
        except StopIteration:
            return
        yield item if type(item) is int else _detached(item)


def _detached(item: Any) -> Any:
    """An item that stays as it is when the sampler uses the object again for the next one."""
    if type(item) is list:
        return item.copy()
    if isinstance(item, torch.Tensor):
        return item.clone()
    if isinstance(item, np.ndarray | dict | set):
        return item.copy()
    return item
