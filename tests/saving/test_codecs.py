"""The self-contained door: iterators whose parts plain pickle refuses are pickled all the same."""

from __future__ import annotations

import copy
import functools
import io
import mmap
import pickle
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import ShareableList, SharedMemory
from typing import Any

import cloudpickle
import dill
import numpy as np
import pytest
import torch
from laws.codecs import by_torch
from laws.observe import lists
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler, TensorDataset
from zoo.datasets import Noisy
from zoo.streams import StatefulDataset
from zoo.upside import Upside

import picklable_loader
from picklable_loader import DataLoader
from picklable_loader.errors import CannotLoadError, CannotSaveError, ReplayWarning, UsageError
from picklable_loader.saving.pickles.codecs import Carried, open_carried

Load = Callable[[Any], Any]


def out_of_band(it: Any) -> Any:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(it, 5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=buffers)


DOORS: dict[str, Load] = {
    **{
        f"pickle-{n}": (lambda it, n=n: pickle.loads(pickle.dumps(it, n)))  # type: ignore[misc]
        for n in range(6)
    },
    "out of band": out_of_band,
    "cloudpickle": lambda it: pickle.loads(cloudpickle.dumps(it)),
    "dill": lambda it: dill.loads(dill.dumps(it)),
    "torch.save": by_torch,
    "deepcopy": copy.deepcopy,
}


def local_dataset() -> Any:
    class Local(Dataset[Any]):
        def __init__(self) -> None:
            self.data = torch.arange(17.0)
            self.transform = lambda value: value + self.data[0] + torch.rand(())

        def __len__(self) -> int:
            return 17

        def __getitem__(self, index: int) -> Any:
            return self.transform(self.data[index])

    return Local()


def locked_dataset() -> Any:
    dataset = Noisy()
    dataset.lock = threading.Lock()  # type: ignore[attr-defined]
    return dataset


