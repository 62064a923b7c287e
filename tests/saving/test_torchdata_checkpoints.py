"""Checkpoints of torchdata's StatefulDataLoader, loaded by ours: it goes on as torchdata does."""

from __future__ import annotations

import copy
import gc
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from laws.observe import lists, plain
from torch.utils.data import (
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    get_worker_info,
)
from torch.utils.data.datapipes.iter import IterableWrapper
from zoo.hostile import Place, changed, places, without
from zoo.streams import SavedWalk

from picklable_loader import DataLoader
from picklable_loader.errors import (
    DamagedStateError,
    ForeignStateError,
    LoaderError,
    LoaderWarning,
    StateError,
    StateMismatch,
)

stateful = pytest.importorskip("torchdata.stateful_dataloader")
td_samplers = pytest.importorskip("torchdata.stateful_dataloader.sampler")

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:.*delivers nothing"),
]


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- samplers and data that have states ----------------------------------------------------------


class DrawsSampler(Sampler[int]):
    """The sampler of torchdata's README: its state is that of the sampler."""

    def __init__(self, high: int = 9, limit: int = 10) -> None:
        self.high, self.limit, self.i = high, limit, 0
        self.g = generator(1)

    def __iter__(self) -> Iterator[int]:
        while self.i < self.limit:
            self.i += 1
            yield int(torch.randint(high=self.high, size=(1,), generator=self.g))
        self.i = 0

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i, "rng": self.g.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.i = state["i"]
        self.g.set_state(state["rng"])


def countdown(items: list[Any]) -> SavedWalk:
    """An iterator that has a state."""
    return SavedWalk(items[::-1])


class OpensCountdown(Sampler[Any]):
    """The iterator of this sampler has a state; itself has none."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return countdown(self.items)


class DrawsBatches(DrawsSampler):
    """A batch sampler that has a state itself."""

    def __iter__(self) -> Iterator[Any]:
        for index in super().__iter__():
            yield [index] * (1 + index % 3)


class IsItsIterator(SavedWalk, Sampler[Any]):
    """The sampler is its own iterator, so that both have the same state."""

    def __iter__(self) -> IsItsIterator:
        self.at %= len(self.items)
        return self


class Counting(Dataset[Any]):
    """A map-style dataset with a state: how often it was read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.reads += 1
        return index, self.reads

    def state_dict(self) -> dict[str, Any]:
        return {"reads": self.reads}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reads = state["reads"]


class Permuted(IterableDataset[Any]):
    """The iterable-style dataset of torchdata's README: its own state says where it is."""

    def __init__(self, high: int = 13) -> None:
        self.high, self.i = high, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        order = torch.randperm(self.high, generator=generator(0))
        if info is not None:
            order = order[info.id :: info.num_workers]
        for index in range(self.i, len(order)):
            self.i += 1
            yield order[index]
        self.i = 0

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.i = state["i"]


