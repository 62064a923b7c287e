"""``to_json`` and ``from_json``: bit for bit, readable, editable; what is damaged is named."""

from __future__ import annotations

import json
import math
import pickle
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.observe import seed_everything, seen
from torch.utils.data import Sampler
from zoo.datasets import Noisy
from zoo.hostile import bounded
from zoo.streams import StatefulIterator

from picklable_loader import DataLoader, from_json, to_json
from picklable_loader.errors import (
    CannotSaveError,
    DamagedStateError,
    ForeignStateError,
    UsageError,
)


def make(**more: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(20), **{"batch_size": 3, "shuffle": True, "seed": 7, **more})


def state_after(steps: int, **more: Any) -> dict[str, Any]:
    iterator = iter(make(**more))
    assert len(seen(iterator, steps)) == steps
    return iterator.state_dict()


def assert_same(one: Any, other: Any) -> None:
    """Equal to the bit, of the same types, in the same order."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert_same(list(one.items()), list(other.items()))
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for each, like in zip(one, other, strict=True):
            assert_same(each, like)
    elif isinstance(one, float):
        assert struct.pack(">d", one) == struct.pack(">d", other)
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.requires_grad == other.requires_grad
        one_flat, other_flat = (each.detach().resolve_conj().reshape(-1) for each in (one, other))
        assert torch.equal(one_flat.view(torch.uint8), other_flat.view(torch.uint8))
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    else:
        assert one == other


# --- there and back ------------------------------------------------------------------------------

RECORDS = np.dtype(
    [("point", [("x", "i2"), ("y", "f4")]), ("name", "U2"), ("pair", "u1", (2,))], align=True
)
ODD = [
    math.nan,
    math.inf,
    -math.inf,
    -0.0,
    5e-324,
    struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0],
    2**64,
    -(2**200),
    2**5000,
    -(2**20000),
    True,
    None,
    "",
    "\ud83d\ude00",
    '\U0001f600 \u2028 \0 "\\',
    b"",
    b"\0\xff",
    (),
    ((1,), [(2, "x")]),
    {1: 2, "1": 3, (1, 2): None, b"k": True},
    {"$type": "tuple", "items": [1]},
    {"$skip": 3, "format": "picklable_loader"},
    {"as": "tuple", "value": [1]},
    {},
    [],
    [[], {}],
    {3, 4},
    torch.tensor(3.5),
    torch.tensor([[1, 2], [3, 4]], dtype=torch.int8)[:, 1:],
    torch.tensor([True, False]),
    torch.tensor([math.nan, -0.0], dtype=torch.bfloat16),
    torch.tensor([1 + 2j]).conj(),
    torch.empty(0, 3),
    torch.ones(2, requires_grad=True),
    np.float32(0.1),
    np.arange(4.0).reshape(2, 2),
    np.datetime64("2024-02-29", "ns"),
    np.longdouble("0.1"),
    np.zeros((2, 0), RECORDS),
    np.array([((1, 2.5), "ab", [3, 4])], RECORDS),
    bytearray(b"\0a"),
    torch.float16,
    torch.Size([2, 3]),
    torch.device("cpu"),
]


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_what_json_has_no_word_for_comes_back_to_the_bit(value: Any) -> None:
    assert_same(from_json(to_json(value)), value)
    assert_same(from_json(to_json({"a": [value], "b": value})), {"a": [value], "b": value})


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.sampled_from(["$type", "$skip", "$"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner)
    | st.lists(inner).map(tuple)
    | st.dictionaries(KEYS, inner, max_size=4),
)


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_anything_plain_comes_back(value: Any) -> None:
    assert_same(from_json(to_json(value)), value)


class Holding(Sampler[int]):
    """Has something odd in its state."""

    def __init__(self, held: Any) -> None:
        self.at, self.held = 0, held

    def __iter__(self) -> Iterator[int]:
        while self.at < 6:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def __len__(self) -> int:
        return 6

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "held": self.held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.held = state["at"], state["held"]


def test_a_sampler_may_hold_what_compares_in_its_own_way() -> None:
    iterator = iter(DataLoader(range(6), sampler=Holding(np.zeros(2, RECORDS))))
    assert [int(next(iterator)), int(next(iterator))] == [0, 1]
    other = DataLoader(range(6), sampler=Holding(None))
    other.load_state_dict(iterator.state_dict())
    assert list(other) == list(iterator)
    assert other.sampler.held.dtype == RECORDS


@pytest.mark.parametrize(
    "held", [np.array([{}]), torch.eye(2).to_sparse()], ids=["objects", "sparse"]
)
def test_what_no_state_can_hold_is_named_and_a_pickle_holds_it(held: Any) -> None:
    iterator = iter(DataLoader(range(6), sampler=Holding([1, (2, held)])))
    assert [int(next(iterator)), int(next(iterator))] == [0, 1]
    with pytest.raises(
        CannotSaveError, match=r"sampler: \['held'\]\[1\]\[1\] cannot be saved"
    ) as raised:
        iterator.state_dict()
    assert "pickle the iterator" in raised.value.advice
    again = pickle.loads(pickle.dumps(iterator))
    with pytest.raises(CannotSaveError, match="came in a pickle"):
        again.state_dict()
    assert list(again) == list(iterator)
    assert type(again.loader.sampler.held[1][1]) is type(held)


def test_what_is_no_text_is_not_read() -> None:
    with pytest.raises(UsageError, match="got a dict. A state that is a dict already goes to"):
        from_json(state_after(2))  # type: ignore[arg-type]


def test_a_whole_checkpoint_may_be_written() -> None:
    saved = {"model": torch.nn.Linear(2, 1).state_dict(), "data": state_after(2), "step": 2}
    saved["model"] = {name: tensor.detach() for name, tensor in saved["model"].items()}
    assert_same(from_json(to_json(saved)), saved)


# --- for people ----------------------------------------------------------------------------------


def test_a_state_reads_like_this() -> None:
    loader: Any = DataLoader(range(100), batch_size=8, shuffle=True, seed=1)
    it = iter(loader)
    next(it)
    lines = to_json(it.state_dict()).splitlines()
    assert lines[:9] == [
        "{",
        '  "$skip": 0,',
        '  "format": "picklable_loader",',
        '  "version": 1,',
        '  "epoch": 0,',
        '  "step": 1,',
        '  "next_step": 1,',
        '  "position": 8,',
        '  "window": [],',
    ]
    assert '    "batch_size": 8,' in lines


def test_two_states_of_a_run_differ_in_the_lines_that_say_where_it_stands() -> None:
    one, other = (to_json(state_after(steps)).splitlines() for steps in (2, 4))
    changed = [line.split(":")[0].strip() for line, like in zip(one, other) if line != like]
    assert len(one) == len(other)
    assert changed == ['"step"', '"next_step"', '"position"', '"checksum"']


def test_no_line_is_long_for_its_numbers_and_short_lists_stand_on_one() -> None:
    text = to_json({"short": [1, 2, 3], "long": list(range(1000)), "pairs": [[1, 2], [3, 4]]})
    assert '"short": [1, 2, 3]' in text and '"pairs": [[1, 2], [3, 4]]' in text
    assert max(map(len, text.splitlines())) <= 110
    assert 30 < text.count("\n") < 80


def test_any_reader_of_json_reads_it() -> None:
    assert json.loads(to_json(state_after(2)))["step"] == 2


def test_a_state_that_another_reader_has_read_is_refused_with_the_way_out() -> None:
    with pytest.raises(ForeignStateError, match=r"json\.loads.*from_json"):
        make().load_state_dict(json.loads(to_json(state_after(2))))


# --- edited --------------------------------------------------------------------------------------


def test_a_state_is_moved_on_by_editing_one_number() -> None:
    iterator = iter(make())
    next(iterator)
    text = to_json(iterator.state_dict()).replace('"$skip": 0', '"$skip": 4')
    assert iterator.skip(4) == 4
    moved = from_json(text)
    assert moved == iterator.state_dict()
    loader = make()
    loader.load_state_dict(moved)
    assert seen(iter(loader)) == seen(iterator)


def test_a_state_inside_of_a_checkpoint_is_moved_on_too() -> None:
    text = to_json({"data": state_after(1), "lr": 0.1}).replace('"$skip": 0', '"$skip": 2')
    assert from_json(text)["data"]["step"] == 3


def test_a_state_that_cannot_be_moved_on_exactly_is_refused_and_the_way_out_is_named() -> None:
    iterator = iter(DataLoader(StatefulIterator(), batch_size=3))
    next(iterator)
    text = to_json(iterator.state_dict()).replace('"$skip": 0', '"$skip": 1')
    with pytest.raises(UsageError, match=r"streams(.|\n)*it\.skip"):
        from_json(text)


def test_fields_that_hang_together_are_refused_if_one_of_them_was_edited() -> None:
    text = to_json(state_after(2)).replace('"step": 2', '"step": 5', 1)
    with pytest.raises(DamagedStateError, match="'step' should be at most 2"):
        make().load_state_dict(from_json(text))


@pytest.mark.parametrize("count", ["-1", "1.5", "true", '"2"', "null", "[1]"])
def test_the_number_is_one_of_batches(count: str) -> None:
    text = to_json(state_after(2)).replace('"$skip": 0', f'"$skip": {count}')
    with pytest.raises(DamagedStateError, match=r"state\.\$skip.*batches"):
        from_json(text)


# --- damaged -------------------------------------------------------------------------------------

BASE = to_json(state_after(1))
WRONG = {
    "": "line 1, column 1",
    BASE[: len(BASE) // 2]: "line",
    BASE.replace(",", "", 1): "line 3, column 3",
    BASE.replace('"epoch": 0', '"epoch": 0, "epoch": 1'): "epoch",
    '{"a": NaN}': "NaN",
    '{"a": 1' + "0" * 5000 + "}": "state",
    '{"b": {"a": 1, "a": 2}}': "'a'",
    '{"a": [-Infinity]}': "state",
    "1" * 10**6: "state",
    "[" * 10**6: "nested",
    '{"a":' * 10**6: "nested",
    '{"$type":"tuple","items":[' * 10**5: "nested",
    '{"a": [{"$type": "bomb"}]}': r"state\.a\[0\]",
    '{"a": {"$type": ["tuple"]}}': r"state\.a",
    '{"a": {"$type": {"a": 1}}}': r"state\.a",
    '{"a": {"$type": "tuple"}}': r"state\.a",
    '{"a": {"$type": "dict", "items": [[[], 1]]}}': r"state\.a",
    '{"a": {"$type": "bytes", "base64": "?"}}': r"state\.a",
    '{"a": {"$type": "float", "bits": "7f"}}': r"state\.a",
    '{"a": {"$type": "plain", "value": {"as": "eval", "value": "1"}}}': r"state\.a",
    '{"$type": "plain", "value": {"as": "number", "dtype": "V", "value": 1099511627776}}': "state",
    '{"a": {"$type": "Tensor", "dtype": "load", "shape": [], "base64": ""}}': r"state\.a",
    '{"a": {"$type": "Tensor", "dtype": "int8", "shape": [-1], "base64": "AA=="}}': r"state\.a",
    '{"$type": "Tensor", "dtype": "int8", "shape": [1099511627776], "base64": "AA=="}': "state",
    '{"$type": "Tensor", "dtype": "int8", "shape": [65536, 65536, -1], "base64": ""}': "state",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:40])
def test_what_is_damaged_is_named(text: str) -> None:
    with bounded(), pytest.raises(DamagedStateError, match=WRONG[text]) as raised:
        from_json(text)
    assert str(raised.value).count("Nothing was loaded") == 1


def test_what_json_cannot_hold_is_named_with_its_place() -> None:
    with pytest.raises(CannotSaveError, match=r"state\.a\[1\].*set_of_ours"):
        to_json({"a": [0, type("set_of_ours", (set,), {})()]})
    with pytest.raises(CannotSaveError, match="sparse"):
        to_json({"a": torch.eye(3).to_sparse()})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CannotSaveError, match="contains itself"):
        to_json(endless)


def test_reading_moves_no_generator() -> None:
    seed_everything(3)
    text, before = to_json(state_after(1)), torch.get_rng_state()
    from_json(text.replace('"$skip": 0', '"$skip": 2'))
    assert torch.equal(torch.get_rng_state(), before)
