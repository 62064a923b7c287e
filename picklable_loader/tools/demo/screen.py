"""The demo's summary: one screen of text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .facts import Facts, Story
from .plan import BATCH, KINDS, STEPS_PER_EPOCH, TRAINED_ON, WORKERS, Kind, Plan

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


def summary(plan: Plan, stories: dict[Kind, Story], picture: Path, seconds: float) -> str:
    """The facts of both stories, side by side.

    Args:
        plan: the course of the training.
        stories: by kind of DataLoader.
        picture: where the picture lies.
        seconds: that the demo took.
    """
    facts = [stories[kind].facts for kind in KINDS]
    line = "─" * (_LABEL + 2 * _COLUMN)
    return "\n".join(
        [
            "",
            line,
            *_course(plan),
            "",
            _row("against an uninterrupted run", "picklable_loader", "torch DataLoader"),
            *(_row(label, *map(value, facts)) for label, value in _ROWS.items()),
            "",
            *_verdict(facts[0]),
            f"Picture: {picture}   ({seconds:.0f} s)",
            line,
        ]
    )


def _course(plan: Plan) -> list[str]:
    return [
        f"{TRAINED_ON:,} digits, augmented at random, {WORKERS} workers: {plan.epochs} epochs of "
        f"{STEPS_PER_EPOCH} batches of {BATCH}.",
        f"Checkpoint after step {plan.saved_at} (epoch {plan.struck_epoch}, batch "
        f"{plan.saved_in}), SIGKILL after step {plan.killed_at},",
        "resumed from the checkpoint in a fresh process.",
    ]


def _verdict(ours: Facts) -> list[str]:
    if not ours.exact:
        return ["FAILED: the resumed run is not the uninterrupted one. Please report this."]
    return [
        "With picklable_loader the resumed run is the uninterrupted one. Its place in the data",
        f"takes {ours.state_bytes:,} bytes of the checkpoint, which was written in "
        f"{ours.save_ms:.0f} ms while workers ran.",
    ]


def _row(label: str, ours: str, torch: str) -> str:
    return f"{label:<{_LABEL}}{ours:>{_COLUMN}}{torch:>{_COLUMN}}"
