"""Positions that do not fit the loader they are to go on in, by whatever door they come."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from picklable_loader import DataLoader
from picklable_loader.errors import CannotSaveError, LoaderWarning, StateMismatch

#: what the code of the dataset is, and what its folder holds, at the moment
world: dict[str, Any] = {}


class Files(Dataset[int]):
    """As long as its folder."""

    def __len__(self) -> int:
        return int(world["length"])

    def __getitem__(self, index: int) -> int:
        return index


class Rows(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(12)


class Evens(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(0, 12, 2)

    def __len__(self) -> int:
        return 6


@pytest.fixture(autouse=True)
def the_world_is_as_it_was() -> None:
    world["length"] = 12


def grows(monkeypatch: pytest.MonkeyPatch) -> None:
    world["length"] = 13


def becomes_map_style(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Rows", type("Rows", (Files,), {"__module__": __name__}))


def becomes_iterable(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"__module__": __name__, "__iter__": Rows.__iter__}
    monkeypatch.setitem(globals(), "Files", type("Files", (IterableDataset,), kept))


Change = Callable[[pytest.MonkeyPatch], None]

CHANGES: list[tuple[str, Callable[[], Any], Change]] = [
    ("it has grown", lambda: Files(), grows),
    ("it has become map-style", lambda: Rows(), becomes_map_style),
    ("it has become iterable-style", lambda: Files(), becomes_iterable),
]


def in_mid_epoch(loader: Any) -> Any:
    iterator = iter(loader)
    next(iterator)
    return iterator


def pending(loader: Any) -> Any:
    loader.load_state_dict(in_mid_epoch(loader).state_dict())
    return loader


DOORS: dict[str, Callable[[Any], Any]] = {
    "an iterator": in_mid_epoch,
    "an iterator at its beginning": iter,
    "a loader with a pending state": pending,
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("make", "change"), [case[1:] for case in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_a_pickle_over_a_dataset_that_has_changed_is_refused(
    make: Callable[[], Any],
    change: Change,
    door: str,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = DOORS[door](DataLoader(make(), 3, num_workers=workers))
    data = pickle.dumps(subject)
    if not isinstance(subject, torch.utils.data.DataLoader):
        subject.close()
    change(monkeypatch)
    again = pickle.loads(data)
    with pytest.raises(StateMismatch, match="dataset"):
        next(iter(again))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("make", "change"), [case[1:] for case in CHANGES[1:]])
def test_a_pickled_loader_does_not_begin_over_another_kind_of_dataset(
    make: Callable[[], Any], change: Change, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pickle.dumps(DataLoader(make(), 3, num_workers=workers))
    change(monkeypatch)
    again = pickle.loads(data)
    kinds = {False: "map-style", True: "iterable-style"}
    now = isinstance(again.dataset, IterableDataset)
    with pytest.raises(StateMismatch, match="-style") as raised:
        next(iter(again))
    (unlike,) = raised.value.differences
    assert (unlike.expected, unlike.found) == (kinds[now], kinds[not now])


def test_a_dataset_may_grow_between_two_epochs() -> None:
    iterator = iter(DataLoader(Files(), 3))
    list(iterator)
    data = pickle.dumps(iterator)
    world["length"] = 13
    again = pickle.loads(data)
    assert list(again) == []
    assert len(list(again.loader)) == 5


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sampler", [None, Evens()], ids=["torch's", "custom"])
@pytest.mark.parametrize("door", ["loader", "iterator"])
@pytest.mark.parametrize("new", [1, 2, 3, 4, 5, 7, 12, 20])
@pytest.mark.parametrize("old", [1, 2, 3, 5])
def test_with_another_batch_size_what_was_and_what_is_left_add_up_to_the_epoch(
    old: int, new: int, door: str, sampler: Any, drop_last: bool
) -> None:
    def build(size: int) -> Any:
        return DataLoader(Files(), size, sampler=sampler, drop_last=drop_last)

    samples = torch.cat([*build(1)]).tolist()
    iterator, seen = iter(build(old)), list[int]()
    for batch in iterator:
        seen += batch.tolist()
        other = build(new)
        again: Any = iter(other)
        if door == "loader":
            other.load_state_dict(iterator.state_dict(), strict=False)
            again = iter(other)
        else:
            again.load_state_dict(iterator.state_dict(), strict=False)
        before, left = again.step, again.remaining
        assert 0 <= before and before + left == len(other)
        if not left:
            break
        rest = [batch.tolist() for batch in again]
        assert len(rest) == left and again.step == len(other)
        size = new if drop_last else 1
        assert sum(rest, []) == samples[len(seen) :][: (len(samples) - len(seen)) // size * size]


# --- settings that decide batches ----------------------------------------------------------------


def grouped(sampler: Any, drop_last: bool) -> dict[str, Any]:
    return {"batch_sampler": BatchSampler(sampler, 5, drop_last)}


def seeds_nothing(dataset: Any, seed: int) -> None:
    pass


WEIGHTS = torch.arange(1.0, 13.0)

#: two settings of a loader that give other batches
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "drop_last": ({"batch_size": 5}, {"batch_size": 5, "drop_last": True}),
    "drop_last of a BatchSampler": (grouped(range(12), False), grouped(range(12), True)),
    "replacement": (
        {"sampler": WeightedRandomSampler(WEIGHTS, 12)},
        {"sampler": WeightedRandomSampler(WEIGHTS, 12, replacement=False)},
    ),
    "weights": (
        {"sampler": WeightedRandomSampler(WEIGHTS, 12)},
        {"sampler": WeightedRandomSampler(WEIGHTS.flip(0), 12)},
    ),
    "source": (
        {"sampler": RandomSampler(range(8))},
        {"sampler": RandomSampler(range(12), num_samples=8)},
    ),
    "source that is not the dataset": (
        {"shuffle": True},
        {"sampler": RandomSampler(range(8), num_samples=12)},
    ),
    "source of another length": (
        {"sampler": RandomSampler(range(10), replacement=True, num_samples=8)},
        {"sampler": RandomSampler(range(9), replacement=True, num_samples=8)},
    ),
    "source of a DistributedSampler": (
        {"sampler": DistributedSampler(range(12), 2, 0)},
        {"sampler": DistributedSampler(range(11), 2, 0)},
    ),
    "seed of a DistributedSampler": (
        {"sampler": DistributedSampler(range(12), 2, 0, seed=0)},
        {"sampler": DistributedSampler(range(12), 2, 0, seed=1)},
    ),
    "other seed of a DistributedSampler": (
        {"sampler": DistributedSampler(range(12), 2, 0, seed=2)},
        {"sampler": DistributedSampler(range(12), 2, 0, seed=1)},
    ),
    "seed_dataset": ({}, {"seed_dataset": "off"}),
    "seed_dataset of another kind": ({"seed_dataset": seeds_nothing}, {"seed_dataset": "off"}),
}


@pytest.mark.parametrize("value", ["off", seeds_nothing])
def test_another_seed_dataset_is_bridged_by_strict_false(value: Any) -> None:
    iterator = iter(DataLoader(range(12), 5, seed=1))  # type: ignore[arg-type]
    next(iterator)
    again: Any = DataLoader(range(12), 5, seed=1, seed_dataset=value)  # type: ignore[arg-type]
    with pytest.raises(StateMismatch, match="seed_dataset: .* found 'auto'.*\n.*strict=False"):
        again.load_state_dict(iterator.state_dict())
    again.load_state_dict(iterator.state_dict(), strict=False)
    assert [b.tolist() for b in again] == [b.tolist() for b in iterator]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_a_state_is_refused_where_a_setting_gives_other_batches(name: str, turned: bool) -> None:
    one, other = reversed(OTHERS[name]) if turned else OTHERS[name]
    iterator = iter(DataLoader(range(12), seed=1, **one))  # type: ignore[arg-type]
    next(iterator)
    with pytest.raises(StateMismatch):
        DataLoader(range(12), seed=1, **other).load_state_dict(  # type: ignore[arg-type]
            iterator.state_dict()
        )


def test_a_state_of_an_earlier_version_fits_the_seed_that_its_order_has() -> None:
    sampler: Any = DistributedSampler(range(12), 2, 0, seed=1)  # type: ignore[arg-type]
    loader: Any = DataLoader(range(12), 2, sampler=sampler, seed=1)  # type: ignore[arg-type]
    iterator = iter(loader)
    next(iterator)
    state = iterator.state_dict()
    del state["fits"]["sampler_seed"], state["checksum"]
    rest = [b.tolist() for b in iterator]
    loader.load_state_dict(state)
    assert [b.tolist() for b in loader] == rest


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def _twice(generator: torch.Generator) -> dict[str, Any]:
    return {"sampler": RandomSampler(range(12), generator=generator), "generator": generator}


GENERATORS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": lambda: {"sampler": RandomSampler(range(12))},
    "the loader's": lambda: {"shuffle": True, "generator": _generator()},
    "the sampler's": lambda: {"sampler": RandomSampler(range(12), generator=_generator())},
    "two": lambda: {**GENERATORS["the sampler's"](), "generator": _generator()},
    "one for both": lambda: _twice(_generator()),
}
#: a shuffled loader gives its generator to its sampler
SAME = {"the loader's", "one for both"}


@pytest.mark.parametrize("steps", [0, 1, None])
@pytest.mark.parametrize("there", GENERATORS)
@pytest.mark.parametrize("here", GENERATORS)
def test_a_state_fits_where_the_generators_are_those_of_the_saved_loader(
    here: str, there: str, steps: int | None
) -> None:
    """Otherwise later epochs would be drawn from other generators."""
    loader: Any = DataLoader(range(12), 5, **GENERATORS[there]())  # type: ignore[arg-type]
    iterator = iter(loader)
    for _ in range(12 if steps is None else steps):
        next(iterator, None)
    state = iterator.state_dict()
    other: Any = DataLoader(range(12), 5, **GENERATORS[here]())  # type: ignore[arg-type]
    if here == there or {here, there} == SAME:
        other.load_state_dict(state)
        return
    with pytest.raises(StateMismatch, match="generators: expected .*\n.*strict=False"):
        other.load_state_dict(state)
    other.load_state_dict(state, strict=False)
    assert sum(map(len, other)) == 12 - 5 * (steps or 0)


@pytest.mark.parametrize("steps", [0, 1, None])
def test_with_a_seed_no_generator_is_compared(steps: int | None) -> None:
    given = GENERATORS["the sampler's"]()
    loader: Any = DataLoader(range(12), 5, seed=1, **given)  # type: ignore[arg-type]
    iterator = iter(loader)
    for _ in range(12 if steps is None else steps):
        next(iterator, None)
    other: Any = DataLoader(range(12), 5, seed=1, shuffle=True)  # type: ignore[arg-type]
    other.load_state_dict(iterator.state_dict())


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_sampler_of_torchs_is_the_same_as_batch_size_and_drop_last(
    drop_last: bool,
) -> None:
    whole: Any = DataLoader(range(12), 5, drop_last=drop_last)  # type: ignore[arg-type]
    iterator = iter(whole)
    next(iterator)
    data: Any = range(12)
    again: Any = DataLoader(data, **grouped(SequentialSampler(data), drop_last))
    again.load_state_dict(iterator.state_dict())
    assert [b.tolist() for b in again] == [b.tolist() for b in iterator]


class Pairs(Sampler[tuple[int, int]]):
    """Indices of two numbers: an image and its crop, for example."""

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[tuple[int, int]]:
        yield from ((index, index % 3) for index in range(12))


class Crops(Dataset[int]):
    def __getitem__(self, index: tuple[int, int]) -> int:
        return 10 * index[0] + index[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_with_indices_that_are_tuples_is_loaded(num_workers: int) -> None:
    def build() -> Any:
        return DataLoader(Crops(), 2, sampler=Pairs(), num_workers=num_workers)

    iterator = iter(build())
    next(iterator)
    again = build()
    again.load_state_dict(iterator.state_dict())
    assert [b.tolist() for b in again] == [b.tolist() for b in iterator]


class GivesNone(Sampler[Any]):
    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[None]:
        return iter([None] * 12)


class Constant(Dataset[int]):
    def __getitem__(self, index: None) -> int:
        return 7


def test_an_index_that_is_none_is_refused_where_it_is_ahead() -> None:
    def build(num_workers: int) -> Any:
        return DataLoader(Constant(), batch_size=None, sampler=GivesNone(), num_workers=num_workers)

    iterator = iter(build(2))
    next(iterator)
    with pytest.raises(CannotSaveError, match="None as the index"):
        iterator.state_dict()
    assert list(iterator) == [7] * 11
    iterator = iter(build(0))
    next(iterator)
    again = build(0)
    again.load_state_dict(iterator.state_dict())
    assert list(again) == list(iterator) == [7] * 11


# --- samplers of torch's that change in mid-epoch ------------------------------------------------


def rebinds(sampler: Any) -> None:
    sampler.weights = WEIGHTS.clone()


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "weights in place": (
        lambda: WeightedRandomSampler(WEIGHTS.clone(), 12),
        lambda sampler: sampler.weights[:6].zero_(),
    ),
    "weights": (lambda: WeightedRandomSampler(WEIGHTS, 12), rebinds),
    "replacement": (
        lambda: RandomSampler(range(12)),
        lambda sampler: setattr(sampler, "replacement", True),
    ),
    "num_samples": (
        lambda: RandomSampler(range(12), replacement=True, num_samples=12),
        lambda sampler: setattr(sampler, "_num_samples", 8),
    ),
    "indices": (
        lambda: SubsetRandomSampler(range(12)),
        lambda sampler: setattr(sampler, "indices", list(range(11, -1, -1))),
    ),
}


@pytest.mark.parametrize("grouped_by", ["batch_size", "batch_sampler"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_save_warns_of_a_sampler_of_torchs_that_has_changed_in_mid_epoch(
    name: str, grouped_by: str
) -> None:
    """The live pass goes on with what was drawn, and a resume draws from what the sampler is."""
    make, change = CHANGES[name]
    sampler = make()
    how: Any = {"sampler": sampler, "batch_size": 2}
    if grouped_by == "batch_sampler":
        how = {"batch_sampler": BatchSampler(sampler, 2, False)}
    loader: Any = DataLoader(range(12), seed=1, **how)  # type: ignore[arg-type]
    iterator = iter(loader)
    next(iterator)
    loader.state_dict()
    pickle.dumps(iterator)
    change(sampler)
    repr(iterator)
    for save in (loader.state_dict, iterator.state_dict, lambda: pickle.dumps(iterator)):
        with pytest.warns(LoaderWarning, match=rf"{name.split()[0]} of the \w+ has changed"):
            save()
    list(iterator)
    loader.state_dict()
    next(iter(loader))
    loader.state_dict()
