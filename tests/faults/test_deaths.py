"""The table of deaths: when × how. Nothing is lost or comes twice, and one warning says so."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from picklable_loader import DataLoader
from picklable_loader.errors import (
    CannotSaveError,
    LoaderWarning,
    ReplayWarning,
    RestartWarning,
    WorkerDied,
)

from .ways import HOW, WHEN, Button, Death, Generated, Remembers, Samples, Stateful, Stream

HOWS = pytest.mark.parametrize("how", HOW)
WHENS = pytest.mark.parametrize("when", WHEN)


def loader_of(options: dict[str, Any], **more: Any) -> DataLoader[Any]:
    return DataLoader(**{"batch_size": 2, "num_workers": 2, "seed": 3, **options, **more})


def lists(batches: Any) -> list[list[int]]:
    return [batch[:, :3].tolist() for batch in batches]


def quiet(button: Button, death: Death, **more: Any) -> list[list[int]]:
    """What comes if nobody presses the button."""
    return lists(loader_of(death.options(button), **more))


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in caught if each.category is RestartWarning]


@WHENS
@HOWS
def test_what_a_dead_worker_owed_is_done_again_by_another_one(
    when: str, how: str, tmp_path: Path
) -> None:
    if when == "receiving the dataset":
        pytest.skip("a forked worker receives none; the others are below")
    check(when, how, tmp_path)


@pytest.mark.parametrize("at", range(0, len(WHEN), 4))
def test_so_it_is_when_workers_are_started_in_another_way(at: int, tmp_path: Path) -> None:
    # Each start by spawn takes seconds: every moment once, in one of the ways to die and to start.
    for number, when in enumerate(list(WHEN)[at : at + 4], at):
        folder = tmp_path / str(number)
        folder.mkdir()
        method = "spawn" if number % 4 == 1 else "forkserver"
        check(when, list(HOW)[number % 5], folder, multiprocessing_context=method)


def check(when: str, how: str, folder: Path, **more: Any) -> None:
    death, button = WHEN[when], Button(folder, how)
    more["transport"] = death.transport
    expected = quiet(button, death, **{**more, "multiprocessing_context": "fork"})
    button.set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LoaderWarning)
        warnings.simplefilter("ignore", ReplayWarning)
        assert lists(loader_of(death.options(button), **more)) == expected
    assert not list(folder.iterdir()), "nobody has died"
    code = HOW[how][1]
    cause = f"signal: {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    texts = told(caught)
    assert all(re.search(rf"worker \(pid \d+\) .*{cause}", text) for text in texts)
    assert len(texts) == 1 or (not texts and not death.owes)


@pytest.mark.parametrize("options", [
    {"schedule": "round_robin"}, {"in_order": False}, {"seeding": "worker"}, {"seeding": "sample"},
    {"num_workers": 1}, {"num_workers": 4}, {"batch_size": None}, {"prefetch_budget": 1},
    {"transport": "portable"}, {"transport": "portable", "schedule": "round_robin"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dataset", [Samples, Stateful, Stream, Generated, Remembers])
def test_however_tasks_are_handed_out_and_seeded(
    dataset: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    # Of what is random, `seeding="worker"` promises each worker's own; in_order=False no order.
    def batches(button: Button) -> list[Any]:
        found = lists_of(loader_of({"dataset": dataset(button)}, **options))
        return sorted(found) if "in_order" in options else found

    def lists_of(loader: Any) -> list[Any]:
        return [batch.reshape(-1)[:3].tolist() for batch in loader]

    button = Button(tmp_path)
    expected = batches(button)
    button.set()
    with pytest.warns(RestartWarning, match="SIGKILL"):
        assert batches(button) == expected


@pytest.mark.parametrize("dataset", [Samples, Stateful, Stream, Generated, Remembers])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_epochs_after_a_death_are_what_they_would_have_been(
    dataset: Any, persistent: bool, tmp_path: Path
) -> None:
    def epochs() -> list[Any]:
        loader = loader_of({"dataset": dataset(button)}, persistent_workers=persistent)
        return [lists(loader) for _ in range(3)]

    button = Button(tmp_path)
    expected = epochs()
    button.set()
    with pytest.warns(RestartWarning, match="SIGKILL"):
        assert epochs() == expected


class Unsavable(Remembers):
    """A state that pickle refuses: it goes on, by reading its batches again."""

    def state_dict(self) -> Any:
        return {"total": lambda: self.total}


class Stateless(Remembers):
    def state_dict(self) -> Any:
        return None


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Unsavable, Stateless])
def test_a_map_style_state_that_cannot_be_saved_survives_a_death_and_says_so_when_saved(
    dataset: Any, workers: int, tmp_path: Path
) -> None:
    button = Button(tmp_path)
    expected = lists(loader_of({"dataset": Remembers(button)}))
    if workers:
        button.set()
        with pytest.warns(RestartWarning):
            assert lists(loader_of({"dataset": dataset(button)})) == expected
    iterator = iter(loader_of({"dataset": dataset(button)}, num_workers=workers))
    next(iterator)
    with pytest.raises(CannotSaveError, match="stream 0 of the dataset"):
        iterator.state_dict()
    iterator.close()


def test_a_warning_says_what_workers_that_live_on_cannot_remember(tmp_path: Path) -> None:
    button = Button(tmp_path).set()
    loader = loader_of({"dataset": Samples(button)}, persistent_workers=True)
    with pytest.warns(RestartWarning, match="had saved there is lost"):
        lists(loader)


@pytest.mark.parametrize("victims", [1, 2, 3])
@pytest.mark.parametrize("dataset", [Samples, Stateful])
def test_idle_workers_that_are_killed_from_outside_are_replaced(dataset: Any, victims: int) -> None:
    expected = lists(loader_of({"dataset": dataset()}, num_workers=3))
    iterator = iter(loader_of({"dataset": dataset()}, num_workers=3))
    found = lists([next(iterator)])
    for worker in multiprocessing.active_children()[:victims]:
        worker.kill()
        worker.join()
    with pytest.warns(RestartWarning, match="SIGKILL") as caught:
        assert found + lists(iterator) == expected
    assert len(caught) == victims


def test_what_is_pickled_after_a_death_goes_on_as_well(tmp_path: Path) -> None:
    button = Button(tmp_path).set()
    iterator = iter(loader_of({"dataset": Samples(button)}))
    with pytest.warns(RestartWarning):
        for _ in range(6):
            next(iterator)
    again = pickle.loads(pickle.dumps(iterator))
    assert lists(again) == lists(iterator)


# --- tasks that are deadly -----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def replays_are_expected() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplayWarning)
        yield


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.RestartWarning")
@pytest.mark.parametrize("transport", ["arena", "portable"])
@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_a_task_that_workers_die_of_is_an_error_in_its_turn_and_skip_goes_past_it(
    deaths: int, transport: str, tmp_path: Path
) -> None:
    button = Button(tmp_path, "_exit").set(deaths)
    loader = loader_of({"dataset": Samples(button)}, max_task_deaths=deaths, transport=transport)
    expected = lists(loader_of({"dataset": Samples()}))
    iterator = iter(loader)
    found = lists(next(iterator) for _ in range(4))
    with pytest.raises(WorkerDied) as raised:
        next(iterator)
    error = raised.value
    assert (error.step, error.indices, error.exitcodes) == (4, [8, 9], (7,) * deaths)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert iterator.step == 4
    again = pickle.loads(pickle.dumps(iterator))
    assert iterator.skip(1) == 1
    assert found + lists(iterator) == expected[:4] + expected[5:]
    # Nothing kills any more: what was pickled, and not skipped, gives the batch after all.
    assert lists(again) == expected[4:]


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.RestartWarning")
def test_a_stream_cannot_go_past_a_deadly_batch_and_others_are_given_before(tmp_path: Path) -> None:
    button = Button(tmp_path).set(3)
    expected = lists(loader_of({"dataset": Stateful()}))
    iterator = iter(loader_of({"dataset": Stateful(button)}))
    found = []
    with pytest.raises(WorkerDied, match=r"step 5 \(stream 1\)") as raised:
        for batch in iterator:
            found.append(batch)
    assert (raised.value.stream, raised.value.indices) == (1, None)
    assert lists(found) == expected[:5]
    assert lists(found) + lists(iterator) == expected


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.RestartWarning")
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_map_style_dataset_with_a_state_is_never_asked_for_a_batch_that_is_passed_over(
    workers: int, tmp_path: Path
) -> None:
    button = Button(tmp_path, "_exit").set(3)
    options = {"num_workers": workers, "num_streams": 2}
    expected = lists(loader_of({"dataset": Remembers()}, **options))
    iterator = iter(loader_of({"dataset": Remembers(button)}, **options))
    found = []
    with pytest.raises(WorkerDied, match=r"(?s)step 4 \(indices \[8, 9\]\).*skip\(1\)") as raised:
        for batch in iterator:
            found.append(batch)
    assert raised.value.stream == 0 and raised.value.indices == [8, 9]
    assert iterator.skip(2) == 2  # the second of them is fetched, and dropped
    again = pickle.loads(pickle.dumps(iterator))
    state = iterator.state_dict()
    rest = lists(iterator)
    assert len(found) == 4 and len(rest) == len(expected) - 6
    # Of the other stream nothing is missing; in this one the state is without that batch.
    assert lists(found) + rest[1::2] == expected[:4] + expected[7::2]
    assert rest[0::2] != expected[6::2]
    other = loader_of({"dataset": Remembers()}, **options)
    other.load_state_dict(state)
    assert lists(again) == lists(other) == rest


def test_without_any_deaths_allowed_it_is_torchs_error(tmp_path: Path) -> None:
    button = Button(tmp_path).set()
    iterator = iter(loader_of({"dataset": Samples(button)}, max_task_deaths=0))
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpected"):
        list(iterator)
    assert iterator.step < 5


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.RestartWarning")
@pytest.mark.parametrize("transport", ["arena", "portable"])
def test_workers_that_always_die_as_they_start_are_an_error(transport: str, tmp_path: Path) -> None:
    button = Button(tmp_path, "_exit").set(50)
    options = WHEN["worker_init_fn"].options(button)
    iterator = iter(loader_of(options, transport=transport, schedule="round_robin"))
    with pytest.raises(WorkerDied) as raised:
        lists(iterator)
    assert set(raised.value.exitcodes) == {7}
    for file in tmp_path.iterdir():
        file.unlink()
    assert iterator.step + len(lists(iterator)) == 10


def test_a_warning_that_is_an_error_loses_nothing(tmp_path: Path) -> None:
    button = Button(tmp_path).set()
    expected = lists(loader_of({"dataset": Samples()}))
    iterator, found = iter(loader_of({"dataset": Samples(button)})), []
    with pytest.raises(RestartWarning):
        for batch in iterator:
            found.append(batch)
    assert lists(found) + lists(iterator) == expected


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", None, True])
def test_a_wrong_number_of_deaths_is_an_error_at_once(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="max_task_deaths"):
        DataLoader([1], max_task_deaths=wrong)


# --- workers that are stuck ----------------------------------------------------------------------


class Sticks(Samples):
    """One of its samples never comes, as often as there are presses."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.deadly and self.button is not None:
            for file in self.button.folder.glob("press*"):
                file.unlink()
                self.wait_for_ever()
        return super().__getitem__(index)

    def wait_for_ever(self) -> None:
        read, _ = os.pipe()
        os.read(read, 1)


