"""Lightning: a callback with which ``trainer.fit(ckpt_path=...)`` goes on exactly.

Lightning itself saves and loads the states of loaders, but it

* counts the batch that it has fetched ahead as trained on, where the data has no length;
* loads no state after a checkpoint at an epoch's end, or if `estimated_stepping_batches` was read;
* gives the state of rank 0 to every rank, and does not save the random number generators.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, warn
from ..loader.iterator import LoaderIterator
from ..loader.loader import DataLoader
from ..loader.setup import spec_of
from ..rng.program import capture_program
from .fabric import LoaderStates

if TYPE_CHECKING or ("pytorch_lightning" in sys.modules and "lightning" not in sys.modules):
    from pytorch_lightning import callbacks
else:
    try:
        from lightning.pytorch import callbacks
    except ImportError:
        from pytorch_lightning import callbacks

_TRIED = "2.5.6 and 2.6.6"
#: how the names of checkpoints begin that Lightning's Tuner saves, and restores in the same run
_TUNERS = (".lr_find_", ".scale_batch_size_")
#: what the callback reads of a trainer and is no public interface
_PRIVATE = (
    "_combined_loader",
    "_data_fetcher",
    "_last_train_dl_reload_epoch",
    "_restarting",
    "_should_reload_train_dl",
    "_resuming_from_checkpoint",
    "reset_restart_stage",
    "restarted_mid_epoch",
    "restarted_on_epoch_end",
    "restarted_on_epoch_start",
    "setup_data",
    "epoch_progress.current.completed",
    "epoch_progress.current.processed",
    "epoch_progress.current.started",
    "epoch_loop.batch_progress.total.ready",
    "epoch_loop.batch_progress.current.ready",
    "epoch_loop.batch_progress.current.started",
    "epoch_loop.batch_progress.current.processed",
    "epoch_loop.batch_progress.current.completed",
    "epoch_loop._batches_that_stepped",
    "epoch_loop._num_ready_batches_reached",
    "epoch_loop._restarting",
    "epoch_loop._should_accumulate",
    "epoch_loop._should_check_val_fx",
    "epoch_loop.reset_restart_stage",
    "epoch_loop.restarted_on_last",
    "epoch_loop.restarted_on_train_batch_end",
    "epoch_loop.val_loop._combined_loader",
    "epoch_loop.val_loop.setup_data",
)
#: callbacks that count epochs, and do not change what the checkpoint has
_BY_EPOCH = (
    callbacks.GradientAccumulationScheduler,
    callbacks.ProgressBar,
    callbacks.StochasticWeightAveraging,
)
#: of loaders that begin again within an epoch
_OF_CYCLES = ("_combined_loader._iterator._consumed",)


class ResumeLoaders(callbacks.Callback):  # type: ignore[misc]
    """Exact resumes: ``Trainer(callbacks=[ResumeLoaders(), ModelCheckpoint(...)])``.

    The training loaders must be `DataLoader` of this package, best with ``seed=``. The checkpoint
    then holds the state of each of them, on each rank, without what Lightning has fetched ahead;
    and the program's random number generators, for dropout. Tried with Lightning 2.5.6 and 2.6.6.

    Raises:
        UsageError: when training starts; a loader is another one, the loaders are combined by
            ``mode="max_size"``, or this version of Lightning lacks what the callback reads.
    """

    def __init__(self) -> None:
        self._trainer: Any = None
        self._loaded: dict[str, Any] | None = None
        #: when the training ended; Lightning then drops what it has fetched ahead
        self._last: dict[str, Any] | None = None
        #: the last state is of an epoch that was stopped within
        self._stopped = False
        #: the loaders of the epoch; `reload_dataloaders_every_n_epochs` has others made
        self._combined: Any = None
        #: of the step that began last: its number, and the program's generators before it
        self._begun: tuple[int, dict[str, Any]] | None = None
        #: callbacks do not know the epoch that the training goes on with
        self._callbacks_wait = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._trainer, self._loaded, self._last, self._begun = trainer, None, None, None
        _check_version(trainer.fit_loop, _PRIVATE)

    @property
    def iterators(self) -> list[LoaderIterator[Any]]:
        """Iterators of the training loaders that Lightning reads now, for example for `tell`."""
        combined = None if self._trainer is None else self._trainer.fit_loop._combined_loader
        running = None if combined is None else combined._iterator
        return [] if running is None else [*running.iterators]

    # --- save ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks; Lightning calls it on each of them."""
        fit = self._trainer.fit_loop
        if fit._combined_loader is None:
            return {}
        state = self._last or {} if fit._data_fetcher is None else self._state(fit)
        if state and self._stopped:
            warn(
                "this checkpoint is saved after its epoch was stopped within, which Lightning "
                "counts as a whole one: a resumed run trains on the rest, and its epochs end later "
                "than Lightning counts. Save before: ModelCheckpoint(every_n_train_steps=)"
            )
        return state

    def _state(self, fit: Any) -> dict[str, Any]:
        progress = fit.epoch_loop.batch_progress
        ahead = len(getattr(fit._data_fetcher, "batches", ()))
        # A batch that an exception has interrupted is trained on again, also one that had not yet
        # begun its step: it was fetched, and another one or its way to the device came to nothing.
        begun = progress.current.ready - progress.current.processed
        fetched = fit._data_fetcher.fetched - ahead - progress.current.processed
        untrained = max(begun, fetched) if hasattr(fit._data_fetcher, "batches") else begun
        reached = fit.epoch_loop._num_ready_batches_reached()
        over = _between_epochs(fit)
        self._stopped = over and not (reached or fit._data_fetcher.done)
        epoch_over = not untrained and (reached or over and not self._stopped)
        if not untrained and progress.current.completed < progress.current.ready:
            if fit.epoch_loop._should_check_val_fx(fit._data_fetcher):
                warn(
                    "this checkpoint is saved before a validation, which Lightning omits when it "
                    "resumes from here: save after it, "
                    "ModelCheckpoint(save_on_train_epoch_end=False)"
                )
        if not epoch_over and progress.current.processed % self._trainer.accumulate_grad_batches:
            warn(
                "this checkpoint is saved between two optimizer steps, and Lightning saves no "
                "gradients: a resume is not exact"
            )
        combined = fit._combined_loader
        if combined._mode == "max_size_cycle" and combined._iterator is not None:
            _check_version(fit, _OF_CYCLES)
        states = LoaderStates(*combined.flattened)
        step, program = self._begun or (None, {})
        if not begun or step != progress.total.ready:
            program = capture_program()
        return {
            **states._of_all_ranks(ahead + untrained, program),
            "validation": LoaderStates(*_of_validation(fit), rng=False).state_dict(),
            "validates": fit.epoch_loop.val_loop._combined_loader is not None,
            "epoch_over": epoch_over,
            "made_at": fit._last_train_dl_reload_epoch,
            "consumed": list(getattr(combined._iterator, "_consumed", ())),
        }

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._last = self._state(trainer.fit_loop)

    # --- load ------------------------------------------------------------------------------------

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Remember the states until the loaders are there."""
        if trainer.state.fn != "fit":
            return
        if Path(str(trainer.ckpt_path)).name.startswith(_TUNERS):
            self._tuned()
            return
        self._loaded = checkpoint.get("callbacks", {}).get(self.state_key)
        if self._loaded is None:
            warn("the checkpoint was saved without ResumeLoaders: this resume is not exact")
            return
        # Lightning would give rank 0's states, which are ahead, to every rank.
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)

    def _tuned(self) -> None:
        """The Tuner is over: the training begins with its loaders, and without its checkpoint."""
        if self._loaded is not None:
            warn(
                "LearningRateFinder or BatchSizeFinder has run in a resumed fit. Lightning then "
                "trains from epoch 0 on, with the checkpoint's weights: leave that callback out of "
                "a trainer that resumes"
            )
        self._loaded = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        fit, state = trainer.fit_loop, self._loaded
        if state is not None:
            _make_again(fit, state.get("made_at", trainer.current_epoch), state["epoch_over"])
        _check_version(fit, _of_training(fit))
        self._combined = combined = fit._combined_loader
        states = LoaderStates(*combined.flattened)
        if combined._mode == "max_size" and len(combined.flattened) > 1:
            raise UsageError(
                'CombinedLoader(mode="max_size") cannot go on exactly after a loader has ended: '
                'take mode="max_size_cycle" or "min_size"'
            )
        if len(combined.flattened) > 1 and any(each.seed is None for each in combined.flattened):
            warn(
                "combined loaders without seed= draw from one generator: a resume is not exact "
                "where an epoch leaves one in its middle; pass seed="
            )
        if state is None:
            return
        self._loaded, self._callbacks_wait = None, True
        if fit.epoch_loop.val_loop._combined_loader is None and state["validates"]:
            trainer.validating = True
            fit.epoch_loop.val_loop.setup_data()
            trainer.training = True
        validation = LoaderStates(*_of_validation(fit), rng=False)
        validation.load_state_dict(state["validation"], epoch_over=True)
        states.load_state_dict(state, epoch_over=state["epoch_over"])
        saved = zip(combined.flattened, state["ranks"][0]["loaders"], strict=True)
        other_ranks = any(
            each["fits"].get("world_size", 1) != spec_of(loader).shard.world
            for loader, each in saved
        )
        if state["epoch_over"]:
            _end_epoch(fit)
        elif other_ranks:
            _count_batches(fit)
        else:
            _end_batch(fit.epoch_loop)
        if state["epoch_over"]:
            return
        iter(fit._data_fetcher)
        if state["consumed"]:
            now = combined._iterator._consumed
            combined._iterator._consumed = [*map(max, now, state["consumed"])]

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._callbacks_wait = False
        combined, epoch = trainer.fit_loop._combined_loader, trainer.current_epoch
        if combined is not self._combined:
            self._combined = combined
            LoaderStates(*combined.flattened)  # which refuses loaders that are not ours
            for loader in combined.flattened:
                # A new one would have the order of epoch 0 again. Lightning may have begun a pass
                # too many of one that came before.
                if loader.seed is not None or loader.epoch < epoch:
                    loader.set_epoch(epoch)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Lightning calls no ``on_train_epoch_start`` for the rest of an epoch."""
        # An exception in this step leaves the generators after its dropout.
        self._begun = trainer.fit_loop.epoch_loop.batch_progress.total.ready, capture_program()
        if self._callbacks_wait:
            groups = [group for each in trainer.optimizers for group in each.param_groups]
            rates = [group["lr"] for group in groups]
            for callback in trainer.callbacks:
                if isinstance(callback, _BY_EPOCH):
                    callback.on_train_epoch_start(trainer, pl_module)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate  # which a new scheduler of the averaging has set
        self._callbacks_wait = False


