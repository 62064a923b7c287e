"""Measure your own loader against torch's, and suggest num_workers and prefetch_budget."""

from __future__ import annotations

import argparse
import json
import sys
import traceback

from .advice import advise
from .screen import as_json, screen
from .study import Study
from .subject import BenchError, find


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
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
    """Measure, and print what was found.

    Returns:
        0; 2 if there is nothing that can be measured, and the text on stderr says why.
    """
    try:
        subject = find(options.function)
        study = Study(subject, options.seconds, options.step_ms / 1e3)
        study.do(lambda said: print(said, file=sys.stderr, flush=True))
    except BenchError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(f"{options.function}: {error}", file=sys.stderr)
        return 2
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
