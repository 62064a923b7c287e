"""transformers.Trainer: which loader is exact in which case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .harness import Server

RUNS = "frameworks.huggingface_runs"


@pytest.mark.parametrize("loader", ["ours", "ours without seed"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("checkpoint", [13, 20])
@pytest.mark.parametrize("kind", ["map", "stream", "sized stream", "stateful stream"])
def test_a_trainer_goes_on_exactly(
    server: Server, tmp_path: Path, loader: str, workers: int, checkpoint: int, kind: str
) -> None:
    options = {"loader": loader, "workers": workers, "kind": kind, "dropout": 0.5}
    assert server.compare("train", tmp_path, checkpoint, **options) == "exact"


@pytest.mark.parametrize("loader", ["ours", "ours without seed"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("checkpoint", [7, 10])
@pytest.mark.parametrize("kind", ["map", "stream", "stateful stream"])
def test_two_processes_go_on_exactly(
    server: Server, tmp_path: Path, loader: str, workers: int, checkpoint: int, kind: str
) -> None:
    options = {"loader": loader, "workers": workers, "kind": kind, "dropout": 0.5}
    assert server.compare("train", tmp_path, checkpoint, 2, **options) == "exact"


@pytest.mark.parametrize("checkpoint, save_steps", [(16, 6), (20, 8)])
def test_accumulated_gradients_and_a_shorter_last_step(
    server: Server, tmp_path: Path, checkpoint: int, save_steps: int
) -> None:
    options: dict[str, Any] = {"arguments": {"gradient_accumulation_steps": 3}}
    options |= {"loader": "ours", "workers": 0, "dropout": 0.5, "save_steps": save_steps}
    assert server.compare("train", tmp_path, checkpoint, **options) == "exact"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_the_programs_own(server: Server, tmp_path: Path, workers: int) -> None:
    options = {"loader": "ours", "own": True, "workers": workers, "dropout": 0.5}
    assert server.compare("train", tmp_path, 13, **options) == "exact"


def test_a_plain_trainer_has_other_noise(server: Server, tmp_path: Path) -> None:
    verdict = server.compare("train", tmp_path, 13, loader="torch", workers=0)
    assert verdict == "other noise"
