"""Interleaving: several iterable-style datasets as one, in turn or at random."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, Literal

from ..core.checks import check_choice, whole_number
from ..errors import DamagedStateError
from .protocol import stream_length_of
from .wrapper import (
    Wrapper,
    WrapperIterator,
    before_iter,
    check_fields,
    check_list,
    go_before_iter,
    iterable,
    name_of,
    reopen,
    seed_of_iteration,
    states_of,
    unit,
)


# Pickled loaders hold this name and its module: tests/golden/pickles.
class Interleave(Wrapper):
    """Yields from several iterable-style datasets, in turn or chosen at random.

    The choices are a function of ``seed``, the epoch and, under picklable_loader's loader, of the
    stream (`current_seed`); nobody's generator is drawn from. Within each dataset the order stays.

    The iterator can be pickled where those of all datasets can, and has torchdata's ``state_dict``
    and ``load_state_dict`` where all datasets or their iterators have them. It does what Hugging
    Face's ``interleave_datasets`` and webdataset's ``RoundRobin`` and ``RandomMix`` do.

    Args:
        datasets: at least one; anything with ``__iter__``, each listed once.
        weights: how often each is chosen, in proportion: finite numbers from 0, not all of them 0.
            A dataset with weight 0 is never read. None: one sample of each in turn.
        seed: decides the choices, any whole number.
        stop: ``"longest"``: until all datasets have ended, so that each sample comes once; those
            that are left are chosen among in the same proportions. ``"shortest"``: when the dataset
            that is chosen has ended, so that the proportions hold to the end.

    Raises:
        TypeError: one of the datasets cannot be iterated over; ``seed`` is no whole number.
        ValueError: no datasets; other weights than these; ``stop`` is neither of the two.
    """

    __module__ = "picklable_loader"  # pickles hold this name

    def __init__(
        self,
        datasets: Iterable[Any],
        weights: Iterable[float] | None = None,
        seed: int = 0,
        stop: Literal["longest", "shortest"] = "longest",
    ) -> None:
        self.datasets = [iterable(dataset) for dataset in datasets]
        if not self.datasets:
            raise ValueError("datasets should be at least one, got none")
        self.weights = None if weights is None else _checked(list(weights), len(self.datasets))
        self.seed = whole_number("seed", seed)
        check_choice("stop", stop, ("longest", "shortest"))
        self.stop = stop
        self.epoch = 0

    def _within(self) -> list[Any]:
        return self.datasets

    def __iter__(self) -> InterleaveIterator:
        return InterleaveIterator(self, seed_of_iteration("interleave", self.seed, self.epoch))

    def __len__(self) -> int:
        """Samples of an iteration; TypeError if a dataset has no length, or if chance decides."""
        if self._by_chance:
            raise TypeError('Interleave(weights=..., stop="shortest") has no len(): chance decides')
        return self._together([len(self.datasets[at]) for at in self._read_ever()])  # type: ignore

    @property
    def stream_length(self) -> Callable[[int, int], int]:
        """Gives the samples of one of several streams; AttributeError where `__len__` has none.

        Each dataset shares its own samples, so the streams' shares of all are not even.
        """
        each = [stream_length_of(self.datasets[at]) for at in self._read_ever()]
        known = [of_one for of_one in each if of_one is not None]
        if self._by_chance or len(known) < len(each):
            raise AttributeError("the lengths of its streams are not known")
        return lambda at, streams: self._together([of_one(at, streams) for of_one in known])

    @property
    def _by_chance(self) -> bool:
        """Nobody knows where an iteration ends."""
        return self.stop == "shortest" and self.weights is not None

    def _together(self, lengths: list[int]) -> int:
        """Samples of an iteration over datasets of these lengths."""
        if self.stop == "longest":
            return sum(lengths)
        # Whole rounds, and those that still give one in the round that the first one ends.
        shortest = min(lengths)
        return shortest * len(lengths) + lengths.index(shortest)

    def __repr__(self) -> str:
        names = ", ".join(map(name_of, self.datasets))
        return (
            f"Interleave([{names}], weights={self.weights}, seed={self.seed}, stop={self.stop!r})"
        )

    def _read_ever(self) -> list[int]:
        """Which datasets can be chosen at all."""
        weights = self.weights or [1.0] * len(self.datasets)
        return [index for index, weight in enumerate(weights) if weight > 0]


class InterleaveIterator(WrapperIterator):
    """One iteration over an `Interleave`."""

    kind = "Interleave"

    def __init__(self, wrapper: Interleave, seed: int) -> None:
        self.given = 0
        self._wrapper = wrapper
        self._seed = seed
        #: choices made so far: one for each sample, and for each end that was met
        self._choices = 0
        self._inner: list[Iterator[Any]] | None = None
        #: datasets that can be chosen, as they are listed
        self._left = wrapper._read_ever()

    def open(self) -> None:
        if self._inner is None:
            self._inner = [reopen(dataset, {}) for dataset in self._wrapper.datasets]

    def __next__(self) -> Any:
        self.open()
        assert self._inner is not None
        while self._left:
            index = self._choose()
            # Counted afterwards: when a dataset raises, it is its turn again.
            try:
                sample = next(self._inner[index])
            except StopIteration:
                self._end(index)
            else:
                self._choices += 1
                self.given += 1
                return sample
        raise StopIteration

    def _settings(self) -> dict[str, Any]:
        wrapper = self._wrapper
        weights = None if wrapper.weights is None else wrapper.weights.copy()
        return {"datasets": len(wrapper.datasets), "weights": weights, "stop": wrapper.stop}

    def _save(self) -> dict[str, Any]:
        begin = {"choices": self._choices, "left": self._left.copy()}
        datasets, inner = self._wrapper.datasets, self._inner
        if inner is None:
            return {**begin, "inner": None, **before_iter(datasets)}
        return {**begin, "inner": list(map(states_of, datasets, inner))}

    def _load(self, state: dict[str, Any]) -> None:
        check_fields(state, "choices")
        datasets = self._wrapper.datasets
        left = check_list(state, "left", len(datasets))
        if left != [index for index in self._wrapper._read_ever() if index in left]:
            raise DamagedStateError("left", f"some of {self._wrapper._read_ever()}", left)
        inner = state.get("inner", 0)
        if inner is not None and (not isinstance(inner, list) or len(inner) != len(datasets)):
            raise DamagedStateError("inner", f"states of {len(datasets)} datasets", inner)
        self._seed, self.given, self._choices = state["seed"], state["given"], state["choices"]
        self._left = left.copy()
        if inner is None:
            go_before_iter(datasets, state)
        self._inner = None if inner is None else list(map(reopen, datasets, inner))

    def __repr__(self) -> str:
        names = ", ".join(name_of(self._wrapper.datasets[index]) for index in self._left)
        return f"<InterleaveIterator: {self.given} given, {names or 'nothing'} left>"

    def _choose(self) -> int:
        """The dataset that this choice falls on; one that is left."""
        weights, left = self._wrapper.weights, self._left
        if weights is None:  # in turn
            count = len(self._wrapper.datasets)
            while self._choices % count not in left:
                self._choices += 1
            return self._choices % count
        sums = list(accumulate(weights[index] for index in left))
        # Below a sum that is hardly a number, a product may be rounded up to it.
        return left[bisect(sums, unit(self._seed, self._choices) * sums[-1], 0, len(left) - 1)]

    def _end(self, index: int) -> None:
        """A dataset has ended; it is not asked again: some iterators would begin anew."""
        self._choices += 1
        if self._wrapper.stop == "shortest":
            self._left = []
        else:
            self._left.remove(index)


def _checked(weights: list[float], count: int) -> list[float]:
    if len(weights) != count:
        raise ValueError(f"weights should be one for each of {count} datasets, got {len(weights)}")
    # Infinite is also what finite ones may add up to.
    if not all(weight >= 0 for weight in weights) or not 0 < sum(weights) < math.inf:
        raise ValueError(f"weights should be finite, from 0, and not all 0, got {weights}")
    return [float(weight) for weight in weights]
