"""How much of the laws' matrices is run."""

from __future__ import annotations

import pytest


@pytest.fixture
def whole_matrix(pytestconfig: pytest.Config) -> bool:
    """Every cell is asked for, and not only those that may differ."""
    return bool(pytestconfig.getoption("--whole-matrix"))
