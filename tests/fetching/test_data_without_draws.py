"""Batches of tensors, which torch's own code makes, are made without a seed: nobody draws."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import pytest
import torch
from laws.observe import lists, random_states, seed_everything
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset, TensorDataset, default_collate, default_convert
from torch.utils.data._utils.collate import default_collate_fn_map
from zoo.datasets import Noisy, noisy_collate

from picklable_loader import DataLoader
from picklable_loader.fetching.worker import seeding

NUMBERS = torch.arange(12.0)
PAIRS = TensorDataset(NUMBERS, NUMBERS + 100)


class Augmented(TensorDataset):
    """A class of the user's, which may draw."""


class Special(torch.Tensor):
    """A class of the user's, which may draw."""


def with_an_attribute() -> TensorDataset:
    dataset: Any = TensorDataset(NUMBERS)
    dataset.__getitems__ = lambda indices: list(torch.rand(len(indices)))
    return dataset  # type: ignore[no-any-return]


def seeded(monkeypatch: pytest.MonkeyPatch, dataset: Any, **options: Any) -> list[int]:
    """The seeds of the epoch's batches, if there are any."""
    seeds: list[int] = []
    seed_all = seeding.seed_all
    with monkeypatch.context() as patch:
        patch.setattr(seeding, "seed_all", lambda seed: (seeds.append(seed), seed_all(seed)))
        list(DataLoader(dataset, **{"batch_size": 3, **options}))
    return seeds


@pytest.mark.parametrize(
    "dataset",
    [range(12), NUMBERS, PAIRS, Subset(PAIRS, range(6)), Subset(Subset(PAIRS, [1, 2]), [0])],
    ids=["range", "tensor", "pairs", "subset", "subset of a subset"],
)
@pytest.mark.parametrize("seeding", ["batch", "sample"])
def test_tensors_and_numbers_need_no_seed(
    dataset: Any, seeding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not seeded(monkeypatch, dataset, seeding=seeding)
    assert not seeded(monkeypatch, dataset, seeding=seeding, batch_size=None)


MAY_DRAW: dict[str, tuple[Any, dict[str, Any]]] = {
    "a class of the user's": (Noisy(12), {}),
    "derived from TensorDataset": (Augmented(NUMBERS), {}),
    "derived from Tensor": (NUMBERS.as_subclass(Special), {}),
    "made of such": (TensorDataset(NUMBERS.as_subclass(Special)), {}),
    "with an attribute": (with_an_attribute(), {}),
    "a part of such": (Subset(Noisy(12), range(6)), {}),
    "other indices": (Subset(PAIRS, NUMBERS.long().numpy()), {}),
    "a list": ([1.0, 2.0], {}),
    "a collate_fn": (NUMBERS, {"collate_fn": noisy_collate}),
    "a partial": (PAIRS, {"collate_fn": partial(default_collate)}),
    "an initial function": (PAIRS, {"worker_init_fn": print}),
    "a hook": (PAIRS, {"seed_hooks": [lambda seed: None]}),
}


@pytest.mark.parametrize("case", MAY_DRAW)
def test_what_may_draw_has_a_seed_for_each_batch(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, options = MAY_DRAW[case]
    seeds = seeded(monkeypatch, dataset, **options)
    assert len(set(seeds)) == len(seeds) == -(-len(dataset) // 3)


def test_a_function_in_torchs_table_may_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, lambda batch, **_: torch.rand(3))
    assert seeded(monkeypatch, PAIRS)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collate_fn", [default_collate, default_convert])
def test_batches_are_torchs_and_no_generator_moves(num_workers: int, collate_fn: Any) -> None:
    seed_everything(3)
    expected = lists(TorchDataLoader(PAIRS, 5, shuffle=True, collate_fn=collate_fn))
    after = random_states()
    seed_everything(3)
    options: dict[str, Any] = {"num_workers": num_workers, "collate_fn": collate_fn}
    assert lists(DataLoader(PAIRS, 5, shuffle=True, **options)) == expected
    assert random_states() == after


def test_a_save_while_such_a_batch_is_made_has_the_position_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a signal handler may save at any moment of a batch."""
    iterator = iter(DataLoader(PAIRS, 2, shuffle=True, seed=5))
    next(iterator)
    rest = lists(pickle.loads(pickle.dumps(iterator)))
    saved: list[bytes] = []
    stack = torch.stack

    def saving(*arguments: Any, **more: Any) -> torch.Tensor:
        if not saved:
            saved.append(pickle.dumps(iterator))
        return stack(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "stack", saving)
        assert lists(iterator) == rest
    assert lists(pickle.loads(saved[0])) == rest
