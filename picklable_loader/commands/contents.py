"""Contents: a file as a tree of what would be built from it, whatever has written it.

Nothing in it is unpickled, and none of its names is imported.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import struct
import tarfile
import zipfile
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ..errors import LoaderError
from ..files import MAGIC, open_body
from ..values.readable import from_json
from .nodes import Stored
from .tracing import NotPickle, trace, traces

__all__ = ["Contents", "NotRead", "kind_of", "read", "text_of"]


#: what zipfile raises for archives that nobody has written
_TORN = (zipfile.BadZipFile, EOFError, LookupError, RuntimeError, ValueError, struct.error)


class NotRead(Exception):
    """A file that says nothing; the text says why, and what to do."""


@dataclass
class Contents:
    """What is in a file.

    Attributes:
        path: of the file.
        kind: ``"checkpoint"`` (of `picklable_loader.save`), ``"torch.save"``, ``"pickle"`` or
            ``"JSON"``.
        bytes: size of the file.
        tree: what would be built; see `trace`.
        notes: what else the file says of itself: versions, checksum.
        names: what whoever runs its code would import, module and name.
    """

    path: str
    kind: str
    bytes: int
    tree: Any
    notes: dict[str, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    _digests: dict[str, str] = field(default_factory=dict)

    def digest(self, stored: Stored) -> str:
        """A checksum of data beside the pickle; of tensors that are equal it is equal."""
        key = stored.key
        if self.kind == "pickle":
            return key  # the checksum of all data together is in the tree
        if key not in self._digests:
            self._digests[key] = self._read_digest(key)
        return self._digests[key]

    def _read_digest(self, key: str) -> str:
        try:
            return self._hashed(key)
        except _TORN as error:
            raise NotRead(f"{self.path}: the archive is damaged: {error!r}") from None

    def _hashed(self, key: str) -> str:
        with _opened(self.path, self.kind) as file, zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.endswith(f"/data/{key}")]
            if not names:
                return "missing"
            _stored_only(archive.getinfo(names[0]))
            digest = hashlib.sha256()
            with archive.open(names[0]) as part:
                while chunk := part.read(1 << 20):
                    digest.update(chunk)
        return digest.hexdigest()[:16]


def read(path: str) -> Contents:
    """What is in a file.

    Args:
        path: of a checkpoint of ours, a file of ``torch.save``, a pickle, or a state as JSON.

    Raises:
        NotRead: it is none of these, or damaged.
        OSError: it cannot be read.
    """
    kind, size = kind_of(path), os.stat(path).st_size
    try:
        if kind == "JSON":
            return Contents(path, kind, size, from_json(text_of(path)))
        if kind == "pickle":
            if tarfile.is_tarfile(path):  # whatever else it may be at the same time
                raise NotRead(
                    f"{path}: this is an archive of tar, which only the oldest torch wrote"
                )
            with open(path, "rb") as file:
                return _from_pickles(path, size, file)
        with _opened(path, kind) as body:
            return _from_archive(path, kind, size, body)
    except NotPickle:
        raise NotRead(
            f"{path}: this is no checkpoint: neither of this package, nor of torch.save, nor a "
            "pickle, nor a state as JSON"
        ) from None
    except LoaderError as error:
        raise NotRead(f"{path}: {error}") from None
    except _TORN as error:
        raise NotRead(f"{path}: the archive is damaged: {error!r}") from None


def kind_of(path: str) -> str:
    """What has written a file, as far as its first bytes tell; see `Contents`.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
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
    """A text, in whichever of JSON's encodings.

    Raises:
        NotRead: it is none.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        return data.decode(json.detect_encoding(data))
    except UnicodeDecodeError as error:
        raise NotRead(f"{path}: this is no text, and no pickle: {error}") from None


def _opened(path: str, kind: str) -> Any:
    return open_body(path) if kind == "checkpoint" else open(path, "rb")


def _from_pickles(path: str, size: int, file: BinaryIO) -> Contents:
    found = traces(file)
    names = frozenset().union(*(each.names for each in found))
    if len(found) == 1:
        rest = len(file.read())
        notes = {"behind the pickle": f"{rest} bytes that were not looked at"} if rest else {}
        return Contents(path, "pickle", size, found[0].tree, notes, names)
    # An old torch's; data stand behind the pickles.
    named = {name: each.tree for name, each in zip(_OLD_PARTS, found[1:], strict=True)}
    tree = {**named, "data": hashlib.sha256(file.read()).hexdigest()}
    return Contents(path, "pickle", size, tree, {}, names)


_OLD_PARTS = ("protocol", "system", "object", "storages")


def _from_archive(path: str, kind: str, size: int, body: Any) -> Contents:
    with zipfile.ZipFile(body) as archive:
        named = {name.partition("/")[2]: name for name in archive.namelist()}
        # Torch finds parts without regard to case, and may find another one than we do.
        if len({name.lower() for name in named}) < len(archive.namelist()):
            raise NotRead(f"{path}: the archive has two parts of one name")
        if "data.pkl" not in named:
            raise NotRead(f"{path}: this is an archive, but none of torch.save")
        notes = {"torch.save's format": _part(archive, named, "version")}
        notes["byte order"] = _part(archive, named, "byteorder")
        if kind == "checkpoint":
            notes = {"checkpoint format": "1, checksum right", **notes}
        info = archive.getinfo(named["data.pkl"])
        _stored_only(info)
        found = trace(archive.read(info))
    names = found.names | ({"torch.jit.load"} if "constants.pkl" in named else set())
    return Contents(path, kind, size, found.tree, {n: v for n, v in notes.items() if v}, names)


def _part(archive: zipfile.ZipFile, named: dict[str, str], name: str) -> str:
    if name not in named:
        return ""
    with archive.open(named[name]) as part:
        return part.read(40).decode("ascii", "replace").strip()


def _stored_only(info: zipfile.ZipInfo) -> None:
    if info.compress_type != zipfile.ZIP_STORED:
        raise NotRead(f"{info.filename} is compressed, which torch.save never does")
