"""Datasets that live on: after an epoch's end, after a pass that was left, after Ctrl-C."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import signal
import threading
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import pytest
import torch
from laws.codecs import by_weights_only
from laws.observe import assert_a_copy_may_be_left_unmoved, expected_warnings, lists, seen
from torch.utils.data import IterableDataset
from zoo.datasets import CountedNumbers
from zoo.streams import KINDS as STREAMS
from zoo.streams import (
    LENGTH,
    Both,
    ByClass,
    DrawnWalk,
    DrawnWithState,
    Generated,
    Keeping,
    Resumed,
    SavedWalk,
    StatefulDataset,
    StatefulWalk,
)
from zoo.streams import Walk as PlainWalk
from zoo.streams import share

from picklable_loader import DataLoader, Interleave, ShuffleBuffer, from_json, to_json
from picklable_loader.errors import (
    CannotSaveError,
    LoaderWarning,
    ReplayWarning,
    RestartWarning,
    UsageError,
)
from picklable_loader.saving.pickles.by_reference import dumps, loads
from picklable_loader.saving.states.plain import NotPlain, encode

PERSISTENT: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
LIVING_ON = pytest.mark.parametrize("options", [{}, PERSISTENT], ids=["inline", "persistent"])


@pytest.fixture(autouse=True)
def replays_are_expected() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplayWarning)
        yield


class Total(IterableDataset[int]):
    """Counts on from epoch to epoch."""

    def __init__(self, length: int = 8) -> None:
        self.length, self.at, self.total = length, 0, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            self.total += 1
            yield self.total
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.total = state["at"], state["total"]


DATASETS = pytest.mark.parametrize("dataset", [Total, CountedNumbers])


def resumed(make: Callable[[], Any], state: dict[str, Any]) -> list[Any]:
    """What is left of the epoch, for a program that has just begun."""
    loader = make()
    loader.load_state_dict(state)
    return lists(loader)


@LIVING_ON
@DATASETS
@pytest.mark.parametrize("every", [1, 3, 4, "auto"])
def test_an_epoch_is_saved_at_any_step_after_one_that_was_completed(
    every: Any, dataset: Any, options: Any
) -> None:
    def make() -> Any:
        return DataLoader(dataset(), 2, snapshot_every_n_steps=every, **options)

    loader = make()
    iterator = iter(loader)
    lists(iterator)
    states = [iterator.state_dict()]
    iterator, batches = iter(loader), []
    for batch in iterator:
        batches.append(batch.tolist())
        states.append(iterator.state_dict())
    for step, state in enumerate(states[:-1]):
        assert resumed(make, state) == batches[step:], step


@LIVING_ON
def test_a_resumed_end_of_an_epoch_is_saved_early_in_the_next(options: Any) -> None:
    def make() -> Any:
        return DataLoader(Total(6), 2, snapshot_every_n_steps=3, **options)

    iterator = iter(make())
    lists(iterator)
    loader = make()
    loader.load_state_dict(iterator.state_dict())
    again = iter(loader)
    assert next(again).tolist() == [7, 8]
    assert resumed(make, again.state_dict()) == lists(again) == [[9, 10], [11, 12]]


@DATASETS
def test_a_pass_that_was_left_leaves_nothing_in_workers_that_no_state_tells(dataset: Any) -> None:
    def make() -> Any:
        return DataLoader(dataset(), 2, **PERSISTENT)

    loader = make()
    whole = lists(make())
    next(iter(loader))
    iterator = iter(loader)
    state = iterator.state_dict()
    assert lists(iterator) == resumed(make, state) == whole
    loader.load_state_dict(state)
    assert lists(loader) == whole


WITHIN: dict[str, Callable[[], Any]] = {
    "by itself": StatefulDataset,
    "shuffled": lambda: ShuffleBuffer(StatefulDataset(), size=4),
    "interleaved": lambda: Interleave([StatefulDataset(), StatefulDataset()]),
}


@pytest.mark.parametrize("kind", WITHIN)
def test_a_pass_that_was_left_loses_no_samples_of_the_next_one(kind: str) -> None:
    loader = DataLoader(WITHIN[kind](), 2, **PERSISTENT)
    whole = sum(map(len, DataLoader(WITHIN[kind](), 2, **PERSISTENT)))
    for _ in range(2):
        next(iter(loader))
        assert sum(map(len, loader)) == whole


def _at_rest(loader: Any) -> Any:
    lists(loader)
    return loader


def _begun(loader: Any) -> Any:
    lists(loader)
    return iter(loader)


def _begun_first(loader: Any) -> Any:
    return iter(loader)


def _left_and_announced(loader: Any) -> Any:
    lists(loader)
    next(iter(loader))
    loader.set_epoch(7)
    return loader


@pytest.mark.parametrize("left", [(), (0,), (1,), (2, 1)])
@pytest.mark.parametrize("door", ["state", "pickle"])
@pytest.mark.parametrize("before", [_at_rest, _begun, _begun_first, _left_and_announced])
@DATASETS
def test_passes_that_are_left_after_a_resume_lose_nothing_that_the_state_has_brought(
    dataset: Any, before: Any, door: str, left: Any
) -> None:
    def make() -> Any:
        shuffle = {} if dataset is Total else {"shuffle": True}
        return DataLoader(dataset(), 2, **shuffle, **PERSISTENT)

    def later(loader: Any) -> list[Any]:
        for steps in left:
            seen(iter(loader), steps)
        return [lists(loader), lists(loader)]

    torch.manual_seed(1)
    saved = before(loader := make())
    if door == "pickle":
        iterator = saved if saved is not loader else iter(loader)
        again = pickle.loads(pickle.dumps(iterator)).loader
    else:
        again = make()
        again.load_state_dict(saved.state_dict())
        if saved is not loader:  # it was saved in a pass, which is left
            iter(again)
    rng = torch.get_rng_state()
    expected = later(loader)
    torch.manual_seed(99)  # what has drawn from torch's generator is in the state
    torch.set_rng_state(rng)
    assert later(again) == expected


class CountsPasses(IterableDataset[int]):
    """Its samples are from a walk that begins where its passes are counted."""

    def __init__(self, walk: Callable[[range], Iterator[int]]) -> None:
        self.walk, self.passes = walk, 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return self.walk(range(100 * self.passes, 100 * self.passes + 8))


class Ranged(SavedWalk):
    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "items": list(self.items)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.items = state["at"], state["items"]


@LIVING_ON
@pytest.mark.parametrize("walk", [PlainWalk, Ranged, lambda items: (each for each in items)])
@pytest.mark.parametrize("passes", [0, 1])
@pytest.mark.parametrize("taken", [0, 2])
@pytest.mark.parametrize("lives", [True, False], ids=["iterator", "loader alone"])
def test_a_resumed_pass_that_is_left_before_its_first_batch_was_a_pass_all_the_same(
    walk: Any, passes: int, taken: int, lives: bool, options: Any
) -> None:
    """A loop of so many steps an epoch, saved after the last of them, begins the next at once."""
    loader = DataLoader(CountsPasses(walk), 2, seed=1, codec="cloudpickle", **options)
    for _ in range(passes):
        list(loader)
    assert_a_copy_may_be_left_unmoved(loader, taken, lives)


def test_a_pass_that_is_left_draws_no_other_order_than_under_torch() -> None:
    def passes(make: Any) -> list[Any]:
        torch.manual_seed(1)
        loader = make(CountedNumbers(), 2, shuffle=True, **PERSISTENT)
        iter(loader)
        # Torch's workers have read ahead in the pass that was left, and count on.
        return [[[count % 1000 for count in batch] for batch in lists(loader)] for _ in range(2)]

    assert passes(DataLoader) == passes(torch.utils.data.DataLoader)


@pytest.mark.parametrize("seeding", ["batch", "worker"])
@pytest.mark.parametrize("dataset", [StatefulDataset, ByClass, Generated, CountedNumbers])
def test_an_iterator_whose_loader_is_given_a_state_still_delivers_what_was_left(
    dataset: Any, seeding: Any
) -> None:
    """Its workers are retired with batches under way, and new ones have to fetch these."""

    def make() -> Any:
        options = {"num_workers": 2, "persistent_workers": True, "seeding": seeding}
        return DataLoader(dataset(), 2, seed=1, **options)

    iterator = iter(make())
    seen(iterator, 1)
    state, expected = iterator.state_dict(), seen(iterator)
    iterator = iter(loader := make())
    seen(iterator, 1)
    loader.load_state_dict(state)
    with pytest.warns(LoaderWarning, match="does not go on from that state"):
        assert seen(iterator) == expected
    assert seen(iter(loader)) == expected


class Accumulates(DrawnWithState):
    """Shuffles in each ``iter`` what the one before has shuffled."""

    def __init__(self) -> None:
        self.items = list(range(9))

    def __iter__(self) -> Any:
        random.shuffle(self.items)
        return DrawnWalk([10 * item + int(torch.randint(10, ())) for item in self.items])


@pytest.mark.costly
@pytest.mark.parametrize("seeding", ["batch", "worker"])
@pytest.mark.parametrize("options", [{}, PERSISTENT, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize(("passes", "taken"), [(0, 0), (0, 1), (1, 0), (1, 2), (2, 5)])
@pytest.mark.filterwarnings("ignore:the state was taken after the last batch")
def test_what_iter_draws_for_the_dataset_itself_is_drawn_again(
    passes: int, taken: int, options: dict[str, Any], seeding: Any
) -> None:
    def make() -> Any:
        return DataLoader(Accumulates(), 2, seed=1, seeding=seeding, **options)

    loader = make()
    for _ in range(passes):
        list(loader)
    iterator = iter(loader)
    lists(next(iterator) for _ in range(taken))
    pickled = pickle.dumps(iterator)
    # Of later epochs a state lacks what those before have changed, and warns; and it is replayed.
    state = iterator.state_dict() if not passes and seeding == "batch" else None
    rest = [lists(iterator), *epochs(loader)]
    again = pickle.loads(pickled)
    assert [lists(again), *epochs(again.loader)] == rest
    if state is not None:
        other = make()
        other.load_state_dict(from_json(to_json(state)))
        assert epochs(other, 3) == rest


def epochs(loader: DataLoader[Any], count: int = 2) -> list[list[Any]]:
    return [lists(loader) for _ in range(count)]


def test_straight_on_into_the_next_epoch_the_dataset_goes_along() -> None:
    def make() -> Any:
        return DataLoader(Total(4), 2, snapshot_every_n_steps=3, **PERSISTENT)

    iterator = iter(make())
    next(iterator), next(iterator)
    loader = make()
    loader.load_state_dict(iterator.state_dict(), at_epoch_end="next")
    again = iter(loader)
    assert next(again).tolist() == [5, 6]
    assert resumed(make, again.state_dict()) == lists(again) == [[7, 8]]


def test_copies_for_several_streams_do_not_outlive_their_epoch() -> None:
    def make() -> Any:
        return DataLoader(Total(4), 2, num_streams=2)

    loader = make()
    iterator = iter(loader)
    first, state = lists(iterator), iterator.state_dict()
    assert lists(loader) == resumed(make, state) == first


class EpochOfItsDataset:
    """An iterator with a state; the dataset that it counts in has another one."""

    def __init__(self, dataset: CountsInIter) -> None:
        self.dataset, self.epoch, self.at = dataset, dataset.epoch, 0

    def __iter__(self) -> EpochOfItsDataset:
        return self

    def __next__(self) -> int:
        if self.at == 8:
            raise StopIteration
        self.at += 1
        self.dataset.reads += 1
        return 10_000 * self.dataset.reads + 100 * self.epoch + self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class CountsInIter(IterableDataset[int]):
    def __init__(self) -> None:
        self.epoch = self.reads = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return EpochOfItsDataset(self)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "reads": self.reads}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.reads = state["epoch"], state["reads"]


@LIVING_ON
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda: CountsInIter(),
        lambda: ShuffleBuffer(ShuffleBuffer(CountsInIter(), size=2), size=3),
        lambda: Interleave([CountsInIter(), CountsInIter()]),
    ],
    ids=["by itself", "shuffled", "interleaved"],
)
def test_an_epoch_that_iter_counts_in_the_state_of_the_dataset_is_counted_once(
    wrapped: Any, epochs: int, options: Any
) -> None:
    def make() -> Any:
        return DataLoader(wrapped(), 2, seed=1, **options)

    for step in range(4):
        loader = make()
        for _ in range(epochs):
            lists(loader)
        iterator = iter(loader)
        seen(iterator, step)
        state, saved = json.dumps(iterator.state_dict()), pickle.dumps(iterator)
        expected = [lists(iterator), lists(loader)]
        loader = make()
        loader.load_state_dict(json.loads(state))
        state = json.dumps(iter(loader).state_dict())  # saved again, and read again
        loader = make()
        loader.load_state_dict(json.loads(state))
        assert [lists(loader), lists(loader)] == expected, step
        again = pickle.loads(saved)
        assert [lists(again), lists(again.loader)] == expected, step


class Box:
    def __init__(self, content: Any) -> None:
        self.content, self.big = content, list(range(2000))


class BoxOfItsOwn(Box):
    """Pickles in a way of its own."""

    def __getstate__(self) -> Any:
        return {"content": self.content, "big": self.big}

    def __setstate__(self, state: Any) -> None:
        self.__dict__ = state


class BoxInSlots:
    __slots__ = ("big", "content")

    def __init__(self, content: Any) -> None:
        self.content, self.big = content, list(range(2000))


class MyList(list[Any]):
    pass


#: a large attribute that has a list of counts somewhere within, and the way to that
HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dict": (lambda counts: {"rows": counts, "big": [0] * 5000}, lambda part: part["rows"]),
    "lists": (lambda counts: [[0] * 5000, (counts,)], lambda part: part[1][0]),
    "object": (Box, lambda part: part.content),
    "object in a deque": (lambda counts: deque([Box(counts)]), lambda part: part[0].content),
    "object with its own pickle": (BoxOfItsOwn, lambda part: part.content),
    "slots": (BoxInSlots, lambda part: part.content),
    "a list's subclass": (lambda counts: MyList([counts, [0] * 5000]), lambda part: part[0]),
    "key of another type": (lambda counts: {(1,): counts, 2: [0] * 5000}, lambda part: part[1,]),
    "behind 20,000 objects": (
        lambda counts: [*([index] for index in range(20_000)), counts],
        lambda part: part[-1],
    ),
}


class SharesWithItsIterator(IterableDataset[int]):
    def __init__(self, holder: str) -> None:
        self.holder, (make, _) = holder, HOLDERS[holder]
        self.part = make([0] * 20)

    def __iter__(self) -> Iterator[int]:
        _, find = HOLDERS[self.holder]
        return CountsInShared(find(self.part))


class CountsInShared:
    """Changes what it shares with its dataset from the fifth sample on."""

    def __init__(self, counts: list[int]) -> None:
        self.counts, self.at, self.own = counts, 0, [1]

    def __iter__(self) -> CountsInShared:
        return self

    def __next__(self) -> int:
        if self.at == 12:
            raise StopIteration
        self.at += 1
        if self.at > 4:
            self.counts[self.at] += 1000
        return self.counts[self.at] + self.at


@pytest.mark.costly
@LIVING_ON
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_an_iterator_shares_with_its_dataset_is_one_object_after_a_pickle(
    holder: str, epochs: int, options: Any
) -> None:
    for step in (0, 1, 2, 3):
        loader = DataLoader(SharesWithItsIterator(holder), 2, snapshot_every_n_steps=1, **options)
        for _ in range(epochs):
            lists(loader)
        iterator = iter(loader)
        seen(iterator, step)
        again = pickle.loads(pickle.dumps(iterator))
        expected = [lists(iterator), lists(loader), lists(loader)]
        assert [lists(again), lists(again.loader), lists(again.loader)] == expected, step


class LongLists(IterableDataset[int]):
    """Changes one of its long lists, which has two names, in each epoch."""

    def __init__(self) -> None:
        shared = list(range(1000))
        self.names = [f"{number}" for number in range(1000)]
        self.tables = {"a": shared, "b": shared, "c": [shared, self.names]}

    def __iter__(self) -> Iterator[int]:
        for index in range(12):
            self.tables["a"][index] += 1
            yield self.tables["b"][index] + len(self.tables["c"][1])
        self.names.append("")


@LIVING_ON
def test_long_lists_of_numbers_and_texts_are_put_back_with_what_they_share(options: Any) -> None:
    for step in (1, 3):
        loader = DataLoader(LongLists(), 2, **options)
        lists(loader)
        iterator = iter(loader)
        seen(iterator, step)
        again = pickle.loads(pickle.dumps(iterator))
        expected = [lists(iterator), lists(loader)]
        assert [lists(again), lists(again.loader)] == expected


def test_a_long_list_is_written_at_once_and_stays_one_object() -> None:
    numbers, mixed = list(range(100_000)), [*range(100), {}]
    asked: list[Any] = []

    class Asking(dict[int, Any]):
        def get(self, key: int, default: Any = None) -> Any:
            asked.append(key)
            return default

    written = dumps([numbers, numbers, mixed], None, by_id=Asking(), fast=True)
    assert len(asked) < 200
    first, second, other = loads(written, None)
    assert first is second and (first, other) == (numbers, mixed)


# --- interruptions --------------------------------------------------------------------------------


class NothingToSay(StatefulWalk):
    def state_dict(self) -> Any:
        return None


class Mute(IterableDataset[torch.Tensor]):
    """Its iterator's state cannot be saved."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return NothingToSay()


