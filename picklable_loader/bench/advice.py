"""Advice: which num_workers and prefetch_budget, and why."""

from __future__ import annotations

from dataclasses import dataclass

from .study import Study
from .trial import Trial

__all__ = ["Advice", "advise"]

#: fewer workers that reach this share of the best speed are the better choice
_ENOUGH = 0.95
#: busy for so much of the time, workers are what limits
_FULL = 0.85
#: torch's and our usual budget, for each worker
_USUAL = 2


@dataclass(frozen=True)
class Advice:
    """What to set.

    Attributes:
        num_workers: the smallest number that is about as fast as the fastest.
        prefetch_budget: what it grew to; None without workers.
        prefetch_bytes: memory that this takes, if all batches are as large as the first one.
        reasons: sentences.
    """

    num_workers: int
    prefetch_budget: int | None
    prefetch_bytes: int | None
    reasons: tuple[str, ...]


def advise(study: Study) -> Advice:
    """What the trials suggest."""
    trials = study.by_workers
    best = max(trial.rate for trial in trials.values())
    number = min(n for n, trial in trials.items() if trial.rate >= _ENOUGH * best)
    chosen = trials[number]
    reasons = (_why_so_many(study, chosen, best), *_why_this_budget(chosen))
    if chosen.budget is None:
        return Advice(number, None, None, reasons)
    return Advice(number, chosen.budget, chosen.budget * chosen.batch_bytes, reasons)


def _why_so_many(study: Study, chosen: Trial, best: float) -> str:
    number = chosen.num_workers
    if chosen.busy is None:
        return "Workers gain nothing here: a batch costs less than it takes to bring it over."
    if study.step_s and best * study.step_s >= _ENOUGH:
        return "The training step is what takes the time: more workers would wait for it."
    if chosen.busy >= _FULL and number >= study.cores:
        return (
            f"Its workers are busy {chosen.busy:.0%} of the time and there is no core for another: "
            "only a cheaper dataset would be faster."
        )
    if chosen.busy >= _FULL:
        return (
            f"Its workers are busy {chosen.busy:.0%} of the time, and more of them gained nothing: "
            "they share something, such as the disk or the processor."
        )
    return (
        f"Its workers are busy {chosen.busy:.0%} of the time: what limits is the way of the "
        "batches through this process, which more workers do not shorten."
    )


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
