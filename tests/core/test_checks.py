"""Checks of arguments: whole numbers, counts and choices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from picklable_loader.core.checks import check_choice, whole_number


def test_numpys_whole_numbers_are_whole_numbers() -> None:
    number = whole_number("seed", np.int64(-7))
    assert (number, type(number)) == (-7, int)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_whole_number_is_neither_a_bool_nor_a_fraction(value: Any) -> None:
    with pytest.raises(TypeError, match="seed should be a whole number"):
        whole_number("seed", value)


def test_a_count_is_from_1() -> None:
    assert whole_number("tasks", np.int64(1), 1) == 1
    with pytest.raises(ValueError, match="from 1, got tasks=0"):
        whole_number("tasks", 0, 1)


def test_a_choice_is_one_of_those_allowed() -> None:
    check_choice("tail", "pad", ("pad", "drop"))
    with pytest.raises(ValueError, match="one of 'pad', 'drop', got tail='cut'"):
        check_choice("tail", "cut", ("pad", "drop"))
