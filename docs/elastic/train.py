"""Train on any number of ranks; go on from the newest checkpoint, whatever number has saved it.

torchrun --nproc-per-node 4 train.py --folder run
torchrun --nproc-per-node 2 train.py --folder run
"""

from __future__ import annotations

import argparse
import os
import signal
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # noqa: F401  before the group: see docs/distributed.md
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from picklable_loader import DataLoader, load, save

EPOCHS = 2
#: samples in a step of all ranks; the batch size of a rank follows from it
GLOBAL_BATCH = 24


class Points(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Points on a line, each with an augmentation of its own."""

    def __len__(self) -> int:
        return 480

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        x = torch.tensor([index / 480])
        return index, x + 0.01 * torch.randn(1), 3 * x - 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--kill-at", type=int, default=-1, help="step at which rank 1 is killed")
    options = parser.parse_args()
    # gloo waits for a dead rank, by default for 30 minutes.
    dist.init_process_group("gloo", timeout=timedelta(seconds=45))
    rank, world = dist.get_rank(), dist.get_world_size()
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        Points(),
        batch_size=GLOBAL_BATCH // world,
        shuffle=True,
        num_workers=1,
        shard="auto",  # this rank's share of one order
        seeding="sample",  # a sample's augmentation does not depend on the number of ranks
        seed=1,
        at_epoch_end="next",
    )
    checkpoint = options.folder / "checkpoint"
    step = 0
    if checkpoint.exists():  # the same file on every rank
        saved = load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]

    while loader.epoch < EPOCHS:
        for indices, x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            note(options.folder, step, rank, world, indices, loss)
            step += 1
            if rank == 0 and step % 5 == 0:
                parts = {"model": model, "optimizer": optimizer, "loader": loader}
                states = {name: part.state_dict() for name, part in parts.items()}
                save({"step": step, **states}, checkpoint)
            if rank == 1 and step == options.kill_at and not restarts:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


def note(
    folder: Path, step: int, rank: int, world: int, indices: torch.Tensor, loss: torch.Tensor
) -> None:
    """Write down which samples a rank has read, and the mean loss of all ranks."""
    mean = loss.detach() / world
    dist.all_reduce(mean)
    with (folder / f"rank-{rank}.txt").open("a") as file:
        print(step, world, mean.item(), *indices.tolist(), file=file)


if __name__ == "__main__":
    main()
