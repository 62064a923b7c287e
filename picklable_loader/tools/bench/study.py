"""Study: which trials are done, in which order, within the time that there is."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from .subject import Side, Subject
from .trial import Trial, try_out

SIDES: tuple[Side, Side] = ("torch", "picklable_loader")

#: how often both sides are measured against each other, if there is time
_ROUNDS = 3


#: workers for each core that are tried as well where samples wait and do not compute
_FURTHER = (2, 4, 8)


class Study:
    """Trials of a subject.

    Args:
        subject: the user's loader.
        seconds: how long all of it may take, about.
        step_s: seconds that a training step takes.
    """

    def __init__(self, subject: Subject, seconds: float, step_s: float) -> None:
        self.subject = subject
        self.step_s = step_s
        self.cores = len(os.sched_getaffinity(0))
        self.compared: dict[Side, list[Trial]] = {side: [] for side in SIDES}
        self.by_workers: dict[int, Trial] = {}
        self.left_out: list[int] = []
        self._seconds = seconds

    def do(self, say: Callable[[str], None]) -> None:
        """Do the trials, and say each one."""
        numbers = candidates(self.cores, self.subject.loader.num_workers)
        share = self._seconds / (_ROUNDS * len(SIDES) + len(numbers) + len(_FURTHER))
        end, took = time.perf_counter() + self._seconds, 0.0
        for turn in range(_ROUNDS):
            began = time.perf_counter()
            if turn and began + took > end - len(numbers) * share:
                break  # its batches are slow: what time is left is for the numbers of workers
            for side in SIDES[:: -1 if turn % 2 else 1]:
                trial = try_out(self.subject.build(side), share, self.step_s)
                self.compared[side].append(trial)
                say(_line(side, trial))
            took = time.perf_counter() - began
        for number in (*numbers, *(factor * self.cores for factor in _FURTHER)):
            last = self.by_workers[max(self.by_workers)] if self.by_workers else None
            if number not in numbers and not (last and last.waits):
                continue
            if last and time.perf_counter() > end:
                self.left_out.append(number)
                continue
            self.by_workers[number] = trial = self._with(number, share)
            say(_line("picklable_loader", trial))

    def median(self, side: Side) -> float:
        """Batches a second of a side, with the user's number of workers."""
        return statistics.median(trial.rate for trial in self.compared[side])

    def _with(self, number: int, seconds: float) -> Trial:
        # Workers that live on keep their figures from epoch to epoch.
        options = {"prefetch_budget": "auto", "persistent_workers": number > 0}
        loader = self.subject.build("picklable_loader", number, **options)
        return try_out(loader, seconds, self.step_s)


def candidates(cores: int, own: int) -> list[int]:
    """Numbers of workers that are worth a trial: powers of two up to the cores, and the user's."""
    powers = [2**i for i in range(cores.bit_length()) if 2**i <= cores]
    return sorted({0, *powers, cores, own})


def _line(side: Side, trial: Trial) -> str:
    rate = f"{trial.rate:,.1f} batches/s"
    return f"{side:16s}  num_workers={trial.num_workers:<3d}  {rate:>18s}"
