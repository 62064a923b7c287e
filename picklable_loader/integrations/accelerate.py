"""Accelerate: prepared loaders that are still this package's, and go on exactly."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

import accelerate
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderDispatcher, DataLoaderShard
from torch.utils.data import BatchSampler, IterableDataset

from ..core.checks import check_choice
from ..epoch.options import OPTIONS, AtEpochEnd
from ..errors import UsageError, warn
from ..loader.loader import DataLoader
from ..rng.process_rank import rank_and_world
from .accelerate_batches import batches_of_ranks
from .accelerate_prepared import Prepared, PreparedDispatcher, PreparedShard, state_file

TRIED = "1.15.0"


def prepare(
    accelerator: accelerate.Accelerator,
    loader: DataLoader[Any],
    at_epoch_end: AtEpochEnd | None = None,
) -> Any:
    """`Accelerator.prepare` for a loader of this package: Accelerate would build torch's of it.

    The result does what Accelerate's does: each process has its share, by ``split_batches``,
    ``even_batches`` and ``dispatch_batches``; batches are on the accelerator's device; gradients
    are synchronised at the end of an epoch. ``accelerator.save_state`` and ``load_state`` save its
    position. A loader with ``shard=`` shares the data itself.

    Args:
        accelerator: the program's.
        loader: not iterated yet, and without a loaded state.
        at_epoch_end: the pass that follows a checkpoint of an epoch's last step. ``"next"`` is the
            next epoch, for a loop over ``range(step // len(loader), epochs)``. ``"stop"`` has no
            batches, for a loop over ``range(saved_epoch, epochs)``. None: ``set_epoch`` decides,
            and without that it is the next epoch, with a warning.

    Returns:
        A loader for ``for batch in ...``, with ``state_dict``, ``load_state_dict`` and
        ``set_epoch``.

    Raises:
        UsageError: it is no loader of this package; Accelerate is too old or too new; or there is
            no such share.
        ValueError: ``at_epoch_end`` is something else.
    """
    check_choice("at_epoch_end", at_epoch_end, ("stop", "next", None))
    if issubclass(type(loader), Prepared):
        return loader
    prepared = build(accelerator, loader, at_epoch_end)
    if accelerator.skip_first_batches is not skip_first_batches:  # it is the first loader
        accelerator.skip_first_batches = skip_first_batches
        checkpoints = _Checkpoints()
        accelerator.register_save_state_pre_hook(
            lambda models, weights, folder: checkpoints.save(_prepared_of(accelerator), folder)
        )
        accelerator.register_load_state_pre_hook(
            lambda models, folder: checkpoints.load(_prepared_of(accelerator), folder)
        )
        vars(accelerator)[_CHECKPOINTS] = checkpoints
    else:
        vars(accelerator)[_CHECKPOINTS].check(prepared)
    return prepared


#: the attribute of an accelerator that has its `_Checkpoints`
_CHECKPOINTS = "_picklable_loader_checkpoints"


class _Checkpoints:
    """The loaders' part of ``save_state`` and ``load_state``."""

    _loaded: str | None = None

    def save(self, loaders: list[Prepared], folder: str) -> None:
        for each in loaders:
            each.save(folder)
        for index in count(len(loaders)):  # of an earlier checkpoint in the folder, of more loaders
            surplus = state_file(folder, index, accelerate.PartialState().process_index)
            if not surplus.exists():
                break
            surplus.unlink()

    def load(self, loaders: list[Prepared], folder: str) -> None:
        for each in loaders:
            each.load(folder)
        self._loaded = folder
        if state_file(folder, len(loaders), 0).exists():
            warn(
                f"{folder} has states of more loaders than the {len(loaders)} that are prepared. "
                "Loader i gets state i: prepare the same loaders in the same order as in the "
                "program that saved it, and before load_state"
            )

    def check(self, loader: Prepared) -> None:
        if not loader.index:  # those of before were freed, and the program begins anew
            self._loaded = None
        if self._loaded is not None and loader.has_saved(self._loaded):
            warn(
                f"this loader was prepared after load_state({self._loaded!r}), which has a state "
                "for it: it begins at epoch 0 without that. Prepare all loaders before load_state, "
                "or call load(folder) of what prepare returns"
            )


def _prepared_of(accelerator: accelerate.Accelerator) -> list[Any]:
    """The loaders at hand: `free_memory` has removed earlier ones."""
    return [each for each in accelerator._dataloaders if isinstance(each, Prepared)]


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """Have the next pass of a prepared loader begin at a batch, without fetching those before.

    ``accelerate.skip_first_batches`` would build torch's loader. `prepare` sets that of its
    ``accelerator`` to this one.

    Args:
        dataloader: what `prepare` returned; Accelerate skips in any other one.
        num_batches: of this process, counted from the beginning of the epoch.

    Returns:
        ``dataloader`` itself, if `prepare` returned it.
    """
    if not isinstance(dataloader, Prepared):
        return accelerate.skip_first_batches(dataloader, num_batches)
    dataloader.start_at = num_batches
    return dataloader


# --- preparing -----------------------------------------------------------------------------------


def build(
    accelerator: accelerate.Accelerator, loader: DataLoader[Any], at_epoch_end: AtEpochEnd | None
) -> Any:
    """The prepared loader, of which ``save_state`` does not know; see `prepare`."""
    _check_hooks()
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"prepare expects a DataLoader of picklable_loader, got a {type(loader).__qualname__}: "
            "use accelerator.prepare for anything else"
        )
    if loader._pl.history.resume is not None:
        raise UsageError("prepare the loader first, and load the state into what prepare returns")
    shared = loader._pl.options.shard is not None
    _need(accelerator, ("_dataloaders",))
    made = accelerator.prepare_data_loader(_stand_in(loader, accelerator.num_processes))
    accelerator._dataloaders.remove(made)
    kinds = {DataLoaderShard: PreparedShard, DataLoaderDispatcher: PreparedDispatcher}
    kind = kinds.get(type(made))
    if kind is None:
        raise _unknown(f"prepare_data_loader returns a {type(made).__name__}")
    _need(made, _ATTRIBUTES[type(made)])
    if shared and kind is PreparedDispatcher:
        raise UsageError("dispatch_batches=True reads in one process: leave out shard=")
    prepared = object.__new__(kind)
    prepared.__dict__.update(vars(made))
    ours, layout = _share(loader, made, kind is PreparedDispatcher)
    prepared.__dict__.update(
        base_dataloader=ours,
        use_stateful_dataloader=False,
        process=accelerator.process_index,
        processes=accelerator.num_processes,
        layout=layout,
        index=len(_prepared_of(accelerator)),
        after_last_step=at_epoch_end,
    )
    if kind is PreparedDispatcher:
        vars(prepared)["_slice"] = vars(prepared).pop("slice_fn")
        prepared.per_step = 1 if made.split_batches else accelerator.num_processes
    prepared.remember(0)
    accelerator._dataloaders.append(prepared)
    return prepared


