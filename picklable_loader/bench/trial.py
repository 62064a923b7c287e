"""One trial: iterate over one loader for a while, epoch after epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from ..iterator import LoaderIterator
from ..stats import Stats
from .subject import BenchError

__all__ = ["Trial", "try_out"]

#: batches for each worker that are not timed, as workers had made them before: torch's window
_AHEAD = 2

_NOTHING = object()


@dataclass(frozen=True)
class Trial:
    """What one loader did.

    Attributes:
        num_workers: how many it had.
        first_s: seconds from ``iter()`` to the first batch.
        batches: how many were timed, in any number of epochs.
        seconds: that these took, training steps included.
        batch_bytes: size of the arrays in the first batch.
        busy: part of these seconds, from 0 to 1, that its workers were busy; None if not known.
        waited: part of them that the consumer waited; None if not known.
        budget: its prefetch budget at the end; None if not known.
    """

    num_workers: int
    first_s: float
    batches: int
    seconds: float
    batch_bytes: int
    busy: float | None = None
    waited: float | None = None
    budget: int | None = None

    @property
    def rate(self) -> float:
        """Batches a second."""
        return self.batches / self.seconds


def try_out(loader: TorchDataLoader[Any], seconds: float, step_s: float) -> Trial:
    """Iterate over a loader, as a training does.

    Args:
        loader: is as good as new afterwards, but for its sampler's random numbers.
        seconds: how long, about; half of it at least is for what is timed, from two batches on.
        step_s: seconds that a training step takes, in which this process does nothing else.

    Raises:
        BenchError: it delivers nothing, or raises.
    """
    pass_ = _Pass(loader, step_s)
    try:
        begin = time.perf_counter()
        size = _size(pass_.next())
        first_s = time.perf_counter() - begin
        pass_.go_on(_AHEAD * loader.num_workers)
        before, began = pass_.stats(), time.perf_counter()
        end = max(begin + seconds, began + seconds / 2)
        batches = pass_.go_on(max(2, loader.num_workers), end)
        taken, after = time.perf_counter() - began, pass_.stats()
    except BenchError:
        raise
    except Exception as error:
        raise BenchError(
            "the loader that it returned raised the exception above, with "
            f"num_workers={loader.num_workers}."
        ) from error
    finally:
        pass_.close()
    known = _told(before, after, taken) if loader.num_workers else {}
    return Trial(loader.num_workers, first_s, batches, taken, size, **known)


_NO_BATCH = (
    "the loader that it returned delivers no batch. Its dataset or sampler is empty, or has fewer "
    "samples than a batch while drop_last=True, or can be gone through only once."
)
_ONE_EPOCH = (
    "the loader that it returned delivers nothing in its second epoch: its dataset or sampler can "
    "be gone through only once. Give it an __iter__ that begins anew."
)


class _Pass:
    """A consumer, who begins a new epoch when one is over.

    Args:
        loader: what it iterates over.
        step_s: seconds that it takes for a batch.
    """

    def __init__(self, loader: TorchDataLoader[Any], step_s: float) -> None:
        self._loader = loader
        self._step_s = step_s
        self._iterator: Any = None

    def next(self) -> Any:
        """The next batch.

        Raises:
            BenchError: there is none, in a whole epoch.
        """
        begun = self._iterator is not None
        if begun:
            batch = next(self._iterator, _NOTHING)
            if batch is not _NOTHING:
                return batch
            self._iterator = None  # its workers end before the next ones start, as after a for loop
        self._iterator = iter(self._loader)
        batch = next(self._iterator, _NOTHING)
        if batch is _NOTHING:
            raise BenchError(_ONE_EPOCH if begun else _NO_BATCH)
        return batch

    def go_on(self, least: int, end: float = 0.0) -> int:
        """Take batches until it is that late, and so many at least; returns how many."""
        batches = 0
        while batches < least or time.perf_counter() < end:
            self.next()
            batches += 1
            if self._step_s:
                time.sleep(self._step_s)
        return batches

    def stats(self) -> Stats | None:
        """What its iterator tells; None if that is torch's."""
        iterator = self._iterator
        return iterator.stats() if isinstance(iterator, LoaderIterator) else None

    def close(self) -> None:
        """Retire the workers."""
        if isinstance(self._iterator, LoaderIterator):
            self._iterator.close()
        self._iterator = None


def _told(before: Stats | None, after: Stats | None, seconds: float) -> dict[str, Any]:
    """What the loader's own figures say of that time; nothing where its workers were exchanged."""
    if before is None or after is None:
        return {}
    pids = [[worker.pid for worker in stats.workers] for stats in (before, after)]
    if pids[0] != pids[1] or not pids[0]:
        return {}
    busy_s = sum(b.busy_s - a.busy_s for a, b in zip(before.workers, after.workers))
    return {
        "busy": min(1.0, busy_s / (len(pids[0]) * seconds)),
        "waited": min(1.0, (after.waited_s - before.waited_s) / seconds),
        "budget": after.prefetch_budget,
    }


def _size(batch: Any) -> int:
    """Bytes of the arrays and tensors in a batch."""
    found = getattr(batch, "nbytes", None)
    if isinstance(found, int):
        return found
    if isinstance(batch, Mapping):
        return sum(map(_size, batch.values()))
    return sum(map(_size, batch)) if isinstance(batch, (list, tuple)) else 0
