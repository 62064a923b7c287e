"""Which of several training processes this one is; each has random number generators of its own."""

from __future__ import annotations

import os

import torch.distributed as dist


def rank_and_world() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) outside of distributed training."""
    if has_group():
        return dist.get_rank(), dist.get_world_size()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])  # as torchrun sets them
    except (KeyError, ValueError):
        return 0, 1


def has_group() -> bool:
    """torch.distributed is initialised."""
    return dist.is_available() and dist.is_initialized()
