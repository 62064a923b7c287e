"""Lightning: which loader is exact in which case."""

from __future__ import annotations

from pathlib import Path

import pytest

from .data import LOADERS
from .harness import Server

RUNS = "frameworks.lightning_runs"


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_map_style_in_mid_epoch(server: Server, tmp_path: Path, loader: str, workers: int) -> None:
    verdict = server.compare("train", tmp_path, checkpoint=13, loader=loader, workers=workers)
    expected = {"torch": "other ids", "torchdata": "other noise"}
    assert verdict == expected.get(loader, "exact")
