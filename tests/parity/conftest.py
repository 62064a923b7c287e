"""Bounds for the parity tests: none may hang, and each starts from its own random numbers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from multiprocessing import resource_sharer
from types import FrameType

import pytest

from .sides import seed_everything

LIMIT_S = 60


@pytest.fixture(autouse=True)
def no_test_hangs() -> Iterator[None]:
    def give_up(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test did not end within {LIMIT_S} s")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture(autouse=True)
def no_sharer_is_left() -> Iterator[None]:
    """Stop the thread and socket that torch's side starts to send tensors to its workers."""
    yield
    resource_sharer.stop()


@pytest.fixture(autouse=True)
def seeded() -> None:
    seed_everything()
