"""The training script of docs/elastic, killed and gone on with on other numbers of ranks."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ELASTIC = Path(__file__).parents[2] / "docs" / "elastic"


def test_a_training_goes_on_with_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    demo = runpy.run_path(str(ELASTIC / "demo.py"))
    # One interruption of two: each rank takes seconds to start. `make demo-ranks` has both.
    demo["main"].__globals__.update(PICTURE=tmp_path / "ranks.png", LIVES=[(4, 13), (3, None)])
    assert demo["main"]() == 0, capsys.readouterr().out
    assert (tmp_path / "ranks.png").stat().st_size > 10_000


def test_a_rank_that_is_killed_comes_back_within_torchrun_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    demo = runpy.run_path(str(ELASTIC / "demo.py"))
    assert demo["train"](tmp_path / "whole", 2, None)
    assert demo["train"](tmp_path / "killed", 2, kill_at=13, restarts=1)
    whole, killed = (demo["read"](tmp_path / name) for name in ("whole", "killed"))
    assert {batch.step for batch in killed.values()} == {*range(40)}
    assert demo["by_step"](killed) == demo["by_step"](whole)  # losses as well, to the last bit
