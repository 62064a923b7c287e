"""Screening: a checkpoint's body, looked at before torch reads it without code.

A body is a zip archive that torch.save has written: nothing in it is compressed, and no two parts
share bytes, so that what is read is never larger than the file. Anything else is refused here. A
checksum does not help: who makes up a file makes up its checksum as well.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from typing import Any, BinaryIO

import torch

from ..errors import DamagedStateError, UsageError

__all__ = ["load_screened"]

#: what torch raises that reads, without running code, what torch.save has not written; beyond
#: these there are its refusal to run code, and what a device lacks
_TORN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


def load_screened(body: BinaryIO, name: str, map_location: Any) -> Any:
    """What is in a body, read without running code.

    Args:
        body: of a file; stands at its start.
        name: of the file, for errors.
        map_location: see ``torch.load``.

    Raises:
        DamagedStateError: torch.save has not written it.
        UsageError: there is more in it than states and tensors.
    """
    _screen(body, name)
    try:
        return torch.load(body, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{name!r} holds more than states and tensors, for example an iterator. An iterator is "
            "code, and loading it runs that code. Save state_dict() of the iterator instead; or "
            "pass weights_only=False if you trust whoever wrote the file"
        ) from error
    except _TORN as error:
        if callable(map_location):
            raise  # it may be the caller's own
        raise DamagedStateError(name, "what torch reads without code", error) from error
    except RuntimeError as error:  # also of a device that is not there
        if "allocate" not in str(error) and "PytorchStreamReader" not in str(error):
            raise
        raise DamagedStateError(name, "what torch reads without code", error) from error


def _screen(body: BinaryIO, name: str) -> None:
    """Raise DamagedStateError unless what is read of a body is no larger than the body."""
    body.seek(0, 2)
    size = body.tell()
    body.seek(0)
    try:
        with zipfile.ZipFile(body) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, *_TORN) as error:
        raise DamagedStateError(name, "a body that torch.save has written", error) from error
    for part in parts:
        if part.compress_type != zipfile.ZIP_STORED or part.file_size != part.compress_size:
            field = f"{name}: {part.filename}"
            expected = "as torch.save writes it, not compressed"
            found = f"{part.file_size} bytes in {part.compress_size}"
            raise DamagedStateError(field, expected, found)
    total = sum(part.file_size for part in parts)
    if total > size:
        raise DamagedStateError(name, f"parts of {size} bytes at most", f"{total} bytes")
    body.seek(0)
