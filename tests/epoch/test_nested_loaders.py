"""A loader within a dataset draws from the generators at hand, as they were seeded for the batch.

The generators of the program are another matter: a state holds them whoever makes a batch.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from laws.observe import seed_everything
from torch.utils.data import Dataset, IterableDataset, Sampler, WeightedRandomSampler

from picklable_loader import DataLoader

N = 12


class Jumps(Sampler[int]):
    """Draws from torch's global generator at every index."""

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        return (int(torch.randint(N, ())) for _ in range(N))


def shuffled() -> dict[str, Any]:
    return {"shuffle": True}


def weighted() -> dict[str, Any]:
    return {"sampler": WeightedRandomSampler([1.0] * N, N)}


def jumping() -> dict[str, Any]:
    return {"sampler": Jumps()}


class Walk:
    """Goes through the inner loader, and has no state of its own."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        return next(self.inner)


class SavedByPickle(IterableDataset[Any]):
    def __init__(self, inner: DataLoader[Any]) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return Walk(iter(self.inner))


class SavedByState(SavedByPickle):
    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


class OneEach(Dataset[Any]):
    """Each sample has the next batch of the inner loader, which begins anew as often as needed."""

    def __init__(self, inner: DataLoader[Any]) -> None:
        self.inner = inner
        self.position: Any = None

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, Any]:
        batch = None if self.position is None else next(self.position, None)
        if batch is None:
            self.position = iter(self.inner)
            batch = next(self.position)
        return index, batch

    def state_dict(self) -> Any:
        return None if self.position is None else self.position.state_dict()

    def load_state_dict(self, state: Any) -> None:
        if state is not None:
            self.inner.load_state_dict(state)
            self.position = iter(self.inner)


def make(kind: Any, inner: Callable[[], dict[str, Any]], **more: Any) -> DataLoader[Any]:
    nested = DataLoader(range(N), batch_size=2, **inner())
    return DataLoader(
        kind(nested), 2, collate_fn=repr, persistent_workers=bool(more["num_workers"]), **more
    )


@pytest.mark.parametrize("by_pickle", [False, True], ids=["state", "pickle"])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("inner", [shuffled, weighted, jumping])
@pytest.mark.parametrize("kind", [SavedByPickle, SavedByState, OneEach])
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.filterwarnings("ignore:the dataset SavedByPickle has no state")
def test_later_epochs_of_a_loader_within_a_dataset_are_those_of_an_uninterrupted_run(
    kind: Any, inner: Any, num_workers: int, step: int, by_pickle: bool
) -> None:
    """It went on in a private copy of the generators of the moment at which it was saved."""
    loader = make(kind, inner, num_workers=num_workers, seed=3)
    iterator = iter(loader)
    for _ in range(step):
        next(iterator)
    saved = pickle.dumps(iterator) if by_pickle else iterator.state_dict()
    expected = [[*iterator], [*loader], [*loader]]

    seed_everything(99)
    if by_pickle:
        again = pickle.loads(saved)
        loader = again.loader
    else:
        loader = make(kind, inner, num_workers=num_workers, seed=3)
        loader.load_state_dict(saved)
        again = iter(loader)
    assert [[*again], [*loader], [*loader]] == expected


class SavesAnother(Dataset[int]):
    """Saves a loader of the program while it makes a sample."""

    def __init__(self, other: DataLoader[Any]) -> None:
        self.other = other
        self.state: Any = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.state = self.state or self.other.state_dict()
        return index


def test_a_state_that_is_saved_in_a_batch_of_another_loader_holds_the_programs_generators() -> None:
    """It held those of the batch, which the other loader has seeded."""
    other = DataLoader(range(N), batch_size=3, shuffle=True)
    iterator, saving = iter(other), SavesAnother(other)
    next(iterator)
    beside = iter(DataLoader(saving))
    next(beside)
    expected = [[batch.tolist() for batch in batches] for batches in (iterator, other)]

    seed_everything(99)
    loader = DataLoader(range(N), batch_size=3, shuffle=True)
    loader.load_state_dict(saving.state)
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == expected
