"""Feedback as notes: pickles that were made when it was given, so that nobody changes one later."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from ...errors import UsageError
from .plain import decode, encode_state

#: bytes of a note at most; it travels with its batch, and a state may hold it
_MOST = 1 << 20
#: bytes of all notes about one batch at most; small ones are not counted, which takes time
_MOST_TOGETHER = 16 << 20
_SMALL = 1 << 12


def note_of(obj: Any, giver: str, others: Sequence[bytes] = ()) -> bytes:
    """The note of an object.

    Args:
        obj: any small object that pickle takes.
        giver: the function that it was given to, for errors.
        others: the notes about the same batch.

    Raises:
        UsageError: pickle refuses it, or its pickle is larger than 1 MiB, or 16 with the others.
    """
    try:
        note = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # whatever people's __reduce__ raises
        raise UsageError(
            f"{giver} was given a {type(obj).__qualname__}, which cannot be pickled "
            f"({type(error).__name__}: {error}). Give numbers, text, arrays, or containers of them"
        ) from error
    if len(note) > _MOST:
        raise UsageError(
            f"{giver} was given a {type(obj).__qualname__} of {len(note):,} bytes; feedback has "
            f"at most {_MOST:,}. Give a summary, for example a mean, or make it a part of the batch"
        )
    if len(note) > _SMALL and sum(map(len, others)) + len(note) > _MOST_TOGETHER:
        raise UsageError(
            f"{giver} was given more than {_MOST_TOGETHER:,} bytes about one batch. Give a "
            "summary, for example a mean, or make it a part of the batch"
        )
    return note


def objects_of(notes: Sequence[bytes]) -> list[Any]:
    """The objects of notes, built anew."""
    return [pickle.loads(note) for note in notes]


def notes_as_plain(notes: Sequence[bytes], live: bool) -> list[Any]:
    """The form of notes in a state, or with ``live`` in a pickled iterator.

    Raises:
        CannotSaveError: an object is none that a state can hold.
    """
    return [encode_state(obj, "feedback: ", live) for obj in objects_of(notes)]


def notes_from_plain(forms: Sequence[Any]) -> list[bytes]:
    """The notes; raises one of SYMPTOMS if a form is damaged."""
    return [note_of(decode(form), "a state") for form in forms]
