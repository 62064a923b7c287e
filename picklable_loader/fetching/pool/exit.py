"""Explains how a worker process has ended, and the likely cause, for error messages."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: the folder of the control groups' limits, and the file that lists this process's groups
_CGROUPS = Path("/sys/fs/cgroup")
_OURS = Path("/proc/self/cgroup")

#: by version: the folder, and the files with a group's limit and its use
_FIGURES = (
    ("", "memory.max", "memory.current"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
_MIB = 2**20

#: signals that mostly come from outside of the program
_SENT = -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP

#: Python's exit code for a process whose fork server has died: nobody knows the real one
NOT_KNOWN = 255

#: what version 1 says where there is no limit
_NO_LIMIT = 2**60


@dataclass(frozen=True)
class Death:
    """A worker's end. A negative exit code is a signal; ``stack`` is of one that was stuck."""

    worker: int
    pid: int
    exitcode: int
    stack: str = ""

    def __str__(self) -> str:
        if self.exitcode < 0:
            return f"worker (pid {self.pid}) is killed by signal: {_name(-self.exitcode)}"
        return f"worker (pid {self.pid}) has exit code {self.exitcode}"


def unexpected(deaths: Sequence[Death]) -> RuntimeError:
    """The error that torch's loader raises when workers have died."""
    pids = ", ".join(str(death.pid) for death in deaths)
    causes = "; ".join(map(str, deaths))
    return RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly: {causes}")


def likely_cause(exitcode: int, cgroups: Path = _CGROUPS, ours: Path = _OURS) -> str:
    """In words, with what to do; empty where there is no telling."""
    memory = "(no limit of a control group could be read)"
    if (found := memory_limit(cgroups, ours)) is not None:
        limit, used = found
        memory = f"(limit of the control group {limit // _MIB} MiB, in use {used // _MIB} MiB)"
    if exitcode == -signal.SIGKILL:
        return (
            f"The system's memory may have run out {memory}: use fewer workers, a "
            "smaller prefetch_budget, or prefetch_bytes."
        )
    if exitcode == -signal.SIGBUS:
        return f"Memory that is shared may have run out {memory}."
    if exitcode in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE):
        return "A library in compiled code has crashed, which the dataset or collate_fn uses."
    if exitcode in _SENT:
        return "A scheduler, or somebody else, has sent it the signal, perhaps to the whole job."
    if exitcode < 0:
        return ""
    code = "The dataset, collate_fn or worker_init_fn, or what they call, has ended the process"
    if exitcode == 0:  # of SIGTERM a worker ends in good order
        return f"{code}; or it was sent SIGTERM, perhaps with the whole job."
    if exitcode == NOT_KNOWN:
        return f"{code}; or the fork server has died, which alone knows the exit code."
    return f"{code}."


def memory_limit(cgroups: Path = _CGROUPS, ours: Path = _OURS) -> tuple[int, int] | None:
    """The bytes that this process and its workers may use, and those in use; None: no limit."""
    for group in _groups(ours):
        for folder, limit_file, usage_file in _FIGURES:
            where = cgroups / folder / group
            try:
                limit = (where / limit_file).read_text().strip()
                used = int((where / usage_file).read_text())
            except (OSError, ValueError):
                continue
            if limit.isdigit() and int(limit) < _NO_LIMIT:
                return int(limit), used
    return None


def _groups(ours: Path) -> list[str]:
    """The groups that this process is in, the innermost first."""
    try:
        lines = [line.split(":", 2) for line in ours.read_text().splitlines()]
    except OSError:
        return [""]
    paths = [Path(path) for _, kinds, path in lines if not kinds or "memory" in kinds.split(",")]
    groups = [str(group).strip("/") for path in paths for group in (path, *path.parents)]
    return [*groups, ""]


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names of their own
        return str(number)
