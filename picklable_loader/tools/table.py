"""Numbers as options; and the output: tables, and JSON."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Table:
    """Rows under a title: a name, and values or remarks."""

    title: str
    rows: list[tuple[Any, ...]] = field(default_factory=list)


def show(tables: Iterable[Table], data: Any, as_json: bool) -> None:
    """Print tables, or what they show as JSON."""
    if as_json:
        print(json.dumps(data, indent=2, allow_nan=True, default=str))
    else:
        print("\n\n".join(map(_as_text, tables)))


def number_from(least: float, kind: type[Any] = float) -> Callable[[str], Any]:
    """The type of an option that is a finite number of a kind, from the least one."""

    def read(text: str) -> Any:
        found = kind(text)
        if not least <= found < math.inf:
            raise argparse.ArgumentTypeError(f"should be from {least:g}, got {text}")
        return found

    return read


def complain(text: str) -> int:
    """Say on stderr why there is nothing to show; returns the exit status for that, 2."""
    print(text, file=sys.stderr)
    return 2


def _as_text(table: Table) -> str:
    rows = [[_printable(cell) for cell in row] for row in table.rows]
    columns = max(map(len, rows), default=0)
    widths = [
        max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(columns)
    ]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([_printable(table.title), *(f"  {line}" for line in lines)])


def _printable(cell: Any) -> str:
    """A file's texts may hold what would steer a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(cell))