class Stops(Sticks):
    def wait_for_ever(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


# Torch's own way asks the worker for each tensor, and waits for a stopped one.
@pytest.mark.parametrize(
    ("dataset", "told", "transport"),
    [
        (Sticks, "in wait_for_ever", "arena"),
        (Sticks, "in wait_for_ever", "portable"),
        (Stops, "it was stopped", "arena"),
    ],
)
@pytest.mark.parametrize("schedule", ["balanced", "round_robin"])
def test_a_stuck_worker_is_replaced_and_says_where_it_was(
    dataset: Any, told: str, schedule: str, transport: str, tmp_path: Path
) -> None:
    button = Button(tmp_path).set()
    options = {"timeout": 1, "on_timeout": "restart", "schedule": schedule, "transport": transport}
    with pytest.warns(RestartWarning, match=told):
        found = lists(loader_of({"dataset": dataset(button)}, **options))
    assert found == lists(loader_of({"dataset": Samples()}))


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.RestartWarning")
def test_a_task_that_always_sticks_is_given_up(tmp_path: Path) -> None:
    button = Button(tmp_path).set(2)
    options = {"timeout": 0.5, "on_timeout": "restart", "max_task_deaths": 2}
    iterator = iter(loader_of({"dataset": Sticks(button)}, **options))
    with pytest.raises(WorkerDied, match="in wait_for_ever"):
        lists(iterator)
    assert iterator.step == 4


def test_by_default_a_timeout_is_torchs_error(tmp_path: Path) -> None:
    button = Button(tmp_path).set()
    iterator = iter(loader_of({"dataset": Sticks(button)}, timeout=0.5))
    with pytest.raises(RuntimeError, match="DataLoader timed out after 0.5 seconds"):
        lists(iterator)
    iterator.close()


def test_to_replace_the_stuck_and_nobody_else_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="needs max_task_deaths from 1"):
        DataLoader([1], on_timeout="restart", max_task_deaths=0)


def test_a_wrong_wish_for_a_timeout_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="on_timeout should be one of 'raise', 'restart'"):
        DataLoader([1], on_timeout="retry")  # type: ignore[arg-type]
