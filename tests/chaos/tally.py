"""Tally: what has happened, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Tally"]


@dataclass
class Tally:
    """What has happened.

    Attributes:
        faults: by name, how many reached somebody who was alive.
        campaigns: runs that were begun.
        restarts: workers that were replaced.
        batches: that were delivered and compared.
        mismatches: that were not those of the quiet run.
        processes: trainers that have left others behind for longer than a second.
        torchs_blocks, blocks: that were left in /dev/shm by torch's shared memory, which the
            portable transport uses, and by the arena.
        failures: in words, each with what replays it.
    """

    faults: Counter[str] = field(default_factory=Counter)
    campaigns: int = 0
    restarts: int = 0
    batches: int = 0
    mismatches: int = 0
    processes: int = 0
    torchs_blocks: int = 0
    blocks: int = 0
    failures: list[str] = field(default_factory=list)

    def fault(self, name: str) -> None:
        """Somebody was hit."""
        self.faults[name] += 1

    @property
    def all_faults(self) -> int:
        return sum(self.faults.values())

    def table(self) -> str:
        """A line for each figure; the last four must be 0."""
        rows = [
            *sorted(self.faults.items()),
            ("faults", self.all_faults),
            ("campaigns", self.campaigns),
            ("workers replaced", self.restarts),
            ("batches compared", self.batches),
            ("torch's blocks left in /dev/shm", self.torchs_blocks),
            ("batches that differ", self.mismatches),
            ("trainers that left processes", self.processes),
            ("blocks left in /dev/shm", self.blocks),
            ("failures", len(self.failures)),
        ]
        return "\n".join(f"{name:32s} {count:9,d}" for name, count in rows)
