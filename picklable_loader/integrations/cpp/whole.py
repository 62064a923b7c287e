"""Whole: a batch that a dataset has made at once; no collate_fn has anything to add."""

from __future__ import annotations

from typing import Any

from torch.utils.data._utils import collate


class Whole:
    """A batch that is complete: ``__getitems__`` returns ``[Whole(batch)]``.

    Torch's ``default_collate`` (so both loaders, without a ``collate_fn``) makes ``batch`` of it.

    Attributes:
        batch: for example a tuple of tensors.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch


def _unwrapped(batch: list[Whole], *, collate_fn_map: Any = None) -> Any:
    (whole,) = batch
    return whole.batch


_unwrapped.__module__ = collate.__name__  # `may_draw` knows by this that nobody draws
collate.default_collate_fn_map[Whole] = _unwrapped
