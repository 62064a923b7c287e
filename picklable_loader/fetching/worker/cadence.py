"""How often the state of a stream is taken, or a checksum of its batch."""

from __future__ import annotations

_SECOND_NS = 1_000_000_000
#: every so many batches have a checksum
_EVERY = 64


class Cadence:
    """When a state is to be taken.

    Args:
        every: after every so many batches, from 1; None: as often as a hundredth of the time that
            fetching takes allows, and after a second of it even if that is more, up to a twentieth.
        since: batches since the last state, which a resume fetches again. Without them a program
            that is stopped more often than that would fetch ever more of them.
        given: batches of the epoch so far.
    """

    def __init__(self, every: int | None, since: int = 0, given: int = 0) -> None:
        self._every = every
        self._given = given
        self._since = since
        self._busy_ns = 0
        #: what the last state has cost; after the first batch one is taken in any case
        self._cost_ns = 0

    def due(self, busy_ns: int) -> bool:
        """Note that a batch took so long; should a state be taken after it?"""
        self._since += 1
        self._given += 1
        self._busy_ns += busy_ns
        if self._every is not None:
            return self._since >= self._every
        cheap, bearable = 100 * self._cost_ns, max(_SECOND_NS, 20 * self._cost_ns)
        return self._busy_ns >= min(cheap, bearable)

    @property
    def compared(self) -> bool:
        """This batch has a checksum: 1, 2, 4, ... 64, 128, 192, ..., the same ones in each run."""
        return not (self._given % _EVERY and self._given & (self._given - 1))

    def taken(self, cost_ns: int) -> None:
        """Note that a state was taken, and what it has cost."""
        self._since = self._busy_ns = 0
        self._cost_ns = cost_ns

    def sent(self, cost_ns: int) -> None:
        """Note what it has cost to send it; to receive it costs as much again."""
        self._cost_ns += 2 * cost_ns
