"""The training of docs/importance_sampling.py, killed in mid-epoch and gone on with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "importance_sampling.py"


def train(folder: Path, num_workers: int, kill_at: int = -1) -> int:
    options = [f"--folder={folder}", f"--num-workers={num_workers}", f"--kill-at={kill_at}"]
    return subprocess.run([sys.executable, str(SCRIPT), *options], timeout=120).returncode


def log(folder: Path) -> dict[int, Any]:
    """By step, the samples, their losses and all weights; a later line counts."""
    rows = map(json.loads, (folder / "log").read_text().splitlines())
    return {step: row for step, *row in rows}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_training_by_importance_is_the_same_after_a_kill(
    num_workers: int, tmp_path: Path
) -> None:
    assert train(tmp_path / "whole", num_workers) == 0
    assert train(tmp_path / "killed", num_workers, kill_at=23) == -signal.SIGKILL
    assert set(log(tmp_path / "killed")) == {*range(1, 24)}
    assert train(tmp_path / "killed", num_workers) == 0
    whole = log(tmp_path / "whole")
    assert len(whole) == 60 and log(tmp_path / "killed") == whole
    weights = whole[60][2]
    assert sum(weights[32:]) > 2 * sum(weights[:32]), "the wave is hard"
