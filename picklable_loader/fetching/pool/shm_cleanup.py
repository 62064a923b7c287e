"""Removes blocks of torch's shared memory that killed processes have not removed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch.multiprocessing

#: the folder of shared memory that has a name
_NAMED = Path("/dev/shm")


def remove(pids: Iterable[int | None], named: Path = _NAMED) -> None:
    """Remove the blocks of dead processes.

    Where torch hands descriptors on, a block has a name only while it is being made: who is killed
    right then leaves it. Where it hands names on, a process of torch's cleans up after the dead,
    and others may still need them.
    """
    if torch.multiprocessing.get_sharing_strategy() != "file_descriptor" or not named.is_dir():
        return
    prefixes = tuple(f"torch_{pid}_" for pid in pids)
    for name in os.listdir(named) if prefixes else ():
        if name.startswith(prefixes):
            with suppress(OSError):  # another user's, or gone by now
                (named / name).unlink()
