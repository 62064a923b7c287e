"""A batch of the past (or future) again: ``DataLoader.batch_at``."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from .anatomy import first_task
from .core.cursor import Cursor
from .core.events import Task
from .core.seeds import base_seed
from .core.snapshot import from_plain
from .errors import CannotSaveError, UsageError
from .randomness import Isolated
from .source import Setting
from .worker.fetch import make_fetcher
from .worker.seeding import set_current

if TYPE_CHECKING:
    from .loader import DataLoader

__all__ = ["batch_at"]


def batch_at(loader: DataLoader[Any], step: int, epoch: int | None) -> Any:
    """See `DataLoader.batch_at`."""
    _check_repeatable(loader)
    cursor = _cursor(loader)
    if epoch is None:
        epoch = cursor.epoch
    seed = loader._options.seed
    if epoch != cursor.epoch or cursor.base_seed is None:
        if seed is None:
            raise UsageError(
                f"the random numbers of epoch {epoch} are not known: only the epoch at hand is, "
                f"or any one with DataLoader(..., seed=)"
            )
        cursor = Cursor(epoch, base_seed=base_seed(seed, epoch))
    task = _task(loader, cursor, step)
    before = set_current(None)
    try:
        with Isolated():
            return make_fetcher(loader._job(), cursor.base_seed or 0, epoch).fetch(task)
    finally:
        set_current(before)


def _task(loader: DataLoader[Any], cursor: Cursor, step: int) -> Task:
    saved = cursor.order
    elsewhere = saved is None and loader._options.seed is not None
    setting = Setting(loader._source.apart(), cursor.epoch, saved, elsewhere)
    try:
        return first_task(loader, setting, step)
    except StopIteration:
        raise IndexError(f"epoch {cursor.epoch} has no step {step}") from None


def _cursor(loader: DataLoader[Any]) -> Cursor:
    """The cursor of the epoch at hand."""
    newest = loader._newest
    run = loader._run if newest is None or newest.run is None else newest.run
    try:
        if run is not None:
            return run.cursor(live=False)
        return from_plain(copy.deepcopy(loader.state_dict()))[0]
    except CannotSaveError as error:
        raise UsageError(f"batch_at has to replay the sampler, but {error}") from error


def _check_repeatable(loader: DataLoader[Any]) -> None:
    if loader._iterable:
        raise UsageError("batch_at needs a map-style dataset: an iterable-style one has no steps")
    if loader._options.seeding == "worker":
        raise UsageError(
            'batch_at needs seeding="batch" or "sample": with "worker" a batch depends on all that '
            "its worker did before"
        )
