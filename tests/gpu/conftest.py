"""All tests of this folder need a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from zoo import cuda


@pytest.fixture(autouse=True, scope="session")
def cuda_has_opened_its_files() -> None:
    cuda.open_its_files()


@pytest.fixture(autouse=True)
def there_is_a_gpu(cuda_has_opened_its_files: None) -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    yield
    torch.cuda.synchronize()
