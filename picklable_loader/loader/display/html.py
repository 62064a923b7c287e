"""Shows a description as HTML, for notebooks.

The HTML is one element with its own style: no script, nothing loaded, and no table, which notebooks
style in their own way. It takes the colour of the text around it, and so suits light and dark
pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ...fetching.engine.stats import Stats
from ...saving.pickles.size import in_words
from .describe import Description

#: these can be told from white and from black
_DONE, _BUSY = "#2f9e6e", "#3d85d8"

_FRAME = (
    "display:inline-block;min-width:33em;max-width:44em;padding:.7em 1em;margin:.2em 0;"
    "border:1px solid rgba(128,128,128,.45);border-radius:6px;"
    "font:13px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif;color:inherit"
)
_GRID = "display:grid;grid-template-columns:max-content 1fr;gap:.15em 1em;align-items:center"
_QUIET = "opacity:.65"
_TAG = (
    "float:right;margin-left:1.5em;padding:0 .6em;border:1px solid currentColor;"
    "border-radius:1em;font-size:85%;opacity:.75"
)
_TRACK = (
    "display:inline-block;vertical-align:middle;overflow:hidden;border-radius:3px;"
    "background:rgba(128,128,128,.28)"
)
#: a card of 64 workers is still one that can be seen
_MOST_WORKERS = 8


def card(description: Description) -> str:
    """A description as one element of HTML."""
    tag = f'<span style="{_TAG}">{escape(description.doing)}</span>' if description.doing else ""
    rows = "".join(
        f'<div style="{_QUIET}">{escape(name)}</div><div>{value}</div>'
        for name, value in _rows(description)
    )
    return (
        f'<div style="{_FRAME}">{tag}<b>{escape(description.name)}</b>{_where(description)}'
        f'<div style="{_GRID}">{rows}</div></div>'
    )


def _where(description: Description) -> str:
    """The position, in words and as a bar."""
    if description.epoch is None or description.step is None:
        return ""
    of = "" if description.total is None else f" of {description.total:,}"
    words = f"epoch {description.epoch}, {description.step:,}{of} batches delivered"
    part = description.progress
    percent = "" if part is None else f' <span style="{_QUIET}">{part:.0%}</span>'
    bar = "" if part is None else f"<div>{_bar(part, '100%', '8px', _DONE, 'delivered')}</div>"
    return f'<div style="margin:.25em 0 .5em">{words}{percent}{bar}</div>'


def _rows(description: Description) -> Iterator[tuple[str, str]]:
    """Names, and values as HTML."""
    yield from ((name, escape(value)) for name, value in description.settings)
    if description.stats is None or not description.workers:
        yield "workers", f"{description.workers or 'none: this process fetches'}"
    elif not description.stats.workers:
        yield "workers", f"{description.workers}, not started"
    else:
        yield from _workers(description.stats)
    if description.stats is not None and description.stats.workers:
        yield "consumer", escape(_consumer(description.stats, description.workers))
        if description.stats.skipped:
            yield "bad samples", f"{description.stats.skipped:,} left out"
    if description.weight is not None:
        yield "its pickle", escape(str(description.weight))


def _workers(stats: Stats) -> Iterator[tuple[str, str]]:
    for number, worker in enumerate(stats.workers[:_MOST_WORKERS]):
        life_s = worker.busy_s + worker.idle_s
        part = worker.busy_s / life_s if life_s else 0.0
        bar = _bar(part, "7em", "7px", _BUSY, "busy")
        batches = "1 batch" if worker.tasks == 1 else f"{worker.tasks:,} batches"
        pid = "" if worker.pid is None else f", pid {worker.pid}"
        quiet = f'<span style="{_QUIET}">{batches}{pid}</span>'
        yield f"worker {number}", f"{bar} {part:.0%} busy &nbsp;{quiet}"
    if more := len(stats.workers) - _MOST_WORKERS:
        if more > 0:
            yield "", f"and {more} more"


def _consumer(stats: Stats, workers: int) -> str:
    waited_s = stats.waited_s
    waited = f"waited {waited_s:.1f} s" if waited_s >= 1 else f"waited {1000 * waited_s:.1f} ms"
    if not workers:
        return waited
    size = f" ({in_words(stats.waiting_bytes)})" if stats.waiting else ""
    return f"{waited}; {stats.waiting} ready{size}, {stats.under_way} under way"


def _bar(part: float, width: str, height: str, colour: str, label: str) -> str:
    """A bar that is full to a part, from 0 to 1."""
    percent = f"{100 * part:.1f}".removesuffix(".0")
    return (
        f'<span role="progressbar" aria-label="{label}" aria-valuenow="{percent}" '
        f'style="{_TRACK};width:{width};height:{height}">'
        f'<span style="display:block;width:{percent}%;height:100%;background:{colour}"></span>'
        "</span>"
    )
