"""Private state of a `DataLoader`, in one attribute: ``loader._pl``.

People derive classes from torch's loader and give them attributes of any name. So our loader has
one private attribute that no subclass is likely to use. It holds the options, the history between
passes, the workers, and how the loader is pickled.
"""

from __future__ import annotations

import weakref
from typing import Any, TypeVar

from torch.utils.data import DataLoader as TorchDataLoader

from ..core.cursor import Saved
from ..epoch.driver import Driver
from ..epoch.history import History
from ..epoch.options import Options
from ..epoch.spec import Spec
from ..epoch.turns import Turn
from ..saving.pickles.opened import Opened
from ..saving.pickles.parts import Decision

_T = TypeVar("_T", covariant=True)


class Internals:
    """Private state of a loader."""

    def __init__(self, options: Options, history: History) -> None:
        #: the arguments that torch does not have
        self.options = options
        #: what changes between the passes
        self.history = history
        # No pickle holds the rest.
        #: which of the loaders with shard= and without seed= it is, in the order in which the
        #: program has built them, from 1; None: it is none of these, or was unpickled
        self.number: int | None = None
        #: of a loader with a DistributedSampler: the rank that has pickled it, and of how many
        self.pickled_on: tuple[int, int] | None = None
        #: held by the thread that moves the loader's iterators, or saves them
        self.turn = Turn()
        #: persistent workers, and the iterator that has them
        self.driver: Driver | None = None
        self.iterator: weakref.ref[Any] | None = None
        #: parts of the loader that were looked through for generators which no state holds
        self.looked: set[str] = set()
        #: the program was warned of generators that first batches make
        self.warned_of_made = False
        #: paths to what code for batches has collected, and no state holds
        self.collected: set[str] = set()
        self.warned_of_collected = False
        #: how the loader is pickled, and what was carried in a pickle without its dataset
        self.decision = Decision()
        self.sealed: Opened | None = None

    def saved(self) -> dict[str, Any]:
        """The part of it that a pickle of the loader holds."""
        carryover = None if self.driver is None else self.driver.carryover
        return {"options": dict(vars(self.options)), **self.history.saved(carryover)}

    def abandon(self, spec: Spec, start: Saved | None) -> None:
        """Retire workers that live on, unless the next pass is to find their datasets as they are.

        If it goes on from a state (``start``), they have to be as that has them: new ones, if it
        is of before the first epoch. Else the changes of a pass that was left count, as no state
        holds them.
        """
        if self.driver is None:
            return
        if start is not None:
            seeds = start.cursor.base_seed, start.cursor.worker_seed
            first = seeds == (None, None)
            changed = first or spec.streamed or spec.options.seeding == "worker"
        else:
            run = self.driver.run
            changed = run is not None and not run.finished and spec.remembers
        if changed:
            self.driver.stop()

    def refit(self, spec: Spec) -> None:
        """See that the next epoch has as many streams as the loader says."""
        if self.driver is not None and spec.lives_on:
            self.driver.refit(spec.streams)
        self.history.refit(spec)


class Owner(TorchDataLoader[_T]):
    """A torch loader with private state of ours."""

    _pl: Internals
