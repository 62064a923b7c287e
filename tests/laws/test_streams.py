"""The laws for iterable-style data: every kind of dataset, saved at every step, goes on exactly.

Each kind is saved at every step through both doors under zero, one, two and four workers, each with
some of the settings, and goes on without workers. What goes on with workers takes the doors in
turn. With ``--whole-matrix`` every moment is followed through further epochs, by both doors.
"""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from zoo.streams import KINDS, Breaking, ByClass, Kind

from picklable_loader import DataLoader

from .observe import DOORS, expected_warnings, go_on, saved_at_every_step, seen

BATCH_SIZE = 3


@pytest.fixture(autouse=True)
def as_many_workers_as_it_takes() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def loader(kind: Kind, num_workers: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader(kind.make(), BATCH_SIZE, num_workers=num_workers, seed=5, **options)


@cache
def whole(kind: Kind, num_workers: int, drop_last: bool = False, epoch: int = 0) -> list[Any]:
    """An epoch of an uninterrupted run."""
    make = loader(kind, num_workers, drop_last=drop_last)
    return [seen(iter(make)) for _ in range(epoch + 1)][-1]


#: num_workers, snapshot_every_n_steps, drop_last
SETTINGS = [
    (0, 1, False), (0, 3, True), (1, "auto", True), (2, 1, False), (2, 3, True),
    (4, "auto", False),
]  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("num_workers, every, drop_last", SETTINGS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_save_goes_on_without_workers(
    kind: Kind, num_workers: int, every: int | str, drop_last: bool
) -> None:
    expected = whole(kind, num_workers, drop_last)
    options: dict[str, Any] = {"snapshot_every_n_steps": every, "drop_last": drop_last}
    batches, saves = saved_at_every_step(iter(loader(kind, num_workers, **options)))
    assert batches == expected, "saving has disturbed the run"
    for step, save in enumerate(saves):
        for door, content in save.items():
            with expected_warnings():
                assert seen(go_on(content, loader(kind, 0, **options))) == expected[step:], (
                    step,
                    door,
                )


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [k for k in KINDS if k.stateful], ids=str)
def test_under_torchs_seeding_the_random_numbers_of_each_worker_go_on(
    kind: Kind, num_workers: int
) -> None:
    options: dict[str, Any] = {"seeding": "worker", "snapshot_every_n_steps": 2}
    batches, saves = saved_at_every_step(iter(loader(kind, num_workers, **options)))
    for (step, save), door in zip(enumerate(saves), itertools.cycle(DOORS)):
        with expected_warnings():
            assert seen(go_on(save[door], loader(kind, num_workers, **options))) == batches[step:]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_streams_are_saved_and_go_on_under_every_start_method(method: str) -> None:
    kind = next(kind for kind in KINDS if kind.make is ByClass)
    options = {"multiprocessing_context": method}
    workers = 1 if method == "spawn" else 2  # which takes seconds
    batches, saves = saved_at_every_step(iter(loader(kind, workers, **options)))
    assert batches == whole(kind, workers)
    assert seen(go_on(saves[3]["pickle"], loader(kind, workers))) == batches[3:]


@pytest.mark.matrix
@pytest.mark.parametrize(
    "kind, others",
    [*((kind, 3) for kind in KINDS), (KINDS[0], 1), (KINDS[6], 8), (KINDS[0], 8)],
    ids=str,
)
def test_what_was_saved_over_four_workers_goes_on_over_any_number(kind: Kind, others: int) -> None:
    expected = whole(kind, 4)
    _, saves = saved_at_every_step(iter(loader(kind, 4)))
    for (step, save), door in zip([*enumerate(saves)][::4], itertools.cycle(DOORS)):
        with expected_warnings():
            again = go_on(save[door], loader(kind, others))
            assert seen(again) == expected[step:], (step, door)
            if not kind.counts and step in (0, 4):  # through either door
                later = seen(iter(again.loader))
                assert later == whole(
                    kind, others, epoch=1
                ), "the epoch after that has its own streams"


@pytest.mark.matrix
@pytest.mark.parametrize("num_workers, persistent", [(0, False), (1, False), (2, True)])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_saves_of_any_epoch_are_followed_by_the_epochs_of_an_uninterrupted_run(
    kind: Kind, num_workers: int, persistent: bool, whole_matrix: bool
) -> None:
    in_turn = itertools.cycle(DOORS)
    options = {"persistent_workers": persistent}
    make = loader(kind, num_workers, **options)
    expected = [seen(iter(make)) for _ in range(4)]
    make = loader(kind, num_workers, **options)
    for epoch in range(2):
        iterator = iter(make)
        _, saves = saved_at_every_step(iterator)
        after = {name: door(iterator) for name, door in DOORS.items()}
        last = len(saves) - 1
        moments = [(last - 2, saves[-3]), (last, saves[-1]), (None, after)]
        for step, save in moments if whole_matrix or not num_workers else moments[epoch::2]:
            for door in DOORS if whole_matrix else [next(in_turn)]:
                with expected_warnings():
                    again = go_on(save[door], loader(kind, num_workers, **options))
                    if step is not None:
                        assert seen(again) == expected[epoch][step:], (epoch, step, door)
                    if step is not None or door == "pickle":  # that of a finished pass is one
                        again = iter(again.loader)
                    assert seen(again) == expected[epoch + 1], (epoch, step, door)
                    assert seen(iter(again.loader)) == expected[epoch + 2], (epoch, step, door)


@pytest.mark.matrix
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_save_of_a_resumed_run_goes_on_as_well(kind: Kind, num_workers: int) -> None:
    expected = whole(kind, 2)
    _, saves = saved_at_every_step(iter(loader(kind, 2)))
    for (first, save), door in zip([*enumerate(saves[:-1])][::2], itertools.cycle(DOORS)):
        with expected_warnings():
            again = go_on(save[door], loader(kind, num_workers))
            at_once = DOORS[door](again)
            assert seen(again, 1) == expected[first : first + 1]
            later = DOORS[door](again)
            for step, content in ((first, at_once), (first + 1, later)):
                assert seen(go_on(content, loader(kind, 0))) == expected[step:], (first, step, door)


@pytest.mark.parametrize("kind", [k for k in KINDS if k.make is not Breaking], ids=str)
def test_what_came_out_of_order_is_not_repeated_and_the_rest_is_not_lost(kind: Kind) -> None:
    def rows(batches: list[Any]) -> list[Any]:
        return sorted(row for batch in batches for row in batch)

    expected = rows(whole(kind, 2))
    make = loader(kind, 2, in_order=False)
    for taken in (1, 3, 6):
        make.load_state_dict({})
        iterator = iter(make)
        before = seen(iterator, taken)
        for content in (pickle.dumps(iterator), iterator.state_dict()):
            with expected_warnings():
                after = seen(go_on(content, loader(kind, 0)))
            assert rows(before + after) == expected
