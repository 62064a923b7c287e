"""The states of the random generators that something owns, as plain values.

A stream's state has these: a ``state_dict`` of people's often has the position only.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from .mt19937 import WORDS
from .owned import bits_of, ids_of_global, named, owned_in
from .reads import GENERATORS, Found, by_name
from .text import pack_words, unpack_words

#: numbers that numpy's Philox makes at a time
_BUFFERED = 4


def states_in(parts: dict[str, Any]) -> dict[str, Any]:
    """The states of the generators that some things own, by name, as numbers, text and arrays.

    Those of their classes and in global variables are left out: the loader seeds them.
    """
    states = {}
    for name, generator in _own(parts):
        with suppress(NotImplementedError):  # of a random.SystemRandom
            states[name] = _state_of(generator)
    return states


def put_back_in(parts: dict[str, Any], states: dict[str, Any]) -> None:
    """Put the generators that some things own at states of `states_in`.

    Raises:
        Exception: one is no state of its generator.
    """
    for name, generator in _own(parts) if states else ():
        if name in states:
            _put_back(generator, states[name])


def _own(parts: dict[str, Any]) -> Found:
    for path, name, generator in named(owned_in(parts, ids_of_global(), reads=False)):
        if isinstance(generator, GENERATORS) and not by_name(path):
            yield name, generator


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return pack_words(generator.get_state().numpy().tobytes())
    if isinstance(generator, random.Random):
        return generator.getstate()
    legacy = isinstance(generator, np.random.RandomState)
    state = generator.get_state(legacy=False) if legacy else bits_of(generator).state
    return json.loads(json.dumps(state, default=np.ndarray.tolist))  # arrays are no JSON


def _put_back(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        words = bytearray(unpack_words(state))
        generator.set_state(torch.frombuffer(words, dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        # numpy looks at no position, and would read beyond its numbers
        at = state["state"].get("pos", 0), state.get("buffer_pos", 0)
        if not (0 <= at[0] <= WORDS - 1 and 0 <= at[1] <= _BUFFERED):
            raise ValueError(f"a generator's position is out of range: {at}")
        if isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        else:
            bits_of(generator).state = state
