"""The training script, as a user would write it, once for each DataLoader.

    python -m picklable_loader.tools.demo.train KIND ROLE FOLDER EPOCHS

Each run is a process of its own. ``killed`` writes a checkpoint in mid-epoch and some steps later
sends itself SIGKILL; ``resumed`` knows nothing but that checkpoint.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader as TorchDataLoader
from tqdm import tqdm

from ... import DataLoader, LoaderIterator
from .digits import Digits, load
from .journal import Journal
from .plan import BATCH, WORKERS, Kind, Plan, Role

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

BAR = "{desc:<32}{percentage:3.0f}%|{bar:22}| {n_fmt:>4}/{total_fmt} {elapsed}{postfix}"


class Training:
    """A model that learns batch by batch, and what is told about it.

    Args:
        plan: the course of the training.
        kind: whose DataLoader the batches come from.
        role: what happens to this run.
    """

    def __init__(self, plan: Plan, kind: Kind, role: Role) -> None:
        self.plan = plan
        self.kind = kind
        self.role = role
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=4e-3)
        self.journal = Journal(plan.journal(kind, role))
        self.step = 0
        self.bar: Any = None

    def show_bar(self) -> None:
        """Show the progress bar, from where this run begins."""
        title = f"{self.kind}, {self.role}"
        steps = self.plan.steps
        self.bar = tqdm(desc=title, total=steps, initial=self.step, bar_format=BAR, mininterval=0.2)

    def learn(self, images: torch.Tensor, labels: torch.Tensor, indices: torch.Tensor) -> None:
        """Do one step on a batch."""
        loss = functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.journal.step(self.step, loss.item(), indices.tolist())
        self.step += 1
        self.bar.set_postfix_str(f"loss {loss.item():.3f}", refresh=False)
        self.bar.update()

    @property
    def saves_now(self) -> bool:
        return self.role == "killed" and self.step == self.plan.saved_at

    def save(self, state_bytes: int | None = None, **beside: Any) -> None:
        """Write the checkpoint: the model, the optimizer, and what is given beside them."""
        path = self.plan.checkpoint(self.kind)
        begin = time.perf_counter()
        torch.save(
            {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), **beside},
            path,
        )
        taken = (time.perf_counter() - begin) * 1e3
        self.journal.saved(taken, path.stat().st_size, state_bytes)

    def restore(self, weights_only: bool) -> dict[str, Any]:
        """Read the checkpoint; model and optimizer are what they were."""
        saved = torch.load(self.plan.checkpoint(self.kind), weights_only=weights_only)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        return cast(dict[str, Any], saved)

    def die_if_it_is_time(self) -> None:
        """Send this process SIGKILL: no handler, no finally, no atexit."""
        if self.role == "killed" and self.step == self.plan.killed_at:
            self.bar.refresh()
            os.kill(os.getpid(), signal.SIGKILL)

    def finish(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Write the final weights, and how well they do on images never trained on."""
        self.bar.close()
        torch.save(self.model.state_dict(), self.plan.weights(self.kind, self.role))
        with torch.no_grad():
            right = self.model(images).argmax(1) == labels
        self.journal.finished(right.float().mean().item())


def train_with_ours(training: Training, dataset: Digits) -> None:
    """The iterator is saved beside the model, and the resumed run goes on with it."""
    it: LoaderIterator[Batch]
    if training.role == "resumed":
        it = training.restore(weights_only=False)["it"]
    else:
        loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS)
        it = iter(cast(DataLoader[Batch], loader))
    training.step = it.epoch * len(it) + it.step
    training.show_bar()
    while True:
        for batch in it:
            training.learn(*batch)
            if training.saves_now:
                training.save(len(pickle.dumps(it.state_dict())), it=it)
            training.die_if_it_is_time()
        if training.step == training.plan.steps:
            return
        it = iter(it.loader)


def train_with_torch(training: Training, dataset: Digits) -> None:
    """The epoch and the step are saved beside the model; the resumed run begins the epoch again.

    This is what most training scripts do, because torch's iterator can be neither saved nor moved
    to a position: the position within the epoch is known as a number, but there is nothing to give
    it to. Passing over the batches that were done (``if i < done: continue``) fetches all of them
    again, and does not help unless the order is the same one: the random states of the moment when
    the epoch began are needed for that, which a checkpoint in mid-epoch has not got. So the number
    of steps is kept, for the learning rate's sake and because training is bought in steps, and the
    data begin where they can: at the start of an epoch, in a new order.
    """
    epoch = 0
    if training.role == "resumed":
        saved = training.restore(weights_only=True)
        epoch, training.step = saved["epoch"], saved["step"]
    loader = TorchDataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS)
    training.show_bar()
    while training.step < training.plan.steps:
        for batch in cast(Iterable[Batch], loader):
            training.learn(*batch)
            if training.saves_now:
                training.save(epoch=epoch, step=training.step)
            training.die_if_it_is_time()
            if training.step == training.plan.steps:
                break
        epoch += 1


def main(kind: Kind, role: Role, folder: Path, epochs: int) -> None:
    """Do one run of the demo in this process."""
    torch.set_num_threads(1)  # sums in one order: the same bits whatever else the machine does
    torch.manual_seed(0)
    training = Training(Plan(folder, epochs), kind, role)
    dataset, images, labels = load(training.plan.digits)
    train = train_with_ours if kind == "picklable_loader" else train_with_torch
    train(training, dataset)
    training.finish(images, labels)


if __name__ == "__main__":
    _, _kind, _role, _folder, _epochs = sys.argv
    main(cast(Kind, _kind), cast(Role, _role), Path(_folder), int(_epochs))
