"""A sampler of one's own raises while batches are drawn ahead: a save knows it, or says so."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from typing import Any

import pytest
from laws.observe import lists

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning


class RaisesOnce:
    """A sampler whose iterator raises at its fifth index, and goes on."""

    def __init__(self, own_state: bool) -> None:
        self.own_state = own_state

    def __iter__(self) -> Any:
        return (CountsOn if self.own_state else Counts)()


class Counts:
    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        self.count += 1
        if self.count == 5:
            raise LookupError("no fifth index")
        if self.count > 9:
            raise StopIteration
        return self.count


class CountsOn(Counts):
    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("own_state", [False, True])
def test_an_error_of_the_sampler_that_is_yet_to_be_raised_is_in_a_save_or_named(
    own_state: bool, live: bool
) -> None:
    def make() -> DataLoader[Any]:
        options = {"seed": 0, "num_workers": 1, "prefetch_budget": 6}
        return DataLoader(range(10), sampler=RaisesOnce(own_state), **options)

    iterator = iter(make())
    assert lists([next(iterator)]) == [[1]]
    replayed = not (own_state or live)
    with nullcontext() if replayed else pytest.warns(LoaderWarning, match="raised LookupError"):
        saved = pickle.dumps(iterator) if live else iterator.state_dict()
    assert lists([next(iterator) for _ in range(3)]) == [[2], [3], [4]]
    with pytest.raises(LookupError):
        next(iterator)
    if not replayed:
        iterator.state_dict() if own_state else pickle.dumps(iterator)  # it is known to the program
    if live:
        again = pickle.loads(saved)
    else:
        loader = make()
        loader.load_state_dict(saved)
        again = iter(loader)
    assert lists([next(again) for _ in range(3)]) == [[2], [3], [4]]
    with pytest.raises(LookupError) if replayed else nullcontext():
        assert next(again).tolist() == [6]
