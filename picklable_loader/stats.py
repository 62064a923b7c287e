"""Stats: what the workers and the consumer of an iterator did, in figures."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Stats", "WorkerStats"]


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One worker, since it was started.

    Attributes:
        pid: its process.
        tasks: batches that it has fetched, those that nobody wanted any more included.
        busy_s: seconds that it was busy with them, from taking a task to having its answer ready.
        idle_s: seconds of its life that it was not.
        arena_bytes: memory that the batches it has made take, and that it keeps for the next ones.
    """

    pid: int | None
    tasks: int
    busy_s: float
    idle_s: float
    arena_bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """An iterator's engine, since it was started.

    Attributes:
        workers: one entry a worker; with ``num_workers=0`` one for this process.
        waited_s: seconds that the consumer waited in ``next``.
        under_way: batches that workers have been asked for and have not answered.
        waiting: batches that have arrived and wait for delivery.
        waiting_bytes: memory that these take.
        prefetch_budget: how many batches may be under way or waiting, at present.
    """

    workers: tuple[WorkerStats, ...] = ()
    waited_s: float = 0.0
    under_way: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    prefetch_budget: int = 0
