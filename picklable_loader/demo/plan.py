"""What the demo's processes have agreed upon: who trains, for how long, and when the blow falls."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["BATCH", "Kind", "Plan", "ROLES", "Role", "WORKERS"]

BATCH = 32
WORKERS = 2

#: whose DataLoader a run uses
Kind = Literal["picklable_loader", "torch"]
#: what happens to a run
Role = Literal["uninterrupted", "killed", "resumed"]

ROLES: tuple[Role, ...] = ("uninterrupted", "killed", "resumed")


@dataclass(frozen=True)
class Plan:
    """The course of one training; steps are counted from its beginning, over all epochs.

    Attributes:
        folder: where checkpoints, journals and results lie.
        epochs: passes over the training images.
        steps_per_epoch: batches in one epoch.
    """

    folder: Path
    epochs: int
    steps_per_epoch: int

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    @property
    def struck_epoch(self) -> int:
        """The epoch in whose middle the run is killed, from 0."""
        return (self.epochs - 1) // 2

    @property
    def saved_at(self) -> int:
        """Steps done when the checkpoint is written: five twelfths into an epoch."""
        return self.struck_epoch * self.steps_per_epoch + self.steps_per_epoch * 5 // 12

    @property
    def killed_at(self) -> int:
        """Steps done when the run is killed: a third of an epoch after the checkpoint.

        As in real life, some work is lost and has to be done again.
        """
        return self.saved_at + self.steps_per_epoch // 3

    @property
    def digits(self) -> Path:
        return self.folder / "digits.pt"

    def checkpoint(self, kind: Kind) -> Path:
        return self.folder / f"{kind}.checkpoint.pt"

    def journal(self, kind: Kind, role: Role) -> Path:
        return self.folder / f"{kind}.{role}.jsonl"

    def weights(self, kind: Kind, role: Role) -> Path:
        return self.folder / f"{kind}.{role}.weights.pt"
