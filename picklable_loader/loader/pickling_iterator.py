"""The position of a pass over a loader's data, and how an iterator is saved with it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Generic, TypeVar

from torch.utils.data import Dataset

from ..core.cursor import Saved
from ..core.snapshot import from_plain, to_plain
from ..epoch.carryover import carryover_of
from ..epoch.driver import Driver
from ..epoch.fits import check_fits
from ..epoch.history import History
from ..epoch.options import AtEpochEnd
from ..epoch.run import Run
from ..epoch.spec import Spec
from ..saving.pickles.codecs import bare
from ..saving.pickles.opened import Opened
from ..saving.pickles.parts import packed_iterator
from ..saving.pickles.size import Weight, weigh
from ..saving.states.tree import with_checksum
from .copies import alone, apart, named_copy
from .display.describe import Portrait, describe, in_one_line
from .display.html import card
from .pickling import Picklable, warn_of_generators
from .setup import packing_of, spec_of

__all__ = ["PicklableIterator"]

_T = TypeVar("_T", covariant=True)


class PicklableIterator(Generic[_T]):
    """The part of an iterator that makes it a value; `LoaderIterator` moves it."""

    #: its parts are looked at one by one when it is pickled
    _packs = True

    def __init__(self, loader: Picklable[_T], driver: Driver | None = None) -> None:
        #: the `DataLoader`; this module must not import that
        self.loader: Any = loader
        self._driver = driver or Driver()
        self._run: Run | None = None
        #: where to go on, as long as there is no run
        self._start: Saved | None = None
        self._finished = False
        self._closed = False
        #: batches that are fetched again, of which the user is yet to be warned
        self._replay = 0
        #: what to do if there is nothing left; None: this is not the first batch after a resume
        self._at_epoch_end: AtEpochEnd | None = None
        #: the step at which the consumer had got all that was delivered, when it last asked
        self._handed_over = -1
        self._turn = loader._pl.turn
        #: the step that workers have died of
        self._deadly: int | None = None
        #: the sampler's iterator as it was carried, as long as the dataset is absent
        self._sealed: Opened | None = None
        self._iterable_length: int | None = loader._IterableDataset_len_called
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"

    # --- position -------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Batches delivered in this epoch; one that raised counts, or lost all of its samples."""
        return self._position()[1]

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0."""
        return self._position()[0]

    @property
    def finished(self) -> bool:
        """Whether the epoch is over, and the consumer has got StopIteration."""
        return self._finished

    @property
    def closed(self) -> bool:
        """It was closed; it delivers nothing more."""
        return self._closed

    @property
    def remaining(self) -> int | None:
        """Batches still to be delivered in this epoch; None where the sampler has no length."""
        if self._finished:
            return 0
        if self._run is not None:
            return self._run.schedule.remaining()
        spec = spec_of(self.loader)
        start = self._start or self._history.beginning(spec, live=True)
        return spec.remaining(start.cursor)

    @property
    def driver(self) -> Driver:
        """The driver, which holds the engine and its workers."""
        return self._driver

    @property
    def run(self) -> Run | None:
        """The run at hand; None before the first `next` after unpickling."""
        return self._run

    def __len__(self) -> int:
        """Batches in the whole epoch, as torch's iterator says it.

        Raises:
            TypeError: the sampler has no length.
        """
        return len(self.loader._index_sampler)

    def __repr__(self) -> str:
        return in_one_line(self._portrait())

    def _repr_html_(self) -> str:
        return card(self._portrait())

    def _portrait(self) -> Portrait:
        doing = "running" if self._driver.at_work else "before its start"
        if self._finished or self._closed:
            doing = "finished" if self._finished else "closed"
        stats = self._driver.stats
        return describe(self, self.loader, lambda: doing, self._position, self._weight, stats)

    def _weight(self) -> Weight:
        """A sampler of the user's is not asked for its state: it is left out as the dataset is."""
        loader, run = self.loader, self._run
        parts = loader.__dict__, loader.dataset, loader._pl.saved()
        if run is None:
            return weigh(*parts, self._start and to_plain(*self._start))
        if run.unmoved is not None:
            return weigh(*parts, to_plain(*run.unmoved))
        if run.spec.known:
            with self._turn.still(wait=False):  # whoever looks for a fault must not wait
                return weigh(*parts, to_plain(*run.saved(live=True)))
        weight, name = weigh(*parts), type(run.spec.sampler).__qualname__
        return replace(weight, left_out=tuple(dict.fromkeys([*weight.left_out, name])))

    # --- saving ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain containers, numbers, text and tensors, which hold no code.

        After the epoch's end (StopIteration) it is the beginning of the next epoch.

        Returns:
            A dict that later calls do not change. It loads under
            ``torch.load(weights_only=True)``, and is JSON wherever the indices of a custom
            sampler are.

        Raises:
            CannotSaveError: the sampler's iterator, or a stream of the dataset, cannot be saved
                exactly; the text names the way out.
        """
        with self._turn.still():
            state = self._state_now()
            warn_of_generators(self.loader, self._spec(), state, live=False)
            return with_checksum(state, None if self._run is None else self._run.writer)

    def _state_now(self) -> dict[str, Any]:
        """The same without a checksum, for a caller that holds the turn."""
        if self._finished:
            return to_plain(*self._next_epoch(live=False))
        return self._snapshot(live=False)

    def load_state_dict(
        self, state: dict[str, Any], *, strict: bool = True, at_epoch_end: AtEpochEnd | None = None
    ) -> None:
        """Go on from a saved state; the pass at hand is abandoned.

        Args:
            state: what ``state_dict`` of this iterator, or of its loader, returned.
            strict: see `DataLoader.load_state_dict`.
            at_epoch_end: see `DataLoader.load_state_dict`.

        Raises:
            StateError: see `DataLoader.load_state_dict`; this iterator is as it was.
        """
        with self._turn.jumps("load_state_dict()"):
            spec = spec_of(self.loader)
            accepted = self._history.accept(spec, state, strict=strict, at_epoch_end=at_epoch_end)
            self._driver.stop()
            self._resume(accepted, at_epoch_end or self.loader._pl.options.at_epoch_end)

    def __getstate__(self) -> dict[str, Any]:
        with self._turn.still():
            state = self._snapshot(live=True)
            warn_of_generators(self.loader, self._spec(), state, live=True)
            return {
                "loader": self.loader,
                "state": state,
                "finished": self._finished,
                "newest": self.loader._pl.newest is self,
            }

    def __reduce_ex__(self, protocol: Any) -> Any:
        with self._turn.still():
            saved = apart(self) if self._turn.foreign else self.__getstate__()
            order = saved["state"]["order"]
            if order and "iterator" in order:
                iterator = _packed(saved["loader"], order["iterator"])
                saved["state"] = {**saved["state"], "order": {**order, "iterator": iterator}}
            return *bare(type(self), protocol), saved

    def __setstate__(self, saved: dict[str, Any]) -> None:
        PicklableIterator.__init__(self, saved["loader"])
        start = from_plain(saved["state"], live=True)
        order = start.cursor.order or {}
        if isinstance(order.get("iterator"), Opened):
            self._sealed = order["iterator"]
            start = _with_iterator(start, self._sealed)
        self._resume(start, None)
        self._finished = saved["finished"]
        if saved["newest"]:
            spec, inner = spec_of(self.loader), self.loader._pl
            inner.adopt(spec, self)
            if self._finished and spec.lives_on:
                inner.ended = self
            self._history.source.load(start.cursor.rng, start.fits)

    def attach(self, dataset: Dataset[_T]) -> None:
        """Give the iterator its dataset back, after it was pickled without; and its loader.

        Args:
            dataset: what it was saved with, or an equal one.

        Raises:
            StateMismatch, UsageError: see `DataLoader.attach`.
        """
        with self._turn.jumps("attach()"):
            self.loader.attach(dataset)
            if self._sealed is not None and self._start is not None:
                again = self._sealed.again(self._sealed.beside)
                self._start = _with_iterator(self._start, again)
            self._sealed = None

    def __deepcopy__(self, memo: dict[int, Any]) -> PicklableIterator[_T]:
        other = memo[id(self)] = type(self).__new__(type(self))
        with self._turn.still():
            with named_copy():
                saved, sealed = copy.deepcopy((self.__getstate__(), self._sealed), memo)
        other.__setstate__(saved)
        other._sealed = sealed
        return other

    def __copy__(self) -> PicklableIterator[_T]:
        with self._turn.still():
            with named_copy():
                saved = alone(self)
        saved["newest"] = True
        other = type(self).__new__(type(self))
        other.__setstate__(saved)
        if self._sealed is not None:
            other._sealed = self._sealed.beside_others({id(self.loader): other.loader})
        return other

    # --- within ---------------------------------------------------------------------------------

    def _position(self) -> tuple[int, int]:
        run = self._run
        if run is not None and run.unmoved is None:
            return run.epoch, run.step
        start = self._start if run is None else run.unmoved
        spec, wish = spec_of(self.loader), self._at_epoch_end or "stop"
        start = start or self._history.beginning(spec, live=True)
        return spec.position(start.cursor, wish)

    @property
    def _history(self) -> History:
        history: History = self.loader._pl.history
        return history

    def _snapshot(self, live: bool) -> dict[str, Any]:
        return self._history.snapshot(self._spec(), self._run, self._start, live)

    def _resume(self, start: Saved | None, at_epoch_end: AtEpochEnd | None) -> None:
        self._run, self._start = None, start
        self._driver.rest()
        self._finished = self._closed = False
        self._at_epoch_end = at_epoch_end

    def _fresh_run(self) -> None:
        loader = self.loader
        self._run = self._history.fresh_run(spec_of(loader), self._driver.kept)
        self._iterable_length = loader._IterableDataset_len_called

    def _build_run(self) -> None:
        """The run of the state that was loaded."""
        spec, history = spec_of(self.loader), self._history
        start = self._start or history.beginning(spec, live=True)
        if not self._finished:
            check_fits(spec.fingerprint(), start.fits)
        self._run = history.resumed_run(spec, start.cursor, self._driver.kept)
        self._run.unmoved = start
        self._start = None
        if self.loader._pl.newest is self:
            history.begins(self._run)

    def _spec(self) -> Spec:
        return spec_of(self.loader) if self._run is None else self._run.spec

    def _after_unpickling(self) -> Saved | None:
        """The start of the next epoch, for an iterator that has not moved since it was unpickled.

        Persistent workers would have gone on with what the epoch has left them, for example its
        base seed; new ones begin with that. The epoch of a later set_epoch counts.
        """
        inner, history, start = self.loader._pl, self._history, self._start
        spec = spec_of(self.loader)
        if spec.lives_on and start is not None and start.cursor.base_seed is not None:
            self._driver.kept = carryover_of(start.cursor)
        if not self._finished:
            return None
        wish = history.next_epoch, history.announced
        if self._run is None:
            self._build_run()
        if wish != (history.next_epoch, history.announced):
            self.loader.set_epoch(wish[0])
        inner.refit(spec)
        live_run = self._live_run()
        return self._next_epoch(live=True) if wish[0] == live_run.epoch + 1 else None

    def _next_epoch(self, live: bool) -> Saved:
        if self._run is None:
            self._build_run()
        run = self._live_run()
        return self._history.following(spec_of(self.loader), run, live)

    def _live_run(self) -> Run:
        assert self._run is not None
        return self._run


def _packed(loader: Picklable[Any], iterator: Any) -> Any:
    """The sampler's iterator, as it is pickled beside the loader."""
    decision, kept = loader._pl.decision, loader.__getstate__()
    return packed_iterator(packing_of(loader), decision, kept, iterator)


def _with_iterator(start: Saved, opened: dict[str, Any]) -> Saved:
    """The position, with the sampler's iterator as it was opened."""
    order = {**(start.cursor.order or {}), "iterator": opened["iterator"]}
    return Saved(start.cursor._replace(order=order), start.fits)
