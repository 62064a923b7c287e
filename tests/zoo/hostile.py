"""Files and states as faults and attackers make them, and bounds on the work of reading them."""

from __future__ import annotations

import copy
import hashlib
import io
import resource
import signal
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from picklable_loader.saving.files.checkpoint import _origin


@contextmanager
def bounded() -> Iterator[None]:
    """Neither a minute's work nor two gigabytes."""

    def too_long(*_: object) -> None:
        raise TimeoutError("it takes too long")

    before, (soft, hard) = signal.signal(signal.SIGPROF, too_long), resource.getrlimit(_MEMORY)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(_MEMORY, (pages * resource.getpagesize() + 2**31, hard))
    signal.setitimer(signal.ITIMER_PROF, 60)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(_MEMORY, (soft, hard))


_MEMORY = resource.RLIMIT_AS


# --- files ---------------------------------------------------------------------------------------


def sealed(target: Path, body: bytes) -> Path:
    """A checkpoint of ours around any body: whoever makes it up knows the format."""
    digest = hashlib.sha256(body).digest()
    target.write_bytes(_origin(1) + struct.pack(">Q32s", len(body), digest) + body)
    return target


def zipped(parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(f"archive/{name}", data)
    return buffer.getvalue()


def torch_file(pickled: bytes, **more: bytes) -> bytes:
    """What torch.save writes, around any pickle."""
    return zipped({"data.pkl": pickled, "byteorder": b"little", "version": b"3\n", **more})


# --- states --------------------------------------------------------------------------------------

#: where something is in a state: keys and indices
Place = tuple[Any, ...]


def places(owner: Any, most: int = 4, path: Place = ()) -> Iterator[Place]:
    """Every place in a state; of long lists those at the beginning."""
    for name in list(owner) if type(owner) is dict else range(min(most, len(owner))):
        yield (*path, name)
        if type(owner[name]) in (dict, list):
            yield from places(owner[name], most, (*path, name))


def at(owner: Any, path: Place) -> Any:
    for name in path:
        owner = owner[name]
    return owner


def changed(state: Any, path: Place, value: Any) -> Any:
    """A copy of a state, with another value in that place."""
    made = copy.deepcopy(state)
    at(made, path[:-1])[path[-1]] = value
    return made


def without(state: Any, path: Place) -> Any:
    made = copy.deepcopy(state)
    del at(made, path[:-1])[path[-1]]
    return made
