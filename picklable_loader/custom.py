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
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from types import GeneratorType
from typing import Any, TypeVar

import numpy as np
import torch

from .core.seeds import order_seed
from .errors import CannotSaveError, DamagedStateError
from .freeze import changed, freeze, thaw
from .randomness import RNGS, Universe
from .source import Setting, Source

__all__ = ["CustomOrder", "memory", "prepare"]

_T = TypeVar("_T")

#: A sampler that draws from a global generator at every batch, while the program draws from it in
#: between, can be replayed only with the generator's state at each of these draws.
_LOG_LIMIT = 64


class CustomOrder:
    """The indices that a sampler's iterator yields.

    Args:
        sampler: anything with ``__iter__`` (or ``__getitem__``, as Python's ``iter`` takes it).
        setting: see `Setting`.
    """

    seekable = False

    def __init__(self, sampler: Any, setting: Setting) -> None:
        self._sampler = sampler
        self._source = source = setting.source
        self._universe: Universe | None = None
        if source.seed is not None:
            self._universe = Universe.seeded(order_seed(source.seed, setting.epoch))
        _remember(sampler, source)
        #: to be restored at the first take; None once that is done, or where there is nothing
        self._saved = setting.saved
        self._iterator: Iterator[Any] | None = None
        #: times that iter(sampler) was called, and indices taken
        self._opens = 0
        self._taken = 0
        #: the iterator has come to its end, and what it drew on the way there is drawn
        self._ended = False
        #: the sampler before its first iter()
        self._before: dict[str, Any] = {}
        #: [opens, taken, states]: where the sampler drew from global generators that others had
        #: moved (or, at first, from any), and the states it found; None: too many to keep
        self._log: list[list[Any]] | None = []
        #: states in which the sampler left the generators, and which of them it has moved
        self._left: dict[str, Any] = dict(self._universe.states) if self._universe else {}
        self._moved: set[str] = set()
        #: generators of which a replay knows the state to begin with
        self._logged: set[str] = set(self._left)
        self._pickles: bool | None = None

    def open(self) -> None:
        if self._saved is not None:
            return
        if not self._opens:
            self._before = freeze(self._sampler)
        self._iterator = self._watched(lambda: iter(self._sampler))
        self._opens += 1

    def take(self, count: int) -> list[Any]:
        if self._saved is not None:
            self._restore(self._saved)
        if self._iterator is None and not self._ended:
            self.open()
        return [] if self._ended else self._watched(lambda: self._next(count))

    def seek(self, position: int) -> None:
        raise NotImplementedError("a custom sampler's order cannot be sought in")

    def length(self) -> int | None:
        try:
            return len(self._sampler)
        except (TypeError, NotImplementedError):
            return None

    def state(self, live: bool) -> dict[str, Any] | None:
        if self._saved is not None:
            saved = dict(self._saved)
            return saved if live else {k: v for k, v in saved.items() if k != "iterator"}
        if self._iterator is None:
            return None
        state: dict[str, Any] = {
            "opens": self._opens,
            "taken": self._taken,
            "ended": self._ended,
            "moved": sorted(self._moved),
        }
        if self._universe is not None and self._moved:
            state["universe"] = self._universe.to_text(self._moved)
        if self._add_state_dicts(state):
            return state
        if live and self._iterator_pickles():
            state["iterator"] = self._iterator
        self._add_replay(state, live)
        return state

    # --- saving ----------------------------------------------------------------------------------

    def _add_state_dicts(self, state: dict[str, Any]) -> bool:
        for name, stateful in (("iterator", self._iterator), ("sampler", self._sampler)):
            if callable(getattr(stateful, "state_dict", None)):
                saved: Any = stateful
                state[f"{name}_state"] = copy.deepcopy(saved.state_dict())
                return True
        return False

    def _add_replay(self, state: dict[str, Any], live: bool) -> None:
        if self._log is None:
            if "iterator" in state:
                return
            raise CannotSaveError(
                f"the iterator of the sampler {type(self._sampler).__qualname__}",
                "it has no state_dict, cannot be pickled, and draws from a global random number "
                "generator that the program draws from in between",
                "Pass seed= to the DataLoader, give the sampler a generator of its own, or give "
                "its iterator state_dict and load_state_dict",
            )
        state["log"] = [
            [opens, taken, {name: RNGS[name].to_text(value) for name, value in states.items()}]
            for opens, taken, states in self._log
        ]
        now = freeze(self._sampler) if live else self._before
        state["sampler"] = changed(self._before, self._source.origin or {}, now)

    def _iterator_pickles(self) -> bool:
        if self._pickles is None:
            self._pickles = _pickles(self._iterator, self._sampler)
        return self._pickles

    # --- restoring -------------------------------------------------------------------------------

    def _restore(self, saved: dict[str, Any]) -> None:
        self._saved = None
        try:
            self._opens, self._taken = int(saved["opens"]), int(saved["taken"])
            self._ended = bool(saved["ended"])
            self._moved = set(saved["moved"])
            self._log = _log_from_text(saved["log"]) if "log" in saved else None
            if "iterator" in saved:
                self._iterator = saved["iterator"]
                self._before = {**freeze(self._sampler), **saved.get("sampler", {})}
                self._go_on_in(saved)
            elif "iterator_state" in saved or "sampler_state" in saved:
                self._load_state_dicts(saved)
                self._go_on_in(saved)
            else:
                self._replay(saved["sampler"])
        except (KeyError, ValueError, TypeError, StopIteration) as error:
            raise DamagedStateError("order", "what this sampler's order saves", error) from error

    def _load_state_dicts(self, saved: dict[str, Any]) -> None:
        if "sampler_state" in saved:
            self._sampler.load_state_dict(copy.deepcopy(saved["sampler_state"]))
        with self._world():
            self._iterator = iter(self._sampler)
        if "iterator_state" in saved:
            stateful: Any = self._iterator
            stateful.load_state_dict(copy.deepcopy(saved["iterator_state"]))

    def _go_on_in(self, saved: dict[str, Any]) -> None:
        if self._universe is not None and "universe" in saved:
            self._universe.states.update(Universe.from_text(saved["universe"]).states)
            self._left = dict(self._universe.states)

    def _replay(self, attributes: dict[str, Any]) -> None:
        """Do again what the sampler has done, in the states that it found then."""
        thaw(self._sampler, attributes)
        self._before = freeze(self._sampler)
        world = self._universe or Universe({})
        found = {(opens, taken): states for opens, taken, states in self._log or ()}
        for opens in range(self._opens):
            world.states.update(found.get((opens, 0), {}))
            with world:
                self._iterator = iter(self._sampler)
        stops = sorted({taken for opens, taken in found if opens == self._opens} | {self._taken})
        for start, stop in zip([0, *stops], stops):
            world.states.update(found.get((self._opens, start), {}))
            with world:
                for _ in range(start, stop):
                    next(self._iterator)  # type: ignore[arg-type]
        if self._ended:  # what the sampler does after its last index is done again, too
            with world:
                next(self._iterator, None)  # type: ignore[arg-type]
        self._left = dict(world.states)
        self._logged = set(self._left)

    # --- drawing ---------------------------------------------------------------------------------

    def _next(self, count: int) -> list[Any]:
        taken: list[Any] = []
        assert self._iterator is not None
        try:
            taken.extend(islice(self._iterator, count))
        finally:  # whatever the sampler raises, these were taken
            self._taken += len(taken)
        self._ended = len(taken) < count
        return [item if type(item) is int else _detached(item) for item in taken]

    def _world(self) -> AbstractContextManager[Any]:
        return self._universe or self._source.globals()

    def _watched(self, act: Callable[[], _T]) -> _T:
        """Let the sampler act, and note from which global generators it draws."""
        opens, taken = self._opens, self._taken
        with self._world():
            found = {name: rng.capture() for name, rng in RNGS.items()}
            try:
                return act()
            finally:
                left = {name: rng.capture() for name, rng in RNGS.items()}
                self._note(opens, taken, found, left)

    def _note(self, opens: int, taken: int, found: dict[str, Any], left: dict[str, Any]) -> None:
        moved = [name for name in RNGS if found[name] != left[name]]
        self._moved.update(moved)
        strange = {
            name: found[name]
            for name in moved
            if name not in self._logged or found[name] != self._left[name]
        }
        self._left = left
        self._logged.update(strange)
        if strange and self._log is not None:
            self._log.append([opens, taken, strange])
            if len(self._log) > _LOG_LIMIT:
                self._log = None


