"""Compares the demo's runs: a resumed one with an uninterrupted one, bit for bit."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from .train import ROLES, Kind, Plan


@dataclass
class Record:
    """A run's journal. Losses and indices are by number of step."""

    losses: dict[int, float] = field(default_factory=dict)
    indices: dict[int, list[int]] = field(default_factory=dict)
    #: the checkpoint's figures, if there was one
    saved: dict[str, Any] = field(default_factory=dict)
    #: the part of test images that were recognised, from 0 to 1; NaN if the run did not end
    accuracy: float = float("nan")

    @classmethod
    def read(cls, path: Path) -> Record:
        record = cls()
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if "step" in event:
                record.losses[event["step"]] = float.fromhex(event["loss"])
                record.indices[event["step"]] = event["indices"]
            elif "accuracy" in event:
                record.accuracy = event["accuracy"]
            else:
                record.saved = event
        return record

    def seen(self, steps: range) -> Counter[int]:
        """How often each sample was seen in these steps."""
        return Counter(index for step in steps for index in self.indices[step])


@dataclass(frozen=True)
class Facts:
    """One kind of DataLoader: its resumed run against its uninterrupted one."""

    #: steps after the checkpoint, and how many of them had the very same loss, to the last bit
    steps_compared: int
    steps_equal: int
    largest_difference: float
    #: the steps between checkpoint and death were done again with the same loss
    redone_equal: bool
    #: every final weight is the same, to the last bit
    weights_equal: bool
    #: how many times too often, and too seldom, samples were seen over the same number of steps
    repeated: int
    missed: int
    #: number of samples by how often they were seen
    times_seen: dict[int, int]
    accuracy: float
    uninterrupted_accuracy: float
    checkpoint_bytes: int
    #: the loader's position in the checkpoint; None if it has none
    state_bytes: int | None
    save_ms: float

    @property
    def exact(self) -> bool:
        """The interruption has left no trace."""
        same = self.steps_equal == self.steps_compared and self.redone_equal
        return same and self.weights_equal and self.repeated == self.missed == 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "exact": self.exact}


@dataclass(frozen=True)
class Story:
    """One kind of DataLoader: what was recorded, and what follows from it."""

    uninterrupted: Record
    killed: Record
    resumed: Record
    #: how often the run that lives on in the checkpoint saw each sample, by index
    seen: Counter[int]
    facts: Facts


def gather(plan: Plan, kind: Kind) -> Story:
    """Compare the runs of one kind of DataLoader."""
    uninterrupted, killed, resumed = (Record.read(plan.journal(kind, role)) for role in ROLES)
    later, redone = range(plan.saved_at, plan.steps), range(plan.saved_at, plan.killed_at)
    usual = uninterrupted.seen(range(plan.steps))
    seen = killed.seen(range(plan.saved_at)) + resumed.seen(later)
    differences = [abs(uninterrupted.losses[i] - resumed.losses[i]) for i in later]
    facts = Facts(
        steps_compared=len(later),
        steps_equal=differences.count(0.0),
        largest_difference=max(differences),
        redone_equal=all(killed.losses[i] == resumed.losses[i] for i in redone),
        weights_equal=_same_weights(plan, kind),
        repeated=(seen - usual).total(),
        missed=(usual - seen).total(),
        times_seen=dict(sorted(Counter(seen[i] for i in usual).items())),
        accuracy=resumed.accuracy,
        uninterrupted_accuracy=uninterrupted.accuracy,
        checkpoint_bytes=killed.saved["checkpoint"],
        state_bytes=killed.saved["state"],
        save_ms=killed.saved["milliseconds"],
    )
    return Story(uninterrupted, killed, resumed, seen, facts)


def _same_weights(plan: Plan, kind: Kind) -> bool:
    one, other = (torch.load(plan.weights(kind, role)) for role in ("uninterrupted", "resumed"))
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)
