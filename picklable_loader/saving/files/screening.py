"""Loads a checkpoint's body without running code, and explains the failures of torch's reader."""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO

import torch

from ...errors import DamagedStateError, UsageError
from .archive import Archive


def load_screened(body: BinaryIO, name: str, map_location: Any) -> Any:
    """Load the contents of a body without running code.

    Raises:
        DamagedStateError: torch.save has not written it.
        UsageError: there is more in it than states and tensors.
        Exception: what ``map_location`` raises, and what torch raises about memory or a device.
    """
    Archive(body, name).check()
    try:
        return _read(body, map_location)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{name!r} holds more than states and tensors, for example an iterator. An iterator is "
            "code, and loading it runs that code. Save state_dict() of the iterator instead; or "
            "pass weights_only=False if you trust whoever wrote the file"
        ) from error
    except MemoryError:
        raise
    except Exception as error:
        try:
            _read(body, "cpu")
        except Exception:
            raise DamagedStateError(name, "what torch reads without code", error) from error
        raise  # the error is the caller's: of map_location, or of a device that is not here


def _read(body: BinaryIO, map_location: Any) -> Any:
    body.seek(0)
    return torch.load(body, map_location=map_location, weights_only=True)