class Streams(IterableDataset[Any]):
    """Its iterator has a state, and streams are of very unequal lengths."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None or info.num_workers == 1:
            return countdown(list(range(max(self.lengths))))
        return countdown([100 * info.id + n for n in range(self.lengths[info.id])])


class StatefulStreams(Streams):
    """The dataset counts its epochs, beside its iterator."""

    epochs = 0

    def __iter__(self) -> Iterator[Any]:
        self.epochs += 1
        inner = super().__iter__()
        inner.items = [1000 * self.epochs + n for n in inner.items]
        return inner

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs - 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs = state["epochs"]


# --- loaders -------------------------------------------------------------------------------------

DATA = list(range(10))


def random_sampler(ours: bool, *args: Any, **kwargs: Any) -> Any:
    return (RandomSampler if ours else td_samplers.RandomSampler)(*args, **kwargs)


def distributed(ours: bool) -> Any:
    kind = DistributedSampler if ours else td_samplers.StatefulDistributedSampler
    return kind(DATA, 2, 1, seed=3)


#: by name: the arguments of a loader, ours or torchdata's
CASES: dict[str, Callable[[bool], dict[str, Any]]] = {
    "in sequence": lambda ours: {"dataset": DATA, "batch_size": 3},
    "shuffled": lambda ours: {"dataset": DATA, "batch_size": 3, "shuffle": True},
    "shuffled, drop_last": lambda ours: {
        "dataset": DATA, "batch_size": 3, "shuffle": True, "drop_last": True
    },
    "shuffled by a generator": lambda ours: {
        "dataset": DATA, "batch_size": 3, "shuffle": True, "generator": generator()
    },
    "samples in sequence": lambda ours: {"dataset": DATA, "batch_size": None},
    "samples shuffled": lambda ours: {"dataset": DATA, "batch_size": None, "shuffle": True},
    "a RandomSampler's generator": lambda ours: {
        "dataset": DATA,
        "batch_size": 3,
        "sampler": random_sampler(ours, DATA, generator=generator()),
    },
    "replacement": lambda ours: {
        "dataset": DATA,
        "batch_size": 9,
        "sampler": random_sampler(ours, DATA, True, 40, generator=generator()),
    },
    "more samples than data": lambda ours: {
        "dataset": DATA,
        "batch_size": 6,
        "sampler": random_sampler(ours, DATA, False, 26, generator=generator()),
    },
    "DistributedSampler": lambda ours: {
        "dataset": DATA, "batch_size": 2, "sampler": DistributedSampler(DATA, 2, 1, seed=3)
    },
    "StatefulDistributedSampler": lambda ours: {
        "dataset": DATA, "batch_size": 2, "sampler": distributed(False)
    },
    "StatefulDistributedSampler, and torch's here": lambda ours: {
        "dataset": DATA, "batch_size": 2, "sampler": distributed(ours)
    },
    "a sampler with a state": lambda ours: {
        "dataset": DATA, "batch_size": 3, "sampler": DrawsSampler()
    },
    "an iterator of a sampler with a state": lambda ours: {
        "dataset": DATA, "batch_size": 3, "sampler": OpensCountdown(DATA)
    },
    "a batch sampler with a state": lambda ours: {
        "dataset": DATA, "batch_sampler": OpensCountdown([[1, 2], [3], [4, 5, 6], [7], [8]])
    },
    "a batch sampler with its own state": lambda ours: {
        "dataset": DATA, "batch_sampler": DrawsBatches()
    },
    "a sampler that is its iterator": lambda ours: {
        "dataset": DATA, "batch_size": 3, "sampler": IsItsIterator(DATA)
    },
    "a list": lambda ours: {"dataset": DATA, "batch_size": 2, "sampler": [5, 3, 8, 1, 0]},
    "torch's batch sampler": lambda ours: {
        "dataset": DATA,
        "batch_sampler": torch.utils.data.BatchSampler(range(10), 3, False),
    },
    "a dataset with a state": lambda ours: {"dataset": Counting(), "batch_size": 2},
    "a dataset with a state, shuffled": lambda ours: {
        "dataset": Counting(), "batch_size": 2, "shuffle": True
    },
    "a stream": lambda ours: {"dataset": Permuted(), "batch_size": 2},
    "samples of a stream": lambda ours: {"dataset": Permuted(), "batch_size": None},
    "samples of unequal streams": lambda ours: {"dataset": Streams(1, 9), "batch_size": None},
    "a stream's iterator": lambda ours: {"dataset": Streams(8, 9), "batch_size": 2},
    "streams of unequal lengths": lambda ours: {"dataset": Streams(1, 9), "batch_size": 2},
    "streams, the last ends first": lambda ours: {"dataset": Streams(9, 1), "batch_size": 2},
    "streams and their dataset": lambda ours: {"dataset": StatefulStreams(5, 4), "batch_size": 2},
}  # fmt: skip


def theirs(case: str, workers: int, **more: Any) -> Any:
    torch.manual_seed(7)
    return stateful.StatefulDataLoader(**CASES[case](False), num_workers=workers, **more)


def ours(case: str, workers: int, **more: Any) -> Any:
    torch.manual_seed(99)  # another seed: the order is the state's
    return DataLoader(**CASES[case](True), num_workers=workers, **more)


class Recorded(NamedTuple):
    """An epoch of torchdata's loader."""

    batches: list[Any]
    #: before each batch, and after the last
    states: list[dict[str, Any]]
    #: after StopIteration
    at_end: dict[str, Any]
    #: the next epoch
    following: list[Any]


def record(case: str, workers: int, **more: Any) -> Recorded:
    loader = theirs(case, workers, **more)
    states, batches = [copy.deepcopy(loader.state_dict())], []
    for batch in loader:
        batches.append(plain(batch))
        states.append(copy.deepcopy(loader.state_dict()))
    at_end = copy.deepcopy(loader.state_dict())
    return Recorded(batches, states, at_end, lists(loader))


recorded = cache(record)


def the_rest(loader: Any, state: dict[str, Any]) -> list[Any]:
    loader.load_state_dict(copy.deepcopy(state))
    return lists(loader)


@pytest.fixture(autouse=True)
def _no_descriptors_of_theirs() -> Iterator[None]:
    yield
    gc.collect()


