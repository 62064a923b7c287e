"""Compares the demo's runs: a resumed one with an uninterrupted one, bit for bit."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .train import ROLES, Kind, Plan, Role


@dataclass
class Journal:
    """One run. Losses and indices are by number of step."""

    losses: dict[int, float] = field(default_factory=dict)
    indices: dict[int, list[int]] = field(default_factory=dict)
    #: of the model in the end, and of the checkpoint, if there was one
    figures: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Journal:
        journal = cls()
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if "step" in event:
                journal.losses[event["step"]] = float.fromhex(event["loss"])
                journal.indices[event["step"]] = event["indices"]
            else:
                journal.figures |= event
        return journal

    def seen(self, steps: range) -> Counter[int]:
        """How often each sample was seen in these steps."""
        return Counter(index for step in steps for index in self.indices[step])


@dataclass(frozen=True)
class Comparison:
    """The runs with one kind of DataLoader."""

    runs: dict[Role, Journal]
    #: how often the run that lives on in the checkpoint saw each sample, by index
    seen: Counter[int]
    #: by step after the checkpoint, the difference of the loss
    differences: dict[int, float]
    facts: dict[str, Any]


def compare(plan: Plan, kind: Kind) -> Comparison:
    """Compare the runs with one kind of DataLoader."""
    runs = {role: Journal.read(plan.journal(kind, role)) for role in ROLES}
    usual, killed, resumed = runs.values()
    later = range(plan.saved_at, plan.steps)
    differences = {i: abs(usual.losses[i] - resumed.losses[i]) for i in later}
    wanted = usual.seen(range(plan.steps))
    seen = killed.seen(range(plan.saved_at)) + resumed.seen(later)
    facts = {
        "steps_compared": len(later),
        "steps_equal": [*differences.values()].count(0.0),
        "largest_difference": max(differences.values()),
        # the steps between checkpoint and death, which were done twice
        "redone_equal": all(
            killed.losses[i] == resumed.losses[i] for i in range(plan.saved_at, plan.killed_at)
        ),
        "weights_equal": _same_weights(plan, kind),
        # how many times too often, and too seldom, samples were seen
        "repeated": (seen - wanted).total(),
        "missed": (wanted - seen).total(),
        "uninterrupted_accuracy": usual.figures["accuracy"],
        **killed.figures,
        **resumed.figures,
    }
    same = facts["steps_equal"] == len(later) and facts["redone_equal"] and facts["weights_equal"]
    facts["exact"] = same and facts["repeated"] == facts["missed"] == 0
    return Comparison(runs, seen, differences, facts)


def _same_weights(plan: Plan, kind: Kind) -> bool:
    one, other = (torch.load(plan.weights(kind, role)) for role in ("uninterrupted", "resumed"))
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)
