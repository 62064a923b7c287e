"""Iterable-style datasets: their order over workers, their ends, torch's warning of a length."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import ChainDataset, IterableDataset, get_worker_info

from .datasets import SizedStream, Stream, draw_index
from .sides import OURS, Make, assert_parity, outcome, rng_states, trace

UNEVEN: dict[int, tuple[int, ...]] = {0: (11,), 1: (11,), 2: (3, 8), 3: (5, 0, 2)}


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 1},
        {"batch_size": 2},
        {"batch_size": 2, "drop_last": True},
        {"batch_size": 50},
        {"batch_size": 50, "drop_last": True},
        {"batch_size": None},
    ],
    ids=str,
)
def test_streams_are_read_in_turn_and_to_their_ends_as_under_torch(
    options: dict[str, Any], num_workers: int
) -> None:
    def observe(make: Make) -> Any:
        data = Stream(UNEVEN[num_workers])
        return trace(make(data, num_workers=num_workers, **options), stop_at=(None, 2, None))

    assert_parity(observe)


@pytest.mark.parametrize("sizes", [(0, 0), (0, 4), (4, 0), (1, 9), (9, 1), (6, 6)])
@pytest.mark.parametrize("prefetch_factor", [1, 3])
def test_workers_that_end_early_leave_the_rest_in_torchs_order(
    prefetch_factor: int, sizes: tuple[int, int]
) -> None:
    def observe(make: Make) -> Any:
        loader = make(Stream(sizes), 2, num_workers=2, prefetch_factor=prefetch_factor)
        return list(loader), list(loader)

    assert_parity(observe)


@pytest.mark.parametrize("stop", [None, 1])
def test_persistent_workers_start_their_streams_again_in_each_epoch(
    stop: int | None,
) -> None:
    def observe(make: Make) -> Any:
        loader = make(Stream((5, 2)), 2, num_workers=2, persistent_workers=True)
        return trace(loader, stop_at=(stop, None, stop))

    assert_parity(observe)


def test_out_of_order_delivery_loses_nothing_of_a_stream() -> None:
    def observe(make: Make) -> Any:
        return sorted(make(Stream((5, 2)), None, num_workers=2, in_order=False))

    assert assert_parity(observe) == [0, 1, 2, 3, 4, 100, 101]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_without_end_is_read_as_far_as_one_likes(num_workers: int) -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return itertools.count()

    def observe(make: Make) -> Any:
        loader = make(Endless(), 3, num_workers=num_workers)
        return [list(itertools.islice(loader, stop)) for stop in (5, 2)]

    assert_parity(observe)


def test_a_stream_that_is_its_own_iterator_is_used_up_by_its_first_epoch() -> None:
    class Once(IterableDataset[int]):
        def __init__(self) -> None:
            self.left = 5

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            if not self.left:
                raise StopIteration
            self.left -= 1
            return self.left

    def observe(make: Make) -> Any:
        data = Once()
        loader = make(data, 2)
        return list(loader), list(loader), data.left

    assert_parity(observe)


def test_a_stream_is_opened_at_iter_in_the_main_process() -> None:
    def observe(make: Make) -> Any:
        opened: list[str] = []

        class Watched(IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                opened.append("opened")
                return iter(range(3))

        iterator = iter(make(Watched()))
        before = list(opened)
        return before, list(iterator), opened

    assert_parity(observe)


def test_streams_that_draw_at_opening_leave_the_global_generator_as_under_torch() -> None:
    class Drawing(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([draw_index("numpy", 100) for _ in range(4)])

    def observe(make: Make) -> Any:
        list(make(Drawing(), 2))
        return rng_states()["torch"]

    assert_parity(observe)


def test_streams_can_be_chained() -> None:
    def observe(make: Make) -> Any:
        data = ChainDataset([Stream((3,)), Stream((2,))])
        return [list(make(data, 2, num_workers=n)) for n in (0, 1)]

    assert_parity(observe)


def test_the_dataset_may_choose_its_share_in_worker_init_fn() -> None:
    class Span(IterableDataset[int]):
        start, end = 0, 10

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.start, self.end))

    def choose(worker_id: int) -> None:
        info = get_worker_info()
        info.dataset.start, info.dataset.end = 5 * worker_id, 5 * worker_id + 5

    def observe(make: Make) -> Any:
        return list(make(Span(), 2, num_workers=2, worker_init_fn=choose))

    assert_parity(observe)


def test_an_exhausted_stream_stays_exhausted() -> None:
    def observe(make: Make) -> Any:
        iterator = iter(make(Stream((3,)), 2))
        return list(iterator), next(iterator, "end"), next(iterator, "end")

    assert_parity(observe)


def warned(make: Make, num_workers: int, batch_size: int | None, sizes: Any, length: int) -> Any:
    """Read a whole stream whose length was asked for; return batches and warnings."""
    loader = make(SizedStream(sizes, length), batch_size, num_workers=num_workers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = list(loader)
        asked = len(loader)
        batches += list(loader)
    return (
        asked,
        batches,
        [(w.category, first_sentence(str(w.message))) for w in caught],
    )


def first_sentence(text: str) -> str:
    """Drop what follows, and all spaces: torch's own text lacks one."""
    return text.partition("have been fetched")[0].replace(" ", "")


@pytest.mark.parametrize(
    "num_workers, batch_size, sizes, length, number_of_warnings",
    [
        (0, 1, (5,), 3, 2),
        (0, None, (5,), 3, 2),
        (0, 2, (5,), 3, 0),
        (0, 1, (5,), 5, 0),
        (0, 1, (0,), 0, 0),
        (2, 1, (3, 3), 3, 3),
        (2, None, (3, 3), 6, 0),
    ],
)
def test_more_batches_than_the_length_that_was_asked_for_are_warned_of_in_torchs_words(
    num_workers: int,
    batch_size: int | None,
    sizes: Any,
    length: int,
    number_of_warnings: int,
) -> None:
    expected = assert_parity(lambda make: warned(make, num_workers, batch_size, sizes, length))
    assert len(expected[2]) == number_of_warnings


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 10])
def test_a_streams_length_is_counted_as_under_torch(batch_size: int, drop_last: bool) -> None:
    def observe(make: Make) -> Any:
        loader: Any = make(SizedStream((7,), 7), batch_size, drop_last=drop_last)
        before = loader._IterableDataset_len_called
        return before, len(loader), loader._IterableDataset_len_called

    assert_parity(observe)


def test_a_stream_without_length_has_none() -> None:
    def observe(make: Make) -> Any:
        loader = make(Stream((3,)), 2)
        return outcome(lambda: len(loader)), outcome(lambda: len(iter(loader)))

    assert_parity(observe)
    assert list(OURS(Stream((3,)), None)) == [0, 1, 2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_fn_that_raises_stop_iteration_ends_that_stream(
    num_workers: int,
) -> None:
    def until(samples: list[int]) -> list[int]:
        if samples[0] == 2:
            raise StopIteration
        return samples

    def observe(make: Make) -> Any:
        loader = make(Stream((4, 4)), 1, collate_fn=until, num_workers=num_workers)
        return list(loader)

    assert_parity(observe)
