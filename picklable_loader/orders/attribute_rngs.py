"""Random number generators in a sampler's attributes: their states as plain values, and back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random.bit_generator import SeedlessSeedSequence

from ..rng.generators import generator_to_text, set_generator


def spawned(value: Any) -> int | None:
    """How many seeds were spawned from a numpy generator; its state does not say it."""
    bits = getattr(value, "bit_generator", value)
    return getattr(getattr(bits, "seed_seq", None), "n_children_spawned", None)


def _random_state(value: random.Random) -> list[Any]:
    version, words, gauss = random.Random.getstate(value)  # a subclass may add to its own
    return [version, list(words), gauss]


def _numpy_state(value: np.random.RandomState) -> list[Any]:
    state: Any = value.get_state(legacy=True)
    name, key, position, has_gauss, gauss = state
    return [name, key.tolist(), position, has_gauss, gauss]


def _set_numpy_state(rng: np.random.RandomState, state: Any) -> None:
    name, key, position, has_gauss, gauss = state
    _check_position(position, 624)
    rng.set_state((name, key, position, has_gauss, gauss))


def _set_bits(bits: np.random.BitGenerator, state: Any) -> None:
    if state["bit_generator"] == "MT19937":
        _check_position(state["state"]["pos"], 624)
    if "buffer_pos" in state:
        _check_position(state["buffer_pos"], 4)
    bits.state = state


def _check_position(position: Any, most: int) -> None:
    """Raise ValueError unless a generator can have this position: numpy reads memory at any."""
    if type(position) is not int or not 0 <= position <= most:
        raise ValueError(f"a generator's position is from 0 to {most}, and not {position!r}")


def _numbers(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _numbers(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray | np.generic) else state


#: what numpy's generators draw bits from, by the names in their states
_BITS: dict[str, Any] = {
    name: kind
    for name, kind in vars(np.random).items()
    if isinstance(kind, type) and issubclass(kind, np.random.BitGenerator)
}


def _bits(state: Any) -> Any:
    """A new bit generator for a saved state. No state has the seeds, so it refuses to spawn."""
    bits = _BITS[state["bit_generator"]]()
    bits.__setstate__((bits.state, SeedlessSeedSequence()))
    return bits


class _Rng(NamedTuple):
    """How random number generators of a kind are saved."""

    kind: type[Any]
    save: Callable[[Any], Any]
    restore: Callable[[Any, Any], object]
    #: a new one, for a saved state
    make: Callable[[Any], Any]


ATTRIBUTE_RNGS = {
    "generator": _Rng(
        torch.Generator,
        save=generator_to_text,
        restore=set_generator,
        make=lambda _: torch.Generator(),
    ),
    "random": _Rng(
        random.Random,
        save=_random_state,
        restore=lambda rng, state: random.Random.setstate(
            rng, (state[0], tuple(state[1]), state[2])
        ),
        make=lambda _: random.Random(),
    ),
    "RandomState": _Rng(
        np.random.RandomState,
        save=_numpy_state,
        restore=_set_numpy_state,
        make=lambda _: np.random.RandomState(),
    ),
    "BitGenerator": _Rng(
        np.random.BitGenerator,
        save=lambda bits: _numbers(bits.state),
        restore=_set_bits,
        make=_bits,
    ),
    "Generator": _Rng(
        np.random.Generator,
        save=lambda rng: _numbers(rng.bit_generator.state),
        restore=lambda rng, state: _set_bits(rng.bit_generator, state),
        make=lambda state: np.random.Generator(_bits(state)),
    ),
}
