"""The schedule's picture shows the schedule's table."""

from __future__ import annotations

import runpy
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parents[2] / "docs"


def test_the_picture_was_drawn_from_todays_table() -> None:
    script = runpy.run_path(str(DOCS / "draw_schedule.py"))
    with Image.open(DOCS / "schedule.png") as picture:
        assert picture.info["Transitions"] == script["table"](), "run docs/draw_schedule.py"
