"""Measure your own loader against torch's, and suggest num_workers and prefetch_budget."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import traceback
from dataclasses import asdict
from typing import Any

from ...saving.pickles.size import in_words
from ..table import complain
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
        type=_seconds,
        default=30.0,
        metavar="S",
        help="how long to measure, about (default: %(default)g)",
    )
    parser.add_argument(
        "--step-ms",
        type=_milliseconds,
        default=0.0,
        metavar="MS",
        help="how long your training step takes, in which workers go on (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(options: argparse.Namespace) -> int:
    """Measure, and print what was found: 0; 2 if nothing can be measured."""
    try:
        subject = find(options.function)
        study = Study(subject, options.seconds, options.step_ms / 1e3)
        study.do(lambda said: print(said, file=sys.stderr, flush=True))
    except BenchError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        return complain(f"{options.function}: {error}")
    advice = advise(study)
    if options.json:
        print(json.dumps(as_json(options.function, study, advice), indent=2))
    else:
        print(screen(options.function, study, advice))
    return 0


def _seconds(text: str) -> float:
    number = _milliseconds(text)
    if not number:
        raise argparse.ArgumentTypeError(f"should be above 0, got {text}")
    return number


def _milliseconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"should be from 0, got {text}")
    return number


# --- the screen ----------------------------------------------------------------------------------

_LABEL, _COLUMN = 34, 20
_LINE = "─" * (_LABEL + 3 * _COLUMN)


def screen(name: str, study: Study, advice: Advice) -> str:
    """The figures, and what follows from them."""
    return "\n".join(
        [
            "",
            _LINE,
            _subject(name, study),
            "",
            *_comparison(study),
            "",
            *_by_workers(study),
            "",
            f"Suggested: {_arguments(advice)}",
            *textwrap.wrap(" ".join(advice.reasons), len(_LINE), break_long_words=False),
            _LINE,
        ]
    )


def as_json(name: str, study: Study, advice: Advice) -> dict[str, Any]:
    """The same, for programs; rates are batches a second."""
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


def _subject(name: str, study: Study) -> str:
    samples = study.subject.samples
    length = "a stream of samples" if samples is None else f"{samples:,} samples"
    size = in_words(study.compared["torch"][0].batch_bytes)
    step = f", training steps of {study.step_s * 1e3:g} ms" if study.step_s else ""
    return f"{name}: {length}, batches of {size}{step}; {study.cores} cores"


def _comparison(study: Study) -> list[str]:
    """Both sides with the user's own arguments."""
    trials = [study.compared[side] for side in SIDES]
    rates = [[trial.rate for trial in of_side] for of_side in trials]
    gain = study.median("picklable_loader") / study.median("torch")
    title = f"as it is, num_workers={study.subject.loader.num_workers}"
    firsts = [min(trial.first_s for trial in of_side) * 1e3 for of_side in trials]
    return [
        _row(title, "torch DataLoader", "picklable_loader", ""),
        _row("batches/s", *(f"{study.median(side):,.1f}" for side in SIDES), f"{gain:.2f} ×"),
        _row(
            "  slowest and fastest trial",
            *(f"{min(each):,.1f}, {max(each):,.1f}" for each in rates),
            "",
        ),
        _row("first batch", *(f"{first:,.0f} ms" for first in firsts), ""),
    ]


def _by_workers(study: Study) -> list[str]:
    rows = [_row("picklable_loader, num_workers", "batches/s", "busy (computing)", "budget")]
    for number, trial in study.by_workers.items():
        busy = "–" if trial.busy is None else f"{trial.busy:.0%}"
        busy += "" if trial.computing is None else f" ({trial.computing:.0%})"
        budget = "–" if trial.budget is None else str(trial.budget)
        rows.append(_row(f"{number:>29d}", f"{trial.rate:,.1f}", busy, budget))
    if study.left_out:
        numbers = ", ".join(map(str, study.left_out))
        rows.append(f"No time was left for num_workers={numbers}.")
    return rows


def _arguments(advice: Advice) -> str:
    if advice.prefetch_budget is None:
        return f"num_workers={advice.num_workers}"
    memory = f"   (up to {in_words(advice.prefetch_bytes or 0)} of batches)"
    return (
        f"num_workers={advice.num_workers}, prefetch_budget={advice.prefetch_budget}"
        f"{memory if advice.prefetch_bytes else ''}"
    )


def _row(label: str, *columns: str) -> str:
    return f"{label:<{_LABEL}}{''.join(f'{column:>{_COLUMN}}' for column in columns)}".rstrip()
