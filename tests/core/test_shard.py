"""Ranks that share an order: whatever their number, nobody loses an index, or has another's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler
from zoo.orders import Walked, rest, sequence

from picklable_loader.core.order import SequenceOrder
from picklable_loader.core.plan import Grouping, Plan, Unit, batches_in
from picklable_loader.core.shard import ALONE, Shard, StreamShare, Tail
from picklable_loader.core.task import Task

SIZES = st.integers(0, 40)
WORLDS = st.integers(1, 9)
BATCHES = st.integers(1, 5)
TAILS = st.sampled_from(["pad", "drop", "uneven"])


def plans(
    items: list[Any],
    world: int,
    tail: Tail,
    size: int = 1,
    drop_last: bool = False,
    at: Any = (0, 0),
) -> list[Plan]:
    """Those of all ranks; each goes on from the same position."""
    groupings = [
        Grouping(Unit.SAMPLE_OF_BATCH, size, drop_last, Shard(rank, world, tail))
        for rank in range(world)
    ]
    made = [Plan(sequence(items), grouping, *at) for grouping in groupings]
    for plan in made:
        plan.seek()
    return made


def indices(tasks: list[Task]) -> list[Any]:
    return [index for task in tasks for index in task.indices]


# --- shares --------------------------------------------------------------------------------------


@given(SIZES, WORLDS, BATCHES)
def test_uneven_shares_are_disjoint_and_all_there_is(size: int, world: int, batch: int) -> None:
    shares = [indices(rest(plan)) for plan in plans([*range(size)], world, "uneven", batch)]
    assert sorted(sum(shares, [])) == [*range(size)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(SIZES, WORLDS, BATCHES)
def test_padded_shares_are_equally_long_and_repeat_the_first_indices(
    size: int, world: int, batch: int
) -> None:
    shares = [indices(rest(plan)) for plan in plans([*range(size)], world, "pad", batch)]
    assert len({*map(len, shares)}) == 1
    missing = -size % world if size else 0
    repeated = [index % size for index in range(missing)]
    assert sorted(sum(shares, [])) == sorted([*range(size), *repeated])


@given(SIZES, WORLDS, BATCHES)
def test_dropped_are_fewer_than_there_are_ranks(size: int, world: int, batch: int) -> None:
    shares = [indices(rest(plan)) for plan in plans([*range(size)], world, "drop", batch)]
    assert len({*map(len, shares)}) == 1
    assert sorted(sum(shares, [])) == [*range(size - size % world)]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("tail", ["pad", "drop"])
@given(st.integers(1, 40), WORLDS, BATCHES)
def test_each_batch_is_that_of_torchs_distributed_sampler(
    tail: Tail, drop_last: bool, size: int, world: int, batch: int
) -> None:
    data = [*range(size)]
    for rank, plan in enumerate(plans(data, world, tail, batch, drop_last)):
        sampler: Any = DistributedSampler(
            data, world, rank, shuffle=False, drop_last=tail == "drop"  # type: ignore[arg-type]
        )
        torchs: Any = TorchDataLoader(
            data, batch, sampler=sampler, drop_last=drop_last, collate_fn=list  # type: ignore
        )
        assert [task.indices for task in rest(plan)] == [*torchs]


@given(SIZES, WORLDS, BATCHES, TAILS, st.booleans())
def test_a_plan_says_how_many_batches_it_has(
    size: int, world: int, batch: int, tail: Tail, drop_last: bool
) -> None:
    for plan in plans([*range(size)], world, tail, batch, drop_last):
        promised = plan.remaining()
        assert promised == batches_in(size, plan.grouping) == len(rest(plan))


# --- elastic -------------------------------------------------------------------------------------


@given(
    SIZES, TAILS, st.lists(st.tuples(WORLDS, BATCHES, st.integers(0, 3)), min_size=1, max_size=6)
)
def test_no_index_is_lost_or_repeated_however_often_the_ranks_change(
    size: int, tail: Tail, lives: list[tuple[int, int, int]]
) -> None:
    seen: list[int] = []
    position = step = 0
    for world, batch, steps in [*lives, (1, 1, size)]:
        ranks = plans([*range(size)], world, tail, batch, at=(step, position))
        for plan in ranks:
            seen += indices(rest(plan, steps))
        position, step = ranks[0].position, ranks[0].next_step
        if position == size or ranks[0].remaining() == 0:
            break
    most = max(world for world, _, _ in [*lives, (1, 1, 0)])
    if tail == "drop":  # the last step may have been one with fewer indices than ranks
        assert len({*seen}) == len(seen) > size - most
    else:
        assert {*seen} == {*range(size)}
        assert len(seen) - size < (most if tail == "pad" else 1)


@given(SIZES, st.integers(1, 24), st.integers(0, 30))
def test_steps_of_all_ranks_are_the_same_whatever_their_number(
    size: int, together: int, start: int
) -> None:
    def steps(world: int) -> list[list[int]]:
        position = min(size, start * together)
        found = [
            rest(plan)
            for plan in plans(
                [*range(size)],
                world,
                "uneven",
                together // world,
                at=(start, position),
            )
        ]
        last = max((task.step for tasks in found for task in tasks), default=-1)
        return [
            sorted(
                i for tasks in found for task in tasks if task.step == step for i in task.indices
            )
            for step in range(last + 1)
        ]

    alone = steps(1)
    for world in range(2, together + 1):
        if together % world == 0:
            assert steps(world) == alone


# --- orders that can only be walked through ------------------------------------------------------


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
@pytest.mark.parametrize("unit", Unit)
@given(SIZES, st.integers(1, 4), st.integers(1, 3), st.integers(0, 4))
def test_a_walked_order_is_shared_as_a_sequence_is(
    tail: Tail, unit: Unit, size: int, world: int, batch: int, drawn: int
) -> None:
    items: list[Any] = [*range(size)]
    if unit is Unit.BATCH:
        items = [[item] * (item % 3 + 1) for item in items]
    for rank in range(world):
        grouping = Grouping(
            unit, batch if unit is Unit.SAMPLE_OF_BATCH else 1, shard=Shard(rank, world, tail)
        )
        walked, sought = Plan(Walked(items), grouping), Plan(sequence(items), grouping)
        for task, other in zip(rest(walked, drawn), rest(sought, drawn), strict=True):
            if len(items) - task.position >= grouping.batch_size * world:  # padding may differ
                assert (task.step, task.indices, task.first) == (
                    other.step,
                    other.indices,
                    other.first,
                )
            # A state holds what all ranks have in the step: each of them finds its own in it.
            saved = task.indices if task.drawn is None else task.drawn
            assert walked.again(Task(task.step, saved, task.position)) == task
            assert sought.again(Task(task.step, None, task.position)) == other
            assert (task.drawn is None, other.drawn) == (world == 1, None)
        assert walked.remaining() == sought.remaining()


def test_a_task_knows_how_many_samples_come_before_it() -> None:
    batches = [[0, 1, 2], [3], [4, 5], [6]]
    firsts = [
        [task.first for task in rest(Plan(sequence(batches), Grouping(Unit.BATCH, shard=shard)))]
        for shard in (Shard(0, 2), Shard(1, 2))
    ]
    assert firsts == [[0, 4], [3, 6]]
    assert Task(2, [9], 7).first == 7, "without ranks, it is the sample at its position"


def test_a_rank_makes_its_own_indices_only_in_every_complete_step() -> None:
    class Counted(SequenceOrder):
        made = 0

        def take(self, count: int) -> list[Any]:
            return self._count(super().take(count))

        def at(self, positions: range) -> list[Any]:
            return self._count(super().at(positions))

        def _count(self, indices: list[Any]) -> list[Any]:
            self.made += len(indices)
            return indices

    order = Counted(lambda: range(12))
    plan = Plan(order, Grouping(Unit.SAMPLE_OF_BATCH, 2, shard=Shard(1, 3)))
    assert [task.indices for task in rest(plan, limit=2)] == [[1, 4], [7, 10]]
    assert order.made == 4


def test_a_rank_of_streams_delivers_as_many_as_the_rank_with_most_or_with_fewest() -> None:
    def batches(world: int, tail: Tail) -> int | None:
        return StreamShare(Shard(0, world, tail), 3).batches([5, 3, 1])

    assert (batches(2, "pad"), batches(2, "drop"), batches(2, "uneven")) == (6, 3, None)
    assert batches(1, "pad") is None, "on its own it has what its streams have"


def test_a_loader_is_on_its_own_unless_it_says_of_which_rank_it_is() -> None:
    assert Shard() == ALONE == Shard(0, 1)
    assert ALONE.of("abc", lambda count: []) == ["a", "b", "c"]


def test_an_epoch_without_data_has_no_task_on_any_rank() -> None:
    for tail in ("pad", "drop", "uneven"):
        assert [rest(plan) for plan in plans([], 3, tail)] == [[], [], []]
