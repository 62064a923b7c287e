"""pickle_dataset=False: iterators that are saved without their dataset, and given it back."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest
import torch
from laws.observe import lists
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    Sampler,
    WeightedRandomSampler,
)
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper
from zoo.datasets import CountedNoise
from zoo.streams import StatefulDataset, Walk

from picklable_loader import DataLoader
from picklable_loader.errors import StateMismatch, UsageError


class Noisy(Dataset[Any]):
    def __init__(self, length: int = 17) -> None:
        self.data = torch.zeros(1000, 100)
        self.length = length
        self.epoch = -1

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index + torch.rand(()) + max(0, self.epoch)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def stack(self, samples: Any) -> Any:
        return torch.stack(samples) + self.data[0, 0]


class Backwards(Sampler[int]):
    """Its iterator is one that pickle takes, together with the sampler."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        return Walk(range(len(self)), self.pick)

    def __len__(self) -> int:
        return len(self.dataset)

    def pick(self, at: int) -> int:
        return len(self) - 1 - at


class Stream(StatefulDataset):
    def __init__(self) -> None:
        super().__init__()
        self.data = torch.zeros(100_000)


class Drawn(Noisy):
    """Map-style, with a state."""

    def state_dict(self) -> dict[str, int]:
        return {"length": self.length}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.length = state["length"]


KINDS: dict[str, Any] = {
    "in sequence": (Noisy, lambda dataset: {}),
    "shuffled": (Noisy, lambda dataset: {"shuffle": True}),
    "weighted": (Noisy, lambda dataset: {"sampler": WeightedRandomSampler([1.0] * 17, 17)}),
    "a sampler that sees it": (Noisy, lambda dataset: {"sampler": Backwards(dataset)}),
    "a batch sampler": (
        Noisy,
        lambda dataset: {"batch_sampler": BatchSampler(Backwards(dataset), 3, False)},
    ),
    "a collate_fn of its own": (Noisy, lambda dataset: {"collate_fn": dataset.stack}),
    "a lambda": (Noisy, lambda dataset: {"collate_fn": lambda samples: torch.stack(samples)}),
    "stateful": (Drawn, lambda dataset: {}),
    "a stream": (Stream, lambda dataset: {}),
}
KIND = pytest.mark.parametrize("kind", KINDS)


def loader_of(kind: str, **more: Any) -> DataLoader[Any]:
    make, options = KINDS[kind]
    dataset = make()
    settings = {"seed": 3, **options(dataset), **more}
    if "batch_sampler" not in settings:
        settings["batch_size"] = 3
    return DataLoader(dataset, **settings)


