"""What two parts of a loader share stays one object, whichever of them a codec carries."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
import torch
from laws.codecs import by_torch
from torch.utils.data import Dataset

from picklable_loader import DataLoader


class Item:
    """An object that pickle takes as it is."""


#: what is shared
SHARED: dict[str, Callable[[], Any]] = {
    "object": Item,
    "list": list,
    "dict": dict,
    "generator": torch.Generator,
    "tensor": lambda: torch.zeros(2),
}


class Part(Dataset[int]):
    """It can be any part of a loader, and holds what it shares."""

    def __init__(self, shared: Any, odd: Any) -> None:
        self.held = {"deep": [shared]}
        self.odd = odd

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index

    def __iter__(self) -> Iterator[Any]:
        return iter([0, 1, 2, 3])

    def __call__(self, value: Any) -> Any:
        return value


class Batches(Part):
    def __iter__(self) -> Iterator[Any]:
        return iter([[0, 1], [2, 3]])


def closing_over(part: Part) -> Any:
    return lambda value: (part, value)[1]


#: by name of a part, how a loader gets it, and how it is found in the loader again
PARTS: dict[str, tuple[Callable[[Any], dict[str, Any]], Callable[[Any], Any]]] = {
    "dataset": (lambda part: {"dataset": part}, lambda loader: loader.dataset),
    "sampler": (lambda part: {"sampler": part}, lambda loader: loader.sampler),
    "batch_sampler": (lambda part: {"batch_sampler": part}, lambda loader: loader.batch_sampler),
    "collate_fn": (lambda part: {"collate_fn": part}, lambda loader: loader.collate_fn),
    "worker_init_fn": (lambda part: {"worker_init_fn": part}, lambda loader: loader.worker_init_fn),
    "seed_hooks": (lambda part: {"seed_hooks": [part]}, lambda loader: loader.seed_hooks[0]),
    "on_error": (lambda part: {"on_error": part}, lambda loader: loader._pl.options.on_error),
}
PAIRS = [pair for pair in combinations(PARTS, 2) if pair != ("sampler", "batch_sampler")]


def by_pickle(obj: Any) -> Any:
    return pickle.loads(pickle.dumps(obj))


def attached(loader: Any) -> Any:
    again = by_pickle(loader)
    again.attach(loader.dataset)
    return again


WAYS = {"pickle": by_pickle, "torch.save": by_torch, "attach": attached}


def held(part: Any) -> Any:
    """What a part shares; functions have closed over the part."""
    if not isinstance(part, Part):
        (cell,) = part.__closure__
        part = cell.cell_contents
    return part.held["deep"][0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("codec", ["auto", "cloudpickle", "dill"])
@pytest.mark.parametrize("first, second", PAIRS, ids=map("-".join, PAIRS))
def test_what_two_parts_share_is_one_object_after_loading(
    first: str, second: str, codec: Any, way: str
) -> None:
    if way == "attach" and first == "dataset":
        pytest.skip("the dataset that is attached brings objects of its own")
    for name, make in SHARED.items():
        for needy in ("", first, second, "both"):
            for form in (Part, closing_over):
                shared, options = make(), {"dataset": Part(None, None)}
                for part in (first, second):
                    odd = (lambda: 0) if needy in (part, "both") else None
                    whole = (Batches if part == "batch_sampler" else Part)(shared, odd)
                    function = part not in ("dataset", "sampler", "batch_sampler")
                    if form is closing_over and function and odd:
                        options.update(PARTS[part][0](closing_over(whole)))
                    else:
                        options.update(PARTS[part][0](whole))
                loader = DataLoader(**options, codec=codec, pickle_dataset=way != "attach")
                again = WAYS[way](loader)
                ours, theirs = (held(PARTS[part][1](again)) for part in (first, second))
                assert again._pl.options.seed_hooks == tuple(again.seed_hooks)
                assert again._pl.options.on_error == again.on_error
                assert ours is theirs, (name, needy, form)
                assert type(ours) is type(shared) and ours is not shared


class Transform:
    """Draws from a generator of its own, as those of libraries do."""

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def set_random_state(self, seed: int) -> None:
        self.rng.seed(seed)


class Augmented(Part):
    def __getitem__(self, index: int) -> int:
        return index + self.held["deep"][0].rng.randrange(1000)


@pytest.mark.parametrize("odd", [None, lambda: 0], ids=["ordinary", "carried"])
@pytest.mark.parametrize("way", [by_pickle, by_torch])
@pytest.mark.parametrize("codec", ["auto", "cloudpickle", "dill"])
def test_a_hook_seeds_the_datasets_transform_after_loading_as_well(
    codec: Any, way: Any, odd: Any
) -> None:
    transform = Transform()
    hooks = [lambda seed: transform.set_random_state(seed)]
    it = iter(DataLoader(Augmented(transform, odd), seed=1, seed_hooks=hooks, codec=codec))
    next(it)
    again = way(it)
    assert list(again) == list(it)
    assert list(again.loader) == list(it.loader)


@pytest.mark.parametrize("make", [set, bytearray, dict, Item])
def test_so_are_other_containers_and_a_list_that_is_a_whole_part(make: Callable[[], Any]) -> None:
    shared = make()
    loader = DataLoader(Part(shared, None), collate_fn=closing_over(Part(shared, None)))
    again = by_pickle(loader)
    assert held(again.dataset) is held(again.collate_fn) and type(held(again.dataset)) is type(
        shared
    )
    rows = [1, 2, 3]
    loader = DataLoader(rows, collate_fn=lambda samples: rows)  # type: ignore[arg-type]
    again = by_pickle(loader)
    assert again.collate_fn([]) is again.dataset


def test_a_list_that_is_the_dataset_is_left_out_wherever_it_is_referred_to() -> None:
    rows = ["a row of the dataset"]
    loader = DataLoader(rows, collate_fn=lambda _: rows, pickle_dataset=False)  # type: ignore
    data = pickle.dumps(loader)
    assert b"a row of" not in data
    again = pickle.loads(data)
    again.attach(other := list(rows))
    assert again.collate_fn([]) is other


# --- several in one pickle -----------------------------------------------------------------------


@pytest.mark.parametrize("odd", ["nothing", "collate_fn", "both"])
@pytest.mark.parametrize("way", [by_pickle, by_torch])
def test_loaders_and_iterators_in_one_pickle_share_what_they_shared(way: Any, odd: str) -> None:
    dataset, hook = Part(Item(), None), Part(None, None)
    functions: dict[str, Any] = {"collate_fn": lambda samples: (dataset, samples)}
    options = {} if odd == "nothing" else functions
    others = options if odd == "both" else {}
    one = DataLoader(dataset, 2, seed=1, seed_hooks=[hook], **options)
    other = DataLoader(dataset, 2, seed=2, seed_hooks=[hook], **others)
    iterators = [iter(one), iter(other)]
    next(iterators[0])
    found = way([*iterators, one, other, dataset])
    assert [found[0].loader, found[1].loader] == found[2:4]
    assert found[2].dataset is found[3].dataset is found[4]
    assert found[2].seed_hooks[0] is found[3].seed_hooks[0]
    for loader, carried in zip(found[2:4], (options, others)):
        assert not carried or loader.collate_fn([])[0] is found[4]
    assert [len(list(iterator)) for iterator in found[:2]] == [1, 2]


class Image(torch.Tensor):
    """As torchvision's are."""


