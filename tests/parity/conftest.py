"""Each parity test starts from its own random numbers."""

from __future__ import annotations

import pytest

from .sides import seed_everything


@pytest.fixture(autouse=True)
def seeded() -> None:
    seed_everything()
