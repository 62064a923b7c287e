"""Kill a training of 4 ranks, go on with 2 and then with 3; draw which rank has read which sample.

    python docs/elastic/demo.py

It runs train.py under torchrun, once without an interruption and once with two, compares the
samples and the loss of each step, and writes docs/elastic/ranks.png.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PICTURE = HERE / "ranks.png"
#: ranks, and the step at which one of them is killed (None: it trains to the end)
LIVES = [(4, 13), (2, 27), (3, None)]
#: gradients of 2 ranks are added in another order than those of 4
TOLERANCE = 1e-5


class Read(NamedTuple):
    """A batch of one rank."""

    step: int
    rank: int
    world: int
    loss: float
    indices: tuple[int, ...]


def train(folder: Path, world: int, kill_at: int | None, restarts: int = 0) -> bool:
    """One run of torchrun; False: it was killed."""
    folder.mkdir(exist_ok=True)
    runner = ["torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    script = [str(HERE / "train.py"), f"--folder={folder}", f"--kill-at={kill_at or -1}"]
    words = [sys.executable, "-m", *runner, f"--max-restarts={restarts}", *script]
    log = folder / f"torchrun-{world}.log"
    # With torchrun's own store, gloo hung in init_process_group after 5 of 10 restarts (torch
    # 2.13, a busy machine), past its timeout; with a store of the ranks' own after none of 16.
    own_store = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with log.open("w") as output:
        done = subprocess.run(words, stdout=output, stderr=output, env=own_store)
    return done.returncode == 0


def read(folder: Path) -> dict[tuple[int, int], Read]:
    """By step and rank, the batches that count: of a step that was done twice, the later ones."""
    found: dict[tuple[int, int], Read] = {}
    worlds: dict[int, int] = {}
    for path in folder.glob("rank-*.txt"):
        rank = int(path.stem.split("-")[1])
        for line in path.read_text().splitlines():
            step, world, loss, *indices = line.split()
            batch = Read(int(step), rank, int(world), float(loss), tuple(map(int, indices)))
            found[batch.step, rank] = batch
            if rank == 0:  # it is in every life
                worlds[batch.step] = batch.world
    return {key: batch for key, batch in found.items() if batch.world == worlds[batch.step]}


def by_step(batches: dict[tuple[int, int], Read]) -> list[tuple[list[int], float]]:
    """For each step, the samples of all ranks in order, and the loss."""
    last = max(step for step, _ in batches)
    steps = []
    for step in range(last + 1):
        of_step = [batch for batch in batches.values() if batch.step == step]
        steps.append((sorted(i for b in of_step for i in b.indices), of_step[0].loss))
    return steps


def draw(batches: dict[tuple[int, int], Read]) -> None:
    """Each sample at its step, in the colour of its rank."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    for rank in range(4):
        points = [
            (batch.step, index)
            for batch in batches.values()
            if batch.rank == rank
            for index in batch.indices
        ]
        axes.scatter(*zip(*points), s=7, color=f"C{rank}", label=f"rank {rank}")
    steps = sorted({(batch.step, batch.world) for batch in batches.values()})
    for (_, before), (step, world) in zip(steps, steps[1:]):
        if world != before:
            axes.axvline(step - 0.5, color="black", linestyle="--", linewidth=1)
            axes.annotate(f" {world} ranks", (step - 0.5, 490))
    axes.annotate(f" {steps[0][1]} ranks", (-0.5, 490))
    axes.axvline(19.5, color="grey", linewidth=0.5)
    axes.set(xlabel="step", ylabel="sample", ylim=(-10, 520))
    axes.set_title("Two epochs of 480 samples: each sample once an epoch, on 4, 2 and 3 ranks")
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(PICTURE, dpi=110)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        whole, killed = Path(name) / "whole", Path(name) / "killed"
        finished = train(whole, 4, None)
        print("4 ranks, not interrupted: " + ("finished" if finished else "FAILED"))
        for world, kill_at in LIVES:
            finished &= train(killed, world, kill_at) == (kill_at is None)
            end = "trains to the end" if kill_at is None else f"rank 1 is killed at step {kill_at}"
            print(f"{world} ranks: {end}")
        if not finished:
            print(*(log.read_text() for log in Path(name).glob("*/*.log")), sep="\n")
            return 1
        expected, found = by_step(read(whole)), by_step(read(killed))
        draw(read(killed))
    samples = [ids for ids, _ in expected] == [ids for ids, _ in found]
    furthest = max(abs(one - other) for (_, one), (_, other) in zip(expected, found))
    each_once = sorted(sum((ids for ids, _ in found[:20]), [])) == [*range(480)]
    print(f"samples of each step: {'equal' if samples else 'DIFFERENT'}")
    print(f"each sample once in an epoch: {'yes' if each_once else 'NO'}")
    print(f"losses of {len(expected)} steps: {furthest:.1e} apart at most")
    print(f"picture: {PICTURE}")
    return 0 if samples and each_once and furthest < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
