"""Campaign: one run, from quiet to verdict."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from .faults import Torment
from .journal import Batches, Journal
from .kinds import Kind
from .lives import Life, quiet
from .processes import TELL, children, fork, members, wait_for_all
from .tally import Tally
from .trainer import train

__all__ = ["Campaign", "quiet_run"]

#: seconds between two faults, on average
_PAUSE_S = 0.008

#: seconds that a trainer that is left alone has, to come to the end of its run
_PATIENCE_S = 120.0

#: seconds within which nothing is left of a trainer that was killed
_GONE_S = 1.0

_SHARED = Path("/dev/shm")


def quiet_run(kind: Kind, folder: Path) -> Batches:
    """The batches of a run to which nothing happens."""
    journal = Journal(folder)
    trainer = fork(partial(train, kind, quiet(kind), journal), journal.output)
    _, status = os.waitpid(trainer, 0)
    if status:
        raise RuntimeError(f"the quiet run of {kind.name} fails:\n{journal.output.read_text()}")
    return journal.load().batches


@dataclass
class Campaign:
    """A run that is tormented.

    Attributes:
        kind: of its loader.
        expected: its batches.
        seed: decides what is done to it.
        folder: where its trainers write to.
        most: faults after which it is left alone.
        tally: everything is counted there.
    """

    kind: Kind
    expected: Batches
    seed: int
    folder: Path
    most: int
    tally: Tally

    def __post_init__(self) -> None:
        self._chance = Random(f"{self.kind.name} {self.seed}")
        self._journal = Journal(self.folder)
        self._faults_before = self.tally.all_faults
        self._failures: list[str] = []
        self._transport = self._chance.choice(("arena", "portable"))
        #: processes that may have left a block of shared memory
        self._makers: set[int] = set()

    def run(self) -> list[str]:
        """Go through with it; returns what is wrong, in words."""
        self.tally.campaigns += 1
        blocks = _blocks()
        while not self._failures and not self._journal.load().finished:
            self._live(Life.drawn(self.kind, self._transport, self._chance))
        self._compare()
        self._remove([block for block in _blocks() - blocks if _maker(block) in self._makers])
        self.tally.restarts += self._journal.restarts()
        return self._failures

    # --- one life of a trainer -------------------------------------------------------------------

    def _live(self, life: Life) -> None:
        trainer = fork(partial(train, self.kind, life, self._journal), self._journal.output)
        self._makers.add(trainer)
        torment = Torment(os.getpid(), trainer, self._chance, self.tally)
        status = None
        while status is None and self.tally.all_faults - self._faults_before < self.most:
            time.sleep(self._chance.expovariate(1 / _PAUSE_S))
            self._makers.update(children(trainer))
            torment.strike()
            status = _status(trainer)
        if status is None:
            torment.relent()
            status = self._left_alone(trainer)
        torment.wake_the_unborn()
        if not wait_for_all(trainer, _GONE_S):
            self.tally.processes += 1
            left = ", ".join(members(trainer))
            self._failures.append(f"a trainer ({life}) has left processes behind: {left}")
            os.killpg(trainer, signal.SIGKILL)
        if status not in (0, signal.SIGKILL):
            self._failures.append(f"a trainer ({life}) has ended with {status}")

    def _left_alone(self, trainer: int) -> int:
        """How it ends now that nothing happens to it any more."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            status = _status(trainer)
            if status is not None:
                return status
            time.sleep(0.002)
        self._failures.append("a trainer hangs")
        os.kill(trainer, TELL)
        time.sleep(1.0)  # it tells where it is
        os.kill(trainer, signal.SIGKILL)
        return os.waitpid(trainer, 0)[1]

    def _remove(self, left: list[str]) -> None:
        """Remove what should not be there.

        Torch removes the name of a block right after it has made it. Whoever is killed in between
        leaves it, which nobody but torch could help: that is for the arena to be better at.
        """
        for block in left:
            (_SHARED / block).unlink(missing_ok=True)
        if self._transport == "portable":
            self.tally.torchs_blocks += len(left)
        elif left:
            self.tally.blocks += len(left)
            self._failures.append(f"/dev/shm has {left}")

    # --- the verdict -----------------------------------------------------------------------------

    def _compare(self) -> None:
        wrong = 0
        for epoch, place, batch in self._journal.delivered():
            self.tally.batches += 1
            wrong += not self._is_expected(epoch, place, batch)
        if not self._failures and not self._as_a_whole(self._journal.load().batches):
            wrong = wrong or 1
        if wrong:
            self.tally.mismatches += wrong
            self._failures.append(f"{wrong} batches are not those of the quiet run")

    def _is_expected(self, epoch: int, place: int, batch: str) -> bool:
        expected: Sequence[str] = self.expected.get(epoch, ())
        if self.kind.unordered:
            return batch in expected
        return place < len(expected) and expected[place] == batch

    def _as_a_whole(self, batches: Batches) -> bool:
        """Nothing is missing, and nothing came twice."""
        if not self.kind.unordered:
            return batches == self.expected
        return {e: Counter(all_) for e, all_ in batches.items()} == {
            e: Counter(all_) for e, all_ in self.expected.items()
        }


def _status(trainer: int) -> int | None:
    """How it has ended, or None."""
    pid, status = os.waitpid(trainer, os.WNOHANG)
    return status if pid else None


def _blocks() -> set[str]:
    """What stands in shared memory under torch's names."""
    return {path.name for path in _SHARED.glob("torch_*")}


def _maker(block: str) -> int:
    """The process that has made a block, which is a part of its name."""
    return int(block.split("_")[1])
