"""The tables of ``docs/frameworks/tables.md``: a test compares what it finds with its cell."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from .harness import Server, worst

_PAGE = Path(__file__).parents[2] / "docs" / "frameworks" / "tables.md"

Options = dict[str, Any]


@dataclass
class Table:
    """The table below a framework's heading.

    Attributes:
        framework: the heading.
        train: the function that trains, in the module of the tests' server.
        loaders: the columns, and the options of each.
        cases: the rows, and the options of each. "checkpoint" is a step or several, "workers"
            other numbers than 0 and 2, "train" another function; "no" has the columns in which
            there is no such case.
        core: the rows that each submission tries, in the first column.
    """

    framework: str
    train: str
    loaders: dict[str, Options]
    cases: dict[str, Options]
    core: Collection[str]

    def cells(self) -> list[Any]:
        """The arguments of a test for each cell: case, loader."""
        first = next(iter(self.loaders))
        return [
            (
                pytest.param(case, loader, marks=[pytest.mark.core] * (case in self.core))
                if loader == first
                else (case, loader)
            )
            for case, loader in product(self.cases, self.loaders)
        ]

    def found(self, server: Server, folder: Path, case: str, loader: str, **more: Any) -> str:
        """The worst of 0 and 2 workers, and of the case's checkpoints, with more options."""
        options = {"train": self.train, **self.loaders[loader], **self.cases[case], **more}
        if loader in options.pop("no", ()):
            return "-"
        train, steps = options.pop("train"), options.pop("checkpoint")
        numbers = options.pop("workers", (0, 2))
        steps = [steps] if isinstance(steps, int) else steps
        return worst(
            [
                server.compare(
                    train, folder / f"{step}-{workers}", step, workers=workers, **options
                )
                for step, workers in product(steps, numbers)
            ]
        )

    def documented(self, case: str, loader: str) -> str:
        """The cell of the page, which has no other rows and columns than the tests."""
        page = self._page
        assert [*page] == [*self.cases] and [*page[case]] == [*self.loaders]
        return page[case][loader]

    @cached_property
    def _page(self) -> dict[str, dict[str, str]]:
        text = _PAGE.read_text().partition(f"## {self.framework}\n")[2].partition("\n## ")[0]
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in text.splitlines()
            if line.startswith("|")
        ]
        (_, *loaders), _, *cases = rows
        return {case: dict(zip(loaders, cells)) for case, *cells in cases}