def memory(sampler: Any, source: Source) -> dict[str, Any]:
    """What a sampler is like before its iteration, as far as the program would not rebuild it."""
    if callable(getattr(sampler, "state_dict", None)):
        return {"state": copy.deepcopy(sampler.state_dict())}
    if source.origin is None:
        return {}
    attributes = changed(freeze(sampler), source.origin, source.origin)
    return {"attributes": attributes} if attributes else {}


def prepare(sampler: Any, saved: dict[str, Any], source: Source) -> None:
    """Make a sampler what ``memory`` has seen.

    Raises:
        DamagedStateError: that is not what it saves.
    """
    _remember(sampler, source)
    try:
        if "state" in saved:
            sampler.load_state_dict(copy.deepcopy(saved["state"]))
        thaw(sampler, saved.get("attributes", {}))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedStateError("sampler", "what this sampler saves", error) from error


def _remember(sampler: Any, source: Source) -> None:
    """Note what the program has built, before anything changes it."""
    if source.origin is None:
        source.origin = freeze(sampler)


def _log_from_text(log: list[Any]) -> list[list[Any]]:
    return [[int(o), int(t), Universe.from_text(states).states] for o, t, states in log]


def _detached(item: Any) -> Any:
    """An item that stays as it is when the sampler uses the object again for the next one."""
    if type(item) is list:
        return item.copy()
    if isinstance(item, torch.Tensor):
        return item.clone()
    if isinstance(item, np.ndarray | dict | set):
        return item.copy()
    return item


class _Trial(pickle.Pickler):
    """A pickler that leaves out what is pickled with the loader anyway."""

    def __init__(self, known: list[Any]) -> None:
        super().__init__(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
        self._known = {id(thing) for thing in known}

    def persistent_id(self, obj: Any) -> str | None:
        return "known" if id(obj) in self._known else None


def _pickles(iterator: Any, sampler: Any) -> bool:
    if isinstance(iterator, GeneratorType):
        return False
    known = [sampler, *vars(sampler).values()] if hasattr(sampler, "__dict__") else [sampler]
    try:
        _Trial(known).dump(iterator)
    except Exception:  # whatever people's __reduce__ raises
        return False
    return True
