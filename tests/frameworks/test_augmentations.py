"""Transforms of albumentations and monai, which own their generators: each run and resume alike."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from picklable_loader import DataLoader


class Images(Dataset[Any]):
    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index, np.asarray(self.transform(index))


class Albumentations:
    def __init__(self, seed: int | None) -> None:
        module = pytest.importorskip("albumentations")
        flip, noise = module.HorizontalFlip(), module.GaussNoise(p=1)
        self.pipeline = module.Compose([flip, module.RandomBrightnessContrast(), noise], seed=seed)

    def __call__(self, index: int) -> Any:
        image = np.arange(192, dtype=np.uint8).reshape(8, 8, 3) + np.uint8(index)
        return self.pipeline(image=image)["image"]


class Monai:
    def __init__(self, seed: int | None) -> None:
        module = pytest.importorskip("monai.transforms")
        noise = module.RandGaussianNoise(prob=1)
        self.pipeline = module.Compose([module.RandFlip(prob=0.5), noise])
        self.pipeline.set_random_state(seed)

    def __call__(self, index: int) -> Any:
        return self.pipeline(torch.arange(64.0).reshape(1, 8, 8) + index)


def lists(batches: Any) -> list[Any]:
    return [[each.tolist() for each in batch] for batch in batches]


@pytest.mark.parametrize("seed", [None, 137])
@pytest.mark.parametrize("kind", [Albumentations, Monai])
def test_their_augmentation_is_exact(kind: Any, seed: int | None) -> None:
    def make(workers: int, **options: Any) -> DataLoader[Any]:
        options = {"batch_size": 2, "num_workers": workers, "shuffle": True, **options}
        return DataLoader(Images(kind(seed)), seed=1, **options)

    loader = make(0)
    whole = [lists(loader) for _ in range(2)]
    assert whole[0] != whole[1]
    loader = make(2)
    assert lists(loader) == whole[0]
    iterator = iter(loader)
    next(iterator)
    state, pickled = iterator.state_dict(), pickle.dumps(iterator)
    resumed = make(0)
    resumed.load_state_dict(state)
    assert lists(resumed) == lists(iterator) == lists(pickle.loads(pickled)) == whole[1][1:]
