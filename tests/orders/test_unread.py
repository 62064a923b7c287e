"""A sampler whose ``__init__`` makes the generator that it reads, as mmengine's InfiniteSampler."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler

from picklable_loader import DataLoader
from picklable_loader.errors import CannotSaveError, OrderMismatch, UsageError

N = 10


class Infinite(Sampler[int]):
    """Permutations without end; `indices` goes on where it was."""

    def __init__(self, seed: int = 3) -> None:
        self.seed = seed
        self.indices = self.permutations()

    def permutations(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            yield from torch.randperm(N, generator=generator).tolist()

    def __iter__(self) -> Iterator[int]:
        yield from self.indices

    def __len__(self) -> int:
        return N


class Anew(Infinite):
    """It never reads the generator that its base has made."""

    def __iter__(self) -> Iterator[int]:
        yield from self.permutations()


def make(sampler: Any = None, **options: Any) -> Any:
    sampler = Infinite() if sampler is None else sampler
    return DataLoader(range(N), batch_size=4, sampler=sampler, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"seed": 1}], ids=str)
@pytest.mark.parametrize("kind", [Infinite, Anew])
def test_the_first_pass_is_replayed_on_the_generator_of_a_new_sampler(
    kind: type[Infinite], options: Any, workers: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        it = iter(make(kind(), num_workers=workers, **options))
        for _ in range(7):
            next(it)
        again = make(kind(), **options)
        again.load_state_dict(it.state_dict())
        for _, batch in zip(range(5), again):
            assert torch.equal(batch, next(it))
        it.close()


def test_another_generator_is_noticed_by_its_indices() -> None:
    it = iter(make())
    next(it)
    other = make(Infinite(4))
    other.load_state_dict(it.state_dict())
    with pytest.raises(OrderMismatch, match="numbers that its __init__ has drawn"):
        iter(other)


def test_a_later_pass_is_refused_as_it_goes_on_in_the_generator() -> None:
    loader = make()
    first = iter(loader)
    next(first)
    it = iter(loader)
    next(it)
    with pytest.raises(CannotSaveError, match="indices is an iterator"):
        it.state_dict()


def test_a_sampler_that_has_been_read_here_takes_no_state() -> None:
    loader = make()
    it = iter(loader)
    next(it)
    state = it.state_dict()
    with pytest.raises(UsageError, match="indices is a generator that was read since"):
        loader.load_state_dict(state)
    with pytest.raises(CannotSaveError, match="indices"):
        pickle.dumps(it)
