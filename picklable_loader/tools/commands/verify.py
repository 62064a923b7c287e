"""Check that a loader of yours resumes exactly, and find where it does not."""

from __future__ import annotations

import argparse
import traceback
from dataclasses import asdict
from typing import Any

from ...errors import LoaderError
from ...testing import Report, ResumeError, verify_resume
from ..bench.subject import BenchError, function
from ..table import Table, complain, number_from, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        help="returns your DataLoader; it may take num_workers=",
    )
    parser.add_argument(
        "--num-workers",
        type=int,
        nargs="+",
        default=[0, 2],
        metavar="N",
        help="numbers of workers to try (default: 0 2)",
    )
    parser.add_argument(
        "--max-steps",
        type=number_from(4, int),
        default=12,
        metavar="N",
        help="at how many steps to stop, from 4 (default: %(default)s)",
    )
    parser.add_argument(
        "--max-batches",
        type=number_from(1, int),
        default=1000,
        metavar="N",
        help="batches of an epoch that are looked at, from 1 (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(options: argparse.Namespace) -> int:
    """Stop, resume and compare: 0 if exact; 1 if not; 2 if there is no such loader."""
    try:
        report = verify_resume(
            function(options.function),
            num_workers=options.num_workers,
            max_steps=options.max_steps,
            max_batches=options.max_batches,
        )
    except ResumeError as error:
        data = {"exact": False, **asdict(error)}
        title = f"{options.function} does not resume exactly"
        rows = [(name, data[name]) for name in ("what", "where", "difference", "why")]
        show([Table(title, rows)], data, options.json)
        return 1
    except (BenchError, LoaderError, TypeError, ValueError) as error:
        return complain(f"{options.function}: {error}")
    except Exception as error:  # whatever the loader, or the function that makes it, raises
        traceback.print_exc()
        return complain(f"{options.function} cannot be verified: {type(error).__name__}: {error}")
    _show(report, options)
    return 0


def _show(report: Report, options: argparse.Namespace) -> None:
    data: dict[str, Any] = {"exact": True, **asdict(report)}
    rows = [
        ("resumes", report.resumes, "in this process and in a fresh one"),
        ("steps", len(report.steps), f"in an epoch of {report.batches} batches"),
        ("seconds", f"{report.seconds:.1f}"),
        *([("note", report.note)] if report.note else []),
    ]
    show([Table(f"{options.function} resumes exactly", rows)], data, options.json)
