"""The trainer: goes through the epochs, notes each batch, and saves where it stands."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

from picklable_loader import LoaderIterator
from picklable_loader.errors import RestartWarning

from .journal import Checkpoint, Journal, digest
from .kinds import Kind
from .lives import Life

__all__ = ["train"]


def train(kind: Kind, life: Life, journal: Journal) -> None:
    """Go on from the last checkpoint to the end of the run."""
    with warnings.catch_warnings():
        _count_restarts(journal)
        checkpoint = journal.load()
        iterator = _resumed(kind, life, checkpoint.place)
        while True:
            _epoch(iterator, life, journal, checkpoint)
            if iterator.epoch + 1 == kind.epochs:
                break
            iterator = iter(iterator.loader)
        iterator.close()
        checkpoint.finished = True
        journal.save(checkpoint)


def _resumed(kind: Kind, life: Life, place: dict[str, Any] | bytes | None) -> LoaderIterator[Any]:
    if isinstance(place, bytes):
        iterator: LoaderIterator[Any] = pickle.loads(place)
        loader = iterator.loader
        loader.prefetch_factor = 2 if life.workers else None
        loader.timeout = life.patience_s if life.workers else 0
        loader.num_workers = life.workers
        return iterator
    loader = kind.loader(**life.arguments())
    if place is not None:
        loader.load_state_dict(place)
    return iter(loader)


def _epoch(
    iterator: LoaderIterator[Any], life: Life, journal: Journal, checkpoint: Checkpoint
) -> None:
    epoch = iterator.epoch
    batches = checkpoint.batches.setdefault(epoch, [])
    for batch in iterator:
        said = digest(batch)
        journal.note_batch(epoch, len(batches), said)
        batches.append(said)
        if len(batches) % life.save_every == 0:
            checkpoint.place = _place(iterator, life)
            journal.save(checkpoint)


def _place(iterator: LoaderIterator[Any], life: Life) -> dict[str, Any] | bytes:
    return pickle.dumps(iterator) if life.pickles else iterator.state_dict()


def _count_restarts(journal: Journal) -> None:
    """Every one is told, and noted at once."""
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", RestartWarning)
    warnings.showwarning = lambda *_, **__: journal.note_restart()
