"""Standing: where a pass over a loader's data stands, and how that is saved."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch.utils.data import Dataset

from .anatomy import fingerprint, position, remaining
from .core.snapshot import from_plain
from .driver import Driver
from .fitting import check_fits
from .kept import kept_of
from .options import AtEpochEnd
from .run import Run
from .saved import alone, apart, next_epoch, snapshot
from .saving.codecs import Opened, bare
from .saving.packing import packed_iterator
from .showing.card import card
from .showing.portrait import in_one_line, of_iterator
from .unsaved import tell_of_generators
from .values.tree import with_checksum

if TYPE_CHECKING:
    from .loader import DataLoader

__all__ = ["Standing"]

_T = TypeVar("_T", covariant=True)


class Standing(Generic[_T]):
    """What a loader's iterator knows of its place; `LoaderIterator` moves it."""

    #: its parts are looked at one by one when it is pickled
    _packs = True

    def __init__(self, loader: DataLoader[_T], driver: Driver | None = None) -> None:
        self.loader = loader
        self._driver = driver or Driver()
        self._run: Run | None = None
        #: where to go on, as long as there is no run
        self._state: dict[str, Any] | None = None
        self._finished = False
        self._closed = False
        #: batches that are fetched again, which the user is yet to be told
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
        """The epoch is over, and the consumer was told so by StopIteration."""
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
        return remaining(self.loader, self._state or self.loader._pl.beginning(live=True))

    @property
    def driver(self) -> Driver:
        """What has the workers."""
        return self._driver

    @property
    def run(self) -> Run | None:
        """The run at hand; None before the first `next` after unpickling."""
        return self._run

    @property
    def pending(self) -> dict[str, Any] | None:
        """The state that it is to go on from, as long as there is no run."""
        return self._state

    def __len__(self) -> int:
        """Batches in the whole epoch, as torch's iterator says it.

        Raises:
            TypeError: the sampler has no length.
        """
        return len(self.loader._index_sampler)

    def __repr__(self) -> str:
        return in_one_line(of_iterator(self))

    def _repr_html_(self) -> str:
        return card(of_iterator(self))

    # --- saving ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: plain containers, numbers, text and tensors, which hold no code.

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
            if self._finished:
                state = self._next_epoch(live=False)
            else:
                state = snapshot(self.loader, self._run, self._state, live=False)
            tell_of_generators(self.loader, state, live=False)
            return with_checksum(state)

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
            accepted = self.loader._pl.accept(state, strict=strict, at_epoch_end=at_epoch_end)
            self._driver.stop()
            self._resume(accepted, at_epoch_end or self.loader._pl.options.at_epoch_end)

    def __getstate__(self) -> dict[str, Any]:
        with self._turn.still():
            state = snapshot(self.loader, self._run, self._state, live=True)
            tell_of_generators(self.loader, state, live=True)
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
                iterator = packed_iterator(saved["loader"], order["iterator"])
                saved["state"] = {**saved["state"], "order": {**order, "iterator": iterator}}
            return *bare(type(self), protocol), saved

    def __setstate__(self, saved: dict[str, Any]) -> None:
        Standing.__init__(self, saved["loader"])
        order = saved["state"]["order"] or {}
        if isinstance(order.get("iterator"), Opened):
            self._sealed = order["iterator"]
            order["iterator"] = self._sealed["iterator"]
        self._resume(saved["state"], None)
        self._finished = saved["finished"]
        if saved["newest"]:
            self.loader._pl.adopt(self)  # type: ignore[arg-type]  # it is a LoaderIterator
            if self._finished and self.loader._pl.lives_on:
                self.loader._pl.ended = self  # type: ignore[assignment]
            self.loader._pl.source.load(saved["state"])

    def attach(self, dataset: Dataset[_T]) -> None:
        """Give the iterator its dataset back, after it was pickled without; and its loader.

        Args:
            dataset: what it was saved with, or an equal one.

        Raises:
            StateMismatch, UsageError: see `DataLoader.attach`.
        """
        with self._turn.jumps("attach()"):
            self.loader.attach(dataset)
            if self._sealed is not None and self._state is not None:
                again = self._sealed.again(self._sealed.beside)
                self._state["order"]["iterator"] = again["iterator"]
            self._sealed = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Standing[_T]:
        other = memo[id(self)] = type(self).__new__(type(self))
        with self._turn.still():
            saved, sealed = copy.deepcopy((self.__getstate__(), self._sealed), memo)
        other.__setstate__(saved)
        other._sealed = sealed
        return other

    def __copy__(self) -> Standing[_T]:
        with self._turn.still():
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
        state = self._state if run is None else run.unmoved
        wish = self._at_epoch_end or "stop"
        return position(self.loader, state or self.loader._pl.beginning(live=True), wish)

    def _resume(self, state: dict[str, Any] | None, at_epoch_end: AtEpochEnd | None) -> None:
        self._run, self._state = None, state
        self._driver.rest()
        self._finished = self._closed = False
        self._at_epoch_end = at_epoch_end

    def _fresh_run(self) -> None:
        loader = self.loader
        epoch, kept = loader._pl.fresh_epoch(), self._driver.kept
        self._run = Run(loader, epoch, kept=kept)
        self._iterable_length = loader._IterableDataset_len_called
        loader._pl.run_begins(self._run)

    def _build_run(self) -> None:
        """The run of the state that was loaded."""
        state = self._state or self.loader._pl.beginning(live=True)
        cursor, fits = from_plain(state, live=True)
        if not self._finished:
            check_fits(fingerprint(self.loader), fits)
        self._run = Run(self.loader, cursor=cursor, kept=self._driver.kept)
        self._run.unmoved = state
        self._state = None
        if self.loader._pl.newest is self:
            self.loader._pl.run_begins(self._run)

    def _after_unpickling(self) -> dict[str, Any] | None:
        """What the next epoch has of one that was unpickled, and has not moved since.

        Persistent workers would have gone on with what the epoch has left them, for example its
        base seed; new ones begin with that. What set_epoch has said since then counts.
        """
        inner, state = self.loader._pl, self._state
        if inner.lives_on and state is not None and state["base_seed"] is not None:
            self._driver.kept = kept_of(from_plain(state, live=True)[0])
        if not self._finished:
            return None
        wish = inner.next_epoch, inner.announced
        if self._run is None:
            self._build_run()
        if wish != (inner.next_epoch, inner.announced):
            self.loader.set_epoch(wish[0])
        inner.refit()
        live_run = self._live_run()
        return self._next_epoch(live=True) if wish[0] == live_run.epoch + 1 else None

    def _next_epoch(self, live: bool) -> dict[str, Any]:
        if self._run is None:
            self._build_run()
        return next_epoch(self.loader, self._live_run(), live)

    def _live_run(self) -> Run:
        assert self._run is not None
        return self._run
