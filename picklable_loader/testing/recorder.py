"""A loader whose batches say which indices they were made of, for `verify_resume`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset

from ..datasets.protocol import has_set_epoch, set_epoch_of
from ..fetching.worker.fetch import bulk_of
from ..loader.loader import DataLoader

#: indices and content of each batch of an epoch; the indices are None for iterable-style data
Trace = list[tuple[Any, Any]]


class _Recorded:
    """A dataset whose samples say which index they were asked by; else it is as it was."""

    def __init__(self, dataset: Any, per_sample: bool) -> None:
        self._dataset = dataset
        if bulk_of(dataset, per_sample):
            self.__getitems__ = self._bulk

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        return index, self._dataset[index]

    # A wrapper has a state only where its class says so. This one holds nothing of its own.
    @property
    def state_dict(self) -> Any:
        return self._dataset.state_dict

    @property
    def load_state_dict(self) -> Any:
        return self._dataset.load_state_dict

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        if name == "set_epoch" and has_set_epoch(self._dataset):
            return partial(set_epoch_of, self._dataset)
        return getattr(self._dataset, name)

    # People's code sets attributes of its dataset: a worker_init_fn, a seed_dataset.
    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_dataset", "__getitems__"):
            super().__setattr__(name, value)
        else:
            setattr(self._dataset, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._dataset, name)

    def _bulk(self, indices: Any) -> list[tuple[Any, Any]]:
        return list(zip(indices, self._dataset.__getitems__(indices)))


class _Instead:
    """An ``on_error`` whose samples say which index they replace."""

    def __init__(self, on_error: Callable[[Exception, Any], Any]) -> None:
        self._on_error = on_error

    def __call__(self, error: Exception, index: Any) -> tuple[Any, Any] | None:
        another = self._on_error(error, index)
        return None if another is None else (index, another)


class _Within:
    """A ``convert`` or ``device_convert`` that is given batches without their indices."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self._convert = convert

    def __call__(self, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        return pair[0], self._convert(pair[1])


class _Collate:
    """Collates samples into a batch, and gives it with their indices."""

    def __init__(self, collate_fn: Callable[[Any], Any], batched: bool) -> None:
        self._collate_fn = collate_fn
        self._batched = batched

    def __call__(self, samples: Any) -> tuple[Any, Any]:
        if not self._batched:
            return samples[0], self._collate_fn(samples[1])
        indices = [index for index, _ in samples]
        return indices, self._collate_fn([sample for _, sample in samples])


def recorded(loader: Any) -> DataLoader[Any]:
    """Have a loader's batches say what they are made of, and come in order."""
    if not isinstance(loader, DataLoader):
        kind = f"{type(loader).__module__}.{type(loader).__qualname__}"
        raise TypeError(f"make_loader should return a picklable_loader.DataLoader, got a {kind}")
    loader.in_order = True  # or timing would decide which batch comes first
    if not isinstance(loader.dataset, IterableDataset):
        # Torch's loader refuses a dataset that is set later; a sampler keeps the original one.
        per_sample = loader._pl.options.seeding == "sample"
        loader.__dict__["dataset"] = _Recorded(loader.dataset, per_sample)
        loader.collate_fn = _Collate(loader.collate_fn, loader.batch_sampler is not None)
        options = loader._pl.options
        if callable(options.on_error):
            options = replace(options, on_error=_Instead(options.on_error))
        if options.convert is not None:
            options = replace(options, convert=_Within(options.convert))
        if options.device_convert is not None:
            options = replace(options, device_convert=_Within(options.device_convert))
        loader._pl.options = replace(options, with_state=False)
    return loader


def trace(loader: DataLoader[Any], batches: Iterable[Any], most: int) -> Trace:
    """The next batches that a loader has made, at most so many."""
    some = islice(batches, most)
    return [
        (None, batch) if isinstance(loader.dataset, IterableDataset) else batch for batch in some
    ]
