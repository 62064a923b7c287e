"""Trainings with Lightning; the server of the tests imports this module."""

from __future__ import annotations

import json
import math
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    TQDMProgressBar,
)
from lightning.pytorch.utilities import CombinedLoader

from picklable_loader.errors import UsageError
from picklable_loader.integrations.fabric import LoaderStates
from picklable_loader.integrations.lightning import ResumeLoaders

from . import data
from .harness import Run


class Module(pl.LightningModule):
    def __init__(self, run: Run, dropout: float, estimated: bool) -> None:
        super().__init__()
        self.run, self.net, self.estimated = run, data.model(dropout), estimated
        #: a step that raises, or whose batch raises on its way to the device
        self.fails: int | None = None
        self.fails_before = False
        #: the losses of validation so far, which has noise as well
        self.register_buffer("validated", torch.zeros(()))

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if self.fails_before and self.run.steps == self.fails:
            raise Fails
        return batch

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = _loss(self.net, batch)
        if self.run.steps == self.fails:
            raise Fails
        self.run.note(batch, loss, validated=self.validated)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            self.validated += data.loss(self.net, batch).item()

    def configure_optimizers(self) -> Any:
        if self.estimated:
            assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


class Saves(pl.Callback):
    """Saves a checkpoint in a hook, after the step at which the run asks for one."""

    def __init__(self, run: Run, hook: str) -> None:
        self.run = run
        setattr(self, hook, self._save)

    def _save(self, trainer: Any, *_: Any) -> None:
        if self.run.steps == self.run.checkpoint and not self.run.resumes:
            trainer.save_checkpoint(self.run.folder / "saved.ckpt")


def _loss(net: torch.nn.Module, batch: Any) -> torch.Tensor:
    if "x" not in batch:  # of several loaders
        return torch.stack([data.loss(net, part) for part in batch.values()]).sum()
    return data.loss(net, batch)


class DataModule(pl.LightningDataModule):
    """It makes a new loader whenever it is asked, or the first time only."""

    def __init__(self, make: Callable[[], Any], once: bool, grows: bool) -> None:
        super().__init__()
        self.make, self.once, self.grows = make, once, grows
        self.made: Any = None

    def train_dataloader(self) -> Any:
        if self.made is None or not self.once:
            self.made = self.make()
        if self.grows:
            self.made.dataset.first = data.SIZE * self.trainer.current_epoch
        return self.made


def _loaders(run: Run, loader: str, workers: int, kind: str, **options: Any) -> Any:
    if kind == "own sampler":
        sampler = data.ShardedBatches(run.rank, run.world)
        return data.loader(loader, data.Map(), workers, batch_sampler=sampler)
    if kind.startswith("shard"):
        twice: Any = data.SizedStream if kind == "shard stream" else data.Map
        streams = {"num_streams": 4} if kind == "shard stream" else {}
        return data.loader(loader, twice(2 * data.SIZE), workers, shard="auto", **streams)
    if ":" not in kind:
        return data.loader(loader, data.DATASETS[kind](), workers, **options)
    mode, kind = kind.split(":")
    long, short = kind.split("+") if "+" in kind else (kind, kind)
    both = {"a": data.DATASETS[long](), "b": data.DATASETS[short](data.SHORT)}
    made = {name: data.loader(loader, each, workers) for name, each in both.items()}
    return CombinedLoader(made, mode)


class Fails(Exception):
    pass


def train(
    run: Run,
    loader: str,
    workers: int,
    kind: str = "map",
    save: str = "step",
    callback: bool = False,
    dropout: float = 0.0,
    estimated: bool = False,
    validation: bool = False,
    module: bool = False,
    once: bool = False,
    grows: bool = False,
    persistent: bool = False,
    schedule: dict[str, int] | None = None,
    annealing: int | None = None,
    quiet: bool = True,
    fails: int | None = None,
    **options: Any,
) -> None:
    """Train with one of `data.LOADERS` on data of one kind; other options are the trainer's."""
    if quiet:
        warnings.simplefilter("ignore")
    more = {"remember": 2} if loader.startswith("ours") and "exception" in save else {}
    if persistent and workers:
        more["persistent_workers"] = True
    make = partial(_loaders, run, loader, workers, kind, **more)
    val_loader = data.loader(loader, data.Map(), workers, shuffle=False) if validation else None
    net = Module(run, dropout, estimated)
    killed = run.phase == "killed"
    net.fails = run.checkpoint if "exception" in save and killed else fails
    net.fails_before = save == "exception before a step"
    if save == "after fit" and killed:
        epochs, rest = divmod(run.checkpoint, data.BATCHES)
        options |= {"max_steps": run.checkpoint} if rest else {"max_epochs": epochs}
    callbacks = [*_saves(run, save, options), *([ResumeLoaders()] if callback else [])]
    if schedule:
        by_epoch = {int(epoch): batches for epoch, batches in schedule.items()}
        callbacks.append(GradientAccumulationScheduler(by_epoch))
    if annealing is not None:
        callbacks.append(StochasticWeightAveraging(0.01, 1, annealing_epochs=annealing))
    if options.get("enable_progress_bar"):
        callbacks.append(TQDMProgressBar())
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=run.world,
        callbacks=callbacks,
        logger=False,
        enable_model_summary=False,
        **{"max_epochs": data.EPOCHS, "enable_progress_bar": False, **options},
    )
    data_of = {"datamodule": DataModule(make, once, grows)} if module else {}
    data_of = data_of or {"train_dataloaders": make(), "val_dataloaders": val_loader}
    path = next(run.folder.glob("*.ckpt")) if run.resumes else None
    try:
        trainer.fit(net, ckpt_path=path, **data_of)
    except Fails:
        run.die()
    if save == "after fit" and killed:
        trainer.save_checkpoint(run.folder / "saved.ckpt")
        run.die()


