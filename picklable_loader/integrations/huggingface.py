"""transformers.Trainer: ``resume_from_checkpoint`` that goes on exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import transformers.trainer
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from ..errors import UsageError, warn
from ..loader.loader import DataLoader
from ..rng.program import ProgramStates, capture_program
from .accelerate import TORCHS, build, skip_first_batches
from .accelerate_prepared import Prepared

TRIED = "5.24.0"

_HOOKS = (
    (transformers.trainer, "skip_first_batches"),
    (transformers.Trainer, "_get_output_dir"),
    (transformers.Trainer, "_load_rng_state"),
    (transformers.Trainer, "_save_checkpoint"),
    (transformers.Trainer, "get_batch_samples"),
    (transformers.Trainer, "get_eval_dataloader"),
    (transformers.Trainer, "get_train_dataloader"),
)


class ExactResume:
    """A mixin for `transformers.Trainer` and its subclasses, which goes before them.

    ::

        class MyTrainer(ExactResume, Trainer): ...

    Training data comes from a `DataLoader` of this package, with the Trainer's own settings. Its
    state is in each checkpoint, and ``train(resume_from_checkpoint=...)`` goes on from it. Tried
    with transformers 5.24.0 and accelerate 1.15.0.
    """

    #: options of `DataLoader`, for example ``{"seeding": "sample"}``
    loader_options: dict[str, Any] = {}
    accelerator: Any
    args: Any
    state: Any
    callback_handler: Any
    is_in_train: bool
    _generators_are_back = False
    #: of a step that has begun: its number, its batches, and the generators before it
    _begun: tuple[int, int, dict[str, Any]] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise UsageError where the Trainer's methods would hide these."""
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        if transformers.Trainer in order[: order.index(ExactResume)]:
            raise UsageError(
                f"class {cls.__qualname__}: the Trainer is named before ExactResume, and would "
                "train without it. Name it first: class MyTrainer(ExactResume, Trainer)"
            )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self, transformers.Trainer):
            raise UsageError(
                f"{type(self).__qualname__} is no transformers.Trainer, which ExactResume needs: "
                "class MyTrainer(ExactResume, Trainer)"
            )
        for holder, name in _HOOKS:
            if not hasattr(holder, name):
                raise _unknown(name)
        super().__init__(*args, **kwargs)
        for holder, name in ((self, "is_in_train"), (self.callback_handler, "train_dataloader")):
            if not hasattr(holder, name):
                raise _unknown(name)
        self._picklable_loader = _InCheckpoints()
        self.add_callback(self._picklable_loader)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kw: Any) -> Any:
        """See `transformers.Trainer.train`."""
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        self._picklable_loader.folder = None if not folder else Path(str(folder))
        self._generators_are_back, self._begun = False, None
        with mock.patch.object(transformers.trainer, "skip_first_batches", self._skipped):
            return super().train(resume_from_checkpoint, *args, **kw)  # type: ignore[misc]

    def _skipped(self, loader: Any, count: int = 0) -> Any:
        """The Trainer's loader at the step of the checkpoint, where a loaded state has it."""
        if not isinstance(loader, Prepared) or loader.lead == 0:
            return skip_first_batches(loader, count)
        # The Trainer does so after the first batch: too late if an epoch begins with a draw.
        self._load_rng_state(str(self._picklable_loader.folder))
        self._generators_are_back = True
        return loader

    def _load_rng_state(self, checkpoint: Any) -> None:
        if not self._generators_are_back:
            super()._load_rng_state(checkpoint)  # type: ignore[misc]

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """The batches of a step."""
        batches, items = super().get_batch_samples(*args, **kwargs)  # type: ignore[misc]
        if self.args.enable_jit_checkpoint:
            self._begun = self.state.global_step, len(batches), capture_program()
        return batches, items

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step, untrained, generators = self._begun or (None, 0, None)
        within = step == self.state.global_step  # where a checkpoint "just in time" may come
        now = capture_program() if within else None
        if within:
            ProgramStates(generators).restore()
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        if within:
            ProgramStates(now).restore()
        if not self.state.is_hyper_param_search:  # its checkpoints are elsewhere; nobody resumes
            run = Path(self._get_output_dir(trial))  # type: ignore[attr-defined]
            loader = _prepared(self.callback_handler.train_dataloader)
            behind = untrained if within else 0
            loader.save(run / f"checkpoint-{self.state.global_step}", behind)

    def get_train_dataloader(self) -> Any:
        """The loader of the training data: that which the Trainer would build, as ours."""
        with mock.patch.object(self.accelerator, "prepare", lambda loader: loader):
            theirs = super().get_train_dataloader()  # type: ignore[misc]
        return self.prepare_loader(theirs)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The loader of an evaluation; within a training each has its own workers.

        Torch's persistent ones go on with their generators, and draw no seed from the program's. A
        resumed run starts them anew, so its evaluations and its dropout would be other ones.
        """
        persistent = self.args.dataloader_persistent_workers and not self.is_in_train
        with mock.patch.object(self.args, "dataloader_persistent_workers", persistent):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]

    def prepare_loader(self, loader: TorchDataLoader[Any]) -> Any:
        """Prepare a loader, in a ``get_train_dataloader`` of your own.

        Args:
            loader: of this package or torch's, of which one of this package is built.
        """
        if not isinstance(loader, DataLoader):
            loader = _rebuilt(loader, {"seed": self._seed, **self.loader_options})
        prepared = build(self.accelerator, loader, "next")
        if self.args.enable_jit_checkpoint:
            prepared.remember(self.args.gradient_accumulation_steps)
        return prepared

    @property
    def _seed(self) -> int:
        seed = self.args.data_seed
        return int(self.args.seed if seed is None else seed)


class _InCheckpoints(TrainerCallback):  # type: ignore[misc]
    """The state of the training loader, in each checkpoint."""

    #: from which the training goes on; None: it begins
    folder: Path | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loader, folder = _prepared(kwargs["train_dataloader"]), self.folder
        if folder is None:
            return
        if loader.has_saved(folder):
            loader.load(folder)
            loader.lead = None  # without a length, the Trainer counts epochs from 0 again
            return
        warn(
            f"{folder} has no state of the training data: it was saved by a Trainer without "
            "picklable_loader's ExactResume. The training goes on at the same step of the same "
            "epoch, and maybe with another order of samples",
        )


def _prepared(loader: Any) -> Prepared:
    if isinstance(loader, Prepared):
        return loader
    raise UsageError(
        "get_train_dataloader returns a loader that is not prepared: return "
        "self.prepare_loader(loader)"
    )


def _unknown(name: str) -> UsageError:
    return UsageError(
        f"transformers {transformers.__version__} is not as this adapter knows it: the Trainer has "
        f"no {name}. It was tried with transformers {TRIED}: install that one, or a newer "
        "picklable_loader"
    )


def _rebuilt(loader: Any, options: dict[str, Any]) -> DataLoader[Any]:
    arguments = {name: getattr(loader, name) for name in TORCHS}
    if type(loader.batch_sampler).__name__ == "BatchRebalanceSampler":
        raise UsageError(
            "the Trainer's BatchRebalanceSampler shares the data itself, and cannot be saved: "
            "choose another train_sampling_strategy"
        )
    if loader.batch_size is None and loader.batch_sampler is not None:
        arguments["batch_sampler"] = loader.batch_sampler
    else:
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if not isinstance(loader.dataset, IterableDataset):
            arguments["sampler"] = loader.sampler
    return DataLoader(loader.dataset, **arguments, **options)
