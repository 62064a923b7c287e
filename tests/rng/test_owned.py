"""The states of generators that something owns."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from zoo.streams import Jitter

from picklable_loader.rng.owned import put_back_in, states_in

BITS = [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64]


def parts(thing: Any) -> dict[str, Any]:
    return {"dataset": thing}


def test_all_generators_go_on_where_their_states_were_taken() -> None:
    sample = torch.zeros(())
    owner, other = Jitter(), Jitter()
    owner(sample)  # gauss and randn make numbers in pairs
    put_back_in(parts(other), states_in(parts(owner)))
    assert [owner(sample) for _ in range(700)] == [other(sample) for _ in range(700)]


@pytest.mark.parametrize("kind", BITS)
def test_a_generator_of_any_kind_of_bits_goes_on_where_its_state_was_taken(kind: Any) -> None:
    owner, other = [np.random.Generator(kind(1))], [np.random.Generator(kind(2))]
    owner[0].integers(0, 9, size=3, dtype=np.uint32)  # half of a number of 64 bits is used
    put_back_in(parts(other), states_in(parts(owner)))
    assert np.array_equal(owner[0].random(700), other[0].random(700))


def test_generators_of_classes_and_of_the_program_and_those_without_a_state_are_left_out() -> None:
    class Owner:
        shared = random.Random(1)

        def __init__(self) -> None:
            self.system, self.program = random.SystemRandom(), torch.default_generator

    assert states_in(parts(Owner())) == {}


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.Philox])
def test_a_position_beyond_the_numbers_of_a_generator_is_refused_as_numpy_reads_there(
    kind: Any,
) -> None:
    owner = [np.random.Generator(kind(1))]
    [(name, state)] = states_in(parts(owner)).items()
    for position in (-1, 10**6):
        if kind is np.random.MT19937:
            state["state"]["pos"] = position
        else:
            state["buffer_pos"] = position
        with pytest.raises(ValueError, match=f"out of range: .*{position}"):
            put_back_in(parts(owner), {name: state})
    owner[0].random()
