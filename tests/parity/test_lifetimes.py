"""Loaders and iterators: several, nested, left early, in threads, at the end of the program."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from zoo.datasets import Made, Numbers

import picklable_loader

from .identical import assert_identical
from .sides import OURS, TORCH, Make, assert_parity, outcome, rng_states

TEN = Numbers(10)


def batches(*steps: int, batch_size: int = 2) -> list[torch.Tensor]:
    """Return the batches of these steps of a sequential pass over TEN."""
    starts = (batch_size * step for step in steps)
    return [torch.arange(start, start + batch_size) for start in starts]


def test_an_iterator_is_its_own_iterator() -> None:
    iterator = iter(OURS(TEN, 2))
    assert iter(iterator) is iterator
    assert isinstance(iterator, picklable_loader.LoaderIterator)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nested_loops_over_one_loader_do_not_disturb_each_other(
    num_workers: int,
) -> None:
    def observe(make: Make) -> Any:
        loader = make(Numbers(4), 2, shuffle=True, num_workers=num_workers)
        return [(a, b) for a in loader for b in loader], rng_states()

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nested_loops_over_two_loaders_do_not_disturb_each_other(
    num_workers: int,
) -> None:
    def observe(make: Make) -> Any:
        outer = make(Numbers(4), 2, shuffle=True, num_workers=num_workers)
        inner = make(Numbers(3), None, shuffle=True, num_workers=num_workers)
        return [(a, b) for a in outer for b in inner], rng_states()

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_zip_of_a_loader_with_itself_gives_two_passes(num_workers: int) -> None:
    def observe(make: Make) -> Any:
        loader = make(Numbers(6), 2, shuffle=True, num_workers=num_workers)
        return list(zip(loader, loader)), rng_states()

    assert_parity(observe)


def test_a_dataset_may_iterate_a_loader_of_its_own() -> None:
    def observe(make: Make) -> Any:
        inner = make(Numbers(4), 2)
        data = Made(lambda index: [batch + index for batch in inner], 3)
        return [list(make(data, None, num_workers=n)) for n in (0, 2)]

    assert_parity(observe)


@pytest.mark.parametrize("num_workers, persistent_workers", [(0, False), (2, False), (2, True)])
def test_a_pass_left_early_is_followed_by_a_whole_one(
    num_workers: int, persistent_workers: bool
) -> None:
    def observe(make: Make) -> Any:
        loader = make(TEN, 2, num_workers=num_workers, persistent_workers=persistent_workers)
        return [list(itertools.islice(loader, stop)) for stop in (1, None, 0, 3, None)]

    assert_parity(observe)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_large_batches_on_their_way_do_not_keep_workers_from_ending(
    persistent_workers: bool,
) -> None:
    data = Made(lambda index: bytes(2**22), 20)
    loader = OURS(data, None, num_workers=2, persistent_workers=persistent_workers)
    assert len(next(iter(loader))) == 2**22
    del loader
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_iterators_may_be_dropped_in_any_order(order: tuple[int, ...]) -> None:
    loader = OURS(TEN, 2, num_workers=1)
    iterators = {name: iter(loader) for name in range(3)}
    for place, name in enumerate(order):
        for left in iterators.values():
            assert_identical(next(left), batches(place)[0])
        del left, iterators[name]
    assert not multiprocessing.active_children()


def test_an_iterator_outlives_its_loaders_name() -> None:
    def observe(make: Make) -> Any:
        return [list(iter(make(TEN, 3, num_workers=n))) for n in (0, 1)]

    assert_parity(observe)


def test_workers_end_with_their_epoch_even_while_the_iterator_lives() -> None:
    def observe(make: Make) -> Any:
        iterator = iter(make(TEN, 2, num_workers=2))
        running = len(multiprocessing.active_children())
        seen = list(iterator)
        return running, seen, len(multiprocessing.active_children())

    assert_parity(observe)


def test_persistent_workers_end_with_their_loader() -> None:
    loader = OURS(TEN, 2, num_workers=2, persistent_workers=True)
    list(loader)
    assert len(multiprocessing.active_children()) == 2
    del loader
    assert not multiprocessing.active_children()


def test_a_new_pass_over_persistent_workers_gives_up_the_old_one() -> None:
    loader = OURS(TEN, 2, num_workers=1, persistent_workers=True)
    next(iter(loader))
    assert_identical(list(loader), batches(0, 1, 2, 3, 4))
    assert_identical(list(loader), batches(0, 1, 2, 3, 4))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_may_be_used_in_a_thread(num_workers: int) -> None:
    def observe(make: Make) -> Any:
        seen: list[Any] = []
        thread = threading.Thread(
            target=lambda: seen.extend(make(TEN, 3, shuffle=True, num_workers=num_workers))
        )
        thread.start()
        thread.join()
        return seen, rng_states()

    assert_parity(observe)


def test_two_threads_may_use_a_loader_each() -> None:
    results: dict[int, Any] = {}

    def consume(name: int) -> None:
        results[name] = list(OURS(TEN, 2, num_workers=1))

    threads = [threading.Thread(target=consume, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_identical(results[0], batches(0, 1, 2, 3, 4))
    assert_identical(results[1], batches(0, 1, 2, 3, 4))


def test_threads_may_start_and_end_workers_all_at_once() -> None:
    seen: list[Any] = []

    def consume() -> None:
        for _ in range(15):
            seen.append(outcome(lambda: len(list(OURS(TEN, 5, num_workers=2)))))

    threads = [threading.Thread(target=consume) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert seen == [2] * 60


def test_an_iterator_may_be_made_in_one_thread_and_used_and_dropped_in_another() -> None:
    iterators = [iter(OURS(TEN, 2, num_workers=1))]
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.extend(iterators.pop()))
    thread.start()
    thread.join()
    assert_identical(seen, batches(0, 1, 2, 3, 4))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_each_start_method_gives_the_same_batches(start_method: str) -> None:
    def observe(make: Make) -> Any:
        method = "fork" if make is TORCH else start_method
        options = {"persistent_workers": True, "multiprocessing_context": method}
        loader = make(TEN, 4, shuffle=True, num_workers=1, **options)
        return [list(loader) for _ in range(2)], rng_states()

    assert_parity(observe)


def test_persistent_workers_have_one_iterator_however_often_it_is_asked_for() -> None:
    def observe(make: Make) -> Any:
        loader = make(TEN, 2, num_workers=1, persistent_workers=True)
        first = iter(loader)
        next(first)
        second = iter(loader)
        return first is second, next(first), next(second)

    assert_parity(observe)


def test_a_process_that_was_forked_meanwhile_does_not_keep_workers_from_ending() -> None:
    context = multiprocessing.get_context("fork")
    event = context.Event()
    iterator = iter(OURS(TEN, 2, num_workers=2))
    next(iterator)
    bystander = context.Process(target=event.wait, daemon=True)
    bystander.start()
    try:
        start = time.monotonic()
        del iterator
        assert time.monotonic() - start < 3.0
        assert multiprocessing.active_children() == [bystander]
    finally:
        event.set()
        bystander.join()
        bystander.close()


def test_threads_that_fetch_in_the_main_process_leave_its_random_numbers_alone() -> None:
    """One fetch begins within the other and ends after it, unless the loader forbids it."""
    inside, left = threading.Event(), threading.Event()

    def early(index: int) -> int:
        inside.wait(1.0)
        return index

    def late(index: int) -> int:
        inside.set()
        left.wait(1.0)
        return index

    threads = [
        threading.Thread(target=lambda: (list(OURS(Made(early, 1))), left.set())),
        threading.Thread(target=lambda: list(OURS(Made(late, 1)))),
    ]
    torch.empty(()).random_()
    list(OURS(Made(abs, 1)))
    before = rng_states()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = rng_states()
    assert [after["numpy"], after["python"]] == [before["numpy"], before["python"]]


def test_more_workers_than_batches_are_no_trouble() -> None:
    def observe(make: Make) -> Any:
        return [list(make(Numbers(n), 2, num_workers=3)) for n in (0, 1, 3)]

    assert_parity(observe)


@pytest.mark.parametrize("options", [{"prefetch_factor": 1}, {"prefetch_factor": 50}])
def test_any_prefetch_factor_gives_the_same_batches(options: dict[str, int]) -> None:
    assert_parity(lambda make: list(make(TEN, 2, num_workers=2, **options)))


def test_no_more_batches_are_fetched_ahead_than_torch_would_fetch() -> None:
    def observe(make: Make) -> Any:
        fetched = torch.zeros(40, dtype=torch.int64).share_memory_()

        def fetch(index: int) -> int:
            fetched[index] += 1
            return index

        loader = make(Made(fetch, 40), None, num_workers=2, prefetch_factor=3)
        iterator = iter(loader)
        first = [next(iterator) for _ in range(2)]
        del iterator
        return first, int(fetched.max()), int(fetched.sum()) <= 2 + 2 * 3

    assert assert_parity(observe)[1:] == (1, True)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sampler_is_asked_for_its_iterator_as_often_as_under_torch(
    num_workers: int,
) -> None:
    class Counted:
        def __init__(self) -> None:
            self.passes = 0

        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Any:
            self.passes += 1
            return iter(range(4))

    def observe(make: Make) -> Any:
        sampler = Counted()
        loader = make(TEN, 2, sampler=sampler, num_workers=num_workers)
        return list(loader), sampler.passes, list(loader), sampler.passes

    assert_parity(observe)


@pytest.mark.unpinned
def test_a_profiler_finds_the_loaders_time_under_torchs_name() -> None:
    def observe(make: Make) -> Any:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            list(make(Numbers(4), 2))
        names = [event.key for event in profile.key_averages()]
        return any(name.startswith("enumerate(DataLoader)#") for name in names)

    assert_parity(observe)


SCRIPT = """
import torch
from picklable_loader import DataLoader