def _stand_in(loader: DataLoader[Any], processes: int) -> Any:
    """A loader of torch's for Accelerate, which changes samplers, to decide how to share data."""
    if loader._pl.options.shard is not None:  # any one that split_batches=True can share
        return torch.utils.data.DataLoader(cast("Any", range(1)), batch_size=processes)
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        return torch.utils.data.DataLoader(
            dataset, batch_size=loader.batch_size, drop_last=loader.drop_last
        )
    given = loader.sampler if isinstance(loader.sampler, BatchSampler) else loader.batch_sampler
    batches = BatchSampler(range(1), 1, bool(getattr(given, "drop_last", False)))
    batches.batch_size = cast(int, getattr(given, "batch_size", None))
    if given is loader.sampler:
        return torch.utils.data.DataLoader(dataset, batch_size=None, sampler=batches)
    return torch.utils.data.DataLoader(dataset, batch_sampler=batches)


def _share(
    loader: DataLoader[Any], made: Any, dispatched: bool
) -> tuple[DataLoader[Any], dict[str, Any]]:
    """The loader of this process, and how the data is shared."""
    base, as_it_is = made.base_dataloader, {"processes": 0, "dispatched": dispatched}
    given = base.sampler if isinstance(base.sampler, BatchSamplerShard) else base.batch_sampler
    if dispatched or loader._pl.options.shard is not None:
        return loader, as_it_is
    if not isinstance(given, BatchSamplerShard):
        if made.dataset is loader.dataset:
            return loader, as_it_is
        size = {"batch_size": base.batch_size, "drop_last": base.drop_last}
        layout = {"processes": accelerate.PartialState().num_processes, "dispatched": False}
        return _rebuilt(loader, made.dataset, size), layout
    inner = loader.sampler if given is base.sampler else loader.batch_sampler
    if inner is None:
        raise UsageError('batch_size=None has no batches to share: pass shard="auto"')
    batches = batches_of_ranks(inner, given)
    arguments: dict[str, Any] = {"batch_sampler": batches}
    if given is base.sampler:
        arguments = {"sampler": batches, "batch_size": None}
    ranks = (given.process_index, given.num_processes)
    arguments["shard"] = "auto" if ranks == rank_and_world() else ranks
    arguments["shard_tail"] = "uneven"  # what is there is shared out already
    return _rebuilt(loader, loader.dataset, arguments), batches.layout()


def _rebuilt(loader: DataLoader[Any], dataset: Any, arguments: dict[str, Any]) -> DataLoader[Any]:
    """The loader with another share of the data, and all of its options."""
    if type(loader) is not DataLoader:
        raise UsageError(
            f"{type(loader).__name__} is a class of the program, which cannot be built again for "
            'a share of the data: pass shard="auto" to it'
        )
    taken = {name: getattr(loader, name) for name in (*TORCHS, *OPTIONS)}
    rebuilt = DataLoader(dataset, **{**taken, **arguments})
    if loader.epoch:
        rebuilt.set_epoch(loader.epoch)
    return rebuilt


#: torch's arguments, but for those that say which samples a batch has
TORCHS = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator",
    "multiprocessing_context", "prefetch_factor", "persistent_workers", "pin_memory_device",
    "in_order",
)  # fmt: skip


def _check_hooks() -> None:
    for kind, names in _HOOKS.items():
        _need(kind, names)


def _need(thing: Any, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not hasattr(thing, name)]
    if missing:
        kind = thing if isinstance(thing, type) else type(thing)
        raise _unknown(f"{kind.__name__} has no {', '.join(missing)}")


_HOOKS = {
    DataLoaderShard: ("begin", "end"),
    DataLoaderDispatcher: ("_fetch_batches", "_update_state_dict"),
    accelerate.Accelerator: ("register_save_state_pre_hook", "register_load_state_pre_hook"),
}
#: what a loader of Accelerate's has, of which one of ours is made
_ATTRIBUTES = {
    DataLoaderShard: (
        "base_dataloader", "device", "rng_types", "synchronized_generator", "_non_blocking",
    ),
    DataLoaderDispatcher: ("base_dataloader", "split_batches", "slice_fn", "_drop_last"),
}  # fmt: skip


def _unknown(what: str) -> UsageError:
    return UsageError(
        f"accelerate {accelerate.__version__} is not as this adapter knows it: {what}. It was "
        f"tried with accelerate {TRIED}: install that one, or a newer picklable_loader"
    )
