"""Prepared loaders: what Accelerate has instead of a loader, with a position to save."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
from accelerate.utils import concatenate, find_batch_size, send_to_device, synchronize_rng_states

from ..epoch.options import AtEpochEnd
from ..errors import Difference, StateMismatch, UsageError, warn
from ..loader.loader import DataLoader
from ..loader.setup import batches_of, spec_of
from ..saving.states.state_json import from_json, to_json
from .fabric import of_this_rank


def state_file(folder: str | Path, loader: int, process: int) -> Path:
    """Where a process has the state of a loader in a checkpoint; both are counted from 0."""
    return Path(folder) / f"picklable_loader_{loader}_process_{process}.json"


class Prepared:
    """The common part of both kinds of prepared loaders."""

    base_dataloader: DataLoader[Any]
    #: number among the accelerator's loaders; process, of how many; how the data is shared
    index: int
    process: int
    processes: int
    layout: dict[str, Any]
    #: what follows a checkpoint of an epoch's last step; None: the program has not said
    after_last_step: AtEpochEnd | None
    #: the epoch whose last step the loaded checkpoint is of, and what follows; until the next pass
    _ended: tuple[int, AtEpochEnd | None] | None = None
    #: the pass at hand; dead if nobody can go on with it, None once it is over
    _pass: weakref.ref[Any] | None = None
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
        self._forget_pass()

    def _forget_pass(self) -> None:
        """The next pass is another one, whatever the last one has left."""
        self._ahead, self._ended, self._pass, self.end_of_dataloader = 0, None, None, False

    @property
    def _in_pass(self) -> bool:
        """A loop may ask for more batches of a pass: no `break` or `zip` has left it."""
        return self._pass is not None and self._pass() is not None

    def set_epoch(self, epoch: int) -> None:
        """See `DataLoader.set_epoch`; that of a checkpoint's last step has no more batches."""
        if self.lead is None:
            self.lead = self.base_dataloader.epoch - epoch
        epoch, ended = epoch + self.lead, self._ended
        if not self._in_pass:
            self._forget_pass()
        if ended is not None and ended[0] == epoch:
            self._ended = epoch, "stop"
        else:
            self.base_dataloader.set_epoch(epoch)

    def remember(self, batches: int) -> None:
        """Have `save` go back by so many batches of the program, in addition to those ahead."""
        options = self.base_dataloader._pl.options
        most = max(options.remember, (batches + 1) * self.per_step)
        self.base_dataloader.__setattr__("remember", most)

    def save(self, folder: str | Path, behind: int = 0) -> None:
        """Write this process's state into a checkpoint, as it was so many batches before."""
        state = self.state_dict(behind)
        ended = self._ended is not None or (self._in_pass and self.end_of_dataloader)
        text = {
            "layout": self.layout,
            "processes": self.processes,
            "last_step": ended and not behind,
            "state": to_json(state),
        }
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
        if saved.get("last_step"):
            self._ended = self.base_dataloader.epoch - 1, self.after_last_step

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
        return state_file(folder, self.index, process)

    def __iter__(self) -> Iterator[Any]:
        return Pass(self)

    def first_step(self) -> int:
        """The step at which the next pass begins."""
        if self._ended is not None and self._ended[1] == "stop":
            return batches_of(cast("Any", self)) or 0
        if self.start_at is not None:
            return self.start_at
        history = self.base_dataloader._pl.history
        if history.resume is None:
            return 0
        return history.at(spec_of(self.base_dataloader))[1] // self.per_step

    def _is_empty(self) -> bool:
        """The pass that begins has no batches: its epoch's last one was trained on."""
        (epoch, follows), self._ended = self._ended or (0, "next"), None
        if follows is None and self.start_at is not None:
            follows = "stop" if self.start_at else "next"  # skip_first_batches has said it
        if follows == "stop":
            self.start_at = None
        if follows is None:
            warn(
                f"the checkpoint is of the last step of epoch {epoch}, and this pass is epoch "
                f"{epoch + 1}. A loop over range(saved_epoch, epochs) trains an epoch too many: "
                'pass prepare(..., at_epoch_end="stop"), or call set_epoch(epoch) before each '
                f'pass. If epoch {epoch + 1} is right, pass at_epoch_end="next"'
            )
        return follows == "stop"

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


class Pass(Iterator[Any]):
    """A pass over a prepared loader, in steps of the program; `progress` shows them."""

    def __init__(self, loader: Any) -> None:
        loader._pass = None
        self.loader, self.step = loader, loader.first_step()
        self._batches = loader.batches()

    def __next__(self) -> Any:
        self.loader._pass = weakref.ref(self)
        try:
            batch = next(self._batches)
        except StopIteration:
            self.loader._pass = None
            raise
        self.step += 1
        return batch


class PreparedShard(Prepared, DataLoaderShard):  # type: ignore[misc]
    """Each process reads its share."""

    def batches(self) -> Iterator[Any]:
        # As in DataLoaderShard, but for the state, which it would ask for at each batch.
        if self.rng_types is not None:
            synchronize_rng_states(self.rng_types, self.synchronized_generator)
        if self._is_empty():
            return
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

    def batches(self) -> Iterator[Any]:
        if not self._is_empty():
            self._begins, self._fills = True, not self._drop_last
            yield from DataLoaderDispatcher.__iter__(self)

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
            self._forget_pass()
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
