"""The lock with which one thread at a time moves a loader's iterators, or saves them.

All iterators of a loader share its sampler and its generators, so they share one `Turn`. A thread
that saves waits for a batch that another thread is fetching. A save within ``next`` of the same
thread (from the dataset, or from a signal handler) cannot wait. It is exact where the position is
whole, and refused elsewhere.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import CannotSaveError, UsageError
from ..rng.generators import Isolated

__all__ = ["AT_REST", "MOVING", "SAVABLE", "Batch", "still", "Turn"]

#: nobody is in ``next``
AT_REST = 0
#: somebody is, and the position is not whole: an index may be drawn and not counted
MOVING = 1
#: somebody is, and the position is that before the batch: it is being fetched, or waited for
SAVABLE = 2

_SEVERAL = 0

_turns: weakref.WeakSet[Turn] = weakref.WeakSet()


class Turn:
    """Held by the thread that moves a loader's iterators, or saves them."""

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        #: says something to the thread that holds the lock only: an exception may leave it anywhere
        self.phase = AT_REST
        #: the only thread that has called ``next`` so far; 0: several have; below 0: none has, and
        #: the loader was made by that one
        self.mover = -threading.get_ident()
        _turns.add(self)

    @property
    def foreign(self) -> bool:
        """Another thread calls ``next``: what it moves must be copied before it is pickled."""
        return abs(self.mover) != threading.get_ident()

    def phase_here(self) -> int:
        """The phase of this thread; another thread that holds the lock has to be waited for."""
        return int(self.phase) if self.lock._is_owned() else AT_REST

    def note_mover(self) -> None:
        """Note that this thread calls ``next``, which was not the only one to do so."""
        self.mover = threading.get_ident() if self.mover < 0 else _SEVERAL

    @contextmanager
    def moves(self) -> Iterator[None]:
        """Hold it, and let no save in between."""
        before = self.phase_here()
        with self.lock:
            self.phase = MOVING
            try:
                yield
            finally:
                self.phase = before

    @contextmanager
    def rests(self) -> Iterator[None]:
        """Hold it, and let this thread save in between where it could have saved before."""
        before = self.phase_here()
        with self.lock:
            self.phase = before  # what an exception has left here says nothing
            yield

    @contextmanager
    def jumps(self, what: str) -> Iterator[None]:
        """Hold it to leave the position at hand, which ``next`` of this thread must not be at.

        Raises:
            UsageError: it is.
        """
        if self.phase_here() != AT_REST:
            raise UsageError(
                f"{what} was called while next() of the same loader is at work in this thread, "
                "from its dataset, its sampler or a signal handler: call it after next()"
            )
        with self.moves():
            if self.mover != threading.get_ident():
                self.note_mover()
            yield


@contextmanager
def still(turn: Turn, wait: bool = True) -> Iterator[None]:
    """Hold a loader's turn, and the global generators: the loader can be saved.

    A signal handler can raise as a function begins, and right after a call. This is a generator, as
    nothing of that kind comes between its ``finally`` and the release of a lock.

    Args:
        wait: for another thread that is in ``next``.

    Raises:
        CannotSaveError: the position is not whole, or another thread does not let go.
    """
    phase = turn.phase_here()
    if phase == MOVING:
        raise CannotSaveError(
            "the iterator",
            "its next() is at work in this very thread, at a point where an index may be drawn "
            "and not counted (a signal handler, or the sampler, has asked for the save)",
            "Save after next(); a signal handler can set a flag for the training loop",
        )
    lock, generators = turn.lock, Isolated.turn
    # A thread that makes a batch has the generators, and whoever has the loader may want them.
    patient = wait and not generators._is_owned()  # type: ignore[attr-defined]
    while True:
        if not _taken(lock, patient):
            raise _in_another_thread()
        try:
            if _taken(generators, False):
                try:
                    turn.phase = phase
                    yield
                    return
                finally:
                    generators.release()
        finally:
            lock.release()
        # Never waited for while the loader is held: the thread that has them may want it.
        if not wait:
            raise _in_another_thread()
        with generators:
            pass


def _taken(lock: Any, wait: bool) -> bool:
    """Lock it, and say whether it was free; not locked, if a signal handler raises then."""
    try:
        return bool(lock.acquire(blocking=wait))
    except BaseException:
        if lock._is_owned():
            lock.release()
        raise


def _in_another_thread() -> CannotSaveError:
    return CannotSaveError(
        "the iterator",
        "another thread is in its next()",
        "Wait for it; within a batch of another loader, save after the batch",
    )


class Batch(Isolated):
    """The context in which this process makes a loader's batches, in the thread of the turn.

    ``draws``: somebody may draw; otherwise the generators are not set aside.
    """

    def __init__(self, turn: Turn, draws: bool = True) -> None:
        self._turn, self._draws, self._phase = turn, draws, turn.phase

    def __enter__(self) -> None:
        if self._draws:
            Isolated.__enter__(self)
        self._turn.phase = SAVABLE

    def __exit__(self, *error: object) -> None:
        self._turn.phase = self._phase
        if self._draws:
            Isolated.__exit__(self)


def _let_go() -> None:
    for turn in _turns:
        turn.lock = threading.RLock()


# In a forked process no thread is left that could give its turn back.
os.register_at_fork(after_in_child=_let_go)
