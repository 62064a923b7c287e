"""Trainings with Accelerate; the server of the tests imports this module."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import datasets  # noqa: F401  (else Accelerate imports it in each run)
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import BatchSampler, RandomSampler

from picklable_loader.integrations.accelerate import prepare

from . import data
from .harness import Run


class Numbers:
    """A sampler of the program's own, which nobody knows; its order changes with the epoch."""

    def __init__(self, size: int = data.SIZE) -> None:
        self.size, self.epoch = size, 0

    def __len__(self) -> int:
        return self.size

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return ((7 * number + self.epoch) % self.size for number in range(self.size))


def dataset(kind: str) -> Any:
    if kind == "odd":
        return data.Map(data.SIZE - 3)
    return data.DATASETS[kind]()


def options_of(sampler: str | None) -> dict[str, Any]:
    if sampler == "own sampler":
        return {"sampler": Numbers()}
    if sampler == "batches":
        return {"batch_sampler": Batches(RandomSampler(range(data.SIZE)), data.BATCH_SIZE, False)}
    return {}


class Batches(BatchSampler):
    """A batch sampler of the program's own."""

    def __iter__(self) -> Iterator[list[int]]:
        return (batch[::-1] for batch in super().__iter__())


def train(
    run: Run,
    loader: str,
    workers: int,
    kind: str = "map",
    sampler: str | None = None,
    alone: bool = False,
    resume: str = "state",
    config: dict[str, Any] | None = None,
    accumulate: int = 1,
    per_epoch: int = data.BATCHES,
    counts: str = "steps",
    **options: Any,
) -> None:
    """Train with one of `data.LOADERS`.

    Args:
        alone: Accelerate prepares our loader, and not our adapter.
        resume: "state": load_state does all. "skip": skip_first_batches as well, as Accelerate's
            examples have it; ours is given no state then. "both": and ours is.
        per_epoch: batches of a rank in an epoch.
        counts: "steps": the loop computes its epoch from them. "epochs": it goes on with the epoch
            that it saved. "set_epoch": and gives the loader that epoch.
    """
    warnings.simplefilter("ignore")
    best = {"torch": {"use_seedable_sampler": True}, "torchdata": {"use_stateful_dataloader": True}}
    configuration = DataLoaderConfiguration(**(config or {}), **best.get(loader, {}))
    accelerator = Accelerator(
        cpu=True, dataloader_config=configuration, gradient_accumulation_steps=accumulate
    )
    net = data.model(dropout=0.5)
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    made = data.loader(loader, dataset(kind), workers, **options_of(sampler), **options)
    ours = loader.startswith("ours") and not alone
    at_end: Any = {"steps": "next", "epochs": "stop", "set_epoch": None}[counts]
    batches: Any = prepare(accelerator, made, at_end) if ours else accelerator.prepare(made)
    folder = run.folder / "checkpoint"
    epoch, skip = divmod(run.steps, per_epoch)
    if counts != "steps" and run.steps and not skip:
        epoch, skip = epoch - 1, per_epoch
    if run.resumes:
        if ours and resume == "skip":
            accelerator._load_model_state_pre_hook.clear()
        accelerator.load_state(str(folder))
    for epoch in range(epoch, data.EPOCHS):
        active = batches
        if resume != "state" or not ours:
            batches.set_epoch(epoch)
            if skip and loader != "torchdata":
                active = accelerator.skip_first_batches(batches, skip)
        elif counts == "set_epoch":
            batches.set_epoch(epoch)
        skip = 0
        for batch in active:
            with accelerator.accumulate(net):
                loss = data.loss(net, batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            run.note(batch, loss)
            if run.steps == run.checkpoint and not run.resumes:
                accelerator.save_state(str(folder))
