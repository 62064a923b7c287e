"""Attributes of samplers, of all kinds: a save holds a change exactly, or is refused."""

from __future__ import annotations

import array
import copy
import dataclasses
import enum
import functools
import itertools
import json
import pickle
import random
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)
from zoo.samplers import (
    CountsEpochs,
    CountsEpochsLazily,
    DrawsAsItGoes,
    DrawsAtOnce,
    KeepsItsOrder,
)
from zoo.samplers import N as LENGTH
from zoo.samplers import (
    OwnNumpyGenerator,
    OwnPythonGenerator,
    OwnTorchGenerator,
    PositionAndCounting,
    ShufflesInPlace,
    from_numpy,
    from_python,
)

from picklable_loader import DataLoader, from_json, to_json
from picklable_loader.errors import CannotSaveError, LoaderWarning, UsageError

N = 6


class Phase(enum.Enum):
    FIRST = 1
    LATER = 2


class Marks(enum.Flag):
    ONE = 1
    TWO = 2


class Drawer:
    turn = 1


class LaterDrawer:
    turn = 2


class Changing(Sampler[int]):
    """Begins where an attribute says, and changes the attribute as an epoch begins."""

    def __init__(
        self, value: Any, turn: Callable[[Changing], Any], change: Callable[[Changing], Any]
    ) -> None:
        if value is not None:
            self.value = value()
        self._functions = turn, change

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        turn, change = self._functions
        first = int(turn(self))
        change(self)
        yield from ((first + index) % N for index in range(N))

    def one(self) -> int:
        return 1

    def two(self) -> int:
        return 2


class Twice(Changing):
    """Has its value under two names."""

    def __init__(
        self, value: Any, turn: Callable[[Changing], Any], change: Callable[[Changing], Any]
    ) -> None:
        super().__init__(value, turn, change)
        self.also = self.value


@dataclasses.dataclass(frozen=True)
class Stage:
    """Replaced, and never changed."""

    count: int = 0

    def next(self) -> Stage:
        return dataclasses.replace(self, count=self.count + 1)


class Guarded(Changing):
    """Lets nobody set its attributes."""

    def __init__(self) -> None:
        for name, value in {"value": 1, "_functions": (lambda s: s.value, self._go_on)}.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} is not to be set")

    @staticmethod
    def _go_on(sampler: Any) -> None:
        object.__setattr__(sampler, "value", sampler.value + 1)


class CountsDraws(random.Random):
    """A generator with an attribute, on which the next number depends."""

    count = 0

    def random(self) -> float:
        self.count += 1
        return (super().random() + self.count / 10) % 1


class SavesItsCount(CountsDraws):
    """Its state has another form."""

    def getstate(self) -> Any:
        return super().getstate(), self.count

    def setstate(self, state: Any) -> None:
        super().setstate(state[0])
        self.count = state[1]


def _set(value: Any) -> Callable[[Any], None]:
    return lambda sampler: setattr(sampler, "value", value(sampler))


def _add_to(place: Any) -> Callable[[Any], None]:
    def act(sampler: Any) -> None:
        sampler.value[place] += 1

    return act


def _drop(sampler: Any) -> None:
    vars(sampler).pop("value", None)


def _replace_array(sampler: Any) -> None:
    sampler.value[0] += 1
    sampler.value = sampler.also = sampler.value + 1


def _replace_both(sampler: Any) -> None:
    sampler.value = sampler.also = sampler.value.next()


def _nothing(sampler: Any) -> None:
    """Looking is what changes it."""


def _later_array(sampler: Any) -> None:
    sampler.value = getattr(sampler, "value", None) or array.array("q", [1])
    sampler.value[0] += 1


def _count(sampler: Any) -> None:
    sampler.value.count += 1


def _dotted(sampler: Any) -> None:
    vars(sampler)["a.b"] = vars(sampler).get("a.b", 0) + 1


