"""The seed that a batch, or a sample, is being fetched with: ``current_seed()``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from ..core.seeds import repeated_seed
from ..errors import UsageError


class _Here(threading.local):
    """The seed that this thread fetches with, and those of the samples of a whole batch."""

    seed: int | None = None
    samples: Callable[[], list[int]] | None = None
    #: how many calls were given seeds since `seed` was set
    calls = 0


_here = _Here()


#: the one set last, for threads that a dataset has started
_latest: int | None = None


def current_seed() -> int:
    """The seed of the batch (or sample) that is being fetched, for generators of your own.

    Python's, numpy's and torch's global generators are seeded from it already. Call this in a
    dataset or a ``collate_fn`` to seed any other one: a ``numpy.random.Generator``, a library with
    a generator of its own, CUDA.

    Returns:
        An int from 0 to 2**62 - 1 that depends on the loader's seed, the epoch and the step
        (``seeding="batch"``), or on the sample's position in the order (``"sample"``); with
        ``seeding="worker"`` the worker's seed, the same for all its batches.

    Raises:
        UsageError: no batch is being fetched here.
    """
    seed = _latest if _here.seed is None else _here.seed
    if seed is None:
        raise UsageError("current_seed() is known only while a batch is being fetched")
    return seed


def call_seed() -> int:
    """`current_seed` for one call of a dataset: calls that one batch makes have different ones."""
    seed, number = current_seed(), _here.calls
    if _here.seed is None:  # a thread that a dataset has started: nobody says when a batch begins
        return seed
    _here.calls += 1
    return seed if number == 0 else repeated_seed(seed, number)


def sample_seeds() -> list[int] | None:
    """With ``seeding="sample"``, within ``__getitems__``: the seed of each of its samples.

    A wrapper may ask two datasets, or one twice: they are different in each call.
    """
    return None if _here.samples is None else _here.samples()


@contextmanager
def with_sample_seeds(seeds: Callable[[], list[int]]) -> Iterator[None]:
    """Within it, `sample_seeds` returns what ``seeds()`` does, and then others made of these."""
    calls = count()

    def of_next_call() -> list[int]:
        number, first = next(calls), seeds()
        return [repeated_seed(seed, number) for seed in first] if number else first

    _here.samples = of_next_call
    try:
        yield
    finally:
        _here.samples = None


def fetching() -> bool:
    """This thread runs people's code for a batch of some loader."""
    return _here.seed is not None


def set_current(seed: int | None) -> int | None:
    """Make it the current seed; return the one before."""
    global _latest
    before, _here.seed, _latest = _here.seed, seed, seed
    _here.calls = 0
    return before
