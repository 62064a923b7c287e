"""The demo from its first to its last line."""

from __future__ import annotations

import json
import time
from pathlib import Path

from .facts import Story, gather
from .picture import draw
from .plan import KINDS, Kind, Plan
from .runs import do_all, lay_digits_ready
from .screen import summary


def show(output: Path, epochs: int) -> bool:
    """Do the runs, draw the picture, write the facts, print the summary.

    Args:
        output: a folder for all of it; made if it is not there.
        epochs: length of the training, from 1.

    Returns:
        Whether our resumed run was the uninterrupted one.
    """
    begin = time.monotonic()
    plan = Plan(output / "runs", epochs)
    plan.folder.mkdir(parents=True, exist_ok=True)
    lay_digits_ready(plan)
    stories: dict[Kind, Story] = {}
    for kind in KINDS:
        do_all(plan, kind)
        stories[kind] = gather(plan, kind)
    draw(plan, stories, output / "demo.png")
    seconds = time.monotonic() - begin
    _write_facts(plan, stories, seconds, output / "summary.json")
    print(summary(plan, stories, output / "demo.png", seconds))
    return stories["picklable_loader"].facts.exact


def _write_facts(plan: Plan, stories: dict[Kind, Story], seconds: float, path: Path) -> None:
    """For programs: the same facts as on the screen."""
    course = {
        "epochs": plan.epochs,
        "steps": plan.steps,
        "saved_at": plan.saved_at,
        "killed_at": plan.killed_at,
        "seconds": seconds,
    }
    facts = {str(kind): story.facts.to_json() for kind, story in stories.items()}
    path.write_text(json.dumps({**course, **facts}, indent=2) + "\n")
