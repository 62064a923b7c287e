"""Feedback as notes: pickles that were made when it was given, so that nobody changes one later."""

from __future__ import annotations

import copyreg
import ctypes
import io
import pickle
from collections import ChainMap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...errors import CannotSaveError, UsageError
from .arrays import READABLE
from .plain import SCALARS, decode, encode_state

#: bytes of a note at most; it travels with its batch, and a state may hold it
_MOST = 1 << 20
#: bytes of all notes about one batch at most; small ones are not counted, which takes time
_MOST_TOGETHER = 16 << 20
_SMALL = 1 << 12

#: numpy's types of plain numbers
_NUMBERS = "?bhilqBHILQefdgFDG"
#: types of values that pickle opens again, whatever they are
_OPENS = {*SCALARS, torch.Tensor, *(np.dtype(kind).type for kind in _NUMBERS + "SUMm")}

#: levels of containers that are looked through
_LEVELS = 4


def note_of(obj: Any, giver: str, others: Sequence[bytes] = ()) -> bytes:
    """The note of an object.

    Args:
        obj: any small object that pickle takes.
        giver: the function that it was given to, for errors.
        others: the notes about the same batch.

    Raises:
        UsageError: pickle refuses it, or cannot open it again; or its pickle is larger than 1 MiB,
            or than 16 MiB with the others.
    """
    try:
        note = _pickled(obj)
        if pickle.STACK_GLOBAL in note and not _opens(obj):  # it names a class
            pickle.loads(note)
    except Exception as error:  # whatever people's __reduce__ raises
        raise UsageError(
            f"{giver} was given a {type(obj).__qualname__}, which cannot be pickled, "
            f"or not opened again ({type(error).__name__}: {error}). Give numbers, text, arrays, "
            "or containers of them"
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


def _pickled(obj: Any) -> bytes:
    if type(obj) in SCALARS:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(obj)
    return file.getvalue()


def _reduced(tensor: torch.Tensor) -> Any:
    """The pickled form of a tensor; torch's own takes 100 µs.

    It is alone if it is a view: torch would write all of the other.
    """
    if _is_plain(tensor):
        # Not `numpy()`, which lacks types.
        written = ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
        kind = str(tensor.dtype).removeprefix("torch.")
        return _plain_tensor, (written, kind, tuple(tensor.shape), tensor.requires_grad)
    if tensor.layout is torch.strided:
        size = tensor.numel() * tensor.element_size()
        if tensor.untyped_storage().nbytes() > size:
            attributes = vars(tensor)
            tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            vars(tensor).update(attributes)
    return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _is_plain(tensor: torch.Tensor) -> bool:
    """It is numbers in memory of this process, one after the other, and nothing else."""
    return (
        tensor.dtype in READABLE
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and not (tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and not (vars(tensor) or tensor._backward_hooks)
        and not tensor._is_zerotensor()
        and tensor.is_contiguous()
        and tensor.nbytes + tensor.storage_offset() * tensor.itemsize
        <= tensor.untyped_storage().nbytes()  # of a tensor whose memory somebody has freed it is 0
    )


def _plain_tensor(
    written: bytes, dtype: str, shape: tuple[int, ...], wants_grad: bool
) -> torch.Tensor:
    """The tensor again, in memory of torch's own, which can be resized; notes call this."""
    kind = getattr(torch, dtype)
    tensor = torch.empty(shape, dtype=kind, device="cpu", requires_grad=wants_grad)
    ctypes.memmove(tensor.data_ptr(), written, len(written))
    return tensor


def _reduced_array(array: np.ndarray) -> Any:
    """The pickled form of an array; numpy's own takes three times as long."""
    dtype, flags = array.dtype, array.flags
    plain = dtype.char in _NUMBERS and dtype.isnative and dtype.metadata is None
    if plain and array.size and flags.c_contiguous and flags.writeable:
        return _plain_array, (array.tobytes(), dtype.char, array.shape)
    return array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _reduced_number(number: np.generic) -> Any:
    return _plain_array, (number.tobytes(), number.dtype.char, None)


def _plain_array(written: bytes, kind: str, shape: tuple[int, ...] | None) -> Any:
    """The array again, or without a shape the number; notes call this."""
    array = np.frombuffer(bytearray(written), kind)
    return array[0] if shape is None else array.reshape(shape)


class _Pickler(pickle.Pickler):
    #: by type, how an object is taken apart
    dispatch_table: Any = ChainMap[Any, Any](
        {torch.Tensor: _reduced, np.ndarray: _reduced_array},
        {np.dtype(kind).type: _reduced_number for kind in _NUMBERS},
        copyreg.dispatch_table,
    )


def _opens(obj: Any, level: int = 0) -> bool:
    """Numbers, text, tensors, or containers of them, which pickle always opens again."""
    kind = type(obj)
    if kind in _OPENS:
        return True
    if kind is np.ndarray:
        return not obj.dtype.hasobject
    if kind not in (list, tuple, dict) or level >= _LEVELS:
        return False
    parts = [*obj, *obj.values()] if kind is dict else obj
    return set(map(type, parts)) <= _OPENS or all(_opens(part, level + 1) for part in parts)


def objects_of(notes: Sequence[bytes]) -> list[Any]:
    """The objects of notes, built anew.

    Raises:
        UsageError: this process cannot open what another one, a worker, has given.
    """
    try:
        return [pickle.loads(note) for note in notes]
    except Exception as error:  # whatever people's classes raise
        raise UsageError(
            f"feedback cannot be opened in this process ({type(error).__name__}: {error}). Give "
            "numbers, text, arrays, or containers of them"
        ) from error


def notes_as_plain(notes: Sequence[bytes], live: bool) -> list[Any]:
    """The form of notes in a state, or with ``live`` in a pickled iterator.

    Raises:
        CannotSaveError: an object is none that a state can hold.
    """
    try:
        objects = objects_of(notes)
    except UsageError as error:
        raise CannotSaveError("feedback", str(error), "Leave it out") from error
    return [encode_state(obj, "feedback: ", live) for obj in objects]


def notes_from_plain(forms: Sequence[Any]) -> list[bytes]:
    """The notes; raises one of SYMPTOMS if a form is damaged."""
    return [note_of(decode(form), "a state") for form in forms]
