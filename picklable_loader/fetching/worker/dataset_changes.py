"""Changes that iterating makes in a dataset without a state, as entries of its stream's states."""

from __future__ import annotations

import pickle
from collections.abc import Set
from typing import Any

from ...datasets.wrapper import keeps_own
from .baseline import Baseline
from .fetch import Job
from .first_baseline import FirstBaseline

NOTHING = pickle.dumps({})


class DatasetChanges:
    """The changes of a stream's dataset: by earlier epochs, and by the one at hand.

    Args:
        job: its dataset is the stream's.
        shared: that is the program's own, and a pickle has it as the iteration has changed it.
        origin: it as it was given, if each epoch has the same object.
    """

    def __init__(self, job: Job, shared: bool, origin: FirstBaseline | None) -> None:
        self._job = job
        self._shared = shared
        self._origin = origin
        #: a worker's copy, which earlier epochs may have changed
        self.lives_on = origin is not None and not shared
        #: it may change while its iterator alone has a state
        self.halved = job.iterable and keeps_own(job.dataset)
        #: what it was before the epoch, if that is needed to go on
        self.beginning: Baseline | None = None
        #: what earlier epochs have changed
        self._reached: dict[str, Any] = {}
        #: with ``num_workers=0``, once the iterator has a state: what ``iter`` has changed, to undo
        self._undone: dict[str, Any] | None = None
        #: attributes that ``iter`` has changed, and that cannot be put back for another ``iter``
        self._lost: Set[str] = frozenset()

    def begin(self, entries: dict[str, Any], by_state: bool) -> None:
        """Note the dataset, before an epoch's ``iter``.

        Args:
            entries: of the state from which the epoch goes on; none if it begins.
            by_state: the dataset is as a state has set it.
        """
        if self._origin is not None:
            self._origin.note_begin(by_state)
        self._reached = self._before_epoch(entries)
        self.beginning = self._undone = None
        if self._shared:
            self.beginning = Baseline(self._job.dataset, self._job.by_value, self._reached)

    def opened(self, has_state: bool) -> None:
        """Note what ``iter`` has changed; ``has_state``: dataset or iterator has one."""
        if has_state and not self.halved:
            self.beginning = None  # the state has the changes
        self._lost = self.beginning.lost() if has_state and self.beginning else frozenset()

    def in_state(self, entries: dict[str, Any], over: bool, fresh: bool) -> dict[str, Any]:
        """Further entries of a state.

        Args:
            entries: those that hold the iterator's position.
            over: the epoch has ended.
            fresh: no sample was drawn yet.
        """
        if over and self._origin is not None:
            self._origin.note_end()
        if entries.keys() & {"dataset", "iterator"}:
            if self.halved:
                return self.by_now() if over else self._before_iter(fresh)
        elif self.lives_on and (over or entries):
            return self.by_now() if over else self._reached
        elif "pickled" in entries and "drift" in self._reached:
            return {"drift": self._reached["drift"]}
        return {}

    def by_now(self) -> dict[str, Any]:
        """The changes of all epochs, as they were noted last.

        In the main process a resume calls ``iter`` once more, with the dataset that a pickle holds.
        """
        if self._origin is None:
            return {}
        by_iter = self.beginning.changed() if self._shared and self.beginning else frozenset()
        return self._origin.reached(as_noted=True, also=by_iter)

    def undone_at(self, state: bytes, left_out: Set[str] | None) -> bytes | Baseline:
        """A state, with the dataset's beginning if the state leaves out some of its attributes.

        A pickle finds the program's own dataset as it is then, and not as it is at this state.

        Args:
            left_out: attributes; None: those that ``iter`` has changed, and no state holds.
        """
        left_out = self._lost if left_out is None else left_out
        return self.beginning.at(state, left_out) if self.beginning and left_out else state

    def _before_epoch(self, entries: dict[str, Any]) -> dict[str, Any]:
        changes = self.by_now()
        if self._shared and entries.keys() & {"begun", "drift", "pickled"}:
            # It was pickled in mid-epoch: this very epoch may have changed it before that.
            changes.pop("drift", None)
            changes |= {name: entries[name] for name in entries.keys() & {"drift"}}
        return changes

    def _before_iter(self, fresh: bool) -> dict[str, Any]:
        """The dataset as ``iter`` has found it, for a state of the iterator alone."""
        if self.lives_on or self.beginning is None:
            return self._reached
        if self._undone is None and not fresh:  # a wrapper has called ``iter`` of its datasets
            self._lost = self.beginning.lost()
            begun = self.beginning.to_undo()
            self._undone = {} if begun is None else {"begun": begun}
            if "drift" in self._reached:
                self._undone["drift"] = self._reached["drift"]
        return self._undone or {}
