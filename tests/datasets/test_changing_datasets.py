"""Iterable-style datasets that change themselves: resumed exactly, or warned of."""

from __future__ import annotations

import itertools
import pickle
import queue
import random
import threading
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import lists
from torch.utils.data import IterableDataset, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from zoo.streams import Walk

from picklable_loader import DataLoader, Interleave, ShuffleBuffer
from picklable_loader.errors import LoaderWarning, ReplayWarning

pytestmark = pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")


class Counts(IterableDataset[int]):
    """An epoch counter."""

    def __init__(self) -> None:
        self.epoch = 0

    def order(self) -> list[int]:
        order = list(range(12))
        random.Random(self.epoch).shuffle(order)
        self.epoch += 1
        return order

    def __iter__(self) -> Iterator[int]:
        yield from self.order()


class CountsFromItsClass(Counts):
    """The counter's first value is an attribute of the class."""

    epoch = 0

    def __init__(self) -> None:
        pass


class CountsOnceIterated(Counts):
    """The first epoch makes the counter."""

    def __init__(self) -> None:
        pass

    def order(self) -> list[int]:
        self.epoch = getattr(self, "epoch", 0)
        return super().order()


class Draws(Counts):
    """A generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def order(self) -> list[int]:
        return [int(index) for index in self.rng.permutation(12)]


class Shuffles(Counts):
    """A list that is shuffled in place."""

    def __init__(self) -> None:
        self.files = list(range(12))

    def order(self) -> list[int]:
        random.Random(5).shuffle(self.files)
        return self.files


class Caches(Counts):
    """What the first epoch has read is given otherwise later."""

    def __init__(self) -> None:
        self.cache: dict[int, int] = {}

    def order(self) -> list[int]:
        return [self.cache[i] if i in self.cache else self.keep(i) for i in range(12)]

    def keep(self, index: int) -> int:
        self.cache[index] = index + 100
        return index


class Wraps(Counts):
    """A small counter below a wrapper, beside a large table."""

    def __init__(self) -> None:
        self.inner = Table()

    def order(self) -> list[int]:
        return self.inner.order()


class Table(Counts):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(100_000)
        self.large = np.arange(100_000)


class Drops(Counts):
    """An attribute is there in the first epoch only, another one from then on."""

    def __init__(self) -> None:
        self.first = True

    def order(self) -> list[int]:
        if hasattr(self, "first"):
            del self.first
            self.later = 1
            return list(range(12))
        self.later += 1
        return [self.later * index for index in range(12)]


class IsItsIterator(Counts):
    """Each iteration makes the attribute that it needs."""

    def __iter__(self) -> Any:
        self.left = list(range(12))
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop(0)


class InTheIterator(Counts):
    """Its iterator can be pickled."""

    def __iter__(self) -> Iterator[int]:
        return Walk(list(self.order()))


class StateInTheIterator(Counts):
    """Its iterator has a state, which says nothing of the dataset's counter."""

    def __iter__(self) -> Iterator[int]:
        return Saving(list(self.order()))


