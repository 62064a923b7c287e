"""People's code that counts or collects while it makes batches: a save that lacks it warns."""

from __future__ import annotations

import pickle
import random
import sys
import warnings
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset

from picklable_loader import DataLoader, LoaderIterator
from picklable_loader.errors import LoaderWarning
from picklable_loader.fetching.worker.collected import Collected, changed, look

BATCHES = 24  # each of two workers makes six of these, with near certainty


class Data(Dataset[int]):
    """Reads a sample; what a subclass does meanwhile does not change it."""

    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, index: int) -> int:
        self.read(index)
        return index

    def read(self, index: int) -> None:
        pass


class Counts(Data):
    count = 0

    def read(self, index: int) -> None:
        self.count += 1


class Warms(Data):
    def __init__(self) -> None:
        self.strength = 0.1

    def read(self, index: int) -> None:
        self.strength += 0.001


class Mixes(Data):
    """As ultralytics' mosaic, which takes the other images from a list of the last ones."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def read(self, index: int) -> None:
        self.buffer.append(index)
        if len(self.buffer) > 3:
            del self.buffer[0]


class InTransform(Data):
    """As mmdet's CachedMosaic, in a pipeline."""

    def __init__(self) -> None:
        self.transforms = {"train": [str.lower, Mixes([])]}

    def read(self, index: int) -> None:
        self.transforms["train"][1].read(index)


class InSlots(Data):
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def read(self, index: int) -> None:
        self.count += 1


def counting() -> Callable[[Any], Any]:
    count = 0

    def collate(samples: list[int]) -> torch.Tensor:
        nonlocal count
        count += 1
        return torch.tensor(samples)

    return collate


class Collator:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, samples: list[int]) -> torch.Tensor:
        self.seen.extend(samples)
        return torch.tensor(samples)

    def collate(self, samples: list[int]) -> torch.Tensor:
        return self(samples)


class Converter:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return batch


#: what depends on earlier samples, and the path that the warning names
COLLECT: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a count": (lambda: {"dataset": Counts()}, "dataset.count"),
    "a strength that rises": (lambda: {"dataset": Warms()}, "dataset.strength"),
    "a list": (lambda: {"dataset": Mixes([])}, "dataset.buffer"),
    "a deque": (lambda: {"dataset": Mixes(deque([1]))}, "dataset.buffer"),
    "in a Subset": (
        lambda: {"dataset": Subset(Mixes([]), range(4 * BATCHES))},
        "dataset.dataset.buffer",
    ),
    "in a transform": (
        lambda: {"dataset": InTransform()},
        "dataset.transforms['train'][1].buffer",
    ),
    "in a slot": (lambda: {"dataset": InSlots()}, "dataset.count"),
    "in a closure": (lambda: {"dataset": Data(), "collate_fn": counting()}, "collate_fn.count"),
    "a collator": (lambda: {"dataset": Data(), "collate_fn": Collator()}, "collate_fn.seen"),
    "its method": (
        lambda: {"dataset": Data(), "collate_fn": Collator().collate},
        "collate_fn.seen",
    ),
    "a partial": (
        lambda: {"dataset": Data(), "collate_fn": partial(Collator().collate)},
        "collate_fn.seen",
    ),
    "convert": (lambda: {"dataset": Data(), "convert": Converter()}, "convert.count"),
}


class Caches(Data):
    """Reads by a list that is filled, a dict, a class of its own, a file; and draws numbers."""

    drawn = 0

    def __init__(self) -> None:
        self.images: list[Any] = [None] * len(self)
        self.texts: list[Any] = [""] * len(self)
        self.by_index: dict[int, Any] = {}
        self.newest = OrderedDict[int, Any]()
        self.cache = Cache()
        self.file: Any = None
        self.scratch = np.zeros(3)
        self.settings = {"size": 3}

    def read(self, index: int) -> None:
        self.images[index] = self.texts[index] = (index,)
        self.by_index[index] = self.newest[index] = self.cache[index] = index
        if self.file is None:
            self.file = BytesIO(bytes(1000))
        self.file.seek(index)
        self.last, self.drawn, self.flip = str(index), random.randrange(6), random.random() < 0.5
        self.sizes = [random.random()]
        self.scratch[:] = index


class Cache(UserDict[int, Any]):
    """As those of cachetools, which count their items."""

    size = 0

    def __setitem__(self, key: int, value: Any) -> None:
        self.size += 1
        super().__setitem__(key, value)


