"""Generators in global variables that dataset, collate_fn or sampler read: seeded, or told of."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import random
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import expected_warnings, lists
from torch.utils.data import Dataset, IterableDataset, Sampler, default_collate, get_worker_info
from zoo import own_generators
from zoo.datasets import Noisy, Numbers
from zoo.own_generators import noise as noise_of_another_module

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning
from picklable_loader.rng.owned import _Walk, owned_in

N, BATCH = 12, 4

generator = np.random.default_rng(0)
legacy = np.random.RandomState(0)
bits = np.random.PCG64(0)
of_python = random.Random(0)
of_torch = torch.Generator().manual_seed(0)
never_read = np.random.default_rng(1)
order = np.random.default_rng(2)


def noise() -> float:
    return generator.random() + of_python.random()


def noisy(sample: int) -> float:
    return sample + noise()


def noisy_batch(samples: list[Any]) -> Any:
    return default_collate([sample + legacy.random() for sample in samples])


class Items(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        drawn = bits.random_raw() / 2**64, torch.rand((), generator=of_torch).item()
        return index, generator.random(), legacy.random(), of_python.random(), *drawn


class Batches(Items):
    def __getitems__(self, indices: list[int]) -> Any:
        return [generator.random() + index for index in indices]


class ByMethod(Items):
    def __getitem__(self, index: int) -> Any:
        return self.augmented(index) + self.shifted()

    def augmented(self, index: int) -> float:
        return index

    @staticmethod
    def shifted() -> float:
        return noise()


class Overridden(ByMethod):
    def augmented(self, index: int) -> float:
        return sum([legacy.random() for _ in range(2)])


class Transformed(Items):
    def __init__(self, transform: Callable[[int], float] = noisy) -> None:
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(index)


class Stream(IterableDataset[float]):
    def __iter__(self) -> Iterator[float]:
        info = get_worker_info()
        for index in range(0 if info is None else info.id, N, 1 if info is None else 2):
            yield index + noise()


class Wrong(Items):
    """It has an attribute of a global variable's name, and reads that alone."""

    def __init__(self) -> None:
        self.never_read = 0.5

    def __getitem__(self, index: int) -> Any:
        return index + self.never_read + np.random.rand() + random.random()


class OfAnotherModule(Items):
    def __getitem__(self, index: int) -> Any:
        return index + own_generators.generator.random() + torch.rand(()).item()


class ByAnotherModule(Items):
    def __getitem__(self, index: int) -> Any:
        return index + noise_of_another_module() + own_generators.noise()


class Shuffles(Sampler[int]):
    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        yield from order.permutation(N).tolist()


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "of each type": lambda: {"dataset": Items()},
    "a batch at once": lambda: {"dataset": Batches()},
    "by a method and a function": lambda: {"dataset": ByMethod()},
    "in a comprehension of an overridden method": lambda: {"dataset": Overridden()},
    "a transform": lambda: {"dataset": Transformed()},
    "a partial": lambda: {"dataset": Transformed(functools.partial(noisy))},
    "a collate_fn": lambda: {"dataset": Numbers(N), "collate_fn": noisy_batch},
    "of another module": lambda: {"dataset": OfAnotherModule()},
    "by a function of another module": lambda: {"dataset": ByAnotherModule()},
    "a stream": lambda: {"dataset": Stream()},
}
BY_KIND = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, workers: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader(**KINDS[kind](), batch_size=BATCH, seed=1, num_workers=workers, **options)


def two_epochs(iterator: Any, loader: Any) -> list[Any]:
    return [lists(iterator), lists(loader)]


