"""One pass over a loader's data, as far as it can be saved.

A run joins the pure parts (order, plan, schedule) with the loader's sampler and the source of its
draws. It makes a snapshot of them at any moment. It knows of no process and holds no batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from ..core.budget import Policy
from ..core.cursor import Cursor, Saved, before_epoch, sees_worker_info
from ..core.deliveries import Delivery, check_behind
from ..core.events import Fault, Interrupted, Retract, Wanted
from ..core.order import Order
from ..core.plan import LOST, MOST_ASIDE, Plan, Unit
from ..core.schedule import Schedule
from ..core.seeds import base_seed, batch_seed, next_base_seed, owned_seed, stream_seed
from ..core.streams import StreamPlan, StreamPosition
from ..core.task import Task
from ..datasets.datapipes import SharedSeeds
from ..errors import CannotSaveError, UsageError, warn
from ..fetching.transport.messages import Answer, EpochStart
from ..orders.custom import CustomOrder
from ..orders.sampler_facts import settings_of
from ..orders.torch_samplers import make_order
from ..orders.unknown import saved_indices
from ..rng.generators import GeneratorStates, capture_all, restore_all
from ..rng.source import Setting, Source, random_int64, rejoin
from ..saving.states.plain import decode
from ..saving.states.tree import Writer
from .carryover import Carryover, as_text, from_text
from .dataset_rng import at_begin, for_replays
from .saved_feedback import restored_feedback, saved_feedback, saved_order, state_before
from .spec import Spec
from .stream_states import read, savable, warn_of_gaps


class Run:
    """One pass over the data of an epoch; `open` comes first.

    Args:
        spec, source: how the loader is set up, and where its random draws come from.
        start: where to begin, or to go on.
        carryover: that of persistent workers, if there is one.
        goes_on: it goes on from a state; False: it begins an epoch.
        after_left: the pass before was left in its middle.
    """

    order: Order | None
    schedule: Schedule

    def __init__(
        self,
        spec: Spec,
        source: Source,
        start: Cursor,
        carryover: Carryover | None = None,
        goes_on: bool = True,
        after_left: bool = False,
    ) -> None:
        self.spec = spec
        self._source = source
        self.start, self.draws_as = start, start.draws_as
        self._lives_on = self.draws_as == "persistent_workers"
        self._carryover, self._after_left = carryover, after_left
        self._fits: dict[str, Any] | None = None
        self.writer = Writer()
        self.epoch, self.announced = start.epoch, start.announced
        self.shared_seed: int | None = None
        self.base_seed = 0
        #: the seed with which the workers are, or were, started
        self.worker_seed = 0
        #: by worker, the states of its generators after the last batch that was delivered from it
        self.worker_states = from_text(start.workers)
        if carryover is not None and not goes_on:
            self.worker_states = dict(carryover.worker_states)
        #: the last step that has moved them, the worker, and its states before
        self._states_before: tuple[int, str, Any] | None = None
        #: the step of the batch that was fetched last in this process, and the generators before it
        self._before_draws: tuple[int, dict[str, Any]] | None = None
        #: the streams that serve the tasks, which are a state's, or the loader's
        self.streams = spec.streams
        #: how many batches the pass has, where all ranks have as many; None: as its streams have
        self.batches = spec.batches
        #: people's code sees torch's worker information
        self.worker_info = spec.reads_copies
        #: once the run is over: by stream, the state in which the next epoch finds the dataset
        self.last_states: dict[int, Any] = {}
        #: and the number of the epoch that the loader had next then
        self.next_epoch = 0
        #: it goes on from a state or an interruption: workers are given their streams' positions
        self.goes_on = goes_on
        #: something was delivered or passed over since; or it begins an epoch, which draws
        self.has_moved = start.base_seed is None or before_epoch(start)
        #: all batches were delivered, and the consumer has got StopIteration
        self.finished = False

    def open(self, shared_seeds: SharedSeeds, left: list[StreamPosition]) -> None:
        """Draw seeds and open the sampler, in torch's order of draws.

        ``left`` are the streams, if the epoch before has left the dataset in another state.
        """
        start, carryover, spec = self.start, self._carryover, self.spec
        rejoin(self._source)
        if spec.iterable and start.order is not None:
            self.shared_seed = int(start.order["shared_seed"])
        else:
            self.shared_seed = shared_seeds.draw(spec.dataset, self.epoch)
        self._dataset_rng = at_begin(start, spec)
        #: None: iterable-style data
        self.order = None if spec.iterable else self._make_order()
        self.settings = settings_of(spec.sampler)
        self.base_seed = self._base_seed()
        seed = ((carryover if self._lives_on else None) or start).worker_seed
        self.worker_seed = self.base_seed if seed is None else seed
        self._open_again(shared_seeds)
        positions = read(start.streams) if start.streams else left
        if spec.streamed and not positions:
            positions = [StreamPosition() for _ in spec.streams.own]
        self._streamed = bool(positions)
        #: streams that had ended before this pass
        self._ended_before = {at for at, position in enumerate(positions) if position.ended}
        if start.streams:
            self.streams = replace(spec.streams, total=start.num_streams or len(positions))
            self.batches, self.worker_info = start.batches, sees_worker_info(start)
        policy = (carryover and carryover.policy) or spec.policy()
        self.schedule = self._schedule(policy, positions)

    # --- reading ---------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        return self.schedule.delivered

    @property
    def midway(self) -> bool:
        """It has given batches, and not all."""
        return self.step > 0 and not self.finished

    def epoch_start(self) -> EpochStart:
        """The epoch, as it is sent to workers."""
        return EpochStart(self.base_seed, self.announced, self.shared_seed, None, self.worker_info)

    def openings(self, new_workers: bool) -> dict[int, StreamPosition]:
        """The streams that do not simply begin the epoch, each with its position.

        The datasets of new workers have not seen the epoch before.
        """
        if not self._streamed or not (self.goes_on or new_workers):
            return {}
        positions = self.schedule.positions()
        if self.order is None:  # what cannot be saved can still be fetched again
            positions = tuple(position.replayable() for position in positions)
        return {at: each for at, each in enumerate(positions) if each.state or each.given}

    def cursor(self, live: bool, behind: int = 0) -> Cursor:
        """The position of the run; UsageError if ``behind`` is too much.

        Args:
            live: for a pickle, which may hold objects; a state has plain values only.
            behind: the last so many deliveries do not count.
        """
        undone = self._undone(behind) if behind else []
        step = undone[-1].delivered if undone else self.schedule.delivered
        next_step, position, pending = self._pending(step, undone)
        before = None if undone or live else state_before(pending, self.order, self.schedule.plan)
        if before is not None:  # these are drawn again
            next_step, position, pending = pending[0].step, pending[0].position, ()
        window = tuple([self._as_saved(task, live) for task in pending]) if pending else ()
        positions = self._of_streams(live, undone) if self._streamed else ()
        order: Any = None if self.shared_seed is None else {"shared_seed": self.shared_seed}
        if order is None and self.order is not None:
            order = before or saved_order(self.order, self.schedule, self.spec.sampler, live)
        untouched = order is None or self.spec.known
        return Cursor(
            epoch=self.epoch,
            step=step,
            next_step=next_step,
            position=position,
            window=window,
            streams=positions,
            num_streams=self.streams.total if positions and self.streams.shard.world > 1 else None,
            batches=self.batches,
            worker_info=self.worker_info if positions else None,
            dataset_rng=for_replays(self._dataset_rng, positions, live, self.spec),
            rank=self._rank(window, positions, order),
            base_seed=self.base_seed,
            worker_seed=None if self.worker_seed == self.base_seed else self.worker_seed,
            order=order,
            sampler=self.spec.unstarted(self._source, True, live) if untouched else {},
            rng=self._source.state(self.spec.moves, live),
            workers=as_text(self.worker_states),
            announced=self.announced,
            draws_as=self.draws_as if self.spec.shows_draws else None,
            feedback=saved_feedback(self.schedule, undone, live),
        )

    def _undone(self, behind: int) -> list[Delivery]:
        """The last deliveries, the newest first; UsageError if they cannot be taken back."""
        if self.spec.options.seeding == "worker":
            raise UsageError(
                f'behind={behind} cannot be combined with seeding="worker": the random numbers of '
                'a worker run on from batch to batch. Use seeding="batch"'
            )
        check_behind(behind, len(self.schedule.deliveries))
        return self.schedule.deliveries.last(behind)

    def _of_streams(self, live: bool, undone: Sequence[Delivery]) -> tuple[StreamPosition, ...]:
        """The streams' positions, as a state holds them."""
        positions = self.schedule.positions(undone)
        warn_of_gaps(self.spec, positions, live, self._dataset_rng, self._after_left)
        return tuple(
            position.copy(since=[self._as_saved(task, live) for task in position.since])
            for position in savable(positions, live)
        )

    def _pending(self, step: int, undone: Sequence[Delivery]) -> tuple[int, int, Sequence[Task]]:
        """The order's next step and position, and the tasks that it has given before that."""
        plan = self.schedule.plan
        if self.order is None:
            return step, 0, ()  # streams know their positions
        assert isinstance(plan, Plan), "it draws from an order"
        if plan.lost:
            raise CannotSaveError("the position", LOST, "Save before, or begin the epoch anew")
        pending = [*self.schedule.window(), *plan.backlog, *(each.task for each in undone)]
        if not pending:
            return plan.next_step, plan.position, ()
        pending.sort(key=attrgetter("step"))
        if self.order.seekable and not plan.gives_again(pending):
            warn(
                "the batch size has changed in mid-epoch, and batches of the earlier size are "
                "drawn already: this pass delivers them, and its resume would draw them in the new "
                "size. Call flush() of the iterator where you change it, or change it between two "
                "epochs"
            )
        first = plan.next_step - len(pending)
        if self.order.seekable and pending[0].step == first:
            # Nothing was delivered out of order: these tasks can simply be drawn again.
            return first, pending[0].position, ()
        return plan.next_step, plan.position, pending

    def _as_saved(self, task: Task, live: bool) -> Task:
        if self.order is not None and self.order.seekable:
            return replace(task, indices=None)  # the order gives it again
        drawn = task.indices if task.drawn is None else task.drawn
        return replace(task, indices=saved_indices(drawn, live), drawn=None)

    def _rank(
        self,
        window: Sequence[Task],
        positions: Sequence[StreamPosition],
        order: dict[str, Any] | None,
    ) -> tuple[int, int] | None:
        """This rank, and the number of ranks, if the state is not for any other rank."""
        spec, replayed = self.spec, order is not None and "checksum" in order
        if spec.shared:
            apart = spec.workers > 0 and not spec.in_order  # each rank has delivered other steps
            own = bool(positions) or apart or (spec.shard.tail == "uneven" and not spec.known)
        else:  # batches out of order, or drawn from a sampler of the program's own
            drawn = any(task.indices is not None for each in positions for task in each.since)
            of_data = bool(positions) and (spec.iterable or spec.is_distributed)
            own = replayed or bool(window) or drawn or of_data
        rank, world = spec.rank if own else (0, 1)
        return None if world == 1 else (rank, world)

    def saved(self, live: bool, behind: int = 0) -> Saved:
        """The position of the run, as a state holds it; see `cursor`."""
        cursor = self.cursor(live, behind)
        grown = "grown_from" in (cursor.order or ())
        fits = (None if grown else self._fits) or self.spec.fingerprint(self.streams.total)
        size = self.spec.grouping.batch_size
        if fits["batch_size"] != size:  # the only setting that may change while a run lasts
            fits = {**fits, "batch_size": size}
        self._fits = self._source.fits = fits
        return Saved(cursor, fits)

    def wrong_lengths(self) -> list[int]:
        """Streams that have had more or fewer batches in the epoch than the dataset says."""
        said, ended = self.spec.stream_batches(self.streams.total), self._ended_before
        if said is None:
            return []
        more = self.schedule.waiting > 0  # other ranks have ended, and this one has batches
        own = zip(self.streams.own, self.schedule.positions(), strict=False)
        return [
            stream
            for at, (stream, position) in enumerate(own)
            if at not in ended and (position.given < said[stream] if position.ended else more)
        ]

    # --- moving ----------------------------------------------------------------------------------

    def rejoin(self) -> None:
        """The program may restore the global generators at any moment of an epoch that goes on."""
        if self.goes_on and self._source.private is not None:
            rejoin(self._source)

    def leave_sampler(self) -> None:
        """Bring a custom sampler to its state in this pass; others may move it from now on.

        Raises:
            Exception: the sampler's; or an `OrderMismatch`.
        """
        if isinstance(self.order, CustomOrder):
            self.order.leave()

    def read_epoch(self) -> None:
        """Ask the sampler for the first batch now, as the next pass sets it another epoch.

        With ``seed=`` each pass does. Many samplers read it at the first index.

        Raises:
            Exception: the sampler's.
        """
        plan = self.schedule.plan
        if self.goes_on or self._source.seed is None or not self.spec.sampler_has_epochs:
            return
        if isinstance(plan, Plan) and plan.next_step == 0:
            plan.look_ahead()

    def note_generators(self, step: int) -> None:
        """People's code is going to draw for a batch, from the generators at hand.

        With ``seeding="worker"`` nobody seeds them anew for it: an interruption puts them back.
        """
        private = self._source.private
        if private is None or self._source.seed is None:
            self._before_draws = step, capture_all()
        else:  # its own states move when the batch is done, and to copy the dict saves 5 µs
            self._before_draws = step, dict(private.states)

    def moved(self, answer: Answer) -> None:
        """A batch was delivered, or passed over, by that answer."""
        self.has_moved = True
        if answer.states is not None:
            worker = str(answer.worker)
            self._states_before = answer.step, worker, self.worker_states.get(worker)
            self.worker_states[worker] = answer.states

    def hear_the_end(self) -> None:
        """Let the sampler hear of the last batch, if nobody asks for the StopIteration after it.

        A trainer that counts batches does not, as Lightning. A resume from there does.

        Raises:
            Exception: the sampler's.
        """
        schedule = self.schedule
        if self.finished or not schedule.feedback.listening or schedule.remaining() != 0:
            return
        for instruction in schedule.handle(Wanted()):
            if type(instruction) is Fault:
                raise instruction.error

    def interrupted(self, handed_over: int) -> None:
        """Have every task that is under way done again, by new workers; see `Interrupted`."""
        retracted = self.schedule.handle(Interrupted(handed_over))
        before = self._before_draws
        if before is not None and before[0] >= self.step:  # that batch is fetched again
            self._source.globals().run(restore_all, before[1])
        self._before_draws = None  # not before: a second signal has all of this done once more
        if self._states_before is not None and retracted == [Retract(self._states_before[0])]:
            _, worker, states = self._states_before
            if states is None:  # the batch was that worker's first
                del self.worker_states[worker]
            else:
                self.worker_states[worker] = states
        self.goes_on = True
        self.has_moved |= self.step != self.start.step  # a skip may have moved it

    # --- building --------------------------------------------------------------------------------

    def _make_order(self) -> Order:
        saved = self.start.order
        if saved is None and self.goes_on and self._source.seed is not None:
            self.spec.set_epoch_of_samplers(self.epoch)
        order = make_order(self.spec.sampler, Setting(self._source, self.epoch, saved))
        if self.spec.opened_by_loader and saved is None:
            order.open()
        return order

    def device_seed(self, step: int) -> int:
        """The seed of what ``device_convert`` draws for a step."""
        if self.order is None:
            at, stream = divmod(step, len(self.streams))
            # From 0, and a worker counts from 1: to change it would change what people get.
            seed = stream_seed(self.base_seed, self.streams.number(stream), at)
        else:
            shard = self.spec.shard
            seed = batch_seed(self.base_seed, step * shard.world + shard.rank)
        return owned_seed(seed, b"device_convert")  # other numbers than the worker's

    def _base_seed(self) -> int:
        if self.start.base_seed is not None:
            return self.start.base_seed
        if self._source.seed is not None:
            return base_seed(self._source.seed, self.epoch)
        if self._carryover is not None and self._lives_on:
            # Torch draws one when it starts workers, not when they go on living.
            return next_base_seed(self._carryover.base_seed)
        return self._source.draw("loader", random_int64)

    def _open_again(self, shared_seeds: SharedSeeds) -> None:
        # Torch's multiprocess iterator calls iter(sampler) a second time when it has started its
        # workers: a sampler that changes itself there is two ahead.
        begun = (self.start.base_seed, self.start.worker_seed) != (None, None)
        living = self._lives_on and (self._carryover is not None or begun)
        if self.draws_as is not None and self.start.order is None and not living:
            # So it does with the seed that DataPipes share, which it then drops.
            shared_seeds.draw(self.spec.dataset, self.epoch)
            if self.order is not None and self.spec.opened_by_loader:
                self.order.open()

    def _schedule(self, policy: Policy, positions: list[StreamPosition]) -> Schedule:
        spec, grouping, start = self.spec, self.spec.grouping, self.start
        if spec.options.seeding == "worker" and not spec.workers:
            # In this process the dataset draws from the program's own generators, as under torch,
            # unless a seed was given. Then each epoch begins with its own.
            source, fresh = self._source, start.base_seed is None
            if source.seed is not None and (fresh or source.private is None):
                source.private = GeneratorStates.seeded(self.base_seed)
        if self.order is None:
            asked = None if grouping.unit is Unit.SAMPLE else [None] * grouping.batch_size
            plan_of_streams = StreamPlan(positions, asked, self.streams, self.batches)
            return Schedule(plan_of_streams, policy, start.step, positions, spec.options.remember)
        streams, aside = len(self.streams), MOST_ASIDE if spec.draws_unnoticed else 0
        at = start.next_step, start.position
        plan = Plan(self.order, grouping, *at, streams=streams, most_aside=aside)
        if self.goes_on:
            plan.give_back(filter(None, map(plan.again, map(self._as_drawn, start.window))))
            for position in positions:
                again = map(plan.again, map(self._as_drawn, position.since))
                position.since = [task for task in again if task is not None]
            plan.seek()
        feedback, newest = restored_feedback(start, self.order, plan), None
        if start.feedback is not None:
            policy = replace(policy, budget=start.feedback["budget"], most=0)
            newest = start.feedback.get("newest")
        remember = spec.options.remember
        return Schedule(plan, policy, start.step, positions, remember, feedback, newest)

    def _as_drawn(self, task: Task) -> Task:
        """A task of a state, with its indices as the sampler gave them."""
        assert self.order is not None
        return task if self.order.seekable else replace(task, indices=decode(task.indices))
