"""The cursor: where an epoch is yet to be begun, and where code sees a worker's information."""

from __future__ import annotations

import pytest

from picklable_loader.core.cursor import Cursor, before_epoch, is_beginning, sees_worker_info
from picklable_loader.core.streams import StreamPosition
from picklable_loader.core.task import Task


def test_a_cursor_of_which_nothing_is_said_is_the_beginning_of_the_first_epoch() -> None:
    assert (Cursor().epoch, Cursor().step, Cursor().next_step, Cursor().position) == (0, 0, 0, 0)
    assert is_beginning(Cursor())


@pytest.mark.parametrize(
    "cursor, begun",
    [
        (Cursor(base_seed=7), False),
        (Cursor(num_streams=3), False),  # of one rank, which no rank has begun
        (Cursor(num_streams=3, base_seed=7), True),  # other ranks have read from their streams
        (Cursor(step=1), True),
        (Cursor(order={}), True),
    ],
    ids=str,
)
def test_an_epoch_is_begun_where_a_step_the_order_or_other_ranks_have_something_of_it(
    cursor: Cursor, begun: bool
) -> None:
    assert before_epoch(cursor) is is_beginning(cursor) is not begun


@pytest.mark.parametrize(
    "cursor",
    [
        Cursor(streams=(StreamPosition(),)),
        Cursor(window=(Task(0, [3], 0),)),
        Cursor(next_step=1),
    ],
    ids=str,
)
def test_what_was_drawn_before_the_first_step_is_of_one_rank(cursor: Cursor) -> None:
    assert before_epoch(cursor) and not is_beginning(cursor)


@pytest.mark.parametrize(
    "cursor, sees",
    [
        (Cursor(), False),
        (Cursor(streams=(StreamPosition(),)), False),
        (Cursor(streams=(StreamPosition(), StreamPosition())), True),
        (Cursor(num_streams=1), True),
        (Cursor(draws_as="workers"), True),
    ],
    ids=str,
)
def test_code_sees_a_workers_information_with_several_streams_or_as_with_workers(
    cursor: Cursor, sees: bool
) -> None:
    assert sees_worker_info(cursor) is sees
    for said in (False, True):
        assert sees_worker_info(cursor._replace(worker_info=said)) is said
