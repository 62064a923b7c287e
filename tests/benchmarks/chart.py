"""The chart: how many times better than torch, on a scale where twice is as far as half."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure as Picture
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, NullLocator

from picklable_loader.tools.demo.picture import FRAME, INK, PALE, RESUMED, SEEN, STYLE

from .summary import OURS, THEIRS, Row
from .table import number

__all__ = ["draw"]

_LOOK = {
    THEIRS: RESUMED["torch"],
    "torchdata": SEEN["missed"],
    OURS: RESUMED["picklable_loader"],
}
_TICKS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


#: units of figures that are multiples of something even where torch has none
_MULTIPLES = ("of the speed without", "× ideal time", "×")


def _is_ratio(row: Row) -> bool:
    return row.figure.of_torch or row.figure.unit in _MULTIPLES


def draw(rows: list[Row], rounds: int, path: Path) -> None:
    """Draw all figures of ours and of torchdata's, each against torch's.

    Args:
        rows: what was measured.
        rounds: how often.
        path: the PNG file.
    """
    # A time of ours that torch has not is no multiple of anything.
    shown = [row for row in rows if row.values.get(OURS) and _is_ratio(row)]
    with rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
        size = (12, 1.7 + 0.3 * len(shown))
        picture = Picture(figsize=size, layout=layout, facecolor="white")
        axes = picture.subplots()
        for place, row in enumerate(shown):
            _row(axes, place, row)
        _scale(axes, shown)
        _legend(picture, axes)
        # Of the whole picture: the rows' names leave no room beside the axes.
        picture.suptitle(
            f"How many times better than torch's DataLoader, medians of {rounds} rounds",
            x=0.012,
            ha="left",
            fontsize=15,
            fontweight="bold",
        )
        picture.savefig(path, dpi=100, pil_kwargs={"optimize": True})


def _row(axes: Any, place: int, row: Row) -> None:
    """A bar from torch's to ours, a dot for torchdata's, a mark where ours has to get to."""
    ours = row.times_better(row.median(OURS) or 0.0)
    if ours is None:
        return
    look = _LOOK[OURS]
    axes.barh(place, ours - 1, left=1, height=0.52, color=look, alpha=0.28, lw=0)
    for side, size in ((THEIRS, 0), ("torchdata", 5), (OURS, 7)):
        _dot(axes, place, row, side, size)
    target = row.target_times_better()
    axes.plot([target] * 2, [place - 0.36, place + 0.36], color=INK, lw=1.6)
    missed = row.reached() is False
    axes.annotate(
        f"{number(ours)} ×" + (", target missed" if missed else ""),
        (max(filter(None, (1.0, target, *_values(row)))), place),
        (9, 0),
        textcoords="offset points",
        va="center",
        color=_LOOK[THEIRS] if missed else look,
        fontweight="bold",
    )


def _values(row: Row) -> list[float | None]:
    """Everything that is drawn of a row, so that no text lies on it."""
    return [row.times_better(value) for side in _LOOK for value in row.values.get(side, ())]


def _dot(axes: Any, place: int, row: Row, side: str, size: float) -> None:
    """The median, and a line from the worst to the best value."""
    median, spread = row.median(side), row.spread(side)
    if median is None or spread is None:
        return
    ends = [row.times_better(value) for value in spread]
    axes.plot(ends, [place] * 2, color=_LOOK[side], lw=1.6, solid_capstyle="round")
    axes.plot([row.times_better(median)], [place], "o", color=_LOOK[side], ms=size)


def _scale(axes: Any, rows: list[Row]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(_TICKS)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} ×"))
    axes.xaxis.set_minor_locator(NullLocator())
    drawn = [(*_values(row), row.target_times_better()) for row in rows]
    values = [value for ends in drawn for value in ends if value]
    axes.set_xlim(min([0.4, *(value * 0.8 for value in values)]), max([4, *values]) * 3.2)
    axes.grid(axis="x", color=PALE, lw=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    axes.axvline(1, color=_LOOK[THEIRS], lw=0.9)
    axes.set_yticks(range(len(rows)), [row.figure.name for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_color(FRAME)


def _legend(picture: Picture, axes: Any) -> None:
    axes.plot([], [], "-o", color=_LOOK[OURS], ms=7, label="picklable_loader, worst to best")
    axes.plot([], [], "-o", color=_LOOK["torchdata"], ms=5, label="torchdata, worst to best")
    axes.plot([], [], color=_LOOK[THEIRS], lw=1.4, label="torch (or no state saved)")
    axes.plot([], [], "|", color=INK, ms=11, mew=1.6, label="target")
    picture.legend(loc="outside lower center", frameon=False, ncols=4, columnspacing=1.6)
