"""The order of anybody's sampler: its iterator, taken as it is.

It is saved in the first of these ways that can be had, and comes back exactly in each:

1. by the ``state_dict`` of its iterator, or of the sampler if the iterator has none;
2. by pickle of the iterator (in a pickle; a ``state_dict`` holds no code);
3. by *replay*: the sampler as it was before its first draw, the states of the random number
   generators that it has drawn from, and how many indices were taken.

The iterator may be ahead of what was delivered: the snapshot holds the tasks in between.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from ..datasets.protocol import is_stateful, length_of
from ..errors import SYMPTOMS, CannotSaveError, DamagedStateError, LoaderError
from ..rng.generators import GeneratorStates, capture_all, states_from_text, states_to_text
from ..rng.owned import has_generators, ids_of_global, owned_in
from ..rng.source import Setting, Source
from ..saving.states.checksum import checksum
from ..saving.states.plain import alike, decode, encode_state
from .attributes import Frozen, changed, freeze, placeable, small, thaw
from .given import Event, goes_on, receiver_of, taker_of
from .lent import Lent
from .loads import begin_apart, begins_at, settle
from .other_iterators import SamplerTurns
from .replay import Record, Replay, next_items
from .states_ahead import StatesAhead
from .unknown import IS_POSITION, check_known, once_only, pickles

_T = TypeVar("_T")

#: A state_dict is believed to hold the position once so many indices in a row have changed it: the
#: first one may also draw a permutation, or count an epoch.
_PROOFS = 2
_OF_SAMPLER = "state_dict() of the sampler: "  # in an error, before the path


class CustomOrder:
    """The indices that a sampler's iterator yields."""

    seekable = False
    _pl_record = "order of a custom sampler"

    def __init__(self, sampler: Any, setting: Setting) -> None:
        self._sampler = sampler
        self._setting, self._source = setting, setting.source
        #: with a seed, what the sampler draws from, and the states it began in
        self._private = setting.private()
        self._start = dict(self._private.states) if self._private else {}
        #: `leave` is to restore it; None once that is done, or where there is nothing
        self._saved = setting.saved
        self._iterator: Any = None
        #: of the first indices: whether they have changed what state_dict gives
        self._moves: list[bool] = []
        #: what it gave after the newest of these, or after a replay
        self._moved_to: Any = None
        #: it then was given a state that no replay leads to
        self._loaded = False
        #: the sampler's attributes after the last iter()
        self._opened: Frozen = {}
        self.record = Record() if self._saved is None else Record.read(self._saved)
        #: it may have drawn from the program's generators in this epoch
        self._drew = self.record.log != [] or bool((self._saved or {}).get("universe"))
        self._turns = SamplerTurns(sampler, setting.source)
        #: what the sampler is to receive
        self._heard: deque[Event] = deque()
        self._pickles: bool | None = None
        self._ahead = StatesAhead()
        self._lent = Lent()

    def leave(self) -> None:
        """Bring the sampler to its saved state, unless that is done; others may move it then."""
        if self._saved is not None:
            self._restore(self._saved)
        if not (self.record.ended and self._turns.newest):
            self._turns.hand_over()

    def open(self) -> None:
        assert self._saved is None, "leave() comes first"
        if not self.record.opens:
            self.record.before = self._turns.frozen()
            self._turns.claim(self.record.before)
        self._iterator = self._draw(iter, self._sampler)
        # No replay would reach its position.
        if getattr(self._iterator, "state_is_position", False) and is_stateful(self._iterator):
            self._moves = [True] * _PROOFS
        self.record.opens += 1
        self._opened = self._turns.frozen() if self.record.opens == 1 else self._opened

    def take(self, count: int) -> list[Any]:
        assert self._saved is None, "leave() comes first"
        if self._iterator is None and not self.record.ended:
            self.open()
        elif not self.record.taken:
            self._note_between()
        if self.record.ended:
            return []
        before, steady = None, True
        if len(self._moves) < _PROOFS and self._stateful() is None:
            self._moves = [False] * _PROOFS  # it is not asked at each take, which costs 2 µs
        if len(self._moves) < _PROOFS and count > 1:
            # A state that counts after `yield` is one index behind, and moves with each batch.
            first = self.take(1)
            return first + self.take(count - 1) if first else first
        if len(self._moves) < _PROOFS:
            self._pass_on()  # what it receives changes its state as well
            before = self._own_state()
            steady = alike(before, self._own_state())  # it may show its calls, or the time
        self._ahead.note(self.record.taken, self._sampler, self._iterator)
        taken = self._draw(self._next, count)
        self._ahead.drawn(taken)
        if before is not None and taken:
            self._moved_to = self._own_state()
            self._moves.append(steady and not alike(before, self._moved_to))
        return taken

    @property
    def listens(self) -> bool | None:
        """The sampler, or its iterator, receives feedback; None: it is not open, nobody knows."""
        found = receiver_of(self._iterator, self._sampler) is not None
        return found or (None if self._iterator is None else False)

    def receive(self, step: int, notes: Sequence[bytes]) -> None:
        """Have the sampler receive what was said about a step, at the next take at the latest."""
        self._heard.append(Event(self.record.taken, step, [*notes], self.record.ended))
        if self.record.ended:  # there is no next take
            self._pass_on()

    def put_back(self, batches: list[Any]) -> bool:
        """Offer the sampler the batches that it gave last; False: it takes nothing back."""
        iterator, ended = self.iterator(), self.record.ended
        if taker_of(iterator, self._sampler) is None or (ended and not goes_on(iterator)):
            return False
        self._heard.append(Event(self.record.taken, None, copy.deepcopy(batches), ended))
        self._pass_on()
        self.record.ended = False
        return True

    def iterator(self, lend: bool = False) -> Iterator[Any]:
        """The live iterator of the sampler, which is opened where it is not yet."""
        if self._iterator is None:
            self.open()
        self._pass_on()
        if lend and not self._lent:
            self._lent.note(self._iterator, self._sampler)
        return cast("Iterator[Any]", self._iterator)

    def _pass_on(self) -> None:
        """Have the sampler receive all that it has not received yet."""
        if not self._heard:
            return
        logged = len(self.record.log or ())
        self._draw(self._next, 0)
        if logged != len(self.record.log or ()):
            self.record.log = None  # a replay could not tell these draws from those of `take`

    def seek(self, position: int) -> None:
        raise NotImplementedError("a custom sampler's order cannot be sought in")

    def length(self) -> int | None:
        return length_of(self._sampler)

    def state(self, live: bool) -> dict[str, Any] | None:
        self._pass_on()
        if self._iterator is None:
            return None
        state: dict[str, Any] = {
            "opens": self.record.opens,
            "taken": self.record.taken,
            "ended": self.record.ended,
        }
        moves = all(self._moves) and self._stateful() is not None
        lacks = moves and self._lacks_generators()
        if len(self._moves) == _PROOFS and moves and not lacks:
            self._add_own_state(state, live)
            return state
        if self._pickles is None and live:
            self._pickles = pickles(self._iterator, self._sampler)
        if live and self._pickles:
            state["iterator"] = self._iterator
            self._add_private(state)
        try:
            self._add_replay(state, live)
        except CannotSaveError as error:
            if lacks:
                error.reason += "; and state_dict() lacks the generators that it draws from"
                error.advice += f"; {IS_POSITION}"
            if lacks or not moves:
                raise
            self._add_own_state(state, live)  # the best there is, as nothing speaks against it
        return state

    def state_before(self, taken: int) -> dict[str, Any] | None:
        """The state in which so many indices were taken; None: see `StatesAhead`."""
        own = None if self._lent else self._ahead.before(taken)
        if own is None or not all(self._moves) or self._lacks_generators() or self.listens:
            return None
        state = {"opens": self.record.opens, "taken": taken, "ended": False, "iterator_state": own}
        before = changed(self.record.before, *self._source.origins)
        return {**state, "sampler": self._placeable(before, {})}

    def again(self, sampler: Any, source: Source) -> Replay | None:
        """The epoch from its beginning, by a copy of the sampler; None if that cannot be had."""
        self._lent.look(self._iterator, self._sampler)
        if self.record.log is None or self.record.events or self._lent.changed:
            return None
        # The epoch may have made attributes, which the class alone had before.
        undone = changed(self.record.before, freeze(sampler, source.dataset))
        thaw(sampler, {**source.origin, **undone})
        own = self._setting.private()
        return Replay(sampler, self.record, own or GeneratorStates({}), own or source.globals())

    # --- saving ----------------------------------------------------------------------------------

    def _note_between(self) -> None:
        now = self._turns.frozen()
        self.record.between.update(changed(now, self._opened))
        self._opened = now

    def _add_private(self, state: dict[str, Any]) -> None:
        if self._private is not None:
            moved = {n: s for n, s in self._private.states.items() if s != self._start[n]}
            state["universe"] = states_to_text(moved)

    def _stateful(self) -> Any:
        """The iterator or the sampler, whose state_dict may hold the position; None: neither."""
        return next(filter(is_stateful, (self._iterator, self._sampler)), None)

    def _lacks_generators(self) -> bool:
        """It may have drawn later indices, and its state_dict has no generator to do so again."""
        if getattr(self._iterator, "state_is_position", False):
            return False
        owns = not self._drew and self._owns_generators()
        if not (self._drew or owns):
            return False
        state = self._stateful().state_dict()
        if has_generators(state, of_program=False):
            return False
        # DeepSpeed's sampler draws from its own, and its state has the program's.
        return owns or not has_generators(state) or self._owns_generators()

    def _owns_generators(self) -> bool:
        parts = {"sampler": self._sampler, "iterator": self._iterator}
        known = {id(self._source.dataset), *ids_of_global()}
        return any(owned_in(parts, known, reads=False))

    def _own_state(self) -> Any:
        """A form of that state that can be compared; None where there is none."""
        stateful = self._stateful()
        return None if stateful is None else encode_state(stateful.state_dict(), "", live=True)

    def _add_own_state(self, state: dict[str, Any], live: bool) -> None:
        self._add_private(state)
        if is_stateful(self._iterator):
            what = "state_dict() of the sampler's iterator: "
            state["iterator_state"] = encode_state(self._iterator.state_dict(), what, live)
            # Its sampler may count epochs, of which iter() makes another order.
            before, now = self.record.before, self._turns.frozen()
            begun = changed(before, *self._source.origins, now if live else before)
            state["sampler"] = self._placeable(begun, {})
            if put := self._placeable(changed(now, before), self._opened):
                state["between"] = put
        else:
            state["sampler_state"] = encode_state(self._sampler.state_dict(), _OF_SAMPLER, live)
        if self.record.ended:
            state["after"] = small(changed(self._turns.frozen(), self._source.origin))

    def _placeable(self, frozen: Frozen, opened: Frozen) -> Frozen:
        made = {p: form for p, form in opened.items() if p not in self.record.before}  # by iter()
        there = {**(self._source.origin or self.record.before), **made}
        return placeable(frozen, there, self._sampler, self._iterator is not self._sampler)

    def _no_replay(self) -> CannotSaveError | None:
        """The error if no replay leads to where the sampler is."""
        if not self._turns.newest:
            self.record.move(*self._turns.changes())
        self._lent.look(self._iterator, self._sampler)
        name = f"the iterator of the sampler {type(self._sampler).__qualname__}"
        if self._lent.changed:
            return CannotSaveError(
                name,
                "the program has it from get_sampler_iter(), and has changed it or may have",
                "Give it state_dict and load_state_dict, or pickle the loader's iterator",
            )
        if self.record.log is None or self.record.unclear:
            return CannotSaveError(name, *self.record.why_not())
        return None

    def _add_replay(self, state: dict[str, Any], live: bool) -> None:
        if refusal := self._no_replay():
            if "iterator" in state:
                return
            raise refusal
        if not self.record.taken:
            self._note_between()
        before, origin, now = self.record.before, self._source.origin, self._turns.frozen()
        if live:  # a pickle holds the sampler as it is now
            check_known(before, now, self._sampler)
        else:
            check_known(before, now, self._sampler, ("iterator", "members"))
            check_known(before, origin, self._sampler)
        if self._iterator is self._sampler and not hasattr(self._sampler, "__dict__"):
            raise once_only(self._sampler)
        state["log"] = self.record.log_as_text()
        state["checksum"] = self.record.checksum
        if self.record.events:
            state["events"] = self.record.events_as_plain(live)
        state["sampler"] = changed(before, *self._source.origins, now if live else before)
        if self.record.others:
            state["others"] = [[*moved] for moved in self.record.others]
        if self.record.between:
            state["between"] = dict(self.record.between)
        self._add_changed_state(state, live)

    def _add_changed_state(self, state: dict[str, Any], live: bool) -> None:
        if self._moved_to is not None and is_stateful(self._sampler):
            # No position, but what the program has changed in mid-epoch: weights, a curriculum.
            if not all(self._moves) or self._loaded or not alike(self._moved_to, self._own_state()):
                state["sampler_state"] = encode_state(self._sampler.state_dict(), _OF_SAMPLER, live)

    # --- restoring -------------------------------------------------------------------------------

    def _restore(self, saved: dict[str, Any]) -> None:
        try:
            if "iterator" in saved:
                self._iterator = saved["iterator"]
                # In mid-epoch a state that is one index behind moves with each index as well.
                if self.record.taken and not getattr(self._iterator, "state_is_position", False):
                    self._moves = [False] * _PROOFS
                self.record.before = {**self._turns.frozen(), **self.record.before}
            elif "log" in saved:
                self._replay(saved)
            else:
                self._load_state_dicts(saved)
            if self._private is not None and "universe" in saved:
                self._private.states.update(states_from_text(saved["universe"]))
        except BaseException as error:
            own = isinstance(error, LoaderError) or self.record.raised == id(error)
            self._turns.give_up()
            if own or not isinstance(error, SYMPTOMS):
                raise
            raise DamagedStateError("order", "what this sampler's order saves", error) from error
        self._saved = None

    def _load_state_dicts(self, saved: dict[str, Any]) -> None:
        built = self._turns.frozen()
        if "sampler_state" in saved:
            self._sampler.load_state_dict(decode(saved["sampler_state"]))
        thaw(self._sampler, saved.get("sampler", {}))
        self.record.before = self._turns.frozen()
        rng = (self._private or self._source.globals()).run(capture_all)
        self._iterator = begin_apart(self._sampler, rng)
        self._opened = self._turns.frozen()
        if "iterator_state" in saved:
            state, before = saved["iterator_state"], self.record.before
            own = self._iterator is self._sampler
            if not (own and begins_at(self._sampler, state, before, self._opened, rng)):
                thaw(self._sampler, saved.get("between", before))
                self._iterator.load_state_dict(decode(state))
        if "after" in saved:
            settle(self._sampler, self._source.dataset, built, saved["after"])
        self._moves, self._drew = [True] * _PROOFS, False

    def _replay(self, saved: dict[str, Any]) -> None:
        record, now = self.record, self._turns.claim()
        thaw(self._sampler, self._source.origin)
        thaw(self._sampler, record.before)
        record.before = self._turns.frozen()
        world = self._private or GeneratorStates({})
        replay = Replay(self._sampler, record, world, world)
        self._iterator = replay.iterator
        self._moves = replay.moved(self._own_state, min(_PROOFS, record.taken))
        replay.complete()
        if now is not None:  # others have begun, or gone on from their states, before this one
            moved = changed(now, self._turns.frozen())
            thaw(self._sampler, moved)
            record.move(moved)
        record.checksum = replay.checksum
        self._drew |= world.states != self._start
        self._moved_to = self._own_state()
        if "sampler_state" in saved:
            given = decode(saved["sampler_state"])
            self._loaded = not alike(self._moved_to, encode_state(given, "", live=True))
            if self._loaded:
                self._sampler.load_state_dict(given)
        if not record.taken:
            self._opened = self._turns.frozen()
        record.left = dict(world.states)

    # --- drawing ---------------------------------------------------------------------------------

    def _next(self, count: int) -> list[Any]:
        taken: list[Any] = []
        assert self._iterator is not None
        while self._heard:
            self.record.give(self._heard.popleft(), self._iterator, self._sampler)
        if not count:
            return taken
        if self.record.failed is not None:
            self.record.log = None  # a replay would raise it as well
        try:
            for item in next_items(self._iterator, count):
                taken.append(item)
        except Exception as error:
            self.record.failed = type(error).__qualname__
            raise
        finally:  # whatever the sampler raises, these were taken
            self.record.taken += len(taken)
            if self.record.checksum is not None:
                self.record.checksum = checksum(taken, self.record.checksum)
        self.record.ended = len(taken) < count
        return taken

    def _draw(self, act: Callable[[Any], _T], argument: Any) -> _T:
        """Let the sampler act; without a seed, note from which global generators it draws."""
        if not self._turns.newest:
            self.record.move(*self._turns.begin())
        if not self._lent:
            return self._draw_alone(act, argument)
        self._lent.look(self._iterator, self._sampler)
        try:
            return self._draw_alone(act, argument)
        finally:
            self._lent.note(self._iterator, self._sampler)

    def _draw_alone(self, act: Callable[[Any], _T], argument: Any) -> _T:
        if self._private is not None:
            states = dict(self._private.states)
            try:
                return self._private.run(act, argument)
            finally:
                self._drew |= states != self._private.states
        return self._source.globals().run(self._noted, act, argument)  # type: ignore[no-any-return]

    def _noted(self, act: Callable[[Any], _T], argument: Any) -> _T:
        opens, taken, found = self.record.opens, self.record.taken, capture_all()
        try:
            return act(argument)
        finally:
            left = capture_all()
            if left != found:
                self._drew = True
                self._source.saved_at.clear()
                self.record.drew(opens, taken, found, left)
