"""Classes: how a message refers to one that stands under no name, and that both sides know.

cloudpickle gives a number to each class that it writes, and makes one of that number once in a
process. Workers have them from a fork, or from their cargo; so the number says which class is
meant. A class that a notebook has typed in, and that was loaded elsewhere, is one.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from ...saving.pickles.picklers import is_found

__all__ = ["numbered"]


def numbered(kind: type[Any]) -> Any:
    """What pickles as a class that both sides know by its number; None for all others."""
    tracker = sys.modules.get("cloudpickle.cloudpickle")
    if tracker is None:  # then nobody has given it one
        return None
    number = getattr(tracker, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {}).get(kind)
    return None if number is None or is_found(kind) else (of_number, (number,))


def of_number(number: str) -> Any:
    """The class that cloudpickle knows by a number; messages call this."""
    return import_module("cloudpickle.cloudpickle")._DYNAMIC_CLASS_TRACKER_BY_ID[number]
