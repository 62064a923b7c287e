"""The public `DataLoader`: torch's signature and attributes, and a state of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Sampler

from ..core.checks import whole_number
from ..core.plan import batches_in
from ..core.seeds import Seeding
from ..core.shard import Tail
from ..epoch.batch_at import batch_at
from ..epoch.options import (
    OPTIONS,
    AtEpochEnd,
    CodecWish,
    OnTimeout,
    Options,
    Scheduling,
    SeedDataset,
    Transport,
)
from ..epoch.turns import Batch
from ..errors import UsageError, warn
from ..fetching.worker.hooks import WorkerStart
from ..fetching.worker.on_error import OnError
from ..orders.shuffle_sampler import ShuffleSampler
from ..saving.pickles.size import weigh
from .display.describe import Description, describe, in_one_line
from .display.html import card
from .iterator import LoaderIterator
from .pickling import Picklable, internals
from .setup import batches_of, job_of, spec_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_T = TypeVar("_T", covariant=True)

#: where Ray Train's `prepare_data_loader` is, of its first and its second version
_RAY = ("ray.train.torch.train_loop_utils", "ray.train.v2.torch.train_loop_utils")


class _Epoch:
    """An attribute that a subclass, or a user, may give a value of its own.

    A property would refuse ``self.epoch = 0``, which subclasses of torch's loader are free to say.
    """

    def __get__(self, loader: DataLoader[Any] | None, kind: type[Any]) -> int:
        return 0 if loader is None else loader._at()[0]


class DataLoader(Picklable[_T]):
    """A ``torch.utils.data.DataLoader`` whose iterator can be pickled in mid-epoch.

    Takes all of torch's arguments, with their meaning, defaults and errors, and these:

    Args:
        shuffle: torch's, or ``"indexed"``: a `ShuffleSampler`, which holds no list of the indices.
        seed: everything random, order and augmentation, derives from it and the epoch; no global
            random number generator is touched. ``None``: the order is torch's, from
            ``generator`` or torch's global generator.
        seeding: what Python's, numpy's and torch's generators are seeded from before people's
            code is called. ``"batch"``: base seed, epoch and step, so that batches do not depend
            on the number of workers; in the main process the program's own states are put back
            afterwards. ``"sample"``: the sample's position in the epoch's order, so that they do
            not depend on the batch size either. Both overwrite a seed that ``worker_init_fn``
            gives them. ``"worker"``: torch's scheme, base seed and worker number, once.
        schedule: which worker is given a task. ``"balanced"``: the one that has fewest.
            ``"round_robin"``: batch i goes to worker i modulo num_workers, as in torch; stream i
            stays with that worker. ``None``: balanced, except for data that has streams and
            ``seeding="worker"``. With streams, balanced lets them move between workers: it makes
            a difference if there are more of them than workers.
        seed_hooks: called with a seed (an int from 0 to 2**62 - 1) each time that the generators
            are seeded, to seed another one.
        seed_dataset: how generators of dataset, collate_fn, convert and on_error are seeded,
            each time that the global ones are. ``"auto"``: those of Python, NumPy and torch are
            found, and so are transforms with ``set_random_seed`` (albumentations) or
            ``set_random_state`` (monai), and each is given a seed of its own; but no dataset that
            is iterable-style or has ``state_dict``, no generator of the sampler's, and nothing
            with ``seeding="worker"``.
            ``"off"``: nothing is seeded. A callable: it is given the dataset of the process that
            fetches, and the seed.
        at_epoch_end: what ``iter`` does with a state that was taken after an epoch's last batch
            and before StopIteration. ``"stop"``: the pass delivers nothing, and warns.
            ``"next"``: it goes straight to the next epoch.
        transport: how batches come from the workers. ``"arena"``: through memory that both sides
            map, with a task queue that the kernel keeps; ``iter`` raises `UsageError` where the
            system cannot do that. ``"portable"``: pipes, and torch's shared
            memory. ``"auto"``: the arena where the system has what it takes (Linux).
        prefetch_budget: batches under way or waiting for delivery, over all workers, from 1.
            ``"auto"``: 2 times num_workers, and up to 8 times while workers idle because the next
            batch in order is a slow one and all would take 512 MiB at most; or because of
            anything else, a slow consumer included, and all would take 16 MiB at most (not with
            a sampler of your own, or a generator that is drawn from again and again). 1: a sampler
            of your own is drawn from only when ``next`` asks for a batch. ``None``:
            ``prefetch_factor`` times num_workers, or ``"auto"`` if that is not given either.
        prefetch_bytes: no more is fetched while batches that wait for delivery take this much,
            an int or text such as ``"512MiB"``; what workers are at comes on top, at most a batch
            each, unless a batch is suddenly more than four times as large as all before it.
            ``None``: any amount.
        num_streams: how many replicas of an iterable-style dataset (or of a map-style one that
            has ``state_dict``) the data is read through, from 1; with ``shard``, on all ranks
            together. The order of the data depends on this number alone, and not on that of the
            processes. ``None``: one for each worker, as in torch.
        snapshot_every_n_steps: after how many batches of a stream its state is taken; the
            batches since are fetched again on resume. 0: never, all of the epoch's are.
            ``"auto"``: as often as a hundredth of the time that fetching takes allows, and about
            each second of it.
        max_task_deaths: a worker that dies is replaced, and what it owed is done again; a task that
            so many have died of, from 1, is given up (`WorkerDied`). 0: the first death ends the
            pass, as in torch.
        on_timeout: what is done when no batch has come for ``timeout`` seconds. ``"raise"``:
            torch's RuntimeError. ``"restart"``: each worker that is at a task is killed and
            replaced, with a warning that holds its stack; the task counts as one that it died of.
        on_error: what becomes of a sample that the dataset raises an exception for. ``"raise"``:
            ``next`` raises it instead of the batch, as in torch. ``"skip"``: the batch comes
            without that sample, and ``stats`` of the iterator says so; a batch that has lost all
            of its samples is passed over. A callable: it is given the exception and the sample's
            index (iterable-style: its number in the stream, from 0), where the sample is fetched,
            and returns another sample for it, returns None to skip it, or raises.
        codec: what carries the parts of a pickled loader that plain pickle refuses: lambdas,
            closures, local classes. ``"auto"``: cloudpickle, and what that refuses, dill.
            ``"pickle"``: nothing. ``"cloudpickle"`` and ``"dill"`` carry everything that is no
            tensor or array, also classes of ``__main__``, which a program that does not have them
            can load then. Or a `Codec`.
        pickle_dataset: False: pickles of the loader, and of its iterator, come without the dataset,
            and need ``attach`` when they are loaded.
        pickle_mapped: False: arrays and tensors over a mapped file (``numpy.memmap``,
            ``torch.load(mmap=True)``) are pickled as the file's name and their place in it.
        shard: which share of the data this process reads, of one order for all ranks, with any
            sampler but a DistributedSampler, or of the streams of an iterable-style dataset.
            ``None``: all of it. ``"auto"``: that of its rank in torch.distributed, or else in
            torchrun's environment. A pair ``(rank, world_size)``; or one dimension of a DeviceMesh,
            ``mesh["dp"]``. A state then restores all ranks, and any number of them. Without
            ``seed=`` the loader takes the seed that rank 0 draws. See docs/distributed.md.
        shard_tail: with ``shard``, what becomes of the last samples, fewer than one for each rank,
            and of streams of different lengths. ``"pad"``: the first samples are read again, as by
            DistributedSampler; of streams, the rank's own. ``"drop"``: no rank reads them.
            ``"uneven"``: some ranks have more.
        remember: batches that a state may be behind, from 1, for programs that hold batches which
            they have not used yet: see ``state_dict(behind=)``. It costs a reference a batch to its
            indices, and to the state of its stream.
        with_state: ``next`` gives ``(batch, state)``: the state with which the next batch is the
            first. For queues and threads, which do not know how many batches they hold.
        worker_init_fn_arg: called in the main process for each worker (or stream) that starts, also
            in place of a dead one, with a `WorkerStart`. The worker calls
            ``worker_init_fn(worker_id, result)``; unless it is forked, the result is pickled.
        worker_exit_fn: called in a worker, with its number, when the loader has it end. It has 5
            seconds; a failure is a warning on the worker's stderr.
        convert: is given each batch where it is made, after collate_fn, and gives the one that is
            sent: a `DtypeConverter`, for example.
        to_device: ``next`` gives batches on this device, for example ``"cuda"``: the current one.
            Those that wait are copied ahead, on a CUDA stream of their own; a state does not count
            them as delivered. See docs/gpu.md.
        device_prefetch: batches that are copied ahead at most, from 0.
        device_convert: is given each batch on the device, and gives the one that is delivered: for
            example ``lambda batch: batch.float() / 255``. Its random numbers are seeded by step.

    Each argument is an attribute as well. An option of ours that is set later counts from the next
    ``iter``. ``seed`` and ``num_streams`` cannot be set later, nor can options that workers were
    started with, while persistent workers live: ValueError.

    Raises:
        ValueError, TypeError: torch's, for torch's arguments, with torch's text; for ours if a
            value is not one of those above, or if ``generator`` is given together with ``seed``.
        UsageError: the codec is not installed.
        RanksError: at ``iter`` or the first ``next``; the ranks of ``shard`` do not agree.
    """

    __module__ = "picklable_loader"  # pickles hold this name

    #: number of the epoch at hand; if there is none, of the one that begins next
    epoch = _Epoch()

    def __init__(
        self,
        dataset: Dataset[_T],
        batch_size: int | None = 1,
        shuffle: bool | Literal["indexed"] | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        seeding: Seeding = "batch",
        schedule: Scheduling | None = None,
        seed_hooks: Sequence[Callable[[int], object]] = (),
        seed_dataset: SeedDataset = "auto",
        at_epoch_end: AtEpochEnd = "stop",
        transport: Transport = "auto",
        prefetch_budget: int | Literal["auto"] | None = None,
        prefetch_bytes: int | str | None = None,
        num_streams: int | None = None,
        snapshot_every_n_steps: int | Literal["auto"] = "auto",
        max_task_deaths: int = 3,
        on_timeout: OnTimeout = "raise",
        on_error: OnError = "raise",
        codec: CodecWish = "auto",
        pickle_dataset: bool = True,
        pickle_mapped: bool = True,
        shard: Literal["auto"] | tuple[int, int] | DeviceMesh | None = None,
        shard_tail: Tail = "pad",
        remember: int = 1,
        with_state: bool = False,
        worker_init_fn_arg: Callable[[WorkerStart], Any] | None = None,
        worker_exit_fn: Callable[[int], object] | None = None,
        convert: Callable[[Any], Any] | None = None,
        to_device: torch.device | str | int | None = None,
        device_prefetch: int = 2,
        device_convert: Callable[[Any], Any] | None = None,
    ) -> None:
        given = {**locals()}
        if shuffle == "indexed":
            # Torch refuses shuffle=True beside a sampler, or with streams, in its own words.
            ordered = sampler is not None or batch_sampler is not None
            shuffle = ordered or isinstance(dataset, IterableDataset)
            sampler = sampler if shuffle else ShuffleSampler(cast(Any, dataset), None, generator)
        torchs = {name: given[name] for name in given.keys() - OPTIONS - {"self", "__class__"}}
        super().__init__(**{**torchs, "shuffle": shuffle, "sampler": sampler})
        if prefetch_budget is None and prefetch_factor is None:
            prefetch_budget = "auto"
        wished = {**given, "seed_hooks": tuple(seed_hooks), "prefetch_budget": prefetch_budget}
        options = Options(**{name: wished[name] for name in OPTIONS})
        _check_generator(seed, generator)
        # Torch keeps every argument as an attribute, from which trainers build loaders anew.
        self.__dict__.update(vars(options))
        self.seed_hooks = seed_hooks
        spec = internals(self, options)
        # As the program has built it, before anything changes it.
        self._pl.history.source.origin = spec.attributes()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; an option that is set later counts from the next ``iter``.

        Raises:
            ValueError, TypeError: see `DataLoader`; or the option may not be set any more.
        """
        if name in OPTIONS and "_pl" in self.__dict__:
            inner = self._pl
            persistent = inner.driver is not None and inner.driver.has_workers
            inner.options = inner.options.changed(name, value, persistent)
        if name == "generator" and "_pl" in self.__dict__ and value is not self.generator:
            _check_generator(self._pl.options.seed, value)
        super().__setattr__(name, value)

    @property
    def multiprocessing_context(self) -> Any:
        """Torch's attribute. Accelerate asks for it when it builds torch's loader of a loader."""
        if sys._getframe(1).f_globals.get("__name__") == "accelerate.data_loader":
            warn(
                "Accelerate's prepare and skip_first_batches make a loader of torch's of this one, "
                "without seed=, state_dict and all else that torch's does not have. Use "
                "prepare(accelerator, loader) of picklable_loader.integrations.accelerate; in a "
                "transformers.Trainer, self.prepare_loader(loader) of "
                "picklable_loader.integrations.huggingface.ExactResume"
            )
        return super().multiprocessing_context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        """Set torch's attribute.

        Raises:
            ValueError, TypeError: torch's.
            UsageError: its workers are no processes.
        """
        kind = getattr(context, "Process", BaseProcess)
        # Signals of a worker that is a thread, such as monai's, would end the program.
        if isinstance(kind, type) and not issubclass(kind, BaseProcess):
            raise UsageError(
                f"multiprocessing_context makes workers of class {kind.__qualname__}, which is no "
                'process. Pass "fork", "spawn" or "forkserver"; or num_workers=0, and '
                "iterate the loader in a thread of your own"
            )
        TorchDataLoader.multiprocessing_context.fset(self, context)  # type: ignore[attr-defined]

    @property
    def worker_init_fn(self) -> Any:
        """Torch's attribute. Ray asks for it when it builds torch's loader of a loader."""
        if sys._getframe(1).f_globals.get("__name__") in _RAY:
            warn(
                "ray.train.torch.prepare_data_loader makes a loader of torch's of this one, "
                "without seed=, state_dict and all else that torch's does not have. Use "
                'DataLoader(..., shard="auto") alone, and move each batch to the device'
            )
        return self.__dict__["worker_init_fn"]

    @worker_init_fn.setter
    def worker_init_fn(self, function: Any) -> None:
        self.__dict__["worker_init_fn"] = function

    def __len__(self) -> int:
        """Batches of an epoch; with ``shard=``, those of this rank.

        Raises:
            TypeError: dataset or sampler has no length.
        """
        spec = spec_of(self)
        if not spec.shared:
            return super().__len__()
        if spec.iterable:
            return spec.own_batches
        return batches_in(len(spec.sampler), spec.grouping)

    # --- epochs ----------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator[_T]:  # type: ignore[override]
        """Begin the next epoch, or go on from the state that was loaded.

        Raises:
            StateError: the loaded state does not fit any more.
        """
        return self._get_iterator()

    def _get_iterator(self) -> LoaderIterator[_T]:  # type: ignore[override]
        """Torch's ``__iter__`` calls it, and PyTorch Geometric's loaders override it."""
        self.check_worker_number_rationality()
        turn = self._pl.turn
        with turn.moves():
            if turn.foreign:
                turn.note_mover()
            return self._begin()

    def _begin(self) -> LoaderIterator[_T]:
        inner, history, spec = self._pl, self._pl.history, spec_of(self)
        # With persistent workers torch gives the same object again.
        iterator: LoaderIterator[_T] | None
        iterator = inner.iterator() if spec.lives_on and inner.iterator is not None else None
        if iterator is None:
            iterator = LoaderIterator(self, inner.driver if spec.lives_on else None)
        try:
            iterator.begin(spec, None if history.resume is None else history.position)
        except BaseException:  # nobody got this epoch: the next iter begins it
            iterator.close()
            raise
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter`` begins.

        It reaches the sampler, the batch sampler and the dataset where they have ``set_epoch``,
        also within torch's wrappers, and the dataset's copies in persistent workers; in mid-epoch,
        once the pass is over. A state that was loaded for this epoch stays in force, and so does
        one of a moment between two epochs. One of another epoch's end lets that epoch end first.
        Another one is dropped, with a warning.

        Args:
            epoch: from 0.

        Raises:
            ValueError: ``epoch`` is negative.
            TypeError: it is no whole number.
        """
        epoch = whole_number("epoch", epoch, 0)
        with self._pl.turn.moves():
            spec = spec_of(self)
            dropped = self._pl.history.choose(spec, epoch)
        if dropped is not None:
            owners = ["sampler"] * (not spec.known) + ["dataset"] * spec.streamed
            made = f", and what that epoch had made of the {' and the '.join(owners)}"
            made = made if owners else ""
            warn(f"set_epoch({epoch}) drops the loaded state of epoch {dropped}{made}")

    def batch_at(self, step: int, epoch: int | None = None) -> _T:
        """The same batch again, augmentation included, without touching any live iterator.

        With torch's samplers it does not walk through the epoch.

        Args:
            step: number of the batch within the epoch, from 0.
            epoch: the epoch; None for that of the newest pass, which may be over: after epoch 0,
                `epoch` is 1, and None means 0. A loader that was resumed between two epochs has no
                pass, and None means the next epoch. Another epoch is known only with ``seed=``, or
                where the order is not random.

        Returns:
            The batch, fetched in this process.

        Raises:
            IndexError: the epoch has no such step.
            ValueError, TypeError: ``epoch`` is negative, or no whole number.
            UsageError: the batch is not a function of step and epoch: iterable-style data,
                ``seeding="worker"``, or an epoch whose random numbers are not known. Or the step
                was before a resume with another batch size or number of ranks. Or there is no
                batch, as all of its samples are skipped.
        """
        with self._pl.turn.rests():
            spec, history, world = spec_of(self), self._pl.history, partial(Batch, self._pl.turn)
            job = job_of(self, spec)
            batch: _T = batch_at(spec, history, job, world, self, step, epoch)
            return batch

    def __repr__(self) -> str:
        return in_one_line(self._pl_description())

    def _repr_html_(self) -> str:
        return card(self._pl_description())

    # --- within ----------------------------------------------------------------------------------

    def _at(self) -> tuple[int, int]:
        return self._pl.history.at(spec_of(self))

    def _pl_description(self) -> Description:
        return describe(
            self,
            spec=partial(spec_of, self),
            total=partial(batches_of, self),
            doing=lambda: None if self._pl.history.resume is None else "goes on from a state",
            position=self._at,
            weight=lambda: weigh(self.__dict__, self.dataset, self._pl.saved()),
        )


def _check_generator(seed: int | None, generator: Any) -> None:
    if seed is not None and generator is not None:
        raise ValueError(
            "generator option is mutually exclusive with seed: leave out generator=, and the order "
            "derives from the seed; or leave out seed=, and the generator is saved"
        )