HELD: dict[str, Callable[[], Any]] = {
    "a member": lambda: Changing(
        lambda: Phase.FIRST, lambda s: s.value.value, _set(lambda s: Phase.LATER)
    ),
    "flags": lambda: Changing(
        lambda: Marks.ONE, lambda s: s.value.value, _set(lambda s: s.value | Marks.TWO)
    ),
    "a bit generator": lambda: Changing(
        lambda: np.random.PCG64(3), lambda s: s.value.random_raw() % N, _nothing
    ),
    "deleted": lambda: Changing(lambda: 3, lambda s: getattr(s, "value", 1), _drop),
    "added": lambda: Changing(None, lambda s: getattr(s, "value", 1), _set(lambda s: 2)),
    "a list by two names": lambda: Twice(lambda: [1], lambda s: s.also[0], _add_to(0)),
    "a dict by two names": lambda: Twice(lambda: {"at": 1}, lambda s: s.also["at"], _add_to("at")),
    "an array by two names": lambda: Twice(lambda: np.array([1]), lambda s: s.also[0], _add_to(0)),
    "an array that gets a second name": lambda: Twice(
        lambda: np.array([1]), lambda s: s.also[0], _replace_array
    ),
    "a frozen helper": lambda: Changing(
        Stage, lambda s: s.value.count, _set(lambda s: s.value.next())
    ),
    "a frozen helper by two names": lambda: Twice(Stage, lambda s: s.also.count, _replace_both),
    "an attribute that is not to be set": Guarded,
    "a generator that counts": lambda: Changing(
        lambda: CountsDraws(3), lambda s: s.value.random() * N, _nothing
    ),
    "a generator that saves its count": lambda: Changing(
        lambda: SavesItsCount(3), lambda s: s.value.random() * N, _nothing
    ),
    "a name with a point": lambda: Changing(None, lambda s: vars(s).get("a.b", 0), _dotted),
}

REFUSED: dict[str, Callable[[], Any]] = {
    "a seed sequence": lambda: Changing(
        lambda: np.random.SeedSequence(3), lambda s: s.value.spawn(1)[0].spawn_key[-1], _nothing
    ),
    "a generator that spawns": lambda: Changing(
        lambda: np.random.default_rng(3), lambda s: s.value.spawn(1)[0].integers(N), _nothing
    ),
    "an array": lambda: Changing(lambda: array.array("q", [1]), lambda s: s.value[0], _add_to(0)),
    "a masked array": lambda: Changing(
        lambda: np.ma.array([0, 1], mask=[0, 1]), lambda s: s.value[0], _add_to(0)
    ),
    "an array of objects": lambda: Changing(
        lambda: np.array([1, print], dtype=object), lambda s: s.value[0], _add_to(0)
    ),
    "a member of another class": lambda: Changing(
        lambda: Marks.ONE, lambda s: s.value.value, _set(lambda s: Phase.LATER)
    ),
    "a method": lambda: Changing(
        lambda: Changing.one, lambda s: s.value(s), _set(lambda s: Changing.two)
    ),
    "a helper": lambda: Changing(Drawer, lambda s: s.value.turn, _set(lambda s: LaterDrawer())),
    "an array that comes later": lambda: Changing(
        None, lambda s: s.value[0] if hasattr(s, "value") else 0, _later_array
    ),
}

#: an object that may be the whole program's
WARNED: dict[str, Callable[[], Any]] = {
    "a namespace": lambda: Changing(
        lambda: types.SimpleNamespace(count=0), lambda s: s.value.count, _count
    ),
}

KINDS = {**HELD, **REFUSED}
PLACES = pytest.mark.parametrize("epoch, step", [(0, 0), (0, 1), (0, 2), (1, 0), (1, 3), (2, 1)])


def _flat(batches: Any) -> list[int]:
    return [int(index) for batch in batches for index in batch]


def _stand(kind: str, epoch: int, step: int) -> tuple[DataLoader[Any], Any]:
    """A loader there, and what is to be saved: it, or its iterator."""
    loader = DataLoader(range(N), 2, sampler=KINDS[kind]())
    for _ in range(epoch):
        list(loader)
    if not step:
        return loader, loader
    iterator = iter(loader)
    for _ in range(step):
        next(iterator)
    return loader, iterator


