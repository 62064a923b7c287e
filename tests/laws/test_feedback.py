"""Law 1 with a sampler that listens: whole, saved and resumed passes see the same feedback."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from zoo.listeners import (
    LISTENERS,
    Batches,
    ByLoss,
    Counted,
    Generated,
    Labelled,
    Learning,
    Picklable,
    Pile,
    SavedByLoss,
    Sending,
    Stateful,
)

from picklable_loader import DataLoader, from_json, to_json
from picklable_loader.errors import RestartWarning

from .observe import expected_warnings

#: after these steps the program flushes, or skips a batch, and then says more about the last one;
#: before the first one it only skips
FLUSHES, SKIPS = (3, 7, 9), (5,)
#: the last one is that of the last batch
STEPS = range(12)
BUDGETS = [(0, 1), (1, 1), (2, 1), (1, 3), (2, 3), (4, 3)]


def loader_of(kind: Any, num_workers: int, budget: int, **options: Any) -> DataLoader[Any]:
    if kind is Batches:
        options = {"batch_sampler": kind(), **options}
    else:
        options = {"batch_size": 4, "sampler": kind(), **options}
    if num_workers:
        options["prefetch_budget"] = budget
    data = options.pop("dataset", None) or Sending()
    return DataLoader(data, num_workers=num_workers, seed=5, **options)


def train(iterator: Any, steps: int = -1) -> list[Any]:
    """What a training sees: batches, with what was said about them; it says their noise."""
    seen: list[Any] = []
    while steps < 0 or iterator.step < steps:
        if iterator.step == 0:
            iterator.skip(1)
        elif iterator.step in FLUSHES:
            iterator.flush()
            iterator.tell(0.5)
        elif iterator.step in SKIPS:
            iterator.skip(1)
            iterator.tell(0.25)
        if iterator.step == steps:
            break
        batch = next(iterator, None)
        if batch is None:
            break
        assert iterator.feedback == [int(index) for index in batch[:, 0]]
        seen.append((iterator.step, batch.tolist()))
        iterator.tell(batch[:, 1].sum().item())
    return seen


@cache
def whole(kind: Any, budget: int) -> list[Any]:
    """An uninterrupted epoch; with one worker, whatever the number of workers in a test."""
    return train(iter(loader_of(kind, 1, budget)))


@pytest.mark.parametrize("num_workers, budget", BUDGETS)
@pytest.mark.parametrize("kind", LISTENERS)
def test_a_sampler_sees_the_same_under_any_number_of_workers(
    kind: Any, num_workers: int, budget: int
) -> None:
    assert train(iter(loader_of(kind, num_workers, budget))) == whole(kind, budget)


def by_state(iterator: Any, make: Callable[[], DataLoader[Any]]) -> Any:
    loader = make()
    loader.load_state_dict(copy.deepcopy(iterator.state_dict()))
    return iter(loader)


def by_json(iterator: Any, make: Callable[[], DataLoader[Any]]) -> Any:
    loader = make()
    loader.load_state_dict(from_json(to_json(iterator.state_dict())))
    return iter(loader)


def by_pickle(iterator: Any, make: Callable[[], DataLoader[Any]]) -> Any:
    return pickle.loads(pickle.dumps(iterator))


def by_state_of_a_resumed_one(iterator: Any, make: Callable[[], DataLoader[Any]]) -> Any:
    """Saved again before the first batch, and after a look at the sampler."""
    again = by_state(iterator, make)
    again.get_sampler_iter()
    return by_json(again, make)


@pytest.mark.matrix
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("door", [by_state, by_json, by_pickle, by_state_of_a_resumed_one])
@pytest.mark.parametrize("num_workers, budget", BUDGETS)
@pytest.mark.parametrize("kind", LISTENERS)
def test_a_resume_goes_on_with_the_same_draws(
    kind: Any, num_workers: int, budget: int, door: Any, step: int
) -> None:
    iterator = iter(loader_of(kind, num_workers, budget))
    seen = train(iterator, step)
    with expected_warnings():  # of an empty pass, at the end
        again = door(iterator, lambda: loader_of(kind, num_workers, budget))
        assert seen + train(again) == whole(kind, budget)


@pytest.mark.parametrize(
    "saved_by, loaded_by", [((2, 3), (0, 1)), ((2, 3), (4, 6)), ((0, 1), (2, 3))]
)
@pytest.mark.parametrize("kind", [Picklable, Stateful])
def test_a_state_brings_its_budget_along(
    kind: Any, saved_by: tuple[int, int], loaded_by: tuple[int, int]
) -> None:
    iterator = iter(loader_of(kind, *saved_by))
    seen = train(iterator, 4)
    again = by_state(iterator, lambda: loader_of(kind, *loaded_by))
    assert seen + train(again) == whole(kind, saved_by[1])
    assert again.loader.prefetch_budget != 3 or loaded_by != (4, 6)


@pytest.mark.parametrize("behind", [1, 2])
def test_a_state_behind_brings_no_feedback_twice(behind: int) -> None:
    """The program trains on the last batches again, and says the same about them again."""

    def make() -> DataLoader[Any]:
        return loader_of(Stateful, 2, 3, remember=2)

    iterator = iter(make())
    train(iterator, 3)
    loader = make()
    loader.load_state_dict(iterator.state_dict(behind=behind))
    seen = whole(Stateful, 3)
    assert train(iter(loader)) == seen[2 - behind :]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", [Stateful, Generated])
def test_the_death_of_a_worker_changes_nothing(kind: Any, number: int, tmp_path: Path) -> None:
    """The first sample is in a batch that is skipped, too: the epoch may end before the worker."""
    flag = tmp_path / "flag"
    flag.touch()
    deadly = int(whole(kind, 3)[4][1][number][0])
    loader = loader_of(kind, 2, 3, dataset=Sending(deadly, str(flag)))
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        assert train(iter(loader)) == whole(kind, 3)
    assert {each.category for each in given} <= {RestartWarning} and (given or number == 1)
    assert not flag.exists(), "a worker has died"


@pytest.mark.parametrize("kind", [Picklable, Stateful, Generated])
def test_without_a_seed_a_pickle_has_the_feedback_too(kind: Any) -> None:
    torch.manual_seed(4)
    loader = DataLoader(Sending(), 4, sampler=kind(), num_workers=2, prefetch_budget=3)
    iterator = iter(loader)
    train(iterator, 4)
    again = pickle.loads(pickle.dumps(iterator))
    assert train(again) == train(iterator)


def train_with_mistakes(iterator: Any, steps: int = -1) -> list[Any]:
    """With feedback that the sampler refuses; the program goes on.

    Only under a budget of one: the exception comes after what was drawn before, and no state has
    one that is yet to come.
    """
    mistakes = (3, 8, 11) if iterator.prefetch_budget in (None, 1) else ()
    seen: list[Any] = []
    while steps < 0 or iterator.step < steps:
        try:
            batch = next(iterator, None)
        except TypeError as error:
            seen.append(str(error))
            continue
        if batch is None:
            break
        seen.append(batch.tolist())
        iterator.tell("no number" if iterator.step in mistakes else batch[:, 1].sum().item())
    return seen


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("door", [by_state, by_json, by_pickle])
@pytest.mark.parametrize("num_workers, budget", [(0, 1), (2, 2), (2, 6)])
def test_a_replay_ends_and_raises_where_the_original_did_and_the_next_epoch_shows_it(
    num_workers: int, budget: int, door: Any, step: int
) -> None:
    def make() -> DataLoader[Any]:
        return loader_of(Learning, num_workers, budget)

    def rest(iterator: Any) -> list[Any]:
        seen = train_with_mistakes(iterator)
        loader = iterator.loader
        return [*seen, loader.sampler.weights, *train(iter(loader)), loader.sampler.weights]

    expected = rest(iter(make()))
    iterator = iter(make())
    seen = train_with_mistakes(iterator, step)
    with expected_warnings():  # of an empty pass, at the end
        assert seen + rest(door(iterator, make)) == expected


def train_on(iterator: Any, batches: int) -> tuple[list[Any], Any]:
    """So many batches, with those of the next epochs, and the iterator; it says their noise."""
    seen: list[Any] = []
    while len(seen) < batches:
        batch = next(iterator, None)
        if batch is None:
            iterator = iter(iterator.loader)
            continue
        seen.append(batch.tolist())
        iterator.tell(batch[:, 1].sum().item())
    return seen, iterator


@pytest.mark.parametrize("door", [by_state, by_json, by_pickle])
@pytest.mark.parametrize("num_workers, budget", [(0, 1), (2, 3)])
@pytest.mark.parametrize("kind", [ByLoss, SavedByLoss, Labelled])
def test_a_subclass_of_torchs_samplers_that_changes_what_it_draws_from_goes_on_with_that(
    kind: Any, num_workers: int, budget: int, door: Any
) -> None:
    def make() -> DataLoader[Any]:
        return loader_of(kind, num_workers, budget)

    expected, _ = train_on(iter(make()), 26)
    for batches in (1, 2, 4, 13):
        seen, iterator = train_on(iter(make()), batches)
        rest, _ = train_on(door(iterator, make), 26 - batches)
        assert seen + rest == expected


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("door", [by_state, by_pickle])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
@pytest.mark.parametrize("kind", ["generator", "list", "class", "shuffle"])
def test_a_flush_at_any_step_loses_nothing_and_a_save_around_it_goes_on(
    kind: str, num_workers: int, door: Any, stubborn: bool
) -> None:
    """Behind the sampler's end, too."""

    def make() -> DataLoader[Any]:
        options = {"shuffle": True} if kind == "shuffle" else {"sampler": Pile(kind, stubborn)}
        budget = 4 if num_workers else 1
        return DataLoader(
            range(20), 2, num_workers=num_workers, prefetch_budget=budget, seed=3, **options
        )

    def flushed(iterator: Any) -> Any:
        try:
            iterator.flush()
        except ValueError as error:
            return str(error)

    for step in range(1, 11):
        iterator = iter(make())
        seen = [next(iterator).tolist() for _ in range(step)]
        before = door(iterator, make)
        refused = flushed(iterator)
        after = door(iterator, make)
        assert flushed(before) == refused
        if num_workers and kind != "shuffle" and step <= 6:
            assert (refused == "not yet") == stubborn
        rest = [batch.tolist() for batch in iterator]
        for again in (before, after):
            with expected_warnings():  # of an empty pass, at the end
                assert [batch.tolist() for batch in again] == rest
        if not stubborn:
            assert sorted(sum([*seen, *rest], [])) == list(range(20))


@pytest.mark.parametrize("door", [None, by_state, by_json, by_pickle])
@pytest.mark.parametrize("num_workers, budget", [(0, 1), (2, 2), (2, 6)])
def test_a_training_that_counts_its_batches_gives_the_sampler_what_one_that_asks_does(
    num_workers: int, budget: int, door: Any
) -> None:
    """Lightning does not ask for StopIteration; a resume from there begins the next epoch."""

    def make() -> DataLoader[Any]:
        return loader_of(Counted, num_workers, budget, at_epoch_end="next")

    def plainly(iterator: Any, counts: bool = False) -> list[Any]:
        seen = []
        for batch in itertools.islice(iterator, len(iterator) if counts else None):
            seen.append(batch.tolist())
            iterator.tell(batch[:, 1].sum().item())
        return seen

    asks = make()
    expected = [plainly(iter(asks)), plainly(iter(asks)), asks.sampler.weights]
    iterator = iter(make())
    seen, again = plainly(iterator, counts=True), iterator
    assert not iterator.finished
    if door is not None:
        again = door(iterator, make)
    if door in (None, by_pickle):  # nobody asks that iterator for its end, either
        again = iter(again.loader)
    assert [seen, plainly(again), again.loader.sampler.weights] == expected
