"""Law 1, behind: a state before the last n deliveries yields these again, and all later ones.

It is compared with a run that never saved, in mid-epoch, after the last batch and after the end of
an epoch; the epoch after it as well.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from zoo.streams import KINDS, Kind

from picklable_loader import DataLoader, from_json, to_json

from .cases import ALL, Case
from .observe import epochs, expected_warnings, seed_everything, seen, seen_next
from .test_exact import uninterrupted

#: the others run on from batch to batch, see `test_it_cannot_go_back_where_a_worker_runs_on`
CASES = [case for case in ALL if case.arguments().get("seeding") != "worker"]
#: how far behind, by turns
BEHIND = 1, 2, 3
REMEMBER = {"remember": 3}


def by_state(iterator: Any, behind: int, make: Callable[[], DataLoader[Any]]) -> Iterator[Any]:
    state = iterator.state_dict(behind=behind)
    seed_everything(99)
    loader = make()
    loader.load_state_dict(state)
    return iter(loader)


def by_json(iterator: Any, behind: int, make: Callable[[], DataLoader[Any]]) -> Iterator[Any]:
    text = to_json(iterator.state_dict(behind=behind))
    loader = make()
    loader.load_state_dict(from_json(text))
    seed_everything(99)
    return iter(loader)


def by_pickle(iterator: Any, behind: int, make: Callable[[], DataLoader[Any]]) -> Iterator[Any]:
    data = pickle.dumps(iterator.behind(behind))
    seed_everything(99)
    found: Iterator[Any] = pickle.loads(data)
    return found


def assert_behind(case: Case, num_workers: int, step: int, behind: int, way: Any) -> None:
    """In the second epoch, after ``step`` batches; -1: after its end."""
    alike = not (case.counts_iters or case.same_workers)  # with workers and without
    expected = uninterrupted(case, 0 if alike else num_workers)
    seed_everything(1)
    loader = case.make(num_workers, **REMEMBER)
    epochs(case, loader, 1)
    iterator, whole = iter(loader), expected[1]
    ended = step < 0 and case.limit is None
    step = len(whole) if step < 0 else min(step, len(whole))
    assert [seen_next(iterator) for _ in range(step)] == whole[:step]
    if ended:
        with pytest.raises(StopIteration):
            next(iterator)
    behind = min(behind, step)
    with expected_warnings():
        again: Any = way(iterator, behind, lambda: case.make(num_workers))
        assert seen(again, case.limit and case.limit - step + behind) == whole[step - behind :]
        assert epochs(case, again.loader, 1) == expected[2:3]


@pytest.mark.inline
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_state_behind_gives_the_last_batches_again(case: Case) -> None:
    for turn, step in enumerate((2, 4, -1)):
        way = [by_state, by_pickle, by_json if case.json else by_state][(turn + len(str(case))) % 3]
        assert_behind(case, 0, step, BEHIND[turn], way)


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("way", [by_state, by_pickle])
@pytest.mark.parametrize("step", [3, -1])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_state_behind_is_exact_with_workers(case: Case, step: int, way: Any) -> None:
    assert_behind(case, 2, step, 2, way)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_streams_go_back_each_to_its_own_position(kind: Kind, num_workers: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(kind.make(), 3, num_workers=num_workers, seed=7, **REMEMBER)

    whole = seen(iter(make()))
    for behind, step in zip(BEHIND, (1, 4, len(whole)), strict=True):
        iterator = iter(make())
        taken = seen(iterator, step)
        with expected_warnings():
            again = by_state(iterator, behind, make)
            assert taken[: step - behind] + seen(again) == whole
