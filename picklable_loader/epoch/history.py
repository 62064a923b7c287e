"""The only part of a loader that changes between passes, and that the next pass begins with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ..core.checks import check_choice
from ..core.cursor import Cursor, Saved
from ..core.snapshot import check_origin, from_plain, to_plain
from ..core.streams import Place
from ..datasets.datapipes import SharedSeeds
from ..datasets.protocol import tell_epoch
from ..fetching.worker.baseline import FirstBaseline
from ..fetching.worker.saved_streams import remembers, savable, warn_of_drift
from ..orders.attributes import prepare
from ..rng.source import Source
from ..saving.states.tree import check_checksum, copied
from .accept import check
from .carryover import Carryover
from .fits import fit
from .options import AtEpochEnd
from .run import Run
from .spec import Spec
from .states import unmoved
from .warnings import forgotten

__all__ = ["History"]

_SAVED = ("next_epoch", "announced", "resume", "resume_at_end", "carried")


class History:
    """State of one loader that changes between its passes. Each change is one method.

    Args:
        source: of the loader's random draws.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        #: number of the epoch that the next ``iter`` begins, unless a state was loaded
        self.next_epoch = 0
        #: the epoch that set_epoch has last given the dataset; None if it was never called
        self.announced: int | None = None
        #: a loaded state that the next ``iter`` goes on from, and its wish for an epoch's end
        self.resume: Saved | None = None
        self.resume_at_end: AtEpochEnd | None = None
        #: by stream, the state in which the next epoch finds the dataset, if it lives on
        self.carried: dict[int, Any] = {}
        # No pickle holds the rest.
        #: the newest run, which state_dict reports even when its iterator is gone
        self.run: Run | None = None
        #: see `origin`; None before the first epoch
        self.origin_known: FirstBaseline | None = None
        self.shared_seeds = SharedSeeds(source)

    # --- saving ----------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """The part of it that a pickle of the loader holds."""
        saved = {name: getattr(self, name) for name in _SAVED}
        if self.resume is not None:
            cursor, fits = self.resume
            rng = self.source.as_now(cursor.rng)
            saved["resume"] = to_plain(cursor._replace(rng=rng), fits)
        return saved

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Become what `saved` has given."""
        for name in _SAVED:
            setattr(self, name, saved[name])
        if saved["resume"] is not None:
            self.resume = from_plain(saved["resume"], live=True)
            self.source.load(self.resume.cursor.rng, self.resume.fits)

    # --- reading ---------------------------------------------------------------------------------

    def origin(self, spec: Spec) -> FirstBaseline | None:
        """An iterable-style dataset as it was before the loader's first epoch in this process."""
        if self.origin_known is None and spec.iterable and not spec.stateful:
            self.origin_known = FirstBaseline(spec.dataset, spec.options.codec == "cloudpickle")
        return self.origin_known

    def _drift(self, spec: Spec) -> list[str]:
        """Attributes that epochs have changed in the program's own dataset."""
        if spec.workers or self.origin_known is None:
            return []
        drift: list[str] = self.origin_known.reached().get("drift", [])
        return drift

    def beginning(self, spec: Spec, live: bool) -> Saved:
        """The start of the epoch that begins next.

        Args:
            live: see `snapshot`.
        """
        return self._beginning(spec, self.next_epoch, live)

    def snapshot(
        self, spec: Spec, run: Run | None, start: Saved | None, live: bool
    ) -> dict[str, Any]:
        """The state of a pass: its run's; without one, that of the position that it starts from.

        Args:
            live: for a pickle, which may hold objects.
        """
        if run is None:
            return unmoved(self.source, start or self.beginning(spec, live), live)
        if run.unmoved is not None and "iterator" not in (run.unmoved.cursor.order or ()):
            return unmoved(self.source, run.unmoved, live)
        return to_plain(*self._noted(run.saved(live)))

    def following(self, spec: Spec, run: Run, live: bool = False) -> Saved:
        """The start of the epoch after a run that is over.

        Args:
            live: see `snapshot`.
        """
        if run is self.run and self.next_epoch != run.epoch + 1:
            return self.beginning(spec, live=False)  # set_epoch has chosen another one
        places = self._carried_places(spec)
        if not live:
            warn_of_drift(spec.dataset, places, self._drift(spec))
        cursor = run.following(self.announced, savable(places, live))
        return self._noted(Saved(cursor, spec.fingerprint()))

    def _beginning(self, spec: Spec, epoch: int, live: bool) -> Saved:
        self.source.generators = spec.generators
        cursor = Cursor(
            epoch,
            rng=self.source.state(spec.draws_from),
            announced=self.announced,
            sampler=spec.unstarted(self.source, self.run is not None, live),
        )
        return self._noted(Saved(cursor, spec.fingerprint()))

    def _noted(self, saved: Saved) -> Saved:
        self.source.place = dict(saved.fits)
        return saved

    def _carried_places(self, spec: Spec) -> list[Place]:
        """The streams' positions at the start of the next epoch, if not at their beginning."""
        if len(self.carried) != spec.streams:
            return []  # they are of other streams
        return [Place(mark=self.carried[stream]) for stream in range(spec.streams)]

    # --- moving ----------------------------------------------------------------------------------

    def choose(self, spec: Spec, epoch: int) -> None:
        """``set_epoch``: the next pass is of this epoch; samplers and dataset are given it."""
        self.next_epoch = self.announced = epoch
        spec.tell_samplers(epoch)
        if self.origin_known is None:
            tell_epoch(spec.dataset, epoch)
        else:
            self.origin_known.tell(epoch)

    def drop_state_of_another(self, spec: Spec, epoch: int) -> int | None:
        """Drop a loaded state, unless it is of this epoch, or of a moment between two epochs.

        Returns:
            The epoch of a state that was dropped, and from which batches were to come.
        """
        if self.resume is None:
            return None
        cursor, fits = self.resume
        begins = cursor.step == 0 and cursor.order is None  # whichever epoch comes next
        if cursor.epoch == epoch or begins:
            self.resume = Saved(cursor._replace(epoch=epoch, announced=epoch), fits)
            return None
        self.resume = None
        return cursor.epoch if cursor.step and spec.remaining(cursor) != 0 else None

    def fresh_run(self, spec: Spec, kept: Carryover | None) -> Run:
        """Begin the next epoch; with ``seed=`` the sampler follows."""
        if spec.options.seed is not None:
            spec.tell_samplers(self.next_epoch)
        self.source.generators = spec.generators
        run = Run(spec, self.source, self.next_epoch, self.announced, kept=kept)
        run.open(self.shared_seeds, self._carried_places(spec))
        self.begins(run)
        return run

    def resumed_run(self, spec: Spec, cursor: Cursor, kept: Carryover | None) -> Run:
        """Go on from a saved position."""
        self.source.generators = spec.generators
        self.source.restore(cursor.rng)
        if cursor.announced not in (None, self.announced):
            tell_epoch(spec.dataset, cursor.announced)
        self.announced = cursor.announced
        run = Run(spec, self.source, cursor=cursor, kept=kept)
        run.open(self.shared_seeds, self._carried_places(spec))
        return run

    def begins(self, run: Run) -> None:
        """Note the newest run."""
        self.run = run
        self.next_epoch = run.epoch + 1

    def ends(self, spec: Spec, run: Run) -> None:
        """Note the state in which the run leaves the dataset, if the next epoch finds it so."""
        self.carried = {}
        alone = not spec.workers and spec.streams == run.streams == 1
        if spec.lives_on or (alone and spec.options.num_streams is None):
            marks = run.last_marks
            self.carried = {stream: marks.get(stream) for stream in range(run.streams) if marks}

    def refit(self, spec: Spec) -> None:
        """Drop the streams' states if the next epoch has another number of streams."""
        streams, had = spec.streams, len(self.carried)
        if had and had != streams:
            self.carried, marks = {}, self.carried.values()
            if spec.stateful or remembers(marks):
                forgotten(type(spec.dataset).__qualname__, had, streams)

    def accept(self, spec: Spec, state: Any, *, strict: bool, at_epoch_end: str | None) -> Saved:
        """The position of a state that fits; dataset and sampler become what they were then.

        Whatever the program sets from now on counts.
        """
        if at_epoch_end is not None:
            check_choice("at_epoch_end", at_epoch_end, ("stop", "next"))
        if isinstance(state, dict) and not state:
            accepted = self._beginning(spec, 0, live=True)
        else:
            accepted = self._checked(spec, state, strict)
        if not spec.iterable:
            prepare(spec.sampler, accepted.cursor.sampler, self.source, self.run is not None)
        self.source.generators = spec.generators
        cursor, fits = accepted
        self.source.put_back(cursor.rng)
        self.source.load(cursor.rng, fits)
        if cursor.announced is not None:
            tell_epoch(spec.dataset, cursor.announced)
        self.announced = cursor.announced
        return accepted

    def _checked(self, spec: Spec, state: Any, strict: bool) -> Saved:
        if type(state) is OrderedDict:
            state = dict(dict.items(state))
        check_origin(state)
        given = copied(state)
        accepted = fit(given, spec.fingerprint(), strict, spec.length)
        check(spec, self.source, accepted)
        check_checksum(given)  # last: the other errors say more
        return accepted
