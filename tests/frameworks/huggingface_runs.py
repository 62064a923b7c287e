"""Trainings with transformers.Trainer; the server of the tests imports this module."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DistributedSampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_jit_checkpoint import JITCheckpointCallback

from picklable_loader.integrations.huggingface import ExactResume

from . import data
from .accelerate_runs import Numbers, dataset
from .harness import Run


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = data.model(dropout=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]


class Noting(Trainer):
    run: Run
    #: the losses of the evaluation since the last step, of samples with noise
    evaluated = 0.0

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        loss = data.loss(model, inputs)
        self.run.note(inputs, loss, evaluated=self.evaluated)
        self.evaluated = 0.0
        return loss

    def prediction_step(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        loss = data.loss(model, inputs).detach()
        if self.run.steps != self.run.checkpoint:  # behind which a resumed run begins
            self.evaluated += loss.item()
        return loss, None, None


class Preempted(TrainerCallback):  # type: ignore[misc]
    """The grace after a SIGTERM ends in a hook of a step; the next hook saves the checkpoint."""

    def __init__(self, trainer: Any, hook: str, step: int) -> None:
        self.step = step
        (self.saves,) = [
            each
            for each in trainer.callback_handler.callbacks
            if isinstance(each, JITCheckpointCallback)
        ]
        setattr(self, hook, self._over)

    def _over(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            self.saves.jit_manager._enable_checkpoint()


class Predicts(TrainerCallback):  # type: ignore[misc]
    """It predicts within the training, from a loader with workers of its own."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % 4 == 0:
            self.trainer.predict(data.Map(data.SHORT))


class Exact(ExactResume, Noting):
    pass


class OwnLoader(Noting):
    """The program makes its loader itself."""

    def __init__(self, make: Callable[[], Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.make = make

    def get_train_dataloader(self) -> Any:
        return self.make()


class ExactOwnLoader(Exact, OwnLoader):
    def get_train_dataloader(self) -> Any:
        return self.prepare_loader(self.make())


def train(
    run: Run,
    loader: str,
    workers: int,
    exact: bool = False,
    kind: str = "map",
    own: bool = False,
    accumulate: int = 1,
    preempted: str | None = None,
    predicts: bool = False,
    quiet: bool = True,
    **arguments: Any,
) -> None:
    """Train with one of `data.LOADERS`.

    Args:
        exact: with `ExactResume`.
        own: the program makes the loader itself, also with `ExactResume`.
        accumulate: batches of an update.
        preempted: the hook in which a checkpoint "just in time" is asked for.
        predicts: every 4 steps, on samples with noise.
        arguments: of the Trainer.
    """
    if quiet:
        warnings.simplefilter("ignore")
    epochs, rest = divmod(run.checkpoint, data.BATCHES)
    save_steps = epochs * math.ceil(data.BATCHES / accumulate) + rest // accumulate
    options = TrainingArguments(
        output_dir=str(run.folder),
        use_cpu=True,
        report_to=[],
        save_strategy="no" if preempted else "steps",
        save_steps=save_steps,
        enable_jit_checkpoint=preempted is not None,
        max_steps=data.EPOCHS * data.BATCHES // run.world if kind != "map" else -1,
        num_train_epochs=data.EPOCHS,
        per_device_train_batch_size=data.BATCH_SIZE,
        gradient_accumulation_steps=accumulate,
        dataloader_num_workers=workers,
        remove_unused_columns=False,
        learning_rate=0.1,
        **({"ddp_backend": "gloo"} if run.world > 1 else {}),
        logging_strategy="no",
        **{"disable_tqdm": True, **arguments},
    )

    def make() -> Any:
        more: dict[str, Any] = {"sampler": Numbers()} if own else {}
        if run.world > 1:  # each has a way to share the data
            sampler = DistributedSampler(data.Map(), run.world, run.rank)
            more = {"shard": "auto"} if loader == "ours" else {"sampler": sampler}
        return data.loader(loader, dataset(kind), workers, **more)

    net, given = Net(), {"args": options, "train_dataset": dataset(kind)}
    given["eval_dataset"] = data.Map(data.SHORT)  # evaluated if the arguments say so
    trainer: Any
    if own or loader != "torch" and not exact:
        trainer = (ExactOwnLoader if exact else OwnLoader)(make, net, **given)
    else:
        trainer = (Exact if exact else Noting)(net, **given)
    trainer.run = run
    if loader == "ours without seed":
        trainer.loader_options = {"seed": None}
    if preempted and run.phase == "killed":
        step = save_steps - (preempted == "on_optimizer_step")  # which is not counted yet
        trainer.add_callback(Preempted(trainer, preempted, step))
    if predicts:
        trainer.add_callback(Predicts(trainer))
    folder = run.folder / f"checkpoint-{save_steps}"
    trainer.train(resume_from_checkpoint=str(folder) if run.resumes else None)
    if preempted and run.phase == "killed":
        run.die()


def unknown_version(run: Run) -> None:
    """A version of transformers that has renamed what the mixin overrides."""
    del Trainer._load_rng_state
    Exact(Net(), TrainingArguments(use_cpu=True))