class Noted(torch.Tensor):
    """It has attributes, which only a codec may be able to write."""


class WithTensors(Dataset[Any]):
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.scale = lambda: 1  # so that a codec carries it

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensor[index] * self.scale()


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter, Image])
def test_a_tensor_that_a_model_shares_with_a_carried_dataset_is_saved_once(kind: Any) -> None:
    weights = torch.arange(100000.0)
    data = WithTensors(
        torch.nn.Parameter(weights) if kind is torch.nn.Parameter else (weights.as_subclass(kind))
    )
    model, iterator = by_torch((weights, iter(DataLoader(data, 2))))
    found = iterator.loader.dataset.tensor
    assert type(found) is kind and found.data_ptr() == model.data_ptr()
    assert len(list(iterator)) == 2


def test_a_tensor_with_attributes_that_pickle_refuses_is_carried_with_them() -> None:
    tensor = torch.arange(4.0).as_subclass(Noted)
    tensor.note = lambda: 5
    found = pickle.loads(pickle.dumps(iter(DataLoader(WithTensors(tensor))))).loader.dataset.tensor
    assert type(found) is Noted and found.note() == 5 and found.tolist() == [0, 1, 2, 3]


# --- a trainer that has loader and iterator, and is a part of the loader -------------------------


class Trainer:
    """Its method is the collate_fn."""

    def __init__(self, locked: bool, **options: Any) -> None:
        data: Any = range(24)
        self.lock = threading.Lock() if locked else None
        self.loader: Any = DataLoader(
            data, 4, shuffle=True, seed=1, collate_fn=self.collate, **options
        )
        self.iterator = iter(self.loader)
        self.calls = 0
        next(self.iterator)

    def collate(self, samples: list[int]) -> torch.Tensor:
        self.calls = self.__dict__.get("calls", 0) + 1
        return torch.tensor(samples)


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("codec", ["auto", "cloudpickle"])
@pytest.mark.parametrize("root", ["trainer", "loader", "iterator"])
def test_a_trainer_whose_method_is_the_collate_fn_comes_back_whole_from_each_of_its_parts(
    root: str, codec: Any, locked: bool
) -> None:
    trainer = Trainer(locked, codec=codec)
    roots = {"trainer": trainer, "loader": trainer.loader, "iterator": trainer.iterator}
    if locked and root == "trainer":
        pytest.skip("pickle itself refuses the lock of what is no part of a loader")
    found = pickle.loads(pickle.dumps(roots[root]))
    loader = found if root == "loader" else found.loader
    again = loader.collate_fn.__self__
    iterator = {"trainer": found, "loader": again}[root].iterator if root != "iterator" else found
    assert again.loader is loader and again.iterator.loader is loader
    if root != "loader" and not locked and codec == "auto":
        assert found in (again, again.iterator)  # else a codec carries a trainer of its own
    calls = again.calls
    rest = [batch.tolist() for batch in iterator]
    assert rest == [batch.tolist() for batch in trainer.iterator] and len(rest) == 5
    assert again.calls == calls + 5
    assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in trainer.loader]
