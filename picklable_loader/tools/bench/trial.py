"""One trial: iterate over one loader for a while, epoch after epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from ...fetching.engine.stats import Stats
from ...loader.iterator import LoaderIterator
from .subject import BenchError

#: busy for so much of the time, workers are what limits
FULL = 0.85
#: computing for less than this part of the time for which they are busy, they wait
_WAITING = 0.5

#: batches for each worker that are not timed, as workers had made them before: torch's window
_AHEAD = 2

_Figures = tuple[Stats, float]


@dataclass(frozen=True)
class Trial:
    """The measurements of one loader."""

    num_workers: int  #: how many it had
    first_s: float  #: seconds from ``iter()`` to the first batch
    batches: int  #: how many were timed, in any number of epochs
    seconds: float  #: that these took, training steps included
    batch_bytes: int  #: size of the arrays in the first batch
    #: part of these seconds, from 0 to 1, that its workers were busy; None if not known
    busy: float | None = None
    #: part of them that its workers ran on a core or waited for one; a busy worker that does
    #: neither waits for a disk or the network. None if not known.
    computing: float | None = None
    waited: float | None = None  #: part of them that the consumer waited; None if not known
    budget: int | None = None  #: its prefetch budget at the end; None if not known

    @property
    def waits(self) -> bool:
        """Its workers were always busy, and mostly waited for a disk, the network or a lock."""
        if self.busy is None or self.computing is None:
            return False
        return self.busy >= FULL and self.computing < _WAITING * self.busy

    @property
    def rate(self) -> float:
        """Batches a second."""
        return self.batches / self.seconds


def try_out(loader: TorchDataLoader[Any], seconds: float, step_s: float) -> Trial:
    """Iterate over a loader, as a training does; BenchError if it delivers nothing, or raises.

    Half of the seconds at least is for what is timed, from two batches on. A training step takes
    ``step_s``, in which this process does nothing else.
    """
    batches = _endless(loader)
    try:
        begin = time.perf_counter()
        _, first = next(batches)
        size, first_s = _size(first), time.perf_counter() - begin
        _, iterator = _take(batches, step_s, max(1, _AHEAD * loader.num_workers))
        before, began = _figures(iterator), time.perf_counter()
        end = max(begin + seconds, began + seconds / 2)
        count, iterator = _take(batches, step_s, max(2, loader.num_workers), end)
        taken, after = time.perf_counter() - began, _figures(iterator)
    except BenchError:
        raise
    except Exception as error:
        raise BenchError(
            "the loader that it returned raised the exception above, with "
            f"num_workers={loader.num_workers}."
        ) from error
    finally:
        batches.close()
    known = _measured(before, after, taken) if loader.num_workers else {}
    return Trial(loader.num_workers, first_s, count, taken, size, **known)


_NO_BATCH = (
    "the loader that it returned delivers no batch. Its dataset or sampler is empty, or has fewer "
    "samples than a batch while drop_last=True, or can be gone through only once."
)
_ONE_EPOCH = (
    "the loader that it returned delivers nothing in its second epoch: its dataset or sampler can "
    "be gone through only once. Give it an __iter__ that begins anew."
)


def _endless(loader: TorchDataLoader[Any]) -> Generator[tuple[Any, Any], None, None]:
    """Iterators and their batches, epoch after epoch; BenchError if one has none."""
    problem: str = _NO_BATCH
    iterator: Any = None
    try:
        while True:
            iterator = None  # its workers end before the next ones start, as after a for loop
            iterator = iter(loader)
            for batch in iterator:
                problem = ""
                yield iterator, batch
            if problem:
                raise BenchError(problem)
            problem = _ONE_EPOCH
    finally:
        if isinstance(iterator, LoaderIterator):
            iterator.close()


def _take(
    batches: Iterator[tuple[Any, Any]], step_s: float, least: int, end: float = 0.0
) -> tuple[int, Any]:
    """Take batches until it is that late, so many at least; how many, and the iterator in use."""
    count, iterator = 0, None
    while count < least or time.perf_counter() < end:
        iterator, _ = next(batches)
        count += 1
        if step_s:
            time.sleep(step_s)
    return count, iterator


def _figures(iterator: Any) -> _Figures | None:
    """An iterator's figures, and seconds that its workers ran; None if it is torch's."""
    if not isinstance(iterator, LoaderIterator):
        return None
    stats = iterator.stats()
    return stats, sum(_processor_s(worker.pid) for worker in stats.workers)


def _processor_s(pid: int | None) -> float:
    """Seconds that a process ran on a core or was ready to; NaN if the system does not say."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            ran_ns, ready_ns, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return math.nan
    return (ran_ns + ready_ns) / 1e9


def _measured(before: _Figures | None, after: _Figures | None, seconds: float) -> dict[str, Any]:
    """Shares of that time, by the figures; none where the workers were exchanged."""
    if before is None or after is None:
        return {}
    (first, ran_before_s), (last, ran_s) = before, after
    workers = last.workers
    if not workers or [each.pid for each in first.workers] != [each.pid for each in workers]:
        return {}
    busy_s = sum(b.busy_s - a.busy_s for a, b in zip(first.workers, workers))
    computing = (ran_s - ran_before_s) / (len(workers) * seconds)
    return {
        "busy": min(1.0, busy_s / (len(workers) * seconds)),
        "computing": None if math.isnan(computing) else min(1.0, computing),
        "waited": min(1.0, (last.waited_s - first.waited_s) / seconds),
        "budget": last.prefetch_budget,
    }


def _size(batch: Any) -> int:
    """Bytes of the arrays and tensors in a batch."""
    found = getattr(batch, "nbytes", None)
    if isinstance(found, int):
        return found
    if isinstance(batch, Mapping):
        return sum(map(_size, batch.values()))
    return sum(map(_size, batch)) if isinstance(batch, (list, tuple)) else 0
