"""torch's DataPipes: shuffled, reseeded for each epoch and sharded over workers as under torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .sides import Make, assert_parity, rng_states, trace

pipes = pytest.importorskip("torch.utils.data.datapipes.iter")
maps = pytest.importorskip("torch.utils.data.datapipes.map")

pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was set, but the datapipe")


def double(number: int) -> int:
    return 2 * number


def is_even(number: int) -> bool:
    return number % 2 == 0


PIPES: dict[str, Callable[[], Any]] = {
    "plain": lambda: pipes.IterableWrapper(range(10)),
    "shuffled": lambda: pipes.IterableWrapper(range(10)).shuffle(),
    "small buffer": lambda: pipes.IterableWrapper(range(10)).shuffle(buffer_size=3),
    "sharded": lambda: pipes.IterableWrapper(range(10)).sharding_filter(),
    "shuffled, sharded": lambda: pipes.IterableWrapper(range(10)).shuffle().sharding_filter(),
    "sharded, shuffled": lambda: pipes.IterableWrapper(range(10)).sharding_filter().shuffle(),
    "mapped": lambda: pipes.IterableWrapper(range(10)).shuffle().map(double).filter(is_even),
    "batched": lambda: pipes.IterableWrapper(range(10)).shuffle().batch(3),
    "zipped": lambda: pipes.IterableWrapper(range(4))
    .shuffle()
    .zip(pipes.IterableWrapper(range(4)).shuffle()),
}


@pytest.mark.inline
@pytest.mark.parametrize("shuffle", [None, True, False])
@pytest.mark.parametrize("build", PIPES.values(), ids=PIPES)
def test_iterable_pipes_come_in_torchs_order_in_the_main_process(
    build: Callable[[], Any], shuffle: bool | None
) -> None:
    def observe(make: Make) -> Any:
        return trace(make(build(), 2, shuffle=shuffle, collate_fn=list))

    assert_parity(observe)


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize(
    "name",
    ["plain", "shuffled", "small buffer", "shuffled, sharded", "sharded, shuffled"],
)
def test_iterable_pipes_come_in_torchs_order_from_workers(
    name: str, persistent_workers: bool
) -> None:
    def observe(make: Make) -> Any:
        loader = make(
            PIPES[name](),
            2,
            shuffle=True,
            collate_fn=list,
            num_workers=2,
            persistent_workers=persistent_workers,
        )
        return trace(loader)

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loaders_generator_seeds_them(num_workers: int) -> None:
    def observe(make: Make) -> Any:
        generator = torch.Generator().manual_seed(3)
        data = PIPES["shuffled, sharded"]()
        loader = make(data, 2, collate_fn=list, generator=generator, num_workers=num_workers)
        return trace(loader, generators=[generator])

    assert_parity(observe)


def test_a_seed_given_to_the_pipe_itself_counts_as_under_torch() -> None:
    def observe(make: Make) -> Any:
        loader = make(PIPES["shuffled"]().set_seed(5), 2, collate_fn=list)
        return trace(loader)

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_map_pipes_come_in_torchs_order(shuffle: bool, num_workers: int) -> None:
    def observe(make: Make) -> Any:
        data = maps.SequenceWrapper([10 * i for i in range(7)]).map(double)
        loader = make(data, 2, shuffle=shuffle, collate_fn=list, num_workers=num_workers)
        return len(loader), trace(loader)

    assert_parity(observe)


def test_a_shuffled_map_pipe_comes_in_torchs_order() -> None:
    def observe(make: Make) -> Any:
        data = maps.SequenceWrapper(list(range(7))).shuffle()
        return trace(make(data, 2, collate_fn=list))

    assert_parity(observe)


def test_a_loader_shows_the_pipe_in_torchs_wrapper() -> None:
    def observe(make: Make) -> Any:
        datasets = (
            make(PIPES["plain"]()).dataset,
            make(maps.SequenceWrapper([1])).dataset,
        )
        return [type(dataset) for dataset in datasets], rng_states()

    assert_parity(observe)