def _make_again(fit: Any, epoch: int, epoch_over: bool) -> None:
    """Have the program make its loaders as it did at that epoch, not at the one of the resume.

    `reload_dataloaders_every_n_epochs` counts from there; Lightning does not save it.
    """
    if not fit.trainer.reload_dataloaders_every_n_epochs:
        return
    if fit._last_train_dl_reload_epoch != epoch:
        epochs = fit.epoch_progress.current
        now, epochs.completed = epochs.completed, epoch  # which is `trainer.current_epoch`
        fit._combined_loader = None
        fit.setup_data()
        epochs.completed = now
    if not epoch_over and fit._should_reload_train_dl:  # it was saved under another number
        fit._last_train_dl_reload_epoch = fit.trainer.current_epoch


def _between_epochs(fit: Any) -> bool:
    """An epoch has ended, be it before its known length, and the next one has not begun."""
    epochs = fit.epoch_progress.current
    return bool(0 < epochs.processed == epochs.started)


def _count_batches(fit: Any) -> None:
    """Lightning's counters in mid-epoch, after a checkpoint of another number of ranks.

    An epoch has another number of batches now. Lightning would end it at the index that the
    earlier ranks had reached, and lose the remaining batches.
    """
    combined, loop = fit._combined_loader, fit.epoch_loop
    ends = min if combined._mode == "min_size" else max
    steps = (loader._at()[1] for loader in combined.flattened)
    _, step = ends(zip(combined.limits, steps, strict=True))
    now = loop.batch_progress.current
    now.ready = now.started = now.processed = step
    now.completed = step - loop.restarted_on_train_batch_end  # `reset` counts that one


