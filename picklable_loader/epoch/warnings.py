"""Warnings about what a pass does, with the way out in each."""

from __future__ import annotations

import warnings

from ..errors import EmptyEpochWarning, LoaderWarning, ReplayWarning, SkippedWarning, stack_level
from ..fetching.engine.stats import SkippedSample

__all__ = [
    "dropped_state",
    "empty_epoch",
    "longer_than_promised",
    "replay",
    "skipped",
]


def empty_epoch(epoch: int) -> None:
    """The state was taken after an epoch's last batch, and before StopIteration."""
    warnings.warn(
        f"the state was taken after the last batch of epoch {epoch}: this pass delivers nothing. "
        'Pass at_epoch_end="next" to load_state_dict or DataLoader to go straight on with epoch '
        f"{epoch + 1}.",
        EmptyEpochWarning,
        stacklevel=stack_level(),
    )


def replay(count: int, epoch: int, dataset: str) -> None:
    """Batches of iterable-style data have to be fetched again."""
    warnings.warn(
        f"the dataset {dataset} has no state, and is resumed by replay: {count} batches of epoch "
        f"{epoch} are fetched again and dropped. Give the dataset, or its iterator, state_dict and "
        "load_state_dict, and it goes on at once",
        ReplayWarning,
        stacklevel=stack_level(),
    )


def skipped(sample: SkippedSample) -> None:
    """The first bad sample of an epoch."""
    warnings.warn(
        f"skipped, as on_error says: {sample}. This is told once an epoch; stats() of the iterator "
        "counts all that are skipped",
        SkippedWarning,
        stacklevel=stack_level(),
    )


def longer_than_promised(dataset: object, promised: int, fetched: int, workers: int) -> None:
    """An iterable-style dataset gives more than its ``len`` has said, as in torch."""
    text = (
        f"Length of IterableDataset {dataset} was reported to be {promised}"
        f"(when accessing len(dataloader)), but {fetched} samples have been fetched. "
    )
    if workers > 0:
        text += (
            "With several workers this may come from every worker reading the whole dataset: "
            "shard it by torch.utils.data.get_worker_info(), as "
            "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset shows."
        )
    warnings.warn(text, stacklevel=stack_level())


def dropped_state(epoch: int, loaded: int) -> None:
    """``set_epoch`` went back behind a loaded state."""
    warnings.warn(
        f"set_epoch({epoch}) drops the loaded state of epoch {loaded}",
        LoaderWarning,
        stacklevel=stack_level(),
    )