#: Torchdata itself begins anew if it is resumed after the last batch of a sampler, or of a worker's
#: stream, whose own state has begun anew by then.
TORCHDATA_REPEATS = {("a stream", 2), ("a sampler with a state", 0), ("a sampler with a state", 2)}
#: Resumed from a state of an epoch's end, it passes over one epoch of these samplers, or over the
#: base seed that it has drawn from the sampler's generator.
TORCHDATA_PASSES_OVER = {
    ("shuffled by a generator", 0),
    ("StatefulDistributedSampler", 0),
    ("StatefulDistributedSampler, and torch's here", 0),
    ("a sampler with a state", 2),
}
#: By case and workers: the state of an epoch's end is that of its last batch.
NOT_AT_ITS_END = {("a batch sampler with its own state", 2)}
#: by case, workers and step: why it is refused
REFUSED = {("samples of unequal streams", 2, step): "some have ended" for step in range(3, 12)}


@pytest.mark.costly
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_ours_goes_on_where_torchdata_goes_on(case: str, workers: int) -> None:
    batches, states, at_end, following = recorded(case, workers)
    for step, state in enumerate(states):
        if (case, workers) not in TORCHDATA_REPEATS:
            assert the_rest(theirs(case, workers), state) == batches[step:], step
        if (case, workers, step) in REFUSED:
            with pytest.raises(ForeignStateError, match=REFUSED[case, workers, step]):
                the_rest(ours(case, workers), state)
        else:
            assert the_rest(ours(case, workers), state) == batches[step:], step
    if (case, workers) not in TORCHDATA_PASSES_OVER:
        following = the_rest(theirs(case, workers), at_end)
    loader = ours(case, workers, at_epoch_end="next")
    if (case, workers) in NOT_AT_ITS_END:
        with pytest.raises(ForeignStateError, match="'_iterator_finished' to False") as raised:
            loader.load_state_dict(at_end)
        assert 'at_epoch_end="next"' in str(raised.value)
        at_end = {**at_end, "_iterator_finished": False}
    assert the_rest(loader, at_end) == following


@pytest.mark.costly
@pytest.mark.parametrize(("there", "here"), [(0, 2), (2, 0), (2, 3)])
@pytest.mark.parametrize("case", CASES)
def test_any_number_of_workers_goes_on_with_the_streams_of_the_state(
    case: str, there: int, here: int
) -> None:
    batches, states, _, _ = recorded(case, there)
    assert the_rest(ours(case, here), states[2]) == batches[2:]


#: a state of theirs is older than the newest batch, and these have no order to go on in
NOT_OF_NOW = {
    "StatefulDistributedSampler",
    "a sampler with a state",
    "an iterator of a sampler with a state",
    "a batch sampler with a state",
    "a batch sampler with its own state",
    "a sampler that is its iterator",
    "a dataset with a state",
    "a dataset with a state, shuffled",
}


@pytest.mark.filterwarnings("ignore:.*is resumed by replay")  # of the batches since the beginning
@pytest.mark.parametrize("case", CASES)
def test_batches_since_the_last_snapshot_are_passed_over(case: str) -> None:
    batches, states, _, _ = record(case, 2, snapshot_every_n_steps=3)
    assert max(state["_steps_since_snapshot"] for state in states) == 2
    for step, state in enumerate(states):
        since = state["_steps_since_snapshot"]
        if not since:
            continue
        if case in NOT_OF_NOW:
            with pytest.raises(ForeignStateError, match=rf"{since} batches ago.*skip\({since}\)"):
                the_rest(ours(case, 2), state)
            state["_steps_since_snapshot"] = 0
            loader = ours(case, 2)
            loader.load_state_dict(state)
            iterator = iter(loader)
            iterator.skip(since)
            assert lists(iterator) == batches[step:]
        elif (case, 2, state["_snapshot"]["_snapshot_step"]) not in REFUSED:
            assert the_rest(ours(case, 2), state) == batches[step:]


@pytest.mark.costly
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_states_that_are_saved_after_that_are_ours_and_exact(case: str, workers: int) -> None:
    batches, states, _, _ = recorded(case, workers)
    first = ours(case, workers)
    first.load_state_dict(states[1])
    at_once = first.state_dict()
    iterator = iter(first)
    assert plain(next(iterator)) == batches[1]
    later, pickled = iterator.state_dict(), pickle.dumps(iterator)
    iterator.close()
    assert {"format", "version"} <= at_once.keys() & later.keys()
    assert the_rest(ours(case, workers), at_once) == batches[1:]
    assert the_rest(ours(case, 0), later) == batches[2:]
    assert lists(pickle.loads(pickled)) == batches[2:]