class Saving(Walk):
    def state_dict(self) -> dict[str, Any]:
        return {"order": self.items, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.items, self.at = state["order"], state["at"]


class StateInTheDataset(Counts):
    """It counts samples and epochs, and saves both."""

    def __init__(self) -> None:
        self.epoch = self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 12:
            self.at += 1
            yield 100 * self.epoch + self.at
        self.epoch, self.at = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


class NoStateInTheDataset(StateInTheDataset):
    state_dict = None  # type: ignore[assignment]


def shuffled() -> Any:
    return ShuffleBuffer(NoStateInTheDataset(), 5)


def shuffled_with_a_state() -> Any:
    return ShuffleBuffer(ShuffleBuffer(StateInTheDataset(), 3, state="rebuild"), 3, seed=1)


def interleaved() -> Any:
    return Interleave([Counts(), StateInTheIterator()])


def interleaved_with_states() -> Any:
    return Interleave([StateInTheDataset(), StateInTheIterator()])


class Pipe(IterDataPipe[int]):
    """A DataPipe of the program that counts its epochs."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(range(self.epoch, self.epoch + 12))


def counts_below_torchs_pipes() -> Any:
    return IterableWrapper(Counts(), deepcopy=False).shuffle()


KINDS = [
    Counts,
    CountsFromItsClass,
    CountsOnceIterated,
    Draws,
    Shuffles,
    Caches,
    Wraps,
    Drops,
    IsItsIterator,
    InTheIterator,
    StateInTheIterator,
    StateInTheDataset,
    shuffled,
    shuffled_with_a_state,
    interleaved,
    interleaved_with_states,
    Pipe,
    counts_below_torchs_pipes,
]
WORKERS = [(0, False), (1, False), (2, False), (1, True), (2, True)]


@pytest.mark.parametrize("seeding", ["batch", "worker"])
@pytest.mark.parametrize("num_workers, persistent", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_that_changes_itself_is_resumed_exactly_or_warned_of(
    kind: Any, num_workers: int, persistent: bool, seeding: Any
) -> None:
    def make() -> Any:
        options: dict[str, Any] = {"num_workers": num_workers, "persistent_workers": persistent}
        return DataLoader(kind(), 4, seed=1, seeding=seeding, **options)

    def state_of(thing: Any) -> Any:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always", LoaderWarning)
            state = thing.state_dict()
        return state, [str(each.message) for each in given]

    whole = make()
    epochs = [lists(whole) for _ in range(3)]
    loader = make()
    doors = itertools.cycle(["pickle", "state"])
    if num_workers == 1:  # each step is saved through either door
        next(doors)
    for epoch in range(2):  # the first one, and one that begins with what was changed
        iterator = iter(loader)
        for step in range(len(epochs[epoch]) + 1):
            if step:
                assert next(iterator).tolist() == epochs[epoch][step - 1]
            if step not in (0, 1, 4):
                continue
            expected = epochs[epoch][step:], epochs[epoch + 1]
            if next(doors) == "pickle":
                again = pickle.loads(pickle.dumps(iterator))
                assert (lists(again), lists(again.loader)) == expected, (epoch, step)
                continue
            state, warned = state_of(iterator)
            other = make()
            other.load_state_dict(state)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exact = (lists(other), lists(other)) == expected
            assert exact or "have changed its attributes" in warned[0], (epoch, step)
            if not persistent and num_workers:
                assert exact and not warned
        assert next(iterator, None) is None
        state, warned = state_of(loader)
        other = make()
        other.load_state_dict(state)
        assert lists(other) == epochs[epoch + 1] or "have changed" in warned[0]
        again = pickle.loads(pickle.dumps(loader))
        assert lists(again) == epochs[epoch + 1]


@pytest.mark.parametrize("step, moved", [(0, 0), (2, 0), (0, 1), (1, 1), (1, 2)])
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("num_workers, persistent", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_unpickled_pass_is_pickled_again(
    kind: Any, num_workers: int, persistent: bool, epochs: int, step: int, moved: int
) -> None:
    """The dataset has changed by then, and this was taken for its beginning.

    So it was in a pass that has not moved yet; and in one that has, from the state at its
    beginning, where only a wrapper of ours has a state.
    """
    options: Any = {"num_workers": num_workers, "persistent_workers": persistent}
    loader = DataLoader(kind(), 4, seed=1, **options)
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    for _ in range(step):
        next(iterator)
    again = iterator
    for _ in range(2):
        again = pickle.loads(pickle.dumps(again))
        again.start()
        assert lists(islice(again, moved)) == lists(islice(iterator, moved))
    assert (lists(again), lists(again.loader)) == (lists(iterator), lists(loader))


@pytest.mark.parametrize("by_loader", [False, True])
@pytest.mark.parametrize("epochs, step", [(0, 0), (0, 1), (1, 0), (1, 1), (1, 9)])
@pytest.mark.parametrize("num_workers, persistent", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_states_of_an_unpickled_loader_are_warned_of_as_those_of_the_original(
    kind: Any, num_workers: int, persistent: bool, epochs: int, step: int, by_loader: bool
) -> None:
    """What earlier epochs had changed was not known any more in the program that went on."""
    loader = DataLoader(kind(), 4, seed=1, num_workers=num_workers, persistent_workers=persistent)
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    for _ in zip(range(step), iterator):
        pass
    if by_loader:
        list(iterator)
    found = [], []
    again = pickle.loads(pickle.dumps(loader if by_loader else iterator))
    copied = again if by_loader else again.loader
    pairs = (iter(loader), iter(copied)) if by_loader else (iterator, again)
    for where, owner, its in zip(found, (loader, copied), pairs, strict=True):
        where.append(drift_of(its))
        next(its, None)
        where.append(drift_of(its))
        list(its)
        where.append(drift_of(owner))
        later = iter(owner)
        where.append(drift_of(later))
        next(later)
        where.append(drift_of(later))
    assert found[0] == found[1]


def drift_of(owner: Any) -> bool:
    """Its state is warned of. An unpickled loader may name more: all that it was pickled with."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", LoaderWarning)
        owner.state_dict()
    return any("have changed its attributes" in str(each.message) for each in given)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_was_left_has_changed_the_dataset_as_well(kind: Any) -> None:
    loader = DataLoader(kind(), 4, num_workers=2, persistent_workers=True, seed=1)
    iterator = iter(loader)
    next(iterator), next(iterator)
    iterator = iter(loader)
    saves = [pickle.dumps(iterator)]
    whole = []
    for batch in iterator:
        whole.append(batch.tolist())
        saves.append(pickle.dumps(iterator))
    for step, data in enumerate(saves):
        assert lists(pickle.loads(data)) == whole[step:]