class Inherits(Noisy):
    """Its class, and super(), have to come back as they were."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            return super().__getitem__(index)


def local_heir() -> Any:
    class Heir(Inherits):
        def __init__(self) -> None:
            super().__init__()
            self.transform = lambda value: value * 2

        def __getitem__(self, index: int) -> Any:
            return self.transform(super().__getitem__(index))

    return Heir()


def renamed(function: Any) -> Any:
    def wrapper(self: Any, samples: Any) -> Any:
        return function(self, samples)

    return wrapper


class Collates(Noisy):
    factor = 3

    @renamed
    def collate(self, samples: Any) -> Any:
        return torch.stack(samples) * self.factor


def collating() -> dict[str, Any]:
    dataset = Collates()
    return {"dataset": dataset, "collate_fn": dataset.collate}


def local_sampler(dataset: Any) -> Any:
    class Walk:
        def __init__(self, owner: Any) -> None:
            self.owner, self.at = owner, 0

        def __iter__(self) -> Walk:
            return self

        def __next__(self) -> int:
            if self.at == len(self.owner.dataset):
                raise StopIteration
            self.at += 1
            return self.owner.order[self.at - 1]  # type: ignore[no-any-return]

    class Backwards(Sampler[int]):
        def __init__(self) -> None:
            self.dataset = dataset
            self.order = list(range(len(dataset)))[::-1]

        def __iter__(self) -> Iterator[int]:
            return Walk(self)

        def __len__(self) -> int:
            return len(self.order)

    return Backwards()


def local_stream() -> Any:
    class Stream(StatefulDataset):
        def __init__(self) -> None:
            super().__init__()
            self.shift = lambda value: value + torch.rand(())

        def __iter__(self) -> Iterator[Any]:
            return map(self.shift, super().__iter__())

    return Stream()


def hooked(**more: Any) -> dict[str, Any]:
    return {"dataset": Noisy(), "shuffle": True, "seed_hooks": [lambda seed: seed], **more}


def batched() -> dict[str, Any]:
    dataset = local_dataset()
    return {"dataset": dataset, "batch_sampler": BatchSampler(local_sampler(dataset), 3, False)}


def sampled() -> dict[str, Any]:
    dataset = local_dataset()
    return {"dataset": dataset, "sampler": local_sampler(dataset)}


#: what people have in their loaders, and plain pickle refuses
ODD: dict[str, Callable[[], dict[str, Any]]] = {
    "collate_fn": lambda: {"dataset": Noisy(), "collate_fn": lambda samples: torch.stack(samples)},
    "worker_init_fn": lambda: {"dataset": Noisy(), "worker_init_fn": lambda worker: None},
    "seed_hooks": hooked,
    "on_error": lambda: {"dataset": Noisy(), "on_error": lambda error, index: None},
    "dataset": lambda: {"dataset": local_dataset(), "shuffle": True},
    "sampler": sampled,
    "batch_sampler": batched,
    "a lock": lambda: {"dataset": locked_dataset(), "shuffle": True},
    "a lock and a base class": lambda: {"dataset": Inherits()},
    "a local class with both": lambda: {"dataset": local_heir()},
    "a decorated method": collating,
    "a stream": lambda: {"dataset": local_stream()},
}


LOCKED = ("a lock", "a lock and a base class", "a local class with both")


def loader_of(odd: str, **options: Any) -> DataLoader[Any]:
    settings = {"seed": 5, **ODD[odd](), **options}
    if "batch_sampler" not in settings:
        settings["batch_size"] = 3
    return DataLoader(**settings)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "codec, door",
    [("auto", door) for door in DOORS]
    + [(codec, door) for codec in ("cloudpickle", "dill") for door in ("pickle-4", "torch.save")],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_with_odd_parts_goes_on_where_it_was(
    odd: str, door: str, codec: str, workers: int
) -> None:
    if odd in LOCKED and door == "deepcopy":
        pytest.skip("deepcopy takes no locks")
    expected = lists(loader_of(odd, num_workers=workers))
    it = iter(loader_of(odd, num_workers=workers, codec=codec))
    for step in range(len(expected)):
        next(it)
        if workers == 0 or step == 2:
            assert lists(DOORS[door](it)) == expected[step + 1 :]


@pytest.mark.parametrize("odd", ODD)
def test_what_was_saved_twice_over_goes_on_as_well(odd: str) -> None:
    expected = lists(loader_of(odd))
    it = iter(loader_of(odd))
    for step in range(1, 4):
        next(it)
        it = pickle.loads(pickle.dumps(it))
    assert lists(it) == expected[3:]
    epochs = [lists(it.loader) for _ in range(2)]
    whole = loader_of(odd)
    assert epochs == [lists(whole) for _ in range(3)][1:]


def test_a_loader_of_a_local_class_travels_with_its_class() -> None:
    class Mine(DataLoader[Any]):
        factor = 3

    it = iter(Mine(Noisy(), 2, seed=1))
    first = next(it)
    again = pickle.loads(pickle.dumps(it))
    assert again.loader.factor == 3 and type(again.loader).__name__ == "Mine"
    assert lists([first, *again]) == lists(DataLoader(Noisy(), 2, seed=1))


# --- what is shared ------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_parts_that_see_each_other_still_do(door: str) -> None:
    it = iter(loader_of("sampler"))
    next(it)
    loader = DOORS[door](it).loader
    assert loader.sampler.dataset is loader.dataset


def test_a_dataset_that_holds_its_loader_holds_it_afterwards() -> None:
    for dataset in (Noisy(), local_dataset()):
        loader = DataLoader(dataset, 3, seed=1)
        dataset.loader = loader
        again = pickle.loads(pickle.dumps(loader))
        assert again.dataset.loader is again


def test_torch_save_stores_a_carried_datasets_tensors_once() -> None:
    dataset = local_dataset()
    dataset.data = torch.rand(100_000)
    file = io.BytesIO()
    torch.save({"it": iter(DataLoader(dataset, 3)), "data": dataset.data}, file)
    assert file.tell() < 1.2 * dataset.data.nbytes
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    data = loaded["it"].loader.dataset.data
    assert data.untyped_storage().data_ptr() == loaded["data"].untyped_storage().data_ptr()


def test_arrays_of_a_carried_dataset_travel_out_of_band() -> None:
    dataset = local_dataset()
    dataset.array = np.zeros(1_000_000)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(iter(DataLoader(dataset, 3)), 5, buffer_callback=buffers.append)
    assert len(data) < 100_000
    assert sum(buffer.raw().nbytes for buffer in buffers) >= dataset.array.nbytes


def test_a_loader_of_ordinary_parts_is_pickled_as_ever() -> None:
    data = pickle.dumps(iter(DataLoader(Noisy(), 3)))
    assert b"_carried" not in data and b"cloudpickle" not in data and b"dill" not in data


def test_a_datasets_state_is_asked_for_once_to_decide_and_once_to_save() -> None:
    asked = []

    class Counting(Noisy):
        def __getstate__(self) -> dict[str, Any]:
            asked.append(1)
            return {}

    it = iter(DataLoader(Counting(), 3, collate_fn=lambda samples: samples))
    for _ in range(5):
        asked.clear()
        pickle.dumps(it)
    assert len(asked) == 1  # what was decided is remembered


def test_a_part_that_has_changed_is_decided_on_anew() -> None:
    dataset: Any = Noisy()
    it = iter(DataLoader(dataset, 3, seed=1))
    assert b"_carried" not in pickle.dumps(it)
    dataset.lock = threading.Lock()
    again = pickle.loads(pickle.dumps(it))
    assert lists(again) == lists(it)
    del dataset.lock
    assert b"_carried" not in pickle.dumps(it)


# --- codecs --------------------------------------------------------------------------------------


def test_a_codec_may_be_anybodys() -> None:
    it = iter(loader_of("dataset", codec=Upside()))
    next(it)
    again = pickle.loads(pickle.dumps(it))
    assert type(again.loader.codec) is Upside
    assert lists(again) == lists(it)


@pytest.mark.parametrize(
    ("codec", "error", "text"),
    [
        *((each, ValueError, "one of 'auto', 'pickle'") for each in ("json", 7, None, Noisy())),
        (Upside, TypeError, "an instance, got the class Upside"),
    ],
)
def test_what_is_no_codec_is_refused_at_once(codec: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=f"codec should be {text}"):
        DataLoader(Noisy(), codec=codec)


_SCRIPT = """
import pickle, sys, torch
from picklable_loader import DataLoader

