"""Permutation: bijective for every length and key, the same everywhere, and random to any test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picklable_loader.orders.permutation import MOST, Permutation

#: a network, and no list, with few enough cells to look at all of them
N = 1100

#: never to be changed: states of shuffled epochs go on with them
SMALL = [4, 1, 7, 6, 2, 3, 0, 5]
MIDDLE = [1861, 1642, 89, 627, 1250, 1346]
LARGE = [4086520334176126511, 3945065196240427434, 3755030121844843338]


def permuted(n: int, key: int) -> np.ndarray[Any, Any]:
    return Permutation(n, key)(np.arange(n, dtype=np.uint64)).astype(np.int64)


@pytest.fixture(scope="module")
def permutations() -> np.ndarray[Any, Any]:
    """One of each of 2,000 keys."""
    return np.stack([permuted(N, key) for key in range(2000)])


def deviations(counts: np.ndarray[Any, Any]) -> float:
    """By how many standard deviations a chi-square test of equal counts is off."""
    expected = counts.sum() / len(counts)
    found = ((counts - expected) ** 2 / expected).sum()
    return abs(float(found) - (len(counts) - 1)) / math.sqrt(2 * (len(counts) - 1))


def cycles(permutation: list[int]) -> int:
    seen, count = bytearray(len(permutation)), 0
    for start in range(len(permutation)):
        count += not seen[start]
        while not seen[start]:
            seen[start] = 1
            start = permutation[start]
    return count


def test_each_number_comes_once_for_all_small_lengths() -> None:
    for n in [*range(1500), 2**12, 5000, 2**13 + 1, 99_991, 10**5]:
        assert np.array_equal(np.sort(permuted(n, n)), np.arange(n))


@given(n=st.integers(1, MOST), key=st.integers(-(2**70), 2**70), data=st.data())
@settings(max_examples=200)
def test_numbers_of_any_length_are_below_it_and_differ(n: int, key: int, data: Any) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=50))
    found = Permutation(n, key)(np.array(positions, dtype=np.uint64)).tolist()
    assert all(0 <= number < n for number in found)
    assert len(set(found)) == len(positions)


@given(n=st.integers(1, 5000), key=st.integers(0, 2**64), data=st.data())
def test_a_number_does_not_depend_on_what_else_is_asked(n: int, key: int, data: Any) -> None:
    some = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    found = Permutation(n, key)(np.array(some, dtype=np.uint64))
    assert found.tolist() == permuted(n, key)[some].tolist()


def test_orders_are_those_of_the_first_release() -> None:
    assert permuted(8, 0).tolist() == SMALL
    assert permuted(2000, 7)[:6].tolist() == MIDDLE
    assert Permutation(MOST, 7)(np.arange(3, dtype=np.uint64)).tolist() == LARGE


def test_every_permutation_of_four_comes_equally_often() -> None:
    found = [permuted(4, key) @ [64, 16, 4, 1] for key in range(12_000)]
    counts = np.unique(found, return_counts=True)[1]
    assert len(counts) == 24 and deviations(counts) < 4


@pytest.mark.parametrize("position", [0, 1, 33, 34, 550, N - 2, N - 1])
def test_every_number_comes_equally_often_at_a_position(permutations: Any, position: int) -> None:
    counts = np.bincount(permutations[:, position] // 55, minlength=20)
    assert deviations(counts) < 5


@pytest.mark.parametrize("apart", [1, 2, 33, 34])
def test_neighbours_are_any_distance_apart(permutations: Any, apart: int) -> None:
    """The network's table has 34 rows: neighbours share a column, or a row."""
    distances = (permutations[:, apart:] - permutations[:, :-apart])[:, ::7] % N
    assert deviations(np.bincount(distances.ravel(), minlength=N)[1:]) < 5


@pytest.mark.parametrize("apart", [1, 33, 34])
def test_two_positions_are_independent(permutations: Any, apart: int) -> None:
    pairs = permutations[:, 0] // 110 * 10 + permutations[:, apart] // 110
    assert deviations(np.bincount(pairs, minlength=100)) < 5


def test_it_has_as_many_cycles_and_fixed_points_as_random_permutations(permutations: Any) -> None:
    fixed = (permutations == np.arange(N)).sum(axis=1)
    assert abs(fixed.mean() - 1) * math.sqrt(len(fixed)) < 5
    mean = sum(1 / k for k in range(1, N + 1))
    variance = sum(1 / k - 1 / k**2 for k in range(1, N + 1))
    counts = np.array([cycles(each.tolist()) for each in permutations[:500]])
    assert abs(counts.mean() - mean) / math.sqrt(variance / len(counts)) < 5
    odd = ((N - counts) % 2).mean()
    assert abs(odd - 0.5) * 2 * math.sqrt(len(counts)) < 5
