"""Streams that move between workers: what comes, and in which order, is the same."""

from __future__ import annotations

import itertools
import os
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from chaos.datasets import Counting, Pickled, Remembering, WithState
from laws.observe import lists
from torch.utils.data import IterableDataset, get_worker_info

from picklable_loader import DataLoader
from picklable_loader.core.placement import Placement

#: seconds that a sample of each stream takes: with two workers, both slow ones are the first's
COSTS_S = [0.004, 0.0, 0.004, 0.0]

#: rounds within which a stream moves, on however busy a machine
ROUNDS = 2000


def stream_here() -> int:
    info = get_worker_info()
    assert info is not None
    return info.id


class Walk:
    """Yields the stream, the number of the sample, a random number, and the process."""

    def __init__(self, length: int) -> None:
        self.length, self.at = length, 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> torch.Tensor:
        if self.at == self.length:
            raise StopIteration
        self.at += 1
        time.sleep(COSTS_S[stream_here()])
        noise = int(torch.randint(10**6, ()))
        return torch.tensor([stream_here(), self.at, noise, os.getpid()])


class StatefulWalk(Walk):
    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class ByPickle(IterableDataset[torch.Tensor]):
    def __init__(self, length: int = ROUNDS) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        return Walk(self.length)


class ByState(ByPickle):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return StatefulWalk(self.length)


class Generated(ByPickle):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from Walk(self.length)


def loader_of(dataset: Any, schedule: Any = "balanced", **options: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset, batch_size=1, num_workers=2, num_streams=4, schedule=schedule, seed=0, **options
    )


def samples(batches: Any) -> list[list[int]]:
    return [batch[0, :3].tolist() for batch in batches]


def until_one_moves(iterator: Any) -> list[Any]:
    """The batches up to that of a stream that another process has read before."""
    readers: dict[int, int] = {}
    batches = []
    for batch in iterator:
        batches.append(batch)
        stream, _, _, pid = batch[0].tolist()
        if readers.setdefault(stream, pid) != pid:
            return batches
    pytest.fail("no stream has moved")


@pytest.mark.parametrize("kind", [ByPickle, ByState])
def test_a_slow_stream_leaves_the_worker_that_has_another_one(kind: Any) -> None:
    with iter(loader_of(kind())) as iterator:
        batches = until_one_moves(iterator)
    assert batches[-1][0, 0] in (0, 2)
    with iter(loader_of(kind(), "round_robin")) as quiet:
        assert samples(batches) == samples(itertools.islice(quiet, len(batches)))


def test_what_is_saved_after_a_move_goes_on_under_any_number_of_workers() -> None:
    with iter(loader_of(ByState())) as iterator:
        until_one_moves(iterator)
        pickled, state = pickle.dumps(iterator), iterator.state_dict()
        expected = samples(itertools.islice(iterator, 10))
    with pickle.loads(pickled) as again:
        assert samples(itertools.islice(again, 10)) == expected
    for workers in (0, 1, 3):
        other = DataLoader(ByState(), batch_size=1, num_workers=workers, num_streams=4, seed=0)
        other.load_state_dict(state)
        with iter(other) as resumed:
            assert samples(itertools.islice(resumed, 10)) == expected


def check_numbers(worker: int, given: tuple[int, int]) -> None:
    info = get_worker_info()
    assert info is not None and given == (info.id, info.num_workers) == (worker, 4)


def test_a_stream_has_its_worker_init_fn_arg_after_a_move() -> None:
    options = {"worker_init_fn_arg": lambda start: (start.worker_id, start.num_workers)}
    loader = loader_of(ByState(), worker_init_fn=check_numbers, **options)
    with iter(loader) as iterator:
        until_one_moves(iterator)
        assert next(iterator) is not None


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("kind", [Remembering, Counting, Pickled, WithState])
def test_after_a_move_each_later_epoch_finds_the_dataset_where_it_was_left(
    kind: Any, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Persistent workers: a stream's first worker reads it again, and has an older copy."""
    moves, move = [], Placement.move

    def consider(placement: Placement) -> None:
        """Worker 1 gets all streams, whatever they cost."""
        wish = next((stream for stream in range(3) if placement.of(stream) == 0), None)
        placement._wish = None if wish is None else (wish, 1)

    def noted(placement: Placement, stream: int) -> None:
        moves.append(stream)
        move(placement, stream)

    def passes(schedule: str) -> list[Any]:
        options: dict[str, Any] = {"batch_size": 4, "num_streams": 3, "num_workers": 2, "seed": 1}
        options |= {"persistent_workers": True, "snapshot_every_n_steps": 1}
        loader = DataLoader(kind(192), schedule=schedule, **options)
        whole = [lists(loader), lists(loader)]
        left = lists(itertools.islice(loader, 25)) if leaves else []
        return [*whole, left, lists(loader), lists(loader)]

    monkeypatch.setattr(Placement, "_consider", consider)
    monkeypatch.setattr(Placement, "move", noted)
    expected = passes("round_robin")
    assert not moves and passes("balanced") == expected
    assert moves


@pytest.mark.parametrize("schedule", ["round_robin", None])
def test_streams_stay_unless_they_are_to_be_balanced(schedule: Any) -> None:
    readers = {tuple(b[0, [0, 3]].tolist()) for b in loader_of(ByState(60), schedule)}
    assert len(readers) == 4


def test_a_generator_stays_as_it_would_have_to_be_read_from_the_start() -> None:
    readers = {tuple(b[0, [0, 3]].tolist()) for b in loader_of(Generated(150))}
    assert len(readers) == 4


def test_more_workers_than_streams_change_nothing() -> None:
    loader = DataLoader(ByState(5), batch_size=2, num_workers=3, num_streams=2, schedule="balanced")
    assert [batch[0, 0].item() for batch in loader] == [0, 1] * 3
