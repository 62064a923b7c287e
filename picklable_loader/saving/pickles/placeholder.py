"""Absent datasets: what stands in a loader that was saved without its dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from torch.utils.data import Dataset, IterableDataset

from ...errors import UsageError

__all__ = ["AbsentDataset", "AbsentIterable", "absent", "check_present", "is_absent", "name_of"]


#: methods of which it makes a difference that there are none
_PROTOCOL = ("state_dict", "load_state_dict", "set_epoch")


class _Absent:
    """What is known of a dataset that was not saved.

    Args:
        name: its class.
        length: how many samples it had; None if it had no length.
        fits: the loader's fingerprint.
    """

    def __init__(self, name: str, length: int | None, fits: dict[str, Any]) -> None:
        self.name = name
        self.length = length
        self.fits = fits

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError(f"the absent dataset {self.name} has no length")
        return self.length

    def __repr__(self) -> str:
        return f"<absent dataset: {self.name}, {self.length} samples>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in _PROTOCOL:
            raise AttributeError(name)
        return _Method(self, name)  # collate_fn may be a method of the dataset's

    def __deepcopy__(self, memo: dict[int, Any]) -> _Absent:
        return self  # functions are not copied, and may refer to it: it is replaced everywhere

    def missing(self) -> NoReturn:
        raise UsageError(
            f"this was saved without its dataset (pickle_dataset=False): call attach(dataset) with "
            f"the {self.name} first"
        )


class _Method:
    """A method of an absent dataset."""

    def __init__(self, owner: _Absent, name: str) -> None:
        self.owner, self.name = owner, name

    def __call__(self, *arguments: Any, **options: Any) -> NoReturn:
        self.owner.missing()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.owner, self.name)


class AbsentDataset(_Absent, Dataset[Any]):
    """In place of a map-style dataset."""

    def __getitem__(self, index: Any) -> NoReturn:
        self.missing()


class AbsentIterable(_Absent, IterableDataset[Any]):
    """In place of an iterable-style dataset."""

    def __iter__(self) -> Iterator[Any]:
        self.missing()


def absent(dataset: Any, fits: dict[str, Any]) -> Any:
    """What stands for a dataset, in a loader with that fingerprint."""
    if is_absent(dataset):
        return dataset
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError):
        length = None
    kind = AbsentIterable if isinstance(dataset, IterableDataset) else AbsentDataset
    return kind(type(dataset).__qualname__, length, fits)


def is_absent(dataset: Any) -> bool:
    """It only stands for a dataset."""
    return isinstance(dataset, _Absent)


def name_of(dataset: Any) -> str:
    """A dataset's class, or that of the one that is absent."""
    return f"an absent {dataset.name}" if is_absent(dataset) else type(dataset).__qualname__


def check_present(dataset: Any) -> None:
    """Raise UsageError if it only stands for a dataset."""
    if is_absent(dataset):
        dataset.missing()
