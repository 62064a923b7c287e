"""Figures of the workers and the consumer of an iterator: busy and waiting times, bytes, tasks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

#: batches and waits that a record holds: enough for a picture, and some 200 kB at most
KEPT = 1000


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One worker number, since the engine was started: a replacement adds to its predecessor's.

    Attributes:
        pid: its process, as it is now.
        tasks: batches that it has fetched, those that nobody wanted any more included.
        busy_s: seconds that it was busy, from the start of a task until its answer is ready. The
            task at hand counts where it is known that it has one: all of its tasks are for it
            alone, or as many are under way as there are workers.
        idle_s: seconds of its life that it was not.
        arena_bytes: memory of the batches that it has made, and of those that come next.
    """

    pid: int | None
    tasks: int
    busy_s: float
    idle_s: float
    arena_bytes: int


@dataclass(frozen=True, slots=True)
class SkippedSample:
    """A bad sample, which its batch was delivered without.

    Attributes:
        epoch: the epoch, from 0.
        step: the batch's number within it, from 0.
        stream: the stream that it belongs to; None for map-style data.
        index: what the dataset was asked for; of a stream, the number of the sample in it, from 0.
        error: what the dataset raised, as text.
    """

    epoch: int
    step: int
    stream: int | None
    index: Any
    error: str

    def __str__(self) -> str:
        stream = "" if self.stream is None else f" of stream {self.stream}"
        where = f"epoch {self.epoch}, step {self.step}, index {self.index!r}{stream}"
        return f"{where}: {self.error}"


@dataclass(frozen=True, slots=True)
class Stats:
    """An iterator's engine, since it was started; once it is closed, what it was in the end.

    Attributes:
        workers: one entry a worker; with ``num_workers=0`` one for this process.
        waited_s: seconds that the consumer waited in ``next``.
        under_way: batches that workers have been asked for and have not answered.
        waiting: batches that have arrived and wait for delivery, looked at by the consumer or not.
        waiting_bytes: memory that these take.
        prefetch_budget: how many batches may be under way or waiting, at present; after the epoch,
            at its end.
        skipped: bad samples that were left out of batches that this iterator has delivered, or
            passed over (``on_error``); what was delivered before a resume counts no more.
        last_skipped: the last 100 of them, the newest last.
    """

    workers: tuple[WorkerStats, ...] = ()
    waited_s: float = 0.0
    under_way: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    prefetch_budget: int = 0
    skipped: int = 0
    last_skipped: tuple[SkippedSample, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """When the last batches came, and when the consumer waited; what `timeline` is made of.

    It is always on, at a tenth of a microsecond an entry: users ask why an epoch was slow only
    afterwards. It goes into no pickle.

    Attributes:
        answers: the worker, when the consumer saw its answer, for how long it was busy with it and
            how long it was idle before; in nanoseconds of ``time.perf_counter_ns``, the oldest
            first.
        waits: from when to when the consumer waited.
    """

    answers: tuple[tuple[int, int, int, int], ...] = ()
    waits: tuple[tuple[int, int], ...] = ()


class BadSamples:
    """The bad samples that batches were delivered without, over all engines of a driver."""

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[SkippedSample] = deque(maxlen=100)
        #: the first one of an epoch, until the user is warned
        self.unreported: SkippedSample | None = None
        self._epoch: int | None = None

    def note(self, samples: Iterable[SkippedSample]) -> None:
        """A batch was delivered without these, perhaps once more: an interruption takes it back."""
        noted = {(sample.epoch, sample.step) for sample in self.last}
        for sample in samples:
            if (sample.epoch, sample.step) in noted:
                continue
            if sample.epoch != self._epoch:
                self._epoch, self.unreported = sample.epoch, sample
            self.count += 1
            self.last.append(sample)


class _Clock:
    """Counters of one worker."""

    __slots__ = ("arena_bytes", "began_ns", "busy_ns", "since_ns", "tasks", "under_way")

    def __init__(self) -> None:
        self.began_ns = self.since_ns = time.perf_counter_ns()
        self.tasks = self.busy_ns = self.arena_bytes = 0
        #: tasks that are for it alone; it has been at the first of them since, at the earliest
        self.under_way = 0


class Clocks:
    """Counters of all workers.

    A task for any worker has a known worker only when that answers. But no worker is idle while as
    many of these are under way as there are workers.
    """

    def __init__(self, workers: int) -> None:
        self._clocks = [_Clock() for _ in range(workers)]
        #: tasks for anybody, and since when there is one for everybody
        self._under_way = 0
        self._enough_ns = 0
        #: see `Record`
        self.last_answers: deque[tuple[int, int, int, int]] = deque(maxlen=KEPT)

    def sent(self, worker: int | None) -> None:
        """A task is sent to a worker, or to any."""
        if worker is None:
            self._under_way += 1
            if self._under_way == len(self._clocks):
                self._enough_ns = time.perf_counter_ns()
            return
        clock = self._clocks[worker]
        if not clock.under_way:
            clock.since_ns = time.perf_counter_ns()
        clock.under_way += 1

    def answered(
        self,
        worker: int,
        busy_ns: int,
        idle_ns: int = 0,
        arena_bytes: int = 0,
        ended: bool = False,
    ) -> None:
        """A worker's answer is here; ``ended`` if there was no batch any more."""
        clock = self._clocks[worker]
        clock.since_ns = now_ns = time.perf_counter_ns()
        self.last_answers.append((worker, now_ns, busy_ns, idle_ns))
        clock.tasks += not ended
        clock.busy_ns += busy_ns
        clock.arena_bytes = arena_bytes
        if clock.under_way:
            clock.under_way -= 1
        else:
            self._under_way -= 1

    def died(self, worker: int) -> None:
        """A worker is replaced; all that was for it is lost."""
        self._clocks[worker].under_way = 0
        self._clocks[worker].since_ns = time.perf_counter_ns()

    def lost(self, tasks: int) -> None:
        """So many tasks for any worker are no longer under way."""
        self._under_way -= tasks

    def stats(self, pids: Sequence[int | None]) -> tuple[WorkerStats, ...]:
        now_ns, found = time.perf_counter_ns(), []
        for clock, pid in zip(self._clocks, pids):
            busy_ns = clock.busy_ns
            if clock.under_way:
                busy_ns += now_ns - clock.since_ns
            elif self._under_way >= len(self._clocks):
                busy_ns += max(0, now_ns - max(clock.since_ns, self._enough_ns))
            idle_ns = max(0, now_ns - clock.began_ns - busy_ns)
            figures = clock.tasks, busy_ns / 1e9, idle_ns / 1e9, clock.arena_bytes
            found.append(WorkerStats(pid, *figures))
        return tuple(found)
