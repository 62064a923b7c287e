"""Generators that a dataset, a collate_fn or a sampler owns: saved exactly, or told of."""

from __future__ import annotations

import copy
import pickle
import random
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import lists
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Sampler, Subset
from zoo import inexact
from zoo.datasets import Noisy
from zoo.own_generators import BATCH, KINDS, Draws, Epochs, N, Saves, jittered, of_map

from picklable_loader import DataLoader, current_seed
from picklable_loader.errors import CannotSaveError, LoaderWarning
from picklable_loader.rng.owned import owned_in

#: epoch and step; None: after StopIteration
PLACES = [(0, 0), (0, 1), (0, None), (1, 1)]


def _rest(loader: DataLoader[Any], iterator: Any, epochs: int) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [batch.tolist() for batch in iterator]
        return [found, *([batch.tolist() for batch in loader] for _ in range(epochs))]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["state_dict", "pickle"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_save_warns_where_and_only_where_a_resume_gives_something_else(
    kind: str, way: str, workers: int
) -> None:
    def make() -> DataLoader[Any]:
        schedule: Any = "round_robin"  # under the default one no two runs are alike
        made = KINDS[kind]()
        options: Any = {"num_workers": workers, "schedule": schedule, "seed_dataset": "off"}
        return DataLoader(**made, batch_size=BATCH, seed=1, **options)

    for epoch, step in PLACES:
        loader = make()
        for _ in range(epoch):
            list(loader)
        iterator = iter(loader)
        for _ in range(N if step is None else step):
            next(iterator, None)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            saved = pickle.dumps(iterator if way == "pickle" else iterator.state_dict())
        whole = _rest(loader, iterator, 1)
        if way == "pickle":
            again = pickle.loads(saved)
            found = _rest(again.loader, again, 1)
        else:
            other = make()
            other.load_state_dict(pickle.loads(saved))
            found = _rest(other, iter(other) if step is not None else [], 1)
        told = [str(warning.message) for warning in given]
        if way == "pickle" and step is None and workers:
            continue  # the next epoch's workers are new ones; the text says "if"
        if kind == "of a stream" and found == whole:
            continue  # what is fetched again depends on how often states are taken
        assert bool(told) == (found != whole), f"at {epoch, step}: {told}"
        named = ("rng", "train", "__defaults__")
        assert len(told) < 2 and all(any(name in text for name in named) for text in told)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("none", "loader")])
def test_it_is_told_once_a_loader_with_the_place_in_the_program(kind: str) -> None:
    loader = DataLoader(**KINDS[kind](), batch_size=BATCH, seed_dataset="off")
    iterator = iter(loader)
    next(iterator)
    with pytest.warns(LoaderWarning, match=r"loader\.\S+ \(\w+ \w+\).*current_seed") as given:
        loader.state_dict()
    assert given[0].filename == __file__
    loader.state_dict()  # warnings are errors
    iterator.state_dict()
    next(iterator)
    loader.state_dict()


def test_a_pickle_without_the_dataset_tells_and_so_does_one_that_has_it_again() -> None:
    def make() -> DataLoader[Any]:
        options: Any = {"pickle_dataset": False, "seed_dataset": "off"}
        return DataLoader(Draws(random.Random(3)), batch_size=BATCH, **options)

    iterator = iter(make())
    next(iterator)
    with pytest.warns(LoaderWarning, match="loader.dataset.rng"):
        data = pickle.dumps(iterator)
    again = pickle.loads(data)
    again.attach(Draws(random.Random(3)))
    with pytest.warns(LoaderWarning, match="loader.dataset.rng"):
        pickle.dumps(again)


class PerSample(Draws):
    def __getitem__(self, index: int) -> float:
        return float(np.random.default_rng((current_seed(), index)).random())


