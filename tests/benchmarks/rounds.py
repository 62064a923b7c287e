"""All measurements, in turn, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .summary import Row
from .workload import Workload

__all__ = ["Measured", "run"]

_TESTS = Path(__file__).resolve().parents[1]
#: seconds after which a measurement is taken for stuck
_LIMIT_S = 600

#: what is called when a measurement is over: round, workload, side, and its figures or its error
Measured = Callable[[int, Workload, str, "tuple[float, ...] | str"], None]


def run(workloads: Sequence[Workload], rounds: int, quick: bool, measured: Measured) -> list[Row]:
    """Measure everything, round by round.

    In a round each workload is measured on all sides, one right after the other, so that they have
    the same machine; who goes first changes from round to round.

    Args:
        workloads: what to measure.
        rounds: how often, from 1.
        quick: with a twentieth of the batches.
        measured: told of each measurement.

    Returns:
        A row for each figure. A measurement that failed has no value in it.
    """
    rows = {work.name: [Row(figure, {}) for figure in work.figures] for work in workloads}
    for turn in range(rounds):
        for work in workloads:
            for side in _rotated(work.sides, turn):
                outcome = _measure(side, work.name, quick)
                measured(turn, work, side, outcome)
                if isinstance(outcome, str):
                    continue
                for row, value in zip(rows[work.name], outcome):
                    row.values.setdefault(side, []).append(value)
    return [row for work in workloads for row in rows[work.name]]


def _rotated(sides: Sequence[str], turn: int) -> Iterator[str]:
    first = turn % len(sides)
    yield from (*sides[first:], *sides[:first])


def _measure(side: str, workload: str, quick: bool) -> tuple[float, ...] | str:
    """The figures of one measurement; what it said, if it failed."""
    command = [sys.executable, "-m", "benchmarks.measure", side, workload]
    try:
        done = subprocess.run(
            [*command, "--quick"] if quick else command,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {_LIMIT_S} s"
    if done.returncode:
        return done.stderr.strip() or f"it ended with status {done.returncode}, without a word"
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def _environment() -> dict[str, str]:
    """This process's own, in which the package and this one are found."""
    paths = [str(_TESTS), str(_TESTS.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