def forked() -> Any:
    one, other = IterableWrapper(range(12)).fork(2)
    return one.zip(other.shuffle()).map(sum)


@pytest.mark.filterwarnings("ignore:Some child DataPipes are not exhausted")
@pytest.mark.parametrize("num_workers, persistent", [(0, False), (1, True)])
@pytest.mark.parametrize("make", [forked, lambda: IterableWrapper(range(12)).sharding_filter()])
def test_the_pipes_of_torch_are_no_change(make: Any, num_workers: int, persistent: bool) -> None:
    loaders = [
        DataLoader(make(), 4, num_workers=num_workers, persistent_workers=persistent, seed=1)
        for _ in range(2)
    ]
    list(loaders[0])
    iterator = iter(loaders[0])
    next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)
        state = iterator.state_dict()
    loaders[1].load_state_dict(state)
    assert lists(loaders[1]) + lists(loaders[1]) == lists(iterator) + lists(loaders[0])


class Told(Counts):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> list[int]:
        return [12 * self.epoch + index for index in range(12)]


class CountsAndIsTold(Counts):
    """Counts its epochs, and draws by the count; the epoch that is set is another attribute."""

    told = 0

    def set_epoch(self, epoch: int) -> None:
        self.told = epoch


class CountsFromItsClassAndIsTold(CountsFromItsClass, CountsAndIsTold):
    pass


class HandsOn(IterableDataset[int]):
    """A wrapper, as people write it."""

    def __init__(self, *inner: Any) -> None:
        self.inner = {"train": list(inner)}

    def set_epoch(self, epoch: int) -> None:
        for each in self.inner["train"]:
            each.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(self.inner["train"])


WRAPPERS: dict[str, Any] = {
    "bare": lambda dataset: dataset,
    "shuffled": lambda dataset: ShuffleBuffer(dataset, 5),
    "interleaved": lambda dataset: Interleave([dataset]),
    "wrapped": HandsOn,
    "wrapped twice": lambda dataset: HandsOn(Interleave([dataset])),
}
IN_WRAPPERS = pytest.mark.parametrize("wrapper", WRAPPERS)


@pytest.mark.parametrize("num_workers, persistent", WORKERS)
@IN_WRAPPERS
def test_an_epoch_that_the_program_has_told_is_no_change(
    wrapper: str, num_workers: int, persistent: bool
) -> None:
    options: dict[str, Any] = {"num_workers": num_workers, "persistent_workers": persistent}
    loader = DataLoader(WRAPPERS[wrapper](Told()), 4, seed=1, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(3):
            loader.set_epoch(epoch)
            for _ in loader:
                loader.state_dict()
            loader.state_dict()
    del loader


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("counts", [CountsAndIsTold, CountsFromItsClassAndIsTold])
@IN_WRAPPERS
def test_an_epoch_that_was_told_does_not_hide_what_the_dataset_has_counted(
    wrapper: str, counts: Any, options: Any
) -> None:
    loader = DataLoader(WRAPPERS[wrapper](counts()), 4, seed=1, **options)
    for epoch in range(2):
        loader.set_epoch(epoch)
        iterator = iter(loader)
        if not epoch:
            list(iterator)
    next(iterator)
    with pytest.warns(LoaderWarning, match="its epochs have changed its attributes"):
        iterator.state_dict()


def test_an_epoch_that_a_state_gives_the_dataset_is_no_change_by_its_epochs() -> None:
    """Loaded into an iterator, the state called set_epoch of the dataset, and was not heard."""
    loader = DataLoader(Told(), 4, seed=1)
    for epoch in range(2):
        loader.set_epoch(epoch)
        iterator = iter(loader)
        state = [iterator.state_dict() for _ in iterator][0]
    iterator = iter(DataLoader(Told(), 4, seed=1))
    iterator.load_state_dict(state)
    next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)
        iterator.state_dict()


