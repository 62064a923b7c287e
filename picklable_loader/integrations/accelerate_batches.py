"""The batches of all of Accelerate's processes, as one order that `shard=` shares out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import tee, zip_longest
from typing import Any, cast

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler

from ..orders.sampler_facts import data_of, describe
from ..orders.torch_samplers import is_known, make_order, register_order
from ..rng.source import Setting
from ..saving.states.checksum import checksum


class BatchesOfRanks(BatchSampler):
    """The batches of all processes, as Accelerate shares them: batch i is process i % processes's.

    It has the attributes of ``BatchSamplerShard`` that Accelerate reads and sets.
    """

    def __init__(self, inner: Any, share: BatchSamplerShard) -> None:
        self.batch_sampler = inner
        self.batch_size = cast(int, getattr(inner, "batch_size", None))
        self.drop_last = getattr(inner, "drop_last", False)
        self.num_processes: int = share.num_processes
        self.split_batches: bool = share.split_batches
        self.even_batches: bool = share.even_batches

    #: an attribute of torch's BatchSampler; set_epoch has to reach the program's sampler
    sampler: Any = property(lambda self: getattr(self.batch_sampler, "sampler", None))

    @property
    def generator(self) -> Any:
        return getattr(self.sampler, "generator", None)

    def set_epoch(self, epoch: int) -> None:
        """Pass it on to the program's batch sampler."""
        if hasattr(self.batch_sampler, "set_epoch"):
            self.batch_sampler.set_epoch(epoch)

    def layout(self) -> dict[str, Any]:
        """The properties that must be the same where a state is loaded."""
        order = order_of(self.batch_sampler)
        data = data_of(order)
        return {
            "processes": self.num_processes,
            "dispatched": False,
            "split_batches": self.split_batches,
            "even_batches": self.even_batches,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "sampler": describe(order),
            "sampler_checksum": None if data is None else checksum(data),
        }

    def __len__(self) -> int:
        batches = sum(map(len, self._shares([self.batch_sampler] * self.num_processes)))
        if (
            self.split_batches
            and not (self.even_batches or self.drop_last)
            and self.sampler is not None
        ):
            # Accelerate counts the last batch for all processes, and some may get none of it.
            samples = len(self.sampler) % self.batch_size
            if samples:
                parts = -(-samples * self.num_processes // self.batch_size)
                batches -= self.num_processes - parts
        return batches

    def __iter__(self) -> Iterator[list[Any]]:
        return self.shared(self.batch_sampler)

    def shared(self, batches: Iterable[Any]) -> Iterator[list[Any]]:
        """The batches of all processes, step after step, which Accelerate's own code makes."""
        # It fills up lists in place: each process has its own.
        copies = [_Copies(self, each) for each in tee(map(list, batches), self.num_processes)]
        for step in zip_longest(*self._shares(copies)):
            yield from (batch for batch in step if batch is not None)

    def _shares(self, batches: list[Any]) -> list[BatchSamplerShard]:
        return [
            BatchSamplerShard(
                each, self.num_processes, process, self.split_batches, self.even_batches
            )
            for process, each in enumerate(batches)
        ]


def order_of(batches: Any) -> Any:
    """Who decides on the order of a batch sampler's samples: torch's has a sampler for that."""
    return batches.sampler if type(batches) is BatchSampler else batches


class _Copies(BatchSampler):
    """Copies of batches, as a batch sampler."""

    def __init__(self, like: BatchesOfRanks, batches: Iterator[list[Any]]) -> None:
        self._batches = batches
        self.batch_size, self.drop_last = like.batch_size, like.drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        return map(list, self._batches)


class SeekableBatchesOfRanks(BatchesOfRanks):
    """Batches of one of torch's samplers: any position is found without the ones before."""


class _OrderOfRanks:
    """The order of `SeekableBatchesOfRanks`: its items are batches."""

    seekable = True

    def __init__(self, sampler: SeekableBatchesOfRanks, setting: Setting) -> None:
        self._sampler = sampler
        self._inner: Any = make_order(sampler.sampler, setting)
        self._pl_record: str | None = getattr(self._inner, "_pl_record", None)
        self._position = 0
        split = sampler.num_processes if sampler.split_batches else 1
        #: samples of a batch, and of a step of all processes
        self._size = sampler.batch_size // split
        self._step = self._size * sampler.num_processes
        self._tail: list[list[Any]] | None = None

    def open(self) -> None:
        self._inner.open()

    def take(self, count: int) -> list[Any]:
        full = self._full() * self._sampler.num_processes
        start, self._position = self._position, self._position + count
        stop = min(self._position, full)
        batches: list[Any] = []
        if start < stop:
            self._inner.seek(start * self._size)
            samples = self._inner.take((stop - start) * self._size)
            batches = [samples[at : at + self._size] for at in range(0, len(samples), self._size)]
        if self._position > full:
            batches += self._last()[max(0, start - full) : self._position - full]
        self._position = start + len(batches)
        return batches

    def seek(self, position: int) -> None:
        self._position = position

    def length(self) -> int | None:
        return len(self._sampler)

    def state(self, live: bool) -> dict[str, Any] | None:
        return cast("dict[str, Any] | None", self._inner.state(live))

    def _full(self) -> int:
        return cast(int, self._inner.length()) // self._step

    def _last(self) -> list[list[Any]]:
        """The batches after the last full step."""
        if self._tail is None:
            size, full = self._sampler.batch_size, self._full()
            self._inner.seek(full * self._step)
            rest = self._inner.take(self._step)
            self._inner.seek(0)
            begin = self._inner.take(self._step) if full else []
            # Accelerate fills up the last step from the first one.
            batches = (p[at : at + size] for p in (begin, rest) for at in range(0, len(p), size))
            skipped = self._sampler.num_processes if full else 0
            self._tail = list(self._sampler.shared(batches))[skipped:]
        return self._tail


register_order(SeekableBatchesOfRanks, _OrderOfRanks)


def batches_of_ranks(inner: Any, share: BatchSamplerShard) -> BatchesOfRanks:
    """The batches of all processes, from a program's batch sampler and Accelerate's share of it."""
    kind, order = SeekableBatchesOfRanks, order_of(inner)
    if order is inner or not is_known(order):
        # Attributes of an object of a sampler's own package are in a state: so it has the order's.
        kind = cast(
            "type[SeekableBatchesOfRanks]",
            type(kind.__name__, (BatchesOfRanks,), {"__module__": type(order).__module__}),
        )
    return kind(inner, share)
