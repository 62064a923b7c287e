"""Generators that a dataset or a collate_fn owns are seeded, as the global ones are."""

from __future__ import annotations

import copy
import os
import pickle
import random
import signal
import threading
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from laws import observe
from laws.observe import expected_warnings, lists, seed_everything
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Sampler, default_collate, get_worker_info
from zoo.datasets import Noisy
from zoo.own_generators import BATCH, KINDS, Draws, Epochs, N, Saves

from picklable_loader import DataLoader, current_seed
from picklable_loader.epoch.options import Options
from picklable_loader.errors import LoaderWarning
from picklable_loader.rng.owned import owned_in, seedable_in


class Pipeline:
    """A transform with albumentations' protocol: it makes its generators anew."""

    def __init__(self, seed: int | None = None) -> None:
        self.set_random_seed(seed)

    def set_random_seed(self, seed: int | None) -> None:
        self.py_random, self.generator = random.Random(seed), np.random.default_rng(seed)

    def random(self) -> float:
        return self.py_random.random() + float(self.generator.random())


class AddsTheWorkersSeed(Pipeline):
    """As AlbumentationsX does; its other method takes generators as they are."""

    def set_random_seed(self, seed: int | None) -> None:
        worker = get_worker_info()
        super().set_random_seed(seed if worker is None else (seed or 0) + worker.seed)

    def set_random_state(
        self, random_generator: np.random.Generator, py_random: random.Random
    ) -> None:
        self.generator, self.py_random = random_generator, py_random


class MasksByProcess:
    """A collator with Hugging Face's protocol: it makes its generator anew in each process."""

    seed: int | None = 42

    def __init__(self) -> None:
        self.generator: Any = None
        self._generator_pid: int | None = None

    def get_generator(self, seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    def create_rng(self) -> None:
        worker = get_worker_info()
        self.generator = self.get_generator(42 + (0 if worker is None else worker.id))
        self._generator_pid = os.getpid()

    def random(self) -> float:
        if self.generator is None or self._generator_pid != os.getpid():
            self.create_rng()
        return float(torch.rand((), generator=self.generator))


class Randomizable:
    """A transform with monai's protocol: its class owns a generator until it has one."""

    R = np.random.RandomState(3)

    def set_random_state(
        self, seed: int | None = None, state: np.random.RandomState | None = None
    ) -> Randomizable:
        self.R = np.random.RandomState(seed)
        return self

    def random(self) -> float:
        return self.R.random_sample()


class Spawns:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def random(self) -> float:
        return float(self.rng.spawn(1)[0].random())


class OfBits(Draws):
    def __init__(self) -> None:
        self.bits = np.random.PCG64DXSM(3)

    def __getitem__(self, index: int) -> float:
        return index + self.bits.random_raw() / 2**64


class Lists(Dataset[Any]):
    """One number from each of several generators."""

    def __init__(self, *rngs: Any) -> None:
        self.rngs = list(rngs)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return index, [rng.random() for rng in self.rngs]


class ByName(Lists):
    def __init__(self, *rngs: Any) -> None:
        self.by_name = {f"sensor {number}": each for number, each in enumerate(rngs)}

    @property
    def rngs(self) -> Any:  # type: ignore[override]
        return self.by_name.values()


#: those with a loader inside cannot be seeded
UNSEEDABLE: dict[str, Callable[[], dict[str, Any]]] = {
    "system's": lambda: {"dataset": Draws(random.SystemRandom())},
    **{name: make for name, make in KINDS.items() if "loader" in name and name != "loader"},
}
SEEDED: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: make for name, make in KINDS.items() if name not in UNSEEDABLE},
    "albumentations": lambda: {"dataset": Draws(Pipeline())},
    "AlbumentationsX": lambda: {"dataset": Draws(AddsTheWorkersSeed())},
    "a collator that looks at its process": lambda: {"dataset": Draws(MasksByProcess())},
    "monai": lambda: {"dataset": Draws(Randomizable())},
    "spawned": lambda: {"dataset": Draws(Spawns())},
    "bits": lambda: {"dataset": OfBits()},
    "legacy": lambda: {"dataset": Draws(np.random.RandomState())},
    "several": lambda: {"dataset": Lists(random.Random(), np.random.default_rng(), Pipeline())},
    "a hundred": lambda: {"dataset": Lists(*(random.Random() for _ in range(100)))},
    "a hundred by name": lambda: {"dataset": ByName(*(random.Random() for _ in range(100)))},
}


