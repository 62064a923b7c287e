"""Iterable-style datasets whose attributes change where it is hard to see: resumed exactly."""

from __future__ import annotations

import itertools
import json
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import lists
from torch.utils.data import IterableDataset, get_worker_info

from picklable_loader import DataLoader, Interleave, ShuffleBuffer
from picklable_loader.errors import LoaderWarning

pytestmark = pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")

N = 9


def every(*steps: int | None) -> list[dict[str, Any]]:
    """The loader's option; None: its own choice."""
    return [{} if count is None else {"snapshot_every_n_steps": count} for count in steps]


class Walk(Iterator[int]):
    """An iterator that pickles, and asks its dataset for each sample."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.at = dataset, 0

    def __next__(self) -> int:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return int(self.dataset.sample(self.at - 1))


class Odd(IterableDataset[int]):
    def sample(self, at: int) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        return Walk(self)


class Written(Odd):
    """Into a tensor of ``size`` numbers, past torch's count of changes."""

    def __init__(self, size: int) -> None:
        self.seen = torch.zeros(size)

    def sample(self, at: int) -> int:
        self.seen.numpy()[at % 3] += 1
        self.seen.data[3] += 1
        return 100 * int(self.seen[at % 3]) + int(self.seen[3])


class Scale:
    """Callable; neither pickle nor a state takes its lambda."""

    def __init__(self) -> None:
        self.function, self.calls = (lambda at: at * 100), 0

    def __call__(self, at: int) -> int:
        self.calls += 1
        return int(self.function(at)) + self.calls


class Scaled(Odd):
    def __init__(self) -> None:
        self.transform = Scale()

    def sample(self, at: int) -> int:
        return self.transform(at)


class Endless(Scale):
    """Its length is that of a walk over itself, as gluonts' datasets have it."""

    asked = False

    def __len__(self) -> int:
        Endless.asked = True
        return 0


class OfEndless(Odd):
    def __init__(self) -> None:
        self.transform = Endless()

    def sample(self, at: int) -> int:
        return self.transform(at)


class Paths(Odd):
    """Above 64 kB as an array of objects."""

    def __init__(self) -> None:
        self.paths = np.array([f"{number}" for number in range(9000)], dtype=object)

    def __iter__(self) -> Iterator[int]:
        np.random.shuffle(self.paths)
        return Walk(self)

    def sample(self, at: int) -> int:
        return int(self.paths[at])


class Slots(Odd):
    __slots__ = ("count", "unset")

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        self.count += 100
        return Walk(self)

    def sample(self, at: int) -> int:
        self.count += 1
        return self.count


class Cached(Odd):
    """Its pickle has no cache: neither are the large arrays there to refer to."""

    def __init__(self) -> None:
        self.cache: dict[int, Any] = {}

    def __iter__(self) -> Iterator[int]:
        self.cache.pop(0, None)
        return Walk(self)

    def sample(self, at: int) -> int:
        if at not in self.cache:
            self.cache[at] = np.full(20_000, at)
        return int(self.cache[at][0])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": {}}


class Table:
    def __init__(self) -> None:
        self.count, self.numbers = 0, torch.arange(3_000_000)  # 24 MB, more than is written


class Handle(Odd):
    """Its pickle has no open file; the large table next to it is there."""

    def __init__(self) -> None:
        self.file: Any = None
        self.table = Table()

    def __iter__(self) -> Iterator[int]:
        self.table.count += 100
        return Walk(self)

    def sample(self, at: int) -> int:
        return self.table.count + int(self.table.numbers[at])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None}


class Overrides(Slots):
    """A property in the position of a slot, which raises."""

    @property
    def unset(self) -> int:
        raise RuntimeError("not opened")


class Sparse(Slots):
    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.eye(3).to_sparse()


class Graph:
    """A count next to a tensor of an odd layout."""

    def __init__(self) -> None:
        self.count, self.edges = 0, torch.eye(4).to_sparse()


class HoldsSparse(Odd):
    def __init__(self) -> None:
        self.graph = Graph()

    def __iter__(self) -> Iterator[int]:
        self.graph.count += 100
        return Walk(self)

    def sample(self, at: int) -> int:
        return self.graph.count + at


class Reader:
    """Its pickle has the number only, and its large table is read again."""

    def __init__(self, number: int, table: Any = None) -> None:
        self.number, self.table = number, table

    def __reduce__(self) -> Any:
        return Reader, (self.number,)


