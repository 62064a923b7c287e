"""The pool's engine: what it makes of answers whose workers are dead."""

from __future__ import annotations

from typing import Any

import pytest

from picklable_loader.core.events import Arrived, Died
from picklable_loader.core.task import Task
from picklable_loader.errors import RestartWarning
from picklable_loader.fetching.engine.pool_engine import FaultPolicy, PoolEngine
from picklable_loader.fetching.pool.exit import Death
from picklable_loader.fetching.transport.messages import (
    Answer,
    EpochStart,
    encode_answer,
    read_answer,
)
from picklable_loader.fetching.worker.loop import WorkerConfig


def answer(step: int) -> bytes:
    return encode_answer(Answer(1, step, 0, Arrived, "batch", ticket=step + 1))


class DyingPool:
    """A pool of one worker, which has answered and is dead.

    Args:
        frames: its answers.
        gone: one that cannot be read any more: its shared memory went with its worker.
    """

    pids = [7]

    @property
    def lines(self) -> DyingPool:
        return self

    def __init__(self, *frames: bytes, gone: bytes) -> None:
        self.frames = [(0, frame) for frame in frames]
        self.gone = gone
        self.replaced = 0

    @property
    def lost_worker(self) -> bool:
        return not self.frames

    def post(self, worker: int | None, frame: bytes) -> int | None:
        return worker

    def wait(self, timeout_s: float | None) -> list[tuple[int, bytes]]:
        return [self.frames.pop(0)] if self.frames else []

    def read(self, worker: int, frame: bytes) -> Answer:
        if frame == self.gone:
            raise ConnectionResetError
        return read_answer(frame)

    def dies(self, worker: int) -> bool:
        return True

    def deaths(self) -> list[Death]:
        return [Death(0, 7, -9)]

    def close(self, worker: int) -> list[tuple[int, bytes]]:
        return [(0, answer(2))]

    def at_hand(self, worker: int, owed: list[int]) -> int | None:
        return owed[0] if owed else None

    def replace(self, worker: int, post: WorkerConfig) -> None:
        self.replaced += 1


def test_what_comes_after_an_answer_that_is_lost_is_lost_as_well() -> None:
    """A stream whose batch 1 is done again must not have given batch 2 before."""
    pool: Any = DyingPool(answer(0), answer(1), gone=answer(1))
    engine = PoolEngine(pool, [WorkerConfig(0, 1, 0)], FaultPolicy(0.0, "raise", 3))
    engine.begin(EpochStart(0), {}, {})
    for step in range(3):
        engine.send(0, Task(step, None, 0, 0))
    with pytest.warns(RestartWarning, match="steps 1, 2 are fetched again"):
        happened = [engine.wait(), engine.wait()]
    assert isinstance(happened[0], Arrived) and happened[0].step == 0
    assert happened[1] == Died(0, [1, 2], None)  # it had done both, and died of neither
    assert pool.replaced == 1
