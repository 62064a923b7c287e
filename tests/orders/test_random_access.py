"""Any index of an order by its position, without those before it: as a walk gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from picklable_loader import ShuffleSampler
from picklable_loader.core.order import RandomAccess
from picklable_loader.orders.torch_samplers import make_order
from picklable_loader.rng.source import Setting, Source

N = 70
SAMPLERS: dict[str, Callable[[], Any]] = {
    "in sequence": lambda: SequentialSampler(range(N)),
    "a list": lambda: [*range(N)][::-1],
    "a permutation": lambda: RandomSampler(range(N)),
    "three permutations": lambda: RandomSampler(range(25), num_samples=N),
    "32 at a time": lambda: RandomSampler(range(N), replacement=True),
    "a subset": lambda: SubsetRandomSampler([*range(100, 100 + N)]),
    "weights": lambda: WeightedRandomSampler([1.0] * N, N),
    "computed": lambda: ShuffleSampler(N),
}


def order(name: str) -> Any:
    return make_order(SAMPLERS[name](), Setting(Source(3, {})))


@pytest.mark.parametrize("name", SAMPLERS)
@given(st.lists(st.tuples(st.integers(0, N), st.integers(0, N), st.integers(1, 9)), max_size=5))
def test_indices_at_positions_are_those_of_a_walk(
    name: str, slices: list[tuple[int, int, int]]
) -> None:
    whole, sought = order(name).take(N), order(name)
    assert isinstance(sought, RandomAccess)
    for start, stop, step in slices:
        assert sought.at(range(start, stop, step)) == whole[start:stop:step]
    sought.seek(5)
    assert sought.take(4) == whole[5:9]
