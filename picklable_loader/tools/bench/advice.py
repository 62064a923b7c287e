"""Advice: which num_workers and prefetch_budget, and why."""

from __future__ import annotations

from dataclasses import dataclass

from .study import Study
from .trial import FULL, Trial

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
