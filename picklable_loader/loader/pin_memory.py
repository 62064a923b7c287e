"""Copies batches to pinned memory, as torch's loader does, where there is an accelerator."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from ..errors import warn


def pin(batch: Any) -> Any:
    """The batch in pinned memory; as it is where there is no accelerator that has it."""
    accelerator = None
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type == "mps":
        return batch  # torch does not pin there either (its issue 86060)
    return pin_memory(batch, accelerator.type)


def warn_about_pinning(device: str) -> None:
    """Warn where torch does, for a loader with ``pin_memory=True``.

    Args:
        device: the loader's ``pin_memory_device``.
    """
    if device:
        warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{device}'.",
            UserWarning,
        )
    if not torch.accelerator.is_available():
        warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device pinned "
            "memory won't be used.",
            UserWarning,
        )
