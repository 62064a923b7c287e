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


def test_three_in_a_row_may_not_die_before_they_are_at_a_task() -> None:
    restarts = DeathCount(most_deaths=3)
    die_in_vain(restarts, 2)
    with pytest.raises(WorkerDied, match="3 workers in a row"):
        die_in_vain(restarts, 1)


def test_who_allows_a_task_more_deaths_allows_them_here_as_well() -> None:
    restarts = DeathCount(most_deaths=1000)
    die_in_vain(restarts, 999)
    with pytest.raises(WorkerDied, match="1000 workers in a row"):
        die_in_vain(restarts, 1)


def test_one_death_that_is_allowed_to_a_task_leaves_room_for_an_accident() -> None:
    die_in_vain(DeathCount(most_deaths=1), 2)


def test_an_answer_in_between_forgives_what_was_before_it() -> None:
    restarts = DeathCount(most_deaths=3)
    for _ in range(5):
        die_in_vain(restarts, 2)
        restarts.answered(0)


def test_workers_are_counted_apart() -> None:
    restarts = DeathCount(most_deaths=3)
    for worker in range(5):
        die_in_vain(restarts, 2, worker)
