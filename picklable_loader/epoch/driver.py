"""Runs the schedule of a pass over an engine, instruction by instruction, for an iterator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

from ..core.events import (
    AskLast,
    Condemn,
    Deliver,
    Drop,
    Ended,
    Event,
    Fault,
    Finish,
    Instruction,
    LastStatesWanted,
    PassEmpty,
    Raise,
    Send,
    Skipped,
    Started,
    Wanted,
)
from ..core.shard import StreamShare
from ..errors import NoSampleError
from ..fetching.engine.device import DeviceCopies, pin
from ..fetching.engine.engine import Engine
from ..fetching.engine.stats import KEPT, BadSamples, Record, SkippedSample, Stats
from ..fetching.transport.messages import Answer
from ..fetching.worker.on_error import Bad
from .carryover import Carryover
from .run import Run
from .turns import MOVING, SAVABLE, Turn

__all__ = ["Driver"]

_WANTED = Wanted()

#: an iterator over a dead connection may have one error after the other, and would never end
_MOST_EMPTY = 1000


class Driver:
    """The working half of an iterator: an engine at work, and instructions still to carry out.

    Nothing in here is ever saved.
    """

    def __init__(self) -> None:
        self._engine: Engine | None = None
        #: the streams that its workers serve
        self._streams: StreamShare | None = None
        #: the run that is under way; None before the engine has begun it, and between two epochs
        self.run: Run | None = None
        #: how long the consumer has waited for batches
        self._waited_ns = 0
        #: from when to when, the last times
        self._waits: deque[tuple[int, int]] = deque(maxlen=KEPT)
        #: what `noted` has found in the loader's parts when the workers were started
        self.given: dict[str, Any] = {}
        #: what was counted and noted in the end, of an engine that is closed
        self._last = Stats()
        self._last_record = Record()
        #: bad samples that were skipped, by whatever engine
        self.bad_samples = BadSamples()
        #: steps without a batch that the consumer has been waiting over
        self._empty = 0
        #: what `advance` has raised leaves nothing half done: it was its own to raise
        self.settled = False
        #: what the next epoch has from this one; None where there are no workers
        self.carryover: Carryover | None = None
        #: epoch and step of the last batch that was moved at the second try, and is fetched again
        self._unmoved: tuple[int | None, int] | None = None
        #: copies batches to the device of ``to_device=``; None without one
        self.copies: DeviceCopies | None = None
        #: that of the loader whose workers these are; None without workers
        self._pooled: Turn | None = None

    @property
    def has_workers(self) -> bool:
        """Workers live, at work or between two epochs."""
        return self._engine is not None and self.carryover is not None

    def start(self, run: Run, make: Callable[[Run], Engine], turn: Turn, skip: int = 0) -> None:
        """Let the engine work on a run, and fetch ahead.

        ``make`` gives the engine, with its workers, where there is none. ``skip`` is the number of
        batches to pass over before anything is fetched.
        """
        workers = run.spec.workers
        options, self.copies = run.spec.options, None
        if options.to_device is not None or options.device_convert is not None:
            self.copies = DeviceCopies(
                options.to_device, options.device_prefetch, options.device_convert, run.device_seed
            )
        if self._engine is None:
            self._engine, self._streams = make(run), run.streams
            self._waited_ns = 0
            self._waits.clear()
            new_workers = workers > 0
        else:
            new_workers = self._engine.renewed
        self.carryover = Carryover(run.base_seed, run.worker_seed, run.schedule.policy)
        self._pooled = turn if workers else None
        states = self._engine.begin(run.epoch_start(), run.worker_states, run.openings(new_workers))
        self.run = run
        if skip:
            self.handle(Skipped(skip))
        self.handle(Started(states))

    def advance(self, event: Event = _WANTED) -> Answer:
        """The next batch, or the exception that fetching it raised.

        `LastStatesWanted` brings no batch: `StopIteration` ends it.

        Raises:
            StopIteration: the epoch is over.
            RuntimeError: a worker has died, or the time is up.
            NoSampleError: many steps in a row had no batch.
            Exception: the sampler's; or a signal handler's, at any line.
        """
        run, engine = self.run, self._engine
        assert run is not None and engine is not None, "start() comes first"
        self._empty = 0
        turn, handle = self._pooled, run.schedule.handle
        while True:
            for instruction in handle(event):
                kind = type(instruction)
                if kind is Send:
                    send: Send = instruction  # type: ignore[assignment]
                    engine.send(send.worker, send.task, send.position)
                elif kind is Deliver or kind is Raise:
                    return engine.answers.pop(instruction.step)  # type: ignore[union-attr]
                else:
                    self._act(instruction)
            if self._empty >= _MOST_EMPTY:
                self.settled = True
                raise NoSampleError(self._empty, str(self.bad_samples.last[-1]))
            began_ns = perf_counter_ns()
            try:
                if turn is not None:
                    turn.phase = SAVABLE  # a signal handler may save while workers are awaited
                event = engine.wait()
            except RuntimeError:
                self.settled = engine.timed_out
                raise
            finally:
                if turn is not None:
                    turn.phase = MOVING
            ended_ns = perf_counter_ns()
            self._waited_ns += ended_ns - began_ns
            self._waits.append((began_ns, ended_ns))

    def moved(self, answer: Answer, batch: Any) -> Any:
        """The batch of an answer, in pinned memory or on the device.

        Raises:
            Exception: that of the batch's own ``pin_memory`` or ``to``. The batch is lost, as in
                torch; `settled` says so. Or a signal handler's, and then it is not.
        """
        answer.register()
        try:
            return self._moved(batch, answer.step)
        except Exception:
            moment = None if self.run is None else self.run.epoch, answer.step
            try:  # a batch's own error comes again, a handler's does not
                self._moved(batch, answer.step)
                # a batch whose first try fails each time would come for ever
                self.settled, self._unmoved = self._unmoved == moment, moment
            except Exception:
                self.settled = True
            raise

    def _moved(self, batch: Any, step: int) -> Any:
        if self.copies is None:
            return pin(batch)
        batch = self.copies.deliver(batch, step)
        if self._engine is not None:  # those that have come and are not wanted yet
            self._engine.look()
            self.copies.copy_ahead(self._engine.answers)
        return batch

    def handle(self, event: Event) -> None:
        """Tell the schedule something."""
        run = self.run
        assert run is not None, "start() comes first"
        for instruction in run.schedule.handle(event):
            self._act(instruction)
        self.carryover = Carryover(run.base_seed, run.worker_seed, run.schedule.policy)

    def stats(self) -> Stats:
        """Figures counted since the workers were started, or until they were retired."""
        engine, run = self._engine, self.run
        # The schedule does not get what has come: it would draw from the sampler, and when it
        # does must not depend on who asks for figures.
        came = () if engine is None else engine.look()
        figures = self._last if engine is None else self._figures(engine)
        done = replace(
            figures, skipped=self.bad_samples.count, last_skipped=tuple(self.bad_samples.last)
        )
        if engine is None or run is None:
            return done
        schedule = run.schedule
        here = [e for e in came if schedule.awaits(e.step) and not isinstance(e, Ended)]
        return replace(
            done,
            under_way=schedule.under_way - len(came),
            waiting=schedule.waiting + len(here),
            waiting_bytes=schedule.held_bytes + sum(getattr(e, "bytes", 0) for e in here),
            prefetch_budget=schedule.budget,
        )

    def _figures(self, engine: Engine) -> Stats:
        waited_s = self._waited_ns / 1e9
        return Stats(engine.workers(), waited_s, prefetch_budget=self._last.prefetch_budget)

    def record(self) -> Record:
        """When the last batches came since the workers were started, or until they ended."""
        engine = self._engine
        if engine is None:
            return self._last_record
        engine.look()
        return Record(tuple(engine.clocks.last_answers), tuple(self._waits))

    def note_bad(self, step: int, bad: Bad) -> None:
        """Note that a batch is delivered, or passed over, without its bad samples."""
        run = self.run
        assert run is not None, "start() comes first"
        stream = run.streams.number(step % len(run.streams)) if run.order is None else None
        self.bad_samples.note(SkippedSample(run.epoch, step, stream, *sample) for sample in bad)

    def rest(self) -> None:
        """Forget the run; workers live on."""
        if self.run is not None:  # a budget of 0 would look like a reason for slowness
            self._last = replace(self._last, prefetch_budget=self.run.schedule.budget)
        self.run = None

    def stop(self) -> None:
        """Forget the run, and retire the workers."""
        # First of all: whatever a signal handler raises from here on, it does not work any more.
        engine, self._engine = self._engine, None
        self.rest()
        if engine is not None:
            self.carryover = None
            try:
                self._last = self._figures(engine)
                answers = tuple(engine.clocks.last_answers)
                self._last_record = Record(answers, tuple(self._waits))
            finally:
                engine.close()

    def refit(self, streams: StreamShare) -> None:
        """Have new workers started if those that live on serve other streams.

        They have it of a state; the epochs after have the loader's.
        """
        carryover = self.carryover
        if carryover is not None and self._streams != streams:
            self.stop()
            self.carryover = replace(carryover, policy=None)

    def _act(self, instruction: Instruction) -> None:
        engine = self._engine
        assert engine is not None
        match instruction:
            case Send(worker, task, position):
                engine.send(worker, task, position)
            case AskLast(worker, stream, position):
                engine.ask(worker, stream, position)
            case Drop(step):
                del engine.answers[step]
            case PassEmpty(step):
                self._pass_empty(engine.answers.pop(step))
            case Fault(error):
                self.settled = True
                raise error
            case Finish():
                self._finish()
            case Condemn(task):
                raise engine.deaths.error(task)
            case _:
                raise AssertionError(f"{instruction} answers Wanted only")

    def _pass_empty(self, answer: Answer) -> None:
        assert self.run is not None
        self.run.moved(answer)
        self._empty += 1
        self.note_bad(answer.step, answer.payload)

    def _finish(self) -> None:
        """Note in the run what it leaves to the next epoch; raises StopIteration then."""
        run, engine = self.run, self._engine
        assert run is not None and engine is not None
        schedule = run.schedule
        # Streams may be left in their middle: where they may, every rank does the same.
        cut = run.spec.lives_on and (schedule.plan.cut or schedule.plan.limit is not None)
        if (
            run.spec.asks_at_end or (cut and run.spec.asks_when_left)
        ) and not schedule.last_states_known:
            self.advance(LastStatesWanted(len(run.streams)))
        run.last_states = schedule.last_states()
        if run.spec.has_worker_states:
            run.worker_states.update(engine.worker_states)
        states = dict(run.worker_states)
        self.carryover = Carryover(run.base_seed, run.worker_seed, schedule.policy, states)
        if cut and run.spec.remembers:
            run.last_states = {}
            self.stop()  # nobody knows the states of streams that were not read to their ends
        raise StopIteration

    def leave(self) -> None:
        """Note the carryover of a run that ends early, for the next epoch of persistent workers."""
        if self.run is None or self._engine is None:
            return
        try:
            self.advance(LastStatesWanted(len(self.run.streams)))
        except StopIteration:
            pass
        except RuntimeError:  # they do not say so: new ones begin with what is known
            self.stop()
