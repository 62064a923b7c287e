"""With torch's seeding and schedule, all that can be seen inside workers is as in torch."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info
from zoo.datasets import Numbers

from .datasets import Inside, InsideStream, draws, draws_beside, note_start
from .identical import assert_identical
from .sides import (
    AS_TORCH,
    OURS,
    TORCH,
    Make,
    assert_parity,
    outcome,
    rng_states,
    seed_everything,
)


def note(batch: Any) -> Any:
    return batch


def two_epochs(make: Make, dataset: Dataset[Any], stop: int | None = None, **kwargs: Any) -> Any:
    loader = make(dataset, **{"batch_size": 2, "collate_fn": note, **kwargs})
    return [[*itertools.islice(loader, end)] for end in (stop, None)], rng_states()


@pytest.mark.parametrize("stop", [None, 2])
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_samples_see_the_worker_and_its_random_numbers_as_under_torch(
    persistent_workers: bool, stop: int | None
) -> None:
    def observe(make: Make) -> Any:
        return two_epochs(
            make, Inside(), stop, num_workers=2, persistent_workers=persistent_workers
        )

    assert_parity(observe, ours=AS_TORCH)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 3, "prefetch_factor": 1},
        {"num_workers": 2, "prefetch_factor": 4},
        {"num_workers": 2, "shuffle": True},
        {"num_workers": 2, "batch_size": None},
        {"num_workers": 2, "collate_fn": draws_beside},
        {"num_workers": 2, "worker_init_fn": note_start},
        {"num_workers": 2, "worker_init_fn": note_start, "persistent_workers": True},
    ],
    ids=lambda options: ", ".join(options),
)
def test_they_do_so_with_each_option_that_workers_can_notice(
    options: dict[str, Any],
) -> None:
    assert_parity(lambda make: two_epochs(make, Inside(8), **options), ours=AS_TORCH)


def test_the_loaders_generator_gives_the_workers_their_seeds() -> None:
    def observe(make: Make) -> Any:
        generator = torch.Generator().manual_seed(5)
        seen = two_epochs(make, Inside(6), num_workers=2, generator=generator)
        return seen, rng_states([generator])

    assert_parity(observe, ours=AS_TORCH)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_an_error_in_one_sample_leaves_the_next_ones_random_numbers_as_under_torch(
    persistent_workers: bool,
) -> None:
    def observe(make: Make) -> Any:
        loader = make(FailsAfterDrawing(), num_workers=2, persistent_workers=persistent_workers)
        seen = []
        for _ in range(2):
            iterator = iter(loader)
            seen.append([first_line(outcome(lambda: next(iterator))) for _ in range(6)])
        return seen

    assert_parity(observe, ours=AS_TORCH)


class FailsAfterDrawing(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        drawn = draws()
        if index == 2:
            raise ValueError("the third sample")
        return drawn


def first_line(seen: Any) -> Any:
    return (seen[0], seen[1].splitlines()[0]) if isinstance(seen, tuple) else seen


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_streams_see_the_worker_and_its_random_numbers_as_under_torch(
    persistent_workers: bool,
) -> None:
    def observe(make: Make) -> Any:
        return two_epochs(
            make, InsideStream(), num_workers=2, persistent_workers=persistent_workers
        )

    assert_parity(observe, ours=AS_TORCH)


def test_a_loader_within_a_worker_shuffles_and_draws_as_under_torch() -> None:
    def observe(make: Make) -> Any:
        return two_epochs(make, Nests(make), num_workers=2, batch_size=None)

    assert_parity(observe, ours=AS_TORCH)


class Nests(Dataset[Any]):
    """Each sample is one epoch of an inner loader."""

    def __init__(self, make: Make) -> None:
        self.make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        inner = list(self.make(Numbers(5), 2, shuffle=True))
        info = get_worker_info()
        return inner, torch.rand(1), info and info.id


def test_spawned_workers_see_what_torchs_forked_ones_see() -> None:
    seed_everything()
    expected = two_epochs(TORCH, Inside(4), num_workers=1, persistent_workers=True)
    seed_everything()
    spawned = {"persistent_workers": True, "multiprocessing_context": "spawn"}
    found = two_epochs(AS_TORCH, Inside(4), num_workers=1, **spawned)
    assert_identical(found, expected)


@pytest.mark.parametrize("seeding", ["batch", "sample", "worker"])
def test_under_every_seeding_a_worker_can_read_torchs_seed_for_it(seeding: str) -> None:
    def observe(make: Make) -> Any:
        extra = {"seeding": seeding} if make is OURS else {}
        loader = make(Inside(6), num_workers=1, collate_fn=note, **extra)
        return [sample["info"] for [sample] in loader]

    assert_parity(observe)


def test_by_default_too_every_worker_knows_its_number_and_seed() -> None:
    seed_everything()
    base = next(iter(TORCH(Inside(), num_workers=1, collate_fn=note)))[0]["info"]["seed"]
    seed_everything()
    infos = [sample["info"] for [sample] in OURS(Inside(), num_workers=2, collate_fn=note)]
    assert {info["num_workers"] for info in infos} == {2}
    assert {info["id"] for info in infos} <= {0, 1}
    assert {info["seed"] - info["id"] for info in infos} == {base}


def test_there_is_no_worker_to_be_seen_in_the_main_process() -> None:
    class Plain(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return get_worker_info(), os.getpid()

    assert_parity(lambda make: [get_worker_info(), *make(Plain(), None, num_workers=0)])


def test_what_worker_init_fn_changes_in_the_dataset_is_there_when_samples_are_fetched() -> None:
    def observe(make: Make) -> Any:
        loader = make(Numbers(4), num_workers=1, worker_init_fn=shrink, collate_fn=note)
        return [outcome(lambda: batch) for batch in loader]

    def shrink(worker_id: int) -> None:
        get_worker_info().dataset.__class__ = Negative

    assert_parity(observe)


class Negative(Numbers):
    def __getitem__(self, index: int) -> int:
        return -index


def test_worker_init_fn_may_seed_for_itself_under_torchs_seeding() -> None:
    def observe(make: Make) -> Any:
        return two_epochs(make, Inside(6), num_workers=2, worker_init_fn=reseed)

    def reseed(worker_id: int) -> None:
        random.seed(worker_id)
        np.random.seed(worker_id)
        torch.manual_seed(worker_id)

    assert_parity(observe, ours=AS_TORCH)


def test_worker_init_fn_runs_once_for_persistent_workers_and_once_an_epoch_for_others() -> None:
    def observe(make: Make) -> Any:
        counts = []
        for persistent_workers in (True, False):
            starts = torch.zeros(2, dtype=torch.int64).share_memory_()
            loader = make(
                Numbers(4),
                num_workers=2,
                worker_init_fn=lambda worker_id: starts[worker_id].add_(1),
                persistent_workers=persistent_workers,
            )
            for _ in range(3):
                list(loader)
            del loader  # a worker that was given nothing may still be at its beginning
            gc.collect()
            counts.append(starts.clone())
        return counts

    assert_parity(observe)


def test_worker_init_fn_runs_in_workers_that_have_nothing_to_fetch_as_well() -> None:
    def observe(make: Make) -> Any:
        starts = torch.zeros(3, dtype=torch.int64).share_memory_()
        options: Any = {"worker_init_fn": lambda worker_id: starts[worker_id].add_(1)}
        list(make(Numbers(1), num_workers=3, **options))
        return starts

    assert_parity(observe)


def test_a_workers_cpu_affinity_holds_when_worker_init_fn_sets_it() -> None:
    cpu = min(os.sched_getaffinity(0))

    def observe(make: Make) -> Any:
        loader = make(
            Affinities(),
            None,
            num_workers=2,
            worker_init_fn=lambda worker_id: os.sched_setaffinity(0, {cpu}),
        )
        return list(loader)

    assert assert_parity(observe) == [[cpu]] * 4


class Affinities(Dataset[list[int]]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[int]:
        return sorted(os.sched_getaffinity(0))


@pytest.mark.filterwarnings("ignore:loader.dataset.tag has changed since")
def test_persistent_workers_are_the_same_processes_and_keep_their_first_copy_of_the_dataset() -> (
    None
):
    def observe(make: Make) -> Any:
        seen = []
        for persistent_workers in (True, False):
            data = Tagged()
            loader = make(data, None, num_workers=1, persistent_workers=persistent_workers)
            first = list(loader)
            data.tag = "changed"
            second = list(loader)
            same_process = first[0][1] == second[0][1]
            seen.append(([tag for tag, _ in first + second], same_process))
        return seen

    assert_parity(observe)


@pytest.mark.filterwarnings("ignore:loader.collate_fn has changed since")
def test_persistent_workers_keep_what_else_they_were_given_at_their_start() -> None:
    def observe(make: Make) -> Any:
        loader = make(Numbers(4), 2, num_workers=1, persistent_workers=True, collate_fn=list)
        seen = [list(loader)]
        loader.collate_fn = sum
        seen.append(list(loader))
        loader.num_workers = 2
        seen += [list(loader), len(multiprocessing.active_children())]
        return seen

    assert_parity(observe)


class Tagged(Dataset[tuple[str, int]]):
    tag = "original"

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.tag, os.getpid()


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_an_epoch_that_is_set_reaches_the_dataset_in_every_worker(
    persistent_workers: bool,
) -> None:
    class Epochs(Dataset[int]):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return self.epoch

    loader: Any = OURS(Epochs(), None, num_workers=2, persistent_workers=persistent_workers)
    seen = []
    for epoch in (0, 3, 4):
        loader.set_epoch(epoch)
        seen.append(list(loader))
    assert seen == [[0] * 4, [3] * 4, [4] * 4]


@pytest.mark.parametrize("in_order", [True, False])
def test_round_robin_gives_batch_i_to_worker_i_mod_n(in_order: bool) -> None:
    class Where(Dataset[tuple[int, int]]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> tuple[int, int]:
            return index, get_worker_info().id

    loader = OURS(Where(), None, num_workers=3, schedule="round_robin", in_order=in_order)
    assert sorted(map(tuple, loader)) == [(index, index % 3) for index in range(12)]


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_what_a_dataset_remembers_in_a_worker_lasts_as_long_as_under_torch(
    persistent_workers: bool,
) -> None:
    def observe(make: Make) -> Any:
        loader = make(Counting(), None, num_workers=1, persistent_workers=persistent_workers)
        return [list(loader) for _ in range(3)]

    assert_parity(observe)


class Counting(Dataset[int]):
    count = 0

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return self.count
