"""Workers that die between epochs, or are stuck between tasks: what lives on is what it was."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from multiprocessing import Event
from pathlib import Path
from typing import Any

import pytest
from laws.observe import lists
from torch.utils.data import IterableDataset, get_worker_info
from zoo.datasets import CountedNumbers

from picklable_loader import DataLoader
from picklable_loader.errors import EmptyEpochWarning, RestartWarning

TRANSPORT = pytest.mark.parametrize("transport", ["arena", "portable"])


class Passes(IterableDataset[int]):
    """Gives with each sample how many passes were ended before. Stream 1 waits for a word."""

    def __init__(self, word: Any) -> None:
        self.word = word
        self.passes = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        if info.id == 0:
            yield self.passes
        else:
            yield from (self.passes, self.passes)
            self.word.wait()
            yield self.passes
        self.passes += 1

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes = state["passes"]


class StuckOnce:
    """The first worker to be started never gets past ``worker_init_fn``."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __call__(self, worker: int) -> None:
        try:
            self.flag.touch(exist_ok=False)
        except FileExistsError:
            return
        signal.pause()


def persistent(dataset: Any, workers: int = 2, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, num_workers=workers, persistent_workers=True, **options)


def kill(pid: int | None) -> None:
    """It is dead when this returns, and nobody has asked for its exit code."""
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def workers_of(iterator: Any) -> list[int | None]:
    return [worker.pid for worker in iterator.stats().workers]


@TRANSPORT
def test_workers_that_die_after_the_last_batch_leave_their_datasets_to_others(
    transport: Any,
) -> None:
    quiet = persistent(CountedNumbers(), batch_size=2, shuffle=True, seed=0)
    epochs = [lists(quiet) for _ in range(3)]
    loader = persistent(CountedNumbers(), batch_size=2, shuffle=True, seed=0, transport=transport)
    iterator = iter(loader)
    found = lists(next(iterator) for _ in range(6))
    for pid in workers_of(iterator):
        kill(pid)
    with pytest.warns(RestartWarning, match="it owed nothing"):
        assert next(iterator, None) is None
    assert [found, lists(loader), lists(loader)] == epochs


@TRANSPORT
def test_a_worker_that_dies_after_its_stream_has_ended_leaves_its_dataset_to_another_one(
    monkeypatch: pytest.MonkeyPatch, transport: Any
) -> None:
    said = Event()
    loader = persistent(Passes(said), batch_size=None, transport=transport)
    iterator = iter(loader)
    found = [next(iterator) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("always", RestartWarning)
        # The other stream ends only when the death was noticed.
        monkeypatch.setattr(warnings, "showwarning", lambda *_, **__: said.set())
        kill(workers_of(iterator)[0])
        found += iterator
    assert said.is_set()
    assert [found, list(loader), list(loader)] == [[0] * 4, [1] * 4, [2] * 4]


@pytest.mark.parametrize("options", [{}, {"at_epoch_end": "next"}], ids=["stop", "next"])
def test_a_state_from_an_epochs_very_end_holds_what_the_next_one_finds(options: Any) -> None:
    quiet = persistent(CountedNumbers(), batch_size=2, shuffle=True, seed=0)
    for _ in quiet:
        state = quiet.state_dict()
    loader = persistent(
        CountedNumbers(), workers=3, batch_size=2, shuffle=True, seed=0, num_streams=2
    )
    loader.load_state_dict(state, **options)
    if not options:
        with pytest.warns(EmptyEpochWarning):
            assert lists(loader) == []
    assert [lists(loader), lists(loader)] == [lists(quiet), lists(quiet)]


@TRANSPORT
@pytest.mark.parametrize("schedule", ["balanced", "round_robin"])
def test_a_worker_that_is_stuck_before_its_first_task_is_replaced(
    tmp_path: Path, transport: Any, schedule: Any
) -> None:
    stuck: dict[str, Any] = {"worker_init_fn": StuckOnce(tmp_path / "flag"), "timeout": 0.5}
    options: dict[str, Any] = {"on_timeout": "restart", "transport": transport}
    numbers: Any = range(6)
    loader = DataLoader(numbers, num_workers=1, schedule=schedule, **stuck, **options)
    with pytest.warns(RestartWarning, match="SIGKILL"):
        assert lists(loader) == [[number] for number in range(6)]