def test_a_killed_worker_whose_state_cannot_be_saved_is_replaced_by_one_that_begins_anew() -> None:
    whole = lists(DataLoader(Mute(), 4, num_workers=1, seed=1))
    iterator = iter(DataLoader(Mute(), 4, num_workers=1, seed=1, prefetch_factor=1))
    found = [next(iterator).tolist()]
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join()
    with pytest.warns(RestartWarning, match="SIGKILL"):
        assert found + lists(iterator) == whole
    iterator = iter(DataLoader(Mute(), 4))
    next(iterator)
    with pytest.raises(CannotSaveError):
        iterator.state_dict()


class Interrupted(IterableDataset[int]):
    """Ctrl-C is pressed in the middle of a batch, once, by somebody outside."""

    def __init__(self, generator: bool, pressed: threading.Event) -> None:
        self.generator, self.pressed = generator, pressed

    def __iter__(self) -> Iterator[Any]:
        return self.walk() if self.generator else map(self.look, range(12))

    def walk(self) -> Iterator[int]:
        for index in range(12):
            yield self.look(index)

    def look(self, index: int) -> int:
        if index == 6 and not self.pressed.is_set():
            self.pressed.set()
            raise KeyboardInterrupt
        return index


@pytest.mark.parametrize("generator", [False, True])
def test_ctrl_c_in_the_middle_of_a_batch_loses_no_sample(generator: bool) -> None:
    dataset = Interrupted(generator, threading.Event())
    iterator, found, presses = iter(DataLoader(dataset, 4)), [], 0
    while True:
        try:
            found.append(next(iterator).tolist())
        except KeyboardInterrupt:
            presses += 1
        except StopIteration:
            break
    assert (found, presses) == ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], 1)


