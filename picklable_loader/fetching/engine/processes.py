"""The engine that has worker processes fetch."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.events import Answered, Died, Ended, Failed, LastMark
from ...core.streams import Marks, StreamPosition
from ...core.task import Task
from ...errors import UsageError
from ..pool.exit import Death, unexpected
from ..pool.pool import Pool
from ..transport.arena import ArenaFull
from ..transport.channels import Frames
from ..transport.messages import Answer, EpochStart, Request, encode_request, task_of
from ..worker.replica import WorkerConfig
from .deaths import DeathCount
from .stats import Clocks, WorkerStats


@dataclass(frozen=True)
class FaultPolicy:
    """Settings for workers that are late, or die."""

    #: seconds to wait for an answer; 0: for ever
    timeout_s: float
    #: "raise", or "restart" the workers that are at a task then
    on_timeout: str
    #: workers that may die of a task before it is given up; 0: the first death is an error
    most_deaths: int
    #: they live from epoch to epoch, and datasets may remember things in them
    persistent: bool = False


class PoolEngine:
    """Fetches in worker processes.

    Args:
        pool: the workers.
        configs: one for each of them.
        fault_policy: what to do if one is late, or dies.
    """

    def __init__(
        self, pool: Pool, configs: Sequence[WorkerConfig], fault_policy: FaultPolicy
    ) -> None:
        self._configs = configs
        self._fault_policy = fault_policy
        self.timed_out = self.renewed = False
        self._pool = pool
        self._lines = pool.lines
        self._owner = os.getpid()
        self._closed = False
        self._run = 0
        #: what was sent and not answered, by run and step, with the worker; None: any may have it
        self._sent: dict[tuple[int, int], int | None] = {}
        #: streams whose last states were asked for and have not come, each with the worker
        self._asked: dict[int, int] = {}
        self._restarts = DeathCount(fault_policy.most_deaths, fault_policy.persistent)
        self._begin: EpochStart | None = None
        #: the workers' generators and the streams' places that they are to go on with
        self._states: dict[str, Any] = {}
        self._places: dict[int, StreamPosition] = {}
        #: streams that have begun the epoch, each with the worker that reads it
        self._readers: dict[int, int] = {}
        self._answers: dict[int, Answer] = {}
        #: by worker that has died with answers that cannot be read any more, what it has done
        self._unreadable: dict[int, set[tuple[int, int] | None]] = {}
        #: what has happened, and what cannot go on, in this order
        self._events: deque[Answered | LastMark | Died | Exception] = deque()
        #: by worker, deaths among them: what is sent before the schedule hears of one is lost, too
        self._pending_deaths: dict[int, Died] = {}
        self._clocks = Clocks(len(pool.pids))
        #: held by the thread that takes answers in: another one may ask for figures
        self._taking = threading.Lock()

    @property
    def pids(self) -> list[int | None]:
        """The workers' process numbers."""
        return self._pool.pids

    def begin(
        self, begin: EpochStart, states: dict[str, Any], places: dict[int, StreamPosition]
    ) -> Marks:
        self._run += 1
        self._begin = begin
        self._states, self._places = dict(states), places
        self._readers.clear()
        self._restarts.forget()
        self._answers.clear()
        self._events.clear()
        self._pending_deaths.clear()
        self._asked.clear()
        self.renewed = False
        return {}

    def send(self, worker: int | None, task: Task, place: StreamPosition | None = None) -> None:
        if worker in self._pending_deaths:
            self._pending_deaths[worker].lost.append(task.step)
            return
        with self._taking:  # nobody may see the answer before it is known that it was sent
            try:
                taker = self._request(worker, task, task.stream, place)
            except Exception as error:  # the schedule counts on an answer
                self._fail(task.step, _unsent(task.step, error))
                return
            self._sent[self._run, task.step] = taker

    def ask(self, worker: int, stream: int, place: StreamPosition | None = None) -> None:
        if worker in self._pending_deaths:
            return  # the schedule asks again when it hears of the death
        with self._taking:
            self._asked[stream] = worker
            self._request(worker, None, stream, place)

    def _request(
        self,
        worker: int | None,
        task: Task | None,
        stream: int | None,
        place: StreamPosition | None,
    ) -> int | None:
        begin = self._begin
        # The worker that takes a task from the queue may not have begun the epoch.
        if stream is not None:
            begin = None
            if place is not None or stream not in self._readers:
                begin = _with_states(self._begin, self._states.get(str(worker)))
                place = place or self._places.get(stream)
        request = Request(self._run, task, begin, place, stream)
        taker = self._lines.post(worker, encode_request(request))
        self._clocks.sent(worker)
        if stream is not None and worker is not None:
            self._readers[stream] = worker
        return taker

    def wait(self) -> Answered | LastMark | Died:
        self.timed_out = False
        if os.getpid() != self._owner:
            raise _forked()
        while True:
            with self._taking:  # whoever asked for figures may have taken in what is waited for
                if self._events:
                    return self._next_event()
                self._wait()

    def look(self) -> Sequence[Answered]:
        if self._taking.acquire(blocking=False):
            try:
                while not self._closed and (answers := self._arrived()):
                    self._take_in(answers)
            finally:
                self._taking.release()
        return [e for e in tuple(self._events) if isinstance(e, Answered)]

    def _arrived(self) -> Frames:
        """Answers that have come already, at most one of each worker."""
        try:
            return self._lines.wait(0.0) or []
        except OSError:
            return []  # a forked copy of the program, whose lines are closed

    def take(self, step: int) -> Answer:
        return self._answers.pop(step)

    def condemn(self, task: Task) -> Exception:
        return self._restarts.condemn(task)

    def worker_states(self) -> dict[str, Any]:
        return dict(self._states)

    def workers(self) -> tuple[WorkerStats, ...]:
        return self._clocks.stats(self.pids)

    def answers(self) -> tuple[tuple[int, int, int, int], ...]:
        return self._clocks.answers()

    def close(self) -> None:
        with self._taking:
            self._closed = True
            self._answers.clear()
            self._pool.retire()

    def _next_event(self) -> Answered | LastMark | Died:
        event = self._events.popleft()
        if isinstance(event, Exception):
            raise event
        if isinstance(event, Died):
            del self._pending_deaths[event.worker]
        return event

    def _wait(self) -> None:
        """Wait until something has happened."""
        answers = self._lines.wait(self._fault_policy.timeout_s or None)
        if answers:
            self._take_in(answers)
        if answers is None:
            self._kill_the_stuck()
        elif not self._lines.lost_worker:
            return
        self._replace_dead(self._pool.deaths())

    def _kill_the_stuck(self) -> None:
        """The time is up: whoever owes something is stuck; all are if nobody takes what waits."""
        if self._fault_policy.on_timeout != "restart":
            self.timed_out = True
            raise RuntimeError(f"DataLoader timed out after {self._fault_policy.timeout_s} seconds")
        workers = range(len(self._configs))
        asked = self._asked.values()
        stuck = [
            w for w in workers if self._owed(w) or w in asked or self._current_step(w) is not None
        ]
        for worker in stuck or workers:
            self._pool.kill(worker)

    def _replace_dead(self, deaths: list[Death]) -> None:
        """Others take the places of the dead; what these owed is lost."""
        if not deaths:
            raise RuntimeError("a DataLoader worker has hung up, and is still alive")
        if not self._fault_policy.most_deaths:
            raise unexpected(deaths)
        for death in deaths:
            self._take_in(self._lines.close(death.worker))
        at_hand = {death.worker: self._current_step(death.worker) for death in deaths}
        for death in deaths:
            lost = self._lost(death.worker, at_hand)
            self._clocks.died(death.worker)
            self._readers = {s: w for s, w in self._readers.items() if w != death.worker}
            self._asked = {s: w for s, w in self._asked.items() if w != death.worker}
            self._restarts.note(death, lost, at_hand[death.worker])
            self.renewed = True
            self._unreadable.pop(death.worker, None)
            # It is told of the epoch in any case.
            self._pool.replace(death.worker, replace(self._configs[death.worker], announced=None))
            event = Died(death.worker, lost, at_hand[death.worker])
            if death.worker in self._pending_deaths:  # it has died a second time
                event.lost.extend(self._pending_deaths[death.worker].lost)
                self._events.remove(self._pending_deaths[death.worker])
            self._pending_deaths[death.worker] = event
            self._events.append(event)

    def _current_step(self, worker: int) -> int | None:
        """The step that a worker is at, or was when it died."""
        step = self._lines.at_hand(worker, self._run, self._owed(worker))
        return step if (self._run, step) in self._sent else None

    def _owed(self, worker: int) -> list[int]:
        """The steps that were sent to a worker alone, and that it has not done."""
        owed = [key for key, taker in self._sent.items() if taker == worker]
        done = self._unreadable.get(worker, ())
        return [step for run, step in owed if run == self._run and (run, step) not in done]

    def _lost(self, worker: int, dead: dict[int, int | None]) -> list[int]:
        """The steps that nobody will answer any more, now that a worker is dead; forgotten here.

        Which tasks of the common queue the dead had taken is not known, but what others have: all
        else is taken back and sent again. What somebody has taken just now may then be done twice;
        the second answer is dropped.

        Args:
            worker: the worker.
            dead: all that have died, each with what it was at.
        """
        lost = {key for key, taker in self._sent.items() if taker == worker}
        if None in self._sent.values():
            self._lines.recall()
            others = set(range(len(self._configs))) - {worker}
            kept = {(self._run, dead.get(w, self._current_step(w))) for w in others}
            common = {key for key, taker in self._sent.items() if taker is None} - kept
            self._clocks.lost(len(common))
            lost |= common
        for key in lost:
            del self._sent[key]
        return sorted(step for run, step in lost if run == self._run)

    def _take_in(self, answers: list[tuple[int, bytes]]) -> None:
        for worker, frame in answers:
            if worker in self._unreadable or not self._taken_in(worker, frame):
                self._unreadable[worker].add(task_of(frame))

    def _taken_in(self, worker: int, frame: bytes) -> bool:
        """Note an answer; True if it is all here."""
        try:
            self._note(self._lines.read(worker, frame))
            return True
        except (ConnectionError, FileNotFoundError, EOFError) as error:
            # What is in torch's shared memory is lost with its worker: it is done again. So is
            # what comes after it, as a stream has no gaps.
            self._unreadable[worker] = set()
            if not self._pool.dies(worker):
                self._events.append(error)
            return False

    def _note(self, answer: Answer) -> None:
        if not self._was_owed(answer):
            return  # it was done twice
        ended = answer.kind is Ended or answer.kind is LastMark
        self._restarts.answered(answer.worker)
        figures = answer.busy_ns, answer.idle_ns, answer.arena_bytes
        self._clocks.answered(answer.worker, *figures, ended)
        if answer.run != self._run:
            return
        if answer.kind is None:
            self._events.append(answer.payload)
            return
        if answer.states is not None and answer.kind is not LastMark:
            self._states[str(answer.worker)] = answer.states
        self._events.append(answer.event())
        if not ended:
            self._answers[answer.step] = answer

    def _was_owed(self, answer: Answer) -> bool:
        """Take note that a request is answered; False: nobody waits for the answer."""
        if answer.kind is LastMark:
            return answer.run == self._run and self._asked.pop(answer.step, None) is not None
        key = answer.run, answer.step
        if key not in self._sent:
            return answer.kind is None  # no last mark, then
        del self._sent[key]
        return True

    def _fail(self, step: int, error: Exception) -> None:
        """Answer a task that no worker will."""
        self._answers[step] = Answer(self._run, step, 0, Failed, error)
        self._events.append(Failed(step))


def _with_states(begin: EpochStart | None, states: Any) -> EpochStart | None:
    if begin is None or states is None:
        return begin
    return replace(begin, states=states)


def _forked() -> UsageError:
    """The error of an iterator whose workers belong to another process."""
    return UsageError(
        "this process is a fork of the one that has this iterator's workers. Call next again: the "
        "iterator then goes on here, from the same place, with workers of its own"
    )


def _unsent(step: int, error: Exception) -> UsageError:
    """The error of a step whose indices could not be sent to a worker."""
    way_out = "give such as can be pickled, for example numbers, or use num_workers=0"
    if isinstance(error, ArenaFull):
        way_out = 'free some shared memory, or use transport="portable", which needs none'
    refusal = UsageError(
        f"the indices that the sampler gave for step {step} cannot be sent to a worker "
        f"({type(error).__name__}: {error}): {way_out}"
    )
    refusal.__cause__ = error
    return refusal
