"""verify_resume passes what resumes, and finds planted faults."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info
from zoo.streams import Generated, SavedWalk, StatefulDataset, StatefulIterator

from picklable_loader import DataLoader, current_seed
from picklable_loader.testing import ResumeError, verify_resume


class Noisy(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 14

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()])


class Lazy(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        for _ in range(14):
            yield random.randrange(14)


class Reseeding(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from random.Random(os.urandom(8)).sample(range(14), 14)


class Forgets(SavedWalk):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Forgetful(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return Forgets(range(14))


class Counting(Noisy):
    asked = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        return torch.tensor([index, self.asked])


class UnknownGenerator(Noisy):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, np.random.default_rng().random()])


class KnownGenerator(Noisy):
    def __getitem__(self, index: int) -> torch.Tensor:
        rng = np.random.default_rng((current_seed(), index))
        return torch.tensor([index, rng.random()])


class Unrepeatable(Generated):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(15):
            yield torch.tensor([index, np.random.default_rng().random()])


class Misplaced(StatefulDataset):
    """Goes on one sample too late."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"] + 1


class ReadsAgain(IterableDataset[torch.Tensor]):
    """Finds its position by reading, within the first `next` after a resume."""

    at = start = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["at"]

    def __iter__(self) -> Iterator[torch.Tensor]:
        start, self.start, self.at = self.start, 0, 0
        for index in range(12):
            sample = index + torch.rand(1)
            self.at += 1
            if self.at > start:
                yield sample


class LooksAtTheWorker(Noisy):
    def __getitem__(self, index: int) -> torch.Tensor:
        worker = get_worker_info()
        return torch.tensor([index, -1 if worker is None else worker.id])


def build(dataset: Dataset[Any], num_workers: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=3, num_workers=num_workers, **options)


HEALTHY: dict[str, Any] = {
    "shuffled": lambda num_workers: build(Noisy(), num_workers, shuffle=True),
    "a lazy sampler": lambda num_workers: build(Noisy(), num_workers, sampler=Lazy()),
    "a known generator, by sample and with a seed": lambda num_workers: build(
        KnownGenerator(), num_workers, shuffle=True, seeding="sample", seed=1
    ),
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY)
def test_what_resumes_exactly_passes(make: Any) -> None:
    report = verify_resume(make, steps=(0, 2, 5), num_workers=(0, 1))
    assert report.batches == 5
    assert report.steps == (0, 2, 5)
    assert report.resumes > 30
    assert "went on exactly" in str(report)


@pytest.mark.parametrize("kind", [Generated, StatefulIterator])
def test_streams_that_resume_exactly_pass_under_any_number_of_workers(kind: Any) -> None:
    def make(num_workers: int) -> DataLoader[Any]:
        return build(kind(), num_workers, num_streams=2)

    report = verify_resume(make, steps=(0, 2, 6), num_workers=(0, 1, 3), fresh_process=False)
    assert (report.batches, report.steps) == (6, (0, 2, 6))


FAULTS: dict[str, tuple[Any, str, str]] = {
    "a sampler that reseeds": (
        lambda: build(Noisy(), sampler=Reseeding()),
        "repeatability",
        "seeds itself anew",
    ),
    "a load_state_dict that forgets": (
        lambda: build(Noisy(), sampler=Forgetful()),
        "order",
        "forgets its position",
    ),
    "a stream that is not deterministic": (
        lambda: build(Unrepeatable()),
        "repeatability",
        "current_seed()",
    ),
    "a stream that loses its place": (
        lambda: build(Misplaced(), snapshot_every_n_steps=1),
        "content",
        "",
    ),
    "a stream that reads again behind the seed": (
        lambda: build(ReadsAgain(), seed=1, snapshot_every_n_steps=1),
        "content",
        "reading again in its first next()",
    ),
    "a counter": (lambda: build(Counting()), "content", "a counter"),
    "an unknown generator": (
        lambda: build(UnknownGenerator()),
        "repeatability",
        "current_seed()",
    ),
    "a look at the worker": (
        lambda num_workers: build(LooksAtTheWorker(), num_workers),
        "content",
        "worker's number",
    ),
}


