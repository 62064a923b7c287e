"""Checkpoint files, which are whole or absent, and are checked before anything is unpickled.

A checkpoint is a header and a body; numbers are big-endian::

    magic     8 bytes
    version   4           of this format, from 1
    check     4           CRC-32 of the twelve bytes before; so far every version is alike
    length    8           of the body
    digest   32           SHA-256 of the body
    body                  what torch.save writes of the object, or, with ``save_rng=True``, of a
                          dict of the program's generators and the object

It is written under a name of its own in the target's folder, with zeros for a header until the body
is complete, and takes the target's name when it is on the disk. After a crash at any moment, the
target is the old file or the new one.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import io
import os
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

import torch

from ...errors import DamagedStateError, ForeignStateError, NewerStateError
from ...rng.program import ProgramStates, capture_program
from ..pickles.opened import moved
from .archive import load_screened

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

MAGIC = b"\x89PLOAD\r\n"  # what a transfer as text, or by 7 bits, would change
_VERSION = 1
#: magic, version and their check; length and digest
_ORIGIN, _SEAL = struct.Struct(">8sII"), struct.Struct(">Q32s")
_HEADER_BYTES = _ORIGIN.size + _SEAL.size
#: how every file of torch.save begins, which is a zip archive
_ZIP = b"PK\x03\x04"

_CHUNK_BYTES = 1 << 20
#: a file that nobody has written to for so long is a killed process's
_LEFTOVER_S = 3600


def save(obj: Any, path: AnyPath, *, save_rng: bool = False) -> None:
    """Write a checkpoint; a crash in the middle leaves what was there before.

    Args:
        obj: an iterator, a state, or anything that ``torch.save`` takes, such as a dict of models'
            and optimizers' states with either.
        path: of the file. One that is there is replaced and keeps its permissions; a link goes on
            to lead to the file.
        save_rng: the program's generators go along, for ``load(path, restore_rng=True)``.

    Raises:
        CannotSaveError: an iterator in it cannot be saved exactly.
        OSError: the file cannot be written, for example since the disk is full. The old one stays.
        Exception: what pickle raises for ``obj``. The old file stays.
    """
    with replacement(path) as file:
        _write(file, {_PROGRAM: capture_program(), _OBJECT: obj} if save_rng else obj)


save.__module__ = "picklable_loader"  # pickles hold this name


def rewrite(path: AnyPath, to: AnyPath, change: Callable[[Any], None]) -> None:
    """Write a checkpoint anew, as ``change`` has changed the object in it; the rest stays.

    Raises:
        Exception: see `load` with ``weights_only``, and `save`; or that of ``change``.
    """
    content = _loaded(path, True, "cpu")
    change(object_and_program(content)[0])
    with replacement(to) as file:
        _write(file, content)


def _write(file: BinaryIO, content: Any) -> None:
    file.write(bytes(_HEADER_BYTES))
    body = _Written(file)
    body.dump(content)
    file.seek(0)
    file.write(_origin(_VERSION) + _SEAL.pack(body.length, body.sha256.digest()))


def load(
    path: AnyPath,
    *,
    weights_only: bool = False,
    map_location: Any = None,
    restore_rng: bool = False,
) -> Any:
    """Read a checkpoint that `save` has written.

    An iterator comes with its loader and dataset, so that loading it runs their code: as with
    pickle, trust where the file comes from. The checksum tells of damage and not of malice.

    Args:
        path: of the file.
        weights_only: run no code. Enough for states, and dicts of them and of models' states.
        map_location: where tensors go; see ``torch.load``.
        restore_rng: put the program's generators back, as ``save_rng=True`` has saved them:
            torch's, NumPy's, Python's, and those of CUDA devices.

    Returns:
        The checkpoint that was saved. An iterator goes on with the next batch; a state is for
        ``load_state_dict``.

    Raises:
        DamagedStateError: the file is cut short, or was changed, and nothing was unpickled; or,
            with ``weights_only``, it is nothing that `save` writes.
        ForeignStateError: it is no such file.
        NewerStateError: a later version of this package wrote it.
        UsageError: ``weights_only`` is not enough for what is in it; or ``restore_rng``, and it was
            saved without ``save_rng=True``.
        StateMismatch: ``restore_rng``, and the generators are another rank's.
        CannotLoadError: a class or a module that it needs is not there, or not under that name.
        OSError: it cannot be read.
        Exception: what else unpickling raises.
    """
    found = _loaded(path, weights_only, map_location)
    obj, program = object_and_program(found)
    if restore_rng:
        ProgramStates(program).restore()
    return obj


load.__module__ = "picklable_loader"  # pickles hold this name


def _loaded(path: AnyPath, weights_only: bool, map_location: Any) -> Any:
    with open_body(path) as body:
        if weights_only:
            return load_screened(body, os.fsdecode(path), map_location)
        try:
            return torch.load(body, map_location=map_location, weights_only=False)
        except (AttributeError, ImportError) as error:
            raise moved(os.fsdecode(path), error) from error


def object_and_program(content: Any) -> tuple[Any, Any]:
    """The saved object, and the program's generators, in a file's content; None: it has none."""
    if type(content) is dict and content.keys() == {_PROGRAM, _OBJECT}:
        return content[_OBJECT], content[_PROGRAM]
    return content, None


#: keys of a body that holds the program's generators as well
_PROGRAM, _OBJECT = "picklable_loader: generators", "picklable_loader: saved"


# --- writing -------------------------------------------------------------------------------------


class _Written(io.RawIOBase):
    """The body on its way into a file: counted and hashed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: BaseException | None = None
        #: torch has failed: its writer may live as long as the traceback, and writes once more in
        #: its destructor, where an exception would end the process
        self._failed = False
        self.length = 0
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        if self._failed:
            return len(data)
        try:
            self._file.write(data)
        except BaseException as error:
            self._error = error
            raise
        self.sha256.update(data)
        self.length += len(data)
        return len(data)

    def dump(self, obj: Any) -> None:
        try:
            torch.save(obj, cast("BinaryIO", self))
        except BaseException as error:
            self._failed = True
            found = self._error
            if found is None and "inline_container" in str(error):  # a signal handler's
                found = error.__context__
            if found is not None:  # torch speaks of an unexpected position instead
                raise found from None
            raise


