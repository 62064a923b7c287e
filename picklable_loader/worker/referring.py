"""Referring: pickles of what belongs to a dataset, which refer to it and do not hold it."""

from __future__ import annotations

import io
import pickle
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import torch

__all__ = ["attributes_of", "dumps", "loads"]


def attributes_of(dataset: Any) -> dict[str, Any]:
    """Those in its ``__dict__``."""
    return dict(getattr(dataset, "__dict__", {}))


def dumps(
    thing: Any,
    dataset: Any,
    by_value: bool = False,
    by_id: dict[int, str] | None = None,
    most_bytes: int | None = None,
) -> bytes:
    """Pickle what belongs to a dataset.

    Args:
        thing: what is pickled.
        dataset: is referred to.
        by_value: classes of ``__main__`` go along.
        by_id: attributes of the dataset that are referred to as well: their ids, and their names.
        most_bytes: stop soon after so many; None: at no number.

    Raises:
        ValueError: it has more than that.
        Exception: pickle's, and whatever people's ``__reduce__`` raises.
    """
    buffer = io.BytesIO() if most_bytes is None else _Limited(most_bytes)
    _pickler(by_value)(buffer, dataset, by_id or {}, most_bytes).dump(thing)
    return buffer.getvalue()


def loads(pickled: bytes, dataset: Any) -> Any:
    """What was pickled beside a dataset; it belongs to this one now."""
    return _Unpickler(io.BytesIO(pickled), dataset).load()


class _Limited(io.BytesIO):
    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._most_bytes:
            raise ValueError(f"it has more than {self._most_bytes} bytes")
        return super().write(data)


@lru_cache(maxsize=2)
def _pickler(by_value: bool) -> Any:
    base: Any = import_module("cloudpickle").Pickler if by_value else pickle.Pickler

    class Pickler(base):  # type: ignore[misc]
        def __init__(
            self, buffer: Any, dataset: Any, by_id: dict[int, str], most_bytes: int | None
        ) -> None:
            super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
            self._dataset = dataset
            self._by_id = by_id
            self._most_bytes = most_bytes

        def persistent_id(self, obj: Any) -> str | None:
            # Torch copies all of a tensor before it writes the first byte.
            if self._most_bytes is not None and isinstance(obj, torch.Tensor | np.ndarray):
                if obj.nbytes > self._most_bytes:
                    raise ValueError(f"it has more than {self._most_bytes} bytes")
            return "" if obj is self._dataset else self._by_id.get(id(obj))

    return Pickler


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, dataset: Any) -> None:
        super().__init__(buffer)
        self._dataset = dataset

    def persistent_load(self, name: str) -> Any:
        return getattr(self._dataset, name) if name else self._dataset
