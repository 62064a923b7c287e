"""The position of a pass over a loader's data, and how an iterator is saved with it."""

from __future__ import annotations

import copy
import weakref
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from torch.utils.data import Dataset

from ..core.checks import whole_number
from ..core.cursor import Saved
from ..core.snapshot import from_plain, to_plain
from ..epoch.changed_data import changed
from ..epoch.driver import Driver
from ..epoch.history import History
from ..epoch.position import Position
from ..epoch.spec import Spec
from ..epoch.turns import still
from ..epoch.unsaved import warn_of_another_pass
from ..errors import LoaderWarning, warn
from ..saving.pickles.codecs import bare
from ..saving.pickles.opened import Opened
from ..saving.pickles.parts import packed_iterator
from ..saving.pickles.size import Weight, weigh
from .copies import alone, apart, named_copy
from .display.describe import Description, describe, in_one_line
from .display.html import card
from .pickling import Picklable, state_of, waits_for, warn_before_save
from .setup import batches_of, copied_parts, packing_of, spec_of

_T = TypeVar("_T", covariant=True)


class PicklableIterator(Generic[_T]):
    """The part of an iterator that makes it a value; `LoaderIterator` moves it."""

    #: its parts are looked at one by one when it is pickled
    _packs = True

    def __init__(self, loader: Picklable[_T], driver: Driver | None = None) -> None:
        #: the `DataLoader`; this module must not import that
        self.loader: Any = loader
        self._driver = driver or Driver()
        self._closed = False
        #: text and category of the warning that is due at the next ``next``
        self._warning: tuple[str, type[Warning]] | None = None
        #: what workers have sent with the batch that was delivered last
        self._notes: Any = ()
        #: the step at which the consumer had got all that was delivered, when it last asked
        self._handed_over = -1
        self._turn = loader._pl.turn
        #: ``id`` of the collate_fn that the pass goes on with
        self._collates = id(loader.collate_fn)
        #: the step that workers have died of
        self._deadly: int | None = None
        #: the sampler's iterator as it was carried: for copies, and until the dataset is attached
        self._sealed: Opened | None = None
        self._iterable_length: int | None = loader._IterableDataset_len_called
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"

    # --- position -------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Batches of this epoch that were delivered or skipped; one that raised counts as well."""
        return self._at()[1]

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0."""
        return self._at()[0]

    @property
    def finished(self) -> bool:
        """Whether the epoch is over, and the consumer has got StopIteration."""
        return self._position.over

    @property
    def closed(self) -> bool:
        """It was closed; it delivers nothing more."""
        return self._closed

    @property
    def remaining(self) -> int | None:
        """Batches still to be delivered in this epoch; None where the sampler has no length."""
        return self._position.remaining(spec_of(self.loader))

    def __len__(self) -> int:
        """Batches in the whole epoch, as torch's iterator says it.

        Raises:
            TypeError: the sampler has no length.
        """
        loader = self.loader
        return len(loader if loader._pl.options.shard is not None else loader._index_sampler)

    def __repr__(self) -> str:
        return in_one_line(self._pl_description())

    def _repr_html_(self) -> str:
        return card(self._pl_description())

    def _pl_description(self) -> Description:
        doing = "before its start" if self._driver.run is None else "running"
        if self.finished or self._closed:
            doing = "finished" if self.finished else "closed"
        return describe(
            self,
            spec=partial(spec_of, self.loader),
            total=partial(batches_of, self.loader),
            doing=lambda: doing,
            position=self._at,
            weight=self._weight,
            stats=self._driver.stats,
        )

    def _weight(self) -> Weight:
        """A sampler of the user's is not asked for its state: it is left out as the dataset is."""
        loader, run, waits = self.loader, self._position.run, self._position.waits_at
        parts = loader.__dict__, loader.dataset, loader._pl.saved()
        if run is None or waits is not None:
            return weigh(*parts, waits and to_plain(*waits))
        if run.spec.known:
            with still(self._turn, wait=False):  # whoever looks for a fault must not wait
                return weigh(*parts, to_plain(*run.saved(live=True)))
        weight, name = weigh(*parts), type(run.spec.sampler).__qualname__
        return replace(weight, left_out=tuple(dict.fromkeys([*weight.left_out, name])))

    # --- saving ---------------------------------------------------------------------------------

    def state_dict(self, *, behind: int = 0, save_rng: bool = False) -> dict[str, Any]:
        """The position, as plain containers, numbers, text and tensors, which hold no code.

        After the epoch's end (StopIteration) it is the beginning of the next epoch.

        Args:
            behind: batches that were delivered and are not used yet, as a queue or a trainer has
                them: these come again. From 0 to ``remember``; one that raised counts. With 2,
                after the epoch's end, it is the state before its last two batches.
            save_rng: the state holds the program's generators as well; see `load_state_dict`.

        Returns:
            A dict that later calls do not change. It loads under
            ``torch.load(weights_only=True)``, and is JSON wherever the indices of a custom
            sampler are.

        Raises:
            CannotSaveError: the sampler's iterator, or a stream of the dataset, cannot be saved
                exactly; the text names the way out.
            UsageError: the pass does not remember so many batches; or ``seeding="worker"``, and
                ``behind`` is not 0.
            ValueError, TypeError: ``behind`` is negative, or no whole number.
        """
        return state_of(self.loader, self, behind, save_rng)

    def behind(self, batches: int) -> PicklableIterator[_T]:
        """A copy before the last batches, to pickle: ``pickle.dumps(it.behind(2))``.

        Args:
            batches: see ``behind`` of `state_dict`.

        Returns:
            An iterator with a loader of its own, which shares the dataset. A dataset that changes
            itself, and has no ``state_dict``, is as it is now.

        Raises:
            CannotSaveError, UsageError, ValueError, TypeError: see `state_dict`.
        """
        return self._copied(whole_number("batches", batches, 0))

    def __getstate__(self) -> dict[str, Any]:
        return self._saved()

    def _saved(self, behind: int = 0) -> dict[str, Any]:
        """The content of a pickle of the iterator, or of one that is behind it."""
        with still(self._turn):
            position, history = self._position, self.loader._pl.history
            spec = spec_of(self.loader) if position.run is None else position.run.spec
            state = history.snapshot(spec, position, True, behind)
            warn_before_save(self.loader, spec, state, live=True)
            warn_of_another_pass(spec, history, position, state)
            self._warn_of_settings(spec)
            return {
                "loader": self.loader,
                "state": state,
                "finished": position.over and not behind,
                "newest": history.position is position,
                **({"at_epoch_end": "next"} if position.at_epoch_end == "next" else {}),
            }

    def _warn_of_settings(self, spec: Spec) -> None:
        if self._driver.run is None or self._position.over:
            return
        now = self.loader._pl.options
        names = spec.options.other_batches(now)
        if id(self.loader.collate_fn) != self._collates:
            names.append("collate_fn")
        if not self._history.choice.reaches(spec.dataset):
            found = changed(copied_parts(self.loader, spec), self._driver.given)
            names += [name for at in found if (name := at.removeprefix("loader.")) not in names]
        if names:
            named = ", ".join(names[:4]) + (", ..." if names[4:] else "")
            warn(
                f"{named} of the loader was set in mid-epoch: this pass goes on "
                "with the old value, and its pickle with the new one. Set it between passes; or "
                "save state_dict() and build the loader with the old value to finish this epoch"
            )

    def __reduce_ex__(self, protocol: Any) -> Any:
        with still(self._turn):
            saved = apart(self) if self._turn.foreign else self.__getstate__()
            order = saved["state"]["order"]
            if order and "iterator" in order:
                iterator = packed_iterator(packing_of(saved["loader"]), order["iterator"])
                saved["state"] = {**saved["state"], "order": {**order, "iterator": iterator}}
            return *bare(type(self), protocol), saved

    def __setstate__(self, saved: dict[str, Any]) -> None:
        if waits_for(saved["loader"], self, saved):
            return
        PicklableIterator.__init__(self, saved["loader"])
        start = from_plain(saved["state"], live=True)
        order = start.cursor.order or {}
        if isinstance(order.get("iterator"), Opened):
            self._sealed = order["iterator"]
            start = _with_iterator(start, self._sealed)
        choice = saved.get("at_epoch_end")
        self._take(Position(start, ended=saved["finished"], at_epoch_end=choice))
        history = self.loader._pl.history
        # The pass that has begun after one that is over may not be in the pickle.
        alone = saved["finished"] and history.position is None
        if saved["newest"] or alone:
            if history.resume is not None:  # it was loaded: the next iter goes on from it, too
                self._position.at_epoch_end = history.position.at_epoch_end
                self._position.pending = True
            self._lead(spec_of(self.loader))
            history.source.load(start.cursor.rng, start.fits)

    def attach(self, dataset: Dataset[_T]) -> None:
        """Give the iterator its dataset back, after it was pickled without; and its loader.

        Args:
            dataset: what it was saved with, or an equal one.

        Raises:
            StateMismatch, UsageError: see `DataLoader.attach`.
        """
        with self._turn.jumps("attach()"):
            self.loader.attach(dataset)
            position = self._position
            if self._sealed is not None and position.start is not None:
                again = self._sealed.again(self._sealed.beside)
                position.start = _with_iterator(position.start, again)
            self._sealed = None

    def __deepcopy__(self, memo: dict[int, Any]) -> PicklableIterator[_T]:
        other = memo[id(self)] = type(self).__new__(type(self))
        with still(self._turn):
            with named_copy():
                saved, sealed = copy.deepcopy((self.__getstate__(), self._sealed), memo)
        other.__setstate__(saved)
        other._sealed = sealed
        return other

    def __copy__(self) -> PicklableIterator[_T]:
        return self._copied()

    def _copied(self, behind: int = 0) -> PicklableIterator[_T]:
        with still(self._turn):
            with named_copy():
                saved = alone(self, behind)
        saved["newest"] |= self._history.resume is None  # else its next iter goes on from that
        other = type(self).__new__(type(self))
        other.__setstate__(saved)
        if self._sealed is not None:
            other._sealed = self._sealed.beside_others({id(self.loader): other.loader})
        return other

    # --- within ---------------------------------------------------------------------------------

    @property
    def _history(self) -> History:
        history: History = self.loader._pl.history
        return history

    def _at(self) -> tuple[int, int]:
        position, run = self._position, self._position.run
        if run is not None and run.has_moved:
            return run.epoch, run.step
        return position.at(spec_of(self.loader))

    def _take(self, position: Position) -> None:
        """Be at another position."""
        position.iterator = weakref.ref(self)
        #: of the pass; from the first `begin`, or `__setstate__`, on
        self._position = position
        self._closed, self._warning, self._notes = False, None, ()

    def follow(self, left: Position, loaded: Position) -> None:
        """Go on from the state that the loader was given, if nothing of this pass has come yet.

        ``left`` is the loader's newest position until then, and ``loaded`` the one of the state.
        """
        if self._position is not left or left.over or self._closed:
            return
        if (run := left.run) is not None and run.step != run.start.step:
            text = (
                f"loader.load_state_dict() was called in the middle of this pass over epoch "
                f"{run.epoch}, which does not go on from that state: only the next iter(loader) "
                "does, and loader.state_dict() gives that state until then. Load before "
                "iter(loader); leave this loop and call iter(loader) again; or call "
                "load_state_dict of the iterator, which goes on from it at once"
            )
            self._warning = text, LoaderWarning
            return
        loaded.at_epoch_end = loaded.at_epoch_end or self.loader._pl.options.at_epoch_end
        self._driver.stop()
        self._take(loaded)

    def _lead(self, spec: Spec) -> None:
        """Be the loader's newest iterator."""
        inner = self.loader._pl
        inner.history.note_begin(self._position)
        if spec.lives_on:
            inner.driver, inner.iterator = self._driver, weakref.ref(self)


def _with_iterator(start: Saved, opened: dict[str, Any]) -> Saved:
    """The position, with the sampler's iterator as it was opened."""
    order = {**(start.cursor.order or {}), "iterator": opened["iterator"]}
    return Saved(start.cursor._replace(order=order), start.fits)
