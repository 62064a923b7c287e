"""The training script of docs/elastic, killed and gone on with on other numbers of ranks."""

from __future__ import annotations

import os
import runpy
import sys
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

ELASTIC = Path(__file__).parents[2] / "docs" / "elastic"


def train(folder: Path, world: int, kill_at: int | None) -> bool:
    """What torchrun does, without its seconds for each rank; False: a rank was killed."""
    folder.mkdir(exist_ok=True)
    leader = get_context("forkserver").Process(target=lead, args=(folder, world, kill_at or -1))
    leader.start()
    leader.join()
    return leader.exitcode == 0


def lead(folder: Path, world: int, kill_at: int) -> None:
    """Start the ranks, by fork; once one of them has failed, end the others."""
    import_module("torch._dynamo")  # as DistributedDataParallel does, which takes a second
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        get_context("fork").Process(
            target=be_a_rank, args=(folder, rank, world, store.port, kill_at)
        )
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    while running := [rank.sentinel for rank in ranks if rank.exitcode is None]:
        wait(running)
        if any(rank.exitcode for rank in ranks):
            for rank in ranks:
                rank.kill()
    sys.exit(any(rank.exitcode for rank in ranks))


def be_a_rank(folder: Path, rank: int, world: int, port: int, kill_at: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), TORCHELASTIC_RESTART_COUNT="0")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the leader has made it
    torch.set_num_threads(1)
    sys.argv = ["train.py", f"--folder={folder}", f"--kill-at={kill_at}"]
    runpy.run_path(str(ELASTIC / "train.py"), run_name="__main__")


def test_a_training_goes_on_with_other_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = runpy.run_path(str(ELASTIC / "demo.py"))
    demo["main"].__globals__.update(PICTURE=tmp_path / "ranks.png", train=train)
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
