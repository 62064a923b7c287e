"""An iterator that Ctrl-C, or what another signal's handler raises, does not leave half moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..epoch.options import AtEpochEnd
from ..epoch.position import Position
from ..errors import StateError, UsageError, WorkerDied
from .pickling import load_into
from .pickling_iterator import PicklableIterator

_T = TypeVar("_T", covariant=True)


class InterruptibleIterator(PicklableIterator[_T]):
    """Each method that moves the iterator is done, or it is as if it had not been called.

    A skip may be done in part: `step` says how far.
    """

    def _note_handed_over(self) -> None:
        """Note how many batches the consumer has got so far."""
        run = self._position.run
        self._handed_over = -1 if run is None else run.schedule.delivered

    def load_state_dict(
        self,
        state: dict[str, Any],
        *,
        strict: bool = True,
        at_epoch_end: AtEpochEnd | None = None,
        restore_rng: bool = False,
    ) -> None:
        """Go on from a saved state; the pass at hand is abandoned.

        Args:
            state: what ``state_dict`` of this iterator, or of its loader, returned.
            strict: see `DataLoader.load_state_dict`.
            at_epoch_end: see `DataLoader.load_state_dict`.
            restore_rng: see `DataLoader.load_state_dict`.

        Raises:
            StateError, UsageError: see `DataLoader.load_state_dict`; this iterator is as it was.
        """
        with self._jumps("load_state_dict()"):
            choice = at_epoch_end or self.loader._pl.options.at_epoch_end
            history, before = self._history, self._position
            newest = history.position is before
            try:
                self._go_to(load_into(self.loader, state, strict, choice, restore_rng, before))
            except BaseException:
                if newest and history.position not in (None, before):  # the loader has it already
                    self._go_to(history.position)
                raise

    def _go_to(self, position: Position) -> None:
        self._driver.stop()
        self._take(position)

    @contextmanager
    def _jumps(self, what: str) -> Iterator[None]:
        """See `Turn.jumps`; nothing is left half done.

        Raises:
            UsageError: ``next`` of this thread is at work.
        """
        with self._turn.jumps(what):
            self._note_handed_over()
            self._driver.settled = False
            try:
                yield
            except (UsageError, StateError):  # nothing has moved
                raise
            except BaseException as error:
                self._settle(error)
                raise

    def _settle(self, error: BaseException) -> None:
        """Leave nothing half done after an error, which may be a signal handler's."""
        try:
            self._settled(error)
        except BaseException:  # a second Ctrl-C, at any line of that
            self._settled(error)
            raise

    def _settled(self, error: BaseException) -> None:
        self._notes = ()
        if not (isinstance(error, StopIteration) or self._driver.settled):
            with self._turn.lock:
                self._come_to_rest(error)

    def _come_to_rest(self, error: BaseException) -> None:
        """Give up the workers; the next call starts new ones, on what the consumer has not got."""
        run = self._position.run
        if isinstance(error, WorkerDied):
            self._deadly = error.step
        try:
            self._driver.stop()
        finally:  # a second Ctrl-C comes while workers are awaited, or before that
            self._driver.stop()
            if run is not None:
                run.interrupted(self._handed_over)
