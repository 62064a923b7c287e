"""Seeds: their ranges, that they are all different, and their values for all time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picklable_loader.core.seeds import (
    base_seed,
    batch_seed,
    next_base_seed,
    order_seed,
    sample_seed,
    stream_seed,
)

#: each with the number of its arguments
SCHEME: dict[Callable[..., int], int] = {
    base_seed: 2,
    order_seed: 2,
    batch_seed: 2,
    next_base_seed: 1,
    sample_seed: 2,
    stream_seed: 3,
}

ANY = st.integers(0, 2**63) | st.integers(0, 10)
FUNCTIONS = pytest.mark.parametrize("function", SCHEME, ids=lambda function: function.__name__)

#: Computed once. A state that was saved with one version has to go on with the next: if one of
#: these changes, every saved epoch does.
GOLDEN: list[tuple[Callable[..., int], tuple[int, ...], int]] = [
    (base_seed, (0, 0), 4202868988412803970),
    (base_seed, (7, 3), 4034706580122563832),
    (base_seed, (-1, 0), 4421399806103615641),
    (order_seed, (0, 0), 3905590061890416901),
    (order_seed, (7, 3), 4139950803583124479),
    (batch_seed, (0, 0), 2574228547269533496),
    (batch_seed, (7, 11), 3592021100458273357),
    (batch_seed, (4611686018427387903, 1000000000), 621497112304041133),
    (next_base_seed, (0,), 167551176690540090),
    (next_base_seed, (7,), 4231185801110689337),
    (sample_seed, (0, 0), 3550978055711943097),
    (sample_seed, (7, 11), 4227049832972126386),
    (stream_seed, (0, 0, 0), 1216552238699106042),
    (stream_seed, (7, 1, 11), 1170453597097185197),
]


@pytest.mark.parametrize("function, numbers, expected", GOLDEN)
def test_a_seed_never_changes(
    function: Callable[..., int], numbers: tuple[int, ...], expected: int
) -> None:
    assert function(*numbers) == expected


@FUNCTIONS
@settings(deadline=None)
@given(st.data())
def test_a_seed_is_from_0_to_below_2_to_the_62(
    function: Callable[..., int], data: st.DataObject
) -> None:
    numbers = [data.draw(ANY) for _ in range(SCHEME[function])]
    seed = function(*numbers)
    assert type(seed) is int
    assert 0 <= seed < 2**62


@FUNCTIONS
def test_seeds_reach_both_ends_of_their_range(function: Callable[..., int]) -> None:
    more = [0] * (SCHEME[function] - 1)
    seeds = [function(*more, last) for last in range(1000)]
    assert min(seeds) < 2**56
    assert max(seeds) > 2**62 - 2**56


@FUNCTIONS
@settings(deadline=None)
@given(st.data())
def test_other_numbers_give_another_seed(function: Callable[..., int], data: st.DataObject) -> None:
    numbers = st.tuples(*[ANY] * SCHEME[function])
    one, other = data.draw(numbers), data.draw(numbers)
    assert (function(*one) == function(*other)) is (one == other)


@FUNCTIONS
def test_each_argument_counts_in_its_place(function: Callable[..., int]) -> None:
    numbers = list(product(range(3), repeat=SCHEME[function]))
    assert len({function(*each) for each in numbers}) == len(numbers)


def test_seeds_for_different_purposes_are_different() -> None:
    seeds = [
        function(*numbers)
        for function, count in SCHEME.items()
        for numbers in ([value] * count for value in range(200))
    ]
    assert len(set(seeds)) == len(seeds)


def test_digits_do_not_run_together() -> None:
    assert batch_seed(1, 11) != batch_seed(11, 1)
    assert base_seed(1, 23) != base_seed(12, 3)
    assert stream_seed(1, 2, 34) != stream_seed(1, 23, 4)


def test_the_seeds_of_many_epochs_are_all_different() -> None:
    bases = [base_seed(5, epoch) for epoch in range(50)]
    assert len({batch_seed(base, step) for base in bases for step in range(1000)}) == 50 * 1000
