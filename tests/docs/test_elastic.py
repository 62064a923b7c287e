"""The training script of docs/elastic, killed and gone on with on other numbers of ranks."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

ELASTIC = Path(__file__).parents[2] / "docs" / "elastic"

# Up to nine processes import torch, which took 300 s on a machine with a load of 25.
pytestmark = pytest.mark.timeout(800)


@pytest.fixture(autouse=True, scope="module")
def the_first_store_has_been_made() -> None:
    """It opens a pipe that the process has from then on."""
    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


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


def machine(folder: Path, port: int, **variables: str) -> subprocess.Popen[bytes]:
    """An agent of torchrun, with one rank; the test has the store at which agents meet."""
    words = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=1", "--local-addr=127.0.0.1"]
    words += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job"]
    # An agent alone begins after a second, and one that is killed counts as lost after three.
    words += ["--rdzv-conf=is_host=0,last_call_timeout=1,keep_alive_interval=1"]
    words += [str(Path(__file__).with_name("machine.py")), f"--folder={folder}"]
    with (folder / f"machine{variables.get('DIES', '')}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words],
            stdout=log,
            stderr=log,
            env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **variables},
        )


def processes_of(folder: Path) -> list[int]:
    """Agents, ranks and workers: their command lines have the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def test_a_machine_that_comes_in_mid_epoch_and_one_that_dies_there_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder, demo = tmp_path / "machines", runpy.run_path(str(ELASTIC / "demo.py"))
    folder.mkdir()
    os.mkfifo(folder / "alone")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    try:
        first = machine(folder, store.port)
        (folder / "alone").read_bytes()  # it has done 8 steps, and saved the fifth
        second = machine(folder, store.port, DIES="-that-dies")
        assert second.wait() == -signal.SIGKILL
        assert first.wait() == 0, (folder / "machine.log").read_text()
        assert not processes_of(folder)
    finally:
        for process in processes_of(folder):
            os.kill(process, signal.SIGKILL)
    assert train(tmp_path / "whole", 2, None)
    found, whole = demo["read"](folder), demo["read"](tmp_path / "whole")
    worlds = {batch.step: batch.world for batch in found.values()}
    assert [worlds[step] for step in range(40)] == [1] * 5 + [2] * 5 + [1] * 30
    steps, expected = demo["by_step"](found), demo["by_step"](whole)
    assert [samples for samples, _ in steps] == [samples for samples, _ in expected]
    for epoch in (steps[:20], steps[20:]):
        assert sorted(sum((samples for samples, _ in epoch), [])) == [*range(480)]
    losses = zip((loss for _, loss in steps), (loss for _, loss in expected))
    assert max(abs(one - other) for one, other in losses) < demo["TOLERANCE"]
