"""``send_feedback()``: objects that people's code attaches to the batch that is being fetched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ...errors import UsageError
from ...saving.states.notes import note_of

_T = TypeVar("_T")


class _Here(threading.local):
    """The notes of the batch that this thread fetches; None: it fetches none."""

    notes: list[bytes] | None = None


_here = _Here()
#: those of the batch begun last, for threads that a dataset has started
_latest: list[bytes] | None = None


def send_feedback(obj: Any) -> None:
    """Attach a small object to the batch that is being fetched.

    Call it in a dataset, a stream or a ``collate_fn``, in a worker or with ``num_workers=0``. When
    the batch is delivered, the program finds the object in ``it.feedback``. A sampler whose
    iterator has ``receive(step, objs)`` receives it before it is asked for the next batch.

    A batch that raises, or has no sample, takes no feedback with it. The same holds for a bad
    sample that ``on_error`` skips or replaces.

    Args:
        obj: what pickle takes, at most 1 MiB, and 16 MiB for a batch; it is copied at once.

    Raises:
        UsageError: no batch is being fetched here; or the object cannot be pickled, or is larger.
    """
    notes = _latest if _here.notes is None else _here.notes
    if notes is None:
        raise UsageError("send_feedback() needs a batch, and none is being fetched here")
    notes.append(note_of(obj, "send_feedback()", notes))


send_feedback.__module__ = "picklable_loader"  # pickles hold this name


def with_feedback(act: Callable[..., _T], *arguments: Any) -> tuple[_T, list[bytes]]:
    """Run what fetches a batch.

    Returns:
        The batch, and the feedback that came with it.
    """
    global _latest
    notes: list[bytes] = []
    before = _here.notes
    try:  # no context manager: Ctrl-C as its __exit__ begins would leave these set for ever
        _here.notes = _latest = notes
        return act(*arguments), notes
    finally:
        _here.notes = _latest = before


def sent() -> int:
    """How many objects the batch at hand has so far."""
    return len(_here.notes or ())


def take_back(count: int) -> None:
    """Leave only the first so many: a sample becomes no part of the batch."""
    if _here.notes is not None:
        del _here.notes[count:]