QUIET: dict[str, Callable[[], dict[str, Any]]] = {
    "it has a state": lambda: of_map(dataset=Saves(random.Random(3))),
    "hooks": lambda: of_map(dataset=Draws(random.Random(3)), seed_hooks=[lambda seed: None]),
    "the global one": lambda: of_map(dataset=Draws(random.random.__self__)),  # type: ignore
    "numpy's global one": lambda: of_map(dataset=Draws(np.random.mtrand._rand)),
    "the module": lambda: of_map(dataset=Draws(random)),
    "for each sample": lambda: of_map(dataset=PerSample(None)),
    "a loader that counts nothing": lambda: of_map(dataset=Draws(Epochs())),
}


@pytest.mark.parametrize("kind", QUIET)
def test_what_the_loader_takes_care_of_is_not_told(kind: str) -> None:
    loader = DataLoader(**QUIET[kind](), batch_size=BATCH, seed_dataset="off")
    next(iter(loader))
    loader.state_dict()  # warnings are errors


class Hostile:
    """Whatever it is asked, it fails."""

    __slots__ = ("held", "__dict__")

    def __init__(self) -> None:
        object.__setattr__(self, "held", Mapped(rng=np.random.default_rng(3)))

    @property
    def trap(self) -> Any:
        raise AssertionError("a property was asked")

    @property
    def __class__(self) -> Any:
        raise AssertionError("its class was asked")

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked")

    __iter__ = __len__ = __eq__ = __hash__ = __repr__ = trap  # type: ignore[assignment]