def generators_of(kind: str, seed: int) -> tuple[Any, Any]:
    """The generators of a sampler, and of its loader; None: it has none."""
    own, other = generator(seed), generator(seed + 1)
    return {
        "none": (None, None),
        "the sampler's": (own, None),
        "the loader's": (None, other),
        "one each": (own, other),
        "one for both": (own, own),
    }[kind]


#: by name: replacement, num_samples, and batch_size
EPOCHS = {"permutation": (False, None, 3), "several": (False, 26, 6), "replacement": (True, 40, 9)}


def randomly(make: Any, sampler: Any, epoch: str, kind: str, seed: int, **more: Any) -> Any:
    replacement, num_samples, batch_size = EPOCHS[epoch]
    torch.manual_seed(seed)
    own, loaders = generators_of(kind, seed)
    given = sampler(DATA, replacement, num_samples, generator=own)
    return make(DATA, batch_size, sampler=given, generator=loaders, **more)


def epochs(loader: Any, count: int) -> list[Any]:
    return [lists(loader) for _ in range(count)]


@pytest.mark.costly
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize(
    "kind", ["none", "the sampler's", "the loader's", "one each", "one for both"]
)
@pytest.mark.parametrize("epoch", EPOCHS)
def test_the_next_epochs_are_torchdatas(
    epoch: str, kind: str, workers: int, persistent: bool
) -> None:
    if persistent and not workers:
        return
    how = {"num_workers": workers, "persistent_workers": persistent}
    there = stateful.StatefulDataLoader, td_samplers.RandomSampler
    original = randomly(*there, epoch, kind, 3, **how)
    iterator = iter(original)
    next(iterator)
    midway = copy.deepcopy(original.state_dict())
    rest = lists(iterator)
    at_end = copy.deepcopy(original.state_dict())
    expected = [rest, *epochs(original, 2)]
    exact = 2 if generators_of(kind, 0)[0] is not None else 1
    restarts = (kind, workers) != ("one for both", 0)  # otherwise torchdata has another order then
    for state, following in ((midway, expected), (at_end, expected[1:])):
        theirs, here = randomly(*there, epoch, kind, 8, **how), (DataLoader, RandomSampler)
        theirs.load_state_dict(copy.deepcopy(state))
        assert (epochs(theirs, 2) == following[:2]) == restarts
        resumed = randomly(*here, epoch, kind, 9, **how)
        if not restarts and epoch != "permutation":
            with pytest.raises(ForeignStateError, match="before the base seed was drawn"):
                resumed.load_state_dict(copy.deepcopy(state))
            continue
        resumed.load_state_dict(copy.deepcopy(state))
        saved = resumed.state_dict()
        assert epochs(resumed, exact) == following[:exact]
        again = randomly(*here, epoch, kind, 10, **how)
        again.load_state_dict(saved)
        assert epochs(again, exact) == following[:exact]


@pytest.mark.parametrize("case", ["a stream", "streams and their dataset", "a stream's iterator"])
def test_living_workers_go_on_with_what_the_epoch_has_left_them(case: str) -> None:
    _, _, at_end, following = recorded(case, 2, persistent_workers=True)
    loader = ours(case, 2, persistent_workers=True, at_epoch_end="next")
    if case != "a stream's iterator":
        with pytest.raises(ForeignStateError, match="'_iterator_finished' to False") as raised:
            loader.load_state_dict(at_end)
        assert 'at_epoch_end="next"' in str(raised.value)
        at_end = {**at_end, "_iterator_finished": False}
    assert the_rest(loader, at_end) == following


