"""Portrait: what there is to say of a loader or an iterator, and that in one line.

People print things at any moment, debuggers at every step. A portrait starts and draws nothing,
takes some milliseconds at most, and never raises: what cannot be found out is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.plan import Unit
from ...epoch.spec import anatomy, is_iterable
from ...fetching.engine.stats import Stats
from ...orders.torch_samplers import describe
from ...saving.pickles.placeholder import name_of
from ...saving.pickles.size import Weight, weigh

if TYPE_CHECKING:
    from ..loader import DataLoader
    from ..pickling_iterator import Standing

__all__ = ["Portrait", "in_one_line", "of_iterator", "of_loader"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Portrait:
    """What there is to say; None wherever it cannot be said.

    Attributes:
        name: of the class.
        doing: "running", "finished", "closed" or "before its start"; of a loader, what the next
            ``iter`` does.
        epoch: the epoch at hand, from 0.
        step: batches delivered in it.
        total: batches in the whole epoch.
        settings: names and values, of what somebody would want to know of a loader.
        workers: num_workers.
        stats: what workers and consumer did; of an iterator only.
        weight: what a pickle would take.
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


def of_iterator(iterator: Standing[Any]) -> Portrait:
    """The portrait of an iterator."""
    loader = iterator.loader
    return Portrait(
        name=type(iterator).__name__,
        doing=_or_none(lambda: _doing(iterator)),
        epoch=_or_none(lambda: iterator.epoch),
        step=_or_none(lambda: iterator.step),
        total=_or_none(lambda: total(loader)),
        settings=_or_none(lambda: _settings(loader)) or (),
        workers=_or_none(lambda: loader.num_workers) or 0,
        stats=_or_none(iterator.driver.stats),
        weight=_or_none(lambda: _weight(iterator)),
    )


def of_loader(loader: DataLoader[Any]) -> Portrait:
    """The portrait of a loader."""
    return Portrait(
        name=type(loader).__name__,
        doing=_or_none(lambda: _next(loader)),
        epoch=_or_none(lambda: loader.epoch),
        step=_or_none(lambda: _step(loader)),
        total=_or_none(lambda: total(loader)),
        settings=_or_none(lambda: _settings(loader)) or (),
        workers=_or_none(lambda: loader.num_workers) or 0,
        weight=_or_none(lambda: weigh(loader)),
    )


def in_one_line(portrait: Portrait) -> str:
    """A portrait as ``repr`` gives it."""
    told = [
        *(f"{name} {value}" for name, value in portrait.settings if portrait.stats is None),
        _position(portrait),
        f"num_workers={portrait.workers}",
        portrait.doing,
        None if portrait.busy is None else f"workers {portrait.busy:.0%} busy",
        None if portrait.weight is None else f"pickles to {portrait.weight}",
    ]
    return f"<{portrait.name}: {', '.join(each for each in told if each)}>"


def total(loader: DataLoader[Any]) -> int | None:
    """Batches in an epoch; None where the sampler has no length.

    Torch's ``len`` of a loader has it warn from now on if an iterable-style dataset gives more
    than it has promised. To look at a loader is no reason for that.
    """
    called = loader._IterableDataset_len_called
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
    finally:
        loader._IterableDataset_len_called = called


# --- what it is made of --------------------------------------------------------------------------


def _or_none(find: Callable[[], _T | None]) -> _T | None:
    try:
        return find()
    except Exception:  # a dataset whose length cannot be had, a loader that is half built
        return None


def _doing(iterator: Standing[Any]) -> str:
    if iterator.finished:
        return "finished"
    if iterator.closed:
        return "closed"
    return "running" if iterator.driver.at_work else "before its start"


def _next(loader: DataLoader[Any]) -> str | None:
    return None if loader._pl.resume is None else "goes on from a state"


def _step(loader: DataLoader[Any]) -> int:
    """Where the newest iterator stands; 0 if the next epoch is to begin."""
    inner = loader._pl
    if inner.resume is not None:
        return int(inner.resume["step"]) if inner.resume["epoch"] == loader.epoch else 0
    newest, run = inner.newest, inner.run
    if newest is not None:
        return 0 if newest.finished else newest.step
    return 0 if run is None or run.finished else run.step


def _weight(iterator: Standing[Any]) -> Weight:
    """A sampler of the user's is not asked for its state: it is left out as the dataset is."""
    loader, run, parts = iterator.loader, iterator.run, anatomy(iterator.loader)
    if run is None:
        return weigh(loader, iterator.pending)
    if run.unmoved is not None:
        return weigh(loader, run.unmoved)
    if parts.known:
        with loader._pl.turn.still(wait=False):  # whoever looks for a fault must not wait
            return weigh(loader, run.snapshot(live=True))
    weight, name = weigh(loader), type(parts.sampler).__qualname__
    return replace(weight, left_out=tuple(dict.fromkeys([*weight.left_out, name])))


def _settings(loader: DataLoader[Any]) -> tuple[tuple[str, str], ...]:
    parts = anatomy(loader)
    dataset: Any = loader.dataset
    name = name_of(dataset)
    count = None if is_iterable(loader) else _or_none(lambda: len(dataset))
    settings = [("dataset", name if count is None else f"{name} of {count:,} samples")]
    if parts.grouping.unit is Unit.SAMPLE_OF_BATCH:
        settings.append(("batches of", f"{parts.grouping.batch_size}"))
    if parts.sampler is not None:
        settings.append(("order", describe(parts.sampler)))
    if loader._pl.options.seed is not None:
        settings.append(("seed", f"{loader._pl.options.seed}"))
    return tuple(settings)


def _position(portrait: Portrait) -> str | None:
    if portrait.epoch is None or portrait.step is None:
        return None
    of = "" if portrait.total is None else f" of {portrait.total}"
    return f"epoch {portrait.epoch}, {portrait.step}{of} batches delivered"
