"""A bound for the laws: no test hangs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

_LIMIT_S = 100


@pytest.fixture
def whole_matrix(pytestconfig: pytest.Config) -> bool:
    """Every cell is asked for, and not only those that may differ."""
    return bool(pytestconfig.getoption("--whole-matrix"))


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    def give_up(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done within {_LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
