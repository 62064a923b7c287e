"""Study: the trials that are done within the time that there is; and what they suggest."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from .subject import Side, Subject
from .trial import FULL, Trial, try_out

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
            # Workers that live on have figures for all epochs.
            options = {"prefetch_budget": "auto", "persistent_workers": number > 0}
            loader = self.subject.build("picklable_loader", number, **options)
            self.by_workers[number] = trial = try_out(loader, share, self.step_s)
            say(_line("picklable_loader", trial))

    def median(self, side: Side) -> float:
        """Batches a second of a side, with the user's number of workers."""
        return statistics.median(trial.rate for trial in self.compared[side])


def candidates(cores: int, own: int) -> list[int]:
    """Numbers of workers that are worth a trial: powers of two up to the cores, and the user's."""
    powers = [2**i for i in range(cores.bit_length()) if 2**i <= cores]
    return sorted({0, *powers, cores, own})


def _line(side: Side, trial: Trial) -> str:
    rate = f"{trial.rate:,.1f} batches/s"
    return f"{side:16s}  num_workers={trial.num_workers:<3d}  {rate:>18s}"


# --- advice --------------------------------------------------------------------------------------

#: fewer workers that reach this share of the best speed are the better choice
_ENOUGH = 0.95
#: waiting for so little of the time, training steps are what limits
_SELDOM = 0.05
#: torch's and our usual budget, for each worker
_USUAL = 2


@dataclass(frozen=True)
class Advice:
    """The advised settings: the smallest number of workers that is about as fast as the fastest.

    The budget is the one that it grew to, and the bytes are for batches as large as the first one;
    both are None without workers.
    """

    num_workers: int
    prefetch_budget: int | None
    prefetch_bytes: int | None
    reasons: tuple[str, ...]


def advise(study: Study) -> Advice:
    """The advice that the trials suggest."""
    trials = study.by_workers
    best = max(trial.rate for trial in trials.values())
    number = min(n for n, trial in trials.items() if trial.rate >= _ENOUGH * best)
    chosen = trials[number]
    reasons = (_why_so_many(study, chosen), *_why_this_budget(chosen))
    if chosen.budget is None:
        return Advice(number, None, None, reasons)
    return Advice(number, chosen.budget, chosen.budget * chosen.batch_bytes, reasons)


def _why_so_many(study: Study, chosen: Trial) -> str:
    if study.left_out:
        return "There was no time to try all numbers: give it more --seconds."
    if chosen.busy is None or chosen.waited is None:
        return "No number of workers is faster: batches cost little, or the cores have other work."
    busy, waited = f"Its workers are busy {chosen.busy:.0%} of the time", f"{chosen.waited:.0%}"
    if study.step_s and chosen.waited <= _SELDOM:
        return f"Training steps wait for batches {waited} of the time: faster ones would not help."
    if chosen.waits:
        return f"{busy}, but compute only {chosen.computing:.0%} of it: {_waiting(study, chosen)}"
    if chosen.busy >= FULL and chosen.num_workers >= study.cores:
        return f"{busy} and there is no core for another: only a cheaper dataset would be faster."
    if chosen.busy >= FULL:
        return f"{busy}, but more of them gained nothing: they share a disk, or the cores."
    if study.step_s:
        return f"{busy}, training steps wait for them {waited} of it; more of them gained little."
    return f"{busy}: what limits is the batches' way through this process, which has one core."


def _waiting(study: Study, chosen: Trial) -> str:
    if chosen.num_workers == max(study.by_workers):
        return (
            "they wait for a disk, the network or a lock. More workers than cores helped, and more "
            f"than {chosen.num_workers} may help further: set num_workers yourself and compare."
        )
    return "they wait for a disk, the network or a lock, which more workers do not make faster."


def _why_this_budget(chosen: Trial) -> tuple[str, ...]:
    if chosen.budget is None:
        return ()
    usual = _USUAL * chosen.num_workers
    if chosen.budget <= usual:
        return (f"A budget of {_USUAL} for each worker was enough: batches cost about the same.",)
    return (
        f"The budget grew from {usual} to {chosen.budget}, since batches cost unequal amounts; "
        '"auto", the default, finds this itself in each epoch.',
    )
