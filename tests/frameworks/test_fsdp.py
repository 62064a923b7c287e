"""FSDP2 with torch.distributed.checkpoint: model, optimizer and loader in one checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Server

RUNS = "frameworks.fsdp_runs"


@pytest.mark.core
@pytest.mark.parametrize(
    ("kind", "checkpoint", "workers", "loader"),
    [
        ("map", 13, 2, "ours"),
        ("map", 20, 0, "ours without seed"),
        ("sized stream", 13, 0, "ours"),
        ("own sampler", 20, 2, "ours"),
    ],
)
def test_a_sharded_model_goes_on_exactly(
    server: Server, tmp_path: Path, kind: str, checkpoint: int, workers: int, loader: str
) -> None:
    options = {"loader": loader, "workers": workers, "kind": kind}
    assert server.compare("train", tmp_path, checkpoint, ranks=2, **options) == "exact"