class Typed(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return index + torch.rand(())

for codec in ("cloudpickle", "auto"):
    it = iter(DataLoader(Typed(), 2, seed=1, codec=codec))
    next(it)
    pickle.dump(pickle.dumps(it), sys.stdout.buffer)
"""


@functools.cache
def written_by(program: str, *arguments: str) -> list[bytes]:
    """The iterators that another process has pickled."""
    command = [sys.executable, "-c", program, *arguments]
    file = io.BytesIO(subprocess.run(command, capture_output=True, check=True).stdout)
    found = []
    while file.tell() < len(file.getbuffer()):
        found.append(pickle.load(file))
    return found


def test_a_class_of_main_goes_by_value_when_asked() -> None:
    by_value, by_name = written_by(_SCRIPT)
    assert len(lists(pickle.loads(by_value))) == 3
    with pytest.raises(AttributeError, match="Typed"):
        pickle.loads(by_name)


_LOCAL = """
import pickle, sys, torch
from picklable_loader import DataLoader

def backwards():
    class Backwards(torch.utils.data.Sampler):
        def __len__(self):
            return 8
        def __iter__(self):
            return iter(range(7, -1, -1))
    return Backwards()

def stream():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(7, -1, -1))
    return Stream()

for loader in DataLoader(range(8), 2, sampler=backwards()), DataLoader(stream(), 2):
    it = iter(loader)
    next(it)
    pickle.dump(pickle.dumps(it), sys.stdout.buffer)
"""


def test_local_classes_of_a_sampler_and_a_stream_are_the_same_in_another_process() -> None:
    """Codecs lose the scope of their names, with which a state is compared."""
    for saved in written_by(_LOCAL):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReplayWarning)
            found = [batch.tolist() for batch in pickle.loads(saved)]
        assert found == [[5, 4], [3, 2], [1, 0]]


_KINDS = """
import dataclasses, enum, pickle, sys, torch, typing
from picklable_loader import DataLoader

@dataclasses.dataclass
class Point:
    x: int

class Row(typing.NamedTuple):
    point: Point
    data: torch.Tensor

class Color(enum.Enum):
    RED = 1

class Trouble(Exception):
    pass

class Outer:
    class Inner(list):
        pass

