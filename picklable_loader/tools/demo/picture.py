"""The demo's picture: loss curves laid over each other, and which samples were seen how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from .compare import Story
from .train import KINDS, TRAINED_ON, Kind, Plan

INK, PALE, FRAME = "#1f2937", "#c7cdd6", "#9aa3b0"
RESUMED: dict[Kind, str] = {"picklable_loader": "#0b8a6a", "torch": "#d1495b"}
SEEN = {"missed": "#f2a541", "right": "#d3d9e2", "repeated": "#2f4b7c"}
#: rows and columns of the mosaic, one square for each sample
MOSAIC = (32, 48)
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FRAME,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(plan: Plan, stories: dict[Kind, Story], path: Path) -> None:
    """Draw both stories into a PNG file, one under the other."""
    with rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.06)
        figure = Figure(figsize=(12, 8), layout=layout, facecolor="white")  # no window: Agg
        figure.suptitle(
            "Killed in mid-epoch, resumed from the checkpoint in a fresh process",
            fontsize=15,
            fontweight="bold",
        )
        axes = _axes(figure)
        for kind in KINDS:
            story = stories[kind]
            _losses(axes[kind, "losses"], plan, kind, story)
            _gaps(axes[kind, "gaps"], plan, kind, story)
            _samples(axes[kind, "seen"], axes[kind, "counts"], plan, story)
        figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})


def _axes(figure: Figure) -> dict[tuple[Kind, str], Any]:
    """For each kind of DataLoader two rows; curves above gaps, a mosaic above its counts."""
    sizes = {"height_ratios": [3, 1] * 2, "width_ratios": [2.6, 1]}
    places = [(kind, panel) for kind in KINDS for panel in ("losses", "seen", "gaps", "counts")]
    axes = dict(zip(places, figure.subplots(4, 2, gridspec_kw=sizes).flat))
    for panel in ("losses", "gaps"):
        ours, torch = (axes[kind, panel] for kind in KINDS)
        torch.sharey(ours)
    for kind in KINDS:
        axes[kind, "losses"].tick_params(labelbottom=False)
    return axes


def _losses(axes: Any, plan: Plan, kind: Kind, story: Story) -> None:
    equal, compared = story.facts.steps_equal, story.facts.steps_compared
    name = "torch's DataLoader" if kind == "torch" else "picklable_loader"
    title = f"{name}: {equal} of {compared} later losses are equal, bit for bit"
    axes.set_title(title, loc="left", fontsize=12, color=RESUMED[kind], fontweight="bold")
    curves = {
        "uninterrupted": (story.uninterrupted, PALE, 5),
        "killed": (story.killed, INK, 1.1),
        "resumed": (story.resumed, RESUMED[kind], 1.3),
    }
    for label, (run, color, lw) in curves.items():
        steps, losses = zip(*sorted(run.losses.items()))
        axes.plot(steps, losses, solid_capstyle="round", color=color, lw=lw, label=label)
    axes.set_ylabel("loss")
    axes.set_ylim(0, 2.6)
    axes.legend(frameon=False, ncols=3, loc="upper right")
    _moments(axes, plan)
    top = {"y": 2.56, "va": "top"}
    axes.text(plan.saved_at - 1.5, s="checkpoint", ha="right", **top)
    axes.text(plan.killed_at + 1.5, s="SIGKILL", ha="left", **top)


def _gaps(axes: Any, plan: Plan, kind: Kind, story: Story) -> None:
    steps = sorted(story.resumed.losses)
    resumed, usual = story.resumed.losses, story.uninterrupted.losses
    heights = [abs(resumed[i] - usual[i]) for i in steps]
    axes.bar(steps, heights, width=1.0, color=RESUMED[kind])
    axes.set_ylabel("difference")
    axes.set_xlabel("step")
    axes.set_ylim(0, max([0.6, axes.get_ylim()[1], *heights]))
    if not any(heights):
        middle = (plan.killed_at + plan.steps) / 2
        look = {"color": RESUMED[kind], "fontweight": "bold"}
        axes.text(middle, 0.3, "0 at every step", ha="center", va="center", **look)
    _moments(axes, plan)


def _moments(axes: Any, plan: Plan) -> None:
    """Mark the checkpoint, and the steps after it that death has taken."""
    axes.set_xlim(0, plan.steps)
    axes.axvspan(plan.saved_at, plan.killed_at, color=FRAME, alpha=0.18, lw=0)
    axes.axvline(plan.saved_at, color=FRAME, lw=1, ls="--")
    axes.axvline(plan.killed_at, color=FRAME, lw=1)


def _samples(seen: Any, counts: Any, plan: Plan, story: Story) -> None:
    """A square for each sample, in the colour of how often it was seen; a legend that counts."""
    excess = np.array([story.seen[i] - plan.epochs for i in range(TRAINED_ON)]).clip(-1, 1)
    look: dict[str, Any] = {"cmap": ListedColormap(list(SEEN.values())), "edgecolors": "white"}
    seen.pcolormesh(excess.reshape(MOSAIC), vmin=-1, vmax=1, linewidth=0.5, **look)
    seen.set_aspect("equal")
    seen.set_title(f"How often {TRAINED_ON:,} samples were seen", fontsize=10.5, loc="left")
    counts.legend(handles=_shares(plan, excess), frameon=False, loc="upper left", borderpad=0)
    for axes in (seen, counts):
        axes.axis("off")


def _shares(plan: Plan, excess: Any) -> list[Patch]:
    words = {
        0: ("right", f"{plan.epochs} times, once per epoch"),
        1: ("repeated", "once too often"),
        -1: ("missed", "once too seldom"),
    }
    return [
        Patch(facecolor=SEEN[name], label=f"{(excess == value).sum():,}: {word}")
        for value, (name, word) in words.items()
    ]
