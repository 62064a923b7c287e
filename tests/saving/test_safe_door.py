"""The safe door: ``torch.load(weights_only=True)`` and JSON give back every state as it was.

The laws save with both at every step (`laws/codecs.py`). Here is what they leave out: states of
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

from picklable_loader import DataLoader, from_json, to_json
from picklable_loader.testing.compare import difference


def through_both_doors(state: Any) -> Any:
    """What torch's safe reader gives back, which is the state, as what comes back from JSON is."""
    for passed in (from_json(to_json(state)), by_weights_only(state)):
        assert difference(state, passed, "state") is None
    return passed


def goes_on(make: Callable[[], DataLoader[Any]], steps: int) -> None:
    """A state taken there, and one taken between two epochs, go on as the run that they are of."""
    seed_everything(1)
    loader = make()
    iterator = iter(loader)
    assert len(seen(iterator, steps)) == steps
    state = through_both_doors(iterator.state_dict())
    rest = seen(iterator)
    between = through_both_doors(loader.state_dict())
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
    goes_on(case.make, 2)


@pytest.mark.parametrize("case", [case for case in ALL if case.same_workers], ids=str)
def test_every_case_whose_state_goes_on_under_as_many_workers(case: Case) -> None:
    goes_on(lambda: case.make(2), 2)


#: a generator that is replayed here draws other numbers by worker: docs/random_numbers.md
CELLS = [
    (kind, seeding, num_workers)
    for kind in KINDS
    for seeding in ("batch", "sample", "worker")
    for num_workers in (0, 2)
    if kind.stateful or num_workers or seeding != "worker"
]


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "seeding", "num_workers"), CELLS, ids=str)
def test_every_stream_under_every_seeding(kind: Kind, seeding: Any, num_workers: int) -> None:
    options = {"num_workers": num_workers, "seeding": seeding, "seed": 5}
    goes_on(lambda: DataLoader(kind.make(), batch_size=3, **options), 3)


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


class Held:
    """Has a state of numpy's values, and insists on getting it back."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {**numpy_state(), "at": np.int64(self.at)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"].item()
        assert difference(state, self.state_dict(), "state") is None


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


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("who", HOLDING)
def test_numpys_values_and_random_states_in_a_state_come_back(who: str, num_workers: int) -> None:
    goes_on(lambda: DataLoader(**HOLDING[who](), batch_size=2, num_workers=num_workers, seed=1), 2)


def test_a_distributed_sampler_may_be_told_an_epoch_by_numpy() -> None:
    def make() -> DataLoader[Any]:
        sampler: Any = DistributedSampler(range(2 * N), 2, 1, seed=np.int64(3))
        return DataLoader(Noisy(2 * N), batch_size=3, sampler=sampler)

    told = make()
    told.sampler.set_epoch(np.int64(4))
    state = through_both_doors(told.state_dict())
    expected = seen(iter(told))
    loader = make()
    loader.load_state_dict(state)
    assert seen(iter(loader)) == expected
    goes_on(make, 2)


def test_what_only_pickle_can_hold_is_refused_by_json() -> None:
    class Odd:
        pass

    with pytest.raises(TypeError, match=r"state\.fits\.odd.*Odd"):
        to_json({"fits": {"odd": Odd()}})
