"""Every Python block of the README and the docs runs.

The blocks of a page run one after the other, in one fresh process and a temporary directory.
Blocks that open with ```python no-run are not run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_LIMIT_S = 120


def blocks(page: Path) -> list[tuple[int, str]]:
    """The blocks of a page that are to be run, each with its first line's number."""
    found: list[tuple[int, str]] = []
    inside: list[str] | None = None
    start = 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if inside is None and line.strip() == "```python":
            inside, start = [], number + 1
        elif inside is not None and line.strip() == "```":
            found.append((start, "\n".join(inside)))
            inside = None
        elif inside is not None:
            inside.append(line)
    assert inside is None, f"{page.name}: the block at line {start} does not end"
    return found


def program(page: Path) -> str:
    """One script of all blocks; errors name the page and its line."""
    return "\n".join(
        f"exec(compile({chr(10) * (start - 1) + code!r}, {str(page)!r}, 'exec'), globals())"
        for start, code in blocks(page)
    )


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(program(page))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_python() -> None:
    assert len(blocks(ROOT / "README.md")) >= 3
