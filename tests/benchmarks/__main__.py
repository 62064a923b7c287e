"""Measure our loader against torch's and torchdata's; write JSON, a table and a chart."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .chart import draw
from .rounds import run
from .suite import WORKLOADS, choose
from .summary import to_json
from .table import markdown, number
from .workload import Workload

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks.

    Returns:
        0; 1 if a measurement failed. A target that is not reached is a result, no failure.
    """
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        workloads = choose(asked.only or (), asked.quick)
    except ValueError as error:
        parser.error(str(error))
    asked.out.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []

    def measured(turn: int, work: Workload, side: str, outcome: tuple[float, ...] | str) -> None:
        if isinstance(outcome, str):
            failures.append(f"{work.name}, {side}: {outcome.splitlines()[-1]}")
        _tell(turn, asked.rounds, work, side, outcome)

    rows = run(workloads, asked.rounds, asked.quick, measured)
    facts = json.dumps(to_json(rows, asked.rounds, failures), indent=1, ensure_ascii=False)
    (asked.out / "results.json").write_text(facts + "\n")
    (asked.out / "table.md").write_text(markdown(rows))
    draw(rows, asked.rounds, asked.out / "chart.png")
    print(markdown(rows))
    print(f"Figures: {asked.out / 'results.json'}, picture: {asked.out / 'chart.png'}")
    print(*failures, sep="\n", file=sys.stderr)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--rounds", type=_positive, default=5, metavar="N", help="default: %(default)s"
    )
    names = ", ".join(WORKLOADS).replace("%", "%%")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"some of: {names}")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench_output"),
        metavar="DIR",
        help="where results.json, table.md and chart.png go (default: %(default)s)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a twentieth of the batches: to see that it works, not what it measures",
    )
    return parser


def _tell(
    turn: int, rounds: int, work: Workload, side: str, outcome: tuple[float, ...] | str
) -> None:
    """A line for each measurement, as it comes."""
    if isinstance(outcome, str):
        said = f"FAILED\n{outcome}"
    else:
        said = ", ".join(
            f"{number(value)} {figure.unit}" for value, figure in zip(outcome, work.figures)
        )
    print(f"{turn + 1}/{rounds}  {work.name:18s} {side:17s} {said}", flush=True)


def _positive(text: str) -> int:
    number_of = int(text)
    if number_of < 1:
        raise argparse.ArgumentTypeError(f"should be from 1, got {text}")
    return number_of


if __name__ == "__main__":
    sys.exit(main())
