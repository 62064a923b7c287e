"""Samplers, indices and datasets of every sort, and how datasets are asked for samples."""

from __future__ import annotations

import copy
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    Sampler,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from zoo.datasets import Numbers, as_they_are

from .datasets import Echo
from .identical import assert_identical
from .sides import OURS, TORCH, Make, assert_parity, outcome, rng_states


class Colour(enum.Enum):
    RED = 1


class StreamPosition(NamedTuple):
    row: int
    column: int


INDICES: dict[str, list[Any]] = {
    "small": [0, 1, -1, -(2**31), 255, 256],
    "huge": [2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**40, -(10**40)],
    "mixed sizes": [1, 2**70, 3],
    "truths": [True, False, True],
    "fractions": [0.5, float("inf"), -0.0],
    "text": ["a", "", "gr\u00fc\u00dfe", "caf\udce9", "x" * 5000],
    "bytes": [b"", b"\0\xff"],
    "tuples": [(0, 1), (2, (3, "x")), ()],
    "named tuples": [StreamPosition(1, 2), StreamPosition(3, 4)],
    "lists": [[0, 1], [], [[2]]],
    "dicts": [{"a": 1}, {}],
    "nothing": [None, None],
    "slices": [slice(0, 2), slice(None)],
    "ranges": [range(3), range(0)],
    "tensors": [torch.tensor(3), torch.tensor([1, 2])],
    "arrays": [np.int64(3), np.arange(2), np.str_("a")],
    "enums": [Colour.RED],
    "paths": [Path("a/b")],
    "complex": [1j],
    "sets": [frozenset({1})],
    "everything": [0, "a", None, (1, 2), 2**80, 1.5],
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES)
def test_an_index_of_any_kind_reaches_the_dataset_as_it_is(
    indices: list[Any], num_workers: int
) -> None:
    def observe(make: Make) -> Any:
        options: dict[str, Any] = {"collate_fn": as_they_are, "num_workers": num_workers}
        own = copy.deepcopy(indices)  # torch moves tensors that it sends into shared memory
        batched = make(Echo(), 2, sampler=own, **options)
        alone = make(Echo(), None, sampler=own, **options)
        listed = make(Echo(), batch_sampler=[own, own[:1]], **options)
        return list(batched), list(alone), list(listed)

    assert_parity(observe)


