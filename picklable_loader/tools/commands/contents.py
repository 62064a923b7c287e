"""Contents: a file as a tree of what would be built from it, whatever has written it.

Nothing in it is unpickled, and none of its names is imported.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ...errors import LoaderError
from ...saving.files.archive import Archive
from ...saving.files.checkpoint import MAGIC, object_and_program, open_body, open_file
from ...saving.files.nested_pickles import names_of, traces
from ...saving.files.pickle_nodes import Stored, as_nodes
from ...saving.files.pickle_tree import NotPickle
from ...saving.states.state_json import from_json


class NotRead(Exception):
    """A file that says nothing; the text says why, and what to do."""


@dataclass
class Contents:
    """The contents of a file."""

    path: str  #: of the file
    #: ``"checkpoint"`` (of `picklable_loader.save`), ``"torch.save"``, ``"pickle"`` or
    #: ``"JSON"``.
    kind: str
    bytes: int  #: size of the file
    tree: Any  #: the object that would be built; see `Trace`
    #: other facts about the file: versions, checksum
    notes: dict[str, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()  #: all that running its code would import, module and name
    archive: Archive | None = None  #: the file's parts, where it is one of ``torch.save``.
    program: Any = None  #: the generators of ``save(save_rng=True)``, as a tree
    _digests: dict[str, str] = field(default_factory=dict)

    def digest(self, stored: Stored) -> str:
        """A checksum of data outside the pickle; of tensors that are equal it is equal."""
        if self.archive is None:
            return stored.key  # the checksum of all data together is in the tree
        if stored.key not in self._digests:
            self._digests[stored.key] = self.archive.digest(stored)
        return self._digests[stored.key]


@contextmanager
def reading(path: str) -> Iterator[Contents]:
    """The contents of a file, open in the block: a checkpoint, a pickle, or a state as JSON.

    Raises:
        NotRead: it is none of these, or damaged.
        OSError: it cannot be read.
    """
    kind = kind_of(path)
    try:
        with open_body(path) if kind == "checkpoint" else open_file(path) as file:
            yield _contents(path, kind, os.stat(path).st_size, file)
    except NotPickle:
        raise NotRead(
            f"{path}: this is no checkpoint: neither of this package, nor of torch.save, nor a "
            "pickle, nor a state as JSON"
        ) from None
    except LoaderError as error:
        raise NotRead(str(error) if path in str(error) else f"{path}: {error}") from None
    except MemoryError:
        raise NotRead(f"{path}: there is not enough memory to read it") from None


def _contents(path: str, kind: str, size: int, file: BinaryIO) -> Contents:
    if kind == "JSON":
        return Contents(path, kind, size, as_nodes(from_json(_text(file, path))))
    if kind == "pickle":
        if _is_tar(file.read(tarfile.BLOCKSIZE)):  # whatever else it may be at the same time
            raise NotRead(f"{path}: this is an archive of tar, which only the oldest torch wrote")
        file.seek(0)
        return _from_pickles(path, size, file)
    return _from_archive(path, kind, size, file)


def kind_of(path: str) -> str:
    """The kind of a file, by its first bytes; see `Contents`."""
    with open_file(path) as file:
        start = file.read(len(MAGIC))
    if start.startswith(MAGIC):
        return "checkpoint"
    if start.startswith(b"PK\x03\x04"):
        return "torch.save"
    is_text = start.startswith(_BYTE_ORDERS) or start.lstrip()[:1] in (b"{", b"[")
    return "JSON" if is_text else "pickle"


#: what editors put before a text
_BYTE_ORDERS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def text_of(path: str) -> str:
    """A text, in whichever of JSON's encodings; NotRead if it is none."""
    with open_file(path) as file:
        return _text(file, path)


def _text(file: BinaryIO, path: str) -> str:
    start = file.read(4)
    file.seek(0)
    try:
        decoder = codecs.getincrementaldecoder(json.detect_encoding(start))()
        pieces = []
        while data := file.read(_PIECE_BYTES):
            pieces.append(decoder.decode(data))
            if "\0" in pieces[-1]:  # in no JSON, and all that a hole in a file has
                raise NotRead(f"{path}: this is no text, and no pickle: it holds zeros")
        pieces.append(decoder.decode(b"", True))
    except UnicodeDecodeError as error:
        raise NotRead(f"{path}: this is no text, and no pickle: {error}") from None
    return "".join(pieces)


_PIECE_BYTES = 1 << 20


def _is_tar(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _from_pickles(path: str, size: int, file: BinaryIO) -> Contents:
    found = traces(file)
    names = names_of(found)
    if len(found) == 1:
        rest = size - file.tell()
        notes = {"behind the pickle": f"{rest} bytes that were not looked at"} if rest else {}
        return Contents(path, "pickle", size, found[0].tree, notes, names)
    # An old torch's; data come after the pickles.
    named = {name: each.tree for name, each in zip(_OLD_PARTS, found[1:], strict=True)}
    digest = hashlib.sha256()
    while data := file.read(_PIECE_BYTES):
        digest.update(data)
    return Contents(path, "pickle", size, {**named, "data": digest.hexdigest()}, {}, names)


_OLD_PARTS = ("protocol", "system", "object", "storages")


def _from_archive(path: str, kind: str, size: int, body: BinaryIO) -> Contents:
    archive = Archive(body, path)
    found = archive.trace()
    names = names_of([found]) | ({"torch.jit.load"} if archive.is_program else set())
    notes = {
        "checkpoint format": "1, checksum right" if kind == "checkpoint" else "",
        "torch.save's format": archive.text("version"),
        "byte order": archive.text("byteorder"),
    }
    notes = {name: note for name, note in notes.items() if note}
    tree, program = object_and_program(found.tree) if kind == "checkpoint" else (found.tree, None)
    if program is not None:
        notes["the program's generators"] = "saved"
    return Contents(path, kind, size, tree, notes, names, archive, program)