@pytest.mark.filterwarnings("error::picklable_loader.errors.LoaderWarning")
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_of_no_worker_sees_none_here_either(workers: int) -> None:
    class Where(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return Places()

    class Places:
        at = 0

        def __next__(self) -> Any:
            if self.at == 6:
                raise StopIteration
            self.at += 1
            return self.at, get_worker_info() is None

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    theirs = stateful.StatefulDataLoader(Where(), None)
    iterator = iter(theirs)
    next(iterator)
    ours = DataLoader(Where(), None, num_workers=workers)
    ours.load_state_dict(theirs.state_dict())
    assert [tuple(each) for each in ours] == [tuple(each) for each in iterator]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shuffle_of_hugging_face_is_warned_of_and_goes_on_as_torchdata_does(workers: int) -> None:
    datasets = pytest.importorskip("datasets")

    def made(kind: Any, workers: int) -> Any:
        data = datasets.Dataset.from_dict({"x": list(range(20))}).to_iterable_dataset(num_shards=4)
        return kind(data.shuffle(seed=3, buffer_size=4), batch_size=3, num_workers=workers)

    theirs = made(stateful.StatefulDataLoader, 0)
    iterator = iter(theirs)
    for _ in range(3):
        next(iterator)
    state = theirs.state_dict()
    again, ours = made(stateful.StatefulDataLoader, 0), made(DataLoader, workers)
    again.load_state_dict(copy.deepcopy(state))
    with pytest.warns(LoaderWarning, match="in the buffer of its shuffle"):
        ours.load_state_dict(state)
    assert [each["x"].tolist() for each in ours] == [each["x"].tolist() for each in again]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_streaming_dataset_of_hugging_face_goes_on(workers: int) -> None:
    datasets = pytest.importorskip("datasets")

    def arguments() -> Any:
        data = datasets.Dataset.from_dict({"x": list(range(12))}).to_iterable_dataset(num_shards=2)
        return {"dataset": data, "batch_size": 2, "num_workers": workers}

    loader, states, batches = stateful.StatefulDataLoader(**arguments()), [], []
    for batch in loader:
        batches.append(batch["x"].tolist())
        states.append(copy.deepcopy(loader.state_dict()))
    for step, state in enumerate(states, 1):
        resumed = DataLoader(**arguments())
        resumed.load_state_dict(state)
        assert [batch["x"].tolist() for batch in resumed] == batches[step:], step


@pytest.mark.parametrize("kind", [DistributedSampler, td_samplers.StatefulDistributedSampler])
def test_set_epoch_before_the_load_says_which_epoch_the_state_is_of(kind: Any) -> None:
    there = stateful.StatefulDataLoader(DATA, 2, sampler=kind(DATA, 2, 0, seed=3))
    there.sampler.set_epoch(4)
    iterator = iter(there)
    next(iterator)
    state = copy.deepcopy(there.state_dict())
    expected = lists(iterator)
    here: DataLoader[Any] = DataLoader(DATA, 2, sampler=kind(DATA, 2, 0, seed=3))
    here.set_epoch(4)
    here.load_state_dict(state)
    here.set_epoch(4)
    it = iter(here)
    assert it.epoch == 4 and lists(it) == expected


@pytest.mark.parametrize("case", CASES)
def test_a_loader_that_has_gone_on_takes_a_state_as_a_new_one_does(case: str) -> None:
    batches, states, at_end, following = recorded(case, 0)
    loader = ours(case, 0)
    iterator = iter(loader)
    next(iterator), next(iterator)
    assert the_rest(loader, states[1]) == batches[1:]
    assert the_rest(loader, states[1]) == batches[1:]
    if (case, 0) not in NOT_AT_ITS_END:
        assert the_rest(loader, at_end) == the_rest(ours(case, 0), at_end)
    iterator.load_state_dict(states[1])
    assert lists(iterator) == batches[1:]


@pytest.mark.parametrize("case", CASES)
def test_the_last_state_of_an_epoch_can_go_straight_on(case: str) -> None:
    loader = ours(case, 0, at_epoch_end="next")
    assert the_rest(loader, recorded(case, 0).states[-1])


# --- states of generators ------------------------------------------------------------------------


class Noisy(Dataset[Any]):
    """The dataset of torchdata's tutorial: its state is that of a generator."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> list[float]:
        return [index, float(self.draw())]

    def draw(self) -> Any:
        return torch.rand(())

    def state_dict(self) -> Any:
        return {"epoch": 1, "rng": [torch.get_rng_state()]}

    def load_state_dict(self, state: Any) -> None:
        torch.set_rng_state(state["rng"][0])


class NoisyPython(Noisy):
    draw = staticmethod(random.random)
    state_dict = staticmethod(random.getstate)
    load_state_dict = staticmethod(random.setstate)


class NoisyNumpy(Noisy):
    draw = staticmethod(np.random.random)
    state_dict = staticmethod(lambda: {"legacy": np.random.get_state()})
    load_state_dict = staticmethod(lambda state: np.random.set_state(state["legacy"]))


class NoisyStream(Permuted):
    def __iter__(self) -> Iterator[Any]:
        for index in super().__iter__():
            yield index, float(torch.rand(()))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rng": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        torch.set_rng_state(state["rng"])


class NoisyIterator(IterableDataset[Any]):
    """It is its own iterator."""

    i = 0

    def __iter__(self) -> NoisyIterator:
        return self

    def __next__(self) -> float:
        if self.i == 10:
            raise StopIteration
        self.i += 1
        return float(torch.rand(()))

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i, "rng": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.i = state["i"]
        torch.set_rng_state(state["rng"])


class OwnNoise(Noisy):
    """Its generator is its own."""

    def __init__(self) -> None:
        self.g = generator()

    def draw(self) -> Any:
        return torch.rand((), generator=self.g)

    def state_dict(self) -> Any:
        return {"rng": self.g.get_state()}

    def load_state_dict(self, state: Any) -> None:
        self.g.set_state(state["rng"])


class OwnNumpy(Noisy):
    def __init__(self) -> None:
        self.own = np.random.default_rng(3)

    def draw(self) -> Any:
        return self.own.random()

    def state_dict(self) -> Any:
        return {"rng": self.own.bit_generator.state}

    def load_state_dict(self, state: Any) -> None:
        self.own.bit_generator.state = state["rng"]


class GlobalSampler(DrawsSampler):
    """Its state is that of the global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.g = torch.default_generator


def halfway(arguments: dict[str, Any]) -> tuple[Any, Any]:
    """A state of torchdata after three batches, and the batches after it."""
    torch.manual_seed(3)
    iterator = iter(loader := stateful.StatefulDataLoader(**arguments))
    for _ in range(3):
        next(iterator)
    return copy.deepcopy(loader.state_dict()), lists(iterator)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Noisy, NoisyPython, NoisyNumpy, NoisyStream, NoisyIterator])
