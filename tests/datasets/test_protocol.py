"""Which objects have a state: those with torchdata's two methods, which need no other arguments."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from laws.observe import expected_warnings, lists
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Sampler, StackDataset, Subset
from zoo.datasets import Numbers as Squared
from zoo.datasets import Reads

from picklable_loader import DataLoader, ShuffleBuffer
from picklable_loader.datasets.protocol import is_stateful
from picklable_loader.errors import LoaderWarning


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(20)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("it was called")


class LikeLitData(Numbers):
    def state_dict(self, num_samples_yielded: int, num_workers: int, batch_size: int) -> Any:
        raise AssertionError("it was called")


class LikeMosaic(Numbers):
    def state_dict(self, num_samples: int, from_beginning: bool) -> Any:
        raise AssertionError("it was called")


class ByName(Numbers):
    def state_dict(self, *, epoch: int) -> Any:
        raise AssertionError("it was called")


class LoadsTwo(Numbers):
    def state_dict(self) -> Any:
        raise AssertionError("it was called")

    def load_state_dict(self, state: Any, strict: bool) -> None:  # type: ignore[override]
        raise AssertionError("it was called")


OTHERS = [LikeLitData, LikeMosaic, ByName, LoadsTwo]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", OTHERS)
def test_methods_that_need_arguments_are_not_called_and_a_replay_is_exact(
    kind: Any, workers: int
) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(kind(), 2, num_workers=workers, seed=1)

    iterator = iter(make())
    next(iterator)
    state, saved, rest = iterator.state_dict(), pickle.dumps(iterator), lists(iterator)
    resumed = make()
    resumed.load_state_dict(state)
    with expected_warnings():
        assert lists(resumed) == rest
        assert lists(pickle.loads(saved)) == rest


class Optional(Numbers):
    def state_dict(self, destination: Any = None, *, prefix: str = "", **more: Any) -> Any:
        return {}

    def load_state_dict(self, state: Any, strict: bool = True) -> None:
        pass


class InC:
    """Its methods are written in C, and have no signature."""

    state_dict = load_state_dict = dict


def test_arguments_that_may_be_missing_are_no_reason() -> None:
    assert is_stateful(Optional())
    assert is_stateful(InC())
    assert not is_stateful(Optional)


def _nothing() -> dict[str, Any]:
    return {}


def _to_nowhere(state: Any) -> None:
    pass


class InAttributes:
    def __init__(self) -> None:
        self.state_dict, self.load_state_dict = _nothing, partial(_to_nowhere)


class InProperties:
    state_dict = property(lambda self: _nothing)
    load_state_dict = property(lambda self: _to_nowhere)


class InSlots:
    __slots__ = ("load_state_dict", "state_dict")

    def __init__(self) -> None:
        self.state_dict, self.load_state_dict = _nothing, _to_nowhere


class Inherited(Optional):
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@pytest.mark.parametrize("kind", [InAttributes, InProperties, InSlots, Inherited])
def test_methods_count_wherever_the_object_itself_has_them(kind: Any) -> None:
    assert is_stateful(kind())


class Delegating:
    """Gives pairs of neighbours; all else is what the thing that it wraps says."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __iter__(self) -> Iterator[int]:
        before = next(iterator := iter(self.inner))
        for number in iterator:
            yield 100 * before + number
            before = number


class Counting:
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 20:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class CountingDataset(Counting, IterableDataset[int]):
    pass


class CountingSampler(Counting, Sampler[int]):
    pass


class DelegatingDataset(Delegating, IterableDataset[int]):
    def __init__(self) -> None:
        self.inner = CountingDataset()


class DelegatingSampler(Delegating, Sampler[int]):
    def __init__(self) -> None:
        self.inner = CountingSampler()


class Squares:
    """Map-style data without a state."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> int:
        return index


class DelegatingSquares(Squares):
    def __init__(self) -> None:
        self.inner = Counting()

    def __getattr__(self, name: str) -> Any:
        return Delegating.__getattr__(self, name)  # type: ignore[arg-type]


def of_dataset(**settings: Any) -> DataLoader[Any]:
    return DataLoader(DelegatingDataset(), 2, seed=1, **settings)


def of_wrapped_dataset(**settings: Any) -> DataLoader[Any]:
    return DataLoader(ShuffleBuffer(DelegatingDataset(), size=3), 2, seed=1, **settings)


def of_sampler(**settings: Any) -> DataLoader[Any]:
    sampler: Any = DelegatingSampler()
    return DataLoader(Squares(), 2, sampler=sampler, seed=1, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [of_dataset, of_wrapped_dataset, of_sampler])
def test_a_state_of_what_is_wrapped_alone_loses_nothing_of_the_wrapper(
    make: Any, workers: int
) -> None:
    for step in range(4):
        iterator = iter(make(num_workers=workers))
        for _ in range(step):
            next(iterator)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* only by its __getattr__")
            state, saved = iterator.state_dict(), pickle.dumps(iterator)
        rest, resumed = lists(iterator), make(num_workers=workers)
        resumed.load_state_dict(state)
        with expected_warnings():
            assert lists(resumed) == rest
            assert lists(pickle.loads(saved)) == rest


def of_map_style(**settings: Any) -> DataLoader[Any]:
    return DataLoader(DelegatingSquares(), 2, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [of_dataset, of_sampler, of_map_style])
@pytest.mark.parametrize("save", [pickle.dumps, lambda iterator: iterator.state_dict()])
def test_the_first_save_says_that_the_wrapper_has_no_state_of_its_own(make: Any, save: Any) -> None:
    iterator = iter(make())
    next(iterator)
    with pytest.warns(LoaderWarning, match=r"Delegating\w+ has state_dict .* only by its __getatt"):
        save(iterator)
    save(iterator)  # and the second is silent: each warning is an error here


class Counting(Reads, Squared):
    """Map-style, with a state."""


class Around(Dataset[int]):
    def __init__(self, inner: Any) -> None:
        self.parts = {"inner": inner}

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return self.parts["inner"][index]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "wrap",
    [lambda d: Subset(d, range(6)), lambda d: ConcatDataset([d]), StackDataset, Around],
    ids=["Subset", "ConcatDataset", "StackDataset", "a wrapper of the program's"],
)
def test_a_save_says_that_it_lacks_the_state_of_a_dataset_within_one_without_a_state(
    wrap: Any, workers: int
) -> None:
    iterator = iter(DataLoader(wrap(Counting(6)), 2, num_workers=workers))
    next(iterator)
    if not workers:
        pickle.dumps(iterator)  # it holds the dataset as it is
    with pytest.warns(
        LoaderWarning, match=r"not hold the state of loader\.dataset\.\S+ \(Counting"
    ):
        iterator.state_dict()
    iterator.state_dict()


class WithWeights(torch.nn.Module):
    """A dataset that computes its samples; its state is its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(300, 300)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


class WithAPosition(WithWeights):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {"at": 1}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_weights_of_a_dataset_are_no_position_and_are_not_in_its_state(
    num_workers: int,
) -> None:
    assert not is_stateful(WithWeights()) and is_stateful(WithAPosition())
    loader: Any = DataLoader(WithWeights(), 2, num_workers=num_workers)  # type: ignore[arg-type]
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    assert len(pickle.dumps(state)) < 10_000  # and not 360 kB
    again: Any = DataLoader(WithWeights(), 2)  # type: ignore[arg-type]
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in iterator]
