"""The epoch that a replica's dataset has been given, and the seed that DataPipes share in it."""

from __future__ import annotations

from typing import Any

from ...datasets.datapipes import seeded
from ...datasets.protocol import set_epoch_of
from ..transport.messages import EpochStart
from .first_baseline import FirstBaseline


class DatasetEpoch:
    """Gives a replica's dataset each epoch once.

    Args:
        dataset: the replica's own.
        has: the epoch that it has; None: none was set.
        origin: it as it was before the first epoch, if somebody needs that.
    """

    def __init__(self, dataset: Any, has: int | None, origin: FirstBaseline | None) -> None:
        self._dataset = dataset
        self._has = has
        self.origin = origin
        #: the epoch at hand
        self.start = EpochStart(0)

    def begin(self, start: EpochStart) -> None:
        """An epoch begins."""
        self.start = start
        self.loaded(self._has)

    def loaded(self, had: int | None) -> None:
        """Give it the epoch at hand, after a state that was saved while it ``had`` that one."""
        self._has = had
        self.reseed()
        self.give(self.start.announced)

    def reseed(self) -> None:
        """Seed a DataPipe for the epoch at hand."""
        if self.start.shared_seed is not None:
            seeded(self._dataset, self.start.shared_seed)

    def give(self, epoch: int | None) -> None:
        """Call its ``set_epoch``, unless it has that epoch; None: none was set."""
        if epoch is None or epoch == self._has:
            return
        self._has = epoch
        if self.origin is None:
            set_epoch_of(self._dataset, epoch)
        else:
            self.origin.set_epoch(epoch)
