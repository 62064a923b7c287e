"""Options: one list of what the loader takes beyond torch's arguments, and all that repeats it."""

from __future__ import annotations

import inspect
import random
import re
from dataclasses import fields
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

from picklable_loader import DataLoader
from picklable_loader.epoch.options import Options
from picklable_loader.tools.bench.subject import Subject

pytestmark = pytest.mark.inline

NAMES = [field.name for field in fields(Options)]

#: a value for each option that is not its default; together they have a meaning
OTHER: dict[str, Any] = {
    "seed": 5,
    "seeding": "sample",
    "schedule": "round_robin",
    "seed_hooks": (random.seed,),
    "at_epoch_end": "next",
    "transport": "portable",
    "prefetch_budget": 7,
    "prefetch_bytes": "3MiB",
    "num_streams": 3,
    "snapshot_every_n_steps": 4,
    "max_task_deaths": 2,
    "on_timeout": "restart",
    "on_error": "skip",
    "codec": "pickle",
    "pickle_dataset": False,
    "pickle_mapped": False,
}


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def test_the_signature_has_torchs_arguments_and_then_the_options() -> None:
    ours, torchs = parameters(DataLoader.__init__), parameters(TorchDataLoader.__init__)
    assert list(ours) == [*torchs, *NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_default_is_the_same_wherever_it_is_said(name: str) -> None:
    [field] = (each for each in fields(Options) if each.name == name)
    assert parameters(DataLoader.__init__)[name].default == field.default


def test_each_option_is_described_in_the_order_of_the_signature() -> None:
    described = re.findall(r"^        (\w+): ", DataLoader.__doc__ or "", re.MULTILINE)
    assert [name for name in described if name in NAMES] == NAMES


def test_the_options_of_these_tests_are_all_that_there_are() -> None:
    assert list(OTHER) == NAMES
    assert all(OTHER[field.name] != field.default for field in fields(Options))


def test_each_argument_becomes_the_option_of_its_name() -> None:
    loader = DataLoader(range(4), **OTHER)
    assert vars(loader._pl.options) == OTHER
    assert {name: getattr(loader, name) for name in NAMES} == OTHER


def test_the_bench_command_measures_a_loader_with_all_of_its_options() -> None:
    built: Any = Subject(DataLoader(range(4), **OTHER)).build("picklable_loader")
    assert vars(built._pl.options) == OTHER
    changed: Any = Subject(built).build("picklable_loader", 0, prefetch_budget="auto")
    assert vars(changed._pl.options) == {**OTHER, "prefetch_budget": "auto"}