class Typed(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if index == 7:
            raise Trouble("the last one")
        return Row(Point(index), torch.full((3,), index)), Color.RED, Outer.Inner([index])

if __name__ == "__main__":
    it = iter(DataLoader(Typed(), None, num_workers=1, codec=sys.argv[1]))
    next(it)
    pickle.dump(pickle.dumps(it), sys.stdout.buffer)
"""


@pytest.mark.costly
@pytest.mark.parametrize("codec", ["cloudpickle", "dill"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_classes_that_came_along_come_out_of_workers(method: str, codec: str) -> None:
    [saved] = written_by(_KINDS, codec)
    it = pickle.loads(saved)
    it.loader.multiprocessing_context = method
    found = [next(it) for _ in range(6)]
    for index, (row, color, inner) in enumerate(found, 1):
        assert (row.point.x, row.data.tolist(), list(inner)) == (index, [index] * 3, [index])
        assert color is type(color).RED and type(row) is type(found[0][0])
        assert type(inner) is type(found[0][2])
    with pytest.raises(Exception, match="the last one") as raised:
        next(it)
    assert type(raised.value).__name__ == "Trouble"


_STREAM = """
import pickle, sys, torch
from picklable_loader import DataLoader

sys.path += sys.argv[2:]
from zoo.upside import Upside

class Counting:
    at = 0
    def __iter__(self):
        return self
    def __next__(self):
        self.at += 1
        if self.at > 12:
            raise StopIteration
        return self.at

class Typed(torch.utils.data.IterableDataset):
    def __iter__(self):
        return Counting()

class Order(torch.utils.data.Sampler):
    def __iter__(self):
        return Counting()

codec = Upside() if sys.argv[1] == "own" else sys.argv[1]
for data, sampler in [(Typed(), None), (range(13), Order())]:
    for workers in (0, 1):
        it = iter(DataLoader(data, 2, sampler=sampler, num_workers=workers, codec=codec))
        next(it)
        pickle.dump(pickle.dumps(it), sys.stdout.buffer)
"""


@pytest.mark.parametrize("codec", ["cloudpickle", "dill", "own"])
def test_so_does_the_class_of_a_streams_or_a_samplers_iterator(codec: str) -> None:
    saves = written_by(_STREAM, codec, *sys.path)
    assert len(saves) == 4
    for saved in saves:
        assert lists(pickle.loads(saved)) == [[3, 4], [5, 6], [7, 8], [9, 10], [11, 12]]


def test_a_codec_that_is_not_installed_is_named(without: Callable[[str], None]) -> None:
    data = pickle.dumps(iter(loader_of("dataset")))
    without("cloudpickle")
    with pytest.raises(UsageError, match="pip install cloudpickle"):
        pickle.loads(data)
    with pytest.raises(UsageError, match="pip install cloudpickle"):
        pickle.dumps(iter(loader_of("dataset")))
    without("dill")
    with pytest.raises(UsageError, match="'dill' is not installed: pip install dill"):
        DataLoader(Noisy(), codec="dill")


# --- what cannot be opened -----------------------------------------------------------------------


def test_code_of_another_python_is_not_run() -> None:
    opener, (codec, data, beside, buffers, _) = Carried("cloudpickle", lambda: 1).__reduce_ex__(5)
    assert opener is open_carried
    assert open_carried(codec, data, beside, buffers, sys.version_info[:2])() == 1
    with pytest.raises(CannotLoadError, match=r"Python 3\.7 has written it.*state_dict"):
        open_carried(codec, data, beside, buffers, (3, 7))


def test_a_class_that_has_moved_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    it = iter(DataLoader(Noisy(), 3, collate_fn=lambda samples, kind=Noisy: samples))
    it.loader.collate_fn.__kwdefaults__ = {"kind": MovedAway}
    data = pickle.dumps(it)
    monkeypatch.delitem(globals(), "MovedAway")
    with pytest.raises(CannotLoadError, match="MovedAway.*importable under that name"):
        pickle.loads(data)


class MovedAway:
    pass


def test_torch_loads_no_code_under_weights_only() -> None:
    file = io.BytesIO()
    torch.save({"it": iter(loader_of("dataset"))}, file)
    file.seek(0)
    kinds = [DataLoader, picklable_loader.LoaderIterator]
    with torch.serialization.safe_globals(kinds):
        with pytest.raises(pickle.UnpicklingError):
            torch.load(file, weights_only=True)


# --- what cannot be saved ------------------------------------------------------------------------


def with_generator() -> Any:
    dataset: Any = Noisy()
    dataset.readers = [{"at": 1}, {"at": 2, "rows": (i for i in range(3))}]
    return dataset


@pytest.mark.parametrize("workers", [0, 2])
def test_what_no_codec_takes_is_named_with_its_path_and_nothing_is_lost(workers: int) -> None:
    it = iter(DataLoader(with_generator(), 3, seed=1, num_workers=workers))
    first = next(it)
    with pytest.raises(CannotSaveError) as raised:
        pickle.dumps(it)
    error = raised.value
    assert error.what == "loader.dataset.readers[1]['rows']"
    assert "is a generator" in error.reason and "state_dict" in error.advice
    assert lists([first, *it]) == lists(DataLoader(Noisy(), 3, seed=1))


def test_plain_pickle_alone_names_what_it_refuses() -> None:
    it = iter(loader_of("dataset", codec="pickle"))
    with pytest.raises(CannotSaveError, match=r"loader\.dataset.*codec=\"auto\""):
        pickle.dumps(it)
    lambdas = iter(loader_of("collate_fn", codec="pickle"))
    with pytest.raises(CannotSaveError, match=r"loader\.collate_fn"):
        pickle.dumps(lambdas)


def test_what_is_nested_too_deeply_is_an_error_that_says_so() -> None:
    dataset: Any = Noisy()
    dataset.nest = nest = []
    for _ in range(100_000):
        nest.append([])
        nest = nest[0]
    with pytest.raises(CannotSaveError, match=r"loader\.dataset .*nested too deeply"):
        pickle.dumps(DataLoader(dataset))


def test_what_contains_itself_is_saved() -> None:
    dataset = local_dataset()
    dataset.itself = [dataset]
    again = pickle.loads(pickle.dumps(DataLoader(dataset))).dataset
    assert again.itself[0] is again


def test_locks_come_back_free_whoever_has_held_them() -> None:
    dataset: Any = Noisy()
    dataset.locks = [threading.Lock(), threading.RLock(), threading.Condition()]
    with dataset.locks[0], dataset.locks[1]:
        again = pickle.loads(pickle.dumps(DataLoader(dataset))).dataset
    for lock in again.locks:
        assert lock.acquire(blocking=False)
        lock.release()


class Changing(Noisy):
    """Holds transforms in a list, as torchvision's Compose does."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = {"train": [str]}


def test_what_is_put_deep_into_a_part_later_is_carried_then() -> None:
    dataset = Changing()
    it = iter(DataLoader(dataset, 3, seed=1))
    pickle.dumps(it)
    dataset.steps["train"].append(lambda text: text.upper())  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(it))
    assert again.loader.dataset.steps["train"][1]("a") == "A"
    assert lists(again) == lists(it)


