"""The tables of ``docs/frameworks/README.md``: a test compares what it finds with its cell."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "frameworks" / "README.md"


def documented(framework: str, case: str, loader: str) -> str:
    """The cell of a case's row, below a framework's heading, in a loader's column."""
    return _table(framework)[case][loader]


@cache
def _table(framework: str) -> dict[str, dict[str, str]]:
    text = _PAGE.read_text().partition(f"## {framework}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    (_, *loaders), _, *cases = rows
    return {case: dict(zip(loaders, cells)) for case, *cells in cases}
