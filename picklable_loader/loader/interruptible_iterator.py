"""What a signal's handler raises, such as KeyboardInterrupt, leaves an iterator whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..errors import UsageError, WorkerDied
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
            except UsageError:  # nothing has moved
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
