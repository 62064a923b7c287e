"""The window: a table of what it holds, which is checked as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from zoo.invariants import check_window

from picklable_loader.core.events import Arrived, Skipped
from picklable_loader.core.phases import Phase
from picklable_loader.core.task import Task
from picklable_loader.core.window import Entry, Window


def task(step: int) -> Task:
    return Task(step, [step], step)


def window() -> Window:
    """Step 0 was skipped and is awaited, 1 has arrived, a worker has 2, and 3 is held."""
    window = Window()
    for step in range(4):
        window.add(task(step), held=step == 3)
    window.skip(Skipped(1))
    window.answer(Arrived(1, bytes=5))
    check_window(window)
    return window


def unsort(window: Window) -> None:
    window.entries = dict(reversed(window.entries.items()))


def rename(window: Window) -> None:
    window.entries[9] = window.entries.pop(3)


def forget_an_entry(window: Window) -> None:
    window._forgotten[2] = Entry(task(2), Phase.FORGOTTEN)
    window.under_way += 1


def recall(window: Window) -> None:
    window._forgotten[0].phase = Phase.SENT


def turn_into(phase: Phase) -> Callable[[Window], None]:
    def turn(window: Window) -> None:
        window.entries[3].phase = phase
        window.held = 0

    turn.__name__ = f"an_entry_is_{phase.value}"
    return turn


def lose_the_answer(window: Window) -> None:
    window.entries[1].answer = None
    window.bytes = 0


def deliver_never(window: Window) -> None:
    window.ready.clear()


def deliver_twice(window: Window) -> None:
    window.ready.append(1)


def count(name: str) -> Callable[[Window], None]:
    def count_one_more(window: Window) -> None:
        setattr(window, name, getattr(window, name) + 1)

    count_one_more.__name__ = f"one_more_is_{name}"
    return count_one_more


@pytest.mark.parametrize(
    "break_it",
    [
        unsort,
        rename,
        forget_an_entry,
        recall,
        turn_into(Phase.GONE),
        turn_into(Phase.FORGOTTEN),
        turn_into(Phase.HERE),
        lose_the_answer,
        deliver_never,
        deliver_twice,
        count("held"),
        count("under_way"),
        count("bytes"),
    ],
    ids=lambda break_it: break_it.__name__,
)
def test_a_window_notices_each_of_its_invariants_that_is_broken(
    break_it: Callable[[Window], None],
) -> None:
    broken = window()
    break_it(broken)
    with pytest.raises(AssertionError):
        check_window(broken)
