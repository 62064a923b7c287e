"""Faults: what is done to a trainer and its workers."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from random import Random

from .processes import children, name, send
from .tally import Tally

__all__ = ["Torment"]

#: how workers are killed
_DEADLY = (
    *[signal.SIGKILL] * 5, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGTERM
)  # fmt: skip

#: what a worker is called once it is tied to its loader's life
_READY = "pt_data_worker"

#: workers that are stopped at a time, at most
_STOPPED = 2


class Torment:
    """What is done to one trainer.

    Args:
        parent: whose child the trainer is.
        trainer: its process.
        chance: chooses.
        tally: what has really been done is counted there.
    """

    def __init__(self, parent: int, trainer: int, chance: Random, tally: Tally) -> None:
        self._parent, self._trainer = parent, trainer
        self._chance = chance
        self._tally = tally
        #: workers, the longest stopped first
        self._stopped: deque[int] = deque()
        self._trainer_is_stopped = False

    def strike(self) -> None:
        """Do something; it is counted if it has reached anybody."""
        if self._trainer_is_stopped:
            self._go_on()
        deed: Callable[[], None]
        [deed] = self._chance.choices(
            (self._kill, self._kill_all, self._stop, self._stop_trainer, self._kill_trainer),
            weights=(72, 6, 12, 6, 4),
        )
        deed()

    def relent(self) -> None:
        """Whoever is stopped goes on."""
        while self._stopped:
            self._let_go()
        self._go_on()

    def wake_the_unborn(self) -> None:
        """The trainer has ended: let go of workers that were stopped before they were ready.

        Those that were ready die with it, stopped or not.
        """
        for worker in self._stopped:
            if name(worker) != _READY:
                send(self._parent, worker, signal.SIGCONT)  # it was orphaned, and adopted

    def _kill(self) -> None:
        number = self._chance.choice(_DEADLY)
        victim = self._victim()
        if victim is not None and send(self._trainer, victim, number):
            self._tally.fault(f"worker: {number.name}")

    def _kill_all(self) -> None:
        killed = [send(self._trainer, pid, signal.SIGKILL) for pid in children(self._trainer)]
        if any(killed):
            self._tally.fault("all workers: SIGKILL")

    def _stop(self) -> None:
        if len(self._stopped) == _STOPPED:
            self._let_go()
        victim = self._victim()
        if victim is not None and send(self._trainer, victim, signal.SIGSTOP):
            self._stopped.append(victim)
            self._tally.fault("worker: SIGSTOP")

    def _let_go(self) -> None:
        send(self._trainer, self._stopped.popleft(), signal.SIGCONT)

    def _stop_trainer(self) -> None:
        if send(self._parent, self._trainer, signal.SIGSTOP):
            self._trainer_is_stopped = True
            self._tally.fault("trainer: SIGSTOP")

    def _go_on(self) -> None:
        send(self._parent, self._trainer, signal.SIGCONT)
        self._trainer_is_stopped = False

    def _kill_trainer(self) -> None:
        if send(self._parent, self._trainer, signal.SIGKILL):
            self._tally.fault("trainer: SIGKILL")

    def _victim(self) -> int | None:
        place = self._chance.random()
        workers = children(self._trainer)
        return workers[int(place * len(workers))] if workers else None