def _saves(run: Run, save: str, options: dict[str, Any]) -> list[pl.Callback]:
    """What saves exactly one checkpoint before the run is killed."""
    if "exception" in save:
        return [OnExceptionCheckpoint(run.folder, "saved")]
    if save == "after fit":
        return []
    if save.startswith("on_"):
        return [Saves(run, save)]
    accumulate = options.get("accumulate_grad_batches", 1)
    epochs, rest = divmod(run.checkpoint, data.BATCHES)
    steps = epochs * math.ceil(data.BATCHES / accumulate) + rest // accumulate
    every = {"every_n_train_steps": steps, "save_on_train_epoch_end": False}
    if save != "step":
        epochs = 1 if run.world > 1 or save == "each epoch end" else 2
        every = {"every_n_epochs": epochs, "save_on_train_epoch_end": save.endswith("epoch end")}
    return [ModelCheckpoint(run.folder, "saved", save_top_k=-1, **every)]


class Curriculum(data.Map):
    """Samples of its epoch, which the module's hook sets."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> data.Sample:
        return data.sample(index + 100 * self.epoch)


class StreamedCurriculum(data.Stream):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        yield from (data.sample(index + 100 * self.epoch) for index in range(self.size))


class Numbered(pl.LightningModule):
    """It records its steps, with the numbers that Lightning gives these."""

    def __init__(self, skips: tuple[int, int] | None) -> None:
        super().__init__()
        self.net, self.skips = data.model(), skips
        self.steps: list[Any] = []
        self.epochs: list[int] = []
        self.validations: list[int] = []

    def on_train_epoch_start(self) -> None:
        self.epochs.append(self.current_epoch)
        self.trainer.train_dataloader.set_epoch(self.current_epoch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if (self.current_epoch, batch_idx) == self.skips else None

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = data.loss(self.net, batch)
        ids = batch["id"].tolist()
        self.steps.append([self.current_epoch, batch_idx, self.global_step, ids, loss.item()])
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.validations.append(self.global_step)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.01)


class SavesAlways(pl.Callback):
    """Saves in each call of some hooks: ``NAME-HOOK-STEPS.ckpt``."""

    def __init__(self, name: str, steps: int, hooks: set[str]) -> None:
        self.name, self.steps = name, steps
        for hook in hooks:
            setattr(self, hook, partial(self._save, hook))

    def _save(self, hook: str, trainer: Any, module: Numbered, *_: Any) -> None:
        steps = self.steps + len(module.steps)
        trainer.save_checkpoint(f"{self.name}-{hook}-{steps}.ckpt")


def resumed_twice(
    run: Run,
    kind: str,
    saves: list[list[Any]],
    skips: list[int] | None = None,
    validation: bool = False,
    **options: Any,
) -> None:
    """A whole run; another one that is resumed from it, and one that is resumed from that one.

    Args:
        run: the test's.
        kind: "map" or "stream".
        saves: hook and number of steps of each of the two checkpoints.
        skips: epoch and batch at which ``on_train_batch_start`` returns -1.
        validation: with a validation loader.
        options: the trainer's.
    """
    warnings.simplefilter("ignore")
    found, name, path, begun = [], "whole", None, 0
    for resumed in (*saves, None):
        torch.manual_seed(0)
        dataset: Any = Curriculum() if kind == "map" else StreamedCurriculum()
        net = Numbered(tuple(skips) if skips else None)  # type: ignore[arg-type]
        always = SavesAlways(name, begun, {"on_train_batch_end", saves[0][0]})
        trainer = pl.Trainer(
            accelerator="cpu",
            callbacks=[ResumeLoaders(), always],
            logger=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            num_sanity_val_steps=0,
            **{"max_epochs": data.EPOCHS, **options},
        )
        made = data.loader("ours", dataset, 0)
        val_loader = data.loader("ours", data.Map(), 0, shuffle=False) if validation else None
        trainer.fit(net, made, val_loader, ckpt_path=path)
        found.append([begun, net.steps, net.epochs, net.validations])
        if resumed is not None:
            path = f"{name}-{resumed[0]}-{resumed[1]}.ckpt"
            name, begun = f"{name}-again", resumed[1]
    (run.folder / "found.json").write_text(json.dumps(found))


def fabric(run: Run, loader: str, workers: int, kind: str = "map", states: bool = False) -> None:
    """A loop of one's own with Fabric; the loader is in what is saved, or its `LoaderStates`."""
    lightning_fabric = Fabric(accelerator="cpu", devices=run.world)
    lightning_fabric.launch()
    net = data.model(dropout=0.5)
    net, optimizer = lightning_fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    made = lightning_fabric.setup_dataloaders(
        _loaders(run, loader, workers, kind), use_distributed_sampler=kind == "map"
    )
    state = {"model": net, "optimizer": optimizer, "epoch": 0}
    state["loaders"] = LoaderStates(made) if states else made
    if run.resumes:
        lightning_fabric.load(run.folder / "saved.ckpt", state)
    while state["epoch"] < data.EPOCHS:
        for batch in made:
            optimizer.zero_grad()
            loss = data.loss(net, batch)
            lightning_fabric.backward(loss)
            optimizer.step()
            run.note(batch, loss)
            if run.steps == run.checkpoint:
                lightning_fabric.save(run.folder / "saved.ckpt", state)
        state["epoch"] += 1