def test_of_an_installed_package_only_the_module_of_the_class_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "a_library"
    package.mkdir(parents=True)
    made = "import random\n{} = random.Random()\n"
    (package / "__init__.py").touch()
    (package / "names.py").write_text(
        made.format("names") + "def name():\n    return names.random()\n"
    )
    (package / "table.py").write_text(
        f"from . import names\nfrom .names import name\n{made.format('noise')}"
        "class Table:\n"
        "    def __len__(self):\n        return 4\n"
        "    def __getitem__(self, index):\n        return index, noise.random()\n"
        "    def save(self):\n        return name(), names.names, names.name()\n"
        "    def __iter__(self):\n        return iter([self.save()])\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    table = importlib.import_module("a_library.table")
    own = type("Own", (table.Table,), {})  # a class of the program changes nothing
    for data in table.Table(), own(), [table.Table()]:
        found = [path for path, _ in owned_in({"dataset": data}, set())]
        assert [path.partition(".__globals__.")[2] for path in found] == ["noise"]


def test_a_file_of_the_program_may_have_the_name_of_a_standard_module(tmp_path: Path) -> None:
    (tmp_path / "profile.py").write_text(
        "import random\nimport trace\nnoise = random.Random()\n"
        "def transform(index):\n    return index + noise.random() + trace.shift()\n"
    )
    (tmp_path / "trace.py").write_text(
        "import random\nshifts = random.Random()\ndef shift():\n    return shifts.random()\n"
    )
    profile, trace = (imported_from(tmp_path, name) for name in ("profile", "trace"))
    profile.trace = trace
    paths = [path for path, _ in owned_in({"dataset": Transformed(profile.transform)}, set())]
    assert [path.rpartition(".")[2] for path in paths] == ["noise", "shifts"]


def imported_from(folder: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@BY_KIND
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_draws_the_same_numbers(kind: str, workers: int) -> None:
    for epoch, step in (0, 1), (1, 1):
        loader = make(kind, workers, persistent_workers=workers > 0)
        for _ in range(epoch):
            lists(loader)
        iterator = iter(loader)
        for _ in range(step):
            next(iterator)
        state, data = iterator.state_dict(), pickle.dumps(iterator)  # warnings are errors
        expected = two_epochs(iterator, loader)
        again, copied = make(kind, workers), pickle.loads(data)
        again.load_state_dict(state)
        with expected_warnings():
            assert two_epochs(iter(again), again) == expected
            assert two_epochs(copied, copied.loader) == expected


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "a stream"])
def test_the_numbers_are_the_same_under_any_workers(kind: str) -> None:
    assert lists(make(kind)) == lists(make(kind, 1)) == lists(make(kind, 2))


@BY_KIND
@pytest.mark.parametrize(
    "save", [lambda it: it.state_dict(), pickle.dumps], ids=["state", "pickle"]
)
def test_a_save_warns_of_each_that_is_not_seeded(kind: str, save: Callable[[Any], Any]) -> None:
    iterator = iter(make(kind, seed_dataset="off"))
    next(iterator)
    with pytest.warns(LoaderWarning, match=r"__globals__\.(\w+\.)?(generator|legacy)"):
        save(iterator)


@pytest.mark.parametrize("options", [{}, {"seed_dataset": "off"}], ids=str)
def test_what_no_code_reads_is_left_alone(options: Any) -> None:
    before = never_read.bit_generator.state
    iterator = iter(DataLoader(Wrong(), BATCH, seed=1, **options))
    next(iterator)
    iterator.state_dict(), pickle.dumps(iterator)  # warnings are errors
    list(iterator)
    assert never_read.bit_generator.state == before
    assert list(owned_in({"dataset": Wrong()}, set())) == []


@pytest.mark.parametrize(
    "save", [lambda it: it.state_dict(), pickle.dumps], ids=["state", "pickle"]
)
def test_a_save_warns_of_a_sampler_that_draws_its_order(save: Callable[[Any], Any]) -> None:
    """From the second epoch on: a program that is built anew has it as it was before the first."""
    loader = DataLoader(Numbers(N), BATCH, sampler=Shuffles(), seed=1)
    iterator = iter(loader)
    next(iterator)
    save(iterator)  # warnings are errors
    list(iterator)
    iterator = iter(loader)
    next(iterator)
    with pytest.warns(LoaderWarning, match=r"loader\.sampler\.__globals__\.order"):
        save(iterator)
    save(iterator)


# --- generators within what code reads ----------------------------------------------------------


class Jitter:
    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __call__(self, sample: float) -> float:
        return sample + self.rng.random()


