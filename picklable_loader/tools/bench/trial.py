"""One trial: iterate over one loader for a while, epoch after epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
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

_NOTHING = object()

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
    pass_ = _Pass(loader, step_s)
    try:
        begin = time.perf_counter()
        size = _size(pass_.next())
        first_s = time.perf_counter() - begin
        pass_.go_on(_AHEAD * loader.num_workers)
        before, began = pass_.figures(), time.perf_counter()
        end = max(begin + seconds, began + seconds / 2)
        batches = pass_.go_on(max(2, loader.num_workers), end)
        taken, after = time.perf_counter() - began, pass_.figures()
    except BenchError:
        raise
    except Exception as error:
        raise BenchError(
            "the loader that it returned raised the exception above, with "
            f"num_workers={loader.num_workers}."
        ) from error
    finally:
        pass_.close()
    known = _measured(before, after, taken) if loader.num_workers else {}
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
    """A consumer, who begins a new epoch when one is over."""

    def __init__(self, loader: TorchDataLoader[Any], step_s: float) -> None:
        self._loader = loader
        self._step_s = step_s
        self._iterator: Any = None

    def next(self) -> Any:
        """The next batch; BenchError if a whole epoch has none."""
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

    def figures(self) -> _Figures | None:
        """Its iterator's figures, and seconds that its workers ran; None if it is torch's."""
        iterator = self._iterator
        if not isinstance(iterator, LoaderIterator):
            return None
        stats = iterator.stats()
        return stats, sum(_processor_s(worker.pid) for worker in stats.workers)

    def close(self) -> None:
        """Retire the workers."""
        if isinstance(self._iterator, LoaderIterator):
            self._iterator.close()
        self._iterator = None


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