@PLACES
@pytest.mark.parametrize("again", ["new", "same"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:the state was taken after the last batch")
def test_a_state_holds_a_change_or_is_refused(kind: str, again: str, epoch: int, step: int) -> None:
    loader, saved = _stand(kind, epoch, step)
    try:
        state = from_json(to_json(saved.state_dict()))
    except CannotSaveError as error:
        assert kind in REFUSED and "attribute value" in str(error)
        return
    rest = [_flat(saved), _flat(loader), _flat(loader)]
    if again == "new":
        loader = DataLoader(range(N), 2, sampler=KINDS[kind]())
    try:
        loader.load_state_dict(state)
    except UsageError as error:
        assert kind in REFUSED and again == "same" and "attribute value" in str(error)
        return
    assert [_flat(loader), _flat(loader), _flat(loader)] == rest


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_state_holds_is_refused_as_soon_as_it_has_changed(kind: str) -> None:
    loader, _ = _stand(kind, 1, 0)
    with pytest.raises(CannotSaveError, match="attribute value"):
        loader.state_dict()


def test_a_change_in_an_object_that_may_be_the_programs_is_warned_of_and_saved() -> None:
    sampler = WARNED["a namespace"]()
    loader = DataLoader(range(N), 2, sampler=sampler)
    loader.state_dict()
    list(loader)
    with pytest.warns(LoaderWarning, match="attribute value has changed, and is an object of"):
        state = loader.state_dict()
    count = sampler.value.count
    rest = _flat(loader)
    sampler = WARNED["a namespace"]()
    sampler.value.count = count  # as the program sets its configuration
    again = DataLoader(range(N), 2, sampler=sampler)
    again.load_state_dict(state)
    assert _flat(again) == rest


class OfNothing(Changing):
    """Its functions have names, for pickle."""

    def __init__(self) -> None:
        self.value = array.array("q", [1])
        self.phase = Phase.FIRST

    def __iter__(self) -> Iterator[int]:
        self.value[0] += self.phase.value
        self.phase = Phase.LATER
        yield from ((self.value[0] + index) % N for index in range(N))


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_a_pickle_between_epochs_holds_all_kinds(epochs: int) -> None:
    loader = DataLoader(range(N), 2, sampler=OfNothing())
    for _ in range(epochs):
        list(loader)
    again = pickle.loads(pickle.dumps(loader))
    for _ in range(3):
        assert _flat(again) == _flat(loader)


def _gives(indices: Iterable[int]) -> Iterator[int]:
    yield from indices


ITERATORS = {"generator": _gives, "list iterator": iter, "cycle": itertools.cycle}


class CountsFromADefault(Sampler[int]):
    """`epoch` is an attribute of the object from the first pass on."""

    epoch = 0

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order = list(range(N))
        random.Random(self.epoch).shuffle(order)
        yield from order


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("ways", [*itertools.product(["pickle", "state"], repeat=2)])
def test_a_new_sampler_whose_class_has_a_default_takes_any_state(
    ways: tuple[str, str], epoch: int
) -> None:
    def loader_in(epochs: int) -> Any:
        loader = DataLoader(list(range(N)), sampler=CountsFromADefault())
        for _ in range(epochs):
            list(loader)
        return loader

    expected = [batch.item() for batch in loader_in(epoch)]
    next(iterator := iter(loader_in(epoch)))
    for way in ways:  # nothing is taken in between
        if way == "pickle":
            iterator = pickle.loads(pickle.dumps(iterator))
        else:
            new = loader_in(0)
            new.load_state_dict(iterator.state_dict())
            iterator = iter(new)
    assert [batch.item() for batch in iterator] == expected[1:]


class HalfAPass(Sampler[int]):
    """Each epoch goes on in an iterator where the epoch before has ended."""

    def __init__(self, begin: Callable[[Any], Iterator[int]]) -> None:
        self.begin, self.pass_over = begin, RandomSampler(range(N))
        self.inner: Iterator[int] | None = None

    def __len__(self) -> int:
        return N // 2

    def __iter__(self) -> Iterator[int]:
        for _ in range(N // 2):
            if self.inner is None or (found := next(self.inner, None)) is None:
                self.inner = self.begin(list(self.pass_over))
                found = next(self.inner)
            yield found


class BeginsItAnew(Sampler[int]):
    """Each epoch makes an iterator, and exhausts it."""

    def __init__(self, begin: Callable[[Any], Iterator[int]]) -> None:
        self.begin, self.pass_over = begin, RandomSampler(range(N))

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        self.inner = self.begin(list(self.pass_over))
        yield from self.inner


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("epochs", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ITERATORS)
def test_a_save_between_epochs_warns_of_an_iterator_that_the_next_one_may_go_on_in(
    kind: str, epochs: int, begun: bool
) -> None:
    loader = DataLoader(range(N), 2, sampler=HalfAPass(ITERATORS[kind]), seed=1)
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader) if begun else loader
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = iterator.state_dict()
    expected = _flat(iterator)
    again = DataLoader(range(N), 2, sampler=HalfAPass(ITERATORS[kind]), seed=1)
    again.load_state_dict(state)
    assert _flat(again) == expected or caught
    assert all("inner is an iterator" in str(each.message) for each in caught)
    assert epochs or not caught


@pytest.mark.parametrize("epochs", [0, 1, 2])
@pytest.mark.parametrize("kind", ["generator", "list iterator"])
def test_a_save_between_epochs_does_not_warn_of_an_exhausted_iterator(
    kind: str, epochs: int
) -> None:
    loader = DataLoader(range(N), 2, sampler=BeginsItAnew(ITERATORS[kind]), seed=1)
    for _ in range(epochs):
        list(loader)
    state, expected = loader.state_dict(), _flat(loader)
    again = DataLoader(range(N), 2, sampler=BeginsItAnew(ITERATORS[kind]), seed=1)
    again.load_state_dict(state)
    assert _flat(again) == expected


def _made() -> Callable[[], None]:
    return lambda: None


class Refers(Changing):
    """To much that is none of its own, and that stays."""

    def __init__(self, dataset: Any) -> None:
        self.value = 0
        self.dataset, self.kind, self.function = dataset, Phase, _nothing
        self.log, self.spare = types.SimpleNamespace(lines=[1]), object()
        self.made = _made()

    def __iter__(self) -> Iterator[int]:
        self.value += 1
        self.made = _made()
        yield from ((self.value + index) % N for index in range(N))


@PLACES
def test_what_stays_does_not_hinder_a_save(epoch: int, step: int) -> None:
    def make() -> DataLoader[Any]:
        data = list(range(N))
        return DataLoader(data, 2, sampler=Refers(data))  # type: ignore[arg-type]

    loader = make()
    for _ in range(epoch):
        list(loader)
    iterator = iter(loader)
    for _ in range(step):
        next(iterator)
    state = iterator.state_dict()
    rest = _flat(iterator), _flat(loader)
    again = make()
    again.load_state_dict(state, at_epoch_end="stop")
    if step < 3:
        assert (_flat(again), _flat(again)) == rest


class BadLength(Refers):
    def __len__(self) -> int:
        raise ValueError("not yet")


class SortedByKey(Sampler[int]):
    """Has a key of the dataset's own, as a partial of a partial."""

    def __init__(self, feature: Any) -> None:
        self.key = functools.partial(_key, feature)

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(range(N), key=self.key))


def _key(feature: Callable[[int], int], index: int) -> int:
    return feature(index)


def _feature(factor: int, index: int) -> int:
    return index * factor % 7


class OfFeatures(Dataset[int]):
    def __init__(self, feature: Any) -> None:
        self.feature = feature

    def __getitem__(self, index: int) -> int:
        return int(self.feature(index))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_partial_that_the_dataset_has_as_well_has_not_changed(num_workers: int) -> None:
    feature = functools.partial(_feature, 3)
    dataset, sampler = OfFeatures(feature), SortedByKey(feature)
    options: Any = {"batch_size": 2, "sampler": sampler, "num_workers": num_workers}
    loader = DataLoader(dataset, **options)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()  # would raise, as the loader has looked into the partial
    rest = [batch.tolist() for batch in iterator]
    loader.state_dict()
    resumed = DataLoader(dataset, **options)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest


def test_a_length_that_raises_is_none() -> None:
    loader = DataLoader(range(N), 2, sampler=BadLength(None))
    iterator = iter(loader)
    next(iterator)
    state, rest = iterator.state_dict(), _flat(iterator)
    loader = DataLoader(range(N), 2, sampler=BadLength(None))
    loader.load_state_dict(state)
    repr(loader)
    assert _flat(loader) == rest


# --- several iterators of one sampler ------------------------------------------------------------


class ReplacesItsGenerator(OwnPythonGenerator):
    """A pass goes on with its own generator, whatever another one puts in its place."""

    def __iter__(self) -> Iterator[int]:
        self.rng = rng = random.Random(self.rng.random())
        for _ in range(len(self)):
            yield rng.randrange(len(self))


class SetsItsEpoch(CountsEpochs):
    """The loader gives it its epoch, which it reads at each index."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for index in range(len(self)):
            yield (index + self.epoch) % len(self)


MOVED_BY_OTHERS: dict[str, Any] = {
    "counter": CountsEpochs,
    "lazy counter": CountsEpochsLazily,
    "torch": OwnTorchGenerator,
    "numpy": OwnNumpyGenerator,
    "python": OwnPythonGenerator,
    "global at once": lambda: DrawsAtOnce(from_numpy),
    "global": lambda: DrawsAsItGoes(from_python),
    "order in itself": KeepsItsOrder,
    "epoch": SetsItsEpoch,
    "positions": PositionAndCounting,
}
REFUSED_WHEN_MOVED: dict[str, Any] = {
    "in place": ShufflesInPlace,
    "replaced": ReplacesItsGenerator,
}


def look(loader: Any, batches: int) -> None:
    other = iter(loader)
    for _ in range(batches):
        next(other)


def goes_on(make: Any, looks: tuple[int, ...], at: int, by_pickle: bool) -> None:
    """Compare an iterator with its copy of the step ``at``, in this epoch and the next one."""
    loader, again = make(), make()
    iterator = iter(loader)
    for step in range(at + 1):
        for _ in range(looks.count(step)):
            look(loader, 1 + step % 2)
        if step < at:
            next(iterator)
    if by_pickle:
        copied = pickle.loads(pickle.dumps(iterator))
        again = copied.loader
    else:
        again.load_state_dict(iterator.state_dict())
        copied = iter(again)
    first = next(copied).tolist()
    assert first == next(iterator).tolist(), (looks, at)
    relayed = pickle.loads(pickle.dumps(copied))  # a state of what was resumed
    expected = batches(iterator), batches(loader)
    for found in (copied, again), (relayed, relayed.loader):
        assert tuple(map(batches, found)) == expected, (looks, at)


def batches(source: Any) -> list[list[int]]:
    return [batch.tolist() for batch in source]


@pytest.mark.parametrize("kind", MOVED_BY_OTHERS)
@pytest.mark.parametrize("by_pickle", [False, True])
def test_an_iterator_goes_on_after_others_have_moved_its_sampler(
    by_pickle: bool, kind: str
) -> None:
    """A look at a batch in mid-epoch: this epoch or the next one was another, without a word."""

    def make(num_workers: int = 0) -> DataLoader[Any]:
        sampler = MOVED_BY_OTHERS[kind]()
        return DataLoader(range(LENGTH), 3, sampler=sampler, seed=1, num_workers=num_workers)

    for looks in ((0,), (1,), (2,), (1, 1, 3), (0, 3)):
        for at in range(0 if kind != "epoch" else 1, 4):
            goes_on(make, looks, at, by_pickle)
    goes_on(lambda: make(2), (1, 2), 2, by_pickle)


@pytest.mark.parametrize("kind", REFUSED_WHEN_MOVED)
def test_what_others_have_done_to_an_object_that_it_may_read_is_refused(kind: str) -> None:
    loader = DataLoader(range(LENGTH), 3, sampler=REFUSED_WHEN_MOVED[kind](), seed=1)
    iterator = iter(loader)
    next(iterator)
    iterator.state_dict()
    look(loader, 1)
    for save in (iterator.state_dict, lambda: pickle.dumps(iterator)):
        with pytest.raises(CannotSaveError, match="another iterator has changed .*(indices|rng)"):
            save()
    list(iterator)
    list(loader)  # the next epoch begins with the sampler as it is
    loader.state_dict()


def test_iterators_of_one_sampler_are_saved_together() -> None:
    for kind, make in MOVED_BY_OTHERS.items():
        if kind == "positions":
            continue
        sampler = make()
        loaders = [DataLoader(range(LENGTH), size, sampler=sampler, seed=size) for size in (2, 3)]
        iterators = [iter(loader) for loader in loaders]
        for at in (0, 1, 0):
            next(iterators[at])
        copies = pickle.loads(pickle.dumps(iterators))
        turns = (0, 1, 0, 1)
        assert [next(copies[at]).tolist() for at in turns] == [
            next(iterators[at]).tolist() for at in turns
        ], kind


# --- a sampler's own exceptions ------------------------------------------------------------------


class ReadsLines(Sampler[int]):
    def __init__(self, lines: list[str]) -> None:
        self._lines = iter, lambda: lines  # a file

    def __iter__(self) -> Iterator[int]:
        for line in self._lines[1]():
            yield int(line)


class RaisesOnce(Iterator[int]):
    """Raises at its third call, and goes on."""

    def __init__(self) -> None:
        self.calls = self.given = 0
        self.unpicklable = lambda: None

    def __next__(self) -> int:
        self.calls += 1
        if self.calls == 3:
            raise ValueError("cannot rank")
        self.given += 1
        return self.given


class Raising(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return RaisesOnce()


def test_what_a_sampler_raises_in_a_replay_is_its_own_error() -> None:
    """It was called a damaged state."""
    lines = [str(number) for number in range(LENGTH)]
    iterator = iter(DataLoader(range(LENGTH), 2, sampler=ReadsLines(lines), seed=1))
    next(iterator), next(iterator)
    state = iterator.state_dict()
    lines[1] = "1;"
    loader = DataLoader(range(LENGTH), 2, sampler=ReadsLines(lines), seed=1)
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="1;"):
        iter(loader)
    lines[1] = "1"
    assert next(iter(loader)).tolist() == [4, 5]


class OwnGeneratorOf(Sampler[int]):
    """Its lines are read anew in each pass, and may fail."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = iter, lambda: lines  # a file
        self.rng = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        order = [int(line) for line in self._lines[1]()]
        self.rng.shuffle(order)
        yield from order


@pytest.mark.parametrize("by_pickle", [False, True])
def test_a_replay_that_has_failed_and_is_still_referred_to_does_no_harm(by_pickle: bool) -> None:
    """A notebook keeps the traceback: the next epochs began like the resumed one."""
    lines = [str(number) for number in range(LENGTH)]

    def made() -> Any:
        return DataLoader(range(LENGTH), 2, sampler=OwnGeneratorOf(lines), seed=1, codec="dill")

    iterator = iter(made())
    next(iterator)
    again = made()
    if by_pickle:
        resumed: Any = copy.deepcopy(iterator)
        lines = resumed.loader.sampler._lines[1]()
        again = resumed.loader
    else:
        again.load_state_dict(iterator.state_dict())
    expected = [_flat(iterator), _flat(iterator.loader), _flat(iterator.loader)]
    line, lines[1] = lines[1], "1;"
    with pytest.raises(ValueError, match="1;") as kept:
        next(resumed) if by_pickle else iter(again)
    lines[1] = line
    assert [_flat(resumed if by_pickle else again), _flat(again), _flat(again)] == expected
    assert kept.value.__traceback__ is not None


def test_an_iterator_that_has_raised_and_gone_on_cannot_be_replayed() -> None:
    iterator = iter(DataLoader(range(LENGTH), 2, sampler=Raising(), seed=1))
    assert next(iterator).tolist() == [1, 2]
    with pytest.raises(ValueError, match="cannot rank"):
        next(iterator)
    iterator.state_dict()  # a resume raises it again
    next(iterator)
    with pytest.raises(CannotSaveError, match="raised ValueError in this epoch"):
        iterator.state_dict()


class Draws(Dataset[int]):
    """A sampler's indices as a dataset, as Lightning and catalyst wrap a sampler for ranks."""

    def __init__(self, sampler: Sampler[int]) -> None:
        self.sampler, self.indices = sampler, [*sampler]

    def __getitem__(self, at: int) -> int:
        return self.indices[at]

    def __len__(self) -> int:
        return len(self.indices)


class OfARank(DistributedSampler[int]):
    def __iter__(self) -> Iterator[int]:
        self.dataset.indices = [*self.dataset.sampler]
        return map(self.dataset.__getitem__, super().__iter__())


@pytest.mark.parametrize("step", [0, 3, 7])
def test_a_sampler_below_a_distributed_one_goes_on_from_its_own_generator(step: int) -> None:
    def loader() -> DataLoader[int]:
        weights, generator = [1.0 + i for i in range(80)], torch.Generator().manual_seed(7)
        weighted = WeightedRandomSampler(weights, 80, generator=generator)
        sampler = OfARank(Draws(weighted), num_replicas=2, rank=1)
        return DataLoader(range(80), batch_size=4, sampler=sampler, seed=3)

    original = loader()
    list(original)
    iterator = iter(original)
    for _ in range(step):
        next(iterator)
    state = json.dumps(original.state_dict())
    assert len(state) < 6000  # the generator is in it, and not a list of the indices
    resumed = loader()
    resumed.load_state_dict(json.loads(state))
    for _ in range(2):
        assert [[*map(int, b)] for b in resumed] == [[*map(int, b)] for b in iterator]
        iterator = iter(original)


class ClassDefault(Sampler[int]):
    """Its counter is an attribute of the class until the first epoch."""

    epoch = 0

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        yield from random.Random(self.epoch).sample(range(N), N)


class Checked:
    """A descriptor that stores under its own name, as Python's guide has it."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return vars(owner).get(self.name, 0)

    def __set__(self, owner: Any, value: int) -> None:
        vars(owner)[self.name] = int(value)


class Described(ClassDefault):
    epoch: Any = Checked()


class CountsInAnother(ClassDefault):
    def __init__(self) -> None:
        self.counts = Counts()

    def __iter__(self) -> Iterator[int]:
        self.counts.epoch += 1
        yield from random.Random(self.counts.epoch).sample(range(N), N)


class Counts:
    epoch = 0


class MakesItsGenerator(ClassDefault):
    """In its first epoch."""

    rng: Any = None

    def make(self) -> Any:
        return random.Random(5)

    def __iter__(self) -> Iterator[int]:
        if self.rng is None:
            self.rng = self.make()
        yield from self.drawn()

    def drawn(self) -> list[int]:
        return list(self.rng.sample(range(N), N))


class MakesNumpys(MakesItsGenerator):
    def make(self) -> Any:
        return np.random.default_rng(5)

    def drawn(self) -> list[int]:
        return list(self.rng.permutation(N).tolist())


class MakesNumpysBits(MakesItsGenerator):
    def make(self) -> Any:
        return np.random.PCG64(5)

    def drawn(self) -> list[int]:
        return [int(self.rng.random_raw() % N) for _ in range(N)]


LATE = [
    ClassDefault,
    Described,
    CountsInAnother,
    MakesItsGenerator,
    MakesNumpys,
    MakesNumpysBits,
]


@PLACES
@pytest.mark.parametrize("unpickled", [None, 0, 1], ids=lambda step: f"unpickled at {step}")
@pytest.mark.parametrize("again", ["new", "same"])
@pytest.mark.parametrize("kind", LATE)
@pytest.mark.filterwarnings("ignore:the state was taken after the last batch")
def test_an_attribute_that_the_first_epoch_makes_is_gone_where_a_state_lacks_it(
    kind: Any, again: str, unpickled: int | None, epoch: int, step: int
) -> None:
    """Loaded in place, a state of an unpickled loader left it as it was."""
    unpickled = unpickled and min(unpickled, step)
    loader = DataLoader(range(N), 2, sampler=kind(), seed=1)
    for _ in range(epoch):
        list(loader)
    iterator = iter(loader) if step else None
    saved: Any = loader if iterator is None else iterator
    for _ in range(unpickled or 0):
        next(saved)
    if unpickled is not None:
        loader, saved = pickle.loads(pickle.dumps((loader, saved)))
    for _ in range(step - (unpickled or 0)):
        next(saved)
    state = from_json(to_json(saved.state_dict()))
    rest = [_flat(saved), _flat(loader), _flat(loader)]
    if again == "new":
        loader = DataLoader(range(N), 2, sampler=kind(), seed=1)
    loader.load_state_dict(state)
    assert [_flat(loader), _flat(loader), _flat(loader)] == rest


def test_a_numpy_generator_that_a_state_has_made_spawns_none() -> None:
    """No state has the seeds that it was built from: others would come without a word."""
    loader = DataLoader(range(N), 2, sampler=MakesNumpys(), seed=1)
    list(loader)
    state = loader.state_dict()
    sampler = MakesNumpys()
    loader = DataLoader(range(N), 2, sampler=sampler, seed=1)
    loader.load_state_dict(state)
    with pytest.raises(NotImplementedError, match="seedless"):
        sampler.rng.spawn(1)


class FromTheClass(ClassDefault):
    """Its position is an attribute of the class until the first index; its state has it."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        order = random.Random(self.seed()).sample(range(N), N)
        while self.at < N:
            self.at += 1
            yield order[self.at - 1]
        self.at, self.epoch = 0, self.epoch + 1

    def seed(self) -> int:
        return self.epoch

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class SavedAndSet(FromTheClass):
    """Its state_dict has the position and the epoch. The program sets which half it gives."""

    def __init__(self) -> None:
        self.at, self.half, self.owner = 0, 0, None

    def seed(self) -> int:
        return self.epoch + 100 * self.half


@PLACES
@pytest.mark.parametrize("when", ["before", "after", "after, in place"])
@pytest.mark.filterwarnings("ignore:the state was taken after the last batch")
def test_what_the_program_sets_on_a_sampler_with_a_state_stays_set(
    when: str, epoch: int, step: int
) -> None:
    """A load made of it what it was when the loader was built."""

    def made() -> DataLoader[Any]:
        return DataLoader(range(N), 2, sampler=SavedAndSet(), seed=1)

    def set_up(loader: Any) -> None:
        loader.sampler.half, loader.sampler.owner = 1, loader

    loader = made()
    set_up(loader)
    for _ in range(epoch):
        list(loader)
    iterator = iter(loader) if step else None
    saved: Any = loader if iterator is None else iterator
    for _ in range(step):
        next(saved)
    state = saved.state_dict()
    rest = [_flat(saved), _flat(loader), _flat(loader)]
    if when != "after, in place":
        loader = made()
    if when == "before":
        set_up(loader)
    loader.load_state_dict(state)
    if when != "before":
        set_up(loader)
    assert [_flat(loader), _flat(loader), _flat(loader)] == rest
    assert loader.sampler.owner is loader  # type: ignore[attr-defined]


@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("kind", LATE)
def test_a_batch_comes_again_of_an_epoch_that_has_made_attributes(kind: Any, epochs: int) -> None:
    """In the first epoch it was refused: the sampler gave other indices."""
    loader = DataLoader(range(N), 2, sampler=kind(), seed=1)
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    batches = [next(iterator).tolist() for _ in range(2)]
    assert [loader.batch_at(step).tolist() for step in range(2)] == batches
    assert next(iterator).tolist() == loader.batch_at(2).tolist()


@pytest.mark.parametrize("way", ["state", "pickle"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_that_a_begun_iterator_loads_undoes_what_it_has_drawn(
    workers: int, way: str
) -> None:
    """A sampler with a state kept the position of the indices that workers were sent ahead."""
    whole = _flat(DataLoader(range(N), 2, sampler=FromTheClass(), seed=1))
    state = iter(DataLoader(range(N), 2, sampler=FromTheClass(), seed=1)).state_dict()
    loader = DataLoader(range(N), 2, sampler=FromTheClass(), seed=1, num_workers=workers)
    iterator = iter(loader)
    if way == "pickle":
        iterator = pickle.loads(pickle.dumps(iterator))
    next(iterator)
    iterator.load_state_dict(state)
    assert _flat(iterator) == whole
