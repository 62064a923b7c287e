"""Restarts: how many deaths are enough."""

from __future__ import annotations

import pytest

from picklable_loader.errors import RestartWarning, WorkerDied
from picklable_loader.fetching.engine.deaths import DeathCount
from picklable_loader.fetching.pool.exit import Death

pytestmark = pytest.mark.filterwarnings(f"ignore::{RestartWarning.__module__}.RestartWarning")


def die_in_vain(restarts: DeathCount, times: int, worker: int = 0) -> None:
    """Workers die, one after the other, of which none was at a task."""
    for pid in range(times):
        restarts.note(Death(worker, 100 + pid, -9), lost=(), at_hand=None)


@pytest.mark.parametrize("most_deaths, fatal", [(1, 3), (3, 3), (1000, 1000)])
def test_three_workers_in_a_row_or_as_many_as_a_task_is_allowed_may_not_die_at_no_task(
    most_deaths: int, fatal: int
) -> None:
    restarts = DeathCount(most_deaths)
    die_in_vain(restarts, fatal - 1)
    with pytest.raises(WorkerDied, match=f"{fatal} workers in a row"):
        die_in_vain(restarts, 1)


def test_an_answer_in_between_forgives_what_was_before_it() -> None:
    restarts = DeathCount(most_deaths=3)
    for _ in range(5):
        die_in_vain(restarts, 2)
        restarts.answered(0)


def test_workers_are_counted_apart() -> None:
    restarts = DeathCount(most_deaths=3)
    for worker in range(5):
        die_in_vain(restarts, 2, worker)
