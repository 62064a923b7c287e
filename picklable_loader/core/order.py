"""A sampler's sequence of indices, as the plan takes from it and, in most orders, seeks in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..errors import DamagedStateError


@runtime_checkable
class Order(Protocol):
    """The sequence of one epoch.

    A *seekable* order is restored from its ``state()`` and a position. Any other is restored from
    its ``state()`` alone, which then covers everything taken so far.

    An order of this package may have an attribute more: ``_pl_record``, the name of the saved
    state's record in `core.fields.FIELDS`. An order that somebody has registered checks its state
    itself.
    """

    seekable: bool

    def open(self) -> None:
        """Do what ``iter(sampler)`` does; called where torch would call it, or never."""

    def take(self, count: int) -> list[Any]:
        """The next ``count`` indices; fewer only at the end, and an empty list ever after."""

    def seek(self, position: int) -> None:
        """Go to where ``position`` indices have been taken (seekable orders only)."""

    def length(self) -> int | None:
        """How many indices the epoch has; None where the sampler does not say."""

    def state(self, live: bool) -> dict[str, Any] | None:
        """The state that restores it; None while nothing was taken or is to be remembered.

        Args:
            live: the state may hold objects that only pickle can save.
        """


@runtime_checkable
class RandomAccess(Protocol):
    """An order that gives any index by its position."""

    def length(self) -> int | None:
        """See `Order`."""

    def at(self, positions: range) -> list[Any]:
        """The indices at ascending positions below the length; moves where ``take`` goes on."""


@runtime_checkable
class Listener(Protocol):
    """An order whose sampler may get feedback while it is drawn from."""

    #: the sampler receives feedback; None: nobody knows before it is opened
    listens: bool | None

    def receive(self, step: int, notes: Sequence[bytes]) -> None:
        """Give the sampler what was said about a delivered step; raises what it raises."""

    def iterator(self, lend: bool = False) -> Iterator[Any]:
        """The live iterator of the sampler, which is opened where it is not yet.

        Args:
            lend: the program gets it, and may change it.
        """

    def put_back(self, batches: list[Any]) -> bool:
        """Offer the sampler the batches that it gave last; False: it takes nothing back."""


class Section(Sequence[Any]):
    """Indices at some positions of an order, which are made when a slice is asked for."""

    def __init__(self, order: RandomAccess, positions: range) -> None:
        self._order = order
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, part: Any) -> Any:
        return self._order.at(self._positions[part])


class Lengths(NamedTuple):
    """How long an epoch is. A dataset that grows in mid-epoch does not make it longer."""

    #: samples that the indices are drawn from, and indices of the epoch
    source: int
    total: int

    def restored(self, saved: Mapping[str, Any] | None) -> Lengths:
        """The lengths that an epoch was begun with, where these are the ones now.

        ``saved`` is the order's state; None: the epoch begins.

        Raises:
            DamagedStateError: the state has others than a dataset that has grown can have.
        """
        was = (saved or {}).get("grown_from")
        if was is None:
            return self
        numbers = type(was) is list and len(was) == 2 and {*map(type, was)} == {int}
        if not numbers or not (0 <= was[0] <= self.source and 0 <= was[1] <= self.total):
            raise DamagedStateError("order.grown_from", f"two lengths up to {[*self]}", was)
        return Lengths(*was)

    def saved(self, now: Lengths) -> dict[str, list[int]]:
        """The part of an order's state: empty, unless the dataset has grown since."""
        grown = self != now and self.source <= now.source and self.total <= now.total
        return {"grown_from": [*self]} if grown else {}


class SequenceOrder:
    """The order of a sequence: ``range``, a list of indices, a list of batches.

    Args:
        make: gives the sequence; called when it is first needed, as torch's samplers look at
            their data then.
        saved: the state to go on from; None: from the beginning.

    Raises:
        DamagedStateError: that is no state of such an order.
    """

    seekable = True
    _pl_record = "order of a sequence"

    def __init__(
        self, make: Callable[[], Sequence[Any]], saved: Mapping[str, Any] | None = None
    ) -> None:
        self._make = make
        self._saved = saved
        self._sequence: Sequence[Any] | None = None if saved is None else self._made()
        self._position = 0

    def open(self) -> None:
        if self._sequence is None:
            self._sequence = self._made()

    def take(self, count: int) -> list[Any]:
        if self._sequence is None:
            self._sequence = self._made()
        start = self._position
        taken = list(self._sequence[start : start + count])
        self._position = start + len(taken)
        return taken

    def at(self, positions: range) -> list[Any]:
        if self._sequence is None:
            self._sequence = self._made()
        return list(self._sequence[positions.start : positions.stop : positions.step])

    def seek(self, position: int) -> None:
        self.open()  # the dataset of an epoch that goes on may grow before it gives a batch
        self._position = position

    def length(self) -> int | None:
        return len(self._made() if self._sequence is None else self._sequence)

    def state(self, live: bool) -> dict[str, Any] | None:
        if self._sequence is None:
            return None
        return _lengths(self._sequence).saved(_lengths(self._make())) or None

    def _made(self) -> Sequence[Any]:
        sequence = self._make()
        total = _lengths(sequence).restored(self._saved).total
        return sequence if total == len(sequence) else sequence[:total]


def _lengths(sequence: Sequence[Any]) -> Lengths:
    return Lengths(len(sequence), len(sequence))
