"""Screening: a checkpoint's body, looked at before torch reads it without code.

A body is a zip archive that torch.save has written: nothing in it is compressed, and no two parts
share bytes, so that what is read is never larger than the file. Anything else is refused here. A
checksum does not help: who makes up a file makes up its checksum as well.
"""

from __future__ import annotations

import struct
import zipfile
from typing import BinaryIO

from .errors import DamagedStateError

__all__ = ["TORN", "screen"]

#: what torch raises that reads, without running code, what torch.save has not written; beyond
#: these there are its refusal to run code, and what a device lacks
TORN = (
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


def screen(body: BinaryIO, name: str) -> None:
    """Raise DamagedStateError unless a body takes no more room than it has.

    Args:
        body: of the file; stands at its start, before and after.
        name: of the file, for errors.
    """
    body.seek(0, 2)
    size = body.tell()
    body.seek(0)
    try:
        with zipfile.ZipFile(body) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, *TORN) as error:
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
