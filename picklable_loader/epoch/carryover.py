"""The values that one epoch leaves to the next: seeds, policy, generators, states of streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.budget import Policy
from ..core.cursor import Cursor
from ..core.streams import StreamPosition
from ..rng.generators import states_from_text, states_to_text
from .dataset_rng import at_begin, for_replays
from .spec import Spec
from .stream_states import savable, warn_of_drift, warn_of_lost


@dataclass(frozen=True)
class Carryover:
    """Values that persistent workers carry from one epoch to the next."""

    #: the base seed of the epoch before
    base_seed: int
    #: the base seed of the epoch in which they were started
    worker_seed: int
    #: the loader's when they were started; its later settings do not reach them. None: new workers
    #: are to be started
    policy: Policy | None
    #: their generators at the end of the epoch before (``seeding="worker"``)
    worker_states: Mapping[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """The part of it that new workers can go on with: plain values."""
        seeds = {"base_seed": self.base_seed, "worker_seed": self.worker_seed}
        return {**seeds, "workers": as_text(self.worker_states)}

    @classmethod
    def from_plain(cls, saved: dict[str, Any]) -> Carryover:
        return cls(saved["base_seed"], saved["worker_seed"], None, from_text(saved["workers"]))


def as_text(states: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """By worker, the states of its generators, as a saved state holds them."""
    return {worker: states_to_text(each) for worker, each in states.items()}


def from_text(workers: Mapping[str, Any]) -> dict[str, Any]:
    """By worker, the states of its generators, of what `as_text` has made."""
    return {worker: states_from_text(texts) for worker, texts in workers.items()}


def positions_left(spec: Spec, states: Mapping[int, Any]) -> list[StreamPosition]:
    """The streams' positions at the start of the next epoch, which finds them in these states.

    An empty list: they are at their beginning, or the states are of other streams.
    """
    if not states or len(states) != len(spec.streams):
        return []
    return [StreamPosition(state=states[stream]) for stream in range(len(spec.streams))]


def streams_left(
    spec: Spec, states: Mapping[int, Any], live: bool, drift: Iterable[str]
) -> dict[str, Any]:
    """Fields of the start of an epoch: the states in which it finds the streams.

    Args:
        spec, states: see `positions_left`.
        live: for a pickle; a state warns.
        drift: attributes of the program's own dataset that epochs have changed.
    """
    positions = positions_left(spec, states)
    owned = at_begin(Cursor(), spec)
    if live:
        warn_of_lost(spec, positions)
    else:
        warn_of_drift(spec, positions, owned, drift)
    apart = positions and spec.streams.shard.world > 1
    saved = savable(positions, live)
    return {
        "streams": saved,
        "num_streams": spec.streams.total if apart else None,
        "batches": spec.batches if positions else None,
        "worker_info": spec.reads_copies if positions else None,
        "dataset_rng": for_replays(owned, saved, live, spec) if saved else owned,
    }