@KIND
@pytest.mark.parametrize("codec", ["auto", "cloudpickle", "dill"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_goes_on_once_it_has_its_dataset_again(
    kind: str, codec: str, workers: int
) -> None:
    expected = lists(loader_of(kind, num_workers=workers))
    loader = loader_of(kind, num_workers=workers, codec=codec, pickle_dataset=False)
    it = iter(loader)
    for step in range(1, len(expected)):
        next(it)
        if workers and step != 2:
            continue
        saved = pickle.dumps(it)
        assert len(saved) < 40_000
        again = pickle.loads(saved)
        dataset = KINDS[kind][0]()
        again.attach(dataset)
        assert again.loader.dataset is dataset
        assert lists(again) == expected[step:]


@KIND
@pytest.mark.parametrize("codec", ["auto", "cloudpickle", "dill"])
@pytest.mark.parametrize("convert", [None, lambda batch: batch], ids=["as it is", "converted"])
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
def test_with_its_dataset_the_loader_of_an_iterator_is_still_where_the_iterator_is(
    kind: str, codec: str, convert: Any
) -> None:
    """Attributes that a codec carries came with the loader's own position, which has none."""
    it = iter(loader_of(kind, codec=codec, convert=convert, pickle_dataset=False))
    next(it), next(it)
    again = pickle.loads(pickle.dumps(it))
    again.attach(KINDS[kind][0]())
    other = loader_of(kind, convert=convert)
    other.load_state_dict(again.loader.state_dict())
    next(again), next(it)
    later = loader_of(kind, convert=convert)
    later.load_state_dict(again.loader.state_dict())
    rest = lists(it)
    assert lists(other)[1:] == lists(later) == lists(again) == rest


@KIND
def test_it_may_be_saved_again_before_it_has_its_dataset(kind: str) -> None:
    it = iter(loader_of(kind, pickle_dataset=False))
    next(it)
    again = pickle.loads(pickle.dumps(pickle.loads(cloudpickle.dumps(it))))
    file = io.BytesIO()
    torch.save({"it": copy.deepcopy(again)}, file)
    file.seek(0)
    last = torch.load(file, weights_only=False)["it"]
    last.attach(KINDS[kind][0]())
    assert lists(last) == lists(it)


@KIND
def test_a_loader_is_given_its_dataset_as_well(kind: str) -> None:
    loader = loader_of(kind, pickle_dataset=False)
    first = lists(loader)
    again = pickle.loads(pickle.dumps(loader))
    again.attach(KINDS[kind][0]())
    assert lists(again) == lists(loader) != first


def test_samplers_and_functions_see_the_dataset_that_was_attached() -> None:
    for kind, find in {
        "shuffled": lambda loader: loader.sampler.data_source,
        "a sampler that sees it": lambda loader: loader.sampler.dataset,
        "a batch sampler": lambda loader: loader.batch_sampler.sampler.dataset,
        "a collate_fn of its own": lambda loader: loader.collate_fn.__self__,
    }.items():
        it = pickle.loads(pickle.dumps(iter(loader_of(kind, pickle_dataset=False))))
        dataset = Noisy()
        it.attach(dataset)
        assert find(it.loader) is dataset


@KIND
def test_until_then_it_says_what_to_do_and_where_it_stands(kind: str) -> None:
    it = iter(loader_of(kind, pickle_dataset=False))
    next(it)
    again = pickle.loads(pickle.dumps(it))
    name = type(it.loader.dataset).__qualname__
    for act in (lambda: next(again), lambda: iter(again.loader)):
        with pytest.raises(UsageError, match=rf"attach\(dataset\) with the {name} first"):
            act()
    assert (again.step, again.epoch) == (1, 0) and f"absent dataset: {name}" in repr(
        again.loader.dataset
    )
    assert again.state_dict()["step"] == 1
    again.attach(KINDS[kind][0]())
    assert lists(again) == lists(it)


def test_a_dataset_that_does_not_fit_is_refused_and_another_one_may_be_tried() -> None:
    it = iter(loader_of("shuffled", pickle_dataset=False))
    next(it)
    again = pickle.loads(pickle.dumps(it))
    for wrong in (Noisy(16), Stream(), range(17)):
        with pytest.raises(StateMismatch, match="Attach the dataset"):
            again.attach(wrong)
    with pytest.raises(UsageError, match="attach"):
        next(again)
    again.attach(Noisy())
    assert lists(again) == lists(it)


def test_only_what_was_saved_without_is_given_one() -> None:
    it = iter(loader_of("shuffled"))
    with pytest.raises(UsageError, match="has its dataset"):
        it.attach(Noisy())
    assert len(lists(it)) == 6


def test_the_dataset_is_told_the_epoch() -> None:
    loader = loader_of("shuffled", pickle_dataset=False)
    loader.set_epoch(4)
    it = iter(loader)
    next(it)
    again = pickle.loads(pickle.dumps(it))
    dataset = Noisy()
    again.attach(dataset)
    assert dataset.epoch == 4
    assert lists(again) == lists(it)


def test_the_dataset_itself_is_never_looked_at() -> None:
    class Secret(Noisy):
        def __getstate__(self) -> Any:
            raise AssertionError("who wants to pickle it?")

    dataset = Secret()
    it = iter(DataLoader(dataset, 3, shuffle=True, seed=1, pickle_dataset=False))
    again = pickle.loads(pickle.dumps(it))
    again.attach(dataset)
    assert lists(again) == lists(it)


class Turned(Noisy):
    """What refers to it asks it for something that one which only stands for it has not."""

    turned = True

    def add(self, samples: Any) -> Any:
        return torch.stack(samples) + (self.turned is True)


class Turning(Sampler[int]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return 17

    def __iter__(self) -> Iterator[int]:
        order: list[int] = torch.randperm(17).tolist()
        return iter(reversed(order) if self.dataset.turned is True else order)


class TurningByClass(Turning):
    def __iter__(self) -> Iterator[int]:
        return Walk(range(17), self.pick)

    def pick(self, at: int) -> int:
        return (at + 1) * 5 % 17 if self.dataset.turned is True else at


COPIES: dict[str, Callable[[Any], Any]] = {
    "shallow": copy.copy,
    "deep": copy.deepcopy,
    "pickled": lambda it: pickle.loads(pickle.dumps(it)),
    "pickled, deep": lambda it: copy.deepcopy(pickle.loads(pickle.dumps(it))),
    "deep, pickled": lambda it: pickle.loads(pickle.dumps(copy.deepcopy(it))),
    "twice": lambda it: copy.copy(copy.deepcopy(it)),
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("function", ["default", "method", "lambda"])
@pytest.mark.parametrize("kind", [Turning, TurningByClass])
def test_a_copy_of_what_has_no_dataset_is_given_one_of_its_own(
    kind: Any, function: str, way: str
) -> None:
    dataset = Turned()
    sampler = kind(dataset)
    more = {
        "default": {},
        "method": {"collate_fn": dataset.add},
        "lambda": {"collate_fn": lambda batch: torch.stack(batch) + sampler.dataset.turned},
    }[function]
    it = iter(DataLoader(dataset, 4, sampler=sampler, seed=1, pickle_dataset=False, **more))
    next(it)
    absent = pickle.loads(pickle.dumps(it))
    expected = lists(it), lists(it.loader)
    copied = COPIES[way](absent)
    for each in (copied, absent):
        each.attach(Turned())
        assert each.loader.sampler.dataset is each.loader.dataset
        assert (lists(each), lists(each.loader)) == expected


class Continues(IterableDataset[int]):
    """Each epoch goes on where the one before has ended; its state says where."""

    def __init__(self) -> None:
        self.at, self.end = 0, 4

    def __iter__(self) -> Iterator[int]:
        while self.at < self.end:
            self.at += 1
            yield self.at
        self.end += 4

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "end": self.end}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.end = state["at"], state["end"]


@pytest.mark.parametrize("taken", [0, 1, 2, 9])
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("by_loader", [False, True])
def test_a_dataset_with_a_state_goes_on_in_the_one_that_is_attached(
    by_loader: bool, workers: int, epochs: int, taken: int
) -> None:
    """In this process, the dataset itself had the state of an epoch's end, and was not pickled."""
    options: Any = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(Continues(), 2, seed=1, pickle_dataset=False, **options)
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    for _ in zip(range(taken), iterator):
        pass
    if by_loader:
        list(iterator)
    again: Any = pickle.loads(pickle.dumps(loader if by_loader else iterator))
    again.attach(Continues())
    copied = again if by_loader else again.loader
    assert by_loader or lists(again) == lists(iterator)
    assert [lists(copied), lists(copied)] == [lists(loader), lists(loader)]


class CountsPasses(IterableDataset[int]):
    """It has no state: each epoch depends on what the ones before have made of its attributes."""

    first: int | None = None

    def __init__(self) -> None:
        self.at, self.passes, self.epoch = 0, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        if self.first is None:
            self.first = 50 * self.passes
        while self.at < 6:
            self.at += 1
            yield self.at + self.first + 1000 * self.passes + 10**5 * self.epoch
        self.at = 0


@pytest.mark.parametrize("pickled", ["loader", "iterator", "iterator, which is left"])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("sets_epochs", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 2, 9])
@pytest.mark.parametrize("epochs", [0, 1, 2])
@pytest.mark.parametrize("kind", [CountsPasses, StatefulDataset, CountedNoise])
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
def test_the_attached_dataset_is_as_the_one_was_that_was_not_pickled(
    kind: Any, epochs: int, taken: int, sets_epochs: bool, twice: bool, pickled: str
) -> None:
    """Without workers, its epochs had changed it, and a new one began like the first epoch."""

    def dataset() -> Any:
        return kind(12) if kind is CountedNoise else kind()

    def hop(value: Any) -> Any:
        value = pickle.loads(pickle.dumps(value))
        value.attach(dataset())
        return value

    loader = DataLoader(dataset(), 2, seed=1, pickle_dataset=False)
    for epoch in range(epochs):
        if sets_epochs:
            loader.set_epoch(epoch + 3)
        lists(loader)
    if sets_epochs:
        loader.set_epoch(7)
    iterator = iter(loader)
    for _ in zip(range(taken), iterator):
        pass
    copied: Any = loader if pickled == "loader" else iterator
    for _ in range(1 + twice):
        copied = hop(copied)
    again: Any = copied if pickled == "loader" else copied.loader
    if pickled == "iterator":
        assert lists(copied) == lists(iterator)
    del copied, iterator
    for _ in range(2):
        assert lists(again) == lists(loader)


@pytest.mark.parametrize("epochs, step", [(0, 0), (0, 1), (1, 0), (1, 1), (1, 9), (2, 0)])
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
def test_states_with_an_attached_dataset_are_warned_of_as_those_of_the_original(
    epochs: int, step: int
) -> None:
    loader = DataLoader(CountsPasses(), 2, seed=1, pickle_dataset=False)
    for _ in range(epochs):
        lists(loader)
    iterator = iter(loader)
    for _ in zip(range(step), iterator):
        pass
    again = pickle.loads(pickle.dumps(iterator))
    again.attach(CountsPasses())
    found: Any = [], []
    for where, its in zip(found, (iterator, again), strict=True):
        for owner in (its, its.loader, its.loader):
            where.append(warned_of(owner))
            lists(owner)
        where.append(warned_of(its.loader))
    assert found[0] == found[1]


def warned_of(owner: Any) -> bool:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        owner.state_dict()
    return any("have changed its attributes" in str(each.message) for each in given)


class CountsInItsEpoch(CountsPasses):
    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return super().__iter__()


@pytest.mark.parametrize("again_before", [False, True])
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.LoaderWarning")
def test_what_epochs_have_made_of_the_chosen_epoch_is_attached(again_before: bool) -> None:
    """The dataset was given the chosen epoch once more, over that."""
    loader = DataLoader(CountsInItsEpoch(), 2, seed=1, pickle_dataset=False)
    loader.set_epoch(4)
    lists(loader)
    if again_before:
        loader = pickle.loads(pickle.dumps(loader))
        loader.attach(CountsInItsEpoch())
        loader.set_epoch(9)
    again = pickle.loads(pickle.dumps(loader))
    again.attach(CountsInItsEpoch())
    for _ in range(2):
        assert lists(again) == lists(loader)


@pytest.mark.parametrize("sets_epochs", [False, True])
@pytest.mark.parametrize("by_loader", [False, True])
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.LoaderWarning")
def test_a_state_is_loaded_into_an_attached_loader_as_into_a_new_one(
    by_loader: bool, sets_epochs: bool
) -> None:
    """The dataset had what the pickle brings, and the replay began with that."""
    loader = DataLoader(CountsPasses(), 2, seed=1, pickle_dataset=False)
    if sets_epochs:
        loader.set_epoch(4)
    lists(loader)
    iterator = iter(loader)
    next(iterator)
    state = iterator.state_dict()
    again: Any = pickle.loads(pickle.dumps(loader if by_loader else iterator))
    again.attach(CountsPasses())
    again = again if by_loader else again.loader
    again.load_state_dict(state)
    new = DataLoader(CountsPasses(), 2, seed=1)
    new.load_state_dict(state)
    for _ in range(2):
        assert lists(again) == lists(new)


@pytest.mark.parametrize(
    "make",
    [lambda: list(range(8)), CountsPasses, lambda: CountedNoise(8)],
    ids=["list", "stream", "state"],
)
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
def test_a_dataset_is_attached_before_a_state_is_loaded(make: Callable[[], Any]) -> None:
    """The state's mismatch with no dataset at all had been taken for the program's fault."""
    loader = DataLoader(make(), 2, seed=1, pickle_dataset=False)
    next(iterator := iter(loader))
    state = iterator.state_dict()
    again: Any = pickle.loads(pickle.dumps(loader))
    with pytest.raises(UsageError, match=r"attach\(dataset\) with the \w+ first"):
        again.load_state_dict(state)
    again.attach(make())
    again.load_state_dict(state)
    assert lists(again) == lists(iterator)


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize("pipe", [IterableWrapper, SequenceWrapper])
def test_a_datapipe_is_attached_as_it_was_given_or_as_its_loader_holds_it(pipe: Any) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(pipe(list(range(10))), 2, seed=1, pickle_dataset=False)

    iterator = iter(loader())
    next(iterator)
    pickled, rest = pickle.dumps(iterator), lists(iterator)
    for dataset in (pipe(list(range(10))), loader().dataset):
        again = pickle.loads(pickled)
        again.loader.attach(dataset)
        assert lists(again) == rest


class Mark:
    def __init__(self, passes: int) -> None:
        self.passes = passes


class Marked(IterableDataset[int]):
    """It has no state, and its passes leave an object of a class of the program's own."""

    def __init__(self) -> None:
        self.mark = Mark(0)

    def __iter__(self) -> Iterator[int]:
        self.mark = Mark(self.mark.passes + 1)
        yield from range(10 * self.mark.passes, 10 * self.mark.passes + 4)


@pytest.mark.parametrize("codec", ["cloudpickle", "dill"])
def test_what_epochs_have_left_in_the_dataset_goes_along_with_its_class(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mark, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Mark", Mark, raising=False)
    loader = DataLoader(Marked(), 2, codec=codec, pickle_dataset=False)
    assert lists(loader) == [[10, 11], [12, 13]]
    saved = pickle.dumps(loader)
    monkeypatch.delattr(sys.modules["__main__"], "Mark")
    again = pickle.loads(saved)
    again.attach(Marked())
    assert lists(again) == [[20, 21], [22, 23]]
