"""Prints batches of tensors that are on the GPU: ``python on_gpu.py [START_METHOD]``."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.data import Dataset

from picklable_loader import DataLoader


class OnGpu(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index), device="cuda")


if __name__ == "__main__":
    method = sys.argv[1]
    workers = {"num_workers": 2, "multiprocessing_context": method} if method else {}
    for batch in DataLoader(OnGpu(), **workers):
        print(batch.device.type, batch.tolist())
