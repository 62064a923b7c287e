"""A shuffle that needs no memory: each index is computed from its position when it is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Sampler

from ..core.checks import whole_number
from ..core.order import Lengths
from ..core.seeds import order_seed
from ..errors import DamagedStateError
from ..rng.source import Setting, random_int64
from .permutation import MOST, Permutation

#: positions that are permuted at once: about 0.1 ms, and the fastest a number
_AT_ONCE = 4096


# Pickled loaders hold this name and its module: tests/golden/pickles.
class ShuffleSampler(Sampler[int]):
    """Shuffles any number of samples without a list of them; the length may be 2**62.

    An epoch's order is a keyed permutation of the indices. An index takes about 30 ns, the first
    one 0.2 ms, and a resume no more than that. ``RandomSampler`` draws all indices first: 8 bytes
    for each, and as Python numbers 32 more.

    Under picklable_loader's loader each epoch has an order of its own, without `set_epoch`: the
    loader's epoch counts. ``DataLoader(dataset, shuffle="indexed")`` makes such a sampler.

    Args:
        data_source: the dataset, or how many samples it has, from 0 to 2**62.
        seed: with the epoch, it chooses the order: any whole number. None: the loader's ``seed=``
            chooses, or a number that is drawn when an epoch begins, as by ``RandomSampler``.
        generator: that number is drawn from it; None: from torch's global generator.

    Raises:
        TypeError: ``data_source`` has no length, or ``seed`` is no whole number.
        ValueError: the length is below 0 or above 2**62.
    """

    __module__ = "picklable_loader"  # pickles hold this name

    def __init__(
        self,
        data_source: Sized | int,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if not isinstance(data_source, Sized):
            data_source = whole_number("data_source", data_source)
        self.data_source = data_source
        self.seed = None if seed is None else whole_number("seed", seed)
        self.generator = generator
        self.epoch = 0
        if not 0 <= self._length() <= MOST:
            raise ValueError(f"expected 0 to 2**62 samples, found {self._length()}")

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next ``iter`` under torch's loader; with ``seed=`` only.

        Args:
            epoch: any whole number.

        Raises:
            TypeError: it is no whole number.
        """
        self.epoch = whole_number("epoch", epoch)

    def __len__(self) -> int:
        return self._length()

    def __iter__(self) -> Iterator[int]:
        if self.seed is None:
            key = random_int64(self.generator)
        else:
            key = order_seed(self.seed, self.epoch)
        n = self._length()
        permutation = Permutation(n, key)
        for start in range(0, n, _AT_ONCE):
            yield from _indices(permutation, range(start, min(n, start + _AT_ONCE)))

    def _length(self) -> int:
        # len() refuses what no list could have on a system of 32 bits
        source = self.data_source
        return source if isinstance(source, int) else len(source)


class ShuffleOrder:
    """The order of a `ShuffleSampler`: its key is all that a state holds of it."""

    seekable = True
    _pl_record = "order of a permutation"

    def __init__(self, sampler: ShuffleSampler, setting: Setting) -> None:
        self._sampler = sampler
        self._setting = setting
        self._key: int | None = None
        #: as they were when the epoch began, as a dataset may grow; None: it has not begun
        self._lengths: Lengths | None = None
        if setting.saved is not None:
            self._key = setting.saved.get("key")
            if type(self._key) is not int or not 0 <= self._key < 2**64:
                raise DamagedStateError("order.key", "from 0 to 2**64 - 1", self._key)
            self._lengths = self._lengths_now().restored(setting.saved)
        #: made at the first index, as torch's samplers look at their data then
        self._permutation: Permutation | None = None
        self._position = 0
        #: some positions, and the indices there
        self._ahead = range(0)
        self._indices: list[int] = []

    def open(self) -> None:
        pass

    def take(self, count: int) -> list[Any]:
        permutation = self._permutation or self._begin()
        taken = self.at(range(self._position, min(self._position + count, permutation.n)))
        self._position += len(taken)
        return taken

    def at(self, positions: range) -> list[Any]:
        if not positions:
            return []
        permutation, ahead = self._permutation or self._begin(), self._ahead
        if not (positions[0] in ahead and positions[-1] in ahead and positions.step == ahead.step):
            # The next ones as well, at the same distance: those of a rank are world_size apart.
            count = max(len(positions), _AT_ONCE) * positions.step
            stop = min(positions.start + count, permutation.n)
            ahead = self._ahead = range(positions.start, stop, positions.step)
            self._indices = _indices(permutation, ahead)
        start = ahead.index(positions[0])
        return self._indices[start : start + len(positions)]

    def seek(self, position: int) -> None:
        self._position = position

    def length(self) -> int | None:
        return (self._lengths or self._lengths_now()).total

    def state(self, live: bool) -> dict[str, Any] | None:
        if self._key is None:
            return None
        now = self._lengths_now()
        return {"key": self._key, **(self._lengths or now).saved(now)}

    def _lengths_now(self) -> Lengths:
        return Lengths(len(self._sampler), len(self._sampler))

    def _begin(self) -> Permutation:
        if self._key is None:
            setting, own = self._setting, self._sampler.seed
            seed = setting.source.seed if own is None else own
            if seed is None:
                self._key = setting.source.draw("sampler", random_int64)
            else:
                self._key = order_seed(seed, setting.epoch)
        self._lengths = self._lengths or self._lengths_now()
        self._permutation = Permutation(self._lengths.total, self._key)
        return self._permutation


def _indices(permutation: Permutation, positions: range) -> list[int]:
    numbers = np.arange(positions.start, positions.stop, positions.step, dtype=np.uint64)
    return cast("list[int]", permutation(numbers).tolist())
