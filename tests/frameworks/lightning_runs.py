"""Trainings with Lightning; the server of the tests imports this module."""

from __future__ import annotations

import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from . import data
from .harness import Run

#: ModelCheckpoint's options: in mid-epoch or at an epoch's last step, after it, after validation
SAVES = {
    "epoch end": {"every_n_epochs": 1, "save_on_train_epoch_end": True},
    "validation end": {"every_n_epochs": 1, "save_on_train_epoch_end": False},
}


class Module(pl.LightningModule):
    def __init__(self, run: Run, dropout: float, estimated: bool) -> None:
        super().__init__()
        self.run, self.net, self.estimated = run, data.model(dropout), estimated

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = _loss(self.net, batch)
        self.run.note(batch, loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return data.loss(self.net, batch)

    def configure_optimizers(self) -> Any:
        if self.estimated:
            assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


def _loss(net: torch.nn.Module, batch: Any) -> torch.Tensor:
    if isinstance(batch, dict) and "x" not in batch:
        return torch.stack([data.loss(net, part) for part in batch.values() if part]).sum()
    return data.loss(net, batch)


def train(
    run: Run,
    loader: str,
    workers: int,
    kind: str = "map",
    save: str = "step",
    dropout: float = 0.0,
    estimated: bool = False,
    validation: bool = False,
    trainer: dict[str, Any] | None = None,
) -> None:
    """Train with one of `data.LOADERS` on data of one kind."""
    warnings.simplefilter("ignore")
    train_loader = data.loader(loader, data.DATASETS[kind](), workers)
    val_loader = data.loader(loader, data.Map(), workers, shuffle=False) if validation else None
    options = {"max_epochs": data.EPOCHS, **(trainer or {})}
    steps = run.checkpoint // options.get("accumulate_grad_batches", 1)
    saves = SAVES.get(save, {"every_n_train_steps": steps, "save_on_train_epoch_end": False})
    checkpoint = ModelCheckpoint(run.folder, "{step}", save_top_k=-1, **saves)
    fit = pl.Trainer(
        accelerator="cpu",
        devices=run.world,
        callbacks=[checkpoint],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    path = run.folder / f"step={steps}.ckpt" if run.resumes else None
    fit.fit(Module(run, dropout, estimated), train_loader, val_loader, ckpt_path=path)
