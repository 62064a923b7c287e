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

#: batches that are timed at least, however long they take
_LEAST = 2

_NOTHING = object()


@dataclass(frozen=True)
class Trial:
    """What one loader did.

    Attributes:
        num_workers: how many it had.
        first_s: seconds from ``iter()`` to the first batch.
        batches: how many came after it, in any number of epochs.
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
        seconds: how long, the start of workers included; at least a few batches come.
        step_s: seconds that a training step takes, in which this process does nothing else.

    Raises:
        BenchError: it delivers nothing, or raises.
    """
    iterator = None
    try:
        begin = time.perf_counter()
        iterator = iter(loader)
        batch = next(iterator, _NOTHING)
        if batch is _NOTHING:
            raise BenchError(_NO_BATCH)
        first_s, before = time.perf_counter() - begin, _stats(iterator)
        size = _size(batch)
        del batch
        iterator, batches = _go_on(loader, iterator, begin + seconds, step_s)
        taken = time.perf_counter() - begin - first_s
        after = _stats(iterator)
    except BenchError:
        raise
    except Exception as error:
        raise BenchError(
            "the loader that it returned raised the exception above, with "
            f"num_workers={loader.num_workers}."
        ) from error
    finally:
        if isinstance(iterator, LoaderIterator):
            iterator.close()
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


def _go_on(
    loader: TorchDataLoader[Any], iterator: Any, deadline: float, step_s: float
) -> tuple[Any, int]:
    """Batches until the time is up; returns the iterator that is at work then, and how many."""
    batches, again = 0, False
    while True:
        before = batches
        for _ in iterator:
            batches += 1
            if step_s:
                time.sleep(step_s)
            if batches >= _LEAST and time.perf_counter() > deadline:
                return iterator, batches
        if again and batches == before:
            raise BenchError(_ONE_EPOCH)
        again = True
        del iterator  # as a for loop does: its workers end before the next ones start
        iterator = iter(loader)


def _stats(iterator: Any) -> Stats | None:
    return iterator.stats() if isinstance(iterator, LoaderIterator) else None


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
