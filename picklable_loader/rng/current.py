"""The seed that a batch, or a sample, is being fetched with: ``current_seed()``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any, TypeVar

from ..core.seeds import repeated_seed
from ..errors import UsageError

_T = TypeVar("_T")


class _Here(threading.local):
    """The seed that this thread fetches with, and those of the samples of a whole batch."""

    #: the seed, and whether it is of one batch or sample; otherwise it is the worker's
    now: tuple[int | None, bool] = None, False
    samples: Callable[[], list[int]] | None = None
    #: how many calls were given seeds since `now` was set
    calls = 0


_here = _Here()


#: the one set last, for threads that a dataset has started
_latest: tuple[int | None, bool] = None, False
_asked = 0


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
    seed, _ = _known()
    if seed is None:
        raise UsageError("current_seed() is known only while a batch is being fetched")
    return seed


current_seed.__module__ = "picklable_loader"  # pickles hold this name


def asked() -> int:
    """How often people's code of this process has asked for a seed."""
    return _asked


def _known() -> tuple[int | None, bool]:
    """The current seed, and whether it is of one batch or sample; counts that it was asked for."""
    global _asked
    _asked += 1
    return _here.now if fetching() else _latest


def call_seed() -> int | None:
    """`current_seed` for one call of a dataset: calls that one batch makes have different ones.

    Returns:
        The seed; None where none is a batch's. With ``seeding="worker"`` a count of calls would go
        on over the epoch, and is in no state; torch's generator, which is, has to be drawn from.
    """
    (seed, of_batch), number = _known(), _here.calls
    if seed is None or not of_batch:
        return None
    if not fetching():  # a thread that a dataset has started: nobody says when a batch begins
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
    return _here.now[0] is not None


def set_current(seed: int | None, of_batch: bool = False) -> None:
    """Make it the current seed; with ``of_batch``, that of one batch or sample."""
    global _latest
    _here.now = _latest = seed, of_batch
    _here.calls = 0


class current:
    """Within it that is the current seed, until another one is set; afterwards, the one before.

    ``__exit__`` may be called before ``__enter__``, and again.
    """

    __slots__ = ("_before", "_seed")

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._before = _here.now, _here.calls

    def __enter__(self) -> None:
        global _latest
        _here.now = _latest = self._seed, False
        _here.calls = 0

    def __exit__(self, *error: object) -> None:
        global _latest
        (_here.now, _here.calls), _latest = self._before, self._before[0]


def run_apart(
    isolation: AbstractContextManager[Any],
    seed: int | None,
    act: Callable[..., _T],
    *arguments: Any,
) -> _T:
    """Call people's code, which leaves no trace in this process.

    Args:
        isolation: a context like `Isolated`, which may be left twice.
        seed: the current seed within it.
        act, arguments: the call.
    """
    here = current(seed)
    try:
        with isolation, here:
            return act(*arguments)
    except BaseException:
        # Once more: a signal may have come within one of their methods.
        here.__exit__()
        isolation.__exit__(None, None, None)
        raise