class LooksAway(list[int]):
    """Is looked at by pickle alone."""

    def __reversed__(self) -> Any:
        raise RuntimeError("not backwards")


def test_a_part_that_cannot_be_looked_through_is_pickled_all_the_same() -> None:
    dataset = Changing()
    dataset.steps["train"] = LooksAway([1])  # type: ignore[assignment]
    it = iter(DataLoader(dataset, 3, seed=1))
    for _ in range(2):
        assert pickle.loads(pickle.dumps(it)).loader.dataset.steps["train"] == [1]


class Wrong:
    """A codec that fails in one of the ways there are."""

    name = "wrong"

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def dumps(self, obj: Any) -> Any:
        if self.fault == "dumps":
            raise KeyError("no such thing")
        return "text" if self.fault == "text" else b""

    def loads(self, data: bytes) -> Any:
        raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("dumps", CannotSaveError, "the codec wrong raised KeyError: 'no such thing'"),
        ("text", CannotSaveError, "gave a str"),
        ("loads", CannotLoadError, "wrong carries (.|\n)*KeyError: 'no such thing'"),
    ],
)
def test_a_codec_of_somebodys_that_fails_is_named(fault: str, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        pickle.loads(pickle.dumps(iter(DataLoader(Noisy(), codec=Wrong(fault)))))


@pytest.mark.parametrize("name", ["in_order", "pin_memory_device"])
def test_a_loader_that_an_earlier_torch_has_pickled_gets_what_is_new(name: str) -> None:
    it = iter(DataLoader(Noisy(), 3, seed=1))
    next(it)
    kept = it.loader.__getstate__()
    before = kept.pop(name)
    other: DataLoader[Any] = DataLoader.__new__(DataLoader)
    other.__setstate__(kept)
    assert getattr(other, name) == before
    other.load_state_dict(it.state_dict())
    assert lists(other) == lists(it)


# --- types that torch's pickles lose --------------------------------------------------------------

LOST = [torch.uint16, torch.uint64, torch.float8_e4m3fn]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("dtype", LOST, ids=str)
def test_tensors_that_no_pickle_can_read_again_come_back(dtype: torch.dtype, door: str) -> None:
    tokens = torch.arange(24).to(dtype).view(4, 6)[:, 1:].t()
    it = iter(DataLoader(TensorDataset(tokens, tokens[:, 0]), batch_size=2))
    next(it)
    again = DOORS[door](it)
    back = again.loader.dataset.tensors[0]
    assert (back.dtype, back.stride(), back.shape) == (dtype, tokens.stride(), tokens.shape)
    found, expected = ([each[0].float().tolist() for each in rest] for rest in (again, it))
    assert found == expected


class HoldsTokens(IterableDataset[int]):
    def __init__(self, dtype: torch.dtype) -> None:
        self.tokens = torch.arange(3).to(dtype)

    def __iter__(self) -> Iterator[int]:
        for _ in range(int(self.tokens.float().sum()), 9):
            self.tokens = torch.cat([self.tokens.float(), torch.ones(1)]).to(self.tokens.dtype)
            yield len(self.tokens)

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tokens = state["tokens"]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dtype", LOST, ids=str)
def test_states_may_hold_them_as_well(dtype: torch.dtype, workers: int) -> None:
    def make() -> Any:
        return DataLoader(HoldsTokens(dtype), 2, num_workers=workers)

    it = iter(make())
    next(it)
    file = io.BytesIO()
    torch.save(it.state_dict(), file)
    file.seek(0)
    other, third, again = make(), make(), pickle.loads(pickle.dumps(it))
    other.load_state_dict(torch.load(file, weights_only=True))
    third.load_state_dict(pickle.loads(pickle.dumps(it.state_dict())))
    assert lists(other) == lists(third) == lists(again) == lists(it) == [[6, 7], [8, 9]]


class DrawsFromNumpy(IterableDataset[float]):
    """Its state has NumPy's legacy generator, whose numbers are of the type uint32."""

    def __init__(self) -> None:
        self.rng, self.given = np.random.RandomState(3), 0

    def __iter__(self) -> Iterator[float]:
        while self.given < 8:
            self.given += 1
            yield self.rng.random_sample()

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.get_state(), "given": np.uint16(self.given)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = int(state["given"])
        self.rng.set_state(state["rng"])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_may_hold_that_of_a_legacy_generator_and_be_pickled(workers: int) -> None:
    it = iter(DataLoader(DrawsFromNumpy(), 2, num_workers=workers))
    next(it)
    other = DataLoader(DrawsFromNumpy(), 2, num_workers=workers)
    other.load_state_dict(pickle.loads(pickle.dumps(it.state_dict())))
    again = pickle.loads(pickle.dumps(it))
    assert lists(other) == lists(again) == lists(it)


# --- slots ---------------------------------------------------------------------------------------


class Tagged(DataLoader[Any]):
    __slots__ = ("__private", "tag", "unset")

    def tagged(self, tag: Any, private: Any) -> Any:
        self.tag, self.__private = tag, private
        return self

    @property
    def private(self) -> Any:
        return self.__private


@pytest.mark.parametrize("door", [*DOORS, "copy"])
def test_what_a_class_derived_from_ours_has_in_slots_goes_along(door: str) -> None:
    it = iter(Tagged(Noisy(), 3, seed=1).tagged("train", lambda: 1 if door == "copy" else 2))
    next(it)
    again = {**DOORS, "copy": copy.copy}[door](it)
    assert again.loader.tag == "train" and callable(again.loader.private)
    assert not hasattr(again.loader, "unset")
    assert lists(again) == lists(it)


# --- caches ---------------------------------------------------------------------------------------


def cached_dataset() -> Any:
    @functools.lru_cache(maxsize=3)
    def double(index: int) -> int:
        return 2 * index

    class Local:
        def __len__(self) -> int:
            return 6

        @functools.cache  # noqa: B019
        def __getitem__(self, index: int) -> Any:
            return double(index)

    return Local()


@functools.lru_cache(maxsize=5)
def known(batch: int) -> int:
    return batch + 1


@pytest.mark.parametrize("codec", ["auto", "cloudpickle", "dill"])
def test_functions_that_lru_cache_has_wrapped_are_carried(codec: Any) -> None:
    add = functools.lru_cache(maxsize=7)(lambda number: number + 1)
    it = iter(DataLoader(cached_dataset(), None, collate_fn=add, codec=codec))
    next(it)
    saved = pickle.dumps(it)
    assert b"pickles.opened" in saved and b"pickles.picklers" not in saved  # that may be renamed
    again = pickle.loads(saved)
    assert list(again) == [3, 5, 7, 9, 11]
    assert again.loader.collate_fn.cache_parameters()["maxsize"] == 7


def test_one_that_a_name_leads_to_stays_the_one_there_is() -> None:
    loader = pickle.loads(pickle.dumps(DataLoader(cached_dataset(), None, collate_fn=known)))
    assert loader.collate_fn is known


# --- what belongs to its process -----------------------------------------------------------------

REFERENT = Noisy()


def removed(shared: Any) -> Any:
    """It has no name any more, so that nothing is left."""
    getattr(shared, "shm", shared).unlink()
    return shared


BOUND: dict[str, Callable[[], Any]] = {
    "a binary file": lambda: open(__file__, "rb"),
    "a text file": lambda: open(__file__),
    "a raw file": lambda: open(__file__, "rb", 0),
    "a temporary file": tempfile.TemporaryFile,
    "a memoryview": lambda: memoryview(b"rows"),
    "a weak reference": lambda: weakref.ref(REFERENT),
    "a thread": lambda: threading.Thread(target=print),
    "a program": lambda: subprocess.Popen([sys.executable, "-c", ""]),
    "a socket": socket.socket,
    "a map of memory": lambda: mmap.mmap(-1, 10),
    "a generator": lambda: (row for row in range(3)),
    "a database": lambda: sqlite3.connect(":memory:"),
    "shared memory": lambda: removed(SharedMemory(create=True, size=10)),
    "a list in shared memory": lambda: removed(ShareableList([1])),
}


@pytest.mark.parametrize("codec", ["auto", "pickle", "cloudpickle", "dill"])
@pytest.mark.parametrize("bound", BOUND)
def test_what_belongs_to_its_process_is_named_and_never_something_else_when_loaded(
    bound: str, codec: str
) -> None:
    dataset: Any = Noisy()
    dataset.transform = lambda value: value
    dataset.handles = [BOUND[bound]()]
    try:
        loader = DataLoader(dataset, codec=codec)  # type: ignore[arg-type]
        with pytest.raises(CannotSaveError) as caught:
            pickle.dumps(loader)
        assert codec == "pickle" or "loader.dataset.handles[0]" in caught.value.what
    finally:
        for name in ("close", "wait"):
            getattr(dataset.handles[0], name, lambda: None)()


@pytest.mark.parametrize("codec", ["auto", "cloudpickle", "dill"])
def test_what_has_a_form_of_its_own_is_carried(codec: str) -> None:
    dataset: Any = Noisy()
    dataset.handles = [io.BytesIO(b"rows"), sys.stderr, threading.Lock(), lambda: 1]
    data = pickle.dumps(DataLoader(dataset, codec=codec))  # type: ignore[arg-type]
    rows, stream, lock, function = pickle.loads(data).dataset.handles
    assert rows.read() == b"rows" and stream is sys.stderr and function() == 1
    assert lock.acquire(blocking=False)


_LOCKED = """
import pickle, sys, threading
from picklable_loader import DataLoader

class Typed:
    def __init__(self): self.lock = threading.Lock()
    def __len__(self): return 4
    def __getitem__(self, index): return index

pickle.dump(pickle.dumps(DataLoader(Typed(), 2, codec=sys.argv[1])), sys.stdout.buffer)
"""


@pytest.mark.parametrize("codec", ["auto", "cloudpickle"])
def test_a_class_of_a_script_and_a_lock_are_carried_together(codec: str) -> None:
    [saved] = written_by(_LOCKED, codec)
    assert lists(pickle.loads(saved)) == [[0, 1], [2, 3]]


# --- a codec that is set later -------------------------------------------------------------------


def test_each_pickle_has_the_codec_that_was_set_last() -> None:
    """Options that were replaced are freed, and new ones may be where they were."""
    loader = DataLoader(range(4), collate_fn=lambda batch: batch)  # type: ignore[arg-type]
    for _ in range(50):
        loader.codec = "cloudpickle"
        pickle.dumps(loader)
        loader.codec = "pickle"
        with pytest.raises(CannotSaveError):
            pickle.dumps(loader)