class SetByTheProgram(IterableDataset[int]):
    """The program sets its epoch before each, as it has no set_epoch."""

    def __init__(self) -> None:
        self.epoch = self.read = 0

    def __iter__(self) -> Iterator[int]:
        for index in range(8):
            yield index + 100 * self.epoch


class CountsToo(SetByTheProgram):
    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return super().__iter__()


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize("kind, warned", [(SetByTheProgram, False), (CountsToo, True)])
@pytest.mark.parametrize("again", ["same process", "unpickled", "attached"])
def test_what_the_program_sets_between_epochs_is_no_change_by_epochs(
    again: str, kind: Any, warned: bool, step: int
) -> None:
    """A resumed program sets it as well. Each state of a later epoch warned of it."""
    loader: Any = DataLoader(kind(), 4, seed=0, pickle_dataset=again != "attached")
    for epoch in range(3):
        loader.dataset.epoch = 10 * epoch
        if again != "same process":
            loader = pickle.loads(pickle.dumps(loader))
        if again == "attached":
            loader.attach(kind())
        iterator = iter(loader)
        for _ in range(step):
            next(iterator)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            iterator.state_dict()
        assert len(found) == (warned and epoch > 0)
        lists(iterator)


class Reader:
    """Counts what it reads, beside what plain pickle refuses."""

    def __init__(self) -> None:
        self.read, self.transform = 0, lambda index: index

    def __iter__(self) -> Iterator[int]:
        for _ in range(8):
            self.read += 1
            yield self.transform(self.read)


class ByAReader(IterableDataset[int]):
    def __init__(self) -> None:
        self.reader = Reader()

    def __iter__(self) -> Iterator[int]:
        yield from self.reader


class ByReadersInADict(ByAReader):
    def __init__(self) -> None:
        self.readers = {"train": [Reader()]}

    def __iter__(self) -> Iterator[int]:
        yield from self.readers["train"][0]


class ByTheReadersText(ByAReader):
    def __init__(self) -> None:
        self.reader: Any = Reader()
        self.reader.text = ""

    def __iter__(self) -> Iterator[int]:
        for _ in range(8):
            self.reader.text += "a"
            yield len(self.reader.text)


class ByTheReadersTensor(ByAReader):
    def __init__(self) -> None:
        self.reader: Any = Reader()
        self.reader.sums = torch.zeros(3)

    def __iter__(self) -> Iterator[int]:
        for _ in range(8):
            self.reader.sums += 1
            yield int(self.reader.sums[0])


class ByTheReadersArray(ByAReader):
    def __init__(self) -> None:
        self.reader: Any = Reader()
        self.reader.sums, self.reader.count = np.zeros(3), np.int64(0)

    def __iter__(self) -> Iterator[int]:
        for _ in range(8):
            self.reader.sums += 1
            yield int(self.reader.sums[0])


class ByTheReadersNumber(ByTheReadersArray):
    def __iter__(self) -> Iterator[int]:
        for _ in range(8):
            self.reader.count = self.reader.count + np.int64(1)
            yield int(self.reader.count)


class LargeSums(IterableDataset[int]):
    """A large tensor is changed in place."""

    def __init__(self) -> None:
        self.sums = torch.zeros(100_000)

    def __iter__(self) -> Iterator[int]:
        for _ in range(8):
            self.sums += 1
            yield int(self.sums[0])


HIDDEN: list[Any] = [
    ByAReader,
    ByReadersInADict,
    ByTheReadersText,
    ByTheReadersTensor,
    ByTheReadersArray,
    ByTheReadersNumber,
    LargeSums,
]


def with_warnings(act: Any) -> tuple[Any, bool]:
    """What it gives, and whether it has warned of a dataset that has changed."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", LoaderWarning)
        found = act()
    texts = "\n".join(str(each.message) for each in given)
    return found, "changed its attributes" in texts or "have left it" in texts


def read_again(act: Any) -> tuple[Any, bool]:
    """What a resume gives, and whether it has warned of batches that came as other ones."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", LoaderWarning)
        found = act()
    texts = [str(each.message) for each in given if type(each.message) is LoaderWarning]
    assert all("came as another one" in text for text in texts)
    return found, bool(texts)


