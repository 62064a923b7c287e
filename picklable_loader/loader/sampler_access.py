"""How a program reaches the sampler in mid-epoch: feedback, flush, the live iterator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from ..core.events import Flushed, Told
from ..core.order import Listener
from ..epoch.run import Run
from ..epoch.turns import AT_REST
from ..errors import UsageError
from ..saving.states.notes import note_of, objects_of
from .interruptible_iterator import InterruptibleIterator

_T = TypeVar("_T", covariant=True)


class SamplerAccess(InterruptibleIterator[_T]):
    """The part of an iterator that a live sampler is reached by; see docs/live_samplers.md."""

    def start(self, skip: int = 0) -> None:
        """Start the workers; see `LoaderIterator.start`."""
        raise NotImplementedError

    @property
    def drawn(self) -> int:
        """Batches that the sampler has given in this epoch, for example 6 while ``step`` is 2."""
        run, start = self._position.run, self._position.start
        if run is None:
            assert start is not None
            return max(start.cursor.next_step, start.cursor.step)
        schedule = run.schedule
        return schedule.delivered + len(schedule.window()) + len(schedule.plan.backlog)

    @property
    def feedback(self) -> list[Any]:
        """The objects that `send_feedback` has attached to the batch that was delivered last.

        There are none after an error, `skip`, and the epoch's end.
        """
        return objects_of(self._notes)

    def get_sampler_iter(self) -> Iterator[Any]:
        """The live iterator of the sampler, which is ahead: it has given ``drawn`` batches.

        Change its attributes between two batches, and `flush` if the change is to count at once.
        A state holds such a change if a pickle or the ``state_dict`` of the iterator does. Without
        these, `state_dict` raises CannotSaveError once the iterator was changed.

        Returns:
            The iterator that ``iter(sampler)`` has made.

        Raises:
            UsageError: the order is torch's own, and is computed without an iterator; or there is
                no sampler, or the epoch is over.
        """
        with self._turn.jumps("get_sampler_iter()"):
            run = self._live("get_sampler_iter()")
            order = run.order
            if order is None or not isinstance(order, Listener):
                raise UsageError(
                    f"get_sampler_iter() needs a sampler of a class of your own: the order of "
                    f"{_named(run)} is computed, and has no iterator"
                )
            run.has_moved = True  # the program may change it
            return order.iterator(lend=True)

    def flush(self) -> int:
        """Give up what was drawn and not delivered; the next ``next`` asks the sampler again.

        Torch's samplers give the same batches again. The iterator of another one, or else the
        sampler, is offered the batches by ``put_back(batches)``, a list in the order in which it
        gave them. Without that method nothing is given up: they are delivered first.

        A worker finishes the batch that it is at; batches that were fetched are dropped.

        Returns:
            How many batches were given up.

        Raises:
            UsageError: it cannot be done exactly, with iterable-style data, a map-style dataset
                that has a state, ``seeding="worker"``, or ``in_order=False``.
            Exception: what ``put_back`` raises; nothing was given up.
        """
        with self._jumps("flush()"):
            run = self._live("flush()")
            spec = run.spec
            reasons = {
                "a map-style dataset": spec.iterable,
                "a dataset without a state of its own": spec.streamed,
                'another seeding than "worker"': spec.options.seeding == "worker",
                "in_order=True": not spec.in_order,
            }
            if wrong := [need for need, fails in reasons.items() if fails]:
                raise UsageError(f"flush() needs {wrong[0]}: batches in workers cannot be undone")
            before = self.drawn
            run.has_moved = True
            try:
                self._driver.handle(Flushed())
            except Exception:  # put_back's
                self._driver.settled = True
                raise
            given_up = before - self.drawn
            if given_up:  # the epoch has batches left
                self._position.at_epoch_end = None
            return given_up

    def tell(self, obj: Any) -> None:
        """Give the sampler feedback about the batch that came last from ``next``, such as losses.

        The sampler's iterator, or else the sampler, receives it by ``receive(step, objs)`` right
        before it is next asked for a batch, together with what `send_feedback` has attached.

        Args:
            obj: what pickle takes, at most 1 MiB, and 16 MiB for a batch; it is copied at once.

        Raises:
            UsageError: the sampler has no ``receive``; no batch was delivered yet; the epoch is
                over; or the object cannot be pickled, or is larger.
        """
        turn = self._turn
        if turn.phase_here() != AT_REST:
            with turn.jumps("tell()"):  # raises
                pass
        with turn.lock:  # alone, it takes a third of the time
            run = self._driver.run
            if run is None or run.finished:
                run = self._live("tell()")
            feedback = run.schedule.feedback
            if not (feedback.listening or feedback.unsure):  # its iterator may not be open yet
                raise UsageError(
                    f"tell() needs a sampler that listens: give {_named(run)}, or its iterator, "
                    "a method receive(step, objs)"
                )
            if run.schedule.deliveries.newest < 0:
                raise UsageError("tell() needs a batch: none was delivered in this epoch yet")
            schedule = run.schedule
            others = schedule.feedback.about(schedule.deliveries.newest)
            note = note_of(obj, "tell()", others)
            run.has_moved = True
            schedule.handle(Told(note))

    def _live(self, what: str) -> Run:
        """The run under way; starts it where that was not done yet."""
        self.start()
        run = self._position.run
        if run is None or run.finished or self._driver.run is None:
            raise UsageError(f"{what} needs an epoch under way; this one is over, or closed")
        return run


def _named(run: Run) -> str:
    sampler = run.spec.sampler
    return "iterable-style data" if sampler is None else type(sampler).__qualname__
