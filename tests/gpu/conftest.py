"""All tests of this folder need a CUDA device."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def cuda_has_opened_its_files() -> None:
    """CUDA opens descriptors with its first copy, stream and registration; they are no test's."""
    if torch.cuda.is_available():
        from picklable_loader.fetching.transport.page_lock import LockedMap

        descriptor = os.memfd_create("warm")
        os.ftruncate(descriptor, mmap.PAGESIZE)
        assert len(LockedMap(descriptor, mmap.PAGESIZE)) == mmap.PAGESIZE
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.ones(9).pin_memory().to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        os.close(descriptor)


@pytest.fixture(autouse=True)
def there_is_a_gpu(cuda_has_opened_its_files: None) -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    yield
    torch.cuda.synchronize()
