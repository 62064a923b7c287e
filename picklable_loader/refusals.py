"""Refusals: what is told of calls and values that have no meaning, with the way out in each."""

from __future__ import annotations

from .errors import UsageError
from .transport.arena import ArenaFull
from .worker.gather import Bad

__all__ = ["forked", "no_batch", "no_budget", "unsent"]


def forked() -> UsageError:
    """Of workers that are another process's."""
    return UsageError(
        "this process is a fork of the one that has this iterator's workers. Call next again: the "
        "iterator then goes on here, from the same place, with workers of its own"
    )


def no_batch(step: int, skipped: Bad) -> UsageError:
    """Of a step whose samples are all bad."""
    index, error = skipped[0]
    return UsageError(
        f"step {step} has no batch: all of its samples are skipped, the first of them at index "
        f'{index!r}, with {error}. A loader with on_error="raise" raises that'
    )


def no_budget(finished: bool) -> UsageError:
    """Of an iterator that fetches nothing (any more)."""
    state = "finished" if finished else "closed"
    return UsageError(
        f"this iterator is {state} and fetches nothing, so that it has no prefetch_budget: use the "
        "one that the next iter(loader) gives, or DataLoader(..., prefetch_budget=...)"
    )


def unsent(step: int, error: Exception) -> UsageError:
    """Of the indices of a step, which no worker was sent."""
    way_out = "give such as can be pickled, for example numbers, or use num_workers=0"
    if isinstance(error, ArenaFull):
        way_out = 'free some shared memory, or use transport="portable", which needs none'
    refusal = UsageError(
        f"the indices that the sampler gave for step {step} cannot be sent to a worker "
        f"({type(error).__name__}: {error}): {way_out}"
    )
    refusal.__cause__ = error
    return refusal