def without_callback_then_with(run: Run) -> None:
    """A checkpoint that was saved without `ResumeLoaders` is resumed with it."""
    for callbacks, path in ([], None), ([ResumeLoaders()], "saved.ckpt"):
        made = data.loader("ours", data.Map(), 0)
        trainer = pl.Trainer(max_epochs=1, callbacks=callbacks, accelerator="cpu", logger=False)
        trainer.fit(Module(run, 0.0, False), made, ckpt_path=path)
        trainer.save_checkpoint("saved.ckpt")


class Tunable(Module):
    lr, batch_size = 0.1, 2

    def train_dataloader(self) -> Any:
        return data.loader("ours", self.dataset, 0, batch_size=self.batch_size)

    def val_dataloader(self) -> Any:
        return data.loader("ours", data.Map(), 0, shuffle=False)


def tuned(run: Run, kind: str, resumes: bool = False) -> None:
    """Lightning's Tuner runs as two callbacks, whose checkpoints come and go within the run."""
    finders = [LearningRateFinder(num_training_steps=13), BatchSizeFinder(max_trials=2)]
    fits = [(1, []), (2, finders[:1])] if resumes else [(2, finders)]
    path = None
    for epochs, tuners in fits:
        trainer = pl.Trainer(
            max_epochs=epochs,
            callbacks=[ResumeLoaders(), *tuners],
            default_root_dir=run.folder,
            enable_checkpointing=False,
            accelerator="cpu",
            logger=False,
        )
        net = Tunable(run, 0.0, False)
        net.dataset = data.DATASETS[kind]()
        trainer.fit(net, ckpt_path=path)
        trainer.save_checkpoint(path := run.folder / "saved.ckpt")
    print("trained to the end")


def unknown_version(run: Run) -> None:
    """A version of Lightning that has renamed what the callback reads."""
    for name in "_data_fetcher", "batches", "_consumed":
        try:
            _fit_without(run, name)
        except (UsageError, AttributeError):  # Lightning itself needs the first one to clean up
            traceback.print_exc()


def _fit_without(run: Run, name: str) -> None:
    callback = ResumeLoaders()
    trainer = pl.Trainer(callbacks=[callback], accelerator="cpu", logger=False)
    if name == "_data_fetcher":
        del trainer.fit_loop._data_fetcher
    elif name == "batches":
        callback.on_train_start = partial(_without_batches, callback)
    else:
        callback.on_train_epoch_end = partial(_without_consumed, callback)
    loaders = {each: data.loader("ours", data.Map(), 0) for each in ("one", "two")}
    trainer.fit(Module(run, 0.0, False), CombinedLoader(loaders, "max_size_cycle"))


def _without_batches(callback: ResumeLoaders, trainer: Any, module: Any) -> None:
    del trainer.fit_loop._data_fetcher.batches
    ResumeLoaders.on_train_start(callback, trainer, module)


def _without_consumed(callback: ResumeLoaders, trainer: Any, module: Any) -> None:
    del trainer.fit_loop._combined_loader._iterator._consumed
    callback.state_dict()


def unknown_fabric(run: Run) -> None:
    """A version of Fabric that has renamed what `LoaderStates` reads."""
    made = Fabric(accelerator="cpu").setup_dataloaders(data.loader("ours", data.Map(), 0))
    del made._dataloader
    LoaderStates(made)
