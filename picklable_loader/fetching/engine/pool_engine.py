"""The engine that has worker processes fetch."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...core.events import Answered, Died, Ended, Failed, LastState
from ...core.streams import StreamPosition, StreamStates
from ...core.task import Task
from ...errors import UsageError, fails_again
from ..pool.exit import Death, unexpected
from ..pool.pool import Pool
from ..transport.arena import ArenaFull
from ..transport.channels import Messages
from ..transport.messages import Answer, EpochStart, Request, encode_request, ticket_of
from ..worker.replica import WorkerConfig
from .deaths import DeathCount
from .stats import Clocks, WorkerStats


class _Sent(NamedTuple):
    """A task that was sent."""

    run: int
    step: int
    #: None: any may have it
    worker: int | None


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
    """Fetches in the pool's worker processes, each of which has a config."""

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
        #: tasks that were sent and not answered, by their tickets
        self._sent: dict[int, _Sent] = {}
        self._tickets = 0
        #: streams whose last states were asked for and have not come, each with the worker
        self._asked: dict[int, int] = {}
        self.deaths = DeathCount(fault_policy.most_deaths, fault_policy.persistent)
        self._begin: EpochStart | None = None
        #: the workers' generators, and the streams' positions that these go on from
        self.worker_states: dict[str, Any] = {}
        self._positions: dict[int, StreamPosition] = {}
        #: streams that have begun the epoch, each with the worker that reads it
        self._readers: dict[int, int] = {}
        self.answers: dict[int, Answer] = {}
        #: by worker that has died with answers that cannot be read any more, tickets of these
        self._unreadable: dict[int, set[int]] = {}
        #: what has happened, and what cannot go on, in this order
        self._events: deque[Answered | LastState | Died | Exception] = deque()
        #: by worker, deaths among them: what is sent before the schedule hears of one is lost, too
        self._pending_deaths: dict[int, Died] = {}
        self.clocks = Clocks(len(configs))
        #: `look` has begun: a signal handler that raises in it may lose answers
        self._half_read = False
        #: locked by the thread that reads answers: another one may ask for figures
        self._reading = threading.Lock()

    def begin(
        self, begin: EpochStart, states: dict[str, Any], positions: dict[int, StreamPosition]
    ) -> StreamStates:
        self._run += 1
        self._begin = begin
        self.worker_states, self._positions = dict(states), positions
        self._readers.clear()
        self.deaths.forget()
        self.answers.clear()
        self._events.clear()
        self._pending_deaths.clear()
        self._asked.clear()
        self.renewed = False
        return {}

    def send(self, worker: int | None, task: Task, position: StreamPosition | None = None) -> None:
        if worker in self._pending_deaths:
            self._pending_deaths[worker].lost.append(task.step)
            return
        if position is not None:
            # Another worker has read the stream so far. It gets the next epoch's first task, as if
            # nothing had moved, and its copy of the dataset is where it was left.
            self.renewed = True
        with self._reading:  # nobody may see the answer before it is known that it was sent
            try:
                taker = self._request(worker, task, position)
                self._sent[self._tickets] = _Sent(self._run, task.step, taker)
            except (_NotEncoded, ArenaFull) as error:  # the schedule counts on an answer
                refusal = _unsent(task.step, error.__cause__ or error)
                self.answers[task.step] = Answer(self._run, task.step, 0, Failed, refusal)
                self._events.append(Failed(task.step))

    def ask(self, worker: int, stream: int, position: StreamPosition | None = None) -> None:
        if worker in self._pending_deaths:
            return  # the schedule asks again when it hears of the death
        with self._reading:
            self._asked[stream] = worker
            self._request(worker, stream, position)

    def _request(
        self, worker: int | None, task: Task | int, position: StreamPosition | None
    ) -> int | None:
        stream = task if isinstance(task, int) else task.stream
        begin = self._begin
        # The worker that takes a task from the queue may not have begun the epoch.
        if stream is not None:
            if position is None and stream in self._readers:
                begin = None
            else:
                states = self.worker_states.get(str(worker))
                begin = begin and begin._replace(states=states or begin.states)
                position = position or self._positions.get(stream)
        self._tickets += 1
        request = Request(self._run, task, begin, position, self._tickets)
        taker = self._lines.post(worker, _encoded(request))
        self.clocks.sent(worker)
        if stream is not None and worker is not None:
            self._readers[stream] = worker
        return taker

    def wait(self) -> Answered | LastState | Died:
        self.timed_out = False
        if os.getpid() != self._owner:
            raise UsageError(
                "this process is a fork of the one that has this iterator's workers. Call next "
                "again: the iterator then goes on here, from the same place, with workers of its "
                "own"
            )
        while True:
            with self._reading:  # whoever asked for figures may have read what is waited for
                if self._half_read:
                    raise HalfReadError
                if self._events:
                    break
                answers = self._lines.wait(self._fault_policy.timeout_s or None)
                if answers:
                    self._read(answers)
                if answers is None:
                    self._kill_the_stuck()
                if answers is None or self._lines.lost_worker:
                    self._replace_dead(self._pool.deaths())
        event = self._events.popleft()
        if isinstance(event, Exception):
            raise event
        if isinstance(event, Died):
            del self._pending_deaths[event.worker]
        return event

    def look(self) -> Sequence[Answered]:
        # Not acquire(blocking=False): a signal handler that raises right after it would leave the
        # lock locked for ever.
        if os.getpid() == self._owner and not self._half_read and not self._reading.locked():
            with self._reading:
                self._half_read = True
                while not self._closed and (answers := self._lines.wait(0.0)):
                    self._read(answers)
                self._half_read = False
        return [e for e in tuple(self._events) if isinstance(e, Answered)]

    def workers(self) -> tuple[WorkerStats, ...]:
        return self.clocks.stats(self._pool.pids)

    def close(self) -> None:
        with self._reading:
            self._closed = True
            self.answers.clear()
            self._pool.retire()

    def _kill_the_stuck(self) -> None:
        """The time is up: workers that owe an answer are stuck; or all, if none takes a task."""
        if self._fault_policy.on_timeout != "restart":
            self.timed_out = True
            raise RuntimeError(f"DataLoader timed out after {self._fault_policy.timeout_s} seconds")
        workers = range(len(self._configs))
        asked = self._asked.values()
        stuck = [w for w in workers if self._owed(w) or w in asked or self._current(w) is not None]
        for worker in stuck or workers:
            self._pool.kill(worker)

    def _replace_dead(self, deaths: list[Death]) -> None:
        """Start other workers for the dead; what these owed is lost."""
        if not deaths:
            raise RuntimeError("a DataLoader worker has hung up, and is still alive")
        if not self._fault_policy.most_deaths:
            raise unexpected(deaths)
        for death in deaths:
            self._read(self._lines.close(death.worker))
        current = {death.worker: self._current(death.worker) for death in deaths}
        at_hand = {w: None if n is None else self._sent[n].step for w, n in current.items()}
        for death in deaths:
            lost = self._lost(death.worker, current)
            self.clocks.died(death.worker)
            self._readers = {s: w for s, w in self._readers.items() if w != death.worker}
            self._asked = {s: w for s, w in self._asked.items() if w != death.worker}
            self.deaths.note(death, lost, at_hand[death.worker])
            self.renewed = True
            self._unreadable.pop(death.worker, None)
            # Its first request gives it the epoch in any case.
            self._pool.replace(death.worker, replace(self._configs[death.worker], announced=None))
            event = Died(death.worker, lost, at_hand[death.worker])
            if death.worker in self._pending_deaths:  # it has died a second time
                event.lost.extend(self._pending_deaths[death.worker].lost)
                self._events.remove(self._pending_deaths[death.worker])
            self._pending_deaths[death.worker] = event
            self._events.append(event)

    def _current(self, worker: int) -> int | None:
        """The ticket of the task of this run that a worker is at, or was when it died."""
        ticket = self._lines.at_hand(worker, self._owed(worker))
        sent = None if ticket is None else self._sent.get(ticket)
        return None if sent is None or sent.run != self._run else ticket

    def _owed(self, worker: int) -> list[int]:
        """The tickets of what was sent to a worker alone in this run, and is not done by it."""
        done, run = self._unreadable.get(worker, ()), self._run
        return [
            ticket
            for ticket, sent in self._sent.items()
            if sent.worker == worker and sent.run == run and ticket not in done
        ]

    def _lost(self, worker: int, dead: dict[int, int | None]) -> list[int]:
        """The steps that nobody will answer any more, now that a worker is dead; forgotten here.

        Nobody knows which tasks of the common queue the dead had, but which others have: all else
        is recalled and sent again. A task that a worker has just begun may then be done twice; that
        answer is dropped. ``dead`` are all that have died, each with the ticket of its task.
        """
        lost = {ticket for ticket, sent in self._sent.items() if sent.worker == worker}
        if common := {ticket for ticket, sent in self._sent.items() if sent.worker is None}:
            self._lines.recall()
            others = set(range(len(self._configs))) - {worker}
            common -= {dead.get(w, self._current(w)) for w in others}
            self.clocks.lost(len(common))
            lost |= common
        gone = [self._sent.pop(ticket) for ticket in lost]
        return sorted(sent.step for sent in gone if sent.run == self._run)

    def _read(self, answers: Messages) -> None:
        for worker, message in answers:
            if worker not in self._unreadable:
                try:
                    self._note(self._lines.read(worker, message))
                    continue
                except (ConnectionError, FileNotFoundError, EOFError) as error:
                    # A batch in torch's shared memory is lost with its worker: it is done again. So
                    # are those after it, as a stream has no gaps.
                    self._unreadable[worker] = set()
                    if not self._pool.dies(worker):
                        self._events.append(error)
            self._unreadable[worker].add(ticket_of(message))

    def _note(self, answer: Answer) -> None:
        if answer.kind is LastState:
            if answer.run != self._run or self._asked.pop(answer.step, None) is None:
                return  # nobody waits for it
        elif self._sent.pop(answer.ticket, None) is None:
            if answer.kind is not None:  # otherwise it answers `ask`
                return  # it was done twice
        ended = answer.kind is Ended or answer.kind is LastState
        self.deaths.answered(answer.worker)
        figures = answer.busy_ns, answer.idle_ns, answer.arena_bytes
        self.clocks.answered(answer.worker, *figures, ended)
        if answer.run != self._run:
            return
        if answer.kind is None:
            self._events.append(answer.payload)
            return
        if answer.states is not None and answer.kind is not LastState:
            self.worker_states[str(answer.worker)] = answer.states
        self._events.append(answer.event())
        if not ended:
            self.answers[answer.step] = answer


class HalfReadError(RuntimeError):
    """A signal handler has raised while answers were read: some may be lost."""

    def __init__(self) -> None:
        super().__init__("a signal handler has raised while batches were received: call next again")


class _NotEncoded(Exception):
    """Pickle refuses a task; the cause says why."""


def _encoded(request: Request) -> bytes:
    try:
        return encode_request(request)
    except Exception as error:
        if fails_again(encode_request, request):
            raise _NotEncoded from error
        raise


def _unsent(step: int, error: BaseException) -> UsageError:
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
