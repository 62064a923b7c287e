"""Each parity test starts from its own random numbers, and leaves no sharer of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import resource_sharer

import pytest

from .sides import seed_everything


@pytest.fixture(autouse=True)
def no_sharer_is_left() -> Iterator[None]:
    """Stop the thread and socket that torch's side starts to send tensors to its workers."""
    yield
    resource_sharer.stop()


@pytest.fixture(autouse=True)
def seeded() -> None:
    seed_everything()
