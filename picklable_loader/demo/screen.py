"""The demo's summary: one screen of text."""

from __future__ import annotations

from pathlib import Path

from .digits import TRAINED_ON
from .facts import Facts, Story
from .plan import BATCH, WORKERS, Plan

__all__ = ["summary"]

_LABEL, _COLUMN = 38, 18


def summary(plan: Plan, ours: Story, torch: Story, picture: Path, seconds: float) -> str:
    """The facts of both stories, side by side.

    Args:
        plan: the course of the training.
        ours: what picklable_loader did.
        torch: what torch's DataLoader did in the same place.
        picture: where the picture lies.
        seconds: that the demo took.
    """
    width = _LABEL + 2 * _COLUMN
    lines = [
        "",
        "─" * width,
        *_course(plan),
        "",
        _row("", "picklable_loader", "torch DataLoader"),
        *(_row(label, *both) for label, *both in _rows(ours.facts, torch.facts)),
        "",
        *_verdict(ours.facts, torch.facts),
        "",
        f"picture: {picture}   ({seconds:.0f} s)",
        "─" * width,
    ]
    return "\n".join(lines)


def _course(plan: Plan) -> list[str]:
    into = plan.saved_at - plan.struck_epoch * plan.steps_per_epoch
    return [
        f"{TRAINED_ON:,} digits, augmented at random, {WORKERS} workers, batches of {BATCH};",
        f"{plan.epochs} epochs of {plan.steps_per_epoch} steps. Checkpoint after step "
        f"{plan.saved_at} (epoch {plan.struck_epoch}, batch {into}),",
        f"SIGKILL after step {plan.killed_at}, resumed from the checkpoint in a fresh process.",
    ]


def _rows(ours: Facts, torch: Facts) -> list[tuple[str, str, str]]:
    both = (ours, torch)

    def row(label: str, values: list[str]) -> tuple[str, str, str]:
        return label, values[0], values[1]

    return [
        row(
            "later losses equal, to the last bit",
            [f"{f.steps_equal} of {f.steps_compared}" for f in both],
        ),
        row("largest difference of a loss", [f"{f.largest_difference:.3g}" for f in both]),
        row("final weights equal, to the last bit", [_yes(f.weights_equal) for f in both]),
        row("samples seen once too often", [f"{f.repeated:,}" for f in both]),
        row("samples seen once too seldom", [f"{f.missed:,}" for f in both]),
        row("test accuracy, resumed", [f"{f.accuracy:.2%}" for f in both]),
        row("test accuracy, uninterrupted", [f"{f.uninterrupted_accuracy:.2%}" for f in both]),
        row("the loader's place in the checkpoint", [_size(f.state_bytes) for f in both]),
    ]


def _verdict(ours: Facts, torch: Facts) -> list[str]:
    if not ours.exact:
        return ["FAILED: the resumed run is not the uninterrupted one. Please report this."]
    return [
        "The resumed run is the uninterrupted one, bit for bit.",
        f"torch's has seen {torch.repeated:,} samples too often and {torch.missed:,} too seldom.",
    ]


def _row(label: str, ours: str, torch: str) -> str:
    return f"{label:<{_LABEL}}{ours:>{_COLUMN}}{torch:>{_COLUMN}}".rstrip()


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _size(count: int | None) -> str:
    return "none" if count is None else f"{count:,} bytes"
