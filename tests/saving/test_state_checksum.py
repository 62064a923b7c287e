"""A state that is not the one that was saved is refused; containers of other programs change none.

Damage that no other check can see is tried in each place of a state of each kind: a field is
missing, empty, another number, or another state's.
"""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from laws.codecs import by_weights_only
from laws.observe import expected_warnings, seed_everything, seen
from test_odd_states import BY_KIND, STATES
from torch.utils._pytree import tree_map
from zoo.hostile import at, changed, places, without
from zoo.orders import Cyclic, CyclicOrder

from picklable_loader import DataLoader, from_json, register_order, to_json
from picklable_loader.errors import CannotSaveError, DamagedStateError, StateError, StateMismatch
from picklable_loader.saving.states.tree import with_checksum


@cache
def saved(kind: str, step: int = 2) -> Any:
    """A state, and how its epoch and the next one go on."""
    seed_everything(1)
    loader = STATES[kind]()
    iterator = iter(loader)
    assert len(seen(iterator, step)) == step
    state = iterator.state_dict()
    iterator.close()
    return state


def checksum_of(state: Any) -> Any:
    return with_checksum(state)["checksum"]


def others(state: Any, path: tuple[Any, ...]) -> Iterator[Any]:
    """The state with another value of the same kind in that place, or with none."""
    value = at(state, path)
    if type(value) not in (dict, list) or value:
        yield without(state, path)
    if value is not None:
        yield changed(state, path, None)
    if type(value) is bool:
        yield changed(state, path, not value)
    elif type(value) in (int, float):
        yield from (changed(state, path, value + step) for step in (-1, 1))
    elif type(value) is str:
        yield changed(state, path, value[:-1] + ("A" if value[-1:] != "A" else "B"))
    elif type(value) is torch.Tensor and value.numel():
        yield changed(state, path, value.flip(0).add(1))
    elif type(value) is list and len(value) > 1 and value[0] is not value[-1]:
        yield changed(state, path, [*value[1:], value[0]]) if value[0] != value[-1] else None


def empty(state: Any, path: tuple[Any, ...]) -> bool:
    """Nothing but empty dicts is there."""
    value = at(state, path)
    return type(value) is dict and all(empty(value, (name,)) for name in value)


@BY_KIND
def test_a_state_in_which_anything_has_changed_is_refused(kind: str) -> None:
    state, loader = saved(kind), STATES[kind]()
    before = loader.state_dict()["checksum"]
    for path in places(state):
        for other in others(state, path):
            if other is None or (path == ("checksum",) and "checksum" not in other):
                continue
            with pytest.raises(StateError):
                loader.load_state_dict(other)
    assert loader.state_dict()["checksum"] == before


@BY_KIND
def test_a_state_with_a_part_of_another_one_is_refused(kind: str) -> None:
    """As where a program loads into the state of a new loader, and some fields stay."""
    state, other, loader = saved(kind), saved(kind, 1), STATES[kind]()
    for name in state.keys() | other.keys():
        merged = {**state, name: other[name]} if name in other else without(state, (name,))
        if checksum_of(merged) != state["checksum"]:
            with pytest.raises(StateError):
                loader.load_state_dict(merged)


def test_a_state_of_two_loaders_is_refused_and_the_way_out_is_named() -> None:
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        iterator = iter(DataLoader(range(12), batch_size=3, shuffle=True))
        next(iterator)
        states.append(iterator.state_dict())
    loader = DataLoader(range(12), batch_size=3, shuffle=True)
    mixed = {**states[0], "order": states[1]["order"]}
    with pytest.raises(DamagedStateError, match="delete its field 'checksum'") as raised:
        loader.load_state_dict(mixed)
    assert raised.value.field == "checksum"
    del mixed["checksum"]  # on purpose
    loader.load_state_dict(mixed)
    assert len(list(loader)) == 3


def test_a_fingerprint_that_differs_is_said_before_the_checksum() -> None:
    state = saved("shuffled")
    state = {**state, "fits": {**state["fits"], "batch_size": 7}}
    with pytest.raises(StateMismatch, match="batch_size"):
        STATES["shuffled"]().load_state_dict(state)


# --- other programs' containers ------------------------------------------------------------------


def ordered(part: Any) -> Any:
    if type(part) is dict:
        return OrderedDict((name, ordered(each)) for name, each in reversed(part.items()))
    return [ordered(each) for each in part] if type(part) is list else part


