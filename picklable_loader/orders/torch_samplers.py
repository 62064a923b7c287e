"""Orders for torch's samplers and our own: the identical sequence, restored from a few numbers.

`_FACTORIES` says which sampler has which order; any other sampler's iterator is taken as it is
(`CustomOrder`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from ..core.order import Lengths, Order, SequenceOrder
from ..errors import DamagedStateError
from ..rng.source import Setting
from .chunked import ChunkedOrder, Chunks, checked_number
from .custom import CustomOrder
from .shuffle_sampler import ShuffleOrder, ShuffleSampler

OrderFactory = Callable[[Any, Setting], Order]


class PermutationOrder(ChunkedOrder):
    """RandomSampler without replacement: permutation after permutation."""

    own_seed = True

    def source_length(self) -> int:
        return len(self.sampler.data_source)

    def chunk_count(self) -> int:
        # At the end torch draws one more permutation for the remainder, even if there is none:
        # with a generator of the user's, the next epoch's order depends on it.
        return self.lengths.total // self.chunk_length + 1

    def draw_chunk(self, number: int, generator: torch.Generator | None) -> torch.Tensor:
        return torch.randperm(self.chunk_length, generator=generator, device="cpu")


class ReplacementOrder(ChunkedOrder):
    """RandomSampler with replacement: torch draws 32 indices at a time."""

    own_seed = True
    _LENGTH = 32
    _AT_ONCE = 2**15

    def source_length(self) -> int:
        return len(self.sampler.data_source)

    def full_chunk_length(self) -> int:
        return self._LENGTH

    def chunk_count(self) -> int:
        return self.lengths.total // self._LENGTH + 1

    def draw_chunk(self, number: int, generator: torch.Generator | None) -> torch.Tensor:
        size = min(self._LENGTH, self.lengths.total - number * self._LENGTH)
        return self._draw(size, generator)

    def pass_chunks(self, chunks: Chunks, until: int) -> None:
        # n draws of 32 consume the generator as one draw of 32 n (tests/orders/test_samplers.py).
        while (some := min(until - chunks.drawn, chunks.private_left(), self._AT_ONCE)) > 0:
            size = min(some * self._LENGTH, self.lengths.total - chunks.drawn * self._LENGTH)
            chunks.draw(lambda generator: self._draw(size, generator), some)
        super().pass_chunks(chunks, until)

    def _draw(self, size: int, generator: torch.Generator | None) -> torch.Tensor:
        high = self.lengths.source
        return torch.randint(
            high=high, size=(size,), dtype=torch.int64, generator=generator, device="cpu"
        )


class SubsetOrder(ChunkedOrder):
    """SubsetRandomSampler: one permutation of a list of indices."""

    def draw_chunk(self, number: int, generator: torch.Generator | None) -> torch.Tensor:
        return torch.randperm(self.lengths.source, generator=generator, device="cpu")

    def translate(self, indices: list[int]) -> list[Any]:
        chosen = self.sampler.indices
        return [chosen[index] for index in indices]


class WeightedOrder(ChunkedOrder):
    """WeightedRandomSampler: one multinomial sample."""

    def draw_chunk(self, number: int, generator: torch.Generator | None) -> torch.Tensor:
        sampler = self.sampler
        return torch.multinomial(
            sampler.weights, sampler.num_samples, sampler.replacement, generator=generator
        )


class DistributedOrder:
    """DistributedSampler: every ``num_replicas``-th index of a permutation that ranks share.

    After a state of another number of ranks it begins up to ``num_replicas - 1`` indices later, so
    that the ranks go on where those had been: see `reshared`.
    """

    seekable = True
    _pl_record = "order of ranks"

    def __init__(self, sampler: DistributedSampler[Any], setting: Setting) -> None:
        self.sampler = sampler
        self._setting = setting
        #: the sampler's seed and epoch at the first index, where torch's reads them
        self._start: dict[str, int] | None = None
        saved = setting.saved
        #: indices of the permutation before the first one of rank 0
        self._shift = 0 if saved is None else _shift(saved, sampler.num_replicas)
        if saved is not None:
            self._start = {name: checked_number(saved, name) for name in ("epoch", "seed")}
            if not -(2**63) <= sum(self._start.values()) < 2**64:  # it seeds a generator
                raise DamagedStateError("order", "an epoch and a seed", self._start)
        self._permutation: torch.Tensor | None = None
        self._position = 0
        #: samples, as they were at the first index: a dataset may grow
        self._size: int | None = None

    def open(self) -> None:
        self._start = self.state(live=False)

    def take(self, count: int) -> list[Any]:
        sampler = self.sampler
        if self._start is None:
            self.open()
        if self._size is None:
            self._size = len(sampler.dataset)  # type: ignore[arg-type]
        stop = min(self._position + count, _length(sampler, self._shift))
        first = sampler.rank + self._shift
        positions = torch.arange(self._position, stop, device="cpu") * sampler.num_replicas + first
        self._position = max(self._position, stop)
        # Padding repeats the permutation from its beginning.
        positions %= self._size
        if not sampler.shuffle:
            return cast("list[int]", positions.tolist())
        if self._permutation is None:
            start, generator = self.state(live=False), torch.Generator()
            generator.manual_seed(start["seed"] + start["epoch"])
            self._permutation = torch.randperm(self._size, generator=generator, device="cpu")
        return cast("list[int]", self._permutation[positions].tolist())

    def seek(self, position: int) -> None:
        if self._start is None:  # another pass may set the sampler's epoch before the next index
            self.open()
        if self._size is None:  # the dataset may grow before the next index
            self._size = len(self.sampler.dataset)  # type: ignore[arg-type]
        self._position = position

    def length(self) -> int | None:
        return _length(self.sampler, self._shift)

    def state(self, live: bool) -> dict[str, int]:
        if self._start is not None:
            return {**self._start, "shift": self._shift} if self._shift else dict(self._start)
        setting, sampler = self._setting, self.sampler
        epoch = setting.epoch if setting.elsewhere else sampler.epoch
        return {"epoch": int(epoch), "seed": int(sampler.seed)}  # numpy's numbers are no JSON


def _length(sampler: DistributedSampler[Any], shift: int) -> int:
    if not shift:
        return int(sampler.num_samples)
    left, replicas = len(sampler.dataset) - shift, sampler.num_replicas  # type: ignore[arg-type]
    return max(0, left // replicas if sampler.drop_last else -(-left // replicas))


def _shift(order: dict[str, Any], replicas: int) -> int:
    shift = checked_number(order, "shift") if "shift" in order else 0
    if not 0 <= shift < replicas:
        raise DamagedStateError("order.shift", f"from 0 to {replicas - 1}", shift)
    return shift


def length_in(order: dict[str, Any] | None, sampler: Any) -> int | None:
    """Indices of an epoch at hand, where its length is not the sampler's; None: it is.

    The epoch was `reshared`; or its dataset has grown since it began.
    """
    if order and "shift" in order and isinstance(sampler, DistributedSampler):
        return _length(sampler, order["shift"])
    if order and "grown_from" in order:
        return Lengths(sys.maxsize, sys.maxsize).restored(order).total  # it may be damaged
    return None


def reshared(
    sampler: DistributedSampler[Any], replicas: int, order: dict[str, Any], position: int
) -> tuple[dict[str, Any], int]:
    """Where a rank goes on from a state of another number of ranks, of which none is repeated.

    Args:
        sampler: this rank's.
        replicas: number of ranks when the state was saved, for example 4.
        order: the order's saved state.
        position: indices that each of them had taken, for example 5.

    Returns:
        The order's state, and its position. In the example all ranks had taken 20 indices. Each of
        3 ranks goes on at its position 6, in an order that begins 2 indices later.
    """
    passed = position * replicas + _shift(order, replicas)
    size = len(sampler.dataset)  # type: ignore[arg-type]
    position, shift = divmod(min(passed, size), sampler.num_replicas)  # beyond it is padding
    found = {name: value for name, value in order.items() if name != "shift"}
    return ({**found, "shift": shift} if shift else found), position


def _random(sampler: RandomSampler, setting: Setting) -> Order:
    kind = ReplacementOrder if sampler.replacement else PermutationOrder
    return kind(sampler, setting)


def _in_sequence(sampler: SequentialSampler, setting: Setting) -> Order:
    return SequenceOrder(lambda: range(len(sampler.data_source)), setting.saved)


def _sequence(sampler: Any, setting: Setting) -> Order:
    return SequenceOrder(lambda: sampler, setting.saved)


_FACTORIES: dict[type[Any], OrderFactory] = {
    SequentialSampler: _in_sequence,
    RandomSampler: _random,
    SubsetRandomSampler: SubsetOrder,
    WeightedRandomSampler: WeightedOrder,
    DistributedSampler: DistributedOrder,
    ShuffleSampler: ShuffleOrder,
    range: _sequence,
    list: _sequence,
    tuple: _sequence,
}


def register_order(sampler_type: type[Any], factory: OrderFactory) -> None:
    """Give samplers of a type an order of their own, for instance a seekable one.

    Args:
        sampler_type: the sampler's class. Subclasses get the same order, unless they override
            ``__iter__`` or ``__len__``, or have ``receive``, ``put_back`` or ``state_dict``.
        factory: called with the sampler and a `Setting` at the start of every epoch and on
            resume; returns an `Order`. ``Setting.saved`` is what the order's ``state()`` gave.

    Raises:
        TypeError: ``sampler_type`` is not a class, or ``factory`` not callable.
    """
    if not isinstance(sampler_type, type):
        raise TypeError(f"sampler_type should be a class, got {sampler_type!r}")
    if not callable(factory):
        raise TypeError(f"factory should be callable, got {factory!r}")
    _FACTORIES[sampler_type] = factory


register_order.__module__ = "picklable_loader"  # pickles hold this name


def make_order(sampler: Any, setting: Setting) -> Order:
    """The order of a sampler: the registered one, else one that takes its iterator as it is."""
    factory = _factory(type(sampler))
    return CustomOrder(sampler, setting) if factory is None else factory(sampler, setting)


def is_known(sampler: Any) -> bool:
    """There is an order for samplers of this kind."""
    return _factory(type(sampler)) is not None


#: a subclass that has one of these of its own may have another sequence
_OF_BATCHES = ("__iter__", "receive", "put_back")
_DECISIVE = (*_OF_BATCHES, "__len__", "num_samples", "state_dict")


def gathers_as_torch(batch_sampler: Any) -> bool:
    """It is torch's BatchSampler, or gathers the indices of its sampler as that does."""
    kind = type(batch_sampler)
    return issubclass(kind, BatchSampler) and _same(kind, BatchSampler, _OF_BATCHES)


def _same(kind: type[Any], base: type[Any], names: tuple[str, ...]) -> bool:
    return all(getattr(kind, name, None) is getattr(base, name, None) for name in names)


def _factory(kind: type[Any]) -> OrderFactory | None:
    for base in kind.__mro__:
        if base in _FACTORIES:
            same = kind is base or _same(kind, base, _DECISIVE)
            return _FACTORIES[base] if same else None
    return None
