"""Reads a file of ``torch.save`` without running code, after checks of all that is in it.

It is a zip archive in which nothing is compressed, no two parts share bytes, and no two have one
name. So the parts are never larger than the file, and every reader reads the same. Any other
archive is refused here. A checksum does not help: a forger can make up the checksum as well.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import struct
import zipfile
from typing import Any, BinaryIO

import torch

from ...errors import SYMPTOMS, DamagedStateError, UsageError, fails_again
from .pickle_nodes import Stored, Tensor
from .pickle_tree import NotPickle, Trace, trace

#: what zipfile raises for archives that nobody has written
_TORN = (*SYMPTOMS, EOFError, MemoryError, struct.error, zipfile.BadZipFile)

_CHUNK_BYTES = 1 << 20


class Archive:
    """The parts of a file of ``torch.save``; DamagedStateError if torch.save has not written it."""

    def __init__(self, body: BinaryIO, name: str) -> None:
        self._name = name
        size = body.seek(0, 2)
        body.seek(0)
        try:
            self._zip = zipfile.ZipFile(body)
        except _TORN as error:
            raise self._damaged("a body that torch.save has written", error) from error
        found = self._zip.infolist()
        for part in found:
            if part.compress_type != zipfile.ZIP_STORED or part.file_size != part.compress_size:
                what = f"{part.file_size} bytes in {part.compress_size}"
                raise self._damaged("as torch.save writes it, not compressed", what, part.filename)
        total = sum(part.file_size for part in found)
        if total > size:
            raise self._damaged(f"parts of {size} bytes at most", f"{total} bytes")
        if min((part.header_offset for part in found), default=0) != 0:
            raise self._damaged("an archive from its first byte on", "something before it")
        if len({part.filename.partition("/")[0] for part in found}) > 1:
            raise self._damaged("one folder in the archive", "several")
        self._parts = {part.filename.partition("/")[2]: part for part in found}
        # Torch finds parts without regard to case, and may find another one than we do.
        if len({name.lower() for name in self._parts}) < len(found):
            raise self._damaged("parts of different names", "the archive has two parts of one name")
        if "data.pkl" not in self._parts:
            raise self._damaged("an archive of torch.save", "one without data.pkl")

    @property
    def is_program(self) -> bool:
        """It is TorchScript, which torch reads in another way."""
        return "constants.pkl" in self._parts

    def trace(self) -> Trace:
        """The trace of its pickle; DamagedStateError if it is none."""
        try:
            return trace(self._read("data.pkl"))
        except NotPickle as error:
            raise self._damaged("a pickle", error, "data.pkl") from error

    def text(self, part: str) -> str:
        """The first characters of a part; empty if there is none."""
        if part not in self._parts:
            return ""
        return self._read(part, 40).decode("ascii", "replace").strip()

    def digest(self, stored: Stored) -> str:
        """A checksum of data; of tensors that are equal it is equal."""
        info = self._parts.get(f"data/{stored.key}")
        if info is None:
            return "missing"
        digest = hashlib.sha256()
        try:
            with self._zip.open(info) as part:
                while chunk := part.read(_CHUNK_BYTES):
                    digest.update(chunk)
        except _TORN as error:
            raise self._damaged("as torch.save writes it", error, info.filename) from error
        return digest.hexdigest()[:16]

    def check(self) -> None:
        """Raise DamagedStateError unless reading it takes time and memory like its size.

        Torch would find most of this as well, and raise a RuntimeError; but not what only costs
        time, such as a set of numbers that all have one hash.
        """
        if self.is_program:
            raise self._damaged("a checkpoint", "a program of TorchScript")
        found = self.trace()
        size = self._parts["data.pkl"].file_size
        if found.work > _MOST_WORK_A_BYTE * size + _FREE_WORK:
            raise self._damaged("read in steps like its size", "a pickle of endless work")
        for stored in found.stored:
            name = f"data/{stored.key}"
            part = self._parts.get(name)
            if part is None:
                raise self._damaged(f"{stored.count} numbers", "nothing", name)
            if stored.bytes is not None and part.file_size != stored.bytes:
                raise self._damaged(f"{stored.bytes} bytes", f"{part.file_size} bytes", name)
        for tensor in found.tensors:
            self._check_tensor(tensor)

    def _check_tensor(self, tensor: Tensor) -> None:
        numbers = tensor.offset, *tensor.shape, *tensor.stride
        if min(numbers) < 0 or len(tensor.shape) != len(tensor.stride):
            raise self._damaged("a tensor of sizes and strides from 0", numbers, "data.pkl")
        if not isinstance(tensor.stored, Stored) or 0 in tensor.shape:
            return
        steps = zip(tensor.shape, tensor.stride)
        last = tensor.offset + sum((size - 1) * stride for size, stride in steps)
        if last >= tensor.stored.count:
            expected = f"a tensor within its {tensor.stored.count} numbers"
            raise self._damaged(expected, f"one that goes on to number {last}", "data.pkl")
        if math.prod(tensor.shape) > max(tensor.stored.count, _MOST_REPEATED):
            expected = f"a tensor of at most {_MOST_REPEATED} numbers where these are repeated"
            raise self._damaged(expected, tensor.shape, "data.pkl")

    def _read(self, part: str, most: int = -1) -> bytes:
        try:
            with self._zip.open(self._parts[part]) as file:
                return file.read(most)
        except _TORN as error:
            raise self._damaged("as torch.save writes it", error, part) from error

    def _damaged(self, expected: str, found: object, part: str = "") -> DamagedStateError:
        where = f"{self._name}: {part}" if part else self._name
        return DamagedStateError(where, expected, found)


#: `Trace.work` of honest files is below the size of their pickles
_MOST_WORK_A_BYTE, _FREE_WORK = 8, 10**5

#: an expanded tensor takes no memory here; a larger one is no checkpoint, and would fill any memory
_MOST_REPEATED = 2**32


# --- torch's safe reader -------------------------------------------------------------------------


def load_screened(body: BinaryIO, name: str, map_location: Any) -> Any:
    """Load the contents of a body without running code.

    Raises:
        DamagedStateError: torch.save has not written it.
        UsageError: there is more in it than states and tensors.
        Exception: what ``map_location`` raises, and what torch raises about memory or a device.
    """
    Archive(body, name).check()
    try:
        return _read(body, map_location)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{name!r} holds more than states and tensors, for example an iterator. An iterator is "
            "code, and loading it runs that code. Save state_dict() of the iterator instead; or "
            "pass weights_only=False if you trust whoever wrote the file"
        ) from error
    except MemoryError:
        raise
    except Exception as error:
        if fails_again(_read, body, "cpu"):
            raise DamagedStateError(name, "what torch reads without code", error) from error
        raise  # the error is the caller's: of map_location, or of a device that is not here


def _read(body: BinaryIO, map_location: Any) -> Any:
    body.seek(0)
    return torch.load(body, map_location=map_location, weights_only=True)
