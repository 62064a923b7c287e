"""Description of a loader or an iterator: as a `Description` of fields, and as one line of text.

People print things at any moment, debuggers at every step. A description starts and draws nothing,
takes some milliseconds at most, and never raises: a field that cannot be found out is None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ...core.plan import Unit
from ...epoch.spec import Spec
from ...fetching.engine.stats import Stats
from ...orders.sampler_facts import describe as describe_sampler
from ...saving.pickles.placeholder import name_of
from ...saving.pickles.size import Weight

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Description:
    """Fields that describe a loader or an iterator; None wherever one is not known.

    ``doing`` is "running", "finished", "closed" or "before its start"; of a loader, what the next
    ``iter`` does. ``stats`` is of an iterator only, ``weight`` the size that a pickle would have.
    """

    name: str
    doing: str | None = None
    epoch: int | None = None
    step: int | None = None
    total: int | None = None
    settings: tuple[tuple[str, str], ...] = ()
    workers: int = 0
    stats: Stats | None = None
    weight: Weight | None = None

    @property
    def progress(self) -> float | None:
        """Part of the epoch that was delivered, from 0 to 1."""
        if self.step is None or self.total is None:
            return None
        return min(1.0, self.step / self.total) if self.total > 0 else 1.0

    @property
    def busy(self) -> float | None:
        """Part of their time that the workers were busy, from 0 to 1; None if there are none."""
        workers = self.stats.workers if self.stats is not None and self.workers else ()
        busy_s, idle_s = sum(w.busy_s for w in workers), sum(w.idle_s for w in workers)
        return busy_s / (busy_s + idle_s) if busy_s + idle_s else None


def describe(
    owner: object,
    spec: Callable[[], Spec],
    total: Callable[[], int | None],
    doing: Callable[[], str | None],
    position: Callable[[], tuple[int, int]],
    weight: Callable[[], Weight],
    stats: Callable[[], Stats] | None = None,
) -> Description:
    """The description of a loader, or of an iterator.

    All but ``owner`` give one part each, and may raise anything.
    """
    epoch, step = _or_none(position) or (None, None)
    return Description(
        name=type(owner).__name__,
        doing=_or_none(doing),
        epoch=epoch,
        step=step,
        total=_or_none(total),
        settings=_or_none(lambda: _settings(spec())) or (),
        workers=_or_none(lambda: spec().workers) or 0,
        stats=None if stats is None else _or_none(stats),
        weight=_or_none(weight),
    )


def in_one_line(description: Description) -> str:
    """A description as ``repr`` gives it."""
    parts = [
        *(f"{name} {value}" for name, value in description.settings if description.stats is None),
        _position(description),
        f"num_workers={description.workers}",
        description.doing,
        None if description.busy is None else f"workers {description.busy:.0%} busy",
        None if description.weight is None else f"pickles to {description.weight}",
    ]
    return f"<{description.name}: {', '.join(each for each in parts if each)}>"


# --- what it is made of --------------------------------------------------------------------------


def _or_none(find: Callable[[], _T | None]) -> _T | None:
    try:
        return find()
    except Exception:  # a dataset whose length cannot be had, a loader that is half built
        return None


def _settings(spec: Spec) -> tuple[tuple[str, str], ...]:
    dataset: Any = spec.dataset
    name = name_of(dataset)
    count = None if spec.iterable else _or_none(lambda: len(dataset))
    settings = [("dataset", name if count is None else f"{name} of {count:,} samples")]
    if spec.grouping.unit is Unit.SAMPLE_OF_BATCH:
        settings.append(("batches of", f"{spec.grouping.batch_size}"))
    if spec.sampler is not None:
        settings.append(("order", describe_sampler(spec.sampler)))
    if spec.options.seed is not None:
        settings.append(("seed", f"{spec.options.seed}"))
    return tuple(settings)


def _position(description: Description) -> str | None:
    if description.epoch is None or description.step is None:
        return None
    of = "" if description.total is None else f" of {description.total}"
    return f"epoch {description.epoch}, {description.step}{of} batches delivered"
