"""A state moved on without its loader: the state of the run that has passed over the batches."""

from __future__ import annotations

from typing import Any

import pytest
from laws.cases import OPTIONS, SEEKABLE, Case
from laws.observe import expected_warnings, seed_everything, seen
from torch.utils.data import BatchSampler, RandomSampler
from zoo.streams import StatefulIterator

from picklable_loader import DataLoader
from picklable_loader.errors import DamagedStateError, ForeignStateError, UsageError
from picklable_loader.saving.states.skip import batches_left, moved_on

EXACT = [
    case
    for case in [*SEEKABLE, *OPTIONS]
    if isinstance(case.make().state_dict()["fits"]["sampler_length"], int)
    and case.make().state_dict()["fits"]["seeding"] != "worker"
    and case.name not in ("list of batches", "batches")
]
INEXACT = {
    "streams": lambda: DataLoader(StatefulIterator(), batch_size=3),
    "seeding=": lambda: DataLoader(range(20), batch_size=3, seeding="worker"),
    "sampler": lambda: DataLoader(range(20), batch_size=3, sampler=Own()),
    "any size": lambda: DataLoader(range(9), batch_sampler=[[1, 2], [3]]),
}


class Own:
    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Any:
        return iter(range(20))


def at(case: Case, step: int, num_workers: int = 0) -> Any:
    seed_everything(1)
    iterator = iter(case.make(num_workers))
    assert len(seen(iterator, step)) == step
    return iterator


@pytest.mark.matrix
@pytest.mark.parametrize("case", EXACT, ids=str)
def test_every_number_of_batches_from_every_step(case: Case) -> None:
    length = len(seen(at(case, 0)))
    assert length > 1
    for step in range(length):
        for count in range(length - step + 1):
            iterator = at(case, step)
            state = iterator.state_dict()
            moved = moved_on(state, count)
            assert batches_left(state) == length - step
            assert iterator.skip(count) == count
            assert (moved["step"], moved["position"]) == (iterator.step, _position(iterator))
            rest = seen(iterator)
            seed_everything(99)
            loader = case.make()
            with expected_warnings():
                loader.load_state_dict(moved)
                assert seen(iter(loader)) == rest


def _position(iterator: Any) -> Any:
    return iterator.state_dict()["position"]


@pytest.mark.parametrize("step", [0, 2, 3])
def test_with_a_window_those_in_it_are_passed_over_first(step: int) -> None:
    loader = DataLoader(range(40), batch_size=4, shuffle=True, seed=3, num_workers=2)
    iterator = iter(loader)
    seen(iterator, step)
    state = iterator.state_dict()
    state = {**state, "next_step": step + 2, "position": 4 * (step + 2)}
    del state["checksum"]
    state["window"] = [[step, 4 * step, None, 2]]
    iterator.skip(3)
    rest = seen(iterator)
    again = DataLoader(range(40), batch_size=4, shuffle=True, seed=3)
    again.load_state_dict(moved_on(state, 3))
    assert seen(iter(again)) == rest


def test_a_state_of_one_rank_is_moved_on_over_that_ranks_batches() -> None:
    """9 samples in batches of one: rank 0 has 5 of them, rank 1 has 4."""
    data, options = range(9), {"shard_tail": "uneven", "in_order": False, "num_workers": 1}
    for rank in (0, 1):
        iterator = iter(DataLoader(data, 1, seed=1, shard=(rank, 2), **options))
        next(iterator)
        state = iterator.state_dict()
        assert state["rank"] == [rank, 2]
        assert batches_left(state) == iterator.remaining == 4 - rank
        with pytest.raises(UsageError, match=f"has {4 - rank} batches left"):
            moved_on(state, 5 - rank)
        assert moved_on(state, 4 - rank)["step"] == 5 - rank


def test_the_state_itself_stays_as_it_is() -> None:
    state = at(EXACT[0], 1).state_dict()
    before = repr(state)
    moved_on(state, 1)
    assert repr(state) == before


def test_more_than_the_epoch_has_is_refused() -> None:
    state = at(EXACT[0], 1).state_dict()
    with pytest.raises(UsageError, match="has 3 batches left in epoch 0.*by 4"):
        moved_on(state, 4)
    with pytest.raises(UsageError, match="from 0, got -1"):
        moved_on(state, -1)


@pytest.mark.parametrize("reason", INEXACT)
def test_what_cannot_be_exact_is_refused_with_its_reason(reason: str) -> None:
    loader: Any = INEXACT[reason]()
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(UsageError, match=rf"{reason}(.|\n)*it\.skip\(n\)"):
        moved_on(iterator.state_dict(), 1)


def test_of_batches_that_the_loader_gathers_from_a_batch_sampler_the_rest_is_exact() -> None:
    sampler = BatchSampler(RandomSampler(range(20)), 3, True)
    iterator: Any = iter(DataLoader(range(20), batch_sampler=sampler))
    next(iterator)
    moved = moved_on(iterator.state_dict(), 4)
    iterator.skip(4)
    assert moved == iterator.state_dict()


@pytest.mark.parametrize("name", ["sampler_length", "batch_size", "batches_from"])
def test_a_damaged_fingerprint_is_named(name: str) -> None:
    state = at(EXACT[0], 1).state_dict()
    state["fits"] = {**state["fits"], name: -1}
    del state["checksum"]
    with pytest.raises(DamagedStateError, match=f"fits.{name}"):
        moved_on(state, 1)


def test_something_else_is_refused() -> None:
    with pytest.raises(ForeignStateError):
        moved_on({"step": 1}, 1)
