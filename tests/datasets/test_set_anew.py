"""An attribute that each iteration sets before it reads it is no change by earlier epochs."""

from __future__ import annotations

import linecache
import pickle
import warnings
from collections.abc import Iterator
from functools import wraps
from itertools import count
from textwrap import indent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning
from picklable_loader.fetching.worker.set_anew import set_anew

pytestmark = pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")


class Begins(IterableDataset[int]):
    """Its position begins anew."""

    def __init__(self) -> None:
        self.position = 0
        self.source: Any = None
        self.num_workers = 0

    def __iter__(self) -> Iterator[int]:
        self.begin()
        for each in self.source:
            self.position += 1
            yield each + 100 * self.position

    def begin(self) -> None:
        self.position, self.source = 0, iter(range(12))


class BeginsByWorker(Begins):
    """It asks which worker it is in."""

    def begin(self) -> None:
        info = get_worker_info()
        if info is None:
            self.position = 0
        else:
            self.position = 10 * info.id
        self.num_workers = 1 if info is None else info.num_workers
        self.source = iter(range(12))


class Wraps(IterableDataset[int]):
    """The other one is an attribute."""

    def __init__(self, inner: Begins) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        yield from self.inner


class CarriesOver(Begins):
    """Its first samples depend on the position at the end of the epoch before."""

    def begin(self) -> None:
        self.source = iter(range(self.position % 5, 12))
        self.position = 0


class CarriesOverSometimes(Begins):
    """Only one of the branches begins anew."""

    def begin(self) -> None:
        self.source = iter(range(12))
        if get_worker_info() is not None and self.position > 100:
            self.position = 0


class CarriesOverByItsWorker(Begins):
    """It reaches itself in another way."""

    def begin(self) -> None:
        info = get_worker_info()
        copy = self if info is None else info.dataset
        self.source = iter(range(copy.position % 5, 12))
        self.position = 0


class CarriesOverByAnAlias(Begins):
    """So does this one."""

    def begin(self) -> None:
        itself = getattr(get_worker_info(), "dataset", self)
        self.source = iter(range(itself.position % 5, 12))
        self.position = 0


def batches_and_warnings(dataset: Any, workers: int, resumed: bool) -> tuple[list[Any], list[str]]:
    """The last batches of a second epoch, of which the state was taken after the first batch."""
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(pickle.loads(pickle.dumps(dataset)), batch_size=2, **options)
    list(loader)
    iterator = iter(loader)
    next(iterator)
    with warnings.catch_warnings(record=True) as given_warnings:
        warnings.simplefilter("always", LoaderWarning)
        state = loader.state_dict()
    if resumed:
        iterator.close()
        loader = DataLoader(dataset, batch_size=2, **options)
        loader.load_state_dict(state)
        iterator = iter(loader)
    return [batch.tolist() for batch in iterator], [str(w.message) for w in given_warnings]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [Begins, BeginsByWorker])
def test_a_position_that_each_iteration_sets_anew_is_resumed_without_a_warning(
    make: Any, workers: int
) -> None:
    dataset = make()
    expected, said = batches_and_warnings(dataset, workers, resumed=False)
    assert not said
    assert batches_and_warnings(dataset, workers, resumed=True)[0] == expected != []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    "make",
    [CarriesOver, CarriesOverSometimes, CarriesOverByItsWorker, CarriesOverByAnAlias],
)
def test_one_that_is_read_first_is_warned_of(make: Any, wrapped: bool, workers: int) -> None:
    dataset = Wraps(make()) if wrapped else make()
    _, said = batches_and_warnings(dataset, workers, resumed=False)
    assert [text for text in said if ("inner" if wrapped else "position") in text]


def test_a_class_whose_source_is_gone_has_none() -> None:
    names: dict[str, Any] = {}
    exec("class Typed:\n    def __iter__(self):\n        self.position = 0", names)
    assert set_anew(names["Typed"]()) == set()


