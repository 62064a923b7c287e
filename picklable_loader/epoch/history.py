"""The part of a loader that a pass leaves to the next one, and that pickles and states save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.checks import check_choice
from ..core.cursor import Cursor, Saved, before_epoch
from ..core.deliveries import check_behind
from ..core.seeds import next_base_seed
from ..core.snapshot import from_plain, to_plain
from ..datasets.datapipes import SharedSeeds
from ..errors import CannotSaveError
from ..fetching.worker.first_baseline import FirstBaseline
from ..orders.memory import prepare
from ..orders.other_iterators import forget
from ..orders.sampler_facts import warn_of_settings
from ..rng.source import Source
from .accept import accept
from .carryover import Carryover, positions_left, streams_left
from .changed_data import watch_replay
from .fits import check_fits, fit, own_streams
from .options import AtEpochEnd
from .position import Position
from .run import Run
from .set_epoch import EpochChoice
from .spec import Spec
from .stream_states import (
    as_left,
    brought,
    kept_of,
    read,
    remembers,
    settle,
    state_now,
    warn_of_forgotten,
    warn_of_lengths,
    warn_of_used,
)


class History:
    """State of one loader that changes between its passes. Each change is one method."""

    def __init__(self, source: Source) -> None:
        #: of the loader's random draws
        self.source = source
        #: number of the epoch that the next ``iter`` begins, unless a state was loaded
        self.next_epoch = 0
        #: what `set_epoch` has chosen
        self.choice = EpochChoice()
        #: by stream, the state in which the next epoch finds the dataset, if it lives on
        self.next_states: dict[int, Any] = {}
        #: the newest pass, or the state that was loaded for the next one; None: between two passes
        self.position: Position | None = None
        #: after unpickling, what persistent workers would go on with; None: no pass has left any
        self.carryover: Carryover | None = None
        #: see `Cursor.draws_as`: that of a state that it went on from; "": the loader's own
        self.draws_as: str | None = ""
        #: it was pickled at a `Position.midway`: workers carry their copies to the next epoch
        self.midway = False
        #: what epochs had done to the dataset before it was pickled; see `FirstBaseline.past`
        self.past: Mapping[str, Sequence[str]] = {}
        #: the dataset of this process is as an epoch's middle has left it
        self.left = False
        # No pickle holds the rest.
        #: the sampler was iterated since the program has built it; and a pass before the newest
        #: one has read the dataset
        self.iterated = self._passed = False
        #: by stream, the state then of a dataset that no worker has a copy of; see `kept_of`
        self.built: dict[int, Any] | None = {}
        #: entries of a state that undo what `attached.take_over` has made of the dataset
        self.taken_over: dict[str, Any] = {}
        self.shared_seeds = SharedSeeds(source)

    # --- saving ----------------------------------------------------------------------------------

    def saved(self, carryover: Carryover | None) -> dict[str, Any]:
        """The part of it that a pickle holds; ``carryover`` is that of persistent workers."""
        resume, choice, carryover = None, None, carryover or self.carryover
        position = self.position
        if self.resume is not None and position is not None:
            cursor, fits = self.resume
            resume = to_plain(cursor._replace(rng=self.source.as_now(cursor.rng)), fits)
            choice = position.at_epoch_end
        elif carryover is None and position is not None:
            carryover = position.unpickled_carryover
        return {
            "next_epoch": self.next_epoch,
            **self.choice.saved(),
            "resume": resume,
            "resume_at_end": choice,
            **(self.source.saved() if resume is None else {}),
            "carried": self.next_states,
            "carryover": carryover and carryover.to_plain(),
            **({"draws_as": self.draws_as} if self.draws_as != "" else {}),
            **({"left": True} if self.left or (position and position.in_place) else {}),
            **({"midway": True} if self.midway or (position and position.midway) else {}),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Become what `saved` has given."""
        self.next_epoch, self.next_states = saved["next_epoch"], saved["carried"]
        self.choice.restore(saved)
        self.draws_as, self.midway = saved.get("draws_as", ""), saved.get("midway", False)
        self.past, self.left = saved.get("past", {}), saved.get("left", False)
        carryover = saved.get("carryover")  # golden pickles have none
        self.carryover = carryover and Carryover.from_plain(carryover)
        self.restore_position(saved)
        self.source.become(saved)
        if self.resume is not None:
            self.source.load(self.resume.cursor.rng, self.resume.fits)

    def restore_position(self, saved: Mapping[str, Any]) -> None:
        """Become what `saved` has given, in the state that the next ``iter`` goes on from only."""
        if saved["resume"] is not None:
            start, choice = from_plain(saved["resume"], live=True), saved["resume_at_end"]
            self.position = Position(start, at_epoch_end=choice, pending=True)

    # --- reading ---------------------------------------------------------------------------------

    @property
    def resume(self) -> Saved | None:
        """The state that the next ``iter`` goes on from; None: it begins an epoch."""
        position = self.position
        return position.start if position is not None and position.pending else None

    @property
    def passed(self) -> bool:
        """A pass that has read the dataset is behind the loader."""
        return self._passed or (self.position is not None and self.position.over)

    def at(self, spec: Spec) -> tuple[int, int]:
        """Epoch and step of the newest pass; if there is none, of the next ``iter``."""
        if self.position is None or self.position.over:
            return self.next_epoch, 0
        return self.position.at(spec)

    def origin(self, spec: Spec) -> FirstBaseline | None:
        """An iterable-style dataset as it was before the loader's first epoch in this process."""
        if self.choice.origin is None and spec.iterable and not spec.stateful:
            self.choice.origin = FirstBaseline(spec.dataset, spec.options.by_value, self.past)
        return self.choice.origin

    def past_by_now(self) -> Mapping[str, Sequence[str]]:
        """Changes of the program's own dataset by epochs; see `FirstBaseline.past`."""
        return self.past if self.choice.origin is None else self.choice.origin.past()

    def state(self, spec: Spec, position: Position | None, behind: int = 0) -> dict[str, Any]:
        """The state to go on from: of a pass, or of the next one if that is over."""
        if position is None:
            check_behind(behind, 0)
            return to_plain(*self._beginning(spec, self.next_epoch, live=False))
        if position.over and not behind:
            return to_plain(*self.following(spec, position, live=False))
        return self.snapshot(spec, position, False, behind)

    def snapshot(
        self, spec: Spec, position: Position, live: bool, behind: int = 0
    ) -> dict[str, Any]:
        """The state of a pass as it is, over or not; ``spec`` is the one that it began with.

        For ``live`` and ``behind`` see `Run.cursor`.
        """
        waits, run, over = position.waits_at, position.run, position.over
        if over and (behind or self.resume is None):
            self._check_newest(spec, position)
        # Once `iter` was called, the loaded cursor does not fit the objects that it has moved: the
        # sampler and dataset that a pickle holds, and a sampler's iterator that came in a pickle.
        has_objects = waits is not None and (live or "iterator" in (waits.cursor.order or ()))
        if waits is not None and (run is None or not has_objects):
            check_behind(behind, 0)
            state = position.unmoved(spec, self.source, live)
        else:
            assert run is not None
            warn_of_settings(run.spec.sampler, run.settings)
            state = to_plain(*run.saved(live, behind))
        if self.resume is None:
            state.pop("counted", None)
            next_epoch = position.next_epoch() if over else self.next_epoch
            state |= self.choice.after(position.epoch, next_epoch)
        return state

    def following(self, spec: Spec, position: Position, live: bool) -> Saved:
        """The start of the epoch after a pass that is over; ``spec`` is the one of now.

        Raises:
            CannotSaveError: a later pass has begun, and has changed what that epoch begins with.
        """
        self._check_newest(spec, position)
        newest = position is self.position
        epoch = self.next_epoch if newest else position.next_epoch()
        # with a seed each epoch begins with its own
        rng = {} if self.source.seed is not None else self.source.state(spec.moves)
        sampler = spec.unstarted(self.source, True)
        fields = self._streams_left(spec, live)
        return self._start_of(spec, epoch, rng, sampler, position.carryover(), fields)

    def _check_newest(self, spec: Spec, position: Position) -> None:
        """Raise CannotSaveError if a later pass may have changed what a pass that is over needs."""
        if position is not self.position and spec.leaves_traces:
            raise CannotSaveError(
                "the iterator",
                f"its epoch {position.epoch} is over, and the loader has gone on: its generators, "
                "sampler or dataset are no longer what the next epoch began with",
                "Take the state before the next iter(loader), or that of the newest iterator",
            )

    def _beginning(self, spec: Spec, epoch: int, live: bool) -> Saved:
        self.source.generators = spec.generators
        rng = self.source.state(spec.moves)
        sampler = spec.unstarted(self.source, self.iterated, live)
        left = (None, {}) if live else (self.carryover, self._streams_left(spec, live))
        return self._start_of(spec, epoch, rng, sampler, *left)

    def _drawing(self, spec: Spec) -> str | None:
        return spec.draws_as if self.draws_as == "" else self.draws_as

    def _start_of(
        self,
        spec: Spec,
        epoch: int,
        rng: dict[str, Any],
        sampler: dict[str, Any],
        left: Carryover | None,
        fields: dict[str, Any],
    ) -> Saved:
        """The start of an epoch; ``left`` by the one before, to persistent workers."""
        draws_as, fits = self._drawing(spec), spec.fingerprint()
        if left is not None and draws_as == "persistent_workers":
            fields |= left.to_plain()
            seeded = self.source.seed is not None  # then each epoch has seeds of its own
            fields["base_seed"] = None if seeded else next_base_seed(left.base_seed)
        cursor = Cursor(
            epoch,
            rng=rng,
            sampler=sampler,
            announced=self.choice.announced,
            rank=spec.rank if spec.shard.world > 1 else None,
            draws_as=draws_as if spec.shows_draws else None,
            **fields,
        )
        self.source.fits = dict(fits)
        return Saved(cursor, fits)

    def _streams_left(self, spec: Spec, live: bool) -> dict[str, Any]:
        drift = () if spec.workers or live else self.past_by_now().get("changed", ())
        states = self.next_states
        if self.left and self.position is None and not live:
            states = as_left(spec, states, self.choice.dataset_has)
        return streams_left(spec, states, live, drift)

    # --- moving ----------------------------------------------------------------------------------

    def choose(self, spec: Spec, epoch: int) -> int | None:
        """``set_epoch``: the next pass is of this epoch; samplers and dataset are given it.

        If a pass goes on, they are given it after that pass. A state that was loaded is dropped,
        unless it is of this epoch, of a moment between two, or of another epoch's end.

        Returns:
            The epoch of a state that was dropped, and from which batches were to come.
        """
        position, dropped = self.position, None
        goes_on = position is not None and not (
            position.pending or position.over or position.orphaned
        )
        if position is not None and self.resume is not None:
            goes_on, dropped = self._for_loaded(spec, position, epoch)
        elif position is not None and not position.over and position.orphaned:
            self._leave(spec, position)
        after_a_pass = self.position is not None and (goes_on or self.resume is None)
        self.next_epoch, self.choice.announced = epoch, self.choice.announced if goes_on else epoch
        if after_a_pass and position is not None and position.over:
            position.leads_to(epoch)
        self.choice.choose(spec, epoch, after_a_pass, goes_on)
        return dropped

    def _leave(self, spec: Spec, position: Position) -> None:
        """Have the next epoch begin with what a pass has made that nobody can move any more."""
        if not spec.reads_copies:
            self.next_states = state_now(spec, self.choice.dataset_has)
            self.left = True
        self.carryover, self.position, self._passed = position.carryover(), None, True

    def _for_loaded(self, spec: Spec, position: Position, epoch: int) -> tuple[bool, int | None]:
        """Whether the state's pass goes on until the chosen epoch; the epoch if it is dropped."""
        assert position.start is not None
        cursor, seeded = position.start.cursor, self.source.seed is not None
        if cursor.epoch == epoch or before_epoch(cursor):
            position.set_epoch(epoch, self._drawing(spec) == "persistent_workers", seeded)
            return False, None
        if position.ends_before(spec, epoch):
            return True, None
        self.position = None
        had_effects = cursor.step or spec.streamed or not spec.known
        return False, cursor.epoch if had_effects and spec.remaining(cursor) != 0 else None

    def fresh_run(self, spec: Spec, carryover: Carryover | None) -> Run:
        """The next epoch, begun; with ``seed=`` the sampler follows."""
        position, left = self.position, None
        if position is not None:
            position.warn_of_a_look(self.next_epoch, self.choice.chosen)
            waits = position.waits_for_feedback(spec)
            left = self.resumed_run(spec, position, carryover) if waits else position.run
        if left is not None and position is not None:
            if not position.orphaned:
                left.read_epoch()
            left.leave_sampler()  # a new pass moves it next: iterators note how they leave it
            left.hear_the_end()
            self._passed |= left.step > 0
        self.choice.give_what_is_due(spec)
        if spec.options.seed is not None:
            spec.set_epoch_of_samplers(self.next_epoch)
        draws_as = self._drawing(spec)
        if carryover is None and draws_as == "persistent_workers":  # they have ended, or never were
            carryover = self.carryover if position is None else position.carryover()
        start = Cursor(self.next_epoch, announced=self.choice.announced, draws_as=draws_as)
        after_left = self.left or (left is not None and left.midway)
        return self._opened(Run(spec, self.source, start, carryover, False, after_left))

    def after_unpickling(self, spec: Spec) -> tuple[Saved | None, Carryover | None]:
        """The start of the next epoch after a pass that has not moved since it was unpickled.

        Persistent workers would have gone on with what the epoch has left them, for example its
        base seed; new ones begin with that. The epoch of a later set_epoch counts.
        """
        position = self.position
        if position is None:
            return None, self.carryover
        if position.waits_at is None:
            return None, None
        carryover = position.unpickled_carryover
        if not position.over or self.next_epoch != position.epoch + 1:
            return None, carryover
        self.refit(spec)
        return self.following(spec, position, live=True), carryover

    def resumed_run(self, spec: Spec, position: Position, carryover: Carryover | None) -> Run:
        """The pass that goes on from the state that it waits at, begun."""
        assert position.start is not None
        spec = position.as_begun(spec)
        cursor, fits = position.start
        if spec.shared:
            position.start = own_streams(spec, fit(position.start, spec, True))
            cursor = position.start.cursor
        else:
            check_fits(spec.fingerprint(), fits)
        if spec.shows_draws:
            self.draws_as = "" if cursor.draws_as == spec.draws_as else cursor.draws_as
        self.source.restore(cursor.rng)
        self.choice.go_on_at(spec, cursor.announced)
        if cursor.streams and (spec.lives_on or self.midway):
            # the pass may be left, and begun anew
            self.next_states = brought(read(cursor.streams)) or self.next_states
        if spec.options.seed is not None and "sampler_state" in (cursor.order or {}):
            spec.set_epoch_of_samplers(cursor.epoch)  # torchdata's states lack the epoch
        run = self._opened(Run(spec, self.source, cursor, carryover))
        # What the program sets on the sampler from now on counts.
        watch_replay(spec, cursor, run.leave_sampler, bool(self.source.unpickled))
        position.run = run
        if position.pending:
            position.pending = False
            if self.position is position:
                self.note_begin(position)
        return position.run

    def _opened(self, run: Run) -> Run:
        self.source.generators = run.spec.generators
        if not self.iterated and not run.spec.reads_copies:
            self.built = kept_of(state_now(run.spec, self.choice.dataset_has))
        self.iterated, self.taken_over = True, {}
        run.open(self.shared_seeds, positions_left(run.spec, self.next_states))
        return run

    def note_begin(self, position: Position) -> None:
        """A pass has begun, or goes on from a state: it is the newest one."""
        cursor = Cursor() if position.start is None else position.start.cursor
        self.choice.note_begin(None if cursor.counted else cursor.next_epoch, position.over)
        self.position, self.carryover, self.left = position, None, False
        self.next_epoch = position.epoch + 1 if cursor.next_epoch is None else cursor.next_epoch

    def note_end(self, spec: Spec, run: Run) -> None:
        """Note the state in which the run leaves the dataset, if the next epoch finds it so."""
        self.next_states, self.midway = {}, self.midway and spec.workers > 0
        run.next_epoch = self.next_epoch
        alone = not spec.reads_copies and spec.streams.total == run.streams.total == 1
        if run.finished and run.batches is not None:
            warn_of_lengths(spec.dataset, run.wrong_lengths())
        if spec.streamed and (spec.lives_on or self.midway or alone):
            states, streams = run.last_states, len(run.streams)
            known = any(stream in states for stream in range(streams))
            self.next_states = {stream: states.get(stream) for stream in range(streams) if known}
            if streams == len(spec.streams) and run.streams != spec.streams:
                self._forget(spec, run.streams.total)  # as many of this rank, and other ones
        if self.position is not None and self.position.run is run:
            self.choice.give_if_it_waits(spec)

    def refit(self, spec: Spec) -> None:
        """Drop the streams' states if the next epoch has another number of streams."""
        if (had := len(self.next_states)) not in (0, len(spec.streams)):
            self._forget(spec, had)

    def _forget(self, spec: Spec, had: int) -> None:
        states, self.next_states = self.next_states.values(), {}
        if self.midway:
            self.midway = False
            settle(spec.dataset, states)
        if spec.stateful or remembers(states):
            warn_of_forgotten(spec.dataset, had, spec.streams.total)

    def load(
        self, spec: Spec, state: Any, strict: bool, choice: AtEpochEnd | None, of: Position | None
    ) -> Position:
        """The position of a state that fits; dataset and sampler become what they were then.

        Whatever the program sets from now on counts.

        Args:
            spec: how the loader is set up.
            state, strict, choice: see `DataLoader.load_state_dict`; the last is ``at_epoch_end``.
            of: the position of the iterator that loads it; None: the loader does.
        """
        check_choice("at_epoch_end", choice, ("stop", "next", None))
        start, given = accept(
            spec, self.source, state, strict, lambda: self._beginning(spec, 0, live=True)
        )
        cursor, fits = start
        if not spec.iterable:
            prepare(spec.sampler, cursor.sampler, self.source, self.iterated)
            forget(spec.sampler)
        self.source.generators = spec.generators
        self.source.put_back(cursor.rng)
        self.source.load(cursor.rng, fits)
        self.choice.put_back(spec, cursor.announced)
        self.choice.announced = cursor.announced
        position = Position(start, given, at_epoch_end=choice, pending=True)
        if of in (None, self.position):
            # Epochs have left them, here or in a pickle. A state of before the first one has none.
            moved = self.next_states or (self.position is not None and self.resume is None)
            used = moved and spec.stateful and not (self.iterated or spec.reads_copies)
            if (used or self.built is None) and not cursor.streams:
                warn_of_used(spec.dataset)
            self.next_states = {} if cursor.streams else self.built or {}
            if spec.reads_copies and self.next_states:  # since a num_workers that was set meanwhile
                settle(spec.dataset, self.next_states.values())
                self.next_states = {}
            self.note_begin(position)
        return position
