"""Draws docs/schedule.png from the schedule's transition table.

    python docs/draw_schedule.py

The table goes into the picture's metadata as well, where tests/docs/test_docs_schedule.py reads it:
a picture of an older table fails the tests.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import FancyArrowPatch  # noqa: E402

from picklable_loader.core.phases import TRANSITIONS, Phase  # noqa: E402

PICTURE = Path(__file__).with_name("schedule.png")

#: where each phase stands; a phase without a place is a KeyError here
PLACES = {
    Phase.HELD: (-2.2, 1.0),
    Phase.SENT: (0.0, 1.0),
    Phase.LETHAL: (-2.2, -0.6),
    Phase.HERE: (2.0, 2.2),
    Phase.FORGOTTEN: (2.0, -0.9),
    Phase.GONE: (4.0, 1.0),
}
#: arrows that are not straight: how far they bend, and where their events stand, from the middle
_BENDS = {
    (Phase.HELD, Phase.SENT): (-0.3, 0.33),
    (Phase.SENT, Phase.HELD): (-0.3, -0.33),
    (Phase.HELD, Phase.GONE): (-0.62, 2.15),
    (Phase.SENT, Phase.GONE): (0.9, -2.25),
    (Phase.LETHAL, Phase.GONE): (0.55, -1.75),
}
_COLOURS = {
    "Wanted": "#1b6e3c",
    "Skipped": "#9a5b00",
    "Arrived": "#2456a6",
    "Failed": "#a6243a",
    "Emptied": "#7a4a9a",
    "Ended": "#6b6b6b",
    "Died": "#5b2a86",
    "Send": "#333333",
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
    figure, axes = plt.subplots(figsize=(10.5, 6.2), dpi=110)
    for (start, end), events in arrows().items():
        _arrow(axes, start, end, events)
    for phase, (x, y) in PLACES.items():
        box = {"boxstyle": "round,pad=0.55", "fc": "#f4f1ea", "ec": "#333333", "lw": 1.4}
        axes.text(x, y, phase.value, ha="center", va="center", size=13, bbox=box, zorder=3)
    axes.annotate(
        "drawn from\nthe plan",
        xy=(-2.55, 1.0),
        xytext=(-3.4, 1.0),
        va="center",
        ha="center",
        size=10,
        color="#555555",
        arrowprops={"arrowstyle": "-|>", "color": "#555555"},
    )
    axes.set_title("What may happen to a task (TRANSITIONS in core/phases.py)", size=12, pad=14)
    axes.set_xlim(-3.8, 4.7)
    axes.set_ylim(-2.4, 3.5)
    axes.axis("off")
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Transitions": table()})


def _arrow(axes: plt.Axes, start: Phase, end: Phase, events: list[str]) -> None:
    (x0, y0), (x1, y1) = PLACES[start], PLACES[end]
    bend, aside = _BENDS.get((start, end), (0.0, 0.0))
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
    x, y = (x0 + x1) / 2, (y0 + y1) / 2 + aside
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
