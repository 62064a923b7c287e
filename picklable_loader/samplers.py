"""Orders for torch's samplers: the identical sequence, restored from a few numbers.

Each is a series of *chunks*, 1-D tensors of indices that are drawn from a generator when they are
reached: a permutation, 32 draws with replacement, one multinomial sample. Saved are the
generator's state before the first chunk and how many were drawn; never the indices themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils.data import (
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from .core.order import Order, SequenceOrder
from .core.seeds import order_seed
from .custom import CustomOrder
from .errors import DamagedStateError
from .randomness import generator_from_text
from .source import Setting, random_int64

__all__ = ["describe", "make_order", "register_order"]

OrderFactory = Callable[[Any, Setting], Order]


class _Stream:
    """The generator that an order's chunks are drawn from.

    Chunks that had been drawn when the order was saved are drawn again from a private generator,
    so that no one else's generator is turned back; later ones come from where torch takes them.
    """

    def __init__(self, setting: Setting, own_seed: bool) -> None:
        self._source = setting.source
        self.start = _begin(setting, own_seed)
        #: chunks drawn so far
        self.drawn = 0
        self._private: torch.Generator | None = None
        self._private_chunks = 0
        self.rewind(_chunks(setting.saved))

    def rewind(self, private_chunks: int) -> None:
        """Back to the first chunk; so many are drawn privately (all, if seeded by a number)."""
        self.drawn = 0
        if "seed" in self.start:
            self._private = torch.Generator()
            self._private.manual_seed(self.start["seed"])
            self._private_chunks = sys.maxsize
        elif private_chunks:
            self._private = generator_from_text(self.start["generator"])
            self._private_chunks = private_chunks

    def draw(self, how: Callable[[torch.Generator | None], torch.Tensor]) -> torch.Tensor:
        """The next chunk."""
        private = self.drawn < self._private_chunks
        self.drawn += 1
        return how(self._private) if private else self._source.draw("sampler", how)

    def private_left(self) -> int:
        """How many of the next chunks come from the private generator."""
        return max(0, self._private_chunks - self.drawn)

    def draw_many(
        self, chunks: int, how: Callable[[torch.Generator | None], torch.Tensor]
    ) -> None:
        """Draw that many chunks in one call of ``how`` and forget them (private ones only)."""
        self.drawn += chunks
        how(self._private)

    def state(self) -> dict[str, Any]:
        if "seed" in self.start:
            return dict(self.start)
        return {**self.start, "chunks": max(self.drawn, self._private_chunks)}


def _begin(setting: Setting, own_seed: bool) -> dict[str, Any]:
    source, saved = setting.source, setting.saved
    if saved is not None:
        return {name: saved[name] for name in ("seed", "generator") if name in saved}
    if source.seed is not None:
        return {"seed": order_seed(source.seed, setting.epoch)}
    if own_seed and "sampler" not in source.generators:
        return {"seed": source.draw("sampler", random_int64)}
    return {"generator": source.start("sampler")}


def _chunks(saved: dict[str, Any] | None) -> int:
    return int(saved.get("chunks", 0)) if saved else 0


class ChunkedOrder:
    """An order that comes in chunks of equal length, and a last one that may be shorter."""

    seekable = True
    #: torch draws a seed for a generator of its own, where the sampler was given none
    own_seed = False

    def __init__(self, sampler: Any, setting: Setting) -> None:
        self.sampler = sampler
        #: indices of the epoch, and of a chunk (from 1): a dataset may grow while it is iterated
        self.total = len(sampler)
        self.chunk_length = max(1, self.high())
        self._setting = setting
        if setting.saved is not None:
            _check_saved(setting.saved)
        #: None until the first index is taken: torch's samplers draw nothing before that
        self._stream: _Stream | None = None
        self._chunk = torch.empty(0, dtype=torch.int64)
        self._offset = 0
        #: where to go once the stream has begun
        self._target = 0

    # What kinds of order differ in.

    def high(self) -> int:
        """How many indices a full chunk has."""
        return len(self.sampler)

    def chunk_count(self) -> int:
        """How many chunks torch draws; the last one may turn out to be needed for nothing."""
        return 1

    def draw_chunk(self, number: int, generator: torch.Generator | None) -> torch.Tensor:
        raise NotImplementedError

    def translate(self, indices: list[int]) -> list[Any]:
        """Dataset indices for those drawn."""
        return indices

    def pass_chunks(self, stream: _Stream, until: int) -> None:
        """Draw chunks and forget them, until that many are drawn."""
        while stream.drawn < until:
            number = stream.drawn
            stream.draw(lambda generator: self.draw_chunk(number, generator))

    # What they share.

    def open(self) -> None:
        pass

    def take(self, count: int) -> list[Any]:
        if self._stream is None:
            self._start()
        taken = self._slice(count)
        while len(taken) < count and self._next_chunk():
            taken += self._slice(count - len(taken))
        return self.translate(taken)

    def seek(self, position: int) -> None:
        if self._stream is None:
            self._target = position
            return
        number, offset = divmod(position, self.chunk_length)
        if self._stream.drawn != number + 1:
            self._go_to(self._stream, number)
        self._offset = offset

    def length(self) -> int | None:
        return self.total

    def state(self, live: bool) -> dict[str, Any] | None:
        if self._stream is None:
            return None if self._setting.saved is None else dict(self._setting.saved)
        return self._stream.state()

    def _start(self) -> None:
        self._stream = _Stream(self._setting, self.own_seed)
        if self._target:
            self.seek(self._target)

    def _go_to(self, stream: _Stream, number: int) -> None:
        """Make chunk ``number`` the current one."""
        self._chunk = self._chunk[:0]
        if stream.drawn > number:
            stream.rewind(stream.state().get("chunks", 0))
        last = self.chunk_count()
        self.pass_chunks(stream, min(number, last))
        if number < last:
            self._next_chunk()

    def _slice(self, count: int) -> list[int]:
        taken = cast("list[int]", self._chunk[self._offset : self._offset + count].tolist())
        self._offset += len(taken)
        return taken

    def _next_chunk(self) -> bool:
        stream = self._stream
        assert stream is not None
        number = stream.drawn
        if number >= self.chunk_count():
            return False
        start = number * self.chunk_length
        self._chunk = self._chunk[:0]  # two permutations need not stand in memory at once
        chunk = stream.draw(lambda generator: self.draw_chunk(number, generator))
        self._chunk = chunk[: max(0, self.total - start)]
        self._offset = 0
        return True


class PermutationOrder(ChunkedOrder):
    """RandomSampler without replacement: permutation after permutation."""

    own_seed = True

    def high(self) -> int:
        return len(self.sampler.data_source)

    def chunk_count(self) -> int:
        # At the end torch draws one more permutation for the remainder, even if there is none:
        # with a generator of the user's, the next epoch's order depends on it.
        return self.total // self.chunk_length + 1

    def draw_chunk(self, number: int, generator: torch.Generator | None) -> torch.Tensor:
        return torch.randperm(self.chunk_length, generator=generator)


class ReplacementOrder(ChunkedOrder):
    """RandomSampler with replacement: torch draws 32 indices at a time."""

    own_seed = True
    _LENGTH = 32
    _AT_ONCE = 2**15

    def high(self) -> int:
        return self._LENGTH

    def chunk_count(self) -> int:
        return self.total // self._LENGTH + 1

    def draw_chunk(self, number: int, generator: torch.Generator | None) -> torch.Tensor:
        size = min(self._LENGTH, self.total - number * self._LENGTH)
        return self._draw(size, generator)

    def pass_chunks(self, stream: _Stream, until: int) -> None:
        # n draws of 32 consume the generator as one draw of 32 n (tests/test_samplers.py).
        while (some := min(until - stream.drawn, stream.private_left(), self._AT_ONCE)) > 0:
            size = min(some * self._LENGTH, self.total - stream.drawn * self._LENGTH)
            stream.draw_many(some, lambda generator: self._draw(size, generator))
        super().pass_chunks(stream, until)

    def _draw(self, size: int, generator: torch.Generator | None) -> torch.Tensor:
        high = len(self.sampler.data_source)
        return torch.randint(high=high, size=(size,), dtype=torch.int64, generator=generator)


class SubsetOrder(ChunkedOrder):
    """SubsetRandomSampler: one permutation of a list of indices."""

    def draw_chunk(self, number: int, generator: torch.Generator | None) -> torch.Tensor:
        return torch.randperm(len(self.sampler.indices), generator=generator)

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
    """DistributedSampler: every ``num_replicas``-th index, of a permutation that all ranks share."""

    seekable = True

    def __init__(self, sampler: DistributedSampler[Any], setting: Setting) -> None:
        self.sampler = sampler
        if setting.saved is not None:
            saved = setting.saved
            self._epoch = _number(saved, "epoch")
            self._seed = _number(saved, "seed")
            sampler.set_epoch(self._epoch)  # as it stood; later epochs count on from there
        else:
            self._epoch = setting.epoch if setting.elsewhere else sampler.epoch
            self._seed = sampler.seed
        self._permutation: torch.Tensor | None = None
        self._position = 0

    def open(self) -> None:
        pass

    def take(self, count: int) -> list[Any]:
        sampler = self.sampler
        size = len(sampler.dataset)  # type: ignore[arg-type]
        stop = min(self._position + count, sampler.num_samples)
        replicas = sampler.num_replicas
        places = torch.arange(self._position, stop) * replicas + sampler.rank
        self._position = max(self._position, stop)
        # Padding repeats the permutation from its beginning.
        places %= size
        if not sampler.shuffle:
            return cast("list[int]", places.tolist())
        if self._permutation is None:
            generator = torch.Generator()
            generator.manual_seed(self._seed + self._epoch)
            self._permutation = torch.randperm(size, generator=generator)
        return cast("list[int]", self._permutation[places].tolist())

    def seek(self, position: int) -> None:
        self._position = position

    def length(self) -> int | None:
        return int(self.sampler.num_samples)

    def state(self, live: bool) -> dict[str, Any] | None:
        return {"epoch": self._epoch, "seed": self._seed}


def _sequential(sampler: SequentialSampler, setting: Setting) -> Order:
    return SequenceOrder(range(len(sampler.data_source)))


def _random(sampler: RandomSampler, setting: Setting) -> Order:
    kind = ReplacementOrder if sampler.replacement else PermutationOrder
    return kind(sampler, setting)


def _sequence(sampler: Any, setting: Setting) -> Order:
    return SequenceOrder(sampler)


_FACTORIES: dict[type[Any], OrderFactory] = {
    SequentialSampler: _sequential,
    RandomSampler: _random,
    SubsetRandomSampler: SubsetOrder,
    WeightedRandomSampler: WeightedOrder,
    DistributedSampler: DistributedOrder,
    range: _sequence,
    list: _sequence,
    tuple: _sequence,
}


def register_order(sampler_type: type[Any], factory: OrderFactory) -> None:
    """Give samplers of a type an order of their own, for instance a seekable one.

    Args:
        sampler_type: the sampler's class. Subclasses that do not override ``__iter__`` get the
            same order.
        factory: called with the sampler and a `Setting` at the start of every epoch and on
            resume; returns an `Order`. ``Setting.saved`` is what the order's ``state()`` gave.

    Raises:
        TypeError: ``sampler_type`` is not a class.
    """
    if not isinstance(sampler_type, type):
        raise TypeError(f"sampler_type should be a class, got {sampler_type!r}")
    _FACTORIES[sampler_type] = factory


def make_order(sampler: Any, setting: Setting) -> Order:
    """The order of a sampler: the registered one, else one that takes its iterator as it is."""
    factory = _factory(type(sampler))
    return CustomOrder(sampler, setting) if factory is None else factory(sampler, setting)


def describe(sampler: Any) -> str:
    """What kind of order a sampler has, in words that a fingerprint can hold."""
    name = type(sampler).__qualname__
    if isinstance(sampler, RandomSampler) and sampler.replacement:
        return f"{name}(replacement=True)"
    if isinstance(sampler, DistributedSampler):
        return f"{name}(num_replicas={sampler.num_replicas}, shuffle={sampler.shuffle})"
    return name


def _factory(kind: type[Any]) -> OrderFactory | None:
    for base in kind.__mro__:
        if base in _FACTORIES:
            # A subclass with an __iter__ of its own has another sequence.
            same = getattr(kind, "__iter__", None) is getattr(base, "__iter__", None)
            return _FACTORIES[base] if same else None
    return None


def _check_saved(saved: dict[str, Any]) -> None:
    if "seed" in saved:
        _number(saved, "seed")
        return
    try:
        generator_from_text(saved["generator"])
    except (KeyError, ValueError, TypeError, AttributeError):
        found = saved.get("generator")
        raise DamagedStateError("order.generator", "a generator's state", found) from None
    _number(saved, "chunks")


def _number(saved: dict[str, Any], name: str) -> int:
    value = saved.get(name)
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise DamagedStateError(f"order.{name}", "a whole number", value)
    return value
