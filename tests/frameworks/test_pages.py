"""The recipes of ``docs/frameworks`` run: they need packages that other pages' blocks do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_docs import ROOT, run

PAGES = sorted((ROOT / "docs" / "frameworks").glob("*.md"))


_BEFORE = {
    "recipes": f"import sys; sys.path.append({str(ROOT / 'tests')!r})\n"
    "from frameworks.apart import make_importable; make_importable()\n"
}

#: Ray takes a minute to start twice, and four on a busy machine
_MARKS = {"ray": [pytest.mark.core, pytest.mark.timeout(600)]}


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=_MARKS.get(page.stem, []), id=page.stem) for page in PAGES]
)
def test_the_recipes_of_a_page_run(page: Path, tmp_path: Path) -> None:
    before = _BEFORE.get(page.stem, "")
    done = run(page, tmp_path, opening="```python no-run", limit_s=500, before=before)
    assert done.returncode == 0, done.stderr
