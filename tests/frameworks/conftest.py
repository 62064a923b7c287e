"""A server for each module of trainings, as long as its tests last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .harness import Server


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "core: tried by each submission, in three minutes")


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Of the module that a test module names: ``RUNS = "frameworks.lightning_runs"``."""
    server = Server(request.module.RUNS)
    yield server
    server.close()