class Shares(Odd):
    """What holds the table of such a reader as well has it in its own pickle."""

    def __init__(self) -> None:
        self.table = Table()
        self.table.numbers = torch.arange(30_000)
        self.reader = Reader(5, self.table.numbers)

    def __iter__(self) -> Iterator[int]:
        self.table.count += 100
        return Walk(self)

    def sample(self, at: int) -> int:
        return self.table.count + int(self.table.numbers[at])


def as_generator(kind: Any) -> Any:
    class AsGenerator(kind):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            yield from super().__iter__()

    AsGenerator.__name__ = AsGenerator.__qualname__ = f"{kind.__name__}AsGenerator"
    globals()[AsGenerator.__name__] = AsGenerator  # pickle finds it
    return AsGenerator


PICKLABLE = [
    lambda: Written(8),
    lambda: Written(8000),
    Paths,
    Slots,
    Cached,
    Sparse,
    HoldsSparse,
    Shares,
]
KINDS = (Paths, Slots, Cached, Handle, Sparse, HoldsSparse, Shares)
GENERATORS = [as_generator(kind) for kind in KINDS]
GENERATORS += [lambda small=as_generator(Written): small(8)]


@pytest.mark.parametrize("each_step", [False, True])
@pytest.mark.parametrize("snapshots", every(None, 1), ids=str)
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("build", [*PICKLABLE, *GENERATORS])
def test_a_change_that_is_hard_to_see_is_in_a_pickle(
    build: Any, num_workers: int, snapshots: Any, each_step: bool
) -> None:
    def loader() -> Any:
        return DataLoader(build(), 2, seed=1, num_workers=num_workers, **snapshots)

    whole = loader()
    expected = [lists(whole) for _ in range(2)]
    for steps in range(6):
        iterator = iter(loader())
        given = []
        for _ in range(steps):
            given.append(next(iterator).tolist())
            if each_step:
                iterator = pickle.loads(pickle.dumps(iterator))
        again = pickle.loads(pickle.dumps(iterator))
        assert [given + lists(again), lists(again.loader)] == expected, steps


@pytest.mark.parametrize("num_workers", [0, 1])
def test_no_property_in_the_position_of_a_slot_is_called(num_workers: int) -> None:
    assert len(lists(DataLoader(Overrides(), 2, num_workers=num_workers))) == 5


def test_no_length_of_the_program_s_own_is_asked_for() -> None:
    loader = DataLoader(OfEndless(), 2, seed=1)
    iterator = iter(loader)
    next(iterator)
    iterator.state_dict()
    assert len(lists(iterator)) == 4 and not Endless.asked


@pytest.mark.parametrize("persistent", [False, True])
def test_a_transform_that_counts_beside_a_lambda_is_replayed_in_workers(persistent: bool) -> None:
    options: Any = {"num_workers": 1, "persistent_workers": persistent, "codec": "cloudpickle"}
    loader = DataLoader(Scaled(), 2, seed=1, snapshot_every_n_steps=1, **options)
    iterator = iter(loader)
    next(iterator)
    state = iterator.state_dict()
    again = DataLoader(Scaled(), 2, seed=1, snapshot_every_n_steps=1, **options)
    again.load_state_dict(state)
    assert lists(again) == lists(iterator)


def test_a_large_tensor_that_was_written_past_torch_s_count_is_warned_of() -> None:
    iterator = iter(DataLoader(as_generator(Written)(20_000), 2, num_workers=0))
    next(iterator)
    with pytest.warns(LoaderWarning, match="changed its attributes seen"):
        pickle.dumps(iterator)