def _origin(version: int) -> bytes:
    known = _ORIGIN.pack(MAGIC, version, 0)[:-4]
    return known + zlib.crc32(known).to_bytes(4, "big")


def _target(path: AnyPath) -> str:
    """The file that a path leads to; OSError if it is there, and nothing that may be replaced."""
    target = os.path.realpath(os.fsdecode(path))
    try:
        mode = os.stat(path).st_mode  # the kernel may refuse to follow somebody else's link
    except FileNotFoundError:
        return target
    _check_regular(target, mode)
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
    return target


@contextmanager
def replacement(path: AnyPath) -> Iterator[BinaryIO]:
    """A new file, which takes the path's place when the block ends, and vanishes if it raises."""
    target = _target(path)
    _remove_leftovers(target)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f"{_prefix(name)}{os.urandom(8).hex()}{_SUFFIX}")
    try:
        try:
            file: BinaryIO = open(temporary, "xb")
        except OSError as error:
            error.filename = target  # the only name that the caller knows
            raise
        with file:
            _resemble(file, target)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _sync(folder)


def _resemble(file: BinaryIO, target: str) -> None:
    """Give a file the owner and the permissions of the one that it is to replace."""
    with suppress(FileNotFoundError):
        old, new = os.stat(target), os.fstat(file.fileno())
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            with suppress(PermissionError):
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
        os.fchmod(file.fileno(), old.st_mode & _PERMISSIONS)


#: not the bits that run a program as its owner: this is a new file
_PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO


def _sync(folder: str) -> None:
    """Have a folder's new name survive a power failure, where folders can be synchronised."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EINVAL, errno.ENOTSUP):
            raise


# --- leftover files of killed processes ----------------------------------------------------------

_SUFFIX = ".unfinished"


def _prefix(name: str) -> str:
    return f".{name[-40:]}."  # a name has 255 bytes at most


def _remove_leftovers(target: str) -> None:
    """Remove what savers of the same target have left that were killed a while ago."""
    folder, name = os.path.split(target)
    written = glob.escape(os.path.join(folder, _prefix(name)))
    with suppress(OSError):  # another saver may be faster
        for path in glob.glob(written + "[0-9a-f]" * 16 + _SUFFIX):
            if time.time() - os.stat(path).st_mtime > _LEFTOVER_S:
                os.unlink(path)


# --- reading -------------------------------------------------------------------------------------


def open_file(path: AnyPath, buffering: int = -1) -> Any:
    """A file, from its start; OSError for no file, such as a pipe, which might never end."""
    _check_regular(os.fsdecode(path), os.stat(path).st_mode)
    return open(path, "rb", buffering)


def _check_regular(path: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "A checkpoint needs a regular file", path)


def open_body(path: AnyPath) -> BinaryIO:
    """The body of a checkpoint, which torch.save wrote; StateError unless its checksum is right."""
    name = os.fsdecode(path)
    file = open_file(path, buffering=0)
    try:
        length, expected_digest = _read_header(file, name)
        expected, found = _HEADER_BYTES + length, os.fstat(file.fileno()).st_size
        if found != expected:
            raise DamagedStateError(name, f"a file of {expected} bytes", f"{found} bytes")
        body, sha256 = _Body(file), hashlib.sha256()
        chunk = memoryview(bytearray(_CHUNK_BYTES))
        while count := body.readinto(chunk):
            sha256.update(chunk[:count])
        if (digest := sha256.digest()) != expected_digest:
            what = f"data with SHA-256 {expected_digest.hex()}"
            raise DamagedStateError(name, what, digest.hex())
        body.seek(0)
        return io.BufferedReader(body)
    except BaseException:
        file.close()
        raise


class _Body(io.RawIOBase):
    """A file from the end of its header on."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.seek(0)

    def close(self) -> None:
        self._file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer) or 0

    def tell(self) -> int:
        return self._file.tell() - _HEADER_BYTES

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = _HEADER_BYTES if whence == os.SEEK_SET else 0
        return self._file.seek(start + offset, whence) - _HEADER_BYTES


def _read_header(file: io.FileIO, name: str) -> tuple[int, bytes]:
    """The length and digest that the body should have."""
    data = file.read(_HEADER_BYTES)
    if not any(data):  # a power failure, or a save that was cut short
        raise DamagedStateError(name, "a file with a header", data)
    if not data.startswith(MAGIC[: len(data)]):
        if data.startswith(_ZIP):
            raise ForeignStateError("torch.save", f"Read {name!r} with torch.load.")
        raise ForeignStateError(
            f"something that begins with {data[:8]!r}",
            f"Expected a file that picklable_loader.save has written, got {name!r}.",
        )
    if len(data) >= _ORIGIN.size:
        _, version, check = _ORIGIN.unpack_from(data)
        if data[: _ORIGIN.size] != _origin(version):
            raise DamagedStateError(name, "a file whose header has its checksum", hex(check))
        if version > _VERSION:
            raise NewerStateError(version, _VERSION)
    if len(data) < _HEADER_BYTES:
        raise DamagedStateError(name, f"a file of {_HEADER_BYTES} bytes or more", data)
    length, digest = _SEAL.unpack_from(data, _ORIGIN.size)
    return length, digest
