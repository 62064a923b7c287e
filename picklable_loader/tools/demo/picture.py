"""The demo's picture: loss curves laid over each other, and which samples were seen how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .compare import Comparison
from .train import KINDS, TRAINED_ON, Kind, Plan

INK, PALE, FRAME = "#1f2937", "#c7cdd6", "#9aa3b0"
RESUMED: dict[Kind, str] = {"picklable_loader": "#0b8a6a", "torch": "#d1495b"}
SEEN = {"missed": "#f2a541", "right": "#d3d9e2", "repeated": "#2f4b7c"}
#: rows and columns of the mosaic, one square for each sample
MOSAIC = (32, 48)
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": FRAME,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def draw(plan: Plan, compared: dict[Kind, Comparison], path: Path) -> None:
    """Draw both comparisons into a PNG file, one under the other."""
    with rc_context(STYLE):
        figure = Figure(figsize=(12, 8), layout="constrained", facecolor="white")  # no window
        title = "Killed in mid-epoch, resumed from the checkpoint in a fresh process"
        figure.suptitle(title, fontsize=15, fontweight="bold")
        sizes = {"height_ratios": [3, 1] * 2, "width_ratios": [2.6, 1]}
        axes = figure.subplots(4, 2, gridspec_kw=sizes)
        for row, kind in enumerate(KINDS):
            (losses, seen), (gaps, counts) = axes[2 * row : 2 * row + 2]
            _losses(losses, plan, kind, compared[kind])
            _gaps(gaps, plan, kind, compared[kind])
            _samples(seen, counts, plan, compared[kind])
        axes[3, 0].sharey(axes[1, 0])
        figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})


def _losses(axes: Any, plan: Plan, kind: Kind, compared: Comparison) -> None:
    equal, of = compared.facts["steps_equal"], compared.facts["steps_compared"]
    name = "torch's DataLoader" if kind == "torch" else "picklable_loader"
    title = f"{name}: {equal} of {of} later losses are equal, bit for bit"
    axes.set_title(title, loc="left", fontsize=12, color=RESUMED[kind], fontweight="bold")
    looks = ((PALE, 5), (INK, 1.1), (RESUMED[kind], 1.3))
    for (role, run), (color, lw) in zip(compared.runs.items(), looks):
        steps, losses = zip(*sorted(run.losses.items()))
        axes.plot(steps, losses, solid_capstyle="round", color=color, lw=lw, label=role)
    axes.set(ylabel="loss", ylim=(0, 2.6))
    axes.tick_params(labelbottom=False)
    axes.legend(frameon=False, ncols=3, loc="upper right")
    _moments(axes, plan)
    axes.text(plan.saved_at - 1.5, 2.56, "checkpoint", ha="right", va="top")
    axes.text(plan.killed_at + 1.5, 2.56, "SIGKILL", ha="left", va="top")


def _gaps(axes: Any, plan: Plan, kind: Kind, compared: Comparison) -> None:
    heights = compared.differences
    axes.bar([*heights], [*heights.values()], width=1.0, color=RESUMED[kind])
    axes.set(ylabel="difference", xlabel="step", ylim=(0, max(0.6, *heights.values())))
    if not any(heights.values()):
        middle, look = (plan.killed_at + plan.steps) / 2, {"ha": "center", "va": "center"}
        axes.text(middle, 0.3, "0 at every step", color=RESUMED[kind], fontweight="bold", **look)
    _moments(axes, plan)


def _moments(axes: Any, plan: Plan) -> None:
    """Show the checkpoint, and the steps after it that death has taken."""
    axes.set_xlim(0, plan.steps)
    axes.axvspan(plan.saved_at, plan.killed_at, color=FRAME, alpha=0.18, lw=0)
    axes.axvline(plan.saved_at, color=FRAME, lw=1, ls="--")
    axes.axvline(plan.killed_at, color=FRAME, lw=1)


def _samples(seen: Any, counts: Any, plan: Plan, compared: Comparison) -> None:
    """A square for each sample, in the colour of how often it was seen; a legend that counts."""
    excess = np.array([compared.seen[i] - plan.epochs for i in range(TRAINED_ON)]).clip(-1, 1)
    look: dict[str, Any] = {"cmap": ListedColormap(list(SEEN.values())), "edgecolors": "white"}
    seen.pcolormesh(excess.reshape(MOSAIC), vmin=-1, vmax=1, linewidth=0.5, **look)
    seen.set_aspect("equal")
    seen.set_title(f"How often {TRAINED_ON:,} samples were seen", fontsize=10.5, loc="left")
    words = {
        "right": (0, f"{plan.epochs} times, once per epoch"),
        "repeated": (1, "once too often"),
        "missed": (-1, "once too seldom"),
    }
    shares = [
        Patch(facecolor=SEEN[name], label=f"{(excess == value).sum():,}: {word}")
        for name, (value, word) in words.items()
    ]
    counts.legend(handles=shares, frameon=False, loc="upper left", borderpad=0)
    for axes in (seen, counts):
        axes.axis("off")
