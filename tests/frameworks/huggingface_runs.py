"""Trainings with transformers.Trainer; the server of the tests imports this module."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from picklable_loader.integrations.huggingface import ExactResume

from . import data
from .accelerate_runs import Numbers, dataset
from .harness import Run


class Net(torch.nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.net = data.model(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]


class Noting(Trainer):
    run: Run

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        loss = data.loss(model, inputs)
        self.run.note(inputs, loss)
        return loss


class Exact(ExactResume, Noting):
    pass


class OwnLoader(Exact):
    """The program makes its loader itself."""

    workers = 0

    def get_train_dataloader(self) -> Any:
        made = data.loader("ours", data.Map(), self.workers, sampler=Numbers())
        return self.prepare_loader(made)


def train(
    run: Run,
    loader: str,
    workers: int,
    kind: str = "map",
    dropout: float = 0.0,
    arguments: dict[str, Any] | None = None,
    own: bool = False,
    save_steps: int | None = None,
) -> None:
    """Train with one of `data.LOADERS`: "torch" is a Trainer as it is."""
    warnings.simplefilter("ignore")
    save_steps = save_steps or run.checkpoint  # in updates
    options = TrainingArguments(
        output_dir=str(run.folder),
        use_cpu=True,
        report_to=[],
        save_strategy="steps",
        save_steps=save_steps,
        max_steps=data.EPOCHS * data.BATCHES // run.world if kind != "map" else -1,
        num_train_epochs=data.EPOCHS,
        per_device_train_batch_size=data.BATCH_SIZE,
        dataloader_num_workers=workers,
        remove_unused_columns=False,
        disable_tqdm=True,
        learning_rate=0.1,
        **({"ddp_backend": "gloo"} if run.world > 1 else {}),
        logging_strategy="no",
        **(arguments or {}),
    )
    trainers = {"torch": Noting, "ours": OwnLoader if own else Exact}
    trainer_class = trainers.get(loader, Exact)
    trainer = trainer_class(Net(dropout), options, train_dataset=dataset(kind))
    trainer.run = run
    if own:
        trainer.workers = workers
    if loader == "ours without seed":
        trainer.loader_options = {"seed": None}
    folder = run.folder / f"checkpoint-{save_steps}"
    trainer.train(resume_from_checkpoint=str(folder) if run.resumes else None)