class Nested(Odd):
    """Nobody can compare a nested tensor, but the count next to it."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.graph.edges = torch.nested.nested_tensor([torch.ones(3), torch.ones(4)])

    def __iter__(self) -> Iterator[int]:
        self.graph.count += 1
        yield from range(N)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("of_loader", [False, True])
def test_a_worker_s_change_beside_an_odd_tensor_is_warned_of(of_loader: bool) -> None:
    loader = DataLoader(Nested(), 2, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    list(iterator)
    with pytest.warns(LoaderWarning, match="changed its attributes graph"):
        pickle.dumps(loader if of_loader else iterator)


# --- numbers that the first epoch makes ----------------------------------------------------------


class ByGetattr(Odd):
    def __iter__(self) -> Iterator[int]:
        self.epoch = getattr(self, "epoch", 0) + 1
        yield from range(100 * self.epoch, 100 * self.epoch + N)


class ByHasattr(Odd):
    def __iter__(self) -> Iterator[int]:
        self.epoch = self.epoch + 1 if hasattr(self, "epoch") else 0
        yield from range(100 * self.epoch, 100 * self.epoch + N)


class ByVars(Odd):
    def __iter__(self) -> Iterator[int]:
        vars(self)["epoch"] = epoch = vars(self).get("epoch", 0) + 1
        yield from range(100 * epoch, 100 * epoch + N)


class ByAProperty(Odd):
    """One method asks for it, and another one sets it."""

    @property
    def next_epoch(self) -> int:
        return getattr(self, "epoch", 0) + 1

    def __iter__(self) -> Iterator[int]:
        self.epoch = self.next_epoch
        yield from range(100 * self.epoch, 100 * self.epoch + N)


class KnowsItsShare(Odd):
    """As torch's pages have it: each ``iter`` sets the share, and the length asks for it."""

    def __iter__(self) -> Iterator[int]:
        self.start, self.end = 0, N
        yield from range(self.start, self.end)

    def __len__(self) -> int:
        return self.end - self.start if hasattr(self, "start") else N


class ShowsProgress(Odd):
    def __iter__(self) -> Iterator[int]:
        self.seen = 0
        for sample in range(N):
            self.seen += 1
            yield sample

    def __repr__(self) -> str:
        return f"ShowsProgress({getattr(self, 'seen', 0)})"


class NamesItsStep(Odd):
    """The text is a key, and the code asks for another name of another object."""

    def __iter__(self) -> Iterator[Any]:
        rank, self.step = getattr(get_worker_info(), "id", 0), 0
        for _ in range(N):
            self.step += 1
            yield {"step": self.step + rank}


@pytest.mark.parametrize("kind", [ByGetattr, ByHasattr, ByVars, ByAProperty])
def test_a_state_warns_of_a_number_that_the_code_asks_for_and_sets(kind: Any) -> None:
    loader = DataLoader(kind(), 2)
    list(loader)
    with pytest.warns(LoaderWarning, match="epochs have changed its attributes epoch"):
        loader.state_dict()


@pytest.mark.parametrize("kind", [KnowsItsShare, ShowsProgress, NamesItsStep])
def test_a_state_does_not_warn_of_a_number_that_each_epoch_sets(kind: Any) -> None:
    loader, again = DataLoader(kind(), 2), DataLoader(kind(), 2)
    list(loader)
    again.load_state_dict(loader.state_dict())
    assert [str(batch) for batch in again] == [str(batch) for batch in loader]


# --- two resumes ---------------------------------------------------------------------------------


class Counted(Iterator[int]):
    """An iterator with a state."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.at = epoch, 0

    def __next__(self) -> int:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return 100 * self.epoch + self.at

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


class Epochs(IterableDataset[int]):
    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return Counted(self.epoch)


class Generates(Epochs):
    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()


TWICE = [
    Epochs,
    Generates,
    lambda: ShuffleBuffer(Epochs(), 2),
    lambda: ShuffleBuffer(Interleave([Epochs()]), 2),
    lambda: Interleave([Epochs(), Epochs()]),
]
HOPS = [*itertools.product(("pickle", "state"), (False, True), ("pickle", "state"))]


@pytest.mark.parametrize("first, moves, second", HOPS)
@pytest.mark.parametrize("snapshots", every(None, 0, 1, 2), ids=str)
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("build", TWICE)
def test_a_pass_that_was_resumed_is_resumed_again(
    build: Any, epochs: int, snapshots: Any, first: str, moves: bool, second: str
) -> None:
    """Also at once, and after the last batch, an incomplete one: `iter` had counted once more."""

    def loader() -> Any:
        return DataLoader(build(), 2, seed=1, **snapshots)

    def resumed(iterator: Any, way: str) -> Any:
        if way == "pickle":
            return pickle.loads(pickle.dumps(iterator))
        other = loader()
        other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
        return iter(other)

    whole = loader()
    expected = [lists(whole) for _ in range(epochs + 2)][epochs:]
    for steps in range(len(expected[0]) + 1):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always", LoaderWarning)
            owner = loader()
            for _ in range(epochs):
                list(owner)
            iterator = iter(owner)
            batches = [next(iterator).tolist() for _ in range(steps)]
            iterator = resumed(iterator, first)
            if moves:
                batches += [batch.tolist() for batch in itertools.islice(iterator, 1)]
            iterator = resumed(iterator, second)
            found = [batches + lists(iterator), lists(iterator.loader)]
        if not any("changed its attributes" in str(each.message) for each in given):
            assert found == expected, steps
