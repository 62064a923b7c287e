"""The engine, with workers that the tests play: at any moment between two of their steps."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from picklable_loader.core.events import Arrived, Died
from picklable_loader.core.task import Task
from picklable_loader.errors import RestartWarning
from picklable_loader.fetching.engine.pool_engine import FaultPolicy, PoolEngine
from picklable_loader.fetching.pool.exit import Death
from picklable_loader.fetching.pool.pool import Pool
from picklable_loader.fetching.transport.channels import Channel, Lines
from picklable_loader.fetching.transport.messages import (
    Answer,
    EpochStart,
    Request,
    read_request,
    ticket_of,
)
from picklable_loader.fetching.transport.pipes import PipeLines
from picklable_loader.fetching.transport.seqpacket import PacketLines
from picklable_loader.fetching.worker.replica import WorkerConfig


class Stage:
    """Two workers, which do what the test says; the first one may die."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.pids = [1, 2]
        self.ends: dict[int, Any] = {}
        self.channels = [self._open(worker) for worker in (0, 1)]

    def _open(self, worker: int) -> Channel:
        self.ends[worker] = self.lines.open(multiprocessing.get_context("fork"), worker)
        channel: Channel = self.ends[worker].open()
        return channel

    def dies(self, worker: int) -> bool:
        return worker == 0

    def deaths(self) -> list[Death]:
        return [Death(0, 1, -9)]

    def replace(self, worker: int, config: WorkerConfig) -> None:
        self.channels[worker] = self._open(worker)

    def take(self, worker: int, notes: bool = True) -> Request:
        request = read_request(self.channels[worker].receive())
        if notes:
            self.channels[worker].note(request.ticket)
        return request

    def answer(self, worker: int, request: Request) -> None:
        task = cast(Task, request.task)
        ticket = request.ticket
        batch = Answer(request.run, task.step, worker, Arrived, task.indices, ticket=ticket)
        self.channels[worker].send(batch, time.perf_counter_ns())

    def die(self) -> None:
        self.ends[0].close()


@pytest.fixture
def lines() -> Lines:
    """One queue, from which each worker takes what it is idle for."""
    return PacketLines(workers_fixed=False)


@pytest.fixture
def stage(lines: Lines) -> Iterator[Stage]:
    stage = Stage(lines)
    yield stage
    for end in stage.ends.values():
        end.close()
    stage.channels.clear()
    stage.lines.hang_up()


@pytest.fixture
def engine(stage: Stage) -> PoolEngine:
    configs = [WorkerConfig(worker, 2, base_seed=5) for worker in (0, 1)]
    engine = PoolEngine(cast(Pool, stage), configs, FaultPolicy(0, "raise", 3))
    engine.begin(EpochStart(0, 1), {}, {})
    return engine


def test_a_batch_that_was_done_twice_is_not_taken_for_the_one_that_a_flush_draws_for_its_step(
    stage: Stage, engine: PoolEngine
) -> None:
    engine.send(None, Task(4, [1], 0))
    first = stage.take(1, notes=False)  # it was about to note it when the other one died
    stage.die()
    with pytest.warns(RestartWarning):
        died = engine.wait()
    assert isinstance(died, Died) and died.lost == [4]
    engine.send(None, Task(4, [1], 0))
    again = stage.take(0)
    stage.answer(1, first)
    stage.answer(0, again)
    assert isinstance(engine.wait(), Arrived)
    engine.send(None, Task(4, [2], 0))  # after a flush
    stage.answer(0, stage.take(0))
    engine.wait()
    assert engine.answers[4].payload == [2]


def test_what_a_flush_draws_for_a_step_is_not_taken_to_be_at_the_worker_that_has_done_the_step(
    stage: Stage, engine: PoolEngine
) -> None:
    engine.send(None, Task(4, [1], 0))
    stage.answer(1, stage.take(1))
    engine.wait()
    engine.send(None, Task(4, [2], 0))  # after a flush; nobody has taken it
    stage.die()
    with pytest.warns(RestartWarning):
        died = engine.wait()
    assert isinstance(died, Died) and died.lost == [4]


@pytest.mark.parametrize("lines", [PipeLines()])
def test_batches_after_an_answer_that_is_lost_are_lost_as_well(
    stage: Stage, engine: PoolEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream whose batch 1 is done again must not have given batch 2 before."""
    for step in range(3):
        engine.send(0, Task(step, [], 0, 0))
    requests = [stage.take(0) for _ in range(3)]
    for request in requests:
        stage.answer(0, request)
    stage.die()
    read, lost = stage.lines.read, requests[1].ticket

    def reading(worker: int, message: bytes) -> Answer:
        if ticket_of(message) == lost:
            raise ConnectionResetError  # its shared memory is gone with its worker
        return read(worker, message)

    monkeypatch.setattr(stage.lines, "read", reading)
    with pytest.warns(RestartWarning, match="steps 1, 2 are fetched again"):
        arrived, died = engine.wait(), engine.wait()
    assert isinstance(arrived, Arrived) and arrived.step == 0
    assert died == Died(0, [1, 2], None)  # it had done both, and died of neither