if __name__ == "__main__":
    loader = DataLoader(range(100), 2, num_workers=2, persistent_workers={persistent})
    iterator = iter(loader)
    print(next(iterator).tolist(), flush=True)
    {end}
"""


@pytest.mark.parametrize(
    "persistent, end, code",
    [
        (False, "pass", 0),
        (True, "raise SystemExit(3)", 3),
        (False, "cycle = [iterator]", 0),
    ],
)
def test_an_interpreter_ends_quietly_with_workers_at_work(
    persistent: bool, end: str, code: int
) -> None:
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(persistent=persistent, end=end)],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=Path(picklable_loader.__file__).parents[1],
        env={**os.environ, "PYTHONPATH": ""},  # an ordinary end, without tests/startup
    )
    assert (process.stdout, process.stderr, process.returncode) == (
        "[0, 1]\n",
        "",
        code,
    )


@pytest.mark.parametrize("factory", [set, list, tuple])
def test_a_loader_may_be_kept_in_any_container(factory: Callable[[Any], Any]) -> None:
    loader = OURS(TEN, 5)
    assert loader in factory([loader])


@pytest.mark.unpinned
def test_samples_may_be_loaders() -> None:
    class Loaders(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return OURS(Numbers(index + 1), None)

    [first, second] = OURS(Loaders(), None)
    assert (list(first), list(second)) == ([0], [0, 1])
