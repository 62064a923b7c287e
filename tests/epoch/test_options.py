"""Options: one list of what the loader takes beyond torch's arguments, and all that repeats it."""

from __future__ import annotations

import inspect
import pickle
import random
import re
import warnings
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader as TorchDataLoader

from picklable_loader import DataLoader
from picklable_loader.epoch.options import Options
from picklable_loader.errors import LoaderWarning
from picklable_loader.tools.bench.subject import Subject

NAMES = [field.name for field in fields(Options)]

#: a value for each option that is not its default; together they have a meaning
OTHER: dict[str, Any] = {
    "seed": 5,
    "seeding": "sample",
    "schedule": "round_robin",
    "seed_hooks": (random.seed,),
    "seed_dataset": "off",
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
    "shard": (1, 2),
    "shard_tail": "drop",
    "remember": 2,
    "with_state": True,
    "worker_init_fn_arg": str,
    "worker_exit_fn": abs,
    "convert": list,
    "to_device": "cpu",
    "device_prefetch": 1,
    "device_convert": list,
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
    described = re.findall(r"^    (\w+): ", inspect.getdoc(DataLoader) or "", re.MULTILINE)
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


#: an option, values that it does not take, the error, and its text
REFUSED: list[tuple[str, list[Any], type[Exception], str]] = [
    ("seed", ["1", 1.0, True, np.float64(1)], TypeError, "seed should be a whole number"),
    ("seeding", ["epoch", None, 1], ValueError, "should be one of 'batch', 'sample', 'worker'"),
    ("schedule", ["random"], ValueError, "schedule should be one of"),
    ("seed_hooks", [[1]], TypeError, "seed_hooks should hold callables"),
    ("seed_dataset", [None, "worker", 3], ValueError, "seed_dataset should be .* a callable"),
    ("transport", ["pigeon", None], ValueError, "transport should be one of 'auto', 'arena'"),
    ("prefetch_budget", [0, -3], ValueError, "prefetch_budget should be from 1"),
    ("prefetch_budget", ["many"], ValueError, 'prefetch_budget should be "auto"'),
    ("prefetch_budget", [1.5, True], TypeError, "prefetch_budget should be a whole number"),
    ("prefetch_bytes", [-1], ValueError, "prefetch_bytes should be from 0"),
    ("prefetch_bytes", ["a lot", "512", "-1MB"], ValueError, "prefetch_bytes should be like"),
    ("prefetch_bytes", [1.5, True], TypeError, "prefetch_bytes should be a whole number"),
    ("num_streams", [0, -1], ValueError, "num_streams should be from 1"),
    ("num_streams", [1.5, "4"], TypeError, "num_streams should be a whole number"),
    ("snapshot_every_n_steps", [-3], ValueError, "snapshot_every_n_steps should be from 0"),
    ("snapshot_every_n_steps", [2.5, "often"], TypeError, "should be a whole number"),
    ("worker_init_fn_arg", [3], TypeError, "worker_init_fn_arg should be a callable"),
    ("to_device", ["cudda"], ValueError, "to_device should be a torch.device"),
    ("device_prefetch", [-1], ValueError, "device_prefetch should be from 0"),
    ("device_convert", [3], TypeError, "device_convert should be a callable"),
    ("worker_exit_fn", [3], TypeError, "worker_exit_fn should be a callable"),
]


@pytest.mark.parametrize(
    "name, value, error, text", [(n, v, error, text) for n, vs, error, text in REFUSED for v in vs]
)
def test_a_value_that_makes_no_sense_is_refused_at_once(
    name: str, value: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        DataLoader(range(4), **{name: value})


@pytest.mark.parametrize(
    "other, text",
    [
        ({"schedule": "balanced"}, "round_robin"),
        ({"num_streams": 3}, "num_streams cannot be given"),
    ],
)
def test_torchs_seeding_has_a_stream_for_each_worker_which_has_its_batches(
    other: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        DataLoader(range(4), seeding="worker", **other)


# --- options that are set later ------------------------------------------------------------------

FIXED = ["seed", "num_streams"]
OF_THE_MAIN_PROCESS = [
    *("at_epoch_end", "codec", "pickle_dataset", "pickle_mapped", "remember", "with_state"),
    *("worker_init_fn_arg", "to_device", "device_prefetch", "device_convert"),
]


def alone(name: str) -> dict[str, Any]:
    """The option with another value, without the others; it must have a meaning by itself."""
    return {name: OTHER[name]}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FIXED])
def test_an_option_that_is_set_later_is_the_one_that_a_new_loader_would_have(name: str) -> None:
    loader = DataLoader(range(4))
    next(iter(loader))
    setattr(loader, name, OTHER[name])
    built = DataLoader(range(4), **alone(name))
    expected = {**vars(built._pl.options), "prefetch_budget": loader.prefetch_budget}
    assert vars(loader._pl.options) == expected and getattr(loader, name) == OTHER[name]


@pytest.mark.parametrize("name", FIXED)
def test_an_option_that_decides_the_order_cannot_be_set_later(name: str) -> None:
    loader = DataLoader(range(4))
    with pytest.raises(ValueError, match=f"{name} decides the order of the data"):
        setattr(loader, name, OTHER[name])
    assert getattr(loader, name) is None
    setattr(loader, name, None)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_no_loader_takes_is_refused_when_it_is_set(name: str) -> None:
    loader, bad = DataLoader(range(4)), -1 if name != "seed_hooks" else [3]
    if name.startswith("pickle_"):
        return  # as truth values, all are taken
    with pytest.raises((ValueError, TypeError)):
        setattr(loader, name, bad)
    assert vars(loader._pl.options) == vars(DataLoader(range(4))._pl.options)


@pytest.mark.parametrize("name", NAMES)
def test_persistent_workers_that_have_the_old_value_forbid_a_new_one(name: str) -> None:
    loader = DataLoader(range(4), num_workers=1, persistent_workers=True)
    iterator: Any = iter(loader)
    list(iterator)
    if name in OF_THE_MAIN_PROCESS:
        setattr(loader, name, OTHER[name])
        assert getattr(loader._pl.options, name) == OTHER[name]
    else:
        with pytest.raises(ValueError, match=name):
            setattr(loader, name, OTHER[name])
    iterator.close()


class TurnsToWords(list[int]):
    """A dataset with one bad sample."""

    def __getitem__(self, index: Any) -> Any:
        if index == 1:
            raise KeyError(index)
        return super().__getitem__(index)


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.SkippedWarning")
def test_the_pass_at_hand_goes_on_with_the_old_value_and_the_next_one_has_the_new() -> None:
    loader = DataLoader(TurnsToWords(range(4)), batch_size=1)  # type: ignore[arg-type]
    iterator = iter(loader)
    next(iterator)
    loader.on_error = "skip"
    with pytest.raises(KeyError):
        next(iterator)
    assert [int(batch) for batch in loader] == [0, 2, 3]


def test_a_subclass_may_set_a_name_of_ours_before_torch_builds_the_loader() -> None:
    class Mine(DataLoader[int]):
        def __init__(self) -> None:
            self.schedule = "of its own"  # type: ignore[assignment]
            super().__init__(range(3))  # type: ignore[arg-type]

    assert Mine().schedule is None


def starts_with_anything(worker: int, argument: Any = None) -> None:
    """A ``worker_init_fn``."""


#: the batches of a pass are others with it; a pickle of the pass may be refused
DECIDES = [
    *("seeding", "seed_hooks", "seed_dataset", "on_error", "shard", "shard_tail", "with_state"),
    *("convert", "worker_init_fn_arg", "device_convert"),
]


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in (*FIXED, *DECIDES, "pickle_dataset")]
)
def test_a_pickle_of_a_pass_goes_on_under_an_option_that_decides_no_batch(name: str) -> None:
    loader = DataLoader(range(12), 2, shuffle=True, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    setattr(loader, name, OTHER[name])
    again = pickle.loads(pickle.dumps(iterator))
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in iterator]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "name, value", [("collate_fn", list), *((name, OTHER[name]) for name in DECIDES)]
)
def test_a_pickle_of_a_pass_warns_of_what_was_set_since_it_began(
    name: str, value: Any, num_workers: int
) -> None:
    needed: Any = {"seed": 1, "to_device": "cpu" if name == "device_convert" else None}
    loader = DataLoader(
        range(6), 2, num_workers=num_workers, worker_init_fn=starts_with_anything, **needed
    )
    iterator = iter(loader)
    next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pickle.dumps(iterator)
        setattr(loader, name, value)
        iterator.state_dict()  # the program that loads it has a loader of its own
    with pytest.warns(LoaderWarning, match=f"{name} of the loader was set in mid-epoch"):
        pickle.dumps(iterator)
    iterator = iter(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pickle.dumps(iterator)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_pickle_of_a_pass_warns_of_a_worker_init_fn_that_its_workers_have_not_called(
    persistent: bool,
) -> None:
    loader = DataLoader(range(6), 2, num_workers=1, persistent_workers=persistent)
    iterator = iter(loader)
    next(iterator)
    loader.worker_init_fn = starts_with_anything
    with pytest.warns(LoaderWarning, match="worker_init_fn of the loader was set in mid-epoch"):
        pickle.dumps(iterator)
    list(iterator)
    if persistent:
        with pytest.warns(LoaderWarning, match="worker_init_fn has changed since the persistent"):
            iter(loader)