@pytest.mark.parametrize("make, what, why", FAULTS.values(), ids=FAULTS)
def test_planted_faults_are_found_and_explained(make: Any, what: str, why: str) -> None:
    with pytest.raises(ResumeError) as caught:
        verify_resume(make, steps=(2,), num_workers=(0, 1), fresh_process=False)
    assert caught.value.what == what
    assert why in str(caught.value)
    assert "expected" in caught.value.difference
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("seed, noted", [(None, True), (3, False)])
def test_a_loader_whose_later_epochs_depend_on_dropout_has_a_note(
    seed: int | None, noted: bool
) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Noisy(), batch_size=4, shuffle=True, seed=seed)

    report = verify_resume(make, steps=(2,), codecs=("state_dict",), fresh_process=False)
    assert ("pass seed= to the DataLoader" in str(report)) == noted


def test_a_fault_that_only_a_fresh_process_shows_is_found() -> None:
    here = os.getpid()

    class KnowsItsProcess(Noisy):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.tensor([index, int(os.getpid() == here)])

    with pytest.raises(ResumeError, match="in a fresh process"):
        verify_resume(lambda: build(KnowsItsProcess()), steps=(2,), codecs=("state_dict",))


@cache
def jitter(group: int) -> float:
    return random.random()


class Remembering(Noisy):
    """What a sample is depends on which one of its group came first."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, jitter(index // 2)])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one process serves all resumes")
def test_a_cache_of_the_process_is_found_however_many_steps_are_tried() -> None:
    jitter.cache_clear()
    with pytest.raises(ResumeError, match="in a fresh process") as caught:
        verify_resume(
            lambda: build(Remembering(), shuffle=True, seed=2), steps=(0, 2), codecs=("state_dict",)
        )
    assert caught.value.what == "content"


CACHES_OF_A_SCRIPT = """
import functools, random
from torch.utils.data import Dataset
from picklable_loader import DataLoader
from picklable_loader.testing import ResumeError, verify_resume

@functools.lru_cache(None)
def square(index):
    return index * index

class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return square(index)

DRAWN = {}

