"""Programs that hold batches which they have not used yet: queues, threads, prefetchers."""

from __future__ import annotations

import pickle
import queue
import threading
from typing import Any

import pytest
import torch
from laws.observe import expected_warnings, lists, seen
from zoo.datasets import Broken, Noisy, NoisyStream

from picklable_loader import DataLoader
from picklable_loader.errors import CannotSaveError, UsageError

SHUFFLED: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 7}


def make(num_workers: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(), num_workers=num_workers, **{**SHUFFLED, **options})


# --- behind --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_may_always_be_one_batch_behind(num_workers: int) -> None:
    loader, whole = make(num_workers), lists(make())
    iterator = iter(loader)
    next(iterator), next(iterator)
    for state in (iterator.state_dict(behind=1), loader.state_dict(behind=1)):
        again = make(num_workers)
        again.load_state_dict(state)
        assert lists(again) == whole[1:]


def test_more_than_are_remembered_is_an_error_that_names_the_option() -> None:
    loader = make(remember=2)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(UsageError, match="behind=2 is more than the 1 last .* remember=2"):
        iterator.state_dict(behind=2)
    next(iterator), next(iterator)
    with pytest.raises(UsageError, match="behind=3 is more than the 2 last .* remember=3"):
        loader.state_dict(behind=3)
    with pytest.raises(UsageError, match="behind=3 is more"):
        iterator.behind(3)


@pytest.mark.parametrize("where", ["new", "begun", "loaded", "unpickled", "skipped"])
def test_nothing_is_remembered_from_before_a_pass_began_to_deliver(where: str) -> None:
    loader = make()
    iterator = iter(loader)
    next(iterator)
    if where == "new":
        loader = make()
    elif where == "begun":
        iter(loader)
    elif where == "loaded":
        loader.load_state_dict(iterator.state_dict())
    elif where == "unpickled":
        loader = pickle.loads(pickle.dumps(iterator)).loader
    else:
        iterator.skip(1)
    with pytest.raises(UsageError, match="behind=1 is more than the 0 last batches"):
        loader.state_dict(behind=1)


def test_a_flush_is_gone_behind_if_it_gave_up_nothing() -> None:
    loader, whole = make(remember=3), lists(make())
    iterator = iter(loader)
    next(iterator), next(iterator)
    assert iterator.flush() == 0
    again = make()
    again.load_state_dict(loader.state_dict(behind=2))
    assert lists(again) == whole


def test_a_flush_that_gave_up_batches_is_named_as_a_reason() -> None:
    iterator = iter(make(2, remember=3))
    next(iterator), next(iterator)
    assert iterator.flush() > 0
    with pytest.raises(UsageError, match="behind=1 is more than the 0 last .* or was flushed"):
        iterator.state_dict(behind=1)
    next(iterator)
    assert iterator.state_dict(behind=1)["step"] == 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_skip_of_streams_is_not_gone_behind_either(num_workers: int) -> None:
    iterator = iter(DataLoader(NoisyStream(), 2, num_workers=num_workers, seed=1))
    assert iterator.skip(2) == 2
    with pytest.raises(UsageError, match="behind=1 is more than the 0 last batches"):
        iterator.state_dict(behind=1)
    next(iterator)
    assert iterator.state_dict(behind=1)["step"] == 2


def test_it_cannot_go_back_where_the_random_numbers_of_a_worker_run_on() -> None:
    iterator = iter(make(2, seeding="worker"))
    next(iterator)
    with pytest.raises(UsageError, match='behind=1 cannot be .* seeding="worker"'):
        iterator.state_dict(behind=1)


@pytest.mark.parametrize("bad, error", [(-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_it_is_a_number_of_batches(bad: Any, error: type[Exception]) -> None:
    iterator = iter(make())
    next(iterator)
    with pytest.raises(error, match="behind should be"):
        iterator.state_dict(behind=bad)
    with pytest.raises(error, match="batches should be"):
        iterator.behind(bad)


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.SkippedWarning")
def test_a_batch_that_raised_counts_and_a_step_without_a_batch_does_not() -> None:
    raising = iter(DataLoader(Broken(), 1, seed=1, remember=3))
    assert seen(raising, 6)[4] == "boom"
    assert raising.state_dict(behind=3)["step"] == 3

    skipping = iter(DataLoader(Broken(), 1, seed=1, remember=3, on_error="skip"))
    taken = seen(skipping, 6)
    assert skipping.step == 7  # sample 4 was skipped, and its step passed over
    state = skipping.state_dict(behind=3)
    assert state["step"] == 3
    again = DataLoader(Broken(), 1, seed=1, on_error="skip")
    again.load_state_dict(state)
    assert seen(iter(again), 3) == taken[3:]


def test_after_a_later_pass_has_begun_an_ended_one_cannot_go_back_unless_it_has_a_seed() -> None:
    for seed in (3, None):
        loader = make(seed=seed)
        ended = iter(loader)
        lists(ended)
        assert ended.state_dict(behind=1)["epoch"] == 0
        next(iter(loader))
        if seed is None:
            with pytest.raises(CannotSaveError, match="the loader has gone on"):
                ended.state_dict(behind=1)
        else:
            assert ended.state_dict(behind=1)["epoch"] == 0


def test_an_iterator_behind_is_a_copy_that_leaves_the_first_one_alone() -> None:
    iterator, whole = iter(make(remember=2)), lists(make())
    next(iterator), next(iterator)
    behind = iterator.behind(2)
    assert (behind.step, iterator.step) == (0, 2)
    assert lists(behind) == whole and lists(iterator) == whole[2:]


# --- with_state ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("data", [Noisy, NoisyStream])
def test_each_batch_may_come_with_the_state_after_it(data: Any, num_workers: int) -> None:
    def built(**options: Any) -> DataLoader[Any]:
        return DataLoader(data(), 3, num_workers=num_workers, seed=7, **options)

    whole, pairs = lists(built()), list(built(with_state=True))
    assert lists(batch for batch, _ in pairs) == whole
    for step, (_, state) in enumerate(pairs[:-1], 1):
        again = built()
        again.load_state_dict(state)
        with expected_warnings():
            assert lists(again) == whole[step:]


def test_a_thread_with_a_queue_saves_what_the_program_has_used() -> None:
    whole, waiting = lists(make()), queue.Queue[Any](2)

    def read() -> None:
        for pair in make(2, with_state=True):
            waiting.put(pair)

    thread = threading.Thread(target=read)
    thread.start()
    used = [waiting.get() for _ in range(2)]
    state = used[-1][1]
    again = make()
    again.load_state_dict(state)
    assert lists(batch for batch, _ in used) + lists(again) == whole
    while thread.is_alive() or not waiting.empty():
        try:
            waiting.get(timeout=0.1)
        except queue.Empty:
            continue
    thread.join()


def test_batch_at_gives_the_batch_alone() -> None:
    loader = make(with_state=True)
    batch, _ = next(iter(loader))
    assert torch.equal(loader.batch_at(0, 0), batch)
