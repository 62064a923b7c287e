"""The recipes of ``docs/frameworks`` run: they need packages that other pages' blocks do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_docs import ROOT, run

FOLDER = ROOT / "docs" / "frameworks"
PAGES = sorted({*FOLDER.glob("*.md")} - {FOLDER / "ray.md"})  # tests/frameworks/test_ray.py has it

_BEFORE = {
    "recipes": f"import sys; sys.path.append({str(ROOT / 'tests')!r})\n"
    "from frameworks.apart import make_importable; make_importable()\n"
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_recipes_of_a_page_run(page: Path, tmp_path: Path) -> None:
    before = _BEFORE.get(page.stem, "")
    done = run(page, tmp_path, opening="```python no-run", before=before)
    assert done.returncode == 0, done.stderr
