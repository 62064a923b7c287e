"""A loader with torch's DistributedSampler: one state for all ranks, resumed by any number."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler
from zoo.datasets import Numbers, as_they_are

from picklable_loader import DataLoader
from picklable_loader.errors import DamagedStateError, StateMismatch, UsageError
from picklable_loader.saving.states.skip import batches_left, moved_on

N = 23
WORLDS = [1, 2, 3, 4, 8, 64]


class Stateful(Numbers):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def made(
    rank: int,
    world: int,
    batch_size: int | None = 2,
    size: int = N,
    shuffle: bool = True,
    drop_last: bool = False,
    **options: Any,
) -> Any:
    data = options.pop("dataset", None) or Numbers(size)
    sampler: Any = DistributedSampler(data, world, rank, shuffle, 5, drop_last)
    return DataLoader(data, batch_size, sampler=sampler, seed=7, collate_fn=as_they_are, **options)


def order(size: int = N, shuffle: bool = True) -> list[int]:
    """The permutation that the ranks share."""
    sampler: Any = DistributedSampler(Numbers(size), 1, 0, shuffle, 5)
    return [*sampler]


def dealt(items: list[int], rank: int, world: int, drop_last: bool) -> list[int]:
    """A rank's share of a permutation's rest, padded from its own beginning elsewhere."""
    if drop_last:
        items = items[: len(items) // world * world]
    return items[rank::world]


def after(batches: int, loaders: list[Any]) -> tuple[list[int], dict[str, Any]]:
    """What all ranks have in so many steps, in the permutation's order; and rank 0's state."""
    iterators = [iter(loader) for loader in loaders]
    steps = []
    for _ in range(batches):
        step = [next(iterator) for iterator in iterators]
        steps += [index for column in zip(*step, strict=True) for index in column]
    return steps, iterators[0].state_dict()


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
@pytest.mark.parametrize("world, others", [(w, o) for w in WORLDS for o in WORLDS])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("batch_size, of_others", [(1, 1), (2, 3)])
def test_the_state_of_one_rank_restores_any_number_of_ranks(
    world: int, others: int, shuffle: bool, drop_last: bool, batch_size: int, of_others: int
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "drop_last": drop_last}
    steps = len(made(0, world, batch_size, **options))
    for passed in range(steps + 1):
        ranks = [made(rank, world, batch_size, **options) for rank in range(world)]
        seen, state = after(passed, ranks)
        whole = order(shuffle=shuffle)
        assert seen[:N] == whole[: len(seen)]
        rest = whole[len(seen) :]
        lengths = set()
        for rank in range(others):
            loader = made(rank, others, of_others, **options)
            loader.load_state_dict(state)
            share = [index for batch in loader for index in batch]
            mine = dealt(rest, rank, others, drop_last)
            assert share[: len(mine)] == mine
            assert share == mine or (len(share) == len(mine) + 1 and not drop_last)  # padding
            lengths.add(len(share))
        assert len(lengths) == 1  # no rank waits for another one


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
@given(
    st.integers(1, 60),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(0, 4)), min_size=1),
)
def test_no_sample_is_lost_or_repeated_over_any_sequence_of_ranks(
    size: int, shuffle: bool, lives: list[tuple[int, int, int]]
) -> None:
    state: dict[str, Any] | None = None
    seen: list[int] = []
    for world, batch_size, steps in [*lives, (1, 1, size)]:
        ranks = [made(rank, world, batch_size, size, shuffle) for rank in range(world)]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        left = len([*copy.deepcopy(ranks[0])])
        given, state = after(min(steps, left), ranks)
        seen += given
        if len(seen) >= size:
            break
    assert seen[:size] == order(size, shuffle)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_next_epoch_has_torchs_order_again(num_workers: int) -> None:
    _, state = after(2, [made(0, 4)])
    loader = made(1, 3, num_workers=num_workers)
    loader.load_state_dict(state)
    for _ in loader:
        pass
    loader.set_epoch(4)
    sampler: Any = DistributedSampler(Numbers(N), 3, 1, seed=5)
    sampler.set_epoch(4)
    assert [index for batch in loader for index in batch] == [*sampler]


def test_each_step_of_a_resumed_epoch_can_be_had_again_and_none_of_those_before() -> None:
    _, state = after(1, [made(0, 4)])
    loader = made(0, 3, 3)
    loader.load_state_dict(state)
    iterator = iter(loader)
    first = iterator.step
    batches = [*iterator]
    assert [loader.batch_at(step) for step in range(first, first + len(batches))] == batches
    with pytest.raises(UsageError, match="step 0 of epoch 0 was before step 1"):
        loader.batch_at(0)


def test_a_state_that_was_reshared_is_moved_on_by_its_loader_alone() -> None:
    _, state = after(1, [made(0, 4)])
    loader = made(0, 3)
    loader.load_state_dict(state)
    reshared = loader.state_dict()
    assert reshared["order"]["shift"] == 2
    assert batches_left(reshared) is None
    with pytest.raises(UsageError, match="another number of ranks"):
        moved_on(reshared, 1)


@pytest.mark.parametrize(
    "options",
    [{"seeding": "worker"}, {"dataset": Stateful(N)}],
    ids=["generators of workers", "a state of the dataset"],
)
def test_a_state_that_holds_more_than_a_position_names_the_way_out(options: Any) -> None:
    _, state = after(1, [made(0, 4, **options)])
    with pytest.raises(StateMismatch, match="as many ranks"):
        made(0, 2, **options).load_state_dict(state)


def test_a_loader_without_a_distributed_sampler_names_the_way_out() -> None:
    _, state = after(1, [made(0, 4)])
    for other in DataLoader(Numbers(N), 2, shuffle=True), DataLoader(Numbers(N), 2, shard=(0, 2)):
        with pytest.raises(StateMismatch, match="num_replicas=1 for one process"):
            other.load_state_dict(state)


def test_another_order_is_another_order() -> None:
    _, state = after(1, [made(0, 4)])
    for other in made(0, 2, shuffle=False), made(0, 2, size=N + 1):
        with pytest.raises(StateMismatch):
            other.load_state_dict(state)


@pytest.mark.parametrize("shift", [-1, 3, 2**70, True, "1", None, 1.0])
@pytest.mark.parametrize("world", [2, 3])
def test_a_damaged_shift_is_named(shift: Any, world: int) -> None:
    _, state = after(1, [made(0, 4)])
    loader = made(0, 3)
    loader.load_state_dict(state)
    damaged = loader.state_dict()
    damaged["order"]["shift"] = shift
    del damaged["checksum"]
    with pytest.raises(DamagedStateError, match="shift"):
        made(0, world).load_state_dict(damaged)