class Mapped(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise AssertionError("it was asked")

    values = keys = __iter__ = __len__ = __getitem__ = items


class Proxy:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise AssertionError("it was asked")


def test_nobodys_code_is_called() -> None:
    found = list(owned_in({"x": [Hostile(), Proxy()]}, set()))
    assert [path for path, _ in found] == ["x[0].held['rng']"]


def test_it_looks_at_a_part_of_what_is_large_and_comes_to_an_end_in_what_is_round() -> None:
    large: Any = types.SimpleNamespace(rows=[[n] for n in range(10**5)], rng=random.Random(3))
    large.rows.append(large.rows)
    large.me = large
    assert [path for path, _ in owned_in({"x": large}, set())] == ["x.rng"]
    far: Any = random.Random(3)
    for _ in range(100):
        far = [far]
    assert [path for path, _ in owned_in({"x": far}, set())] == ["x" + 100 * "[0]"]


HIDDEN = [inexact.by_method, inexact.by_lambda, inexact.OfItsClass]


@pytest.mark.parametrize("make", HIDDEN)
def test_a_generator_hidden_in_a_sampler_is_told_of_from_the_second_epoch_on(make: Any) -> None:
    loader = DataLoader(Noisy(), batch_size=BATCH, sampler=make())
    iterator = iter(loader)
    next(iterator)
    loader.state_dict()  # so far a replay finds it as the program builds it
    list(iterator)
    with pytest.warns(LoaderWarning, match=r"loader\.sampler\.\S+ \(\w+ \w+\).*another order"):
        loader.state_dict()
    loader.state_dict()


@pytest.mark.parametrize("make", HIDDEN)
def test_a_pickle_that_a_replay_goes_on_from_warns_of_a_hidden_generator(make: Any) -> None:
    """The pickle has it as it is in mid-epoch, and the replay draws from it once more."""
    iterator = iter(DataLoader(Noisy(), batch_size=BATCH, sampler=make()))
    next(iterator)
    with pytest.warns(LoaderWarning, match=r"loader\.sampler\.\S+ \(\w+ \w+\).*another order"):
        pickle.dumps(iterator)
    pickle.dumps(iterator)


@pytest.mark.parametrize("make", [*HIDDEN, inexact.by_namespace])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_of_the_beginning_warns_of_a_hidden_generator_that_has_moved(
    make: Any, workers: int
) -> None:
    """Nothing was drawn when it was saved, so nothing can be compared."""

    def loader(num_workers: int) -> Any:
        return DataLoader(Noisy(), batch_size=BATCH, sampler=make(), num_workers=num_workers)

    state = iter(loader(0)).state_dict()
    moved = iter(loader(workers))
    if not workers:  # with workers iter() has drawn
        next(moved)
    with pytest.warns(LoaderWarning, match=r"no state holds that of loader\.sampler\.\S+ .*moved"):
        moved.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader(workers).load_state_dict(state)


class DrawsFromItsOwn(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(3)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + self.rng.random()


@pytest.mark.parametrize("seeding, warned", [("batch", False), ("worker", True)])
@pytest.mark.parametrize("used", [False, True])
def test_a_state_of_the_beginning_warns_of_a_datasets_generator_that_has_moved(
    used: bool, seeding: Any, warned: bool
) -> None:
    """A new dataset has it as the program builds it; by default each batch seeds it."""
    loader = DataLoader(DrawsFromItsOwn(), batch_size=BATCH, seed=1, seeding=seeding)
    state = loader.state_dict()
    first = repr(list(loader)) if used else None
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        loader.load_state_dict(state)
    said = [str(each.message) for each in given if "have moved it" in str(each.message)]
    assert len(said) == (used and warned)
    assert all("loader.dataset.rng" in text and "new dataset" in text for text in said)
    assert not used or (repr(list(loader)) == first) is not warned


def test_a_generator_in_a_partial_is_refused_from_the_second_epoch_on() -> None:
    loader = DataLoader(Noisy(), batch_size=BATCH, sampler=inexact.by_partial())
    iterator = iter(loader)
    next(iterator)
    loader.state_dict()  # so far a replay finds it as the program builds it
    list(iterator)
    with pytest.raises(CannotSaveError, match=r"its attribute draw\S* has changed"):
        loader.state_dict()


class Shared(inexact.Hidden):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        super().__init__(lambda count: self.rng.permutation(count))


class DrawsFromItsData(Sampler[int]):
    def __init__(self, data: Draws) -> None:
        self.data = data

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        return iter(self.data.rng.permutation(N).tolist())


def permuted(count: int, rng: Any) -> list[int]:
    return rng.permutation(count).tolist()  # type: ignore[no-any-return]


class GivesItToAFunction(DrawsFromItsData):
    def __iter__(self) -> Iterator[int]:
        count = len(self)
        return iter(permuted(count, self.data.rng))  # Python 3.13 loads both names at once


class OwnBesideItsData(DrawsFromItsData):
    def __init__(self, data: Draws) -> None:
        self.data, self.rng = data, np.random.default_rng(4)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.permutation(len(self.data)).tolist())


@pytest.mark.parametrize(
    "save", [lambda it: it.state_dict(), pickle.dumps], ids=["state", "pickle"]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_save_warns_of_a_sampler_that_draws_from_its_datasets_generator(
    workers: int, save: Callable[[Any], Any]
) -> None:
    """The loader seeds it for the samples, and no state has it."""
    data = Draws(np.random.default_rng(3))
    for make in OwnBesideItsData, DrawsFromItsData, GivesItToAFunction:
        loader: Any = DataLoader(data, BATCH, sampler=make(data), seed=1, num_workers=workers)
        lists(loader)
        iterator = iter(loader)
        if make is OwnBesideItsData:
            save(iterator)  # warnings are errors
            continue
        with pytest.warns(LoaderWarning, match=r"hold that of loader\.sampler\.data\.rng"):
            save(iterator)


class SharesWithItsData(DrawsFromItsData):
    def __init__(self, data: Draws) -> None:
        super().__init__(data)
        self.rng = data.rng


@pytest.mark.parametrize("apart", [False, True])
def test_a_pickle_warns_of_a_sampler_that_has_its_datasets_generator(apart: bool) -> None:
    data = Draws(np.random.default_rng(3))
    sampler: Any = (OwnBesideItsData if apart else SharesWithItsData)(data)
    iterator = iter(DataLoader(data, BATCH, sampler=sampler, seed=1))
    pickle.dumps(iterator)  # nothing was drawn in between: warnings are errors
    next(iterator)
    with nullcontext() if apart else pytest.warns(LoaderWarning, match="same generator as"):
        pickle.dumps(iterator)


def test_a_generator_that_is_an_attribute_as_well_is_saved() -> None:
    loader = DataLoader(Noisy(), batch_size=BATCH, sampler=Shared())
    list(loader)
    state = loader.state_dict()
    whole = lists(loader)
    loader = DataLoader(Noisy(), batch_size=BATCH, sampler=Shared())
    loader.load_state_dict(state)
    assert lists(loader) == whole


def test_another_thread_that_pickles_what_is_not_copied_tells() -> None:
    iterator = iter(DataLoader(Draws(random.Random(3)), batch_size=BATCH, seed_dataset="off"))
    next(iterator)
    told: list[Any] = []

    def save() -> None:
        try:
            pickle.dumps(iterator)
        except LoaderWarning as warning:
            told.append(warning)

    thread = threading.Thread(target=save)
    thread.start()
    thread.join()
    assert "loader.dataset.rng" in str(told)


class Weighs(inexact.Sized):
    """Its state has the weights, and not the generator that it draws from by them."""

    def __init__(self) -> None:
        self.rng, self.weights = random.Random(6), [1.0] * inexact.N

    def __iter__(self) -> Iterator[int]:
        yield from self.rng.choices(range(inexact.N), self.weights, k=inexact.N)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": list(self.weights)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = list(state["weights"])


def test_between_epochs_a_sampler_with_a_state_keeps_its_generator_as_well() -> None:
    loader = DataLoader(Noisy(), batch_size=BATCH, sampler=Weighs())
    list(loader)
    loader.sampler.weights[3] = 50.0  # type: ignore[attr-defined]
    state, whole = loader.state_dict(), lists(loader)
    loader = DataLoader(Noisy(), batch_size=BATCH, sampler=Weighs())
    loader.load_state_dict(state)
    assert lists(loader) == whole


class Mixes(DataLoader[Any]):
    """Its collate_fn is a method of its own, and draws from a generator of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(range(N), BATCH, collate_fn=self.mixed, **options)
        self.rng = random.Random(3)

    def mixed(self, samples: list[Any]) -> Any:
        return jittered(samples, self.rng)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_of_the_loaders_own_class_is_told_of(workers: int) -> None:
    iterator = iter(Mixes(num_workers=workers))
    next(iterator)
    with pytest.warns(LoaderWarning, match=r"loader\.collate_fn\['rng'\] \(random Random\)"):
        iterator.state_dict()


# --- a dataset that the program changes, while persistent workers have copies of it --------------


class Staged(Noisy):
    """Its samples depend on what the program has set."""

    level = 1

    def __init__(self) -> None:
        super().__init__(N)
        self.mosaic, self.weights, self.scales = True, np.ones(3), [1, 2]
        self.cache: dict[int, int] = {0: 0}
        self.lazy: Any = None
        self.files: list[int] = []
        self.epoch, self.transform = 0, int

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def _set(**values: Any) -> Callable[[Any, Staged], object]:
    return lambda loader, data: vars(data).update(values)


CHANGED: dict[str, Callable[[Any, Staged], object]] = {
    "mosaic": _set(mosaic=False),
    "scales": _set(scales=[1, 2]),
    "weights": _set(weights=np.zeros(3)),
    "epoch": lambda loader, data: data.set_epoch(3),
    "level": _set(level=2),
    "transform": _set(transform=float),
}
UNCHANGED: dict[str, Callable[[Any, Staged], object]] = {
    "nothing": _set(),
    "the same value": _set(mosaic=True),
    "the value of its class": _set(level=1),
    "made when it is needed": _set(lazy=7, files=[1]),
    "a cache": lambda loader, data: data.cache.update({1: 1}),
    "in place": lambda loader, data: data.scales.append(3),
    "a new attribute": _set(length=N),
    "a sample is looked at": lambda loader, data: data[0],
    "set_epoch of the loader": lambda loader, data: loader.set_epoch(3),
}
WITHIN: dict[str, Callable[[Staged], Any]] = {
    "": lambda data: data,
    ".dataset": lambda data: Subset(data, range(N)),
    ".dataset.datasets[1]": lambda data: Subset(ConcatDataset([Noisy(N), data]), range(N)),
}


def _changed(change: Any, within: str = "", **options: Any) -> list[str]:
    """What is said when the program changes its dataset after an epoch."""
    data = Staged()
    loader = DataLoader(WITHIN[within](data), BATCH, seed=1, **options)
    list(loader)
    change(loader, data)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        list(loader), list(loader)
    return [str(each.message) for each in given]


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("name", CHANGED)
def test_a_change_that_persistent_workers_never_get_is_named_once(name: str, within: str) -> None:
    given = _changed(CHANGED[name], within, num_workers=1, persistent_workers=True)
    assert len(given) == 1
    assert given[0].startswith(f"loader.dataset{within}.{name} has changed since the persistent")


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_is_no_change_for_persistent_workers_is_not_told(name: str) -> None:
    assert not _changed(UNCHANGED[name], num_workers=1, persistent_workers=True)


def _in_mid_epoch(change: Any, **options: Any) -> tuple[Any, bytes, list[str]]:
    """An iterator, its pickle after a change of the program's, and what the save has warned of."""
    data = Staged()
    loader = DataLoader(data, BATCH, seed=1, **options)
    iterator = iter(loader)
    next(iterator)
    change(loader, data)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        saved = pickle.dumps(iterator)
    return iterator, saved, [str(each.message) for each in given]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", CHANGED)
def test_a_pickle_names_a_change_in_mid_epoch_that_no_worker_gets(
    name: str, persistent: bool
) -> None:
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": persistent}
    *_, (text,) = _in_mid_epoch(CHANGED[name], **options)
    assert text.startswith(f"dataset.{name} of the loader was set in mid-epoch")


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", UNCHANGED)
def test_a_pickle_does_not_name_what_is_no_change(name: str, persistent: bool) -> None:
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": persistent}
    assert not _in_mid_epoch(UNCHANGED[name], **options)[2]


@pytest.mark.parametrize("name", CHANGED)
def test_without_workers_a_change_in_mid_epoch_counts_for_the_pass_and_for_its_pickle(
    name: str,
) -> None:
    iterator, saved, said = _in_mid_epoch(CHANGED[name])
    assert not said
    assert [*map(repr, pickle.loads(saved))] == [*map(repr, iterator)]


class Scaled(IterableDataset[int]):
    def __init__(self) -> None:
        self.scale = 1

    def __iter__(self) -> Iterator[int]:
        return iter([self.scale * index for index in range(4)])


class ScaledWithState(Dataset[int]):
    def __init__(self) -> None:
        self.scale = 1

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.scale * index

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Scaling:
    def __init__(self) -> None:
        self.scale = 1

    def __call__(self, batch: Any) -> Any:
        return torch.as_tensor(batch) * self.scale


#: by path, a loader's options, and a change of the program's
PARTS: dict[str, tuple[dict[str, Any], Callable[[Any], object]]] = {
    "dataset.scale": (
        {"dataset": Scaled()},
        lambda loader: vars(loader.dataset).update(scale=2),
    ),
    "dataset.scale, of a dataset with a state": (
        {"dataset": ScaledWithState()},
        lambda loader: vars(loader.dataset).update(scale=2),
    ),
    "collate_fn": (
        {"dataset": range(4)},
        lambda loader: setattr(loader, "collate_fn", list),
    ),
    "collate_fn.scale": (
        {"dataset": range(4), "collate_fn": Scaling()},
        lambda loader: vars(loader.collate_fn).update(scale=2),
    ),
    "convert.scale": (
        {"dataset": range(4), "convert": Scaling()},
        lambda loader: vars(loader.convert).update(scale=2),
    ),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=str)
def test_a_change_of_each_part_counts_in_new_workers_and_is_named_where_workers_live_on(
    part: str, options: dict[str, Any]
) -> None:
    given, change = copy.deepcopy(PARTS[part][0]), PARTS[part][1]
    loader = DataLoader(batch_size=2, num_workers=1, seed=1, **given, **options)
    before = lists(loader)
    change(loader)
    if not options:
        list(loader)
        return
    named = part.partition(",")[0].replace(".", r"\.")
    with pytest.warns(LoaderWarning, match=f"^loader\\.{named} has changed since the persistent"):
        assert lists(loader) == before


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_of_one_epoch_get_each_change(workers: int) -> None:
    assert not _changed(CHANGED["mosaic"], num_workers=workers)


def test_new_persistent_workers_have_the_dataset_as_it_is_then() -> None:
    def change(loader: Any, data: Staged) -> None:
        iter(loader).close()  # retires them
        data.mosaic = False

    assert not _changed(change, num_workers=1, persistent_workers=True)


# --- a stream whose state is a position ----------------------------------------------------------


class Walk:
    def __init__(self, data: Any) -> None:
        self.data, self.at = data, 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> float:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return self.at + float(self.data.rng.random())

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, **self.data.more(self.data.rng)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Positioned(IterableDataset[float]):
    def __init__(self, rng: Any, more: Callable[[Any], dict[str, Any]]) -> None:
        self.rng, self.more = rng, more

    def __iter__(self) -> Walk:
        return Walk(self)


class PositionedMap(Noisy):
    def __init__(self, rng: Any, more: Callable[[Any], dict[str, Any]]) -> None:
        super().__init__(N)
        self.rng, self.more = rng, more

    def __getitem__(self, index: int) -> Any:
        return index + float(self.rng.random())

    def state_dict(self) -> dict[str, Any]:
        return {"reads": 0, **self.more(self.rng)}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def of_position(rng: Any) -> dict[str, Any]:
    return {"words": [1, 2], "length": np.zeros(9)}


STATES: dict[str, tuple[Callable[[], Any], Callable[[Any], dict[str, Any]], bool]] = {
    "numpy": (lambda: np.random.default_rng(1), of_position, True),
    "python": (lambda: random.Random(1), of_position, True),
    "numpy, saved": (
        lambda: np.random.default_rng(1), lambda rng: {"rng": rng.bit_generator.state}, False
    ),
    "python, saved": (lambda: random.Random(1), lambda rng: {"of": [rng.getstate()]}, False),
    "legacy, saved": (
        lambda: np.random.RandomState(1), lambda rng: {"rng": rng.get_state()}, False
    ),
}  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["state_dict", "pickle"])
@pytest.mark.parametrize("make", [Positioned, PositionedMap])
@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("every", ["auto", 1, 3])
def test_a_save_warns_of_a_stream_whose_state_lacks_the_generator_that_it_owns(
    every: Any, kind: str, make: Any, way: str, workers: int
) -> None:
    """However often states are taken: a look does not wait for one."""
    rng, more, lacks = STATES[kind]
    options: dict[str, Any] = {"num_workers": workers, "snapshot_every_n_steps": every}
    iterator = iter(DataLoader(make(rng(), more), 1, **options))
    for _ in range((3 if every == 3 else 2) * max(1, workers)):
        next(iterator)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        iterator.state_dict() if way == "state_dict" else pickle.dumps(iterator)
    found = [str(each.message) for each in given if "lacks random gen" in str(each.message)]
    assert bool(found) == lacks
    assert all("draw from: dataset.rng." in each for each in found)