def make(kind: str | Dataset[Any], workers: int, **options: Any) -> DataLoader[Any]:
    """A loader whose own generators are other ones in each run."""
    given = SEEDED[kind]() if isinstance(kind, str) else {"dataset": kind}
    return DataLoader(**given, batch_size=BATCH, num_workers=workers, seed=1, **options)


def epochs(loader: DataLoader[Any], count: int = 2) -> list[list[Any]]:
    return [lists(loader) for _ in range(count)]


@pytest.mark.parametrize("kind", SEEDED)
@pytest.mark.parametrize("workers, later", [(0, 2), (2, 0)])
def test_batches_are_the_same_under_any_workers_and_after_any_resume(
    kind: str, workers: int, later: int
) -> None:
    """And no save warns of anything, as warnings are errors."""
    later = workers if kind == "of a stream" else later  # a stream for each worker
    whole = epochs(make(kind, later), 3)
    loader = make(kind, workers)
    with expected_warnings():  # of a replay
        first, iterator = lists(loader), iter(loader)
        head = lists([next(iterator)])
        state, pickled = iterator.state_dict(), pickle.dumps(iterator)
        assert [first, head + lists(iterator), *epochs(loader, 1)] == whole
        resumed = make(kind, later)
        resumed.load_state_dict(state)
        assert [head + lists(resumed), *epochs(resumed, 1)] == whole[1:]
        again = pickle.loads(pickled)
        assert [head + lists(again), *epochs(again.loader, 1)] == whole[1:]


def test_so_they_are_where_workers_live_on() -> None:
    assert epochs(make("several", 2, persistent_workers=True)) == epochs(make("several", 0))


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.SkippedWarning")
def test_so_they_are_where_samples_are_skipped() -> None:
    rng = random.Random()
    found = [epochs(make(Breaks(rng), workers, on_error="skip")) for workers in (0, 2)]
    assert found[0] == found[1]
    assert sum(map(len, found[0][0])) == N - 1


class Breaks(Draws):
    def __getitem__(self, index: int) -> float:
        found = super().__getitem__(index)
        if index == 5:
            raise ValueError("damaged")
        return found


def test_each_worker_that_is_started_anew_finds_the_same_generators() -> None:
    options: Any = {"multiprocessing_context": "spawn"}
    assert lists(make("several", 1, **options)) == lists(make("several", 0))


class Dies(Lists):
    """It kills the process that reads it first at the index 6."""

    def __init__(self, flag: Path, *rngs: Any) -> None:
        super().__init__(*rngs)
        self.flag = flag

    def __getitem__(self, index: int) -> Any:
        found = super().__getitem__(index)
        if index == 6 and get_worker_info() is not None and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.RestartWarning")