def make_jitter() -> Callable[[float], float]:
    rng = np.random.default_rng()
    return lambda sample: sample + rng.random()


class Augment:
    rng = np.random.default_rng()

    @classmethod
    def jitter(cls, sample: float) -> float:
        return sample + cls.rng.random()

    def by_method(self, sample: float) -> float:
        return sample + generator.random()


jitter, augment, by_closure, draw = Jitter(), Augment(), make_jitter(), generator.random
rngs = {"train": np.random.default_rng()}
settings = types.SimpleNamespace(size=4, jitter=Jitter())


def by_default(sample: float, jitter: Jitter = Jitter()) -> float:
    return jitter(sample)


@functools.lru_cache(None)
def cached(sample: float) -> float:
    return sample + 0 * generator.random()


class Each(Dataset[float]):
    """Its samples are those of a function that code of it calls."""

    def __init_subclass__(cls, by: Callable[[Any, int], float] | None = None) -> None:
        if by is not None:
            cls.__getitem__ = by  # type: ignore[assignment]

    def __len__(self) -> int:
        return N


class Global(Each, by=lambda self, index: jitter(index)):
    pass


class InDict(Each, by=lambda self, index: index + rngs["train"].random()):
    pass


class InNamespace(Each, by=lambda self, index: settings.jitter(index)):
    pass


class Closure(Each, by=lambda self, index: by_closure(index)):
    pass


class Default(Each, by=lambda self, index: by_default(index)):
    pass


class BoundMethod(Each, by=lambda self, index: index + draw()):
    pass


class MethodOfGlobal(Each, by=lambda self, index: augment.by_method(index)):
    pass


class MethodOfMade(Each, by=lambda self, index: Augment().by_method(index)):
    pass


class ClassMethod(Each, by=lambda self, index: Augment.jitter(index)):
    pass


class OfClass(Each, by=lambda self, index: self.transform(index)):
    transform = Jitter()


class StaticOfClass(Each, by=lambda self, index: self.transform(index)):
    transform = staticmethod(Jitter())


class ByProperty(Each, by=lambda self, index: index + self.noise):
    @property
    def noise(self) -> float:
        return generator.random()


class OfItsBase(ByProperty):
    def __getitem__(self, index: int) -> float:
        return super().__getitem__(index)


class Decorated(Each):
    @torch.no_grad()
    def __getitem__(self, index: int) -> float:
        return self.noisy(index)

    def noisy(self, index: int) -> float:
        return jitter(index) + generator.random()


class Cached(Each, by=lambda self, index: cached(index) + jitter(index)):
    pass


class MethodOfAttribute(Each, by=lambda self, index: self.augment.by_method(index)):
    def __init__(self) -> None:
        self.augment = Augment()


class AmidAnnotations(Each, by=lambda self, index: self.transform[0](index)):
    """They are more than the walk looks at."""

    def __init__(self) -> None:
        boxes = [{"box": [1, 2], "shape": [[3], [4]], "more": {}} for _ in range(50)]
        self.by_image = {image: [dict(box) for box in boxes] for image in range(50)}
        self.transform = [Jitter()]


class OfAStreamsClass(IterableDataset[float]):
    rng, transform = np.random.default_rng(), Jitter()

    def __iter__(self) -> Iterator[float]:
        yield from (self.transform(each) + self.rng.random() for each in range(N))


class Shifts:
    """As monai's transforms: the class owns the generator until set_random_state gives it one."""

    R = np.random.RandomState()

    def __call__(self, sample: float) -> float:
        return sample + self.R.random_sample()

    def set_random_state(self, seed: int | None = None, state: Any = None) -> Shifts:
        self.R = np.random.RandomState(seed)
        return self


class OfAStreamsTransformsClass(IterableDataset[float]):
    def __init__(self) -> None:
        self.transform = Shifts()

    def __iter__(self) -> Iterator[float]:
        return map(self.transform, range(N))


def jittered(samples: list[Any]) -> Any:
    return default_collate([jitter(sample) for sample in samples])


