"""Train on what the model finds hard: samples are drawn by their last loss, from a sum tree.

python docs/importance_sampling.py --folder run                # 60 steps
python docs/importance_sampling.py --folder run --kill-at 23   # SIGKILL in mid-epoch
python docs/importance_sampling.py --folder run                # goes on from step 20
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from picklable_loader import DataLoader, load, save

BATCH = 8


class SumTree:
    """Weights of which one is drawn, or changed, in O(log n): node ``i`` is the sum of its two."""

    def __init__(self, weights: np.ndarray) -> None:
        self.leaves = 1 << (len(weights) - 1).bit_length()
        self.nodes = np.zeros(2 * self.leaves)
        self.nodes[self.leaves : self.leaves + len(weights)] = weights
        for node in range(self.leaves - 1, 0, -1):
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]

    def set(self, index: int, weight: float) -> None:
        node = self.leaves + index
        self.nodes[node] = weight
        while node := node // 2:
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]

    def find(self, share: float) -> int:
        """The index at this share, from 0 to 1, of the sum of all weights."""
        rest, node = share * self.nodes[1], 1
        while node < self.leaves:
            node *= 2
            if rest >= self.nodes[node]:
                rest -= self.nodes[node]
                node += 1
        return node - self.leaves


class ByLoss(Sampler[int]):
    """Draws samples in proportion to their last loss; one that was never seen counts as ``first``.

    Args:
        samples: in the dataset.
        length: indices in an epoch.
        first: the weight of a sample that was never seen.
    """

    def __init__(self, samples: int, length: int, first: float = 2.0) -> None:
        self.weights = np.full(samples, first)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return _Draws(self)


class _Draws:
    """One epoch of `ByLoss`; a state has the weights and the position."""

    def __init__(self, sampler: ByLoss) -> None:
        self.sampler = sampler
        self.tree = SumTree(sampler.weights)
        self.given = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.given == self.sampler.length:
            raise StopIteration
        self.given += 1
        return self.tree.find(np.random.random())  # seeded, and saved, by the loader's seed=

    def receive(self, step: int, objs: list[Any]) -> None:
        """The losses of a step, as the training loop has told them."""
        for indices, losses in objs:
            for index, loss in zip(indices, losses, strict=True):
                self.tree.set(index, loss + 0.05)
                self.sampler.weights[index] = loss + 0.05

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.sampler.weights.copy(), "given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.weights[:], self.given = state["weights"], state["given"]
        self.tree = SumTree(self.sampler.weights)


class Wave(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """A line that becomes a wave on its right, with noise."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        x = torch.tensor([index / 32 - 1])
        return index, x, torch.sin(12 * x.clamp(min=0)) + torch.randn(1) / 50


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--kill-at", type=int, default=-1, help="step at which it kills itself")
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sampler = ByLoss(64, length=60 * BATCH)
    loader = DataLoader(
        Wave(), BATCH, sampler=sampler, seed=1, num_workers=options.num_workers, prefetch_budget=4
    )
    checkpoint = options.folder / "checkpoint"
    if checkpoint.exists():
        saved = load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    it = iter(loader)
    for indices, x, y in it:
        losses = (model(x) - y).square().mean(1)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        it.tell((indices.tolist(), losses.tolist()))
        with (options.folder / "log").open("a") as log:
            row = [it.step, indices.tolist(), losses.tolist(), sampler.weights.tolist()]
            print(json.dumps(row), file=log)
        if it.step % 10 == 0:
            parts = {"model": model, "optimizer": optimizer, "loader": loader}
            save({name: part.state_dict() for name, part in parts.items()}, checkpoint)
        if it.step == options.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
