"""The results of the demo's runs, in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .journal import Record, read
from .plan import ROLES, Kind, Plan, Role


@dataclass(frozen=True)
class Facts:
    """One kind of DataLoader: its resumed run against its uninterrupted one.

    Attributes:
        steps_compared: steps after the checkpoint.
        steps_equal: how many of them had the very same loss, to the last bit.
        largest_difference: between two losses of one step.
        redone_equal: the steps between checkpoint and death were done again with the same loss.
        weights_equal: every final weight is the same, to the last bit.
        repeated: how many times too often samples were seen, over the same number of steps.
        missed: how many times too seldom.
        times_seen: number of samples by how often they were seen.
        accuracy: of the resumed run, on images that were not trained on, from 0 to 1.
        uninterrupted_accuracy: the other one's.
        checkpoint_bytes: size of the file.
        state_bytes: size of the loader's position in it; None if it has none.
        save_ms: milliseconds that writing it took.
    """

    steps_compared: int
    steps_equal: int
    largest_difference: float
    redone_equal: bool
    weights_equal: bool
    repeated: int
    missed: int
    times_seen: dict[int, int]
    accuracy: float
    uninterrupted_accuracy: float
    checkpoint_bytes: int
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
    """One kind of DataLoader: what was recorded, and what follows from it.

    Attributes:
        uninterrupted, killed, resumed: the three runs.
        seen: how often each sample was seen by the run that lives on in the checkpoint, by index.
        facts: the comparison.
    """

    uninterrupted: Record
    killed: Record
    resumed: Record
    seen: Counter[int]
    facts: Facts


def gather(plan: Plan, kind: Kind) -> Story:
    """Compare the runs of one kind of DataLoader."""
    records: dict[Role, Record] = {role: read(plan.journal(kind, role)) for role in ROLES}
    uninterrupted, killed, resumed = (records[role] for role in ROLES)
    usual = _seen(uninterrupted, range(plan.steps))
    seen = _seen(killed, range(plan.saved_at)) + _seen(resumed, range(plan.saved_at, plan.steps))
    later = range(plan.saved_at, plan.steps)
    redone = range(plan.saved_at, plan.killed_at)
    saved = killed.saved or {}
    facts = Facts(
        steps_compared=len(later),
        steps_equal=sum(uninterrupted.losses[i] == resumed.losses[i] for i in later),
        largest_difference=max(abs(uninterrupted.losses[i] - resumed.losses[i]) for i in later),
        redone_equal=all(killed.losses[i] == resumed.losses[i] for i in redone),
        weights_equal=_same_weights(plan, kind),
        repeated=(seen - usual).total(),
        missed=(usual - seen).total(),
        times_seen=dict(sorted(Counter(seen[i] for i in usual).items())),
        accuracy=_known(resumed.accuracy),
        uninterrupted_accuracy=_known(uninterrupted.accuracy),
        checkpoint_bytes=saved["checkpoint"],
        state_bytes=saved["state"],
        save_ms=saved["milliseconds"],
    )
    return Story(uninterrupted, killed, resumed, seen, facts)


def _seen(record: Record, steps: range) -> Counter[int]:
    return Counter(index for step in steps for index in record.indices[step])


def _same_weights(plan: Plan, kind: Kind) -> bool:
    one, other = (torch.load(plan.weights(kind, role)) for role in ("uninterrupted", "resumed"))
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def _known(accuracy: float | None) -> float:
    assert accuracy is not None, "the run has come to its end"
    return accuracy
