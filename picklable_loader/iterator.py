"""LoaderIterator: what ``iter(loader)`` gives; an ordinary value, picklable at any step."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function

from .anatomy import budget_for, is_iterable, position, remaining
from .core.events import Budgeted
from .core.snapshot import from_plain
from .driver import Driver
from .marks import replayed
from .options import AtEpochEnd
from .pinning import pin
from .refusals import no_budget
from .run import Run
from .saved import alone, next_epoch, snapshot
from .stats import Stats
from .transport.frames import Answer
from .warn import empty_epoch, longer_than_promised, replay

if TYPE_CHECKING:
    from .loader import DataLoader

__all__ = ["LoaderIterator"]

_T = TypeVar("_T", covariant=True)


class LoaderIterator(Iterator[_T], Generic[_T]):
    """One pass over a loader's data.

    It can be pickled at any moment, with workers running; it does not notice. What is unpickled
    goes on with the very next batch. Unpickling starts no process, draws no random number and
    reads no data: the first ``next`` does.

    Made by ``iter(loader)``; not meant to be constructed.

    Attributes:
        loader: the `DataLoader` it belongs to.
    """

    def __init__(self, loader: DataLoader[_T], driver: Driver | None = None) -> None:
        self.loader = loader
        self._driver = driver or Driver()
        self._run: Run | None = None
        #: where to go on, as long as there is no run
        self._state: dict[str, Any] | None = None
        self._finished = False
        self._closed = False
        #: batches that are fetched again, which the user is yet to be told
        self._replay = 0
        #: what to do if there is nothing left; None: this is not the first batch after a resume
        self._at_epoch_end: AtEpochEnd | None = None
        self._iterable_length: int | None = loader._IterableDataset_len_called
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"

    # --- position --------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Batches delivered in this epoch; one that raised an exception counts."""
        return self._position()[1]

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0."""
        return self._position()[0]

    @property
    def finished(self) -> bool:
        """The epoch is over, and the consumer was told so by StopIteration."""
        return self._finished

    @property
    def remaining(self) -> int | None:
        """Batches still to be delivered in this epoch; None where the sampler has no length."""
        if self._finished:
            return 0
        if self._run is not None:
            return self._run.schedule.remaining()
        return remaining(self.loader, self._state or self.loader._pl.beginning())

    @property
    def driver(self) -> Driver:
        """What has the workers."""
        return self._driver

    @property
    def run(self) -> Run | None:
        """The run at hand; None before the first `next` after unpickling."""
        return self._run

    def __len__(self) -> int:
        """Batches in the whole epoch, as torch's iterator says it.

        Raises:
            TypeError: the sampler has no length.
        """
        return len(self.loader._index_sampler)

    def __repr__(self) -> str:
        try:
            total = f" of {len(self.loader)}"
        except (TypeError, NotImplementedError):
            total = ""
        where = "finished" if self._finished else "closed" if self._closed else "before its start"
        if not self._finished and not self._closed and self._driver.at_work:
            where = "running"
        return (
            f"<LoaderIterator: epoch {self.epoch}, {self.step}{total} batches delivered, "
            f"num_workers={self.loader.num_workers}, {where}>"
        )

    # --- iteration -------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator[_T]:
        return self

    def __next__(self) -> _T:
        """The next batch.

        Raises:
            StopIteration: the epoch is over.
            RuntimeError: a worker has died, or ``timeout`` is over. The iterator can go on.
            Exception: whatever the dataset, collate_fn or sampler raises, as in torch; the next
                call gives the batch after that one.
        """
        if _profiler_enabled():
            with record_function(self._profile_name):
                return self._next()
        return self._next()

    def skip(self, count: int) -> int:
        """Pass over the next batches without fetching them.

        With an iterable-style dataset, or one that has a state, they have to be fetched and are
        dropped. With ``seeding="worker"`` the workers' random numbers do not move.

        Args:
            count: how many, from 0.

        Returns:
            How many were passed over: fewer at the end of the epoch.

        Raises:
            ValueError: ``count`` is negative.
        """
        if count < 0:
            raise ValueError(f"count should be from 0, got count={count}")
        self.start()
        if self._finished or self._closed:
            return 0
        if self.loader._pl.streamed:
            return sum(1 for _ in zip(range(count), self))
        passed = self._driver.skip(count)
        if passed:
            self._live_run().unmoved = None
            self._at_epoch_end = None
        return passed

    @property
    def prefetch_budget(self) -> int:
        """How many batches may be under way or waiting, from 1; "auto" leaves it to itself again.

        There is none (UsageError) where nothing is fetched.
        """
        self.start()
        if self._run is None:
            raise no_budget(self._finished)
        return self._run.schedule.budget

    @prefetch_budget.setter
    def prefetch_budget(self, budget: int | Literal["auto"]) -> None:
        tasks, most = budget_for(self.loader, budget)
        self.start()
        if not self._driver.at_work:
            raise no_budget(self._finished)
        self._driver.tell(Budgeted(tasks, self._live_run().schedule.bytes, most))

    def stats(self) -> Stats:
        """What workers and consumer did since the workers were started; or until they ended."""
        return self._driver.stats()

    def begin(self, state: dict[str, Any] | None, at_epoch_end: AtEpochEnd | None) -> None:
        """Begin a pass: the next epoch, or the rest of a saved one. Called by ``iter``."""
        self._resume(state, at_epoch_end or self.loader._pl.options.at_epoch_end)
        if state is None:
            self._fresh_run()
        self.loader._pl.adopt(self)
        self.start()

    def start(self) -> None:
        """Start the workers and let them fetch ahead; `next` does it where it was not done."""
        if self._driver.at_work or self._finished or self._closed:
            return
        if self._run is None:
            self._build_run()
        run = self._live_run()
        job, places = self.loader._pl.job(), run.openings(new_workers=False)
        self._replay = replayed(places.values(), job.mark_every)
        self._driver.start(self.loader, run)

    def close(self) -> None:
        """Retire the workers; ``next`` raises StopIteration from now on.

        Its state stays: what is unpickled from a closed iterator goes on.
        """
        self._closed = True
        self._driver.stop()

    def __enter__(self) -> LoaderIterator[_T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: plain containers, numbers, text and tensors, which hold no code.

        After the epoch's end (StopIteration) it is the beginning of the next epoch.

        Returns:
            A dict that later calls do not change. It loads under
            ``torch.load(weights_only=True)``, and is JSON wherever the indices of a custom
            sampler are.

        Raises:
            CannotSaveError: the sampler's iterator, or a stream of the dataset, cannot be saved
                exactly; the text names the way out.
        """
        if self._finished:
            if self._run is None:
                self._build_run()
            return next_epoch(self.loader, self._live_run())
        return snapshot(self.loader, self._run, self._state, live=False)

    def load_state_dict(
        self, state: dict[str, Any], *, strict: bool = True, at_epoch_end: AtEpochEnd | None = None
    ) -> None:
        """Go on from a saved state; the pass at hand is abandoned.

        Args:
            state: what ``state_dict`` of this iterator, or of its loader, returned.
            strict: see `DataLoader.load_state_dict`.
            at_epoch_end: see `DataLoader.load_state_dict`.

        Raises:
            StateError: see `DataLoader.load_state_dict`; this iterator is as it was.
        """
        accepted = self.loader._pl.accept(state, strict=strict, at_epoch_end=at_epoch_end)
        self._driver.stop()
        self._resume(accepted, at_epoch_end or self.loader._pl.options.at_epoch_end)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "loader": self.loader,
            "state": snapshot(self.loader, self._run, self._state, live=True),
            "finished": self._finished,
            "newest": self.loader._pl.newest is self,
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        LoaderIterator.__init__(self, saved["loader"])
        self._resume(saved["state"], None)
        self._finished = saved["finished"]
        if saved["newest"]:
            self.loader._pl.adopt(self)
            self.loader._pl.source.restore(saved["state"]["rng"])

    def __copy__(self) -> LoaderIterator[_T]:
        saved = alone(self)
        saved["newest"] = True
        other = type(self).__new__(type(self))
        other.__setstate__(saved)
        return other

    # --- within ----------------------------------------------------------------------------------

    def _position(self) -> tuple[int, int]:
        run = self._run
        if run is not None and run.unmoved is None:
            return run.epoch, run.step
        state = self._state if run is None else run.unmoved
        wish = self._at_epoch_end or "stop"
        return position(self.loader, state or self.loader._pl.beginning(), wish)

    def _resume(self, state: dict[str, Any] | None, at_epoch_end: AtEpochEnd | None) -> None:
        self._run, self._state = None, state
        self._driver.rest()
        self._finished = self._closed = False
        self._at_epoch_end = at_epoch_end

    def _fresh_run(self) -> None:
        loader = self.loader
        epoch, kept = loader._pl.fresh_epoch(), self._driver.kept
        self._run = Run(loader, epoch, kept=kept)
        self._iterable_length = loader._IterableDataset_len_called
        loader._pl.run_begins(self._run)

    def _build_run(self) -> None:
        """The run of the state that was loaded."""
        state = self._state or self.loader._pl.beginning()
        cursor, _ = from_plain(state)
        self._run = Run(self.loader, cursor=cursor, kept=self._driver.kept)
        self._run.unmoved = state
        self._state = None
        if self.loader._pl.newest is self:
            self.loader._pl.run_begins(self._run)

    def _live_run(self) -> Run:
        assert self._run is not None
        return self._run

    def _next(self) -> _T:
        if self._finished or self._closed:
            raise StopIteration
        try:
            self.start()
            self._tell_of_replay()
            answer = self._advance()
        except StopIteration:
            if self._goes_to_next_epoch():
                return self._next()
            self._finish()
            raise
        except Exception:
            if self._driver.broken:
                self._rewind()
            raise
        except BaseException:  # Ctrl-C, which in a terminal reaches the workers as well
            if self.loader.num_workers:
                self._rewind()
            raise
        return self._hand_over(answer)

    def _tell_of_replay(self) -> None:
        if self._replay:
            count, self._replay = self._replay, 0
            replay(count, self.epoch, type(self.loader.dataset).__qualname__)

    def _advance(self) -> Answer:
        """The driver's next answer, noted in the run."""
        answer = self._driver.advance()
        run = self._live_run()
        run.unmoved = None
        self._at_epoch_end = None
        if answer.states is not None:
            run.worker_states[str(answer.worker)] = answer.states
        return answer

    def _hand_over(self, answer: Answer) -> _T:
        payload = answer.open()
        loader, promised = self.loader, self._iterable_length
        if promised is not None and is_iterable(loader) and self.step > promised:
            longer_than_promised(loader.dataset, promised, self.step, loader.num_workers)
        if loader.pin_memory:
            payload = pin(payload)
        return payload  # type: ignore[no-any-return]

    def _goes_to_next_epoch(self) -> bool:
        """Nothing was left of a resumed epoch: tell so, or go on with the next one."""
        wish, run = self._at_epoch_end, self._live_run()
        self._at_epoch_end = None
        if wish is None or not run.step:
            return False
        if wish == "next":
            if not self.loader._pl.lives_on:
                self._driver.stop()
            self.begin(None, None)
            return True
        empty_epoch(run.epoch)
        return False

    def _finish(self) -> None:
        self._finished = True
        run = self._live_run()
        run.finished = True
        run.unmoved = None
        self.loader._pl.run_ends(run)
        if not self.loader.persistent_workers:
            self._driver.stop()

    def _rewind(self) -> None:
        """Give up the workers; the next call starts new ones, on the tasks that were under way."""
        run = self._run
        self._driver.stop()
        if run is not None:
            run.restart()
