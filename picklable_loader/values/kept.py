"""Kept: what people's ``state_dict`` has given, in the form in which a saved state has it.

It stands there as it is, if ``torch.load(weights_only=True)`` takes it. Numbers and arrays of
numpy's, dates and the like are written as what they are, and are again what they were when they
are given back.
"""

from __future__ import annotations

import copy
from typing import Any

from ..plain import NotPlain, decode, encode, is_plain

__all__ = ["keep", "kept"]

#: stands beside a state that is not written as it is
_ENCODED = "encoded"


def keep(saved: dict[str, Any], name: str, state: Any) -> None:
    """Put a copy of what a ``state_dict`` has given into a saved state, under that name."""
    if not is_plain(state):
        try:
            saved[name], saved[_ENCODED] = encode(state), True
            return
        except NotPlain:
            pass  # only pickle can hold it
    saved[name] = copy.deepcopy(state)


def kept(saved: dict[str, Any], name: str) -> Any:
    """What ``load_state_dict`` is to be given; shares nothing with the saved state.

    Raises:
        ValueError, TypeError, KeyError: the saved state is damaged.
    """
    return decode(saved[name]) if saved.get(_ENCODED) else copy.deepcopy(saved[name])
