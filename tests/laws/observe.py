"""What can be seen of a pass, as plain values that compare to the last bit."""

from __future__ import annotations

import pickle
import random
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from zoo.datasets import Boom

from picklable_loader import DataLoader
from picklable_loader.errors import EmptyEpochWarning, ReplayWarning

from .cases import Case


def seen_next(iterator: Iterator[Any]) -> Any:
    """The next batch as plain values, or the exception's name in its place."""
    try:
        return plain(next(iterator))
    except Boom:
        return "boom"


def seen(iterator: Iterator[Any], limit: int | None = None) -> list[Any]:
    """All that is left of a pass, or the next ``limit`` batches of it."""
    batches: list[Any] = []
    try:
        while limit is None or len(batches) < limit:
            batches.append(seen_next(iterator))
    except StopIteration:
        pass
    return batches


def plain(batch: Any) -> Any:
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return batch.tolist()
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    return [plain(item) for item in batch] if isinstance(batch, (list, tuple)) else batch


def lists(batches: Iterable[Any]) -> list[Any]:
    """All batches as plain values; what they raise is raised."""
    return list(map(plain, batches))


#: how an iterator is saved
DOORS = {"pickle": pickle.dumps, "state": lambda iterator: iterator.state_dict()}


def saved_at_every_step(iterator: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """All batches, and what each door gives before each one and after the last."""
    batches, saves = [], []
    while True:
        saves.append({name: door(iterator) for name, door in DOORS.items()})
        try:
            batches.append(seen_next(iterator))
        except StopIteration:
            return batches, saves


def go_on(save: Any, loader: DataLoader[Any]) -> Any:
    """The iterator that goes on from what a door gave, with as many workers as a loader has."""
    if not isinstance(save, bytes):
        loader.load_state_dict(save)
        return iter(loader)
    iterator = pickle.loads(save)
    iterator.loader.num_workers = loader.num_workers
    iterator.loader.prefetch_factor = loader.prefetch_factor
    return iterator


def epochs(case: Case, loader: DataLoader[Any], count: int) -> list[list[Any]]:
    """The next epochs, one after the other."""
    return [seen(iter(loader), case.limit) for _ in range(count)]


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed notes the stack


def random_states() -> tuple[Any, ...]:
    """Where the three global generators stand, their spare Gaussians included."""
    name, words, *rest = np.random.get_state()
    return (
        torch.get_rng_state().numpy().tobytes(),
        (name, np.asarray(words).tobytes(), *rest),
        random.getstate(),
    )


@contextmanager
def expected_warnings() -> Iterator[None]:
    """Passes over the warnings that a resume may give; every other one is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmptyEpochWarning)
        warnings.simplefilter("ignore", ReplayWarning)
        yield


def assert_a_copy_may_be_left_unmoved(loader: DataLoader[Any], taken: int, lives: bool) -> None:
    """The epochs after a pass that was pickled after ``taken`` batches, and is left there.

    ``lives``: the copy is still there when the next epoch begins.
    """
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    copied = pickle.loads(pickle.dumps(iterator))
    other = copied.loader
    if not lives:
        del copied
    assert [lists(other), lists(other)] == [lists(loader), lists(loader)]
