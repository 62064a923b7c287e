"""The demo from its first to its last line: the runs, the picture, the facts on one screen."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from .compare import Facts, Story, gather
from .picture import draw
from .train import BATCH, KINDS, ROLES, STEPS_PER_EPOCH, TRAINED_ON, WORKERS, Kind, Plan, Role


class RunFailed(RuntimeError):
    """A training run ended in another way than its role demands."""


def show(output: Path, epochs: int) -> bool:
    """Do the runs, draw the picture, write the facts, print the summary.

    Returns:
        Whether our resumed run was the uninterrupted one.
    """
    begin = time.monotonic()
    plan = Plan(output / "runs", epochs)
    plan.folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()  # out of the scikit-learn package; nothing is downloaded
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32)
    torch.save({"images": images, "labels": torch.tensor(digits.target)}, plan.digits)
    for kind in KINDS:
        for role in ROLES:
            _run(plan, kind, role)
    stories = {kind: gather(plan, kind) for kind in KINDS}
    draw(plan, stories, output / "demo.png")
    seconds = time.monotonic() - begin
    course = {name: getattr(plan, name) for name in ("epochs", "steps", "saved_at", "killed_at")}
    facts = {str(kind): story.facts.to_json() for kind, story in stories.items()}
    found = json.dumps({**course, "seconds": seconds, **facts}, indent=2)
    (output / "summary.json").write_text(found + "\n")
    print("\n".join(_summary(plan, stories, output / "demo.png", seconds)))
    return stories["picklable_loader"].facts.exact


def _run(plan: Plan, kind: Kind, role: Role) -> None:
    """Do one run in a process of its own."""
    arguments = [kind, role, str(plan.folder), str(plan.epochs)]
    command = [sys.executable, "-m", "picklable_loader.tools.demo.train", *arguments]
    process = subprocess.run(command)
    if role == "killed":
        print("   SIGKILL", file=sys.stderr)  # at the end of its progress bar
    if process.returncode != (-signal.SIGKILL if role == "killed" else 0):
        raise RunFailed(
            f"the run {kind!r}, {role!r} ended with status {process.returncode}: its messages "
            "are above"
        )


# --- the screen ----------------------------------------------------------------------------------

_LABEL, _COLUMN = 40, 18

_ROWS: dict[str, Callable[[Facts], str]] = {
    "later losses equal, to the last bit": lambda f: f"{f.steps_equal} of {f.steps_compared}",
    "largest difference of a loss": lambda f: f"{f.largest_difference:.3g}",
    "final weights equal, to the last bit": lambda f: "yes" if f.weights_equal else "no",
    "samples repeated": lambda f: f"{f.repeated:,}",
    "samples missed": lambda f: f"{f.missed:,}",
    "accuracy on 261 test images": lambda f: f"{f.uninterrupted_accuracy:.2%}",
    "the same, killed and resumed": lambda f: f"{f.accuracy:.2%}",
}


def _summary(plan: Plan, stories: dict[Kind, Story], picture: Path, seconds: float) -> list[str]:
    """The facts of both stories, next to each other."""
    facts = [stories[kind].facts for kind in KINDS]
    line = "─" * (_LABEL + 2 * _COLUMN)
    return [
        "",
        line,
        f"{TRAINED_ON:,} digits, augmented at random, {WORKERS} workers: {plan.epochs} epochs of "
        f"{STEPS_PER_EPOCH} batches of {BATCH}.",
        f"Checkpoint after step {plan.saved_at} (epoch {plan.struck_epoch}, batch "
        f"{plan.saved_in}), SIGKILL after step {plan.killed_at},",
        "resumed from the checkpoint in a fresh process.",
        "",
        _row("against an uninterrupted run", "picklable_loader", "torch DataLoader"),
        *(_row(label, *map(value, facts)) for label, value in _ROWS.items()),
        "",
        *_verdict(facts[0]),
        f"Picture: {picture}   ({seconds:.0f} s)",
        line,
    ]


def _verdict(ours: Facts) -> list[str]:
    if not ours.exact:
        return ["FAILED: the resumed run is not the uninterrupted one. Please report this."]
    return [
        "With picklable_loader the resumed run is the uninterrupted one. Its position in the data",
        f"takes {ours.state_bytes:,} bytes of the checkpoint, which was written in "
        f"{ours.save_ms:.0f} ms while workers ran.",
    ]


def _row(label: str, ours: str, torch: str) -> str:
    return f"{label:<{_LABEL}}{ours:>{_COLUMN}}{torch:>{_COLUMN}}"
