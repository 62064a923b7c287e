"""Counts the deaths of an engine's workers, and raises when there have been too many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ...core.task import Task
from ...errors import RestartWarning, WorkerDied, warn
from ..pool.exit import Death, likely_cause

#: workers in a row that may die before they are at any task, at least
_IN_VAIN = 3


class DeathCount:
    """The deaths of an engine's workers so far; ``most_deaths`` of one task are allowed, from 0."""

    def __init__(self, most_deaths: int, persistent: bool = False) -> None:
        self._most_deaths = most_deaths
        self._persistent = persistent
        self._by_step: defaultdict[int, list[Death]] = defaultdict(list)
        #: by worker, those since its last answer that were at no task
        self._in_vain: defaultdict[int, list[Death]] = defaultdict(list)

    def forget(self) -> None:
        """An epoch begins: its steps are others."""
        self._by_step.clear()

    def answered(self, worker: int) -> None:
        """A worker has answered: it is in good health."""
        if self._in_vain:
            self._in_vain.pop(worker, None)

    def note(self, death: Death, lost: Sequence[int], at_hand: int | None) -> None:
        """A worker has died, and is about to be replaced.

        The ``lost`` steps are to be done again; it was at the one ``at_hand``. WorkerDied: too many
        in a row have died without having been at any.
        """
        if at_hand is not None:
            self._by_step[at_hand].append(death)
            if len(self._by_step[at_hand]) >= self._most_deaths:
                return  # an error is going to say so
        else:
            deaths = self._in_vain[death.worker]
            deaths.append(death)
            if len(deaths) >= max(_IN_VAIN, self._most_deaths):
                raise WorkerDied(None, None, *_causes(deaths))
        cause = "" if death.stack else likely_cause(death.exitcode)
        if self._persistent:
            cause += " What the dataset had saved there is lost, unless its state_dict holds it."
        steps = (
            f"steps {', '.join(map(str, lost))} are fetched again" if lost else "it owed nothing"
        )
        stuck = f"\nIt was stuck:\n{death.stack}" if death.stack else ""
        warn(
            f"DataLoader {death}; it is replaced, {steps}. {cause}".rstrip() + stuck,
            RestartWarning,
        )

    def error(self, task: Task) -> WorkerDied:
        """The error to raise for a task that workers die of."""
        asked = task.indices if isinstance(task.indices, list) else [task.indices]
        # Iterable-style data is asked for a number of samples, and not for which.
        indices = None if all(index is None for index in asked) else task.indices
        return WorkerDied(task.step, indices, *_causes(self._by_step[task.step]), task.stream)


def _causes(deaths: list[Death]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    causes = tuple("\n".join(filter(None, (str(death), death.stack))) for death in deaths)
    return tuple(death.exitcode for death in deaths), causes
