"""An import within a batch moves none of its random numbers, whichever process imports first."""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import plain, random_states, seed_everything
from torch.utils.data import Dataset, IterableDataset

from picklable_loader import DataLoader

LIBRARY = "a_library_that_draws"
#: draws as ``rich`` does, and imports a module that does so, too
SOURCE = f"""
import random, numpy, torch
import {LIBRARY}_deep
DRAWN = random.random(), numpy.random.rand(), torch.rand(3)
random.seed(0)
"""
DEEP = "import random; random.random()"
BROKEN = "import random; random.random(); raise ImportError('half installed')"

Forget = Callable[[], None]


@pytest.fixture
def forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forget:
    """Forget the library, which a program can import."""
    for name, source in ((LIBRARY, SOURCE), (f"{LIBRARY}_deep", DEEP), ("broken_here", BROKEN)):
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    def forgotten() -> None:
        for name in (LIBRARY, f"{LIBRARY}_deep", "broken_here"):
            sys.modules.pop(name, None)

    return forgotten


def numbers() -> torch.Tensor:
    return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])


class Lazy(Dataset[Any]):
    """Imports within ``__getitem__``, so that workers start fast."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        importlib.import_module(LIBRARY)
        return index, numbers()


class LazyStream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        importlib.import_module(LIBRARY)
        for index in range(12):
            yield index, numbers()


class Broken(Lazy):
    """Does without a library that cannot be imported."""

    def __getitem__(self, index: int) -> Any:
        try:
            importlib.import_module("broken_here")
        except ImportError:
            pass
        return index, numbers()


class ThroughItsSpec(Lazy):
    """Executes a module as plug-in systems do."""

    def __getitem__(self, index: int) -> Any:
        if index % 5 == 0:
            spec = importlib.util.find_spec(LIBRARY)
            assert spec is not None and spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        return index, numbers()


class Never(Lazy):
    def __getitem__(self, index: int) -> Any:
        return index, numbers()


@pytest.mark.parametrize("seeding", ["batch", "sample"])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", [Lazy, Broken, ThroughItsSpec])
def test_batches_are_those_of_a_dataset_that_imports_nothing(
    kind: Any, workers: int, seeding: Any, forget: Forget
) -> None:
    def epoch(dataset: Any) -> Any:
        forget()
        loader = DataLoader(dataset, batch_size=4, seed=1, num_workers=workers, seeding=seeding)
        return [plain(batch) for batch in loader]

    assert epoch(kind()) == epoch(Never())


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize("seeding", ["batch", "worker"])
@pytest.mark.parametrize("dataset", [Lazy(), LazyStream()], ids=["map-style", "stream"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_in_a_process_that_has_not_imported_yet_is_exact(
    workers: int, dataset: Any, seeding: Any, forget: Forget
) -> None:
    def make() -> Any:
        return DataLoader(dataset, batch_size=2, seed=1, num_workers=workers, seeding=seeding)

    forget()
    loader = make()
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    rest = [plain(batch) for batch in iterator]
    forget()
    resumed = make()
    resumed.load_state_dict(state)
    assert [plain(batch) for batch in resumed] == rest


def test_batch_at_gives_the_batch_of_the_epoch(forget: Forget) -> None:
    loader = DataLoader(Lazy(), batch_size=4, seed=1)
    forget()
    batches = [plain(batch) for batch in loader]
    forget()
    assert plain(loader.batch_at(0)) == batches[0]


def test_an_import_of_the_program_draws_as_it_does_without_a_loader(forget: Forget) -> None:
    forget()
    seed_everything(7)
    importlib.import_module(LIBRARY)
    without = random_states()
    loader = DataLoader(Lazy(), batch_size=4, seed=1)
    iterator = iter(loader)
    next(iterator)
    forget()
    seed_everything(7)
    importlib.import_module(LIBRARY)
    assert random_states() == without