def test_a_batch_of_a_dataset_with_a_state_cannot_be_had_again() -> None:
    with pytest.raises(UsageError, match="a batch of one that has state_dict depends on all"):
        DataLoader(CountedNumbers(), 2).batch_at(3)


# --- generators that keep their place in the dataset ----------------------------------------------


class Lines(IterableDataset[str]):
    """Reads lines from somewhere, and knows which is the next one."""

    def __init__(self, root: str = "a", size: int = 100_000) -> None:
        self.root, self.next, self.random = root, 0, random.Random(3)
        self.table = torch.zeros(size)
        self.lock = threading.Lock()

    def __iter__(self) -> Iterator[str]:
        while self.next < 12:
            self.next += 1
            yield f"{self.root}{self.next}:{self.random.randrange(1000)}"
        self.next = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}


def test_a_generator_goes_on_where_its_dataset_says_and_so_does_what_goes_on_from_there() -> None:
    loader = DataLoader(Lines(), 3)
    whole = list(loader) + list(loader)
    iterator = iter(DataLoader(Lines(), 3))
    found: list[Any] = []
    for _ in range(3):  # saved, loaded, and saved again
        found.append(next(iterator))
        iterator = pickle.loads(pickle.dumps(iterator))
        iterator.loader.dataset.lock = threading.Lock()
    loader = iterator.loader
    assert found + list(iterator) + list(loader) == whole


