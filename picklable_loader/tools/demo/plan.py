"""The plan that the demo's processes share: who trains, for how long, and when SIGKILL comes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

BATCH = 32
WORKERS = 2
#: images that are trained on, a whole number of batches; the rest of the 1,797 are for testing
TRAINED_ON = 1536
STEPS_PER_EPOCH = TRAINED_ON // BATCH

#: whose DataLoader a run uses
Kind = Literal["picklable_loader", "torch"]
#: what happens to a run
Role = Literal["uninterrupted", "killed", "resumed"]

KINDS: tuple[Kind, ...] = ("picklable_loader", "torch")
ROLES: tuple[Role, ...] = ("uninterrupted", "killed", "resumed")


@dataclass(frozen=True)
class Plan:
    """The course of one training; steps are counted from its beginning, over all epochs.

    Attributes:
        folder: where checkpoints, journals and weights lie.
        epochs: passes over the training images.
    """

    folder: Path
    epochs: int

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * STEPS_PER_EPOCH

    @property
    def struck_epoch(self) -> int:
        """The epoch in whose middle the run is killed, from 0."""
        return (self.epochs - 1) // 2

    @property
    def saved_in(self) -> int:
        """Batches of that epoch that are delivered when the checkpoint is written."""
        return STEPS_PER_EPOCH * 5 // 12

    @property
    def saved_at(self) -> int:
        """Steps done when the checkpoint is written."""
        return self.struck_epoch * STEPS_PER_EPOCH + self.saved_in

    @property
    def killed_at(self) -> int:
        """Steps done when the run is killed: a third of an epoch after the checkpoint.

        As in real life, some work is lost and has to be done again.
        """
        return self.saved_at + STEPS_PER_EPOCH // 3

    @property
    def digits(self) -> Path:
        return self.folder / "digits.pt"

    def checkpoint(self, kind: Kind) -> Path:
        return self.folder / f"{kind}.checkpoint.pt"

    def journal(self, kind: Kind, role: Role) -> Path:
        return self.folder / f"{kind}.{role}.jsonl"

    def weights(self, kind: Kind, role: Role) -> Path:
        return self.folder / f"{kind}.{role}.weights.pt"
