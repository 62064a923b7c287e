"""Private state of a `DataLoader`, in one attribute: ``loader._pl``.

People derive classes from torch's loader and give them attributes of any name. So our loader has
one private attribute that no subclass is likely to use. It holds the options, the history between
passes, the workers, and how the loader is pickled.
"""

from __future__ import annotations

import weakref
from typing import Any, TypeVar

from torch.utils.data import DataLoader as TorchDataLoader

from ..core.snapshot import to_plain
from ..epoch.driver import Driver
from ..epoch.history import History
from ..epoch.options import Options
from ..epoch.run import Run
from ..epoch.spec import Spec
from ..epoch.states import unmoved
from ..epoch.turns import Turn
from ..saving.pickles.opened import Opened
from ..saving.pickles.parts import Decision

__all__ = ["Internals", "Owner"]

_T = TypeVar("_T", covariant=True)


class Internals:
    """Private state of a loader.

    Args:
        options: the arguments that torch does not have.
        history: what changes between the passes.
    """

    def __init__(self, options: Options, history: History) -> None:
        self.options = options
        self.history = history
        # No pickle holds the rest.
        #: held by the thread that moves the loader's iterators, or saves them
        self.turn = Turn()
        self.newest_ref: weakref.ref[Any] | None = None
        #: persistent workers, and the iterator that has them
        self.driver: Driver | None = None
        self.kept: weakref.ref[Any] | None = None
        #: one that was unpickled after its last batch: the next ``iter`` goes on from its end
        self.ended: Any = None
        #: parts of the loader that were looked through for generators which no state holds
        self.looked: set[str] = set()
        #: how the loader is pickled, and what was carried in a pickle without its dataset
        self.decision = Decision()
        self.sealed: Opened | None = None

    @property
    def newest(self) -> Any:
        """The newest iterator, while it lives."""
        return None if self.newest_ref is None else self.newest_ref()

    def saved(self) -> dict[str, Any]:
        """The part of it that a pickle of the loader holds."""
        return {"options": dict(vars(self.options)), **self.history.saved()}

    @property
    def run(self) -> Run | None:
        """The run at hand."""
        newest = self.newest
        return self.history.run if newest is None or newest.run is None else newest.run

    def position(self, spec: Spec) -> tuple[int, int]:
        """Epoch and step of the newest iterator; of the next ``iter``, if there is none."""
        history, newest = self.history, self.newest
        if history.resume is not None:
            wish = history.resume_at_end or self.options.at_epoch_end
            return spec.position(history.resume.cursor, wish)
        if newest is not None:
            return (history.next_epoch, 0) if newest.finished else (newest.epoch, newest.step)
        run = history.run
        return (history.next_epoch, 0) if run is None or run.finished else (run.epoch, run.step)

    def state(self, spec: Spec) -> dict[str, Any]:
        """The state of the newest iterator; of the next ``iter``, if there is none."""
        history, newest = self.history, self.newest
        if history.resume is not None:
            return unmoved(history.source, history.resume, live=False)
        if newest is not None:
            return newest._state_now()  # type: ignore[no-any-return]
        run = history.run
        if run is None:
            return to_plain(*history.beginning(spec, live=False))
        if run.finished:
            return to_plain(*history.following(spec, run))
        return history.snapshot(spec, run, None, live=False)

    def adopt(self, spec: Spec, iterator: Any) -> None:
        """Make it the newest iterator."""
        self.newest_ref = weakref.ref(iterator)
        self.history.next_epoch = iterator.epoch + 1
        if spec.lives_on:
            self.driver, self.kept = iterator.driver, self.newest_ref

    def abandon(self, spec: Spec, resumes: bool = False) -> None:
        """Retire workers that live on, if a pass has changed their datasets.

        Args:
            spec: how the loader is set up.
            resumes: the next pass goes on from a state, and they are to be as it has them; else
                the changes of a pass that was left count, as no state holds them.
        """
        if resumes:
            changed = spec.streamed or spec.options.seeding == "worker"
        else:
            run = self.history.run
            changed = run is not None and not run.finished and spec.stateful
        if self.driver is not None and changed:
            self.driver.stop()

    def refit(self, spec: Spec) -> None:
        """See that the next epoch has as many streams as the loader says."""
        if self.driver is not None and spec.lives_on:
            self.driver.refit(spec.streams or (spec.workers if spec.pinned else 0))
        self.history.refit(spec)


class Owner(TorchDataLoader[_T]):
    """A torch loader with private state of ours."""

    _pl: Internals