def test_what_the_program_changes_in_a_loaded_dataset_stays_as_it_says() -> None:
    iterator = iter(DataLoader(Lines("a"), 3))
    first = next(iterator)
    other = pickle.loads(pickle.dumps(iterator))
    other.loader.dataset.root = "b"
    other.loader.dataset.cache = {}
    with pytest.warns(LoaderWarning, match="came as another one"):  # its texts have the root
        rest = list(other)
    assert [[line.replace("b", "a") for line in batch] for batch in [first, *rest]] == list(
        DataLoader(Lines(), 3)
    )
    assert rest[0][0].startswith("b4:") and other.loader.dataset.cache == {}


def test_what_is_large_does_not_go_along_a_second_time() -> None:
    iterator = iter(DataLoader(Lines(), 3))
    before = len(pickle.dumps(iterator))
    next(iterator)
    assert before < 500_000 and len(pickle.dumps(iterator)) < before + 10_000


def test_chained_datasets_that_keep_their_places_go_on() -> None:
    def chain() -> Any:
        return Lines("a", 100) + Lines("b", 100)

    iterator = iter(DataLoader(chain(), 3))
    found = [next(iterator) for _ in range(6)]
    assert found + list(pickle.loads(pickle.dumps(iterator))) == list(DataLoader(chain(), 3))