class Drawn(Squares):
    def __getitem__(self, index):
        return DRAWN.setdefault(index // 2, random.random())

def check(kind):
    make = lambda: DataLoader(kind(), batch_size=1, seed=2, shuffle=True)
    return verify_resume(make, steps=(2, 5), codecs=("pickle", "state_dict"))

print(check(Squares).resumes)
try:
    check(Drawn)
except ResumeError as error:
    print(error.what, "in a fresh process" in error.where)
"""


def test_caches_of_a_script_reach_a_fresh_process_empty() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CACHES_OF_A_SCRIPT], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.splitlines() == ["9", "content True"], done.stderr


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ValueError, match="marshal"):
        verify_resume(lambda: build(Noisy()), codecs=("marshal",))


@pytest.mark.parametrize("wrong", [{"max_batches": 0}, {"max_steps": 3}, {"num_workers": ()}])
def test_numbers_with_which_nothing_would_be_compared_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        verify_resume(lambda: build(Noisy()), **wrong)


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield random.randrange(14)


class Named(Noisy):
    name = "noisy"


def looks_at_its_dataset(worker: int) -> None:
    info = get_worker_info()
    assert info is not None and info.dataset.name == "noisy"


class WithTable(Noisy):
    """Its worker_init_fn gives it what it reads from, and seed_dataset its generator."""

    table: Any = None
    generator: Any = None

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) * self.table + self.generator.normal()


def gives_a_table(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.table = 3


def gives_a_generator(dataset: Any, seed: int) -> None:
    dataset.generator = np.random.default_rng(seed)


def halved(batch: torch.Tensor) -> torch.Tensor:
    return batch / 2


ODD: dict[str, Any] = {
    "a dataset that is given attributes": lambda num_workers: build(
        WithTable(),
        1,
        worker_init_fn=gives_a_table,
        seed_dataset=gives_a_generator,
    ),
    "converted batches, each with its state": lambda num_workers: build(
        Noisy(),
        num_workers,
        convert=halved,
        device_convert=halved,
        to_device="cpu",
        with_state=True,
    ),
    "an endless sampler": lambda num_workers: build(
        Noisy(), num_workers, sampler=Endless(), seed=1
    ),
    "a look at the dataset": lambda num_workers: build(
        Named(), num_workers, shuffle=True, worker_init_fn=looks_at_its_dataset
    ),
    "out of order": lambda num_workers: build(Noisy(), num_workers, in_order=False, shuffle=True),
    "by worker": lambda num_workers: build(
        Noisy(), num_workers, seeding="worker", shuffle=True, seed=3
    ),
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_odd_loaders_are_looked_at_all_the_same(make: Any) -> None:
    report = verify_resume(
        make, steps=(0, 2), num_workers=(0, 2), fresh_process=False, max_batches=5
    )
    assert report.batches == 5 and report.resumes >= 8


def test_another_loader_is_refused() -> None:
    with pytest.raises(TypeError, match="picklable_loader.DataLoader, got a torch"):
        verify_resume(lambda: torch.utils.data.DataLoader(Noisy()))  # type: ignore[arg-type]


class Unloadable(Noisy):
    """Pickles, and cannot be loaded."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> Any:
    raise TypeError("not here")


def test_a_codec_that_cannot_load_is_told_from_a_loader_that_resumes_wrongly() -> None:
    with pytest.raises(ResumeError, match="codec differs(.|\n)*not here"):
        verify_resume(lambda: build(Unloadable()), codecs=("pickle",), fresh_process=False)


LOSES_A_BASE = """
import sys
from torch.utils.data import IterableDataset
from picklable_loader import DataLoader
from picklable_loader.testing import ResumeError, verify_resume

class Plain(IterableDataset):
    def __iter__(self):
        yield from range(6)

def check(codecs, workers):
    make = lambda: DataLoader(Plain(), batch_size=3, num_workers=workers)
    verify_resume(make, steps=(0, 1), fresh_process=False, **codecs)

for workers in (0, 1):
    check({}, workers)
    try:
        check({"codecs": ("dill",)}, workers)
    except ResumeError as error:
        print(error.what, "dill" in error.where, "cloudpickle does not" in error.difference)
"""


def test_a_class_of_a_script_that_dill_changes_is_an_error_of_the_codec_and_no_hang() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOSES_A_BASE], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.splitlines() == ["codec True True"] * 2, done.stderr


class RoundedByThreads(Dataset[torch.Tensor]):
    """As a sum is that torch shares out among its threads."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(()) + torch.get_num_threads() * 2**-22


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_last_bits_that_depend_on_threads_are_found_and_are_gone_with_one_thread() -> None:
    def make(num_workers: int = 0) -> DataLoader[Any]:
        return DataLoader(RoundedByThreads(), 2, num_workers=num_workers)

    with pytest.raises(ResumeError, match=r"2\.4e-07 apart[\s\S]*set_num_threads\(1\)") as raised:
        verify_resume(make, steps=(1,))
    assert raised.value.what == "content"
    torch.set_num_threads(1)
    verify_resume(make, steps=(1,))


SET = """
import random
from torch.utils.data import Dataset
from picklable_loader import DataLoader
from picklable_loader.testing import ResumeError, verify_resume

class Tags(Dataset):
    def __init__(self):
        self.tags = {f"tag {number}" for number in range(50)}
    def __len__(self):
        return 20
    def __getitem__(self, index):
        return random.choice(list(self.tags))

try:
    verify_resume(lambda: DataLoader(Tags(), 4, seed=1), steps=(2,))
except ResumeError as error:
    print(error)
"""


def test_samples_that_depend_on_the_order_of_a_set_are_found(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SET)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "content differs" in done.stdout and "it goes through a set" in done.stdout