def test_a_dataset_that_saves_a_global_generator_is_warned_of(kind: Any, workers: int) -> None:
    state, _ = halfway({"dataset": kind(), "batch_size": 1, "num_workers": workers})
    loader: DataLoader[Any] = DataLoader(kind(), 1, num_workers=workers)
    with pytest.warns(LoaderWarning, match=f"dataset {kind.__name__} has saved the state of a "):
        loader.load_state_dict(state)
    own = loader.state_dict()
    loader.load_state_dict(own)  # warnings are errors


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda: {"dataset": OwnNoise()},
        lambda: {"dataset": OwnNumpy()},
        lambda: {"dataset": DATA, "sampler": GlobalSampler()},
    ],
    ids=["torch's", "numpy's", "a sampler's"],
)
def test_other_states_of_generators_go_on_exactly_without_a_warning(
    make: Callable[[], dict[str, Any]], workers: int
) -> None:
    state, expected = halfway({**make(), "num_workers": workers})
    torch.manual_seed(4)
    assert the_rest(DataLoader(**make(), num_workers=workers), state) == expected


# --- what is refused -----------------------------------------------------------------------------


class Square(Sampler[int]):
    """A sampler of nobody's, without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter([n * n % 10 for n in range(10)])


class HasTwo(OpensCountdown):
    """A state of its own, beside that of its iterator."""

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Plain(IterableDataset[Any]):
    """An iterable-style dataset without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(20))


