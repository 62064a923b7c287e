"""Measure your own loader against torch's, and suggest num_workers and prefetch_budget."""

from __future__ import annotations

import argparse
import sys
import textwrap
import traceback
from dataclasses import asdict
from typing import Any

from ...saving.pickles.size import in_words
from ..table import Table, complain, number_from, show
from .study import SIDES, Advice, Study, advise
from .subject import BenchError, find
from .trial import Trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        help="a function without arguments that returns your DataLoader, torch's or ours",
    )
    parser.add_argument(
        "--seconds",
        type=number_from(1e-3),
        default=30.0,
        metavar="S",
        help="how long to measure, about (default: %(default)g)",
    )
    parser.add_argument(
        "--step-ms",
        type=number_from(0),
        default=0.0,
        metavar="MS",
        help="how long your training step takes, in which workers go on (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(options: argparse.Namespace) -> int:
    """Measure, and print what was found: 0; 2 if nothing can be measured."""
    try:
        study = Study(find(options.function), options.seconds, options.step_ms / 1e3)
        study.do(lambda said: print(said, file=sys.stderr, flush=True))
    except BenchError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        return complain(f"{options.function}: {error}")
    advice = advise(study)
    tables = [_comparison(options.function, study), _by_workers(study), _suggested(advice)]
    show(tables, _data(options.function, study, advice), options.json)
    return 0


def _data(name: str, study: Study, advice: Advice) -> dict[str, Any]:
    """All figures; rates are batches a second."""
    return {
        "function": name,
        "cores": study.cores,
        "samples": study.subject.samples,
        "step_s": study.step_s,
        "num_workers": study.subject.loader.num_workers,
        "times_as_fast": study.median("picklable_loader") / study.median("torch"),
        "compared": {side: [_trial(t) for t in study.compared[side]] for side in SIDES},
        "by_workers": [_trial(trial) for trial in study.by_workers.values()],
        "left_out": study.left_out,
        "suggested": asdict(advice),
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {**asdict(trial), "rate": trial.rate}


def _comparison(name: str, study: Study) -> Table:
    """Both sides with the user's own arguments."""
    samples = study.subject.samples
    length = "a stream of samples" if samples is None else f"{samples:,} samples"
    size = in_words(study.compared["torch"][0].batch_bytes)
    step = f", training steps of {study.step_s * 1e3:g} ms" if study.step_s else ""
    title = f"{name}: {length}, batches of {size}{step}; {study.cores} cores"
    trials = [study.compared[side] for side in SIDES]
    rates = [[trial.rate for trial in of_side] for of_side in trials]
    gain = study.median("picklable_loader") / study.median("torch")
    firsts = [min(trial.first_s for trial in of_side) * 1e3 for of_side in trials]
    workers = f"as it is, num_workers={study.subject.loader.num_workers}"
    rows = [
        (workers, "torch DataLoader", "picklable_loader"),
        ("batches/s", *(f"{study.median(side):,.1f}" for side in SIDES), f"{gain:.2f} ×"),
        ("slowest and fastest trial", *(f"{min(each):,.1f}, {max(each):,.1f}" for each in rates)),
        ("first batch", *(f"{first:,.0f} ms" for first in firsts)),
    ]
    return Table(title, rows)


def _by_workers(study: Study) -> Table:
    rows = [("num_workers", "batches/s", "busy (computing)", "budget")]
    for number, trial in study.by_workers.items():
        busy = "–" if trial.busy is None else f"{trial.busy:.0%}"
        busy += "" if trial.computing is None else f" ({trial.computing:.0%})"
        budget = "–" if trial.budget is None else str(trial.budget)
        rows.append((str(number), f"{trial.rate:,.1f}", busy, budget))
    numbers = ", ".join(map(str, study.left_out))
    late = f"; no time was left for num_workers={numbers}" if numbers else ""
    return Table(f"picklable_loader{late}", rows)


def _suggested(advice: Advice) -> Table:
    title = f"Suggested: num_workers={advice.num_workers}"
    if advice.prefetch_budget is not None:
        title += f", prefetch_budget={advice.prefetch_budget}"
    if advice.prefetch_bytes:
        title += f" (up to {in_words(advice.prefetch_bytes)} of batches)"
    return Table(title, [(line,) for line in textwrap.wrap(" ".join(advice.reasons), 94)])
