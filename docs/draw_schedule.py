"""Draws docs/schedule.png from the schedule's transition table.

    python docs/draw_schedule.py

The table goes into the picture's metadata as well, where tests/test_docs_schedule.py reads it: a
picture of an older table fails the tests.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import FancyArrowPatch  # noqa: E402

from picklable_loader.core.schedule import TRANSITIONS, Phase  # noqa: E402

PICTURE = Path(__file__).with_name("schedule.png")

#: where each phase stands; a phase without a place is a KeyError here
PLACES = {
    Phase.SENT: (0.0, 1.5),
    Phase.ARRIVED: (2.0, 3.0),
    Phase.FAILED: (2.0, 2.0),
    Phase.EMPTY: (2.0, 1.0),
    Phase.FORGOTTEN: (2.0, -0.3),
    Phase.GONE: (4.0, 1.5),
}
_COLOURS = {
    "Wanted": "#1b6e3c",
    "Skipped": "#9a5b00",
    "Arrived": "#2456a6",
    "Failed": "#a6243a",
    "Emptied": "#7a4a9a",
    "Ended": "#6b6b6b",
}


def table() -> str:
    """The transition table as text, one line a row."""
    return "\n".join(
        f"{start.value} --{event.__name__}--> {end.value}"
        for (start, event), end in TRANSITIONS.items()
    )


def arrows() -> dict[tuple[Phase, Phase], list[str]]:
    """The events that lead from one phase to another."""
    found: dict[tuple[Phase, Phase], list[str]] = defaultdict(list)
    for (start, event), end in TRANSITIONS.items():
        found[start, end].append(event.__name__)
    return dict(found)


def draw() -> None:
    figure, axes = plt.subplots(figsize=(9, 5.6), dpi=110)
    for (start, end), events in arrows().items():
        _arrow(axes, start, end, events)
    for phase, (x, y) in PLACES.items():
        box = {"boxstyle": "round,pad=0.55", "fc": "#f4f1ea", "ec": "#333333", "lw": 1.4}
        axes.text(x, y, phase.value, ha="center", va="center", size=13, bbox=box, zorder=3)
    axes.annotate(
        "drawn from the plan,\ngiven to a worker",
        xy=(-0.28, 1.5),
        xytext=(-1.35, 1.5),
        va="center",
        ha="center",
        size=10,
        color="#555555",
        arrowprops={"arrowstyle": "-|>", "color": "#555555"},
    )
    axes.set_title("What may happen to a task (TRANSITIONS in core/schedule.py)", size=12, pad=14)
    axes.set_xlim(-1.9, 4.7)
    axes.set_ylim(-1.25, 3.4)
    axes.axis("off")
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Transitions": table()})


def _arrow(axes: plt.Axes, start: Phase, end: Phase, events: list[str]) -> None:
    (x0, y0), (x1, y1) = PLACES[start], PLACES[end]
    direct = (start, end) == (Phase.SENT, Phase.GONE)
    bend = 1.1 if direct else 0.0
    axes.add_patch(
        FancyArrowPatch(
            (x0, y0),
            (x1, y1),
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>",
            mutation_scale=16,
            shrinkA=34,
            shrinkB=34,
            color="#444444",
            lw=1.2,
            zorder=1,
        )
    )
    x, y = (x0 + x1) / 2, (y0 + y1) / 2 + (-2.7 if direct else 0.0)
    for row, event in enumerate(events):
        axes.text(
            x,
            y + (len(events) - 1) * 0.09 - row * 0.18,
            event,
            ha="center",
            va="center",
            size=10,
            color=_COLOURS[event],
            bbox={"fc": "white", "ec": "none", "pad": 1.0},
            zorder=2,
        )


if __name__ == "__main__":
    draw()
