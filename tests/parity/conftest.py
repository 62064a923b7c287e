"""Bounds for the parity tests: none may hang, and each starts from its own random numbers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from multiprocessing import forkserver, resource_sharer, resource_tracker
from types import FrameType

import pytest

from .sides import seed_everything

LIMIT_S = 60


@pytest.fixture(autouse=True, scope="session")
def standard_library_is_warm() -> None:
    """Start the processes that multiprocessing keeps for itself: they are no leaks."""
    resource_tracker.ensure_running()
    forkserver.ensure_running()


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
