"""The two sides of each comparison, and the ways to observe one."""

from __future__ import annotations

import hashlib
import itertools
import random
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.utils.data

import picklable_loader

from .identical import assert_identical

Loader = torch.utils.data.DataLoader[Any]
Make = Callable[..., Loader]

TORCH: Make = torch.utils.data.DataLoader
OURS: Make = picklable_loader.DataLoader
AS_TORCH: Make = partial(OURS, seeding="worker", schedule="round_robin")
"""Our loader with torch's way of seeding workers and of giving batches to them."""


def seed_everything(seed: int = 7) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def assert_parity(observe: Callable[[Make], Any], ours: Make = OURS) -> Any:
    """Hold what `observe` sees of our loader against what it sees of torch's, and return that."""
    seed_everything()
    expected = observe(TORCH)
    seed_everything()
    found = observe(ours)
    assert_identical(found, expected)
    return expected


def outcome(call: Callable[[], Any]) -> Any:
    """Return the call's value, or type and text of what it raised (and not the traceback)."""
    try:
        return call()
    except Exception as error:
        # torch's frames refer to the error and to the iterator: without this, the worker processes
        # would outlive the test.
        traceback.clear_frames(error.__traceback__)
        return type(error), _text(error)


def rng_states(generators: Iterable[torch.Generator] = ()) -> dict[str, Any]:
    """Say where each global random number generator stands, and each of `generators`."""
    return {
        "torch": _digest(torch.get_rng_state().numpy().tobytes()),
        "torch.initial_seed": torch.initial_seed(),
        "numpy": _digest(repr(np.random.get_state(legacy=False)["state"])),
        "numpy's Gaussian": repr(np.random.get_state()[3:]),
        "python": _digest(repr(random.getstate())),
        "generators": [_digest(g.get_state().numpy().tobytes()) for g in generators],
    }


def trace(
    loader: Loader,
    *,
    generators: Sequence[torch.Generator] = (),
    stop_at: Sequence[int | None] = (None, 2, None),
) -> list[Any]:
    """Iterate one epoch per item of `stop_at`, up to that step; note batches and random states."""
    seen: list[Any] = []
    for stop in stop_at:
        iterator = iter(loader)
        seen.append(("iter", rng_states(generators)))
        for batch in itertools.islice(iterator, stop):
            seen.append((batch, rng_states(generators)))
        seen.append(("break" if stop else "end", rng_states(generators)))
        del iterator
    return seen


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return str(error.args[0]) if error.args else ""


def _digest(content: bytes | str) -> str:
    content = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(content).hexdigest()[:12]
