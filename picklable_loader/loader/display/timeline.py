"""Shows when workers were busy and when the consumer waited, as bars, and as a picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from ...fetching.engine.stats import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: start and length, in seconds
Span = tuple[float, float]

#: these can be told from white and from black, and by people who cannot tell red from green
_BUSY, _WAITING = "#3d85d8", "#e08a2e"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Work and waiting times, in seconds from the first that is shown.

    Attributes:
        workers: by worker, start and length of each batch's making.
        waiting: start and length of each time that the consumer waited for a batch.
        seconds: from the first to the last.
    """

    workers: tuple[tuple[Span, ...], ...]
    waiting: tuple[Span, ...]
    seconds: float

    def busy(self, worker: int) -> float:
        """Part of the time that a worker was busy, from 0 to 1.

        There is none (IndexError) of a worker that the loader does not have.
        """
        if not 0 <= worker < len(self.workers):
            last = len(self.workers) - 1
            raise IndexError(f"worker should be from 0 to {last}, got worker={worker}")
        return _part(self.workers[worker], self.seconds)

    @property
    def waited(self) -> float:
        """Part of the time that the consumer waited, from 0 to 1."""
        return _part(self.waiting, self.seconds)


def timeline(record: Record, workers: int, batches: int) -> Timeline:
    """The timeline of a record's last batches.

    Workers report how long they were busy with a batch, and idle before it, by clocks that are not
    synchronized. The consumer knows when it saw each batch, which may be much later. A batch was
    ready when it was seen, at the latest, and as long before the next one as its worker reports.
    """
    if not record.answers:
        return Timeline(((),) * workers, (), 0.0)
    spans: list[tuple[int, int, int]] = []
    #: by worker, when the batch before was ready, at the latest
    ready: dict[int, int] = {}
    for worker, seen_ns, busy_ns, idle_ns in reversed(record.answers):
        end = min(seen_ns, ready.get(worker, seen_ns))
        spans.append((worker, end - busy_ns, end))
        ready[worker] = end - busy_ns - idle_ns
    spans = spans[:batches][::-1]
    first = min(start for _, start, _ in spans)
    last = max(end for _, _, end in spans)
    waits = [(max(start, first), end) for start, end in record.waits if end > first]
    last = max([last, *(end for _, end in waits)])
    lanes: list[list[Span]] = [[] for _ in range(workers)]
    for worker, start, end in spans:
        lanes[worker].append(_in_seconds(start, end, first))
    return Timeline(
        tuple(map(tuple, lanes)),
        tuple(_in_seconds(start, end, first) for start, end in waits),
        (last - first) / 1e9,
    )


def draw(shown: Timeline, axes: Axes | None = None) -> Axes:
    """Draw it: a row for each worker, and one for the consumer. None makes a new figure.

    Colours of text and background are those of the style in use.
    """
    axes = _new_axes(len(shown.workers)) if axes is None else axes
    # Seconds are easier to read than 0.0005.
    unit, factor = ("s", 1.0) if shown.seconds >= 1 else ("ms", 1e3)
    width = shown.seconds * factor
    rows = [*shown.workers, shown.waiting]
    for row, spans in enumerate(rows):
        colour = _WAITING if row == len(shown.workers) else _BUSY
        axes.barh(row, width, 0.66, color="0.5", alpha=0.22, linewidth=0)
        bars = [(start * factor, length * factor) for start, length in spans]
        axes.broken_barh(bars, (row - 0.33, 0.66), facecolors=colour, edgecolor="none")
        # The same once more, lighter where every other batch is: so many batches, and not one.
        axes.broken_barh(bars[1::2], (row - 0.33, 0.66), facecolors="white", alpha=0.22, lw=0)
    names = [f"worker {w}: {shown.busy(w):.0%} busy" for w in range(len(shown.workers))]
    axes.set_yticks(range(len(rows)), [*names, f"consumer: {shown.waited:.0%} waiting"])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, width or 1)
    axes.set_xlabel(unit)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    _add_legend(axes)
    return axes


# --- the data ------------------------------------------------------------------------------------


def _in_seconds(start: int, end: int, first: int) -> Span:
    return (start - first) / 1e9, (end - start) / 1e9


def _part(spans: Iterable[Span], seconds: float) -> float:
    return min(1.0, sum(length for _, length in spans) / seconds) if seconds else 0.0


# --- the picture ---------------------------------------------------------------------------------


def _new_axes(workers: int) -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError:
        raise UsageError(
            "plot() needs matplotlib, which is not installed: "
            "pip install 'picklable-loader[plot]'. timeline() has the same in figures"
        ) from None
    _, axes = pyplot.subplots(figsize=(9, 1.2 + 0.42 * (workers + 1)), layout="constrained")
    return axes


def _add_legend(axes: Axes) -> None:
    from matplotlib.patches import Patch

    parts: list[tuple[str, Any]] = [("busy", _BUSY), ("waiting", _WAITING)]
    handles = [Patch(facecolor=colour, label=label) for label, colour in parts]
    handles.append(Patch(facecolor="0.5", alpha=0.3, label="idle; the consumer: at its own work"))
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