def _end_batch(loop: Any) -> None:
    """Lightning's counters, after a checkpoint in ``on_train_batch_end``.

    Lightning itself does this (`_TrainingEpochLoop.reset`) until an ``on_train_batch_start`` has
    returned -1: its totals then never agree again, and it counts the batch a second time.
    """
    now = loop.batch_progress.current
    if now.completed < now.processed and not loop.restarted_on_train_batch_end:
        loop.batch_progress.increment_completed()


def _end_epoch(fit: Any) -> None:
    """Lightning's counters, after a checkpoint at an epoch's last step, or before the next begins.

    Lightning itself would go on within that epoch: the next one has no ``on_train_epoch_start``, is
    not counted as begun, and begins before that hook; or it goes on with the number of a batch.
    """
    loop, epochs, fetcher = fit.epoch_loop, fit.epoch_progress, fit._data_fetcher
    fetcher.reset()
    fetcher.done = True  # as after an epoch; Lightning begins the next pass after its hook
    if fit.restarted_mid_epoch and loop.restarted_on_last:
        return  # saved after a validation: Lightning ends that epoch, with its hooks
    if loop.restarted_on_train_batch_end:
        loop.batch_progress.increment_completed()
        loop._batches_that_stepped += not loop._should_accumulate()
    if fit.restarted_mid_epoch and epochs.current.processed < epochs.current.started:
        epochs.increment_processed()
        epochs.increment_completed()
    if fit.restarted_on_epoch_end:
        epochs.increment_completed()
    if not fit.restarted_on_epoch_start:  # which is counted as begun
        fit.reset_restart_stage()
    loop.reset_restart_stage()
    fit._restarting = loop._restarting = fit._resuming_from_checkpoint = False


