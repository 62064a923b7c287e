"""Seeds of orders, batches, samples and streams, as pure functions of their numbers.

Every seed is a hash of a purpose and a few integers. So no generator's state has to be saved: any
worker can do any task, and a task can be done again.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

#: how people's random numbers are seeded; see `DataLoader`
Seeding = Literal["batch", "sample", "worker"]

#: Seeds stay below 2**62: torch adds a worker's number to the base seed and wants an int64.
_BITS = 62


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> (64 - _BITS)


def base_seed(seed: int, epoch: int) -> int:
    """The base seed of an epoch, for a loader that was given ``seed=``."""
    return _hash(b"base:%d,%d" % (seed, epoch))


def next_base_seed(base: int) -> int:
    """The base seed of the next epoch, where torch draws none: its workers go on living."""
    return _hash(b"next:%d" % base)


def order_seed(seed: int, epoch: int) -> int:
    """The seed of the order of an epoch, for a loader that was given ``seed=``."""
    return _hash(b"order:%d,%d" % (seed, epoch))


def batch_seed(base: int, number: int) -> int:
    """The seed before a batch is fetched; ``number`` is the batch's, of all ranks, from 0."""
    return _hash(b"batch:%d,%d" % (base, number))


def sample_seed(base: int, position: int) -> int:
    """The seed before one sample is fetched; ``position`` counts samples of the order, from 0."""
    return _hash(b"sample:%d,%d" % (base, position))


def repeated_seed(seed: int, number: int) -> int:
    """The seed of call ``number`` of a dataset for one batch or sample with that seed."""
    return _hash(b"call:%d,%d" % (seed, number))


def stream_seed(base: int, stream: int, ordinal: int) -> int:
    """The seed before a batch of a stream: its number in the stream, from 1; 0 is for ``iter``."""
    return _hash(b"stream:%d,%d,%d" % (base, stream, ordinal))


def owned_seed(seed: int, path: bytes) -> int:
    """The seed of a generator that a dataset owns at that path, of a batch's or sample's seed."""
    return _hash(b"owned:%d,%b" % (seed, path))


def mixing_seed(purpose: str, seed: int, epoch: int, place: int) -> int:
    """The seed of a wrapper of iterable-style data, for one iteration in one stream."""
    return _hash(b"mix %b:%d,%d,%d" % (purpose.encode(), seed, epoch, place))


def mixing_draw(seed: int, number: int) -> int:
    """Draw number ``number`` of a wrapper that mixes datasets, from 0 to 2**62 - 1."""
    return _hash(b"draw:%d,%d" % (seed, number))
