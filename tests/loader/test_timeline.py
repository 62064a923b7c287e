"""The timeline: what becomes of a record, what iterators record, and that it can be drawn."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws.observe import seen
from zoo.datasets import Noisy

from picklable_loader import DataLoader
from picklable_loader.errors import UsageError
from picklable_loader.fetching.engine.stats import KEPT, Record
from picklable_loader.loader.display.timeline import Timeline, draw, timeline

S = 10**9


def record(*answers: tuple[int, int, int, int], waits: tuple[tuple[int, int], ...] = ()) -> Record:
    """Seconds become nanoseconds."""
    return Record(
        tuple((worker, a * S, b * S, i * S) for worker, a, b, i in answers),
        tuple((start * S, end * S) for start, end in waits),
    )


# --- from records to bars ------------------------------------------------------------------------


def test_a_batch_that_is_seen_at_once_was_made_right_before() -> None:
    shown = timeline(record((0, 10, 3, 0), (0, 14, 2, 2), waits=((7, 10), (11, 14))), 1, 9)
    assert shown.workers == (((0, 3), (5, 2)),)
    assert shown.waiting == ((0, 3), (4, 3))
    assert shown.seconds == 7
    assert (shown.busy(0), shown.waited) == (5 / 7, 6 / 7)
    with pytest.raises(IndexError, match="worker should be from 0 to .*, got worker=9"):
        shown.busy(9)


def test_batches_that_are_seen_late_were_ready_when_the_worker_says() -> None:
    """The consumer looks at 20: one was ready at 17, before the worker idled for 1 and took 2."""
    shown = timeline(record((0, 20, 4, 0), (0, 20, 2, 1)), 1, 9)
    assert shown.workers == (((0, 4), (5, 2)),)


def test_the_bars_of_a_worker_that_has_taken_the_place_of_a_dead_one_do_not_overlap() -> None:
    shown = timeline(record((0, 10, 3, 0), (0, 12, 4, 0)), 1, 9)
    assert shown.workers == (((0, 3), (3, 4)),)


def test_each_worker_has_its_row_and_one_that_did_nothing_an_empty_one() -> None:
    shown = timeline(record((2, 10, 1, 0), (0, 12, 2, 0)), 3, 9)
    assert shown.workers == (((1, 2),), (), ((0, 1),))
    assert shown.busy(1) == 0


def test_the_last_batches_are_shown_and_the_waits_of_their_time() -> None:
    answers = [(0, at, 1, 9) for at in range(10, 60, 10)]
    waits = ((1, 10), (15, 30), (31, 35), (48, 52))
    shown = timeline(record(*answers, waits=waits), 1, 2)
    assert shown.workers == (((0, 1), (10, 1)),)  # from 39 to 50
    assert shown.waiting == ((9, 4),) and shown.seconds == 13
    shown = timeline(record(*answers, waits=waits), 1, 4)  # from 19
    assert shown.waiting == ((0, 11), (12, 4), (29, 4))


def test_where_nothing_is_recorded_there_is_nothing_to_see() -> None:
    shown = timeline(Record(), 2, 9)
    assert shown == Timeline(((), ()), (), 0.0)
    assert (shown.busy(1), shown.waited) == (0, 0)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)),
        min_size=1,
    )
)
def test_bars_never_overlap_and_end_before_they_are_seen(
    steps: list[tuple[int, int, int, int]],
) -> None:
    now, answers = 0, []
    for worker, after, busy, idle in steps:
        now += after
        answers.append((worker, now * S, busy * S, idle * S))
    shown = timeline(Record(tuple(answers)), 3, len(answers))
    origin = now - shown.seconds
    for worker, bars in enumerate(shown.workers):
        told = [answer for answer in answers if answer[0] == worker]
        assert [round(length) for _, length in bars] == [busy // S for _, _, busy, _ in told]
        ends = [start + length for start, length in bars]
        assert all(end <= start + 1e-6 for end, (start, _) in zip(ends, bars[1:]))
        assert all(
            end + origin <= seen_ns / S + 1e-6 for end, (_, seen_ns, _, _) in zip(ends, told)
        )


# --- what is recorded ----------------------------------------------------------------------------


def make(num_workers: int = 2, **more: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(), batch_size=2, seed=1, num_workers=num_workers, **more)


@pytest.mark.parametrize("transport", ["arena", "portable"])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_every_batch_has_its_bar_while_workers_run_and_afterwards(
    num_workers: int, transport: Any
) -> None:
    iterator = iter(make(num_workers, transport=transport))
    for done, _ in enumerate(iterator, 1):
        shown = iterator.timeline()
        assert sum(map(len, shown.workers)) >= done
        assert all(0 <= shown.busy(worker) <= 1 for worker in range(len(shown.workers)))
    shown = iterator.timeline()
    assert len(shown.workers) == max(1, num_workers)
    assert sum(map(len, shown.workers)) == 5
    assert shown.waiting and all(length >= 0 for _, length in shown.waiting)
    assert iterator.timeline() == shown
    assert sum(map(len, iterator.timeline(batches=3).workers)) == 3


def test_without_workers_the_consumer_waits_for_itself() -> None:
    iterator = iter(make(0))
    assert len(seen(iterator)) == 5
    shown = iterator.timeline()
    assert len(shown.waiting) == len(shown.workers[0]) == 5
    assert 0 < shown.busy(0) <= shown.waited <= 1


def test_the_record_is_bounded_and_begins_anew_with_new_workers() -> None:
    loader = DataLoader(range(3 * KEPT), batch_size=None)
    iterator = iter(loader)
    seen(iterator)
    record = iterator._driver.record()
    assert len(record.answers) == len(record.waits) == KEPT
    again = iter(loader)
    next(again)
    assert len(again._driver.record().waits) == 1


def test_no_pickle_holds_the_record() -> None:
    iterator = iter(make())
    next(iterator)
    again = pickle.loads(pickle.dumps(iterator))
    assert iterator.timeline().seconds > 0
    assert again.timeline() == Timeline(((), ()), (), 0.0)
    iterator.close()
    assert iterator.timeline().seconds > 0


@pytest.mark.parametrize("batches, error", [(0, ValueError), (-1, ValueError), ("all", TypeError)])
def test_a_number_of_batches_is_from_one(batches: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="batches should be"):
        iter(make(0)).timeline(batches)


# --- the picture ---------------------------------------------------------------------------------


@pytest.fixture
def pyplot() -> Iterator[Any]:
    matplotlib = pytest.importorskip("matplotlib")
    before = matplotlib.get_backend(auto_select=False)
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")
    if before is not None:
        matplotlib.use(before)


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_a_picture_shows_all_that_the_timeline_tells(pyplot: Any, style: str) -> None:
    shown = Timeline((((0, 1), (2, 1)), ((1, 2),)), ((0.5, 1),), 4)
    with pyplot.style.context(style):
        axes = draw(shown)
        axes.figure.canvas.draw()
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert names == ["worker 0: 50% busy", "worker 1: 50% busy", "consumer: 25% waiting"]
        assert axes.get_xlim() == (0, 4) and axes.get_xlabel() == "s"
        bars = [len(bar.get_paths()) for bar in axes.collections]
        assert bars[::2] == [2, 1, 1]
        ink = axes.yaxis.label.get_color()
    assert ink == ("white" if style == "dark_background" else "black")


def test_an_iterator_is_drawn_where_one_says(pyplot: Any) -> None:
    iterator = iter(make())
    seen(iterator, 3)
    figure, (_, mine) = pyplot.subplots(2)
    assert iterator.plot(mine) is mine and len(mine.get_yticks()) == 3
    assert iterator.plot().figure is not figure
    iterator.close()


def test_an_iterator_that_has_done_nothing_is_drawn_as_well(pyplot: Any) -> None:
    axes = pickle.loads(pickle.dumps(iter(make()))).plot()
    axes.figure.canvas.draw()
    assert len(axes.get_yticks()) == 3


def test_without_matplotlib_it_says_what_to_install(without: Callable[[str], None]) -> None:
    without("matplotlib")
    with pytest.raises(UsageError, match=r"pip install 'picklable-loader\[plot\]'"):
        iter(make(0)).plot()
