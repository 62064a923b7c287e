"""The program's own generators: saved with a state or a checkpoint, and put back on request."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import lists, random_states, seed_everything
from zoo.datasets import Noisy

import picklable_loader
from picklable_loader import DataLoader, from_json, merge_states, to_json
from picklable_loader.errors import DamagedStateError, StateMismatch, UsageError


def make(**options: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(), 3, shuffle=True, **options)


def drawn() -> tuple[float, ...]:
    return torch.rand(()).item(), np.random.rand(), random.gauss(0, 1), np.random.normal()


@pytest.mark.parametrize("seed", [5, None])
@pytest.mark.parametrize("json", [False, True])
def test_a_state_puts_them_back_if_it_is_asked_to(seed: int | None, json: bool) -> None:
    seed_everything(3)
    loader = make(seed=seed)
    iterator = iter(loader)
    next(iterator), drawn()
    state, before = loader.state_dict(save_rng=True), random_states()
    rest = [lists(iterator), drawn(), lists(loader), drawn()]
    if json:
        state = from_json(to_json(state))

    seed_everything(99)
    again, there = make(seed=seed), random_states()
    again.load_state_dict(state)
    assert random_states() == there
    again.load_state_dict(state, restore_rng=True)
    assert random_states() == before
    assert [lists(again), drawn(), lists(again), drawn()] == rest


def test_an_iterator_puts_them_back_as_well() -> None:
    iterator = iter(make(seed=1))
    next(iterator)
    state, numbers = iterator.state_dict(save_rng=True), drawn()
    iterator.load_state_dict(state, restore_rng=True)
    assert drawn() == numbers


def test_a_checkpoint_puts_them_back_if_it_is_asked_to(tmp_path: Path) -> None:
    path, iterator = tmp_path / "checkpoint", iter(make(seed=1))
    next(iterator)
    picklable_loader.save({"it": iterator, "step": 1}, path, save_rng=True)
    numbers, rest = drawn(), lists(iterator)
    assert drawn() != numbers
    found = picklable_loader.load(path, restore_rng=True)
    assert drawn() == numbers and found["step"] == 1 and lists(found["it"]) == rest
    before = random_states()
    assert picklable_loader.load(path).keys() == {"it", "step"}
    assert random_states() == before


def test_a_checkpoint_of_a_state_loads_without_code(tmp_path: Path) -> None:
    picklable_loader.save(make(seed=1).state_dict(), tmp_path / "checkpoint", save_rng=True)
    numbers = drawn()
    state = picklable_loader.load(tmp_path / "checkpoint", weights_only=True, restore_rng=True)
    assert drawn() == numbers
    make(seed=1).load_state_dict(state)


def test_they_must_have_been_saved(tmp_path: Path) -> None:
    loader = make(seed=1)
    before = random_states()
    for state in (loader.state_dict(), {}):
        with pytest.raises(UsageError, match="save it with save_rng=True"):
            loader.load_state_dict(state, restore_rng=True)
    picklable_loader.save(loader, tmp_path / "loader")
    with pytest.raises(UsageError, match="save it with save_rng=True"):
        picklable_loader.load(tmp_path / "loader", restore_rng=True)
    assert random_states() == before


def test_a_state_of_all_ranks_has_none_and_the_error_says_so() -> None:
    states = [make(seed=1, shard=(at, 2)).state_dict(save_rng=True) for at in range(2)]
    loader = make(seed=1, shard=(0, 2))
    with pytest.raises(UsageError, match="merge_states .* has none, as each rank has its own"):
        loader.load_state_dict(merge_states(states), restore_rng=True)
    loader.load_state_dict(merge_states(states))


def test_those_of_another_rank_are_refused_and_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    state = make(seed=1).state_dict(save_rng=True)
    monkeypatch.setenv("RANK", "0")
    loader, before = make(seed=1), random_states()
    with pytest.raises(StateMismatch, match="Each rank has generators of its own"):
        loader.load_state_dict(state, restore_rng=True)
    assert random_states() == before
    loader.load_state_dict(state)


@pytest.mark.parametrize("name", ["torch", "numpy", "python", "cuda", "rank", "another"])
def test_a_damaged_one_is_named_and_nothing_changes(name: str) -> None:
    loader = make(seed=1)
    state = json.loads(json.dumps(loader.state_dict(save_rng=True)))
    for bad in ("raw:AA==", 3, ["low:x"], None):
        del state["checksum"]
        state = {**state, "checksum": "0"}
        damaged = {**state, "program": {**state["program"], name: bad}}
        before = random_states()
        with pytest.raises((DamagedStateError, StateMismatch)) as caught:
            loader.load_state_dict(damaged, restore_rng=True)
        assert name in str(caught.value) or "program" in str(caught.value)
        assert random_states() == before


def test_a_state_of_cuda_devices_that_are_not_here_is_refused() -> None:
    loader = make(seed=1)
    state = loader.state_dict(save_rng=True)
    del state["checksum"]
    devices = torch.cuda.device_count() + 1
    state["program"]["cuda"] = ["raw:" + "A" * 22 + "=="] * devices
    with pytest.raises(StateMismatch, match="CUDA devices"):
        loader.load_state_dict(state, restore_rng=True)
