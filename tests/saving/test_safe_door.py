"""The safe door: ``torch.load(weights_only=True)`` takes every state, and what goes on is the same.

The laws save with it at every step (`laws/codecs.py`). Here stands what they leave out: states of
the user's own that hold numpy's values and random states, each seeding, each kind of stream.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from laws.cases import ALL, Case
from laws.codecs import by_weights_only
from laws.observe import expected_warnings, seed_everything, seen
from torch.utils.data import Dataset, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler
from zoo.datasets import N, Noisy
from zoo.streams import KINDS, Kind

from picklable_loader import DataLoader, from_json, load, save, to_json

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


def through_json(state: Any) -> Any:
    return from_json(to_json(state))


DOORS = pytest.mark.parametrize("door", [by_weights_only, through_json])
Door = Callable[[Any], Any]


def goes_on(make: Callable[[], DataLoader[Any]], door: Door, steps: int) -> None:
    """A state taken there, and one taken between two epochs, go on as the run that they are of."""
    seed_everything(1)
    loader = make()
    iterator = iter(loader)
    assert len(seen(iterator, steps)) == steps
    state = door(iterator.state_dict())
    rest = seen(iterator)
    between = door(loader.state_dict())
    following = seen(iter(loader))
    for saved, expected in ((state, rest), (between, following)):
        seed_everything(99)
        again = make()
        with expected_warnings():
            again.load_state_dict(saved)
            assert seen(iter(again)) == expected


# --- the matrix ----------------------------------------------------------------------------------


@pytest.mark.inline
@pytest.mark.parametrize("case", [case for case in ALL if case.limit is None], ids=str)
def test_every_sampler_and_dataset(case: Case) -> None:
    for door in (by_weights_only, through_json):
        goes_on(case.make, door, 2)


@DOORS
@pytest.mark.parametrize("case", [case for case in ALL if case.same_workers], ids=str)
def test_every_case_whose_state_goes_on_under_as_many_workers(case: Case, door: Door) -> None:
    goes_on(lambda: case.make(2), door, 2)


#: a generator that is replayed in the main process draws other numbers by worker: docs/streams.md
CELLS = [
    (kind, seeding, num_workers)
    for kind in KINDS
    for seeding in ("batch", "sample", "worker")
    for num_workers in (0, 2)
    if kind.stateful or num_workers or seeding != "worker"
]


@DOORS
@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "seeding", "num_workers"), CELLS, ids=str)
def test_every_stream_under_every_seeding(
    kind: Kind, seeding: Any, num_workers: int, door: Door
) -> None:
    goes_on(
        lambda: DataLoader(
            kind.make(), batch_size=3, num_workers=num_workers, seeding=seeding, seed=5
        ),
        door,
        3,
    )


# --- states of the user's own --------------------------------------------------------------------


def numpy_state() -> dict[str, Any]:
    """What numpy's users put into a state."""
    return {
        "scalar": np.int64(3),
        "small": np.float16(0.5),
        "complex": np.complex64(1 + 2j),
        "flag": np.bool_(True),
        "text": np.str_("x"),
        "array": np.arange(6).reshape(2, 3),
        "unsigned": np.array([2**64 - 1], dtype=np.uint64),
        "texts": np.array(["a", "bc"]),
        "swapped": np.arange(3, dtype=">i4"),
        "days": np.array(["2026-01-01"], dtype="datetime64[D]"),
        "rng": np.random.default_rng(3).bit_generator.state,
        "twister": np.random.RandomState(3).get_state(),
        "philox": np.random.Philox(3).state,
        "python": random.Random(3).getstate(),
        "torch": torch.Generator().get_state(),
        "when": datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
        "bytes": b"\0\xff",
        ("a", 1): {1, 2},
    }


def assert_alike(one: Any, other: Any) -> None:
    """Equal, of the same type, to the last bit."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for each, like in zip(one, other, strict=True):
            assert_alike(each, like)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    else:
        assert one == other


class Held:
    """Has a state of numpy's values, and insists on getting it back."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {**numpy_state(), "at": np.int64(self.at)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"].item()
        assert_alike(state, self.state_dict())


class Walk(Held):
    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return self.at - 1


class IteratorHolds(Sampler[int]):
    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        return Walk()


class SamplerHolds(Held, Sampler[int]):
    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        while self.at < N:
            self.at += 1
            yield self.at - 1
        self.at = 0


class StreamHolds(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[Any]:
        return Walk()


class DataHolds(Held, Dataset[int]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        self.at += 1
        return index * 100 + self.at


HOLDING: dict[str, Callable[[], dict[str, Any]]] = {
    "the sampler's iterator": lambda: {"dataset": Noisy(), "sampler": IteratorHolds()},
    "the sampler": lambda: {"dataset": Noisy(), "sampler": SamplerHolds()},
    "a stream": lambda: {"dataset": StreamHolds(), "snapshot_every_n_steps": 1},
    "a map-style dataset": lambda: {"dataset": DataHolds(), "shuffle": True, "num_streams": 2},
}


@DOORS
@WORKERS
@pytest.mark.parametrize("who", HOLDING)
def test_numpys_values_and_random_states_in_a_state_come_back(
    who: str, num_workers: int, door: Door
) -> None:
    goes_on(
        lambda: DataLoader(**HOLDING[who](), batch_size=2, num_workers=num_workers, seed=1),
        door,
        2,
    )


@DOORS
def test_a_distributed_sampler_may_be_told_an_epoch_by_numpy(door: Door) -> None:
    def make() -> DataLoader[Any]:
        sampler: Any = DistributedSampler(range(2 * N), 2, 1, seed=np.int64(3))
        return DataLoader(Noisy(2 * N), batch_size=3, sampler=sampler)

    told = make()
    told.sampler.set_epoch(np.int64(4))
    state = door(told.state_dict())
    expected = seen(iter(told))
    loader = make()
    loader.load_state_dict(state)
    assert seen(iter(loader)) == expected
    goes_on(make, door, 2)


def test_a_state_in_a_file_of_ours_is_read_without_code(tmp_path: Any) -> None:
    loader = DataLoader(**HOLDING["the sampler"](), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    save(loader.state_dict(), tmp_path / "state")
    again = DataLoader(**HOLDING["the sampler"](), batch_size=2)
    again.load_state_dict(load(tmp_path / "state", weights_only=True))
    assert seen(iter(again)) == seen(iterator)


def test_what_only_pickle_can_hold_is_refused_by_the_safe_door_and_by_json() -> None:
    class Odd:
        pass

    with pytest.raises(TypeError, match=r"state\.fits\.odd.*Odd"):
        to_json({"fits": {"odd": Odd()}})
