"""Scenes: single faults, each of which a loader survives or does not."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from .processes import children

__all__ = ["SCENES", "Faulty", "Scene"]

#: the sample at which it happens, in the middle of the run
_FATEFUL = 20


@dataclass(frozen=True)
class Scene:
    """A fault.

    Attributes:
        name: in words.
        in_worker: what the sample does to the worker that reads it first.
        in_trainer: what happens to the trainer after some batches.
        before: what is done to the trainer's process before it starts.
        loader: arguments of every loader.
        ours: arguments that only our loader has.
        samples, size: how many there are, and of how many numbers.
        fails: the batch is expected to be missing.
        killed: the trainer is killed once a worker is at the sample.
    """

    name: str
    in_worker: Callable[[], object] | None = None
    in_trainer: Callable[[], object] | None = None
    before: Callable[[], object] | None = None
    loader: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)
    samples: int = 64
    size: int = 16
    fails: bool = False
    killed: bool = False


class Faulty(Dataset[torch.Tensor]):
    """Something happens to the first who reads a certain sample.

    Args:
        scene: what.
        flag: a file that tells that it has happened.
    """

    def __init__(self, scene: Scene, flag: Path) -> None:
        self.scene, self.flag = scene, flag

    def __len__(self) -> int:
        return self.scene.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == _FATEFUL and self.scene.in_worker is not None and not self.flag.exists():
            self.flag.touch()
            self.scene.in_worker()
        return torch.full((self.scene.size,), index)


def _die(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def _crash() -> None:
    ctypes.string_at(0)


def _be_stuck() -> None:
    while True:
        time.sleep(60)


def _fail() -> None:
    raise OSError("no such picture")


def _kill_a_worker() -> None:
    time.sleep(0.3)  # all that may be fetched ahead is there: they are idle
    os.kill(children(os.getpid())[0], signal.SIGKILL)
    time.sleep(0.3)


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))


def _little_shared_memory() -> None:
    """A file system of 1 MiB in the place of /dev/shm, which this process and its children see."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, mounts = 0x10000000, 0x00020000
    nothing = ctypes.c_void_p()
    if os.geteuid() and libc.unshare(user):
        raise PermissionError("no name spaces for users here")
    for done in (
        libc.unshare(mounts),
        libc.mount(b"none", b"/", nothing, 0x4000 | 0x40000, nothing),  # private, with all below
        libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=1m"),
    ):
        if done:
            raise PermissionError(f"no mounts of our own here: {os.strerror(ctypes.get_errno())}")


_TIMELY: dict[str, Any] = {"loader": {"timeout": 1}, "ours": {"on_timeout": "restart"}}

SCENES = {
    scene.name: scene
    for scene in (
        Scene("a worker is killed while it fetches", lambda: _die(signal.SIGKILL)),
        Scene("a worker is killed while it is idle", in_trainer=_kill_a_worker),
        Scene("a segmentation fault in a sample, once", _crash),
        Scene("`os._exit` in a sample, once", lambda: os._exit(3)),
        Scene("a worker is stuck, `timeout=1`", _be_stuck, **_TIMELY),
        Scene("a worker is stopped, `timeout=1`", lambda: _die(signal.SIGSTOP), **_TIMELY),
        Scene("`kill -9` of the trainer while a worker is stuck", _be_stuck, killed=True),
        Scene("batches of 2 MB, 1 MiB of /dev/shm", before=_little_shared_memory, size=2**16),
        Scene("an exception in a sample", _fail, fails=True),
        Scene("Ctrl-C, and then on", in_trainer=_interrupt),
        Scene("400 batches kept, 96 open files", before=_few_descriptors, samples=1600),
    )
}
