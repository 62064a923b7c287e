"""DataLoader: torch's signature and attributes, and a state of its own."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Sampler

from . import datapipes
from .anatomy import anatomy, built, check_order, fingerprint, generators, position, remaining
from .core.seeds import base_seed
from .custom import prepare
from .driver import Driver
from .fitting import fit
from .iterator import LoaderIterator
from .options import AtEpochEnd, Options, Scheduling, Seeding, check_choice, whole_number
from .past import batch_at
from .run import Run
from .saved import beginning, check_savable, next_epoch
from .source import Source
from .warn import dropped_state
from .worker.fetch import Job, tell_epoch

__all__ = ["DataLoader"]

_T = TypeVar("_T", covariant=True)


class _Epoch:
    """An attribute that a subclass, or a user, may give a value of its own.

    A property would refuse ``self.epoch = 0``, which subclasses of torch's loader are free to say.
    """

    def __get__(self, loader: DataLoader[Any] | None, kind: type[Any]) -> int:
        if loader is None:
            return 0
        if loader._resume is not None:
            wish = loader._resume_at_end or loader._options.at_epoch_end
            return position(loader, loader._resume, wish)[0]
        newest, run = loader._newest, loader._run
        if newest is not None:
            return loader._next_epoch if newest.finished else newest.epoch
        return loader._next_epoch if run is None or run.finished else run.epoch


class DataLoader(TorchDataLoader[_T]):
    """A ``torch.utils.data.DataLoader`` whose iterator can be pickled in mid-epoch.

    Takes all of torch's arguments, with their meaning, defaults and errors, and these:

    Args:
        seed: everything random, order and augmentation, derives from it and the epoch; no global
            random number generator is touched. ``None``: the order is torch's, from
            ``generator`` or torch's global generator.
        seeding: what Python's, numpy's and torch's generators are seeded from before people's
            code is called. ``"batch"``: base seed, epoch and step, so that batches do not depend
            on the number of workers; in the main process the program's own states are put back
            afterwards. ``"sample"``: the sample's position in the epoch's order, so that they do
            not depend on the batch size either. ``"worker"``: torch's scheme, base seed and
            worker number, once.
        schedule: which worker is given a task. ``"balanced"``: the one that has fewest.
            ``"round_robin"``: batch i goes to worker i modulo num_workers, as in torch. ``None``:
            balanced, except for iterable-style data and ``seeding="worker"``.
        seed_hooks: called with a seed (an int from 0 to 2**62 - 1) each time that the generators
            are seeded, to seed another one.
        at_epoch_end: what ``iter`` does with a state that was taken after an epoch's last batch
            and before StopIteration. ``"stop"``: the pass delivers nothing, and warns.
            ``"next"``: it goes straight to the next epoch.

    Raises:
        ValueError, TypeError: torch's, for torch's arguments, with torch's text; for ours if a
            value is not one of those above, or if ``generator`` is given together with ``seed``.
    """

    #: number of the epoch at hand; if there is none, of the one that begins next
    epoch = _Epoch()

    def __init__(
        self,
        dataset: Dataset[_T],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
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
        at_epoch_end: AtEpochEnd = "stop",
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self._options = Options(seed, seeding, schedule, tuple(seed_hooks), at_epoch_end)
        # Torch keeps every argument as an attribute, from which trainers build loaders anew.
        self.seed = self._options.seed
        self.seeding, self.schedule, self.at_epoch_end = seeding, schedule, at_epoch_end
        self.seed_hooks = seed_hooks
        if seed is not None and generator is not None:
            raise ValueError("generator option is mutually exclusive with seed")
        #: number of the epoch that the next ``iter`` begins, unless a state was loaded
        self._next_epoch = 0
        #: the epoch that set_epoch has last told the dataset; None if it was never called
        self._announced: int | None = None
        #: a loaded state that the next ``iter`` goes on from, and its wish for an epoch's end
        self._resume: dict[str, Any] | None = None
        self._resume_at_end: AtEpochEnd | None = None
        self._begin_life()
        self._source.origin = built(self)

    def _begin_life(self) -> None:
        """Set what no pickle carries."""
        self._source = Source(self._options.seed, generators(self))
        self._source.dataset = self.dataset
        #: the newest run, which state_dict reports even when its iterator is gone
        self._run: Run | None = None
        self._newest_ref: weakref.ref[LoaderIterator[Any]] | None = None
        #: persistent workers, and the iterator that has them
        self._driver: Driver | None = None
        self._kept: weakref.ref[LoaderIterator[Any]] | None = None
        self._group: Any = None

    # --- epochs ----------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator[_T]:  # type: ignore[override]
        """Begin the next epoch, or go on from the state that was loaded.

        Raises:
            StateError: the loaded state does not fit any more.
        """
        self.check_worker_number_rationality()
        # With persistent workers torch gives the same object again.
        kept = self._kept() if self._lives_on and self._kept is not None else None
        iterator: LoaderIterator[_T] = kept or LoaderIterator(self, self._driver)
        before = self._next_epoch, self._run, self._newest_ref
        try:
            iterator.begin(self._resume, self._resume_at_end)
        except BaseException:  # nobody got this epoch: the next iter begins it
            iterator.close()
            self._next_epoch, self._run, self._newest_ref = before
            raise
        self._resume = self._resume_at_end = None
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter`` begins.

        It reaches the sampler, the batch sampler and the dataset where they have ``set_epoch``,
        and the dataset's copies in persistent workers. A state that was loaded for this epoch
        stays in force; one for another epoch is dropped.

        Args:
            epoch: from 0.

        Raises:
            ValueError: ``epoch`` is negative.
            TypeError: it is no whole number.
        """
        epoch = whole_number("epoch", epoch)
        if epoch < 0:
            raise ValueError(f"epoch should be from 0, got epoch={epoch}")
        resume = self._resume
        if resume is not None and resume["epoch"] != epoch:
            if resume["step"] and remaining(self, resume) != 0:
                dropped_state(epoch, resume["epoch"])
            self._resume = None
            self._source.restore(resume["rng"])
        if self._newest is None:
            self._run = None  # a pass that was left, or is over
        self._next_epoch = epoch
        self._announced = epoch
        self._tell_samplers(epoch)
        tell_epoch(self.dataset, epoch)

    def batch_at(self, step: int, epoch: int | None = None) -> _T:
        """That very batch again, augmentation included, without touching any live iterator.

        With torch's samplers it does not walk through the epoch.

        Args:
            step: number of the batch within the epoch, from 0.
            epoch: the epoch; None for the one at hand. Another one is known only with ``seed=``,
                or where the order is not random.

        Returns:
            The batch, fetched in this process.

        Raises:
            IndexError: the epoch has no such step.
            ValueError, TypeError: ``epoch`` is negative, or no whole number.
            UsageError: the batch is not a function of step and epoch: iterable-style data,
                ``seeding="worker"``, or an epoch whose random numbers are not known.
        """
        return batch_at(self, step, epoch)  # type: ignore[no-any-return]

    # --- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iterator stands, or what the next ``iter`` will begin with.

        The same protocol as torchdata's StatefulDataLoader. It starts and draws nothing.

        Returns:
            See `LoaderIterator.state_dict`.

        Raises:
            CannotSaveError: see `LoaderIterator.state_dict`.
        """
        if self._resume is not None:
            return copy.deepcopy(self._resume)
        newest = self._newest
        if newest is not None:
            return newest.state_dict()
        run = self._run
        if run is None:
            return self._beginning()
        if run.finished:
            return next_epoch(self, run)
        if run.unmoved is not None:
            return copy.deepcopy(run.unmoved)
        check_savable(self, run)
        return run.snapshot(live=False)

    def load_state_dict(
        self, state: dict[str, Any], *, strict: bool = True, at_epoch_end: AtEpochEnd | None = None
    ) -> None:
        """Have the next ``iter`` go on from a saved state; the iteration at hand is abandoned.

        Args:
            state: what ``state_dict`` returned; ``{}`` is the beginning of epoch 0.
            strict: False takes what still has a meaning from a state that does not fit: with
                another batch size, the same sample.
            at_epoch_end: ``"stop"`` or ``"next"``, instead of the loader's own.

        Raises:
            StateMismatch: the state belongs to another dataset length, sampler, batch size,
                drop_last or seeding.
            DamagedStateError, NewerStateError, ForeignStateError: see there. The loader is as it
                was after any of these.
            ValueError: ``at_epoch_end`` is something else.
        """
        accepted = self._accept(state, strict=strict, at_epoch_end=at_epoch_end)
        self._resume = accepted
        self._resume_at_end = at_epoch_end
        self._run = None
        self._newest_ref = None

    def __getstate__(self) -> dict[str, Any]:
        left = {"_source", "_run", "_newest_ref", "_driver", "_kept", "_iterator", "_group"}
        kept = {name: value for name, value in self.__dict__.items() if name not in left}
        context = kept.pop(_CONTEXT, None)
        kept["start_method"] = None if context is None else context.get_start_method()
        return kept

    def __setstate__(self, kept: dict[str, Any]) -> None:
        kept = dict(kept)
        method = kept.pop("start_method")
        self.__dict__.update(kept)
        context = None if method is None else torch.multiprocessing.get_context(method)
        self.__dict__[_CONTEXT] = context
        self.__dict__["_iterator"] = None
        self._begin_life()

    # --- for iterators ---------------------------------------------------------------------------

    @property
    def _iterable(self) -> bool:
        """The dataset is iterable-style."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def _lives_on(self) -> bool:
        """Workers go on living from epoch to epoch."""
        return self.persistent_workers and self.num_workers > 0

    @property
    def _pinned(self) -> bool:
        """Each batch has its worker."""
        if self._iterable or self._options.seeding == "worker":
            return True
        return self._options.schedule == "round_robin"

    @property
    def _newest(self) -> LoaderIterator[Any] | None:
        """The newest iterator, while it lives."""
        return None if self._newest_ref is None else self._newest_ref()

    def _adopt(self, iterator: LoaderIterator[Any]) -> None:
        """Make it the newest one."""
        self._newest_ref = weakref.ref(iterator)
        self._next_epoch = iterator.epoch + 1
        if self._lives_on:
            self._driver, self._kept = iterator.driver, self._newest_ref

    def _run_begins(self, run: Run) -> None:
        """Note the newest run."""
        self._run = run
        self._next_epoch = run.epoch + 1

    def _accept(
        self, state: dict[str, Any], *, strict: bool, at_epoch_end: str | None
    ) -> dict[str, Any]:
        """A copy of a state that fits this loader; see `load_state_dict`."""
        if at_epoch_end is not None:
            check_choice("at_epoch_end", at_epoch_end, ("stop", "next"))
        if state == {}:
            return beginning(self, 0)
        accepted = fit(copy.deepcopy(state), fingerprint(self), strict)
        self._source.check(accepted["rng"])
        self._source.check_workers(accepted["workers"])
        check_order(self, accepted)
        self._make_ready(accepted)
        return accepted

    def _make_ready(self, state: dict[str, Any]) -> None:
        """Let dataset and sampler be as they were; what the program tells them later counts."""
        if state["announced"] is not None:
            self._tell_samplers(state["announced"])
            tell_epoch(self.dataset, state["announced"])
        self._announced = state["announced"]
        if not self._iterable:
            prepare(anatomy(self).sampler, state["sampler"], self._source)

    def _fresh_epoch(self) -> int:
        """The epoch that begins now; with ``seed=`` the sampler follows."""
        epoch = self._next_epoch
        if self._options.seed is not None:
            self._tell_samplers(epoch)
        return epoch

    def _tell_samplers(self, epoch: int) -> None:
        for sampler in (self.batch_sampler, self.sampler):
            tell_epoch(sampler, epoch)
        inner = getattr(self.batch_sampler, "sampler", None)
        if inner is not self.sampler:
            tell_epoch(inner, epoch)

    def _job(self) -> Job:
        """What is to be done with tasks."""
        return Job(
            dataset=self.dataset,
            collate_fn=self.collate_fn,
            iterable=self._iterable,
            batched=self._auto_collation,
            drop_last=self.drop_last,
            seeding=self._options.seeding,
            seed_hooks=self._options.seed_hooks,
        )

    def _draw_shared_seed(self, epoch: int) -> int | None:
        """The seed that the workers' DataPipes share; None without DataPipes."""
        if not datapipes.is_iter_datapipe(self.dataset):
            return None
        if self._options.seed is not None:
            return base_seed(self._options.seed, epoch)
        if self._group is None:
            self._group = datapipes.process_group()
        return self._source.draw("loader", lambda g: datapipes.draw_shared_seed(g, self._group))

    def _beginning(self) -> dict[str, Any]:
        """The state at the start of the epoch that begins next."""
        return beginning(self, self._next_epoch)


_CONTEXT = "_DataLoader__multiprocessing_context"
