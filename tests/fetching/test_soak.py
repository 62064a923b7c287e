"""A long run: memory and descriptors stay where they were, whatever the consumer keeps."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from picklable_loader import DataLoader

#: batches of the whole run; the issue's figure is reached with SOAK_BATCHES=200000
BATCHES = int(os.environ.get("SOAK_BATCHES", "8000"))


class Sizes(Dataset[dict[str, torch.Tensor]]):
    """Samples of three sizes, one of them large enough for an arena by itself."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        rows = 10 + index % 37
        return {
            "small": torch.full((8,), index),
            "large": torch.full((rows, 1024), index, dtype=torch.float64),
            "label": torch.tensor(index),
        }


def memory_kb(pids: list[int]) -> int:
    """What these processes take together, shared pages counted once."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            # Not of files: the share of libraries changes with every process that has them.
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1])
    return total


@pytest.mark.parametrize("transport", ["arena", "portable"])
def test_memory_and_descriptors_are_flat_while_a_random_window_is_kept(
    transport: Any, pytestconfig: pytest.Config
) -> None:
    chance = random.Random(0)
    kept: dict[int, Any] = {}
    loader = DataLoader(Sizes(), batch_size=None, num_workers=2, transport=transport)
    seen: list[tuple[int, int]] = []
    with iter(loader) as iterator:
        pids = [os.getpid(), *(worker.pid or 0 for worker in iterator.stats().workers)]
        for step, batch in enumerate(iterator):
            kept[step] = batch
            while len(kept) > 64 or (kept and chance.random() < 0.45):
                index = chance.choice(list(kept))
                held = kept.pop(index)
                for tensor in held.values():
                    assert tensor.view(-1)[0] == tensor.view(-1)[-1] == index
            if step % (BATCHES // 40) == BATCHES // 80:
                gc.collect()
                seen.append((memory_kb(pids), len(os.listdir("/proc/self/fd"))))
    early, late = seen[8:20], seen[-12:]
    most = max(memory for memory, _ in early)
    assert max(memory for memory, _ in late) <= 1.1 * most + 4096, seen
    if transport == "arena":  # torch's way has a descriptor for each large tensor that is kept
        # While a GPU is late, each worker may need another segment of locked memory.
        more = 2 * 2 if pytestconfig.getoption("--pin-memory") else 0
        assert max(count for _, count in late) <= max(count for _, count in early) + more, seen
