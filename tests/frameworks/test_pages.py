"""The recipes of ``docs/frameworks`` run: they need packages that other pages' blocks do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_docs import ROOT, run

PAGES = sorted((ROOT / "docs" / "frameworks").glob("*.md"))


#: The package index has torchvision for CUDA alone. Beside torch's CPU build its operators do not
#: load, and without their names its import fails. The transforms use none of them.
_NAMES_OF_OPERATORS = """
import torch
operators = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms", "roi_align", "qroi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"):
    operators.define(f"{name}(Tensor x) -> Tensor")
    operators.define(f"_{name}_backward(Tensor x) -> Tensor")
"""
_BEFORE = {"recipes": _NAMES_OF_OPERATORS}

#: Ray takes a minute to start twice, and four on a busy machine
_MARKS = {"ray": [pytest.mark.core, pytest.mark.timeout(600)]}


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=_MARKS.get(page.stem, []), id=page.stem) for page in PAGES]
)
def test_the_recipes_of_a_page_run(page: Path, tmp_path: Path) -> None:
    before = _BEFORE.get(page.stem, "")
    done = run(page, tmp_path, opening="```python no-run", limit_s=500, before=before)
    assert done.returncode == 0, done.stderr