@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("door", ["pickle", "pickle without the dataset", "state"])
@pytest.mark.parametrize("num_workers, persistent", WORKERS)
@pytest.mark.parametrize("kind", HIDDEN)
def test_a_change_that_cannot_be_undone_is_warned_of_where_a_resume_is_not_exact(
    kind: Any, num_workers: int, persistent: bool, door: str, epochs: int, step: int
) -> None:
    whole = door != "pickle without the dataset"
    options: Any = {"num_workers": num_workers, "persistent_workers": persistent}
    options |= {"seed": 1, "pickle_dataset": whole}

    def resumed(saved: Any) -> Any:
        if door == "state":
            loader = DataLoader(kind(), 2, **options)
            loader.load_state_dict(saved)
            return iter(loader)
        again = pickle.loads(saved)
        if not whole:
            again.loader.attach(kind())
        return again

    loader = DataLoader(kind(), 2, **options)
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    for _ in range(step):
        next(iterator)
    save = iterator.state_dict if door == "state" else lambda: pickle.dumps(iterator)
    saved, warned = with_warnings(save)
    again = resumed(saved)
    found, differed = read_again(lambda: [lists(again), lists(again.loader)])
    exact = found == [lists(iterator), lists(loader)]
    assert exact == (not warned)
    assert not (exact and differed)


@pytest.mark.parametrize("step", [None, 0, 1])
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("again", ["same loader", "unpickled", "unpickled later", "attached"])
@pytest.mark.parametrize("kind", [*KINDS, *HIDDEN])
def test_a_state_that_a_used_loader_loads_is_exact_or_warned_of(
    kind: Any, again: str, epochs: int, step: int | None
) -> None:
    def saved_by(more: int = 0) -> Any:
        loader = DataLoader(kind(), 2, seed=1, pickle_dataset=again != "attached")
        for _ in range(epochs):
            list(loader)
        if step is None and not more:
            return loader
        iterator = iter(loader)
        for _ in range((step or 0) + more):
            next(iterator)
        return iterator

    state, warned = with_warnings(saved_by().state_dict)
    used, expected = saved_by(again == "unpickled later"), lists(saved_by())
    if again == "same loader":
        list(used)
    else:
        used, _ = with_warnings(lambda: pickle.loads(pickle.dumps(used)))
    used = getattr(used, "loader", used)
    if again == "attached":
        used.attach(kind())
    _, warned_then = with_warnings(lambda: used.load_state_dict(state))
    found, differed = read_again(lambda: lists(used))
    assert found == expected or warned or warned_then
    assert not (found == expected and differed)


class Harmless(IterableDataset[int]):
    """A lambda, and objects of Python's own that change, which no sample depends on."""

    def __init__(self) -> None:
        self.begun, self.jobs, self.transform = threading.Event(), queue.SimpleQueue(), [abs]
        self.transform.append(lambda index: index)

    def __iter__(self) -> Iterator[int]:
        self.begun.set()
        self.jobs.put(1)
        return map(self.transform[1], range(8))

    def __getstate__(self) -> Any:
        return {"transform": self.transform}

    def __setstate__(self, state: Any) -> None:
        self.__init__()


@pytest.mark.parametrize("num_workers, persistent", WORKERS)
def test_a_lock_or_an_event_that_changes_is_not_warned_of(
    num_workers: int, persistent: bool
) -> None:
    options: Any = {"num_workers": num_workers, "persistent_workers": persistent}
    loader = DataLoader(Harmless(), 2, seed=1, **options)
    list(loader)
    iterator = iter(loader)
    next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)
        warnings.simplefilter("ignore", ReplayWarning)
        state, pickled = iterator.state_dict(), pickle.dumps(iterator)
        rest = lists(iterator)
        loader.load_state_dict(state)
        assert lists(pickle.loads(pickled)) == lists(loader) == rest


class Notes(IterableDataset[int]):
    """Each epoch sets these anew."""

    def __iter__(self) -> Iterator[int]:
        self.order = [*range(12)]
        self.count = 0
        for row in self.order:
            self.position = row
            self.count += 1
            found = {}
            found["count"] = self.count  # this text asks for no attribute
            yield row + 0 * found["count"]


def test_numbers_that_each_epoch_sets_anew_are_not_warned_of() -> None:
    loader = DataLoader(Notes(), 4)
    list(loader)
    assert not drift_of(loader)
    iterator = iter(loader)
    next(iterator)
    assert not drift_of(iterator)