def not_here() -> None:
    raise OSError("not here")


class ComesFromNoPickle:
    def __reduce__(self) -> Any:
        return not_here, ()


def test_what_comes_from_no_pickle_does_not_hinder_the_epoch_that_changes_it() -> None:
    class Reads(Lines):
        def __iter__(self) -> Iterator[str]:
            self.part = ComesFromNoPickle()
            return super().__iter__()

    dataset = Reads()
    dataset.part = ComesFromNoPickle()
    iterator = iter(DataLoader(dataset, 3))
    found = [next(iterator)]
    dataset.part = ComesFromNoPickle()
    with pytest.raises(OSError, match="not here"):  # it is the dataset's own
        pickle.loads(pickle.dumps(iterator))
    assert found + list(iterator) == list(DataLoader(Lines(), 3))


# --- pickled iterators ----------------------------------------------------------------------------


class Walk:
    """Keeps what it needs on its dataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> int:
        if self.dataset.at >= 12:
            raise StopIteration
        self.dataset.step()
        return self.dataset.look()  # type: ignore[no-any-return]


class Kept(IterableDataset[int]):
    """Counts its epochs, and keeps its place."""

    epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        self.at, self.first = 0, "first"
        return Walk(self)

    def step(self) -> None:
        self.at += 1

    def look(self) -> int:
        return 100 * self.epoch + self.at


class InAnArray(Kept):
    """Keeps its place in the last of many numbers."""

    def __init__(self) -> None:
        self.table = np.zeros(10_000)
        self.odd = np.zeros((0, 3)), np.array(["2024-01-01"], dtype="M8[s]")
        self.days = np.array(["2024-01-01"], dtype="M8[s]")

    def step(self) -> None:
        self.at += 1
        self.table[-1] += 1

    def look(self) -> int:
        return int(self.table[-1])


class InATensor(InAnArray):
    def __init__(self) -> None:
        self.table = torch.zeros(10_000)  # type: ignore[assignment]


class Deleting(Kept):
    """Looks at what is no longer there."""

    def step(self) -> None:
        super().step()
        if self.at == 3:
            del self.first

    def look(self) -> int:
        return self.at + 100 * hasattr(self, "first")


class Slotted(Kept):
    """Has attributes that are not in its dict."""

    __slots__ = ("place",)

    def __iter__(self) -> Iterator[int]:
        self.place = 0
        return super().__iter__()

    def step(self) -> None:
        super().step()
        self.place += 1

    def look(self) -> int:
        return self.place


class Unpicklable(Kept):
    """Keeps its place beside what pickle refuses."""

    def __iter__(self) -> Iterator[int]:
        self.box: dict[str, Any] = {"place": 0, "lambda": lambda: None}
        return super().__iter__()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def step(self) -> None:
        super().step()
        self.box["place"] += 1

    def look(self) -> int:
        return int(self.box["place"])


SMALL, LARGE = (Kept, Deleting, Slotted, Unpicklable), (InAnArray, InATensor)


@pytest.mark.parametrize(
    "kind, num_workers", [*((kind, 0) for kind in SMALL), *((kind, 1) for kind in (*SMALL, *LARGE))]
)
def test_what_an_iteration_changes_on_its_dataset_is_not_lost(kind: Any, num_workers: int) -> None:
    options: dict[str, Any] = {"num_workers": num_workers, "snapshot_every_n_steps": 2}
    whole = lists(DataLoader(kind(), 2, **options))
    iterator = iter(DataLoader(kind(), 2, **options))
    for step in range(6):
        found = lists(pickle.loads(pickle.dumps(iterator)))
        assert found == whole[step:], step
        next(iterator)


# --- states that are unlike others ----------------------------------------------------------------


class LateWalk(StatefulWalk):
    """Has nothing to tell before its first sample."""

    def state_dict(self) -> Any:
        return super().state_dict() if self.at else None


class Late(IterableDataset[torch.Tensor]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        walk = LateWalk()
        walk.items = list(share(self.length))
        return walk


@pytest.mark.parametrize("num_workers", [0, 2, 4])
@pytest.mark.parametrize("length", [3, 17], ids=["of less than the streams", "of more"])
def test_an_iterator_may_have_no_state_before_its_first_sample(
    length: int, num_workers: int
) -> None:
    def make() -> Any:
        return DataLoader(Late(length), 2, num_workers=num_workers, snapshot_every_n_steps=1)

    iterator, states, batches = iter(make()), [], []
    states.append(iterator.state_dict())
    for batch in iterator:
        batches.append(batch.tolist())
        states.append(iterator.state_dict())
    for step, state in enumerate(states):
        again = make()
        again.load_state_dict(state)
        with expected_warnings():
            assert lists(again) == batches[step:], step


class NoBeginning(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        raise OSError("the shards are gone")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_iteration_that_cannot_begin_raises_its_own_error_each_time(num_workers: int) -> None:
    iterator = iter(DataLoader(NoBeginning(), 2, num_workers=num_workers))
    for _ in range(2 * num_workers + 2):
        with pytest.raises(OSError, match="the shards are gone"):
            next(iterator)


class NotThereYet(IterableDataset[int]):
    """Can be begun from its second epoch on."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if not self.epoch:
            raise OSError("not yet")
        return iter(range(4))


