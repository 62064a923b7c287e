"""Deaths: how a worker has ended, and what may have been the cause."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Death", "likely_cause", "unexpected"]

#: where a control group tells its memory limit and what it uses, in version 2 and in version 1
_CGROUP = Path("/sys/fs/cgroup")
_FIGURES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
_MIB = 2**20

#: what version 1 says where there is no limit
_NO_LIMIT = 2**60


@dataclass(frozen=True)
class Death:
    """A worker's end.

    Attributes:
        worker: its number.
        pid: its process.
        exitcode: as in ``multiprocessing``: negative, the signal.
        stack: what it was at when it was found to be stuck; empty if it was not.
    """

    worker: int
    pid: int
    exitcode: int
    stack: str = ""

    def __str__(self) -> str:
        if self.exitcode < 0:
            return f"worker (pid {self.pid}) is killed by signal: {_name(-self.exitcode)}"
        return f"worker (pid {self.pid}) has exit code {self.exitcode}"


def unexpected(deaths: Sequence[Death]) -> RuntimeError:
    """What torch's loader raises when workers have died."""
    pids = ", ".join(str(death.pid) for death in deaths)
    causes = "; ".join(map(str, deaths))
    return RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly: {causes}")


def likely_cause(exitcode: int, cgroup: Path = _CGROUP) -> str:
    """In words, with what to do; empty where there is no telling."""
    if exitcode == -signal.SIGKILL:
        return (
            f"The system's memory may have run out ({memory(cgroup)}): use fewer workers, a "
            "smaller prefetch_budget, or prefetch_bytes."
        )
    if exitcode == -signal.SIGBUS:
        return f"Memory that is shared may have run out ({memory(cgroup)})."
    if exitcode in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE):
        return "A library in compiled code has crashed, which the dataset or collate_fn uses."
    if exitcode >= 0:
        return (
            "The dataset, collate_fn or worker_init_fn, or what they call, has ended the process."
        )
    return ""


def memory(cgroup: Path = _CGROUP) -> str:
    """How much there is for this process and its workers, and how much is in use."""
    for limit_file, usage_file in _FIGURES:
        try:
            limit = (cgroup / limit_file).read_text().strip()
            used = int((cgroup / usage_file).read_text())
        except (OSError, ValueError):
            continue
        if limit.isdigit() and int(limit) < _NO_LIMIT:
            return f"limit of the control group {int(limit) // _MIB} MiB, in use {used // _MIB} MiB"
    return "no limit of a control group could be read"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names of their own
        return str(number)