SAMPLERS: dict[str, Any] = {
    "range": range(7),
    "stepped range": range(8, 0, -3),
    "huge range": range(2**64, 2**64 + 5),
    "list": [4, 0, 4],
    "empty list": [],
    "tuple": (1, 2),
    "text": "abc",
    "dict": {"x": 1, "y": 2},
    "array": np.array([3, 1, 2]),
    "tensor": torch.tensor([3, 1, 2]),
    "bytes": b"\1\2",
    "lists": [[0, 1], [2]],
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_anything_that_can_be_iterated_is_a_sampler(sampler: Any, num_workers: int) -> None:
    def observe(make: Make) -> Any:
        options: dict[str, Any] = {"collate_fn": as_they_are, "num_workers": num_workers}
        own = copy.deepcopy(sampler)
        loaders = [
            make(Echo(), batch_size, sampler=own, drop_last=drop_last, **options)
            for batch_size, drop_last in ((2, False), (2, True), (None, False))
        ]
        return [(len(loader), list(loader), list(loader)) for loader in loaders]

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sampler_that_is_an_iterator_is_used_up_by_its_first_epoch(
    num_workers: int,
) -> None:
    def observe(make: Make) -> Any:
        loader = make(Numbers(9), 2, sampler=iter(range(5)), num_workers=num_workers)
        return list(loader), list(loader)

    assert_parity(observe)


class Asked(Dataset[Any]):
    """Says how it was asked for samples."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: Any) -> Any:
        return "one", type(index).__name__, index


class AskedForMany(Asked):
    def __getitems__(self, indices: Any) -> Any:
        return [("many", type(indices).__name__, index) for index in indices]


class ManySwitchedOff(Asked):
    __getitems__ = None


class ManyOnInstance(Asked):
    def __init__(self) -> None:
        self.__getitems__ = lambda indices: [("instance", index) for index in indices]


class ManyAsOne(Asked):
    """Returns what is not a list."""

    def __getitems__(self, indices: Any) -> Any:
        return torch.tensor(list(indices))


BATCHES: dict[str, Any] = {
    "lists": [[0, 1], [2]],
    "tuples": [(0, 1), (2,)],
    "tuple of lists": ([0, 1], [2]),
    "ranges": [range(3), range(4, 2, -1)],
    "arrays": [np.array([0, 1]), np.array([2])],
    "tensors": [torch.tensor([0, 1]), torch.tensor([2])],
    "sets": [{0, 1}, {2}],
    "dicts": [{0: "a", 1: "b"}],
    "text": ["ab", "c"],
    "empty": [[], [1], []],
    "none": [],
    "one list": [[0, 1, 2]],
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
def test_a_batch_sampler_may_be_any_iterable_of_iterables(batches: Any, num_workers: int) -> None:
    def observe(make: Make) -> Any:
        seen = []
        for dataset in (Asked(), AskedForMany()):
            own = copy.deepcopy(batches)
            loader = make(
                dataset, batch_sampler=own, collate_fn=as_they_are, num_workers=num_workers
            )
            seen.append((len(loader), list(loader), list(loader)))
        return seen

    assert_parity(observe)


def test_a_generator_of_indices_is_a_batch_too() -> None:
    def observe(make: Make) -> Any:
        batches = [(i for i in range(3)), (i for i in range(2))]
        return list(make(Asked(), batch_sampler=batches, collate_fn=as_they_are))

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("kind", [AskedForMany, ManySwitchedOff, ManyAsOne, ManyOnInstance])
def test_getitems_is_called_when_torch_calls_it(
    kind: type[Asked], batch_size: int | None, num_workers: int
) -> None:
    def observe(make: Make) -> Any:
        return list(make(kind(), batch_size, collate_fn=as_they_are, num_workers=num_workers))

    assert_parity(observe)


class Reusing(Sampler[list[int]]):
    """Fills the same list for every batch."""

    def __init__(self, clear: bool) -> None:
        self.clear = clear

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in range(10):
            batch.append(index)
            if len(batch) == 3:
                yield batch
                if self.clear:
                    batch.clear()
                else:
                    del batch[0]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("clear", [True, False])
def test_a_batch_sampler_may_fill_one_list_again_and_again(clear: bool, num_workers: int) -> None:
    expected = list(TORCH(Numbers(10), batch_sampler=Reusing(clear), collate_fn=list))
    found = OURS(
        Numbers(10),
        batch_sampler=Reusing(clear),
        collate_fn=list,
        num_workers=num_workers,
    )
    assert_identical(list(found), expected)


def test_a_consumer_that_changes_its_batch_changes_no_other() -> None:
    def observe(make: Make) -> Any:
        seen = []
        for batch in make(
            Numbers(7), batch_sampler=BatchSampler(range(7), 2, False), collate_fn=as_they_are
        ):
            seen.append(tuple(batch))
            batch.clear()
        return seen

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_whole_batches_can_be_read_at_once_as_torchs_documentation_does_it(
    num_workers: int,
) -> None:
    data = torch.arange(20).reshape(10, 2)

    def observe(make: Make) -> Any:
        sampler = BatchSampler(torch.utils.data.RandomSampler(data), 4, False)
        loader = make(data, sampler=sampler, batch_size=None, num_workers=num_workers)
        return list(loader), list(loader), rng_states()

    assert_parity(observe)


ROWS = torch.arange(12.0).reshape(6, 2)
DATASETS: dict[str, Any] = {
    "list": [3, 1, 2],
    "tuple": (3.5, 1.5),
    "text": "hello",
    "range": range(5),
    "tensor": ROWS,
    "array": ROWS.numpy(),
    "TensorDataset": TensorDataset(ROWS, ROWS[:, 0]),
    "Subset": Subset(Numbers(9), [5, 3, 1]),
    "Subset of many": Subset(TensorDataset(ROWS), [5, 3, 1]),
    "ConcatDataset": ConcatDataset([Numbers(2), Numbers(3)]),
    "StackDataset": StackDataset(a=Numbers(3), b=ROWS[:3]),
    "random_split": random_split(Numbers(7), [4, 3], torch.Generator().manual_seed(1))[0],
    "nested lists": [[1, 2], [3, 4]],
    "dicts": [{"x": 1.0, "y": "a"}, {"x": 2.0, "y": "b"}],
    "nothing": [],
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_a_dataset_may_be_anything_with_a_length_and_items(dataset: Any, num_workers: int) -> None:
    def observe(make: Make) -> Any:
        options = {"num_workers": num_workers}
        return list(make(dataset, 2, **options)), list(make(dataset, None, **options))

    assert_parity(observe)


def test_a_mapping_with_its_keys_as_sampler_is_a_dataset() -> None:
    table = {"x": 1, ("y", 2): 2}
    assert_parity(lambda make: [list(make(table, b, sampler=table)) for b in (1, 2, None)])


def test_a_dataset_that_says_it_has_fewer_samples_than_its_sampler_asks_for_is_asked_anyway() -> (
    None
):
    assert_parity(lambda make: list(make(Numbers(2), 2, sampler=[5, 6, 7], collate_fn=as_they_are)))


def test_a_dataset_that_ends_early_by_index_error_is_an_index_error() -> None:
    class Short(Dataset[int]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> int:
            return [0, 1, 2][index]

    assert_parity(lambda make: outcome(lambda: list(make(Short(), 2)))[0])


def test_large_requests_and_large_answers_pass_each_other() -> None:
    indices = [str(i) * 200_000 for i in range(9)]

    class Repeats(Dataset[str]):
        def __getitem__(self, index: str) -> str:
            return index * 10

    options: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 6}
    assert list(OURS(Repeats(), None, sampler=indices, **options)) == [i * 10 for i in indices]
