"""Numbers by which messages refer to classes that no module has under their name.

cloudpickle gives a number to each class that it writes, and makes a class of that number once in a
process. Workers have such classes from a fork, or from their payload, so both sides know the
number. One example is a class from a notebook cell that was loaded elsewhere.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from ...saving.pickles.picklers import is_found


def numbered(kind: type[Any]) -> Any:
    """The pickled form of a class that both sides know by its number; None for all others."""
    tracker = sys.modules.get("cloudpickle.cloudpickle")
    if tracker is None:  # then nobody has given it one
        return None
    number = getattr(tracker, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {}).get(kind)
    return None if number is None or is_found(kind) else (of_number, (number,))


def of_number(number: str) -> Any:
    """The class that cloudpickle knows by a number; messages call this."""
    return import_module("cloudpickle.cloudpickle")._DYNAMIC_CLASS_TRACKER_BY_ID[number]