VALUES: list[dict[str, Any]] = [
    *({"dataset": kind} for kind in Each.__subclasses__()),
    {"dataset": OfItsBase},
    {"dataset": OfAStreamsClass},
    {"dataset": OfAStreamsTransformsClass},
    {"dataset": lambda: Numbers(N), "collate_fn": jittered},
]
BY_VALUE = pytest.mark.parametrize("given", VALUES, ids=lambda given: given["dataset"].__name__)


def of_values(given: dict[str, Any], workers: int = 0, **options: Any) -> DataLoader[Any]:
    dataset = given["dataset"]()
    given = {**given, "dataset": dataset, "batch_size": BATCH, "num_workers": workers}
    return DataLoader(**given, seed=1, **options)


@BY_VALUE
def test_what_values_that_code_reads_draw_is_the_same_after_any_resume(
    given: dict[str, Any],
) -> None:
    """No save warns of anything, as warnings are errors."""
    cached.cache_clear()
    loader = of_values(given)
    lists(loader)
    iterator = iter(loader)
    next(iterator)
    state, data = iterator.state_dict(), pickle.dumps(iterator)
    expected = two_epochs(iterator, loader)
    again, copied = of_values(given), pickle.loads(data)
    again.load_state_dict(state)
    with expected_warnings():
        assert two_epochs(iter(again), again) == expected
        assert two_epochs(copied, copied.loader) == expected
        assert lists(of_values(given, 1)) == lists(of_values(given))


@BY_VALUE
def test_a_save_warns_of_values_that_are_not_seeded(given: dict[str, Any]) -> None:
    iterator = iter(of_values(given, seed_dataset="off"))
    next(iterator)
    with pytest.warns(LoaderWarning, match=r"__(globals|class)__\.|transform\[0\]\.rng"):
        iterator.state_dict()


def test_generators_that_attributes_hold_have_the_path_of_the_attribute() -> None:
    """Their seeds depend on it, though code comes to them on a shorter way as well."""
    held: Any = types.SimpleNamespace(parts=[[settings.jitter]], transform=OfAGlobal())
    assert [path for path, _ in owned_in({"x": held}, set())] == ["x.parts[0][0].rng"]


class OfAGlobal:
    def __call__(self) -> float:
        return settings.jitter(0)


def test_the_walk_is_bounded_in_data_without_end() -> None:
    rows: Any = [[[[] for _ in range(30)] for _ in range(30)] for _ in range(30)]
    walk = _Walk({"x": rows}, set(), False, None, (), True)
    assert list(walk.found()) == []
    assert 1000 < len(walk.seen) <= 3000


class SizedBySettings(Sampler[int]):
    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        yield from range(0, settings.size * 3)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_reads_what_the_dataset_draws_from_changes_nothing(workers: int) -> None:
    plain = of_values({"dataset": InNamespace}, workers)
    loader = of_values({"dataset": InNamespace}, workers, sampler=SizedBySettings())
    lists(loader), lists(plain)
    iterator = iter(loader)
    found = lists([next(iterator)])
    iterator.state_dict(), pickle.dumps(iterator)  # warnings are errors
    assert found + lists(iterator) == lists(plain)


own: Any = None


def reads_its_loader(samples: list[Any]) -> Any:
    assert own is None or own.loader is not None
    return default_collate(samples)


def test_a_collate_fn_that_reads_its_own_iterator_is_not_warned_of() -> None:
    global own
    own = iter(DataLoader(Numbers(N), BATCH, shuffle=True, seed=1, collate_fn=reads_its_loader))
    next(own)
    own.state_dict()  # warnings are errors
    own = None


@pytest.fixture
def another_bit_generator() -> Iterator[None]:
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.set_bit_generator(np.random.PCG64(3))  # type: ignore[attr-defined]
    yield
    np.random.set_bit_generator(before)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("another_bit_generator")
def test_a_batch_is_the_same_in_a_worker_where_the_program_has_exchanged_numpy_s_generator() -> (
    None
):
    here, there = (lists(DataLoader(Noisy(), 4, seed=1, num_workers=n)) for n in (0, 1))
    assert here == there
    assert type(np.random.get_bit_generator()) is np.random.PCG64  # type: ignore[attr-defined]
