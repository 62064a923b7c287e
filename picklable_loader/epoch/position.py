"""Where a pass over a loader's data is: the one answer for iterators and loaders alike."""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, replace
from typing import Any

from ..core.cursor import Cursor, Saved, before_epoch
from ..core.snapshot import to_plain
from ..errors import CannotSaveError, DamagedStateError, warn
from ..rng.generators import RNGS
from ..rng.source import Source
from ..saving.states.tree import copied
from .carryover import Carryover, from_text
from .options import AtEpochEnd
from .run import Run
from .spec import Spec
from .stream_states import savable, warn_of_drift

_PICKLE_INSTEAD = "Pickle the iterator instead of taking its state_dict"


@dataclass(eq=False)
class Position:
    """Where a pass is: it waits at a saved cursor, runs, or is over. Reading it never acts.

    An iterator has one. The loader's `History` has the newest, which may outlive its iterator.
    """

    #: a saved cursor to go on from; None for a pass that was begun here, or has moved on
    start: Saved | None = None
    #: by stream of all ranks, the batches that it had given in the state of all ranks that was
    #: loaded: (2, 1, 2, 1); None: the state was another one
    given: tuple[int, ...] | None = None
    #: None before the first `next` after a load, or after unpickling
    run: Run | None = None
    #: what to do if ``start`` has nothing left to deliver; None: not decided
    at_epoch_end: AtEpochEnd | None = None
    #: it was loaded, and the next ``iter`` goes on from it
    pending: bool = False
    #: without a run: the consumer has got StopIteration
    ended: bool = False
    #: dead if nobody can move it any more; None: nobody could yet
    iterator: weakref.ref[Any] | None = None

    @property
    def waits_at(self) -> Saved | None:
        """The saved cursor that it waits at; None: it has moved on, or was begun here."""
        run = self.run
        return None if run is not None and (run.has_moved or run.finished) else self.start

    def unmoved(self, spec: Spec, source: Source, live: bool) -> dict[str, Any]:
        """The saved form of the cursor that it waits at; it shares nothing with that.

        The generators may have moved: another loader may draw from them. For ``live`` see
        `Run.cursor`; ``spec`` is the one that the pass began with.

        Raises:
            CannotSaveError: it came in a pickle, with objects that no state can hold.
        """
        assert self.start is not None
        cursor, fits = self.start
        cursor = cursor._replace(rng=source.as_now(cursor.rng))
        order = cursor.order or {}
        if live:
            given = to_plain(cursor, fits)
            return given if "iterator" in order else copy.deepcopy(given)
        warn_of_drift(spec, cursor.streams, cursor.dataset_rng)
        if "iterator" in order and "log" not in order:
            raise CannotSaveError(
                "the sampler's iterator",
                "it was restored from a pickle and cannot be replayed",
                _PICKLE_INSTEAD,
            )
        if "iterator" in order:
            order = {name: value for name, value in order.items() if name != "iterator"}
            cursor = cursor._replace(order=order)
        cursor = cursor._replace(streams=savable(cursor.streams, live=False))
        try:
            plain: dict[str, Any] = copied(to_plain(cursor, fits))
        except DamagedStateError as error:
            why = "it came in a pickle, and is no plain value"
            raise CannotSaveError(error.field, why, _PICKLE_INSTEAD) from None
        if source.seed is None:
            own = {name: text for name, text in plain["rng"].items() if name in RNGS}
            plain["rng"] = {**source.given(), **own}
        return plain

    @property
    def seed(self) -> int | None:
        """The ``seed=`` of the state that it waits at; None if there is none."""
        return None if self.start is None else self.start.fits.get("seed")

    def agree(self, seed: int) -> None:
        """Take the seed that the ranks have agreed on, for a state of before they had one."""
        assert self.start is not None
        self.start = self.start._replace(fits={**self.start.fits, "seed": seed})

    @property
    def over(self) -> bool:
        """The epoch is over, and the consumer has got StopIteration."""
        return self.ended if self.run is None else self.run.finished

    @property
    def epoch(self) -> int:
        """The epoch of the pass, wherever the next batch comes from."""
        if self.run is not None:
            return self.run.epoch
        assert self.start is not None
        return self.start.cursor.epoch

    def next_epoch(self) -> int:
        """The loader's next epoch when the pass ended, which is over."""
        if self.run is not None:
            return self.run.next_epoch
        assert self.start is not None
        cursor = self.start.cursor
        return cursor.epoch + 1 if cursor.next_epoch is None else cursor.next_epoch

    def leads_to(self, epoch: int) -> None:
        """Note the epoch that was chosen to follow it; see `next_epoch`."""
        if self.run is not None:
            self.run.next_epoch = epoch
        elif self.start is not None:
            cursor, fits = self.start
            self.start = Saved(cursor._replace(next_epoch=epoch), fits)

    def set_epoch(self, epoch: int, persistent: bool, seeded: bool) -> None:
        """The program has chosen the epoch of a state, which may be the start of another one.

        Args:
            epoch: the one that was chosen.
            persistent: the workers are.
            seeded: the loader has a ``seed=``. Else persistent workers have the base seed of their
                next epoch between two, whichever that is.
        """
        assert self.start is not None
        cursor, fits = self.start
        if cursor.epoch != epoch and cursor.base_seed is not None and (seeded or not persistent):
            # A pass has begun there, with its epoch's seed, and has delivered nothing.
            started = cursor.base_seed if cursor.worker_seed is None else cursor.worker_seed
            worker_seed = started if persistent else None
            cursor = cursor._replace(base_seed=None, worker_seed=worker_seed)
        cursor = cursor._replace(epoch=epoch, announced=epoch, next_epoch=None)
        self.start = Saved(cursor, fits)
        if not before_epoch(cursor):
            self.at_epoch_end = "stop"  # the program has said which epoch it is in

    def ends_before(self, spec: Spec, epoch: int) -> bool:
        """The program has chosen the epoch after a state's pass, which is at its end.

        The pass is to end first: it leaves sampler, generators and dataset to that epoch. False:
        it is in the middle, or leaves nothing.
        """
        assert self.start is not None
        if not (spec.leaves_traces and spec.at_the_end(self.start.cursor)):
            return False
        self.leads_to(epoch)
        self.at_epoch_end = "next"
        return True

    @property
    def in_place(self) -> bool:
        """It goes on, and reads the program's own dataset, which a pickle has as it is then."""
        run = self.run
        return not (run is None or run.finished or run.spec.reads_copies)

    @property
    def midway(self) -> bool:
        """It reads a stream of that dataset."""
        run = self.run
        return run is not None and self.in_place and run.spec.iterable and run.streams.total == 1

    @property
    def _unbegun(self) -> Cursor | None:
        """The cursor of a pass that goes on, and has not been asked for a batch here."""
        begun = self.run is not None or self.ended
        return None if begun or self.start is None else self.start.cursor

    def unopened(self, spec: Spec) -> bool:
        """It was unpickled in mid-epoch and not moved, and its workers change the next epoch."""
        cursor, shows = self._unbegun, spec.streamed or spec.has_worker_states
        return shows and cursor is not None and cursor.base_seed is not None

    def waits_for_feedback(self, spec: Spec) -> bool:
        """It waits after an epoch's last batch, about which the sampler is yet to hear."""
        cursor = self._unbegun
        return cursor is not None and cursor.feedback is not None and spec.is_over(cursor)

    @property
    def orphaned(self) -> bool:
        """Its iterator is gone: nobody can move it any more."""
        return self.iterator is None or self.iterator() is None

    def as_begun(self, spec: Spec) -> Spec:
        """The loader's settings for the pass that waits: a changed batch size may be too late."""
        assert self.start is not None
        cursor, fits = self.start
        if before_epoch(cursor) or fits.get("batch_size") == spec.grouping.batch_size:
            return spec
        return replace(spec, begun_size=fits.get("batch_size"))

    def at(self, spec: Spec) -> tuple[int, int]:
        """Epoch and step at which it goes on."""
        waits, run = self.waits_at, self.run
        if waits is None:
            assert run is not None
            return run.epoch, run.step
        choice = self.at_epoch_end or (spec.options.at_epoch_end if self.pending else "stop")
        return self.as_begun(spec).epoch_and_step(waits.cursor, choice)

    def was_at_the_end(self, run: Run) -> bool:
        """Its pass was begun from a state at an epoch's end, where no rank has a batch left."""
        spec = run.spec
        if not (run.start.step or run.batches == 0):  # see Spec.position
            return False
        if spec.shard.world == 1 or self.start is None:
            return True
        return spec.is_over(self.start.cursor)

    def warn_of_a_look(self, next_epoch: int, chosen: int | None) -> None:
        """Warn, as the next epoch begins, if this pass has a state's position and gave one batch.

        That was ``next(iter(loader))``, perhaps, to see a batch. Without a length, a program often
        leaves a pass by itself. So does one that has ``chosen`` a later epoch by `set_epoch`.
        """
        run = self.run
        if run is None or run.start.step == 0 or run.finished:
            return
        if chosen is not None and chosen > run.epoch:
            return
        if run.step == run.start.step + 1 and run.schedule.remaining():
            warn(
                f"the pass that a state had begun at step {run.start.step} of epoch {run.epoch} is "
                f"left after one batch: this iter(loader) begins epoch {next_epoch}, and the other "
                "batches do not come. If that was a look at a batch, load the state after it; or "
                "train with the iterator that has given it"
            )

    def carryover(self) -> Carryover:
        """The seeds and generators that it leaves to the next epoch of persistent workers."""
        run = self.run
        if run is not None:
            return Carryover(run.base_seed, run.worker_seed, None, run.worker_states)
        assert self.start is not None
        cursor = self.start.cursor
        seed = cursor.base_seed or 0
        worker_seed = seed if cursor.worker_seed is None else cursor.worker_seed
        return Carryover(seed, worker_seed, None, from_text(cursor.workers))

    @property
    def unpickled_carryover(self) -> Carryover | None:
        """The carryover of a pass that was unpickled, and has not moved since; else None."""
        start = self.start if self.run is None else None
        return None if start is None or start.cursor.base_seed is None else self.carryover()

    def budget(self, spec: Spec, carryover: Carryover | None) -> int:
        """The prefetch budget that its run will begin with; ``carryover``: of its workers."""
        feedback = None if self.start is None else self.start.cursor.feedback
        if feedback is not None:
            return int(feedback["budget"])
        return ((carryover and carryover.policy) or spec.policy()).budget

    def remaining(self, spec: Spec) -> int | None:
        """Batches still to be delivered in the epoch; None where the sampler has no length."""
        if self.over:
            return 0
        if self.run is not None:
            done, batches = self.run.step, self.run.batches
            return self.run.schedule.remaining() if batches is None else max(0, batches - done)
        assert self.start is not None
        return self.as_begun(spec).remaining(self.start.cursor)