def sampled(there: Any, here: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    here = there if here is None else here
    return {"dataset": DATA, "sampler": there}, {"dataset": DATA, "sampler": here}


def batched(dataset: Any, there: int, here: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"dataset": dataset, "batch_size": there}, {"dataset": dataset, "batch_size": here}


#: by reason: the arguments of torchdata's loader, those of ours, and the error
REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], type[StateError], str]] = {
    "a RandomSampler of torch's": (
        *sampled(RandomSampler(DATA)), ForeignStateError,
        r"no random state for the order of RandomSampler.*it\.skip\(2\)",
    ),
    "a sampler without a state": (
        *sampled(Square()), ForeignStateError, r"no state of the sampler Square.*it\.skip\(2\)"
    ),
    "two states of a sampler": (
        *sampled(HasTwo(DATA)), ForeignStateError,
        "sampler HasTwo and its iterator have states of their own",
    ),
    "a stream without a state": (
        {"dataset": Plain()}, {"dataset": Plain()}, ForeignStateError,
        r"no state of the dataset Plain in stream 0.*it\.skip\(2\)",
    ),
    "a weighted sampler": (
        *sampled(torch.utils.data.WeightedRandomSampler([1.0] * 10, 10)), ForeignStateError,
        "no random state for the order of WeightedRandomSampler",
    ),
    "a datapipe": (
        {"dataset": IterableWrapper(range(9))}, {"dataset": IterableWrapper(range(9))},
        ForeignStateError, "of a DataPipe",
    ),
    "shuffled there and not here": (
        {"dataset": DATA, "shuffle": True}, {"dataset": DATA}, StateMismatch,
        "sampler: expected 'SequentialSampler'.*found 'RandomSampler'",
    ),
    "shuffled here and not there": (
        {"dataset": DATA}, {"dataset": DATA, "shuffle": True}, ForeignStateError, "no random state"
    ),
    "a state of a sampler that has none here": (
        *sampled(DrawsSampler(), Square()), StateMismatch,
        "sampler: expected 'Square, without state_dict'",
    ),
    "a state of a dataset that has none here": (
        {"dataset": Permuted()}, {"dataset": Plain()}, StateMismatch,
        "dataset: expected 'Plain, without state_dict'",
    ),
    "streams": ({"dataset": Permuted()}, {"dataset": DATA}, StateMismatch, "'iterable-style'"),
    "no streams": ({"dataset": DATA}, {"dataset": Permuted()}, StateMismatch, "found 'map-style'"),
    "other batches": (
        *batched(DATA, 3, 2), StateMismatch, "batch_size: expected 2.*found 3"
    ),
    "other batches of a stream": (
        *batched(Permuted(), 3, 2), StateMismatch, "batch_size: expected 2.*found 3"
    ),
    "no batches here": (
        *batched(DATA, 3, None), StateMismatch,
        "batches_from: expected 'sample'.*found 'sample of a batch'",
    ),
    "less data": (
        {"dataset": DATA, "batch_size": 3}, {"dataset": DATA[:5], "batch_size": 3}, StateMismatch,
        "sampler_length: expected 5.*found 6",
    ),
    "ranks that share": (
        {"dataset": DATA}, {"dataset": DATA, "shard": (0, 2), "seed": 1}, ForeignStateError,
        "state of one rank",
    ),
    'seeding="worker"': (
        {"dataset": DATA, "num_workers": 2},
        {"dataset": DATA, "num_workers": 2, "seeding": "worker"}, ForeignStateError,
        "no states of the workers' generators",
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_cannot_be_taken_over_is_refused_with_the_reason(reason: str) -> None:
    there, here, error, text = REFUSALS[reason]
    iterator = iter(loader := stateful.StatefulDataLoader(**there))
    next(iterator), next(iterator)
    state = copy.deepcopy(loader.state_dict())
    for _ in iterator:  # to its end, where their workers go by themselves
        pass
    resumed = DataLoader(**here)
    with pytest.raises(error, match=text):
        resumed.load_state_dict(state)
    torch.manual_seed(1)
    again, fresh = lists(resumed), DataLoader(**here)
    torch.manual_seed(1)
    assert again == lists(fresh)  # nothing was loaded


def test_a_state_that_holds_an_object_names_its_class() -> None:
    state = copy.deepcopy(recorded("a stream", 0).states[2])
    state["dataset_state"] = {"i": [1, Square()]}
    with pytest.raises(ForeignStateError, match="dataset_state.* holds a test_torchdata.*Square"):
        ours("a stream", 0).load_state_dict(state)


class Fragile(Dataset[int]):
    """The sample 4 cannot be read."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 4:
            raise RuntimeError("cannot be read")
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_has_raised_is_not_read_again_or_the_state_is_refused(workers: int) -> None:
    loader = stateful.StatefulDataLoader(Fragile(), 2, num_workers=workers)
    iterator = iter(loader)
    next(iterator), next(iterator)
    with pytest.raises(RuntimeError, match="cannot be read"):
        next(iterator)
    next(iterator)
    state = copy.deepcopy(loader.state_dict())
    rest = lists(iterator)
    resumed: DataLoader[Any] = DataLoader(Fragile(), 2)
    if workers:
        with pytest.raises(ForeignStateError, match="a batch has raised"):
            resumed.load_state_dict(state)
    else:
        assert the_rest(resumed, state) == rest == [[8, 9]]


def test_a_batch_size_that_differs_is_bridged_where_the_position_has_a_meaning() -> None:
    state = recorded("shuffled", 0).states[2]
    torch.manual_seed(7)
    order = [n for batch in recorded("shuffled", 0).batches for n in batch]
    loader: DataLoader[Any] = DataLoader(DATA, batch_size=2, shuffle=True)
    loader.load_state_dict(state, strict=False)
    assert [n for batch in loader for n in batch.tolist()] == order[6:]


# --- damage --------------------------------------------------------------------------------------

#: the field is not there
_GONE = object()
ODD = (
    None, -1, 0, 1, 3, 2**62, 2**70, "x", [], {}, {"a": 1}, True, False, 1.5, (1,), object(),
    torch.zeros(3), torch.zeros(5056, dtype=torch.uint8), _GONE,
)  # fmt: skip
#: nothing else in a state says the same, so that another value means another position
FACTS = {"_iterator_finished", "_steps_since_snapshot", "fetcher_ended", "_sampler_iter_yielded"}
#: what people's code has given; whatever else their code takes is up to it
PEOPLES = {"dataset_state", "dataset_iter_state", "sampler_state", "sampler_iter_state"}


def edited(state: Any, odd_values: Sequence[Any] = ODD) -> Iterator[tuple[Place, Any]]:
    """The state with each odd value in place of each field, by the field's path."""
    for path in places(state, 0):
        for odd in odd_values:
            yield path, without(state, path) if odd is _GONE else changed(state, path, odd)


@pytest.mark.filterwarnings("ignore:.*has saved the state of a random generator")  # so it has
@pytest.mark.parametrize(
    "case",
    [
        "in sequence",
        "shuffled",
        "replacement",
        "a sampler with a state",
        "a stream",
        "streams of unequal lengths",
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_odd_value_in_any_field_is_an_error_or_harmless(case: str, workers: int) -> None:
    batches, states, _, _ = recorded(case, workers)
    for path, state in edited(states[2]):
        loader = ours(case, 0)
        try:
            loader.load_state_dict(state)
            peoples = PEOPLES.intersection(path[:-1])
            rest = None if peoples else lists(loader)
        except LoaderError:
            continue
        if not peoples and not FACTS.intersection(path):
            assert rest == batches[2:], path


def test_the_end_of_an_epoch_lacks_the_datasets_state() -> None:
    at_end = copy.deepcopy(recorded("a dataset with a state", 0).at_end)
    at_end["dataset_state"] = None
    with pytest.raises(ForeignStateError, match="no state of the dataset"):
        ours("a dataset with a state", 0).load_state_dict(at_end)


def test_batches_since_streams_that_have_all_ended() -> None:
    state = copy.deepcopy(recorded("a stream", 2).states[-1])
    for worker in state["_snapshot"]["_worker_snapshots"].values():
        worker["fetcher_state"]["fetcher_ended"] = True
    state["_steps_since_snapshot"] = 1
    with pytest.raises(DamagedStateError, match="_steps_since_snapshot"):
        ours("a stream", 2).load_state_dict(state)


def test_a_value_that_a_copy_would_blow_up_is_an_error_at_once() -> None:
    state = copy.deepcopy(recorded("a stream", 0).states[2])
    value: Any = []
    for _ in range(60):
        value = [value, value]
    state["dataset_state"] = {"i": value}
    with pytest.raises(DamagedStateError, match="dataset_state"):
        ours("a stream", 0).load_state_dict(state)


class Trap(dict[str, Any]):
    """Whatever is done with it is an error."""

    def _raise(self, *_: Any) -> Any:
        raise AssertionError("this was called")

    __iter__ = __len__ = __bool__ = __eq__ = __hash__ = __call__ = __getattr__ = _raise
    keys = items = values = get = __getitem__ = __reduce_ex__ = __repr__ = __str__ = _raise


def test_nothing_in_a_state_is_called() -> None:
    trap = Trap(epochs=1)
    for path, state in edited(recorded("a stream", 2).states[2], [trap]):
        with pytest.raises(StateError):
            ours("a stream", 0).load_state_dict(state)


# --- torchdata 0.10, of which states are in a file -----------------------------------------------

OF_0_10 = Path(__file__).with_name("torchdata_0.10.1.pt")
CASES_0_10 = (
    "in sequence", "shuffled", "shuffled, drop_last", "samples shuffled", "replacement",
    "a RandomSampler's generator", "more samples than data", "DistributedSampler",
    "a sampler with a state", "an iterator of a sampler with a state", "a dataset with a state",
    "a stream", "a stream's iterator", "streams of unequal lengths",
)  # fmt: skip


def write_states() -> None:
    """Make the file, where torchdata 0.10.1 is installed; each generator is in it once."""
    known: dict[bytes, torch.Tensor] = {}

    def shared(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            return known.setdefault(bytes(part.tolist()), part)
        if isinstance(part, dict):
            return {name: shared(each) for name, each in part.items()}
        return [shared(each) for each in part] if isinstance(part, list) else part

    cells = {}
    for case in CASES_0_10:
        for workers in (0, 2):
            found = record(case, workers)
            cells[f"{case}-{workers}"] = shared([*found])
    torch.save(cells, OF_0_10)


@pytest.mark.costly
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("case", CASES_0_10)
def test_states_of_torchdata_0_10_go_on(case: str, workers: int) -> None:
    cells = torch.load(OF_0_10, weights_only=True)
    batches, states, at_end, following = cells[f"{case}-{workers}"]
    for step, state in enumerate(states):
        assert the_rest(ours(case, workers), state) == batches[step:], step
    if case != "samples shuffled":  # which does not show its version
        assert the_rest(ours(case, workers), at_end) == following


def test_a_shared_generator_of_torchdata_0_10_is_refused() -> None:
    cells = torch.load(OF_0_10, weights_only=True)
    state = cells["a RandomSampler's generator-0"][1][2]
    with pytest.raises(ForeignStateError, match="before the base seed was drawn"):
        ours("shuffled by a generator", 0).load_state_dict(state)


if __name__ == "__main__":
    write_states()
