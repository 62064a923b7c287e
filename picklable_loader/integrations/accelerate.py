"""Accelerate: prepared loaders that are still this package's, and go on exactly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import accelerate
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderDispatcher, DataLoaderShard
from accelerate.utils import concatenate, find_batch_size, send_to_device, synchronize_rng_states
from torch.utils.data import BatchSampler, IterableDataset

from ..epoch.options import OPTIONS
from ..errors import Difference, StateMismatch, UsageError
from ..loader.loader import DataLoader
from ..rng.process_rank import rank_and_world
from ..saving.states.state_json import from_json, to_json
from .accelerate_batches import batches_of_ranks
from .fabric import of_this_rank

TRIED = "1.15.0"


def prepare(accelerator: accelerate.Accelerator, loader: DataLoader[Any]) -> Any:
    """`Accelerator.prepare` for a loader of this package: Accelerate would build torch's of it.

    The result does what Accelerate's does: each process has its share, by ``split_batches``,
    ``even_batches`` and ``dispatch_batches``; batches are on the accelerator's device; gradients
    are synchronised at the end of an epoch. ``accelerator.save_state`` and ``load_state`` save its
    position. A loader with ``shard=`` shares the data itself.

    Args:
        accelerator: the program's.
        loader: not iterated yet, and without a loaded state.

    Returns:
        A loader for ``for batch in ...``, with ``state_dict``, ``load_state_dict`` and
        ``set_epoch``.

    Raises:
        UsageError: Accelerate is too old or too new, or there is no such share.
    """
    prepared = build(accelerator, loader)
    if accelerator.skip_first_batches is not skip_first_batches:  # it is the first loader
        accelerator.skip_first_batches = skip_first_batches
        accelerator.register_save_state_pre_hook(
            lambda models, weights, path: [each.save(path) for each in _prepared_of(accelerator)]
        )
        accelerator.register_load_state_pre_hook(
            lambda models, path: [each.load(path) for each in _prepared_of(accelerator)]
        )
    return prepared


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


class Prepared:
    """The common part of both kinds of prepared loaders."""

    base_dataloader: DataLoader[Any]
    #: number among the accelerator's loaders; process, of how many; how the data is shared
    index: int
    process: int
    processes: int
    layout: dict[str, Any]
    #: the batch of the epoch at which the next pass begins
    start_at: int | None = None
    #: epochs that the program counts less: it begins to count at 0 after a resume
    lead: int | None = 0
    #: batches that were fetched, and that the program has not been given
    _ahead = 0
    _is_accelerate_prepared = True
    #: base batches of this process in one step of the program
    per_step = 1

    def state_dict(self, behind: int = 0) -> dict[str, Any]:
        """The position after the batch that the program has got; see `DataLoader.state_dict`."""
        return self.base_dataloader.state_dict(behind=self._ahead + behind * self.per_step)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next pass go on from it; see `DataLoader.load_state_dict`."""
        self.base_dataloader.load_state_dict(state_dict, at_epoch_end="next")
        self._ahead = 0

    def set_epoch(self, epoch: int) -> None:
        """See `DataLoader.set_epoch`."""
        if self.lead is None:
            self.lead = self.base_dataloader.epoch - epoch
        self.base_dataloader.set_epoch(epoch + self.lead)

    def remember(self, batches: int) -> None:
        """Have `save` go back by so many batches of the program, in addition to those ahead."""
        options = self.base_dataloader._pl.options
        most = max(options.remember, (batches + 1) * self.per_step)
        self.base_dataloader.__setattr__("remember", most)

    def save(self, folder: str | Path, behind: int = 0) -> None:
        """Write this process's state into a checkpoint, as it was so many batches before."""
        state = self.state_dict(behind)
        text = {"layout": self.layout, "processes": self.processes, "state": to_json(state)}
        self._file(folder, self.process).write_text(json.dumps(text))

    def load(self, folder: str | Path) -> None:
        """Load this process's state, or one for all that the states of all processes make.

        Raises:
            UsageError: the checkpoint has none.
            StateError: it does not fit.
            RanksError: with ``shard=``, see `merge_states`.
        """
        own = self._file(folder, self.process).exists()
        saved = self._read(folder, 0 if not own or self._file(folder, 0).exists() else self.process)
        # A larger job may have left more files in the folder than the one that saved last.
        processes = saved.get("processes", self.process + 1)
        if own and self.process < processes:
            saved = self._read(folder, self.process)
        differences = [
            Difference(name, value, saved["layout"].get(name))
            for name, value in self.layout.items()
            if saved["layout"].get(name) != value
        ]
        if differences:
            raise StateMismatch(differences, "Prepare the loader as it was when it was saved.")
        state, shared = from_json(saved["state"]), self.base_dataloader._pl.options.shard
        if shared is not None:
            state = of_this_rank(
                self.base_dataloader, state, partial(self._every, folder, processes)
            )
        self.load_state_dict(state)

    def _every(self, folder: str | Path, processes: int) -> list[Any]:
        return [from_json(self._read(folder, each)["state"]) for each in range(processes)]

    def _read(self, folder: str | Path, process: int) -> dict[str, Any]:
        file = self._file(folder, process)
        if not file.exists():
            raise UsageError(
                f"{folder} has no state of this loader ({file.name}): it was saved without "
                "picklable_loader.integrations.accelerate.prepare, or not on every process. Call "
                "accelerator.save_state on all processes"
            )
        return cast("dict[str, Any]", json.loads(file.read_text()))

    def has_saved(self, folder: str | Path) -> bool:
        """A checkpoint has a state of this loader."""
        return self._file(folder, self.process).exists() or self._file(folder, 0).exists()

    def _file(self, folder: str | Path, process: int) -> Path:
        return Path(folder) / f"picklable_loader_{self.index}_process_{process}.json"

    def _go_to_start(self, batches: Any) -> None:
        if self.start_at is not None:
            steps, self.start_at = self.start_at * self.per_step - batches.step, None
            if steps < 0:
                raise UsageError(
                    f"skip_first_batches(..., {steps + batches.step}) cannot go back: the loaded "
                    f"state is at batch {batches.step} already. Leave skip_first_batches out"
                )
            batches.skip(steps)

    @property
    def multiprocessing_context(self) -> Any:
        """Nobody asks for it but who builds another loader of this one."""
        raise UsageError(
            "accelerate.skip_first_batches would build torch's loader of this one. Use "
            "accelerator.skip_first_batches, or that of picklable_loader.integrations.accelerate"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a prepared loader is not pickled: pickle the loader that was prepared")


class PreparedShard(Prepared, DataLoaderShard):  # type: ignore[misc]
    """Each process reads its share."""

    def __iter__(self) -> Iterator[Any]:
        # As in DataLoaderShard, but for the state, which it would ask for at each batch.
        if self.rng_types is not None:
            synchronize_rng_states(self.rng_types, self.synchronized_generator)
        self.begin()
        batches = iter(self.base_dataloader)
        self._go_to_start(batches)
        batch = next(batches, _END)
        while batch is not _END:
            if self.device is not None:
                batch = send_to_device(batch, self.device, non_blocking=self._non_blocking)
            following = next(batches, _END)
            self.end_of_dataloader = following is _END
            self._ahead = 0 if following is _END else 1
            yield batch
            batch = following
        self.end()

    def begin(self) -> None:
        super().begin()
        if self.base_dataloader._pl.options.shard is not None and not self.layout["processes"]:
            self.remainder = -1  # the samples that pad an epoch are not the last ones gathered


class PreparedDispatcher(Prepared, DataLoaderDispatcher):  # type: ignore[misc]
    """The main process reads for all."""

    _begins = False
    #: the first samples of the pass are asked for next
    _fills = False
    #: Accelerate's own `slice_fn`, or the program's
    _slice: Callable[..., Any]

    def __iter__(self) -> Iterator[Any]:
        self._begins, self._fills = True, not self._drop_last
        return cast(Iterator[Any], super().__iter__())

    def slice_fn(self, batch: Any, rows: slice, **process: int) -> Any:
        """Rows of a step; an uneven last one goes on with its own samples.

        Accelerate fills it with the first samples of the pass: others after a resume.
        """
        if self._fills:
            self._fills, rows = False, slice(0, 0)
        size = find_batch_size(batch)
        missing = (rows.stop - rows.start) * self.processes - size
        if missing > 0:
            batch = concatenate([batch] * (1 + -(-missing // size)))
        return self._slice(batch, rows, **process)

    def state_dict(self, behind: int = 0) -> dict[str, Any]:
        if self.process and self.end_of_dataloader:
            return {_BEGINS: self.base_dataloader.epoch + 1}  # nobody has asked it for a batch
        return super().state_dict(behind)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if _BEGINS in state_dict:
            self.base_dataloader.set_epoch(state_dict[_BEGINS])
        else:
            super().load_state_dict(state_dict)

    def set_epoch(self, epoch: int) -> None:
        if not self._begins:  # Accelerate would tell the number of its own passes
            super().set_epoch(epoch)

    def _fetch_batches(self, iterator: Any) -> Any:
        if self._begins:
            self._begins = False
            if self.process == 0:
                self._go_to_start(iterator)
            self.start_at = None
        counted = _Counted(iterator)
        fetched = super()._fetch_batches(counted)
        self._ahead = counted.count
        return fetched

    def _update_state_dict(self) -> None:
        if self.end_of_dataloader:
            self._ahead = 0


class _Counted:
    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self.count = 0

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self.count += 1
        return batch


_END = object()
#: the state of a process that reads nothing, between two epochs
_BEGINS = "begins epoch"


# --- preparing -----------------------------------------------------------------------------------


def build(accelerator: accelerate.Accelerator, loader: DataLoader[Any]) -> Any:
    """The prepared loader, of which ``save_state`` does not know; see `prepare`."""
    _check_hooks()
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
    base = made.base_dataloader
    given = base.sampler if isinstance(base.sampler, BatchSamplerShard) else base.batch_sampler
    if dispatched:
        return loader, {"processes": 0, "dispatched": True}
    if loader._pl.options.shard is not None:
        return loader, {"processes": 0, "dispatched": False}
    if not isinstance(given, BatchSamplerShard):
        if made.dataset is loader.dataset:
            return loader, {"processes": 0, "dispatched": False}
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
    taken = {name: getattr(loader, name) for name in (*_TORCHS, *OPTIONS)}
    rebuilt = DataLoader(dataset, **{**taken, **arguments})
    if loader.epoch:
        rebuilt.set_epoch(loader.epoch)
    return rebuilt


#: torch's arguments, but for those that say which samples a batch has
_TORCHS = (
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