def through_dcp(state: Any) -> Any:
    """Flattened as ``torch.distributed.checkpoint`` does, which loses empty dicts."""
    from torch.distributed.checkpoint import _nested_dict  # 50 MB, which each later fork copies

    flat, mappings = _nested_dict.flatten_state_dict({"app": {"data": state}})
    return _nested_dict.unflatten_state_dict(flat, mappings)["app"]["data"]


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "a tree of torch's": lambda state: tree_map(lambda leaf: leaf, state),
    "torch.distributed.checkpoint": through_dcp,
    "ordered dicts": ordered,
    "an ordered dict in a file": lambda state: by_weights_only(ordered(state)),
    "to_json": lambda state: from_json(to_json(state)),
    "sorted JSON": lambda state: json.loads(json.dumps(state, sort_keys=True)),
}


@BY_KIND
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_state_goes_through_the_containers_of_other_programs(kind: str, program: str) -> None:
    state = saved(kind)
    try:
        passed = PROGRAMS[program](state)
    except TypeError:
        assert program == "sorted JSON"  # a tensor is no JSON
        return
    direct, loader = STATES[kind](), STATES[kind]()
    seed_everything(99)  # else both would go on from the program's own generators, as a pair
    direct.load_state_dict(state)
    loader.load_state_dict(passed)
    assert loader.state_dict()["checksum"] == direct.state_dict()["checksum"] == state["checksum"]
    with expected_warnings():
        assert seen(iter(loader), 2) == seen(iter(direct), 2)


def test_attributes_of_an_ordered_dict_are_not_called() -> None:
    for name in ("items", "get", "keys", "__iter__"):
        state = OrderedDict(saved("seed"))
        state.__dict__[name] = "no method"
        state["fits"] = OrderedDict(state["fits"])
        state["fits"].__dict__[name] = "no method"
        loader = STATES["seed"]()
        loader.load_state_dict(state)
        assert loader.state_dict() == saved("seed")


def test_a_tuple_of_some_program_is_refused_with_a_reason() -> None:
    with pytest.raises(DamagedStateError, match="a list, of which some program has made a tuple"):
        STATES["seed"]().load_state_dict({**saved("seed"), "window": ()})


# --- where states are written anew ---------------------------------------------------------------


def test_a_state_that_was_edited_is_not_moved_on() -> None:
    text = to_json(saved("seed")).replace('"$skip": 0', '"$skip": 1')
    assert from_json(text)["step"] == 3
    STATES["seed"]().load_state_dict(from_json(text))
    edited = text.replace('"position": ', '"position": 1')
    assert edited != text
    with pytest.raises(DamagedStateError, match="checksum"):
        from_json(edited)


def test_a_state_without_checksum_is_moved_on_without_one() -> None:
    state = {name: part for name, part in saved("seed").items() if name != "checksum"}
    text = to_json(state).replace('"$skip": 0', '"$skip": 1')
    assert "checksum" not in from_json(text)


def test_numbers_of_any_length_have_a_checksum() -> None:
    kind = "values of many kinds"
    state = without(saved(kind), ("checksum",))
    path = next(path for path in places(state) if path[-2:] == ("mark", "dataset"))
    huge = changed(state, path, {"as": "dict", "value": [["at", 10**5000]]})
    loader = STATES[kind]()
    loader.load_state_dict(huge)
    again = STATES[kind]()
    again.load_state_dict(copy.deepcopy(loader.state_dict()))
    assert again.state_dict()["checksum"] == loader.state_dict()["checksum"]


@BY_KIND
def test_each_state_of_a_pass_has_the_checksum_of_its_text(kind: str) -> None:
    """A pass writes again only what is different from its last state, which belongs to the user."""
    seed_everything(1)
    iterator = iter(STATES[kind]())
    for _ in zip(range(4), iterator):
        for draws in range(2):
            torch.rand(draws)
            state = iterator.state_dict()
            assert state["checksum"] == checksum_of(state)
            state["fits"].clear()
            state["rng"].clear()
    iterator.close()


@pytest.fixture
def of_an_order(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An iterator over an order that somebody has registered, whose state holds anything."""
    register_order(Cyclic, CyclicOrder)
    iterator = iter(DataLoader(range(4), sampler=Cyclic(4)))
    next(iterator)
    monkeypatch.setattr(CyclicOrder, "held", None)
    return iterator


def test_values_of_other_types_are_other_texts(of_an_order: Any) -> None:
    for CyclicOrder.held in (1, True, 1.0, None, {"a": 1}, {"a": True}):
        state = of_an_order.state_dict()
        assert state["checksum"] == checksum_of(state)


def test_the_state_of_an_order_that_is_no_plain_value_is_refused_when_it_is_saved(
    of_an_order: Any,
) -> None:
    CyclicOrder.held = {1, 2}
    with pytest.raises(CannotSaveError, match="set"):
        of_an_order.state_dict()
