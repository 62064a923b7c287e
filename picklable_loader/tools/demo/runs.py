"""The training runs, each a process of its own, one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from .plan import ROLES, Kind, Plan, Role

_PACKAGE_ROOT = Path(__file__).resolve().parents[3]


class RunFailed(RuntimeError):
    """A training run ended in another way than its role demands.

    Attributes:
        kind: whose DataLoader it used.
        role: what was to happen to it.
        status: its exit status; negative for a signal.
    """

    def __init__(self, kind: str, role: str, status: int) -> None:
        super().__init__(kind, role, status)
        self.kind = kind
        self.role = role
        self.status = status

    def __str__(self) -> str:
        return (
            f"the run {self.kind!r}, {self.role!r} ended with status {self.status}: its messages "
            "stand above"
        )


def lay_digits_ready(plan: Plan) -> None:
    """Take the images out of the scikit-learn package, where they are; nothing is downloaded."""
    bunch = load_digits()
    images = torch.tensor(bunch.images / 16.0, dtype=torch.float32)
    torch.save({"images": images, "labels": torch.tensor(bunch.target)}, plan.digits)


def do_all(plan: Plan, kind: Kind) -> None:
    """Train to the end; train and be killed; resume. All with one kind of DataLoader.

    Raises:
        RunFailed: a run did not end as it should.
    """
    for role in ROLES:
        _run(plan, kind, role)


def _run(plan: Plan, kind: Kind, role: Role) -> None:
    arguments = [kind, role, str(plan.folder), str(plan.epochs)]
    process = subprocess.run(
        [sys.executable, "-m", "picklable_loader.tools.demo.train", *arguments], env=_environment()
    )
    if role == "killed":
        print("   SIGKILL", file=sys.stderr)  # at the end of its progress bar
    expected = -signal.SIGKILL if role == "killed" else 0
    if process.returncode != expected:
        raise RunFailed(kind, role, process.returncode)


def _environment() -> dict[str, str]:
    """This process's own, in which the package is found wherever the demo was started."""
    paths = [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
