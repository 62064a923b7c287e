"""LitData and MosaicML streaming: their ``state_dict`` counts samples in the main process."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Server

RUNS = "frameworks.streaming_runs"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("checkpoint", [3, 13])
@pytest.mark.parametrize("library", ["litdata", "litdata counted", "mosaic"])
def test_a_streaming_dataset_goes_on_exactly(
    server: Server, tmp_path: Path, library: str, checkpoint: int, workers: int
) -> None:
    verdict = server.compare("train", tmp_path, checkpoint, library=library, workers=workers)
    assert verdict == "exact"


def test_a_worker_does_not_wait_for_those_that_have_ended(server: Server, tmp_path: Path) -> None:
    """Two workers give 6 batches each. After 11 of these one stream has ended."""
    assert server.compare("train", tmp_path, 11, library="uneven mosaic", workers=2) == "exact"
