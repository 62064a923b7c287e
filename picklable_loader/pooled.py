"""Pooled: an engine that has worker processes fetch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from .core.events import Answered, Arrived, Emptied, Ended, Failed
from .core.streams import Marks, Place
from .core.task import Task
from .errors import StreamError
from .pool.pool import Pool
from .refusals import unsent
from .stats import Clocks, WorkerStats
from .transport.frames import Answer, Begin, Outcome, Request, encode_request

__all__ = ["PoolEngine"]

#: a worker that has waited for this part of a task's time, or longer, might have done more
_IDLE_PART = 8


class PoolEngine:
    """Fetches in worker processes.

    Args:
        pool: the workers.
        timeout_s: seconds to wait for an answer; 0 for ever.
        lives_on: the dataset has a state that the next epoch goes on with, in the same workers.
    """

    def __init__(self, pool: Pool, timeout_s: float, lives_on: bool = False) -> None:
        self._lives_on = lives_on
        #: by stream, its state at the end of the epoch
        self._last: Marks = {}
        self.broken = False
        self._pool = pool
        self._timeout_s = timeout_s
        self._run = 0
        self._begin: Begin | None = None
        #: the workers' generators and the streams' places that they are to go on with
        self._states: dict[str, Any] = {}
        self._places: dict[int, Place] = {}
        #: streams that have been told of the epoch
        self._told: set[int] = set()
        self._answers: dict[int, Answer] = {}
        #: what has come, and what cannot go on, in this order
        self._events: deque[Answered | Exception] = deque()
        self._clocks = Clocks(len(pool.pids))
        #: held by whoever takes answers in: another thread may ask for figures
        self._taking = threading.Lock()

    @property
    def pids(self) -> list[int | None]:
        """The workers' process numbers."""
        return self._pool.pids

    def begin(self, begin: Begin, states: dict[str, Any], places: dict[int, Place]) -> Marks:
        self._run += 1
        self._begin = begin
        self._states, self._places = states, places
        self._told.clear()
        self._answers.clear()
        self._events.clear()
        return {}

    def send(self, worker: int | None, task: Task) -> None:
        begin, place, stream = self._begin, None, task.stream
        # Whoever takes a task from the queue may not have heard of the epoch.
        if stream is not None:
            begin = None
            if stream not in self._told:
                begin = _with_states(self._begin, self._states.get(str(worker)))
                place = self._places.get(stream)
        try:
            self._pool.post(worker, encode_request(Request(self._run, task, begin, place)))
        except Exception as error:  # the schedule counts on an answer
            self._fail(task.step, unsent(task.step, error))
            return
        self._clocks.sent(worker)
        if stream is not None:
            self._told.add(stream)

    def wait(self) -> Answered:
        while not self._events:
            with self._taking:
                self._take_in(self._wait())
        event = self._events.popleft()
        if isinstance(event, Exception):
            self.broken = True
            if not isinstance(event, StreamError):
                self._pool.report_death()  # which says more
            raise event
        return event

    def look(self) -> Sequence[Answered]:
        if self._taking.acquire(blocking=False):
            try:
                while answers := self._pool.look():
                    self._take_in(answers)
            finally:
                self._taking.release()
        return [event for event in tuple(self._events) if not isinstance(event, Exception)]

    def take(self, step: int) -> Answer:
        return self._answers.pop(step)

    def last_marks(self) -> Marks:
        if not self._lives_on:
            return {}  # streams that end have said so, and nobody wants to know of the others
        self._last.clear()
        for stream in self._told:
            request = Request(self._run, Task(-1 - stream, None, 0, stream))
            self._pool.post(stream % len(self.pids), encode_request(request))
        while len(self._last) < len(self._told):
            with self._taking:
                self._take_in(self._wait())
        return dict(self._last)

    def workers(self) -> tuple[WorkerStats, ...]:
        return self._clocks.stats(self.pids)

    def close(self) -> None:
        self._answers.clear()
        self._pool.retire()

    def _wait(self) -> list[tuple[int, bytes]]:
        try:
            answers = self._pool.wait(self._timeout_s or None)
        except RuntimeError:
            self.broken = True
            raise
        if not answers:
            raise RuntimeError(f"DataLoader timed out after {self._timeout_s} seconds")
        return answers

    def _take_in(self, answers: list[tuple[int, bytes]]) -> None:
        for worker, frame in answers:
            try:
                self._note(self._pool.read(worker, frame))
            except (ConnectionError, FileNotFoundError, EOFError) as error:
                self._events.append(error)

    def _note(self, answer: Answer) -> None:
        if answer.step < 0:
            self._last[-1 - answer.step] = answer.mark
            return
        ended = answer.outcome is Outcome.ENDED
        self._clocks.answered(answer.worker, answer.busy_ns, answer.arena_bytes, ended)
        if answer.run != self._run:
            return
        if answer.outcome is Outcome.REFUSED:
            self._events.append(answer.payload)
            return
        self._events.append(_event(answer))
        if not ended:
            self._answers[answer.step] = answer

    def _fail(self, step: int, error: Exception) -> None:
        """Answer a task that no worker will."""
        self._answers[step] = Answer(self._run, step, 0, Outcome.FAILED, error)
        self._events.append(Failed(step))


def _event(answer: Answer) -> Answered:
    if answer.outcome is Outcome.ENDED:
        return Ended(answer.step, answer.mark)
    if answer.outcome is Outcome.FAILED:
        return Failed(answer.step, answer.mark)
    if answer.outcome is Outcome.EMPTIED:
        return Emptied(answer.step, answer.mark)
    idled = answer.idle_ns > answer.busy_ns // _IDLE_PART
    return Arrived(answer.step, answer.bytes, idled, answer.mark)


def _with_states(begin: Begin | None, states: Any) -> Begin | None:
    if begin is None or states is None:
        return begin
    return Begin(begin.base_seed, begin.announced, begin.shared_seed, states)
