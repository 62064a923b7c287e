"""What this process and its descendants take, read from /proc."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path

__all__ = ["cpu_seconds", "family", "peak_bytes", "shared_bytes"]

_PROC = Path("/proc")


def family() -> list[int]:
    """This process and its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        children[int(fields[1])].append(int(path.parent.name))
    found = [os.getpid()]
    for pid in found:  # grows while it is walked through
        found.extend(children[pid])
    return found


def cpu_seconds() -> float:
    """Processor time of the family so far, all threads; without members that have ended."""
    return sum(time.clock_gettime(_process_clock(pid)) for pid in family())


def _process_clock(pid: int) -> int:
    """What clock_getcpuclockid(3) returns: ticks of one process, to the nanosecond."""
    return (~pid << 3) | 2


def peak_bytes() -> int:
    """The most memory that this process has had resident."""
    for line in (_PROC / "self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status does not tell VmHWM")


def shared_bytes() -> int:
    """Pages of all files in memory (/dev/shm, memfd) that the family has open, each file once.

    What is on its way from one process to another is counted as well, as somebody has it open;
    in a sum of what is mapped it would be missing.
    """
    files: dict[tuple[int, int], int] = {}
    for pid in family():
        for descriptor in _descriptors(pid):
            try:
                target, facts = os.readlink(descriptor), os.stat(descriptor)
            except OSError:
                continue  # closed meanwhile
            if target.startswith(("/dev/shm/", "/memfd:")):
                files[facts.st_dev, facts.st_ino] = facts.st_blocks * 512
    return sum(files.values())


def _descriptors(pid: int) -> list[Path]:
    try:
        return list((_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return []
