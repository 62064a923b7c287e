"""Keyed permutation of 0 to n - 1 with random access, in constant memory for any n up to 2**62.

A position is a pair (row, column) of a table with about sqrt(n) rows and columns. Each round
rotates the row by a hash of the column, then the column by a hash of the row. Each step can be
undone, so that the whole is a permutation of the table: a Feistel network, as in format-preserving
encryption (Black and Rogaway, 2002, "Ciphers with arbitrary finite domains"). The table has a few
cells more than n: a result beyond n goes through once more, until it is below n.

Up to `_LISTED` numbers are sorted by a hash each instead. A network of few cells reaches only a
part of all permutations: one of 3 x 3 cells gives even ones only.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.uint64]]

#: largest n: products of two halves stay within 64 bits
MOST = 2**62

_LISTED = 2**10
#: tests/orders/test_permutation.py: two rounds fail, three pass; six leave a margin
_ROUNDS = 6
_HALF = np.uint64(32)


class Permutation:
    """A permutation of 0 to ``n - 1`` that looks random; equal keys give equal ones.

    Results are the same on every machine and under every version of numpy.

    Args:
        n: from 0 to 2**62.
        key: any whole number; its lowest 64 bits count.
    """

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        self._rows = np.uint64(max(1, math.isqrt(max(0, n - 1)) + 1))
        self._columns = np.uint64(max(1, -(-n // int(self._rows))))
        words = _words(key, 4 * _ROUNDS)
        self._steps = [
            (np.uint64(add), np.uint64(multiply | 1))  # an odd factor loses no bits
            for add, multiply in zip(words[::2], words[1::2])
        ]
        self._listed: Numbers | None = None
        if n <= _LISTED:
            hashed = _hashed(np.arange(n, dtype=np.uint64), *self._steps[0])
            hashed = _hashed(hashed, *self._steps[1])
            self._listed = np.argsort(hashed, kind="stable").astype(np.uint64)

    def __call__(self, positions: Numbers) -> Numbers:
        """The numbers at some positions.

        Args:
            positions: from 0 to ``n - 1``, as uint64; a few thousand at once are fastest.
        """
        if self._listed is not None:
            return cast(Numbers, self._listed[positions])
        found = self._through(positions)
        while (beyond := found >= np.uint64(self.n)).any():
            found[beyond] = self._through(found[beyond])
        return found

    def _through(self, cells: Numbers) -> Numbers:
        rows, columns = self._rows, self._columns
        column = cells // rows
        row: Numbers = cells - column * rows
        for first in range(0, 2 * _ROUNDS, 2):
            _rotate(row, rows, _hashed(column, *self._steps[first]))
            _rotate(column, columns, _hashed(row, *self._steps[first + 1]))
        row += column * rows
        return row


def _hashed(numbers: Numbers, add: np.uint64, multiply: np.uint64) -> Numbers:
    """64 bits for each number, of which the upper half is well mixed."""
    found = numbers + add
    found *= multiply
    found ^= found >> _HALF
    found *= multiply
    return found


def _rotate(numbers: Numbers, limit: np.uint64, by: Numbers) -> None:
    """Add to each number, modulo ``limit`` (at most 2**31 + 1), a share of the hash in ``by``."""
    by >>= _HALF
    by *= limit
    by >>= _HALF
    numbers += by
    np.subtract(numbers, limit, out=by)  # below zero, this is a huge number: the smaller one is it
    np.minimum(numbers, by, out=numbers)


def _words(key: int, count: int) -> list[int]:
    """Numbers of 64 bits: SplitMix64 (Steele, Lea and Flood, 2014) from ``key``."""
    state, words = key % 2**64, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        word = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        words.append(word ^ word >> 31)
    return words
