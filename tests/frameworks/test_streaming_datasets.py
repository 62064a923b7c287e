"""LitData and MosaicML streaming: their ``state_dict`` counts samples in the main process."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Server

RUNS = "frameworks.streaming_runs"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("checkpoint", [3, 13])
@pytest.mark.parametrize("library", ["litdata", "mosaic"])
def test_a_streaming_dataset_goes_on_exactly(
    server: Server, tmp_path: Path, library: str, checkpoint: int, workers: int
) -> None:
    verdict = server.compare("train", tmp_path, checkpoint, library=library, workers=workers)
    assert verdict == "exact"