class Earlier(IterableDataset[int]):
    """Its samples depend on the number that the epoch before has left, in one way or another."""

    def __init__(self) -> None:
        self.n = 0
        self.other: Any = self
        self.peeks = self.peek

    def peek(self) -> int:
        return self.n

    def earlier(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        start = self.earlier()
        self.n = 0
        for each in range(start, start + 12):
            self.n += 1
            yield each


class ByAnAlias(Earlier):
    def __iter__(self) -> Iterator[int]:
        other = self.other
        start = other.n
        self.n = 0
        yield from self.counted(start)

    def counted(self, start: int) -> Iterator[int]:
        for each in range(start, start + 12):
            self.n += 1
            yield each


class ByAMethodThatItHolds(ByAnAlias):
    def __iter__(self) -> Iterator[int]:
        peek = self.peeks
        start = peek()
        self.n = 0
        yield from self.counted(start)


class ByALocalName(ByAnAlias):
    def __iter__(self) -> Iterator[int]:
        count = self.peeks  # a function of Python's has this name, too
        start = count()
        self.n = 0
        yield from self.counted(start)


class ByWhatMayBeTorchs(ByAnAlias):
    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        if info is None:
            info = self.other
        else:
            info = get_worker_info()
        start = info.n
        self.n = 0
        yield from self.counted(start)


class ByItsHelper(ByAnAlias):
    def __iter__(self) -> Iterator[int]:
        start = self.other.peek()
        self.n = 0
        yield from self.counted(start)


def newest(of: list[Any]) -> int:
    return int(of[-1].n)


ALL: list[Any] = []


class ByAFunction(ByAnAlias):
    def __init__(self) -> None:
        super().__init__()
        ALL.append(self)

    def __iter__(self) -> Iterator[int]:
        start = newest(ALL)
        self.n = 0
        yield from self.counted(start)


class ByItsGetattr(ByAnAlias):
    def __getattr__(self, name: str) -> Any:
        if name != "first":
            raise AttributeError(name)
        return self.__dict__["n"]

    def __iter__(self) -> Iterator[int]:
        start = self.first
        self.n = 0
        yield from self.counted(start)


class ByAnotherName(ByAnAlias):
    def __init__(self) -> None:
        super().__init__()
        self.__n = 0

    def __iter__(self) -> Iterator[int]:
        start = self.__n
        self._ByAnotherName__n = 0
        for each in range(start, start + 12):
            self.__n += 1
            yield each


class ByALazyMethod(ByAnAlias):
    def begin(self) -> Iterator[None]:
        self.n = 0
        yield

    def __iter__(self) -> Iterator[int]:
        self.begin()
        start, self.n = self.n, 0
        yield from self.counted(start)


class ByItsDecorator(ByAnAlias):
    def __iter__(self) -> Iterator[int]:
        self.n = 0
        yield from self.counted(self.start)


def after(function: Any) -> Any:
    @wraps(function)
    def wrapper(self: Any) -> Any:
        self.start = self.n
        return function(self)

    return wrapper


ByItsDecorator.__iter__ = after(ByItsDecorator.__iter__)  # type: ignore[method-assign]


class ByAReplacedMethod(ByAnAlias):
    def __init__(self) -> None:
        super().__init__()
        self.begin = int  # type: ignore[method-assign]

    def begin(self) -> None:
        self.n = 0

    def __iter__(self) -> Iterator[int]:
        self.begin()
        start, self.n = self.n, 0
        yield from self.counted(start)


@pytest.mark.parametrize(
    "kind",
    [Earlier, ByAnAlias, ByAMethodThatItHolds, ByALocalName, ByWhatMayBeTorchs, ByItsHelper]
    + [ByAFunction, ByItsGetattr, ByAnotherName, ByALazyMethod, ByItsDecorator, ByAReplacedMethod],
)
def test_a_number_of_the_epoch_before_is_found_however_it_is_read(kind: Any) -> None:
    assert not set_anew(kind()) & {"n", "_ByAnotherName__n"}
    loader = DataLoader(kind(), 2)
    list(loader)
    next(iter(loader))
    with pytest.warns(LoaderWarning, match="has no state, and its epochs have changed"):
        loader.state_dict()


# --- classes by chance ---------------------------------------------------------------------------

_NAMES = "abc"
_READS = st.one_of(
    st.sampled_from(["1", "2", "t", "len('text')"]),
    st.sampled_from(["self.a", "self.b", "self.c", "sum(i + self.c for i in range(2))"]),
    st.sampled_from(["self.first", "self.total()", "vars(self)['b']", "(lambda: self.a)()"]),
)
_FIRST = [f"self.{name}" for name in _NAMES]
_SIMPLE = st.one_of(
    st.builds("{} = {}".format, st.sampled_from([*_FIRST, "t"]), _READS),
    st.builds("{} = {}".format, st.sampled_from(_FIRST), st.sampled_from("123")),
    st.builds("{} += {}".format, st.sampled_from(_FIRST), _READS),
    st.builds("{}, {} = {}, {}".format, *[st.sampled_from(_FIRST)] * 2, _READS, _READS),
    st.sampled_from(["self.begin()", "self.total()", "f(self)", "self.table[self.a % 2] = self.b"]),
    st.sampled_from(["del self.table[:]; self.table += [0, 1]", "assert self.c is not None"]),
)


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(inner, min_size=1, max_size=3).map("\n".join).map(lambda t: indent(t, "    "))
    return st.one_of(
        st.builds("if {} % 2:\n{}\nelse:\n{}".format, _READS, body, body),
        st.builds("if {} % 2:\n{}".format, _READS, body),
        st.builds("for i in range({} % 2):\n{}".format, _READS, body),
        st.builds("if {} % 3 == 0:\n    return\n{}".format, _READS, inner),
    )


_BODIES = st.lists(st.recursive(_SIMPLE, _compound, max_leaves=3), min_size=1, max_size=4).map(
    "\n".join
)
_CLASS = """
def f(thing):
    thing.c = thing.a + thing.b
    return thing.b

class Drawn:
    def __init__(self, a, b, c):
        self.a, self.b, self.c, self.table = a, b, c, [3, 4]

    @property
    def first(self):
        return self.a

    def total(self):
        self.c = 7
        return self.a + self.b

    def begin(self):
        t = 2
{begin}

    def __iter__(self):
        t = 1
{body}
        yield self.a, self.b, self.c, self.table
"""
_numbers = count()


def _drawn(begin: str, body: str) -> Any:
    source = _CLASS.format(begin=indent(begin, " " * 8), body=indent(body, " " * 8))
    file, names = f"<drawn {next(_numbers)}>", {"__name__": "drawn"}
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    exec(compile(source, file, "exec"), names)
    return names["Drawn"]


def _read(kind: Any, values: dict[str, int]) -> Any:
    try:
        return list(kind(**values))
    except RecursionError:
        return None


@settings(max_examples=300)
@given(_BODIES, _BODIES, st.integers(0, 3))
def test_no_sample_depends_on_the_earlier_value_of_such_an_attribute(
    begin: str, body: str, other: int
) -> None:
    kind = _drawn(begin, body)
    try:
        values = dict.fromkeys(_NAMES, 5)
        for name in set_anew(kind(**values)) & set(_NAMES):
            assert _read(kind, {**values, name: other}) == _read(kind, values), name
    finally:
        linecache.cache.pop(kind.__iter__.__code__.co_filename)


def test_the_chance_finds_such_attributes() -> None:
    def found(begin: str, body: str) -> set[str]:
        return set(set_anew(_drawn(begin, body)(1, 2, 3)))

    assert found("self.a = 0", "if self.c:\n    self.begin()\nelse:\n    self.a = 1") == {"a"}
    assert found("", "self.b = 1; self.c = self.b; self.a, t = 2, self.c") == {"a", "b", "c"}
    assert not found("self.b = 1", "self.a += 1; t = self.b; self.begin(); f(self)")