class Saves(Counts):
    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4 * BATCHES))


def _warnings(act: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", LoaderWarning)
        act()
    return [str(each.message) for each in given]


def _begun(made: dict[str, Any], workers: int) -> tuple[DataLoader[Any], LoaderIterator[Any]]:
    loader: DataLoader[Any] = DataLoader(batch_size=4, shuffle=True, num_workers=workers, **made)
    iterator = iter(loader)
    for _ in islice(iterator, BATCHES - 2):
        pass
    return loader, iterator


@pytest.mark.parametrize("way", ["state_dict", "pickle"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", COLLECT)
def test_a_save_warns_once_of_what_it_lacks(kind: str, workers: int, way: str) -> None:
    make, path = COLLECT[kind]
    loader, iterator = _begun(make(), workers)
    save = loader.state_dict if way == "state_dict" else partial(pickle.dumps, iterator)
    in_pickle = way == "pickle" and not workers  # it has the objects as they are
    found = _warnings(save)
    assert len(found) == (not in_pickle), found
    assert in_pickle or f"loader.{path} changes while samples are read" in found[0]
    assert _warnings(save) == []
    iterator.close()


def test_a_pickle_that_leaves_the_dataset_out_warns_of_its_count_and_not_of_the_collators() -> None:
    made = {"dataset": Counts(), "collate_fn": Collator(), "pickle_dataset": False}
    loader, iterator = _begun(made, 0)
    (found,) = _warnings(lambda: pickle.dumps(iterator))
    assert "dataset.count" in found and "collate_fn" not in found


@pytest.mark.parametrize("workers", [0, 2])
def test_no_warning_comes_of_caches_files_and_numbers_that_are_set_anew(workers: int) -> None:
    loader, iterator = _begun({"dataset": Caches()}, workers)
    assert _warnings(loader.state_dict) == []
    iterator.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_no_warning_comes_of_a_dataset_that_saves_its_count(workers: int) -> None:
    loader, iterator = _begun({"dataset": Saves()}, workers)
    assert _warnings(loader.state_dict) == []
    iterator.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_collator_of_a_stream_is_looked_at_as_well(workers: int) -> None:
    made = {"dataset": Stream(), "collate_fn": Collator()}
    loader: DataLoader[Any] = DataLoader(batch_size=4, num_workers=workers, **made)
    iterator = iter(loader)
    for _ in islice(iterator, 8):
        pass
    (found,) = _warnings(loader.state_dict)
    assert "collate_fn.seen" in found
    iterator.close()


def _found(collected: Collected, *batches: Callable[[], object]) -> list[tuple[str, ...]]:
    """What is found after the first batch, which does nothing, and after each of these."""
    found = []
    for make in (lambda: None, *batches):
        collected.begin()
        make()
        found.append(collected.end())
    return found


def test_a_list_whose_items_change_once_is_a_cache_and_one_where_they_change_again_is_not() -> None:
    class Fills(Data):
        def __init__(self, size: int) -> None:
            self.texts: list[Any] = [str(index) for index in range(size)]

        def read(self, index: int) -> None:
            self.texts[index % len(self.texts)] = (index,)

    for size, found in ((4 * BATCHES, ()), (3, ("dataset.texts",))):
        data = Fills(size)
        batches = [partial(list, map(data.read, range(n, n + 4))) for n in range(4, 24, 4)]
        assert _found(Collected({"dataset": data}), *batches)[-1] == found


@pytest.mark.parametrize("workers", [0, 2])
def test_the_last_index_of_an_ordered_pass_is_no_count(workers: int) -> None:
    class Notes(Data):
        last = shown = 0

        def __init__(self) -> None:
            self.last = self.shown = 0

        def read(self, index: int) -> None:
            self.last, self.shown = index, index + 7

    loader = DataLoader(Notes(), batch_size=2, num_workers=workers)
    iterator = iter(loader)
    for _ in islice(iterator, BATCHES):
        pass
    assert _warnings(loader.state_dict) == []
    iterator.close()


def test_of_a_library_only_lists_of_datasets_and_callables_are_looked_at(tmp_path: Path) -> None:
    """PIL counts frames, httpx requests; ultralytics' dataset has a list of images."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "a_library.py").write_text(LIBRARY)
    spec: Any = spec_from_file_location("a_library", folder / "a_library.py")
    library = sys.modules["a_library"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(library)
        data = Data()
        data.file, data.mosaic = library.File(), library.Mosaic()  # type: ignore[attr-defined]
        found = look({"dataset": data})
    finally:
        del sys.modules["a_library"]
    assert found.items.keys() == {"dataset.mosaic.images"} and not found.numbers


LIBRARY = """
class File:
    def __init__(self):
        self.frame, self.offsets = 0, []

class Mosaic:
    def __init__(self):
        self.calls, self.images = 0, []

    def __call__(self, image):
        return image
"""


class Slotted:
    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = {"x": 1}

    def __getattr__(self, name: str) -> Any:
        return self.data[name]  # a KeyError for what it lacks


class Refuses:
    def __getattribute__(self, name: str) -> Any:
        raise ValueError(name)


@pytest.mark.parametrize("kind", [Slotted, Refuses])
def test_an_object_that_raises_for_its_attributes_is_no_error(kind: type[Any]) -> None:
    data = Mixes([])
    data.records = [kind() for _ in range(4)]  # type: ignore[attr-defined]
    data.later: list[int] = []  # type: ignore[misc]
    assert look({"dataset": data}).items.keys() >= {"dataset.buffer", "dataset.later"}


def test_a_look_at_much_data_is_short() -> None:
    """By count, as times depend on the machine."""

    class Annotation:
        asked = 0

        def __init__(self) -> None:
            self.label = 0

    data = Data()
    data.by_image = {n: [Annotation()] for n in range(30_000)}  # type: ignore[attr-defined]
    data.lists = [[*range(5000)] for _ in range(60)]  # type: ignore[attr-defined]
    for n in range(5000):
        setattr(data, f"attribute_{n}", n)
    found = look({"dataset": data})
    assert len(found.numbers) <= 3000 and len(found.items) <= 500
    assert sum(len(each.ids) for each in found.items.values()) <= 5000


def test_a_long_list_is_noticed_by_its_length() -> None:
    data = Mixes([*range(20_000)])
    collected = Collected({"dataset": data})
    replace, append = partial(data.buffer.__setitem__, 0, -1), partial(data.buffer.append, 1)
    assert _found(collected, replace, append) == [(), (), ("dataset.buffer",)]


def test_a_number_has_to_rise_by_the_same_amount_with_each_batch() -> None:
    data = Counts()
    data.read(0)

    def found(*steps: int) -> tuple[str, ...]:
        batches = [partial(_rise, data, step) for step in steps]
        return _found(Collected({"dataset": data}), *batches)[-1]

    assert found(2, 2, 2, 2, 2) == ("dataset.count",)
    assert found(2, 2, 3, 2, 2) == found(2, 2, 2, 2) == found(0, 0, 0, 0, 0) == ()


def _rise(data: Counts, step: int) -> None:
    data.count += step


def test_numbers_of_any_size_are_looked_at() -> None:
    data = Counts()
    data.count, data.ratio = 10**400, float("nan")  # type: ignore[attr-defined]
    found = _found(Collected({"dataset": data}), *[partial(_rise, data, 10**400)] * 5)
    assert found[-1] == ("dataset.count",)
    assert changed(look({"dataset": data}), look({"dataset": data})) == []


def test_keys_that_are_objects_are_not_asked_for_their_text() -> None:
    class Key:
        def __repr__(self) -> str:
            raise AssertionError

    data = Data()
    data.by_key = {Key(): Mixes([])}  # type: ignore[attr-defined]
    assert "dataset.by_key[...].buffer" in look({"dataset": data})[0]


def test_changes_by_the_program_between_two_batches_are_its_own() -> None:
    data = Mixes([])
    collected = Collected({"dataset": data})
    for index in range(8):
        assert _found(collected, lambda: None)[-1] == ()
        data.read(index)


def test_the_first_batch_may_fill_a_lazy_list() -> None:
    data = Mixes([])
    collected = Collected({"dataset": data})
    collected.begin()
    data.buffer.extend(range(3))
    assert collected.end() == ()
    assert _found(collected, lambda: None)[-1] == ()


def test_an_object_that_holds_itself_is_looked_at_once() -> None:
    data = Mixes([])
    data.itself = [data]  # type: ignore[attr-defined]
    found = _found(Collected({"dataset": data}), partial(data.read, 1))
    assert found[-1] == ("dataset.buffer",)
