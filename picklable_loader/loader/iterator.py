"""The iterator that ``iter(loader)`` gives; an ordinary value, picklable at any step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function
from torch.utils.data.dataloader import _DatasetKind

from ..core.checks import whole_number
from ..core.events import Arrived, Budgeted, Skipped
from ..epoch.fits import check_kind
from ..epoch.position import Position
from ..epoch.ranks import check_rank
from ..epoch.spec import Spec
from ..epoch.stream_states import replayed, text_of_difference, text_of_replay
from ..epoch.turns import AT_REST, MOVING
from ..epoch.unsaved import warn_of_made
from ..errors import (
    EmptyEpochWarning,
    ReplayWarning,
    SkippedWarning,
    UsageError,
    warn,
)
from ..fetching.engine.pool_engine import HalfReadError
from ..fetching.engine.stats import Stats
from ..fetching.transport.messages import Answer
from ..fetching.worker.fetch import NEVER
from ..fetching.worker.on_error import Thinned
from ..rng.generators import Isolated
from ..saving.pickles.placeholder import check_present
from .agreement import agree_before_pass, compare_first
from .display.timeline import Timeline, draw, timeline
from .internals import Owner
from .pickling import state_here
from .sampler_access import SamplerAccess
from .setup import engine_of, spec_of, warn_of_changes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_T = TypeVar("_T", covariant=True)


class LoaderIterator(SamplerAccess[_T], Iterator[_T]):
    """One pass over a loader's data.

    It can be pickled at any moment, with workers running; it does not notice. An unpickled one
    goes on with the very next batch. Unpickling starts no process, draws no random number and
    reads no data: the first ``next`` does.

    Made by ``iter(loader)``; not meant to be constructed.

    Attributes:
        loader: the `DataLoader` it belongs to.
    """

    __module__ = "picklable_loader"  # pickles hold this name

    def __iter__(self) -> LoaderIterator[_T]:
        return self

    def __next__(self) -> _T:
        """The next batch.

        Raises:
            StopIteration: the epoch is over.
            WorkerDied: workers die of the next batch, or as soon as they are started.
            RuntimeError: ``timeout`` is over; or, with ``max_task_deaths=0``, a worker has died.
                The iterator can go on.
            NoSampleError: all samples of 1000 batches in a row were bad. It can go on, too.
            Exception: whatever the dataset, collate_fn or sampler raises, as in torch; the next
                call gives the batch after that one.
        """
        turn, entered = self._turn, False
        try:
            with turn.lock:
                self._note_handed_over()
                before, turn.phase, entered = turn.phase, MOVING, True
                if turn.mover != get_ident():
                    turn.note_mover()
                if _profiler_enabled():
                    with record_function(self._profile_name):
                        batch = self._next()
                else:
                    batch = self._next()
                turn.phase = before
                return batch
        except BaseException as error:  # Ctrl-C, and what other signals' handlers raise, as well
            if entered:
                self._settle(error)
            if type(error) is not HalfReadError:
                raise
        return self.__next__()

    def skip(self, count: int) -> int:
        """Pass over the next batches without fetching them.

        An iterable-style dataset, a dataset with a state, and ``seeding="worker"`` depend on every
        batch before: there `skip` fetches the batches and drops them. A batch that workers die of
        is the exception: a map-style dataset is never asked for it.

        Args:
            count: how many, from 0.

        Returns:
            How many were passed over: fewer at the end of the epoch, or where the sampler raises;
            the next ``next`` raises that.

        Raises:
            ValueError, TypeError: ``count`` is negative, or no whole number.
        """
        count = whole_number("count", count, 0)
        with self._jumps("skip()"):
            if not count:
                return 0
            passed, self._notes = self._skip(count), ()
            return passed

    def _skip(self, count: int) -> int:
        spec = spec_of(self.loader)
        # Workers may have fetched a part of what is skipped: their generators have moved then.
        at_end = self.epoch != self._position.epoch  # the next batch begins another epoch
        if at_end or spec.streamed or spec.options.seeding == "worker":
            around = count and self._deadly == self.step and not spec.iterable
            passed = self._skip_tasks(1) if around else 0
            passed += sum(1 for _ in zip(range(count - passed), self))
            return passed + self._skip_tasks(0)
        return self._skip_tasks(count)

    def _skip_tasks(self, count: int) -> int:
        if self._position.over:  # the next epoch begins with what this one has left
            return 0
        position, before = self._position, self.step
        # Not afterwards: Ctrl-C may come as soon as the pass has moved.
        choice, position.at_epoch_end = position.at_epoch_end, None
        if self._driver.run is not None:
            self._driver.handle(Skipped(count))
        else:  # workers never see what may have killed those before them
            self.start(skip=count)
        run = position.run
        if self._closed or run is None:
            return 0
        passed = run.step - before
        if passed:
            run.has_moved = True
        else:
            position.at_epoch_end = choice
        return passed

    @property
    def prefetch_budget(self) -> int:
        """How many batches may be under way or waiting, from 1; "auto" leaves it to itself again.

        There is none (UsageError) where nothing is fetched.
        """
        if (run := self._position.run) is not None:
            return run.schedule.budget
        if self.finished or self._closed:
            raise _no_budget(self.finished)
        return self._position.budget(spec_of(self.loader), self._driver.carryover)

    @prefetch_budget.setter
    def prefetch_budget(self, budget: int | Literal["auto"]) -> None:
        tasks, most = spec_of(self.loader).budget_for(budget)
        with self._jumps("prefetch_budget"):
            self.start()
            run = self._position.run
            if run is None or self._driver.run is None:
                raise _no_budget(self.finished)
            self._driver.handle(Budgeted(tasks, run.schedule.policy.bytes, most))

    def stats(self) -> Stats:
        """Figures of workers and consumer since the workers were started, or until they ended.

        Skipped samples are counted over all of the iterator's life.
        """
        return self._driver.stats()

    def timeline(self, batches: int = 200) -> Timeline:
        """When each worker was busy with a batch, and when the consumer waited for one.

        Args:
            batches: the last so many that workers have made, from 1; 1000 are remembered, since
                the workers were started. No pickle holds them.

        Raises:
            ValueError, TypeError: ``batches`` is no whole number from 1.
        """
        batches = whole_number("batches", batches, 1)
        return timeline(self._driver.record(), self.loader.num_workers or 1, batches)

    def plot(self, axes: Axes | None = None, *, batches: int = 200) -> Axes:
        """Draw the timeline, with matplotlib: who waits for whom?

        Args:
            axes: where to; None makes a new figure.
            batches: see `timeline`.

        Returns:
            The axes.

        Raises:
            UsageError: matplotlib is not installed.
            ValueError, TypeError: see `timeline`.
        """
        return draw(self.timeline(batches), axes)

    def begin(self, spec: Spec, loaded: Position | None = None) -> None:
        """Begin a pass, for ``iter``: the next epoch, or the rest of a ``loaded`` one."""
        check_present(self.loader.dataset)
        inner, history = self.loader._pl, self._history
        self._check_rank()
        position = loaded or Position()
        start, choice = position.start, position.at_epoch_end or inner.options.at_epoch_end
        if loaded is None and spec.lives_on:
            if (newest := history.position) and newest.unopened(spec) and not self._closed:
                self._take(newest)
                self.start()  # workers hand on what that pass has made of them
            start, carryover = history.after_unpickling(spec)
            self._driver.carryover = carryover or self._driver.carryover
        if inner.driver is not None:
            left = self._driver.run
            if start is None and left and not left.finished and left.spec.asks_when_left:
                # Note what the pass has made of workers that live on.
                self._driver.leave()
                history.note_end(left.spec, left)
            inner.abandon(spec, start)
            if self._driver.has_workers and not history.choice.reaches(spec.dataset):
                warn_of_changes(self.loader, spec)
            self._driver.rest()
        if start is None:
            _check_kind(self.loader)
            spec = agree_before_pass(self.loader, spec, None)
            if inner.driver is not None or history.next_states:
                inner.refit(spec)
            position = Position(run=history.fresh_run(spec, self._driver.carryover))
            compare_first(spec, position)
            self._take(position)
            self._iterable_length = self.loader._IterableDataset_len_called
        else:
            self._take(Position(start, position.given, at_epoch_end=choice))
        self.start()
        self._lead(spec)

    def start(self, skip: int = 0) -> None:
        """Start the workers and let them fetch ahead; `next` does it where it was not done.

        ``skip`` is the number of batches to pass over before.
        """
        position = self._position
        if self._driver.run is not None or position.over or self._closed:
            return
        check_present(self.loader.dataset)
        self._check_rank()
        run = position.run
        if run is None:
            _check_kind(self.loader)
            spec = agree_before_pass(self.loader, spec_of(self.loader), position)
            run = self._history.resumed_run(spec, position, self._driver.carryover)
            compare_first(spec, position)
        if run.goes_on:
            every = run.spec.options.snapshot_every_n_steps
            positions = run.openings(new_workers=False).values()
            if count := replayed(positions, None if every == "auto" else every or NEVER):
                self._warning = text_of_replay(run.spec, run.epoch, count), ReplayWarning
        self._collates = id(self.loader.collate_fn)
        self._driver.start(run, partial(engine_of, self.loader, self._driver), self._turn, skip)

    def _check_rank(self) -> None:
        loader = self.loader
        check_rank(loader._pl.pickled_on, loader)
        loader._pl.pickled_on = None

    def close(self) -> None:
        """Retire the workers; ``next`` raises StopIteration from now on.

        It waits for a ``next`` of another thread. Within ``next`` of this thread (from the dataset
        or a signal handler) the batch at hand still comes, and the next call retires the workers.
        Its state stays: what is unpickled from a closed iterator goes on.
        """
        self._closed = True
        if self._turn.phase_here() == AT_REST:
            with self._turn.moves():
                self._closed = True  # another thread may have begun a pass in the meantime
                self._driver.stop()

    def __enter__(self) -> LoaderIterator[_T]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _next(self) -> _T:
        driver, position, run = self._driver, self._position, self._position.run
        if self._closed:
            driver.stop()
        if self._closed or (position.ended if run is None else run.finished):
            raise StopIteration
        driver.settled = False
        try:
            if driver.run is None:
                self.start()
            if self._warning is not None:
                warning, self._warning = self._warning, None
                driver.settled = True  # a filter may make an error of the warning
                warn(*warning)
                driver.settled = False
            run = position.run
            assert run is not None
            if run.goes_on:
                run.rejoin()
            answer = driver.advance()
            run.moved(answer)
            if position.start is not None:
                position.start = position.at_epoch_end = None
        except StopIteration:
            self._warn_of_bad_samples()
            if self._goes_to_next_epoch():
                return self._next()
            self._finish()
            raise
        return self._hand_over(answer, run.spec)

    def _warn_of_bad_samples(self) -> None:
        if (sample := self._driver.bad_samples.unreported) is not None:
            self._driver.bad_samples.unreported = None
            warn(
                f"skipped, as on_error says: {sample}. This warning comes once an epoch; stats() "
                "of the iterator counts all that are skipped",
                SkippedWarning,
            )

    def _hand_over(self, answer: Answer, spec: Spec) -> _T:
        if answer.kind is not Arrived:
            self._raise(answer)
        payload, self._notes = answer.payload, answer.notes
        if type(payload) is Thinned:
            payload, bad = payload
            self._driver.note_bad(answer.step, bad)
        if self._driver.bad_samples.unreported:
            self._warn_of_bad_samples()
        loader, promised = self.loader, self._iterable_length
        if answer.found:
            self._note_found(*answer.found)
        if promised is not None and spec.iterable and self.step > promised:
            warn(_longer(loader, promised, self.step), UserWarning)
        if loader.pin_memory or self._driver.copies is not None:
            payload = self._driver.moved(answer, payload)
        if spec.options.with_state:
            with Isolated.turn:
                return payload, state_here(loader, self._position)  # type: ignore[return-value]
        return payload  # type: ignore[no-any-return]

    def _note_found(self, made: Sequence[str], collected: Sequence[str], differs: bool) -> None:
        inner = self.loader._pl
        if made and not inner.warned_of_made:
            inner.warned_of_made = True
            warn_of_made(made)
        inner.collected.update(collected)
        if differs:
            warn(text_of_difference(self.loader.dataset))

    def _raise(self, answer: Answer) -> NoReturn:
        own = getattr(answer.payload, "exc_type", type(answer.payload))
        try:
            answer.reraise()
        except Exception as error:
            # A batch that raised counts as delivered. One of a worker that could not start does
            # not: the next call starts new workers. Nor does one whose error a signal handler's has
            # replaced, as it was raised. Torch makes RuntimeErrors of those that it cannot build.
            self._driver.settled = answer.started and type(error) in (own, RuntimeError)
            raise

    def _goes_to_next_epoch(self) -> bool:
        """If a resumed epoch had no batch to deliver, begin the next one (True), or warn."""
        position, run = self._position, self._position.run
        assert run is not None
        choice, position.at_epoch_end = position.at_epoch_end, None
        if choice is None or not position.was_at_the_end(run):
            return False
        if choice == "next":
            self._history.note_end(run.spec, run)
            if not run.spec.lives_on:
                self._driver.stop()
            self.begin(spec_of(self.loader))
            self._handed_over = 0
            return True
        warn(
            f"the state was taken after the last batch of epoch {run.epoch}: this pass delivers "
            'nothing. Pass at_epoch_end="next" to load_state_dict or DataLoader to go straight on '
            f"with epoch {run.epoch + 1}.",
            EmptyEpochWarning,
        )
        return False

    def _finish(self) -> None:
        run = self._position.run
        assert run is not None
        run.finished = True
        self._history.note_end(run.spec, run)
        if not run.spec.lives_on:
            self._driver.stop()


def _longer(loader: Owner[Any], promised: int, fetched: int) -> str:
    """Torch's warning of a dataset that gives more than its ``len`` has said."""
    text = (
        f"Length of IterableDataset {loader.dataset} was reported to be {promised}"
        f"(when accessing len(dataloader)), but {fetched} samples have been fetched. "
    )
    if loader.num_workers > 0:
        text += (
            "With several workers this may come from every worker reading the whole dataset: "
            "shard it by torch.utils.data.get_worker_info(), as "
            "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset shows."
        )
    return text


def _no_budget(finished: bool) -> UsageError:
    """The error of an iterator that fetches nothing (any more)."""
    state = "finished" if finished else "closed"
    return UsageError(
        f"this iterator is {state} and fetches nothing, so that it has no prefetch_budget: use the "
        "one that the next iter(loader) gives, or DataLoader(..., prefetch_budget=...)"
    )


def _check_kind(loader: Owner[Any]) -> None:
    check_kind(loader.dataset, was=loader._dataset_kind == _DatasetKind.Iterable)
