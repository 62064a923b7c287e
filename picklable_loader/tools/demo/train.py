"""The training script, as a user would write it, once for each DataLoader.

    python -m picklable_loader.tools.demo.train KIND ROLE FOLDER EPOCHS

Each run is a process of its own. ``killed`` writes a checkpoint in mid-epoch and some steps later
sends itself SIGKILL; ``resumed`` knows nothing but that checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from tqdm import tqdm

from ... import DataLoader, LoaderIterator

BATCH = 32
WORKERS = 2
#: images that are trained on, a whole number of batches; the rest of the 1,797 are for testing
TRAINED_ON = 1536
STEPS_PER_EPOCH = TRAINED_ON // BATCH

#: whose DataLoader a run uses, and what happens to the run
Kind = Literal["picklable_loader", "torch"]
Role = Literal["uninterrupted", "killed", "resumed"]
KINDS: tuple[Kind, ...] = ("picklable_loader", "torch")
ROLES: tuple[Role, ...] = ("uninterrupted", "killed", "resumed")

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Plan:
    """The course of one training; steps are counted from its beginning, over all epochs."""

    folder: Path
    epochs: int

    @property
    def steps(self) -> int:
        return self.epochs * STEPS_PER_EPOCH

    @property
    def saved_at(self) -> int:
        return (self.epochs - 1) // 2 * STEPS_PER_EPOCH + STEPS_PER_EPOCH * 5 // 12

    @property
    def killed_at(self) -> int:
        # As in real life, some work is lost and has to be done again.
        return self.saved_at + STEPS_PER_EPOCH // 3

    def checkpoint(self, kind: Kind) -> Path:
        return self.folder / f"{kind}.checkpoint.pt"

    def journal(self, kind: Kind, role: Role) -> Path:
        return self.folder / f"{kind}.{role}.jsonl"

    def weights(self, kind: Kind, role: Role) -> Path:
        return self.folder / f"{kind}.{role}.weights.pt"


class Digits(Dataset[tuple[torch.Tensor, int, int]]):
    """Handwritten digits that look a bit different each time that they are asked for.

    Each of the three global random number generators has a part in it, as in real projects, where
    a transform draws from whichever its author liked.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        """The image, shape ``(1, 8, 8)``, its label, and its index: which samples were seen."""
        image = rotated(self.images[index])
        # The digits have a blank margin, so it does little that pixels enter at the other edge.
        image = torch.roll(image, (random.randint(-1, 1), random.randint(-1, 1)), (0, 1))
        image = image + torch.from_numpy(np.random.normal(0.0, 0.05, image.shape)).float()
        return image[None], int(self.labels[index]), index


def rotated(image: torch.Tensor, most_degrees: float = 15.0) -> torch.Tensor:
    """The image turned by an angle that torch draws."""
    angle = math.radians(float(torch.empty(()).uniform_(-most_degrees, most_degrees)))
    cos, sin = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    grid = functional.affine_grid(turn, [1, 1, *image.shape], align_corners=False)
    return functional.grid_sample(image[None, None], grid, align_corners=False)[0, 0]


class Training:
    """A model that learns batch by batch, and a journal of it."""

    def __init__(self, plan: Plan, kind: Kind, role: Role) -> None:
        self.plan, self.kind, self.role = plan, kind, role
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=4e-3)
        # A line is with the kernel when it is written, so that SIGKILL cannot lose it.
        self.journal = plan.journal(kind, role).open("w", buffering=1)
        self.step = 0

    def note(self, **event: Any) -> None:
        self.journal.write(json.dumps(event) + "\n")

    def learn(self, batches: Iterable[Batch], bar: Any, data: Callable[[], dict[str, Any]]) -> None:
        """Do a step on each batch. ``data`` gives what a checkpoint has of the loader."""
        for images, labels, indices in batches:
            loss = functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.note(step=self.step, loss=float(loss.detach()).hex(), indices=indices.tolist())
            self.step += 1
            bar.set_postfix_str(f"loss {loss.item():.3f}", refresh=False)
            bar.update()
            if self.role == "killed" and self.step == self.plan.saved_at:
                self.save(data())
            if self.role == "killed" and self.step == self.plan.killed_at:
                bar.refresh()
                os.kill(os.getpid(), signal.SIGKILL)  # no handler, no finally, no atexit
            if self.step == self.plan.steps:
                return

    def bar(self) -> Any:
        """A progress bar, from where this run begins."""
        title = f"{self.kind}, {self.role}"
        return tqdm(desc=f"{title:<31}", total=self.plan.steps, initial=self.step, ncols=100)

    def save(self, data: dict[str, Any]) -> None:
        """Write the checkpoint: the model, the optimizer, and what is given with them."""
        begin = time.perf_counter()
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**parts, **data}, self.plan.checkpoint(self.kind))
        self.note(save_ms=(time.perf_counter() - begin) * 1e3)
        if "it" in data:
            self.note(state_bytes=len(pickle.dumps(data["it"].state_dict())))

    def restore(self, weights_only: bool) -> dict[str, Any]:
        """Read the checkpoint; model and optimizer are what they were."""
        saved = torch.load(self.plan.checkpoint(self.kind), weights_only=weights_only)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        return cast(dict[str, Any], saved)

    def finish(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Write the final weights, and how well they do on images never trained on."""
        torch.save(self.model.state_dict(), self.plan.weights(self.kind, self.role))
        with torch.no_grad():
            right = self.model(images).argmax(1) == labels
        self.note(accuracy=right.float().mean().item())


def train_with_ours(training: Training, dataset: Digits) -> None:
    """The iterator is saved with the model, and the resumed run goes on with it."""
    it: LoaderIterator[Batch]
    if training.role == "resumed":
        it = training.restore(weights_only=False)["it"]
    else:
        loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS)
        it = iter(cast(DataLoader[Batch], loader))
    training.step = it.epoch * len(it) + it.step
    with training.bar() as bar:
        while True:
            training.learn(it, bar, lambda: {"it": it})
            if training.step == training.plan.steps:
                break
            it = iter(it.loader)


def train_with_torch(training: Training, dataset: Digits) -> None:
    """The epoch and the step are saved with the model; the resumed run begins the epoch again.

    Most training scripts do this, because torch's iterator can be neither saved nor moved to a
    position. Passing over the batches that were done (``if i < done: continue``) fetches all of
    them again, and helps only if the order is the same one: it needs the random states of the
    moment when the epoch began, which a checkpoint in mid-epoch does not have. So the number of
    steps is restored, for the learning rate, and the data begin at the start of an epoch, in a new
    order.
    """
    if training.role == "resumed":
        training.step = training.restore(weights_only=True)["step"]
    loader = TorchDataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS)
    with training.bar() as bar:
        while training.step < training.plan.steps:
            training.learn(loader, bar, lambda: {"step": training.step})


def main(kind: Kind, role: Role, folder: Path, epochs: int) -> None:
    """Do one run of the demo in this process."""
    torch.set_num_threads(1)  # sums in one order: the same bits whatever else the machine does
    torch.manual_seed(0)
    training = Training(Plan(folder, epochs), kind, role)
    digits = load_digits()  # out of the scikit-learn package; nothing is downloaded
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    mixed = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen, test = mixed[:TRAINED_ON], mixed[TRAINED_ON:]
    train = train_with_ours if kind == "picklable_loader" else train_with_torch
    train(training, Digits(images[chosen], labels[chosen]))
    training.finish(images[test][:, None], labels[test])


if __name__ == "__main__":
    _, _kind, _role, _folder, _epochs = sys.argv
    main(cast(Kind, _kind), cast(Role, _role), Path(_folder), int(_epochs))
