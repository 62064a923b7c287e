"""Run: one pass over a loader's data, as far as it can be saved.

It joins the pure parts (order, plan, schedule) with the loader's sampler and the source of its
draws, and makes a snapshot of them at any moment. It knows of no process and holds no batch.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from .anatomy import (
    anatomy,
    budget_for,
    draws_from,
    draws_unnoticed,
    fingerprint,
    generators,
    is_iterable,
    unstarted,
)
from .core.cursor import Cursor
from .core.order import Order
from .core.plan import MOST_ASIDE, Plan, Unit
from .core.schedule import Policy, Schedule
from .core.seeds import base_seed, next_base_seed
from .core.snapshot import to_plain
from .core.streams import Place, StreamPlan
from .core.task import Task
from .fitting import rank_and_world
from .kept import Kept, worker_states
from .marks import read, savable, warn_of_drift
from .options import count_bytes
from .plain import decode, encode_state
from .randomness import RNGS, Universe
from .samplers import make_order
from .source import Setting, Source, random_int64, rejoin
from .transport.frames import Answer, Begin
from .worker.fetch import tell_epoch

if TYPE_CHECKING:
    from .loader import DataLoader

__all__ = ["Run"]


class Run:
    """One pass over the data of an epoch.

    Args:
        loader: the loader; only its settings are read.
        epoch: number of the epoch, if the run is a fresh one.
        cursor: where to go on; None for a fresh run.
        kept: what the workers were started with, if they go on living.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        epoch: int = 0,
        cursor: Cursor | None = None,
        kept: Kept | None = None,
    ) -> None:
        # Its loader has the run; an iterator that has it has the loader as well.
        self._loader: DataLoader[Any] = weakref.proxy(loader)
        self._parts = anatomy(loader)
        self._fits: dict[str, Any] | None = None
        self._source: Source = loader._pl.source
        self._source.generators = generators(loader)
        self.epoch = epoch if cursor is None else cursor.epoch
        self.announced = loader._pl.announced if cursor is None else cursor.announced
        if cursor is not None:
            self._source.restore(cursor.rng)
            if cursor.announced not in (None, loader._pl.announced):
                tell_epoch(loader.dataset, cursor.announced)
            loader._pl.announced = cursor.announced
        rejoin(self._source)
        self.shared_seed = self._shared_seed(cursor)
        #: None: iterable-style data
        self.order = None if is_iterable(loader) else self._make_order(cursor)
        self.base_seed = self._base_seed(cursor, kept)
        #: what the workers are, or were, started with
        self.worker_seed = self._worker_seed(cursor, kept)
        self._open_again(cursor, kept)
        #: by worker, the states of its generators after the last batch that was delivered from it
        self.worker_states = worker_states(cursor, kept)
        #: the last step that has moved them, the worker, and its states before
        self._states_before: tuple[int, str, Any] | None = None
        places = self._starting_places(cursor)
        #: how many streams serve the tasks; 0: any worker may take any task
        self.streams = len(places) or (loader.num_workers if loader._pl.pinned else 0)
        #: once the run is over: what the next epoch finds the dataset in, by stream
        self.last_marks: dict[int, Any] = {}
        #: workers have to be told where their streams stand
        self._goes_on = cursor is not None
        self.schedule = self._schedule(cursor, (kept and kept.policy) or _policy(loader), places)
        #: where it began: the step after that of a state, or 0
        self.first_step = self.step
        #: all batches were delivered and the consumer was told so
        self.finished = False
        #: the state that this run was restored from, as long as nothing has moved
        self.unmoved: dict[str, Any] | None = None

    # --- reading ---------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        return self.schedule.delivered

    def begin(self) -> Begin:
        """The epoch, as workers are told of it."""
        return Begin(self.base_seed, self.announced, self.shared_seed)

    def openings(self, new_workers: bool) -> dict[int, Place]:
        """The streams that do not simply begin the epoch, each with its place.

        Args:
            new_workers: their datasets have not seen the epoch before.
        """
        places = self.schedule.places() if self._goes_on or new_workers else ()
        if self.order is None:  # what cannot be saved can still be fetched again
            places = tuple(place.replayable() for place in places)
        return {stream: place for stream, place in enumerate(places) if place.mark or place.given}

    def cursor(self, live: bool) -> Cursor:
        """Where the run stands.

        Args:
            live: objects that only pickle can save may stand in it.
        """
        next_step, position, pending = self._pending()
        window = [self._as_saved(task, live) for task in pending]
        standing = self.schedule.places()
        if not live:
            warn_of_drift(self._loader.dataset, standing)
        places = [
            place.copy(since=[self._as_saved(task, live) for task in place.since])
            for place in savable(standing, live)
        ]
        order = self._order_state(live)
        untouched = order is None or self._parts.known
        held = [*window, *(task for place in places for task in place.since)]
        return Cursor(
            epoch=self.epoch,
            step=self.step,
            next_step=next_step,
            position=position,
            window=tuple(window),
            streams=tuple(places),
            rank=self._rank(held, order),
            base_seed=self.base_seed,
            worker_seed=None if self.worker_seed == self.base_seed else self.worker_seed,
            order=order,
            sampler=unstarted(self._loader, self._parts, live) if untouched else {},
            rng=self._source.state(self._moved(), live),
            workers=self._workers_as_text(),
            announced=self.announced,
        )

    def _pending(self) -> tuple[int, int, tuple[Task, ...]]:
        """The order's next step and position, and the tasks that it has given before that."""
        plan = self.schedule.plan
        if self.order is None:
            return self.step, 0, ()  # streams know their places
        pending = sorted([*self.schedule.window(), *plan.backlog], key=attrgetter("step"))
        first, position = plan.next_step - len(pending), plan.position
        in_order = [task.step for task in pending] == list(range(first, plan.next_step))
        if self.order.seekable and in_order:
            # Nothing was delivered out of order: these tasks can simply be drawn again.
            return first, pending[0].position if pending else position, ()
        return plan.next_step, position, tuple(pending)

    def _as_saved(self, task: Task, live: bool) -> Task:
        if self.order is not None and self.order.seekable:
            return replace(task, indices=None)  # the order gives it again
        indices = encode_state(task.indices, "an index that the sampler has given: ", live)
        return replace(task, indices=indices)

    def _rank(self, held: list[Task], order: dict[str, Any] | None) -> tuple[int, int] | None:
        indices = any(task.indices is not None for task in held) and self.order is not None
        if not indices and "checksum" not in (order or ()):
            return None
        rank, world = rank_and_world()
        return None if world == 1 else (rank, world)

    def after(self) -> Cursor:
        """What the run, now that it is over, leaves to the next one."""
        return Cursor(
            rng=self._source.state(self._moved()),
            announced=self._loader._pl.announced,
            workers=self._workers_as_text(),
            sampler=unstarted(self._loader, self._parts),
        )

    def snapshot(self, live: bool) -> dict[str, Any]:
        """The saved form of where the run stands; see `cursor`."""
        if self._fits is None:
            self._fits = fingerprint(self._loader, self._parts)
        # Of what a run was begun with, only this may still be changed.
        self._fits["batch_size"] = self._parts.grouping.batch_size
        return to_plain(self.cursor(live), self._fits)

    # --- moving ----------------------------------------------------------------------------------

    def rejoin(self) -> None:
        """The program may restore the global generators at any moment of a resumed epoch."""
        if self._goes_on and self._source.universe is not None:
            rejoin(self._source)

    def moved(self, answer: Answer) -> None:
        """A batch was delivered, or passed over, by that answer."""
        self.unmoved = None
        if answer.states is not None:
            worker = str(answer.worker)
            self._states_before = answer.step, worker, self.worker_states.get(worker)
            self.worker_states[worker] = answer.states

    def take_back(self, handed_over: int) -> None:
        """The consumer was interrupted; see `Schedule.take_back`. Only a restart can follow.

        Args:
            handed_over: the step when it had got all that was delivered.
        """
        step = self.schedule.take_back(handed_over)
        if self._states_before is None or self._states_before[0] != step:
            return
        _, worker, states = self._states_before
        if states is None:  # the batch was that worker's first
            del self.worker_states[worker]
        else:
            self.worker_states[worker] = states

    def restart(self) -> None:
        """Have every task that is under way done again, by workers that know nothing."""
        plan, places = self.schedule.plan, self.schedule.places()
        if self.order is None:
            plan = StreamPlan(places, self._wish())
        else:
            assert isinstance(plan, Plan), "an order has one"
            plan.give_back(self.schedule.window())
            if plan.torn:
                self._seek(plan.next_step, plan.position)
        self.schedule = Schedule(plan, self.schedule.policy, self.step, places)
        self._goes_on = True

    # --- building --------------------------------------------------------------------------------

    def _make_order(self, cursor: Cursor | None) -> Order:
        saved = None if cursor is None else cursor.order
        if saved is None and cursor is not None and self._source.seed is not None:
            self._loader._pl.tell_samplers(self.epoch)
        order = make_order(self._parts.sampler, Setting(self._source, self.epoch, saved))
        if self._parts.opened_by_loader and saved is None:
            order.open()
        return order

    def _base_seed(self, cursor: Cursor | None, kept: Kept | None) -> int:
        if cursor is not None and cursor.base_seed is not None:
            return cursor.base_seed
        if self._source.seed is not None:
            return base_seed(self._source.seed, self.epoch)
        if kept is not None:
            # Torch draws one when it starts workers, not when they go on living.
            return next_base_seed(kept.base_seed)
        return self._source.draw("loader", random_int64)

    def _worker_seed(self, cursor: Cursor | None, kept: Kept | None) -> int:
        known = kept or cursor
        seed = None if known is None else known.worker_seed
        return self.base_seed if seed is None else seed

    def _open_again(self, cursor: Cursor | None, kept: Kept | None) -> None:
        # Torch's multiprocess iterator calls iter(sampler) a second time when it has started its
        # workers: a sampler that changes itself there is two ahead.
        fresh = cursor is None or cursor.order is None
        if self._loader.num_workers and kept is None and fresh:
            # So it does with the seed that DataPipes share, which it then drops.
            self._loader._pl.draw_shared_seed(self.epoch)
            if self._parts.opened_by_loader and self.order is not None:
                self.order.open()

    def _shared_seed(self, cursor: Cursor | None) -> int | None:
        saved = None if cursor is None or not is_iterable(self._loader) else cursor.order
        if saved is not None:
            return int(saved["shared_seed"])
        return self._loader._pl.draw_shared_seed(self.epoch)

    def _order_state(self, live: bool) -> dict[str, Any] | None:
        if self.shared_seed is not None:
            return {"shared_seed": self.shared_seed}
        return None if self.order is None else self.order.state(live)

    def _starting_places(self, cursor: Cursor | None) -> list[Place]:
        inner = self._loader._pl
        if cursor is None or not (cursor.streams or cursor.step):
            return inner.carried_places() or [Place() for _ in range(inner.streams)]
        if cursor.streams:
            return read(cursor.streams)
        # A state of an earlier version: torch's order tells how many each stream had given.
        each, more = divmod(cursor.step, inner.streams or 1)
        return [Place(each + (at < more)) for at in range(inner.streams)]

    def _wish(self) -> Any:
        """What each task of iterable-style data asks for."""
        grouping = self._parts.grouping
        return None if grouping.unit is Unit.SAMPLE else [None] * grouping.batch_size

    def _schedule(self, cursor: Cursor | None, policy: Policy, places: list[Place]) -> Schedule:
        loader, grouping = self._loader, self._parts.grouping
        if loader._pl.options.seeding == "worker" and not loader.num_workers:
            self._keep_apart(begins=cursor is None or cursor.base_seed is None)
        step = 0 if cursor is None else cursor.step
        if self.order is None:
            return Schedule(StreamPlan(places, self._wish()), policy, step, places)
        streams, aside = self.streams, MOST_ASIDE if draws_unnoticed(loader) else 0
        if cursor is None:
            plan = Plan(self.order, grouping, streams=streams, most_aside=aside)
            return Schedule(plan, policy, 0, places)
        backlog = tuple(self._given_again(task, streams) for task in cursor.window)
        for stream, place in enumerate(places):
            place.since = [self._given_again(task, streams) for task in place.since]
        self._seek(cursor.next_step, cursor.position)
        start = cursor.next_step, cursor.position
        plan = Plan(self.order, grouping, *start, backlog, streams, aside)
        return Schedule(plan, policy, step, places)

    def _seek(self, next_step: int, position: int) -> None:
        """Have the order go on with that step, if it can be sought in."""
        if self.order is not None and self.order.seekable:
            by_item = self._parts.grouping.unit is Unit.BATCH
            self.order.seek(next_step if by_item else position)

    def _keep_apart(self, begins: bool) -> None:
        # seeding="worker" in this process: the dataset draws from the program's own generators,
        # as under torch, unless a seed was given. Then each epoch begins with its own.
        if self._source.seed is not None and (begins or self._source.universe is None):
            self._source.universe = Universe.seeded(self.base_seed)

    def _given_again(self, task: Task, streams: int) -> Task:
        assert self.order is not None
        stream = task.step % streams if streams else None
        if task.indices is not None or not self.order.seekable:
            return Task(task.step, decode(task.indices), task.position, stream)
        unit = self._parts.grouping.unit
        self.order.seek(task.step if unit is Unit.BATCH else task.position)
        indices = self.order.take(self._parts.grouping.batch_size)
        gathered = unit is Unit.SAMPLE_OF_BATCH
        return Task(task.step, indices if gathered else indices[0], task.position, stream)

    def _moved(self) -> set[str]:
        """The global generators that later draws may come from."""
        inline_worker = (
            self._loader._pl.options.seeding == "worker" and not self._loader.num_workers
        )
        return set(RNGS) if inline_worker else draws_from(self._parts)

    def _workers_as_text(self) -> dict[str, Any]:
        return {
            worker: {name: RNGS[name].to_text(state) for name, state in states.items()}
            for worker, states in self.worker_states.items()
        }


def _policy(loader: DataLoader[Any]) -> Policy:
    workers, options = loader.num_workers, loader._pl.options
    if not workers:
        return Policy(lazy=True)
    wish = options.prefetch_budget or workers * (loader.prefetch_factor or 1)
    budget, most = budget_for(loader, wish)
    return Policy(
        workers=workers,
        budget=budget,
        most=most,
        bytes=count_bytes(options.prefetch_bytes),
        in_order=loader.in_order,
        most_deaths=options.max_task_deaths,
        moving=options.schedule == "balanced" and loader._pl.streamed,
    )
