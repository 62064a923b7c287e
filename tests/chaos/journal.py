"""The journal: what a trainer has been given, so written that no kill can tear it.

There is a *log*, a line for each batch the moment that it was delivered, and a *checkpoint* with
all batches up to then. Whatever stands in the log after a checkpoint is delivered again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["Batches", "Checkpoint", "Journal", "digest"]

#: by epoch, the digests of its batches in the order in which they came
Batches = dict[int, list[str]]


def digest(batch: Any) -> str:
    """What a batch is, to the last bit."""
    return hashlib.blake2b(_bytes(batch), digest_size=8).hexdigest()


def _bytes(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"".join(key.encode() + _bytes(one) for key, one in value.items())
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}".encode() + value.tobytes()
    return repr(value).encode()


@dataclass
class Checkpoint:
    """Where a trainer stands.

    Attributes:
        batches: what it was given so far.
        place: the loader's state, or its pickled iterator.
        finished: there is nothing more to do.
    """

    batches: Batches = field(default_factory=dict)
    place: dict[str, Any] | bytes | None = None
    finished: bool = False


class Journal:
    """A trainer's files.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checkpoint = folder / "checkpoint"
        self._delivered = folder / "delivered"
        self._restarts = folder / "restarts"
        #: what a trainer prints
        self.output = folder / "output"

    def save(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint in the place of the one before, in one go."""
        beside = self._folder / "checkpoint.new"
        beside.write_bytes(pickle.dumps(checkpoint))
        os.replace(beside, self._checkpoint)

    def load(self) -> Checkpoint:
        """The last one."""
        if not self._checkpoint.exists():
            return Checkpoint()
        checkpoint = pickle.loads(self._checkpoint.read_bytes())
        assert isinstance(checkpoint, Checkpoint)
        return checkpoint

    def note_batch(self, epoch: int, place: int, batch: str) -> None:
        """A batch was delivered."""
        _append(self._delivered, f"{epoch} {place} {batch}")

    def note_restart(self) -> None:
        """A worker was replaced."""
        _append(self._restarts, "restart")

    def delivered(self) -> list[tuple[int, int, str]]:
        """Every batch that was ever delivered, as epoch, place and digest, in their order."""
        return [
            (int(epoch), int(at), batch)
            for epoch, at, batch in map(str.split, _lines(self._delivered))
        ]

    def restarts(self) -> int:
        """How many workers were replaced."""
        return len(_lines(self._restarts))


def _append(path: Path, line: str) -> None:
    """In one write: it is there as a whole or not at all."""
    with path.open("ab", buffering=0) as file:
        file.write(line.encode() + b"\n")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