def test_an_epoch_that_cannot_begin_does_not_spoil_the_next_one() -> None:
    loader = DataLoader(NotThereYet(), 2, **PERSISTENT)
    for _ in range(2):
        with pytest.raises(OSError, match="not yet"):
            next(iter(loader))
    loader.set_epoch(1)
    assert lists(loader) == [[0, 1], [2, 3]]


NOON = datetime(2024, 2, 29, 12, 0, 0, 7)
UNUSUAL: dict[str, Any] = {
    "counter": Counter(b=2, a=1),
    "by class": defaultdict(list, {(1, "a"): [1, 2]}),
    "without a default": defaultdict(None, {1: 2}),
    "counters": defaultdict(Counter, a=Counter(a=1)),
    "in order": OrderedDict(b=1, a=deque([1], 3)),
    "moment": NOON,
    "moment somewhere": NOON.replace(tzinfo=timezone(timedelta(hours=-3.5))),
    "day and hour": (date(2024, 2, 29), time(1, 2, 3), timedelta(-1, 5)),
    "file": Path("shards") / "0.tar",
    "files elsewhere": [PurePosixPath("/a/b"), PureWindowsPath("C:/a")],
    "of torch": [torch.float16, torch.Size([2, 3]), torch.device("cpu")],
    "of numpy": [np.datetime64("2024-02-29", "ns"), np.timedelta64(3, "D"), np.longdouble("0.1")],
    "bytes": bytearray(b"\0a"),
    "hours that come twice": [NOON.replace(fold=1), time(1, 30, fold=1)],
    "large": [1 << 5000, -(1 << 5000), 1 << 2039, {1 << 3000: 0}],
    "large in lists": [[1, 1 << 5000], [1.5, None, -(1 << 5000)], [(1, "a"), (1 << 5000, "b")]],
}


