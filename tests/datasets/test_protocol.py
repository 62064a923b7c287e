"""Which objects have a state: those with torchdata's two methods, which need no other arguments."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from laws.observe import expected_warnings, lists
from torch.utils.data import IterableDataset

from picklable_loader import DataLoader
from picklable_loader.datasets.protocol import is_stateful


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
