"""CUDA, before the first test that uses it."""

from __future__ import annotations

import mmap
import os

import torch

from picklable_loader.fetching.transport.page_lock import LockedMap


def open_its_files() -> None:
    """CUDA opens descriptors with its first copy, stream and registration; they are no test's."""
    if torch.cuda.is_available():
        descriptor = os.memfd_create("warm")
        os.ftruncate(descriptor, mmap.PAGESIZE)
        LockedMap(descriptor, mmap.PAGESIZE).register()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.ones(9).pin_memory().to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        os.close(descriptor)