class Unusual(Total):
    """Its state has, beside numbers, what people keep in states."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = UNUSUAL

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        assert state["kept"] == UNUSUAL
        assert repr(state["kept"]) == repr(UNUSUAL), "types and defaults as well"


@LIVING_ON
def test_what_people_keep_in_states_goes_through_either_door(options: Any) -> None:
    def make() -> Any:
        return DataLoader(Unusual(), 2, **options)

    iterator = iter(make())
    next(iterator)
    state, pickled = iterator.state_dict(), pickle.dumps(iterator)
    rest = lists(iterator)
    assert lists(pickle.loads(pickled)) == rest
    for content in (state, by_weights_only(state), json.loads(json.dumps(state))):
        assert resumed(make, content) == rest


class Elsewhere(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=2)


@pytest.mark.parametrize(
    "value",
    [defaultdict(partial(list, "ab")), defaultdict(lambda: 3), NOON.replace(tzinfo=Elsewhere())],
    ids=["partial", "lambda", "time zone"],
)
def test_what_has_code_in_it_has_no_plain_form(value: Any) -> None:
    with pytest.raises(NotPlain):
        encode(value)


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
def test_a_quantized_tensor_in_a_state_is_refused_by_its_name() -> None:
    dataset = Unusual()
    dataset.kept = {"table": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}
    iterator = iter(DataLoader(dataset, 2))
    next(iterator)
    with pytest.raises(CannotSaveError, match=r"\['kept'\]\['table'\].*cannot be copied"):
        iterator.state_dict()


# --- a number of streams that is given -----------------------------------------------------------


class CountsReads(torch.utils.data.Dataset[int]):
    """Map-style with a state: how often this copy was read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return index + 100 * self.reads

    def state_dict(self) -> dict[str, int]:
        return {"reads": self.reads}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.reads = state["reads"]