def _of_validation(fit: Any) -> list[Any]:
    """The validation loaders that have states; others go on as the program makes them."""
    combined = fit.epoch_loop.val_loop._combined_loader
    loaders = [] if combined is None else combined.flattened
    return [loader for loader in loaders if isinstance(loader, DataLoader)]


def _check_version(fit: Any, paths: tuple[str, ...]) -> None:
    missing = [path for path in paths if not _has(fit, path)]
    if missing:
        raise UsageError(
            f"ResumeLoaders was tried with Lightning {_TRIED}. This version has no "
            f"{', '.join(f'trainer.fit_loop.{path}' for path in missing)}: a resume would not be "
            "exact. Install one of these, or report this text to picklable_loader"
        )


def _of_training(fit: Any) -> tuple[str, ...]:
    """The attributes of loaders and fetcher that the callback reads from a training's start on."""
    loaders = ("flattened", "limits", "_iterator", "_mode")
    by_the_step = type(fit._data_fetcher).__name__ == "_DataLoaderIterDataFetcher"
    fetcher = ("done", "fetched", "reset", *(() if by_the_step else ("batches",)))
    names = {"_combined_loader": loaders, "_data_fetcher": fetcher}
    return tuple(f"{thing}.{name}" for thing in names for name in names[thing])


def _has(thing: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(thing, name):
            return False
        thing = getattr(thing, name)
    return True
