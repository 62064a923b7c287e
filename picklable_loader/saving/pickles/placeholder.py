"""Placeholders for the datasets of loaders that were saved without them."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from .opened import AbsentDataset, AbsentIterable


def absent(dataset: Any, fits: dict[str, Any]) -> Any:
    """The placeholder for a dataset, in a loader with that fingerprint."""
    if is_absent(dataset):
        return dataset
    try:
        length = len(dataset)
    except (TypeError, ValueError, NotImplementedError):
        length = None
    kind = AbsentIterable if isinstance(dataset, IterableDataset) else AbsentDataset
    return kind(type(dataset).__qualname__, length, fits)


def is_absent(dataset: Any) -> bool:
    """Whether it is only a placeholder for a dataset."""
    return isinstance(dataset, AbsentDataset | AbsentIterable)


def name_of(dataset: Any) -> str:
    """A dataset's class, or that of the one that is absent."""
    return f"an absent {dataset.name}" if is_absent(dataset) else type(dataset).__qualname__


def check_present(dataset: Any) -> None:
    """Raise UsageError if it is only a placeholder for a dataset."""
    if is_absent(dataset):
        dataset.missing()
