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


def masking(seed: int | None) -> Any:
    """Hugging Face's collator that masks words, which makes a generator when it needs one."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip(
        "tokenizers"
    )
    words = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]", *(f"w{at}" for at in range(50))]
    numbers = {word: at for at, word in enumerate(words)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, "[UNK]")),
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "mask", "cls", "sep")},
    )
    return transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3, seed=seed)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [42, None])
def test_masked_words_are_those_of_the_uninterrupted_run(seed: int | None, workers: int) -> None:
    data = [{"input_ids": [5 + (index + at) % 50 for at in range(12)]} for index in range(40)]

    def loader() -> DataLoader[Any]:
        collate = masking(seed)
        return DataLoader(data, batch_size=4, num_workers=workers, collate_fn=collate, seed=1)

    def words(batches: Any) -> list[Any]:
        return [batch["input_ids"].tolist() for batch in batches]

    epochs = loader()
    whole = [words(epochs), words(epochs)]
    assert whole[0] != whole[1]
    interrupted = loader()
    iterator = iter(interrupted)
    begun = words(next(iterator) for _ in range(3))
    for door in ("state", "pickle"):
        if door == "state":
            again = loader()
            again.load_state_dict(interrupted.state_dict())
            rest = words(again)
        else:
            resumed = pickle.loads(pickle.dumps(iterator))
            rest, again = words(resumed), resumed.loader
        assert [begun + rest, words(again)] == whole, door
    iterator.close()