def test_a_worker_that_dies_changes_nothing(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    rngs = random.Random(), Pipeline()
    expected = lists(make(Dies(flag, *rngs), 0))
    assert lists(make(Dies(flag, *rngs), 2)) == expected
    assert flag.exists()


def test_each_generator_draws_other_numbers_and_each_batch_does() -> None:
    same = [random.Random(3), random.Random(3), np.random.default_rng(3), np.random.default_rng(3)]
    batches = lists(make(Lists(*same), 0))
    numbers = [number for _, rngs in batches for rng in rngs for number in rng]
    assert max(Counter(numbers).values()) == 1


def test_with_samples_seeded_they_are_the_same_under_any_batch_size() -> None:
    def samples(size: int, workers: int) -> list[float]:
        dataset = Draws(random.Random())
        options: Any = {"shuffle": True, "num_workers": workers, "seed": 1, "seeding": "sample"}
        return [each for batch in lists(DataLoader(dataset, size, **options)) for each in batch]

    assert samples(4, 2) == samples(3, 0)


def test_batch_at_gives_the_same_batch_again() -> None:
    loader = make("several", 2, shuffle=True)
    batches = lists(loader)
    assert [lists([loader.batch_at(step, 0)])[0] for step in range(3)] == batches


class Anew(Lists):
    """Each epoch has generators of its own."""

    def set_epoch(self, epoch: int) -> None:
        self.rngs = [np.random.default_rng(epoch), random.Random(epoch)]


def test_what_set_epoch_makes_in_living_workers_is_seeded() -> None:
    def run(workers: int, **options: Any) -> list[Any]:
        loader = make(Anew(), workers, **options)
        found = []
        for epoch in range(3):
            loader.set_epoch(epoch)
            found.append(lists(loader))
        return found

    assert run(2, persistent_workers=True) == run(0)


def give_a_generator(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.rng = np.random.default_rng(worker)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_worker_init_fn_gives_the_dataset_is_seeded(workers: int) -> None:
    loader = make(Draws(None), workers, worker_init_fn=give_a_generator)
    assert lists(loader) == lists(make(Draws(np.random.default_rng()), 0))


# --- made by the first batch ---------------------------------------------------------------------


class Lazy(Draws):
    """The known idiom: a generator for each worker, made when it is first needed."""

    def __init__(self) -> None:
        super().__init__(None)

    def __getitem__(self, index: int) -> float:
        if self.rng is None:
            self.rng = np.random.default_rng(torch.initial_seed())
        return super().__getitem__(index)


class Cached(Draws):
    def __init__(self) -> None: ...

    @cached_property
    def rng(self) -> Any:  # type: ignore[override]
        return random.Random(current_seed())


class OfProcess(Draws):
    """There is one before, of the process that has built the dataset."""

    def __init__(self) -> None:
        super().__init__(random.Random(3))
        self.pid = 0

    def __getitem__(self, index: int) -> float:
        if self.pid != os.getpid():
            self.pid, self.rng = os.getpid(), random.Random(torch.initial_seed())
        return super().__getitem__(index)


class Fails(Lazy):
    """The batch that makes it fails."""

    def __getitem__(self, index: int) -> float:
        failed, found = self.rng is None, super().__getitem__(index)
        if failed:
            raise ValueError("not yet")
        return found


_single: Any = None


def _singleton() -> Any:
    global _single
    _single = _single or np.random.default_rng(torch.initial_seed())
    return _single


class OfModule(Noisy):
    def __getitem__(self, index: int) -> Any:
        return index + _singleton().random()


@lru_cache(4)
def _of_cache(seed: int) -> Any:
    return np.random.default_rng(seed)


class OfCache(Noisy):
    def __getitem__(self, index: int) -> Any:
        return index + _of_cache(3).random()


class OfMethod(Noisy):
    @lru_cache(None)
    def rng(self) -> Any:
        return random.Random(3)

    def __getitem__(self, index: int) -> Any:
        return index + self.rng().random()


class OfThread(Draws):
    def __init__(self) -> None:
        self.local = threading.local()

    def __getitem__(self, index: int) -> float:
        if not vars(self.local):
            self.local.rng = random.Random(3)
        return index + float(self.local.rng.random())


class Collates:
    rng: Any = None

    def __call__(self, samples: list[Any]) -> Any:
        self.rng = self.rng or random.Random(current_seed())
        return default_collate(samples) + self.rng.random()


def _late(make: Callable[[], Any], workers: int, **options: Any) -> DataLoader[Any]:
    """Under this schedule the first batches of the epoch are the first of their workers."""
    global _single
    _single, data = None, make()
    _of_cache.cache_clear()
    OfMethod.rng.cache_clear()
    if isinstance(data, Collates):
        data, options = Noisy(N), {**options, "collate_fn": data}
    given: Any = {"schedule": "round_robin", "num_workers": workers, **options}
    return DataLoader(data, 2, seed=1, **given)


def _told(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        result = run()
    assert {each.filename for each in given} <= {__file__, observe.__file__}
    return result, [str(each.message) for each in given]


LATE: dict[str, tuple[Any, str]] = {
    "attribute": (Lazy, "dataset.rng"),
    "cached property": (Cached, "dataset.rng"),
    "of a process": (OfProcess, "dataset.rng"),
    "of a module": (lambda: OfModule(N), "_single"),
    "of a cache": (lambda: OfCache(N), "_of_cache[...]"),
    "of a method's cache": (lambda: OfMethod(N), "rng[...][...]"),
    "of a thread": (OfThread, "dataset.local.rng"),
    "of a collate_fn": (Collates, "collate_fn.rng"),
}


@pytest.mark.parametrize("options", [{}, {"seeding": "sample"}, {"on_error": "skip"}], ids=str)
@pytest.mark.parametrize("kind", LATE)
def test_what_the_first_batch_makes_is_seeded_from_the_second_on_with_one_warning(
    kind: str, options: dict[str, Any]
) -> None:
    make, path = LATE[kind]
    here = _late(make, 0, **options)
    first, said = _told(lambda: epochs(here)[0])
    whole = [lists([here.batch_at(step, 0)])[0] for step in range(N // 2)]  # it is there by now
    assert first[1:] == whole[1:]
    (by_worker, _), told = _told(lambda: epochs(_late(make, 2, **options)))
    assert by_worker[2:] == whole[2:]
    for given in said, told:
        assert len(given) == 1
        assert f"{path}, and the loader seeds it from the second batch on" in given[0]


def test_so_it_is_where_the_batch_that_makes_it_fails() -> None:
    def run() -> list[Any]:
        iterator = iter(_late(Fails, 0))
        with pytest.raises(ValueError, match="not yet"):
            next(iterator)
        return lists(iterator)

    batches, told = _told(run)
    assert len(told) == 1
    assert batches == lists(_late(lambda: Draws(np.random.default_rng()), 0))[1:]


def test_no_batch_is_lost_if_the_warning_is_an_error() -> None:
    iterator = iter(_late(Lazy, 1))
    found = [next(iterator)]
    with pytest.raises(LoaderWarning, match=r"has made loader\.dataset\.rng"):
        next(iterator)
    found += iterator
    assert [int(each) for batch in found for each in batch] == [*range(N)]


class PerSample(Draws):
    """A new one in its attribute for each sample."""

    def __init__(self) -> None: ...

    def __getitem__(self, index: int) -> float:
        self.rng = np.random.default_rng((current_seed(), index))
        return super().__getitem__(index)


class PerSampleLocal(Draws):
    def __init__(self) -> None: ...

    def __getitem__(self, index: int) -> float:
        return index + random.Random(index).random()


class PerFile(PerSample):
    """One for each file, of which a batch reads a whole one."""

    def __getitems__(self, indices: list[int]) -> list[float]:
        self.rng = np.random.default_rng(indices[0])
        return [index + float(self.rng.random()) for index in indices]


@pytest.mark.parametrize("make", [PerSample, PerSampleLocal, PerFile])
def test_generators_that_each_batch_makes_anew_are_exact_and_not_told_of(make: Any) -> None:
    whole = epochs(_late(make, 0))  # warnings are errors
    loader = _late(make, 2)
    iterator = iter(loader)
    head = lists([next(iterator), next(iterator), next(iterator)])
    resumed = _late(make, 0)
    resumed.load_state_dict(iterator.state_dict())
    assert head + lists(iterator) == head + lists(resumed) == whole[0]
    assert lists(loader) == lists(resumed) == whole[1]


@pytest.mark.parametrize(
    "options", [{"seeding": "worker"}, {"seed_dataset": "off"}, {"seed_dataset": lambda *_: None}]
)
def test_nobody_looks_again_where_the_loader_seeds_none_by_itself(options: Any) -> None:
    assert len(epochs(_late(Lazy, 0, **options))) == 2


# --- what is not touched -------------------------------------------------------------------------


class InOrderOf(Sampler[int]):
    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        yield from self.rng.sample(range(N), N)


def _by_sampler(**options: Any) -> DataLoader[Any]:
    rng = random.Random(3)
    return DataLoader(Draws(rng), BATCH, sampler=InOrderOf(rng), seed=1, **options)


class ByTorch(Draws):
    def __getitem__(self, index: int) -> float:
        return index + torch.rand((), generator=self.rng).item()


def _by_generator(**options: Any) -> DataLoader[Any]:
    rng = torch.Generator().manual_seed(3)
    return DataLoader(ByTorch(rng), BATCH, shuffle=True, generator=rng, **options)


def _with_a_state(**options: Any) -> DataLoader[Any]:
    return DataLoader(Saves(random.Random(3)), BATCH, seed=1, **options)


class Reads(IterableDataset[float]):
    def __init__(self) -> None:
        self.rng = random.Random(3)

    def __iter__(self) -> Iterator[float]:
        yield from (self.rng.random() for _ in range(N))

    def collated(self, samples: list[float]) -> Any:
        return default_collate(samples) + self.rng.random()


def _of_a_stream(**options: Any) -> DataLoader[Any]:
    return DataLoader(Reads(), BATCH, seed=1, **options)


def _by_its_collate_fn(**options: Any) -> DataLoader[Any]:
    dataset = Reads()
    return DataLoader(dataset, BATCH, seed=1, collate_fn=dataset.collated, **options)


def _of_its_samplers_closure(**options: Any) -> DataLoader[Any]:
    rng = random.Random(3)
    hidden = types.SimpleNamespace(sample=lambda *given: rng.sample(*given))
    return DataLoader(Draws(rng), BATCH, sampler=InOrderOf(hidden), seed=1, **options)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "make",
    [_by_sampler, _by_generator, _with_a_state, _of_a_stream, _by_its_collate_fn,
     _of_its_samplers_closure],
)  # fmt: skip
def test_generators_of_the_order_and_of_streams_are_left_as_they_are(
    make: Callable[..., DataLoader[Any]], workers: int
) -> None:
    torch.manual_seed(3)
    plain = epochs(make(seed_dataset="off", num_workers=workers))
    torch.manual_seed(3)
    assert epochs(make(num_workers=workers)) == plain


@pytest.mark.parametrize("workers", [0, 2])
def test_with_torchs_seeding_nothing_is_seeded(workers: int) -> None:
    seed_everything(3)
    whole = lists(TorchDataLoader(Draws(random.Random(3)), BATCH, num_workers=workers))
    seed_everything(3)
    ours = DataLoader(Draws(random.Random(3)), BATCH, num_workers=workers, seeding="worker")
    assert lists(ours) == whole


def test_global_generators_in_attributes_are_seeded_once() -> None:
    named = types.SimpleNamespace(a=random._inst, b=np.random.mtrand._rand)
    noisy = Noisy(N)
    expected = lists(make(Noisy(N), 0))
    vars(noisy).update(named=named)
    assert lists(make(noisy, 0)) == expected


def test_nothing_is_called_where_nothing_is_found() -> None:
    assert not seedable_in({"dataset": Noisy(N), "collate_fn": default_collate}, frozenset())


def test_an_object_that_seeds_itself_is_found_and_not_what_it_owns() -> None:
    found = [path for path, _ in owned_in({"x": [Pipeline(), Randomizable()]}, set(), whole=True)]
    assert found == ["x[0]", "x[1]"]
    found = [path for path, _ in owned_in({"x": [Pipeline(), Randomizable()]}, set())]
    assert found == ["x[0].py_random", "x[0].generator", "x[1].__class__.R"]


class Splits(Draws):
    """Its method is no transform's: its samples depend on the seed."""

    def __init__(self) -> None:
        super().__init__(random.Random(3))
        self.set_random_seed(0)

    def set_random_seed(self, seed: int) -> None:
        self.split = np.random.RandomState(seed).permutation(N)

    def __getitem__(self, index: int) -> float:
        return super().__getitem__(int(self.split[index]))


def test_a_datasets_own_method_is_not_called_and_its_generator_is_found() -> None:
    whole = lists(make(Splits(), 0))
    assert {int(each) for batch in whole for each in batch} == {*range(N)}
    assert lists(make(Splits(), 2)) == whole


class OfAnotherKind:
    """Not monai's protocol, though albumentations' own transforms have this one as well."""

    def __init__(self) -> None:
        self.rng = random.Random()

    def set_random_state(self, generator: Any, python: Any) -> None:
        raise AssertionError("it was called")

    def random(self) -> float:
        return self.rng.random()


class SeedsItself(Draws):
    """A dataset of monai's: its seed is that of its split, and not of its transform."""

    def set_random_state(self, seed: int | None = None) -> None:
        self.split = np.random.RandomState(seed)


@pytest.mark.parametrize(
    "dataset", [Draws(OfAnotherKind()), SeedsItself(random.Random()), SeedsItself(Pipeline())]
)
def test_methods_that_only_look_like_a_protocol_hide_nothing(dataset: Any) -> None:
    whole = lists(make(copy.deepcopy(dataset), 0))
    dataset.rng.random()
    assert lists(make(dataset, 2)) == whole


# --- a callable, and what cannot be seeded -------------------------------------------------------


def seed_mine(dataset: Any, seed: int) -> None:
    assert seed == current_seed()
    info = get_worker_info()
    assert info is None or info.dataset is dataset
    dataset.rng.seed(seed)


@pytest.mark.parametrize("seeding", ["batch", "sample"])
def test_a_callable_is_given_the_dataset_of_the_worker(seeding: Any) -> None:
    def run(workers: int) -> list[Any]:
        options: Any = {"seed_dataset": seed_mine, "seeding": seeding}
        return epochs(make(Draws(random.Random()), workers, **options))

    expected = run(0)
    assert run(2) == expected
    assert expected != epochs(make(Draws(random.Random()), 0))  # it is the only one that seeds


def test_with_torchs_seeding_a_callable_is_called_when_a_worker_starts() -> None:
    def run() -> list[Any]:
        seed_everything(3)
        dataset, options = Draws(random.Random()), {"seeding": "worker", "num_workers": 2}
        return epochs(DataLoader(dataset, BATCH, seed_dataset=seed_mine, **options))  # type: ignore

    assert run() == run()


def test_a_callable_is_called_for_tensors_as_well() -> None:
    seeds: list[int] = []
    data = torch.arange(12.0)
    list(DataLoader(data, BATCH, seed_dataset=lambda _, seed: seeds.append(seed)))  # type: ignore
    assert len(set(seeds)) == 3


@pytest.mark.parametrize("kind", UNSEEDABLE)
def test_what_cannot_be_seeded_is_told_of_before_the_first_epoch(kind: str) -> None:
    loader = DataLoader(**UNSEEDABLE[kind](), batch_size=BATCH, num_workers=2)
    with pytest.warns(LoaderWarning, match=r"cannot seed loader\.dataset\.\S+ \(\w+ \w+\)") as told:
        iterator = iter(loader)
    assert [warning.filename for warning in told] == [__file__]
    next(iterator)
    iterator.state_dict()  # warnings are errors
    list(loader)


@pytest.mark.parametrize("kind", UNSEEDABLE)
def test_without_workers_a_pickle_holds_it_and_a_state_warns(kind: str) -> None:
    iterator = iter(DataLoader(**UNSEEDABLE[kind](), batch_size=BATCH))
    next(iterator)
    if kind != "system's":
        pickle.dumps(iterator)
    with pytest.warns(LoaderWarning, match="this save does not hold the state of loader.dataset"):
        iterator.state_dict()


@pytest.mark.parametrize("options", [{"seed_dataset": "off"}, {"seed_hooks": [random.seed]}])
def test_nobody_is_told_who_has_seen_to_it(options: Any) -> None:
    list(DataLoader(Draws(Epochs(seed=3)), BATCH, num_workers=2, **options))


def test_a_shared_generator_is_told_of_when_it_is_saved() -> None:
    iterator = iter(_by_sampler(num_workers=2))
    next(iterator)
    with pytest.warns(LoaderWarning, match=r"loader\.dataset\.rng"):
        iterator.state_dict()


def test_a_loader_that_an_earlier_version_has_pickled_draws_as_it_did() -> None:
    saved = vars(Options())
    assert Options.restored(saved).seed_dataset == "auto"
    del saved["seed_dataset"]
    assert Options.restored(saved).seed_dataset == "off"


def test_a_transform_deep_inside_of_others_is_seeded() -> None:
    deep: Any = random.Random()
    for _ in range(20):
        deep = types.SimpleNamespace(transforms=[deep])
    assert len(seedable_in({"dataset": deep}, frozenset())) == 1
