"""Orders that come in chunks: 1-D tensors of indices, drawn from a generator when they are reached.

A permutation, 32 draws with replacement, one multinomial sample. Saved are the generator's state
before the first chunk and how many were drawn; never the indices themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import torch

from ..core.order import Lengths
from ..core.seeds import order_seed
from ..errors import SYMPTOMS, DamagedStateError
from ..rng.generators import generator_from_text
from ..rng.source import Setting, random_int64


class Chunks:
    """The chunks of an order, drawn one after the other.

    Chunks that had been drawn when the order was saved are drawn again from a private generator,
    so that no one else's generator is turned back; later ones come from where torch takes them.
    """

    def __init__(self, setting: Setting, start: dict[str, Any]) -> None:
        self._source = setting.source
        #: the seed, or the generator's state, of the first chunk
        self.start = start
        #: chunks drawn so far
        self.drawn = 0
        self._private: torch.Generator | None = None
        self._private_chunks = 0
        self.rewind(int((setting.saved or {}).get("chunks", 0)))

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

    def draw(
        self, how: Callable[[torch.Generator | None], torch.Tensor], chunks: int = 1
    ) -> torch.Tensor:
        """The next chunk, or several in one call of ``how``; private ones only, or none."""
        self.drawn += chunks
        if self.drawn <= self._private_chunks:
            return how(self._private)
        return self._source.draw("sampler", how)

    def private_left(self) -> int:
        """How many of the next chunks come from the private generator."""
        return max(0, self._private_chunks - self.drawn)

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
    if own_seed:
        return {"seed": source.draw("sampler", random_int64)}
    return {"generator": source.start("sampler")}


class ChunkedOrder:
    """An order that comes in chunks of equal length, and a last one that may be shorter."""

    seekable = True
    #: see `core.order.Order`
    _pl_record = "order in chunks"
    #: torch draws a seed for a generator of its own, where the sampler was given none
    own_seed = False

    def __init__(self, sampler: Any, setting: Setting) -> None:
        self.sampler = sampler
        #: as they were at the first index, or in the saved state: a dataset may grow
        self.lengths = Lengths(0, 0)
        #: indices of a full chunk, from 1
        self.chunk_length = 1
        self._setting = setting
        if setting.saved is not None:
            _check_saved(setting.saved)
            self.lengths = self._lengths_now().restored(setting.saved)
        #: where the first chunk is drawn from, and the chunks; None until the first index is taken,
        #: as torch's samplers draw nothing before that
        self._start_at: dict[str, Any] | None = None
        self._chunks: Chunks | None = None
        #: the chunk at hand, its number (-1: beyond the last one), and where in it
        self._chunk = torch.empty(0, dtype=torch.int64, device="cpu")
        self._number = -1
        self._offset = 0
        #: where to go once the first chunk is drawn
        self._target = 0

    # The differences between kinds of order.

    def source_length(self) -> int:
        """How many samples the indices are drawn from."""
        return len(self.sampler)

    def full_chunk_length(self) -> int:
        """How many indices a full chunk has."""
        return self.lengths.source

    def chunk_count(self) -> int:
        """How many chunks torch draws; the last one may turn out to be needed for nothing."""
        return 1

    def draw_chunk(self, number: int, generator: torch.Generator | None) -> torch.Tensor:
        raise NotImplementedError

    def translate(self, indices: list[int]) -> list[Any]:
        """Dataset indices for those drawn."""
        return indices

    def pass_chunks(self, chunks: Chunks, until: int) -> None:
        """Draw chunks and forget them, until that many are drawn."""
        while chunks.drawn < until:
            number = chunks.drawn
            chunks.draw(lambda generator: self.draw_chunk(number, generator))

    # The common part.

    def open(self) -> None:
        pass

    def take(self, count: int) -> list[Any]:
        if self._chunks is None:
            self._start()
        taken = self._slice(count)
        while len(taken) < count and self._next_chunk():
            taken += self._slice(count - len(taken))
        return self.translate(taken)

    def at(self, positions: range) -> list[Any]:
        if self._chunks is None:
            self._start()
        taken: list[int] = []
        while positions:
            self.seek(positions[0])
            here = positions[: -(-(len(self._chunk) - self._offset) // positions.step)]
            last = self._offset + (here[-1] - here[0])
            taken += self._chunk[self._offset : last + 1 : positions.step].tolist()
            positions = positions[len(here) :]
        return self.translate(taken)

    def seek(self, position: int) -> None:
        if self._chunks is None:
            self._target = position
            return
        number, offset = divmod(position, self.chunk_length)
        if self._number != number:
            self._go_to(self._chunks, number)
        self._offset = offset

    def length(self) -> int | None:
        begun = self._chunks is not None or self._setting.saved is not None
        return (self.lengths if begun else self._lengths_now()).total

    def state(self, live: bool) -> dict[str, Any] | None:
        if self._chunks is not None:
            state = self._chunks.state()
        elif self._setting.saved is not None:
            state = dict(self._setting.saved)
        else:
            return None
        if self.source_length() != self.lengths.source:  # each step may be saved: one `len` then
            state |= self.lengths.saved(self._lengths_now())
        return state

    def _lengths_now(self) -> Lengths:
        return Lengths(self.source_length(), len(self.sampler))

    def _start(self) -> None:
        if self._setting.saved is None:
            self.lengths = self._lengths_now()
        self.chunk_length = max(1, self.full_chunk_length())
        own_seed = self.own_seed and self.sampler.generator is None
        if self._start_at is None:  # a signal may come after the draw
            self._start_at = _begin(self._setting, own_seed)
        self._chunks = Chunks(self._setting, self._start_at)
        if self._target:
            self.seek(self._target)

    def _go_to(self, chunks: Chunks, number: int) -> None:
        """Make chunk ``number`` the current one."""
        self._chunk, self._number = self._chunk[:0], -1
        if chunks.drawn > number:
            chunks.rewind(chunks.state().get("chunks", 0))
        last = self.chunk_count()
        self.pass_chunks(chunks, min(number, last))
        if number < last:
            self._next_chunk()

    def _slice(self, count: int) -> list[int]:
        taken = cast("list[int]", self._chunk[self._offset : self._offset + count].tolist())
        self._offset += len(taken)
        return taken

    def _next_chunk(self) -> bool:
        chunks = self._chunks
        assert chunks is not None
        number = chunks.drawn
        if number >= self.chunk_count():
            return False
        start = number * self.chunk_length
        # Two permutations need not be in memory at once; and a signal may come within the draw.
        self._chunk, self._number = self._chunk[:0], -1
        chunk = chunks.draw(lambda generator: self.draw_chunk(number, generator))
        self._chunk = chunk[: max(0, self.lengths.total - start)]
        self._number, self._offset = number, 0
        return True


def _check_saved(saved: dict[str, Any]) -> None:
    if "seed" in saved:
        checked_number(saved, "seed")
        if "generator" in saved or "chunks" in saved:
            raise DamagedStateError("order", "a seed alone", list(saved))
        return
    try:
        generator_from_text(saved["generator"])
    except SYMPTOMS:
        found = saved.get("generator")
        raise DamagedStateError("order.generator", "a generator's state", found) from None
    if checked_number(saved, "chunks") < 0:
        raise DamagedStateError("order.chunks", "from 0", saved["chunks"])


def checked_number(saved: dict[str, Any], name: str) -> int:
    """A whole number of an order's saved state; DamagedStateError if it is none."""
    value = saved.get(name)
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise DamagedStateError(f"order.{name}", "a whole number", value)
    return value
