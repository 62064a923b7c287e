"""The epoch that ``set_epoch`` has chosen, and when samplers and dataset are given it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..datasets.protocol import has_set_epoch, set_epoch_of
from ..errors import warn
from ..fetching.worker.first_baseline import FirstBaseline
from .spec import Spec


class EpochChoice:
    """The choice of an epoch. A pass does not depend on it: if one goes on, the choice waits."""

    def __init__(self) -> None:
        #: the epoch that samplers and dataset were last given for a pass; None: never
        self.announced: int | None = None
        #: the epoch that was chosen since the newest pass began; None: the one after that pass
        self.chosen: int | None = None
        #: that pass goes on: samplers and dataset are given the choice after it
        self.waits = False
        #: the epoch that the program's dataset was last given
        self.dataset_has: int | None = None
        #: notes what set_epoch changes in it; see `History.origin`, which makes it. None: nobody
        self.origin: FirstBaseline | None = None
        #: the dataset came in a pickle, and another loader may have given it another epoch before
        self._unsure = False

    def saved(self) -> dict[str, Any]:
        """The part of it that a pickle of the loader holds."""
        return {"announced": self.announced, **({"chosen": self.chosen} if self.waits else {})}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Become what `saved` has given."""
        self.announced = self.dataset_has = saved["announced"]
        self.chosen = saved.get("chosen")
        self.waits, self._unsure = self.chosen is not None, True

    def after(self, epoch: int, next_epoch: int) -> dict[str, Any]:
        """The part of a pass's state that says which epoch comes next, unless it is plain.

        ``next_epoch`` is the loader's; later passes may have begun others.
        """
        if self.chosen is not None:
            return {"next_epoch": self.chosen}
        if next_epoch == self.announced:  # it was given at once, as the newest pass was left
            return {"next_epoch": next_epoch}
        return {} if next_epoch == epoch + 1 else {"next_epoch": next_epoch, "counted": True}

    def reaches(self, dataset: Any) -> bool:
        """The dataset is given epochs, and its copies in workers are given the same ones."""
        return self.announced is not None and has_set_epoch(dataset)

    def note_begin(self, chosen: int | None, over: bool) -> None:
        """A pass begins, or goes on from a state that has this choice; or it is over already."""
        self.chosen, self.waits = chosen, chosen is not None and not over

    def choose(self, spec: Spec, epoch: int, after_a_pass: bool, goes_on: bool) -> None:
        """An epoch was chosen, perhaps for after a pass of the loader, which may go on."""
        self.note_begin(epoch if after_a_pass else None, over=not goes_on)
        if not goes_on:
            self._give(spec, epoch)

    def _give(self, spec: Spec, epoch: int) -> None:
        """Give samplers and dataset an epoch."""
        self.announced = epoch
        spec.set_epoch_of_samplers(epoch)
        self._give_dataset(spec, epoch)
        self.waits = False  # not before: a signal may have come, and the next pass does it again

    def give_if_it_waits(self, spec: Spec) -> None:
        """Give them the choice, now that no pass goes on."""
        if self.waits and self.chosen is not None:
            self._give(spec, self.chosen)

    def give_what_is_due(self, spec: Spec) -> None:
        """See that samplers and dataset have their epoch, before a pass begins."""
        self.give_if_it_waits(spec)  # the pass before was not read to its end
        # It went on from another epoch's state; or a signal has stopped `set_epoch` in the middle.
        if self.announced not in (None, self.dataset_has):
            self._give_dataset(spec, self.announced)

    def _give_dataset(self, spec: Spec, epoch: int) -> None:
        if self.origin is None:
            set_epoch_of(spec.dataset, epoch)
        else:
            self.origin.set_epoch(epoch)
        self.dataset_has, self._unsure = epoch, False

    def go_on_at(self, spec: Spec, epoch: int | None) -> None:
        """See that the dataset has the epoch of a state, whose pass goes on."""
        if epoch is None and self.dataset_has is not None and has_set_epoch(spec.dataset):
            _warn_of_no_epoch(spec.dataset, self.dataset_has)
        elif epoch != self.dataset_has or (self._unsure and spec.reads_copies):
            self.put_back(spec, epoch)

    def put_back(self, spec: Spec, epoch: int | None) -> None:
        """Give the dataset the epoch of a state's pass; None: the state has none."""
        if epoch is not None:
            self._give_dataset(spec, epoch)


def _warn_of_no_epoch(dataset: Any, given: int) -> None:
    warn(
        f"the loaded state is of a pass before the first set_epoch(), and the dataset "
        f"{type(dataset).__qualname__} has been given epoch {given} since: nothing can undo that. "
        "If samples depend on it, the resume gives other ones. Call loader.set_epoch() before the "
        "first epoch as well, or load the state into a new loader with a new dataset"
    )
