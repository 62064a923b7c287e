"""The table, in Markdown, as README and docs show it."""

from __future__ import annotations

from .summary import OURS, Row

__all__ = ["markdown"]

_HEAD = ("workload", "", "torch", "torchdata", "picklable_loader", "to torch", "target", "reached")
_REACHED = {True: "yes", False: "**no**", None: "–"}


def markdown(rows: list[Row]) -> str:
    """A line for each figure: medians with [best, worst], ours over torch's, and the target."""
    lines = [_HEAD, ("---",) * len(_HEAD), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    ratio = row.ratio(OURS)
    return (
        row.figure.name,
        row.figure.unit,
        *(_measured(row, side) for side in ("torch", "torchdata", OURS)),
        "–" if ratio is None else f"{ratio:.2f} ×",
        row.figure.target,
        _REACHED[row.reached()],
    )


def _measured(row: Row, side: str) -> str:
    median, spread = row.median(side), row.spread(side)
    if median is None or spread is None:
        return "–"
    return f"{number(median)} [{number(spread[0])}, {number(spread[1])}]"


def number(value: float) -> str:
    """Three digits that count, thousands set apart."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