@pytest.mark.parametrize("make", [CountsReads, Both])
@pytest.mark.parametrize("num_streams", [1, 2])
def test_the_next_epochs_depend_on_the_number_of_streams_and_not_on_that_of_workers(
    make: Any, num_streams: int
) -> None:
    def made(workers: int) -> Any:
        return DataLoader(make(), 2, seed=1, num_workers=workers, num_streams=num_streams)

    expected = [seen(iter(loader)) for loader in [made(2)] for _ in range(3)]
    for workers in (0, 1):
        loader = made(workers)
        for epoch in range(2):
            assert seen(iter(loader)) == expected[epoch]
            again = made(1 - workers)
            again.load_state_dict(loader.state_dict())
            assert seen(iter(again)) == expected[epoch + 1]


# --- a look at a batch in mid-epoch --------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_streams": 1}, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize("make", [CountsReads, Both, Keeping, Generated])
def test_a_save_warns_of_a_dataset_that_a_later_pass_has_changed_in_this_process(
    make: Any, options: dict[str, Any]
) -> None:
    loader: Any = DataLoader(make(), 2, seed=1, **options)
    iterator = iter(loader)
    next(iterator)
    next(iter(loader))
    for save in (iterator.state_dict, lambda: pickle.dumps(iterator)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            save()
        of_the_look = [each for each in caught if "a later pass" in str(each.message)]
        assert bool(of_the_look) == (make is not Generated and options == {})


# --- a pickle without workers goes on with some --------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("options", [{}, {"num_streams": 1}], ids=["default", "num_streams=1"])
@pytest.mark.parametrize("kind", STREAMS, ids=str)
def test_a_pickle_of_no_workers_goes_on_with_a_worker_in_later_epochs_too(
    kind: Any, options: dict[str, Any]
) -> None:
    """The pickled dataset is in the middle of an epoch, of which a worker reads the rest."""

    def made() -> Any:
        return DataLoader(kind.make(), 2, seed=1, **options)

    def rest(iterator: Any) -> list[Any]:
        return [seen(iterator), *(seen(iter(iterator.loader)) for _ in range(2))]

    def with_worker(pickled: bytes) -> Any:
        again = pickle.loads(pickled)
        again.loader.num_workers, again.loader.prefetch_factor = 1, 2
        return again

    for step in (1, 3):
        iterator = iter(made())
        seen(iterator, step)
        pickled = pickle.dumps(iterator)
        expected = rest(iterator)
        again = with_worker(pickled)
        assert rest(again) == expected
        # and once more in the next epoch, which a worker reads or, from there, this process
        for workers in (0, 1):
            again = with_worker(pickled)
            assert seen(again) == expected[0]
            later = iter(again.loader)
            seen(later, step)
            last = pickle.loads(pickle.dumps(later))
            last.loader.num_workers, last.loader.prefetch_factor = workers, workers * 2 or None
            assert [seen(last), seen(iter(last.loader))] == [expected[1][step:], expected[2]]


@pytest.mark.parametrize("kind", [Keeping, StatefulDataset])
def test_with_other_streams_the_next_epoch_begins_at_its_beginning_all_the_same(kind: Any) -> None:
    iterator = iter(DataLoader(kind(), 2, seed=1))
    seen(iterator, 2)
    again = pickle.loads(pickle.dumps(iterator))
    again.loader.num_workers, again.loader.prefetch_factor = 2, 2
    rest = seen(again)
    with pytest.warns(LoaderWarning, match="through 1 streams, and is now read through 2"):
        later = iter(again.loader)
    assert rest == seen(iterator)
    assert sorted(round(sample[0]) for batch in seen(later) for sample in batch) == [*range(LENGTH)]
    assert len(seen(iter(again.loader))) == len(seen(iter(DataLoader(kind(), 2, num_workers=2))))


@LIVING_ON
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
def test_a_flag_that_load_state_dict_sets_at_an_epochs_end_does_not_reach_the_next_epoch(
    options: dict[str, Any],
) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Resumed(), batch_size=2, seed=1, **options)

    def loaded(state: dict[str, Any]) -> DataLoader[Any]:
        loader = make()
        loader.load_state_dict(json.loads(json.dumps(state)))
        return loader

    loader = make()
    iterator = iter(loader)
    for _ in range((LENGTH + 1) // 2):
        next(iterator)
    at_its_end = [iter(loaded(loader.state_dict())), pickle.loads(pickle.dumps(iterator))]
    assert not lists(iterator)
    between = [loaded(loader.state_dict()), pickle.loads(pickle.dumps(loader))]
    expected = [lists(loader) for _ in range(2)]
    assert all(expected)
    assert [lists(again) for again in at_its_end] == [[], []]
    for again in (*(each.loader for each in at_its_end), *between):
        assert [lists(again) for _ in range(2)] == expected
