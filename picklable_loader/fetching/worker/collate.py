"""Torch's default collate_fn, which in a worker stacks samples straight into a batch's memory.

Torch's own makes a file of shared memory for each tensor. Here a large tensor is made in the
worker's arena, and a small one in ordinary memory. A stream without a worker (``num_workers=0``)
has ordinary memory for all: a program that dies while torch makes a file would leave it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset
from torch.utils.data._utils import collate
from torch.utils.data._utils import worker as torch_worker

from ..transport.arena import ArenaFull
from ..transport.tensors import INLINE_BYTES

#: torch's own collate_fn for tensors, and its table of these by type
_by_torch: Callable[..., torch.Tensor] = collate.collate_tensor_fn
_table: Any = collate.default_collate_fn_map


def collate_into(allocate: Callable[[int], Any] | None) -> None:
    """From now on ``default_collate`` of this process uses such memory; None: torch's.

    A function for tensors that somebody else has put into torch's table stays.
    """
    found = _table.get(torch.Tensor)
    if found is _by_torch or getattr(found, "func", None) is _stack:
        _table[torch.Tensor] = partial(_stack, allocate)


def may_draw(dataset: Any, collate_fn: Any) -> bool:
    """Whether somebody may draw random numbers while a batch is made: torch's own code does not.

    Args:
        dataset: tensors and ``range`` do not, also within torch's classes; anything else may.
        collate_fn: so may any but torch's, or one of its functions for a type that is not torch's.
    """
    if collate_fn is not collate.default_collate and collate_fn is not collate.default_convert:
        return True
    if {*map(attrgetter("__module__"), _table.values())} != {collate.__name__}:
        return True
    while type(dataset) is Subset and type(dataset.indices) in (list, range, torch.Tensor):
        dataset = dataset.dataset if len(vars(dataset)) == 2 else None
    parts: Any = [dataset]
    if type(dataset) is TensorDataset and len(vars(dataset)) == 1:
        parts = dataset.tensors
    return any(
        type(part) not in (range, torch.Tensor) or getattr(part, "__dict__", None) for part in parts
    )


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A new tensor, which in a worker lies in the memory that is sent."""
    found = _table.get(torch.Tensor)
    allocate = found.args[0] if getattr(found, "func", None) is _stack else None
    with suppress(ArenaFull):
        return _empty(allocate, tuple(shape), dtype)
    return _empty(None, tuple(shape), dtype)


def _empty(
    allocate: Callable[[int], Any] | None, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    length = math.prod(shape) * dtype.itemsize
    if allocate is None or length <= INLINE_BYTES:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(allocate(length), dtype=dtype).view(shape)


@contextmanager
def collate_here() -> Iterator[None]:
    """Within it, ``default_collate`` uses ordinary memory, as torch does without workers."""
    if ours := _table.get(torch.Tensor) is _by_torch:
        _table[torch.Tensor] = _by_torch_here
    try:
        yield
    finally:
        if ours:
            _table[torch.Tensor] = _by_torch


def _by_torch_here(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    # Torch asks for the worker's info to choose between shared and ordinary memory.
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        return _by_torch(batch, collate_fn_map=collate_fn_map)
    finally:
        torch_worker._worker_info = info


def _stack(
    allocate: Callable[[int], Any] | None,
    batch: Sequence[torch.Tensor],
    *,
    collate_fn_map: Any = None,
) -> torch.Tensor:
    """A batch of tensors as one, in the memory that it will be sent in."""
    first = batch[0]
    small = len(batch) * first.numel() * first.itemsize <= INLINE_BYTES
    if (allocate is None and not small) or not _is_plain(first):
        return _by_torch(batch, collate_fn_map=collate_fn_map)
    try:
        out = _empty(allocate, (len(batch), *first.shape), first.dtype)
        return torch.stack(list(batch), 0, out=out)
    except (RuntimeError, TypeError, ArenaFull):  # what cannot be joined is refused in its words
        return _by_torch(batch, collate_fn_map=collate_fn_map)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
    )
