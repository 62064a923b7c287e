"""A training run on the GPU that is killed goes on with the very same losses."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("training.py")


def losses(*arguments: object, code: int = 0) -> list[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == code, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("model", ["cnn", "cnn+compile", "transformer", "transformer+compile"])
def test_losses_of_a_killed_run_are_those_of_a_whole_one_to_the_bit(
    model: str, tmp_path: Path
) -> None:
    whole = losses(model, tmp_path / "none")
    first = losses(model, tmp_path / "checkpoint", 5, code=-signal.SIGKILL)
    assert len(whole) == 12 and len(set(whole)) > 6
    assert first + losses(model, tmp_path / "checkpoint") == whole
