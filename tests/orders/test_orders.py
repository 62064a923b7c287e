"""Orders of custom samplers: gone on with exactly, or refused; never another order in silence."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.observe import seed_everything
from torch.utils.data import Sampler, SubsetRandomSampler, WeightedRandomSampler
from zoo import inexact
from zoo import samplers as own

from picklable_loader import DataLoader
from picklable_loader.errors import (
    CannotSaveError,
    DamagedStateError,
    EmptyEpochWarning,
    LoaderWarning,
    OrderMismatch,
    StateMismatch,
    UsageError,
)
from picklable_loader.orders import replay
from picklable_loader.orders.attributes import changed, freeze, thaw
from picklable_loader.saving.states.checksum import BEGINNING, checksum
from picklable_loader.saving.states.plain import alike, decode, encode
from picklable_loader.testing import ResumeError, verify_resume

N = 12


# --- the checksum --------------------------------------------------------------------------------


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Sample:
    number: int
    name: str


numbers = st.integers(-(2**70), 2**70)
scalars = numbers | st.text() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.binary()
indices = st.recursive(
    scalars | st.builds(Sample, numbers, st.text()) | st.sampled_from(Colour),
    lambda inner: st.lists(inner, max_size=4)
    | st.tuples(inner, inner)
    | st.dictionaries(st.text(), inner, max_size=3)
    | st.frozensets(scalars, max_size=3)
    | st.lists(st.integers(-99, 99)).map(torch.tensor)
    | st.lists(st.integers(-99, 99)).map(np.array),
    max_leaves=8,
)


@settings(deadline=None, max_examples=300)
@given(st.lists(indices, max_size=8), st.data())
def test_a_checksum_does_not_depend_on_how_the_order_was_cut(
    order: list[Any], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(order)))
    again = pickle.loads(pickle.dumps(order))
    assert checksum(again[at:], checksum(again[:at])) == checksum(order)
    assert checksum([], checksum(order)) == checksum(order)


@settings(deadline=None, max_examples=300)
@given(st.lists(numbers | st.text(), min_size=2, unique=True), st.randoms())
def test_other_orders_have_other_checksums(order: list[Any], rng: random.Random) -> None:
    other = order.copy()
    rng.shuffle(other)
    assert (checksum(order) == checksum(other)) == (order == other)
    assert checksum(order) != checksum(order[1:]) != checksum([order])
    assert checksum([order]) != checksum(order) != BEGINNING


def test_equal_indices_have_equal_checksums() -> None:
    kinds: list[Callable[[int], Any]] = [int, np.int32, np.uint8, torch.tensor]
    assert len({checksum([kind(7), kind(9)]) for kind in kinds}) == 1
    assert len({checksum([[kind(7)], "x", kind(9)]) for kind in kinds}) == 1
    assert checksum(torch.tensor([7, 9])) == checksum(np.array([7, 9])) == checksum([7, 9])
    assert checksum(range(3)) == checksum((0, 1, 2)) == checksum(iter([0, 1, 2]))


GOLDEN = [7, "sieben", (7, 3.5), [1, 2], {"a": 1}, frozenset("xyz"), None, b"7", Path("a/b"), 2**80]


def test_a_checksum_is_the_same_in_another_process_and_for_ever() -> None:
    program = "from test_orders import *; print(checksum(GOLDEN))"
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"}
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert found.stdout.strip() == checksum(GOLDEN) == "7753f1f6149a16d9"


# --- generators that are no attributes -----------------------------------------------------------

GLOBAL = np.random.default_rng(3)


def of_the_module(size: int) -> Any:
    return GLOBAL.permutation(size)


def of_the_system(size: int) -> Any:
    return np.array(random.SystemRandom().sample(range(size), size))


class DrawsLate(inexact.Hidden):
    """Not before the second half of the epoch."""

    def __iter__(self) -> Iterator[int]:
        yield from range(6)
        yield from (6 + index % 6 for index in super().__iter__())


HIDDEN: dict[str, Callable[[], Any]] = {
    "a method of a generator": inexact.by_method,
    "a closure": inexact.by_lambda,
    "a partial": inexact.by_partial,
    "a namespace": inexact.by_namespace,
    "the class": inexact.OfItsClass,
    "the module": lambda: inexact.Hidden(of_the_module),
    "the system": lambda: inexact.Hidden(of_the_system),
    "late in the epoch": lambda: DrawsLate(np.random.default_rng(3).permutation),
}

DOORS: dict[str, Callable[[Any, Callable[[], Any]], Any]] = {
    "pickle": lambda it, make: pickle.loads(pickle.dumps(it)),
    "state_dict": lambda it, make: _loaded(make(), it.state_dict()),
}


def _loaded(loader: Any, state: dict[str, Any]) -> Any:
    loader.load_state_dict(state)
    return iter(loader)


def batches(iterator: Iterator[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in iterator]


#: beside workers the indices are drawn ahead: once with a seed is enough, and once without
SETTINGS = pytest.mark.parametrize("num_workers, seed", [(0, None), (0, 1), (1, None)])


@SETTINGS
@pytest.mark.filterwarnings("ignore:this state does not hold that of loader.sampler")
@pytest.mark.filterwarnings("ignore:this state does not hold all of the sampler Hidden")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", HIDDEN)
def test_a_hidden_generator_is_exact_or_an_error(
    kind: str, door: str, num_workers: int, seed: int | None
) -> None:
    def make() -> DataLoader[Any]:
        sampler = HIDDEN[kind]()
        return DataLoader(range(N), 3, sampler=sampler, num_workers=num_workers, seed=seed)

    for step in (2,) if num_workers else (1, 2, 3):
        seed_everything(1)
        loader = make()
        iterator = iter(loader)
        for _ in range(step):
            next(iterator)
        try:
            again = DOORS[door](iterator, make)
            found = batches(again)
        except (OrderMismatch, CannotSaveError) as error:
            assert type(loader.sampler).__name__ in str(error)
            continue
        assert found == batches(iterator), f"step {step}"


@pytest.mark.filterwarnings("ignore:this state does not hold that of loader.sampler")
def test_the_error_of_another_order_comes_again_and_the_iterator_stays() -> None:
    loader = DataLoader(range(N), 3, sampler=HIDDEN["a closure"]())
    iterator = iter(loader)
    next(iterator)
    again = pickle.loads(pickle.dumps(iterator))
    before = pickle.dumps(again.state_dict())
    for _ in range(3):
        with pytest.raises(OrderMismatch, match="first 3 .*register_order") as raised:
            next(again)
        assert (raised.value.sampler, raised.value.taken) == ("Hidden", 3)
        assert again.step == 1 and pickle.dumps(again.state_dict()) == before
    assert len(batches(iterator)) == 3


def test_batch_at_tells_another_order() -> None:
    loader = DataLoader(range(N), 3, sampler=HIDDEN["a closure"]())
    iterator = iter(loader)
    first, second = next(iterator), next(iterator)
    assert not torch.equal(first, second)
    with pytest.raises(UsageError, match="cannot be had again"):
        loader.batch_at(0)


def test_verify_resume_explains_another_order() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(range(N), 3, sampler=HIDDEN["a closure"]())

    with pytest.raises(ResumeError, match="the sampler Hidden gives other indices") as raised:
        with pytest.warns(
            LoaderWarning, match=r"draw.__closure__\[0\].cell_contents \(numpy Generator"
        ):
            verify_resume(make, steps=(2,), fresh_process=False)
    assert raised.value.what == "order"


def test_a_sampler_that_ends_later_than_before_is_another_order() -> None:
    loader = DataLoader(range(N), 3, sampler=_Grows())
    iterator = iter(loader)
    for _ in iterator:
        state = iterator.state_dict()
    loader = DataLoader(range(N), 3, sampler=_Grows())
    loader.load_state_dict(state)
    _Grows.size += 1
    with pytest.raises(OrderMismatch):
        list(loader)


class _Grows(Sampler[int]):
    size = 7

    def __iter__(self) -> Iterator[int]:
        yield from range(type(self).size)


# --- samplers whose state_dict does not hold the position ----------------------------------------


class FollowsTheLoss(Sampler[int]):
    """Has its weights in its state, which the program changes as it trains; and no position."""

    def __init__(self, lazily: bool = False) -> None:
        self.weights, self.rng = [1.0] * N, torch.Generator().manual_seed(5)
        self.lazily = lazily

    def __len__(self) -> int:
        return N

    def state_dict(self) -> dict[str, Any]:
        return {"weights": list(self.weights), "rng": self.rng.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = list(state["weights"])
        self.rng.set_state(state["rng"])

    def __iter__(self) -> Iterator[int]:
        weights = torch.tensor(self.weights)
        if self.lazily:
            return self.drawn(weights)
        return iter(torch.multinomial(weights, N, generator=self.rng).tolist())

    def drawn(self, weights: torch.Tensor) -> Iterator[int]:
        yield from torch.multinomial(weights, N, generator=self.rng).tolist()


@SETTINGS
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("lazily", [False, True])
def test_a_state_without_a_position_is_replayed_and_what_the_program_changed_comes_back(
    lazily: bool, door: str, num_workers: int, seed: int | None
) -> None:
    def make() -> DataLoader[Any]:
        sampler = FollowsTheLoss(lazily)
        return DataLoader(range(N), 2, sampler=sampler, num_workers=num_workers, seed=seed)

    def go_on(iterator: Any) -> list[list[int]]:
        return batches(iterator) + batches(iter(iterator.loader))

    for step in (0, 1, 3) if num_workers else range(6):
        seed_everything(1)
        iterator = iter(make())
        for _ in range(step):
            for index in next(iterator).tolist():
                iterator.loader.sampler.weights[index] += 3.0
        again = DOORS[door](iterator, make)
        assert go_on(again) == go_on(iterator), f"step {step}"


POSITIONS: dict[str, Callable[[], Any]] = {
    "drawn at the first next": own.PositionAlone,
    "drawn at once": own.PositionAloneAtOnce,
    "drawn from its own generator": lambda: own.PositionAlone(own=True),
    "with weights": own.PositionAndWeights,
    "of the iterator": own.PositionOfIterator,
    "of an iterator with a generator": own.PositionOfDrawingIterator,
    "of batches": own.PositionOfBatches,
    **{f"with {k}'s": partial(own.PositionAndAnotherGenerator, k) for k in own.OF_PROGRAM},
}


def _with(sampler: Any, **options: Any) -> DataLoader[Any]:
    if isinstance(sampler, own.PositionOfBatches):
        return DataLoader(range(own.N), batch_sampler=sampler, **options)
    return DataLoader(range(own.N), 2, sampler=sampler, **options)


@SETTINGS
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", POSITIONS)
def test_a_position_in_what_was_drawn_is_none_if_the_state_has_no_generator(
    kind: str, door: str, num_workers: int, seed: int | None
) -> None:
    def make() -> DataLoader[Any]:
        return _with(POSITIONS[kind](), num_workers=num_workers, seed=seed)

    for epoch, step in [(0, 0), (0, 1), (0, 3), (1, 2)]:
        seed_everything(1)
        iterator = iter(make())
        for _ in range(epoch):
            batches(iterator)
            iterator = iter(iterator.loader)
        for _ in range(step):
            next(iterator)
        again = DOORS[door](iterator, make)
        expected = batches(iterator), batches(iter(iterator.loader))
        again = DOORS[door](again, make)
        assert (batches(again), batches(iter(again.loader))) == expected, f"step {step}"


def test_a_position_in_what_was_drawn_is_refused_where_there_is_no_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class DrawsEach(own.PositionAlone):
        def draw(self) -> Any:
            return _Each()

    class _Each:
        def __getitem__(self, rest: slice) -> Iterator[int]:
            return (int(torch.randint(own.N, ())) for _ in range(own.N)[rest])

    monkeypatch.setattr(replay, "_LOG_LIMIT", 2)
    iterator = iter(_with(DrawsEach()))
    for _ in range(4):
        next(iterator)
        torch.rand(())
    with pytest.raises(CannotSaveError, match=r"state_dict\(\) lacks the generators that it draws"):
        iterator.state_dict()


class DrawsNowAndThen(Sampler[int]):
    """It shuffles four indices at a time, by Python's global generator."""

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        for start in range(0, N, 4):
            yield from random.sample(range(start, start + 4), 4)


@pytest.mark.parametrize("moved_after", [1, 2, 3, 4])
@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_a_program_that_draws_between_two_draws_of_the_sampler_is_noticed_at_the_second(
    step: int, moved_after: int
) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(range(N), 2, sampler=DrawsNowAndThen())

    for seed in range(3):
        seed_everything(seed)
        iterator = iter(make())
        for number in range(1, step + 1):
            next(iterator)
            if number == moved_after:
                random.random()
        again = make()
        again.load_state_dict(iterator.state_dict())
        expected = batches(iterator)
        assert batches(iter(again)) == expected


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", [own.Resumed, own.ResumedAndCounting, own.ResumedWithGenerator])
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
def test_a_flag_that_load_state_dict_sets_at_the_orders_end_does_not_reach_the_next_epoch(
    kind: Any, door: str, num_workers: int
) -> None:
    def make() -> DataLoader[Any]:
        return _with(kind(), num_workers=num_workers, seed=1)

    iterator = iter(make())
    for _ in range(own.N // 2):
        next(iterator)
    again = DOORS[door](DOORS[door](iterator, make), make)
    batches(iterator), batches(again)
    for epoch in (1, 2):
        expected = batches(iter(iterator.loader))
        assert expected and batches(iter(again.loader)) == expected, f"epoch {epoch}"


def test_an_order_without_a_way_to_its_position_is_damaged() -> None:
    iterator = iter(_with(own.DrawsAtOnce(own.from_torch), seed=1))
    next(iterator)
    state = iterator.state_dict()
    del state["checksum"], state["order"]["log"]
    with pytest.raises(DamagedStateError, match="'order'"):
        _with(own.DrawsAtOnce(own.from_torch), seed=1).load_state_dict(state)


# --- states of one rank --------------------------------------------------------------------------


class Shard(Sampler[int]):
    """Reads its rank when the epoch begins, as samplers do that are sharded by hand."""

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        rank, world = (
            int(os.environ.get(name, at)) for at, name in enumerate(("RANK", "WORLD_SIZE"))
        )
        order = torch.randperm(2 * N, generator=torch.Generator().manual_seed(1)).tolist()
        yield from order[rank :: 2 if world > 1 else 1]


@pytest.fixture
def on_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Makes this process one rank of two, as torchrun tells it; None: the only one."""

    def become(rank: int | None) -> None:
        for name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        if rank is not None:
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", "2")

    become(None)
    return become


def _shards(num_workers: int = 0, **more: Any) -> DataLoader[Any]:
    arguments = {"sampler": Shard(), **more}
    return DataLoader(range(2 * N), 2, num_workers=num_workers, **arguments)


def _after_two(loader: DataLoader[Any]) -> Any:
    iterator = iter(loader)
    next(iterator), next(iterator)
    return iterator


OTHER_RANK = pytest.mark.parametrize("saved_on, loaded_on", [(0, 1), (1, 0), (0, None), (None, 1)])


@OTHER_RANK
def test_indices_of_one_rank_are_refused_on_another(
    on_rank: Callable[[int | None], None], saved_on: int | None, loaded_on: int | None
) -> None:
    on_rank(saved_on)
    iterator = _after_two(_shards(num_workers=1))
    state, rest = iterator.state_dict(), batches(iterator)
    assert state["window"] and state.get("rank") == (None if saved_on is None else [saved_on, 2])
    again = _shards()
    again.load_state_dict(state)
    assert batches(iter(again)) == rest
    on_rank(loaded_on)
    here, there = ([0, 1] if rank is None else [rank, 2] for rank in (loaded_on, saved_on))
    with pytest.raises(StateMismatch, match="each rank") as raised:
        _shards().load_state_dict(state)
    assert raised.value.differences == [("rank", here, there)]
    again.load_state_dict(state, strict=False)
    assert next(iter(again)).tolist() == rest[0]


@OTHER_RANK
def test_a_state_that_is_replayed_and_holds_no_indices_goes_on_on_each_rank(
    on_rank: Callable[[int | None], None], saved_on: int | None, loaded_on: int | None
) -> None:
    on_rank(saved_on)
    state = _after_two(_shards()).state_dict()
    assert not state["window"] and state["order"]["checksum"]
    on_rank(loaded_on)
    again = _shards()
    again.load_state_dict(state)
    if (saved_on is None) != (loaded_on is None):  # of another number, with other indices
        with pytest.raises(OrderMismatch):
            iter(again)
        again = _shards()
    again.load_state_dict(state, strict=False)
    iterator = iter(again)
    next(iterator)
    later = pickle.loads(pickle.dumps(iterator))
    expected = batches(_after_two(_shards()))[1:]
    assert batches(iterator) == batches(later) == expected


def test_a_seekable_order_has_no_rank(on_rank: Callable[[int | None], None]) -> None:
    on_rank(0)
    for num_workers in (0, 1):
        loader = _shards(num_workers, sampler=None, shuffle=True, seed=1)
        assert "rank" not in _after_two(loader).state_dict()


@pytest.mark.parametrize("form", [[0], [2, 2], [-1, 2], [0, True], "01", [0, 2, 1], {}])
def test_a_damaged_rank_is_refused(on_rank: Callable[[int | None], None], form: Any) -> None:
    on_rank(0)
    state = _after_two(_shards()).state_dict()
    assert state["rank"] == [0, 2]
    with pytest.raises(DamagedStateError, match="'rank'"):
        _shards().load_state_dict({**state, "rank": form})


RANK = """
import sys, torch.distributed as dist, test_orders
from picklable_loader.rng.process_rank import rank_and_world
rank, where = int(sys.argv[2]), "file://" + sys.argv[1]
dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
states = [None, None]
dist.all_gather_object(states, test_orders._after_two(test_orders._shards()).state_dict())
assert [state["rank"] for state in states] == [[0, 2], [1, 2]], states
assert rank_and_world() == (rank, 2)
dist.destroy_process_group()
"""


def test_ranks_are_those_of_the_process_group(tmp_path: Path) -> None:
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", RANK, str(tmp_path / "meeting")]
    both = [
        subprocess.Popen([*command, str(rank)], env={**os.environ, "PYTHONPATH": path})
        for rank in range(2)
    ]
    assert [each.wait() for each in both] == [0, 0]


# --- what the program has given a sampler --------------------------------------------------------

GIVEN: dict[str, Callable[[list[int]], Any]] = {
    "a list": list,
    "a tuple": tuple,
    "a tensor": torch.tensor,
    "an array": np.array,
    "a range": lambda order: range(N)[:: 1 if order[0] == 0 else -1],
    "a subset": lambda order: SubsetRandomSampler(order, torch.Generator().manual_seed(1)),
    "a subset's tensor": lambda order: SubsetRandomSampler(torch.tensor(order)),  # type: ignore
    "weights": lambda order: WeightedRandomSampler([float(i + 1) for i in order], N),
    "pairs": lambda order: [(index, "x") for index in order],
}


class AsAsked(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: Any) -> Any:
        return index[0] if type(index) is tuple else int(index)


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("kind", GIVEN)
def test_a_sampler_with_other_indices_or_weights_is_refused(kind: str, step: int) -> None:
    def make(order: list[int]) -> DataLoader[Any]:
        return DataLoader(AsAsked(), 3, sampler=GIVEN[kind](order))

    seed_everything(1)
    order, other = list(range(N)), list(range(N - 1, -1, -1))
    iterator = iter(make(order))
    for _ in range(step):
        next(iterator)
    state, rest = iterator.state_dict(), batches(iterator)
    again = make(order)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert batches(iter(again)) == rest
    with pytest.raises(StateMismatch, match="sampler_checksum.*\n.*fixed seed"):
        make(other).load_state_dict(state)


class Growing(SubsetRandomSampler):
    """The program adds indices between epochs, and the sampler saves them."""

    def state_dict(self) -> dict[str, Any]:
        return {"indices": [*self.indices]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.indices[:] = state["indices"]  # type: ignore[index]


@pytest.mark.parametrize("step", [0, 2])
def test_a_subclass_that_saves_what_the_program_has_changed_goes_on_with_that(step: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(AsAsked(), 3, sampler=Growing([*range(N // 2)]), seed=1)

    loader = make()
    batches(iter(loader))
    loader.sampler.indices.extend(range(N // 2, N))
    iterator = iter(loader) if step else None
    for _ in range(step):
        next(iterator)  # type: ignore[arg-type]
    again = make()
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert batches(iter(again)) == batches(iterator or iter(loader))
    assert batches(iter(again)) == batches(iter(loader))


# --- samplers that hold much ---------------------------------------------------------------------


rows = st.lists(st.tuples() | st.tuples(numbers) | st.tuples(numbers, st.floats(), st.text()))


@settings(deadline=None)
@given(rows | st.lists(st.tuples(st.integers(), st.booleans())))
def test_a_list_of_tuples_has_a_short_form_and_comes_back(value: list[Any]) -> None:
    form = encode(value)
    assert value == [] or form["as"] == "rows" and all(type(v) is not list for v in form["value"])
    found = decode(json.loads(json.dumps(form)))
    assert repr(found) == repr(value)
    assert alike(form, encode(found)) or "nan" in repr(value)


@pytest.mark.parametrize(
    "sizes, value",
    [
        (2, [1, 2, 3]),
        (0, []),
        (-1, [1]),
        (10**12, [1]),
        ([3], [1, 2]),
        ([1, -1], []),
        ([], []),
        (["1"], [1]),
        (2, "ab"),
        (2, [[1], [2]]),
        (None, [1]),
    ],
)
def test_a_damaged_list_of_tuples_is_refused(sizes: Any, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode({"as": "rows", "sizes": sizes, "value": value})


class HoldsMuch(Sampler[int]):
    def __init__(self, value: Any) -> None:
        self.value = value


HELD: dict[str, Callable[[], Any]] = {
    "numbers": lambda: [1, 2, 3],
    "floats": lambda: [1.0, 2, 3],
    "booleans": lambda: [True, 2, 3],
    "a minus": lambda: [1, -0.0],
    "no minus": lambda: [1, 0.0],
    "tuples": lambda: [(1, 2.5), (2, 0.5)],
    "lists": lambda: [[1], [2, 3]],
    "lists of tuples": lambda: [[(1, 2)], [(3, 4), (5, 6)]],
    "dicts": lambda: [{"id": i, "path": f"{i}.jpg"} for i in range(3)],
    "other keys": lambda: [{"id": i, "name": f"{i}.jpg"} for i in range(3)],
    "a dict of lists": lambda: {"a": [1, 2], "b": [{3}, frozenset({4})]},
    "long numbers": lambda: [[1 << 3000], [2]],
    "arrays": lambda: [np.arange(3), np.arange(2)],
    "signed": lambda: [np.int32(1)],
    "unsigned": lambda: [np.uint32(1)],
}


@pytest.mark.parametrize("other", HELD)
@pytest.mark.parametrize("kind", HELD)
def test_a_container_is_alike_as_long_as_no_value_and_no_type_in_it_changes(
    kind: str, other: str
) -> None:
    sampler = HoldsMuch(HELD[kind]())
    first = freeze(sampler)
    assert not changed(first, freeze(sampler))
    sampler.value = HELD[other]()
    found = changed(first, freeze(sampler))
    assert found == {} if kind == other else [*found] == ["value"] or "arrays" in (kind, other)
    assert json.dumps(found, default=repr)  # these are plain values
    thaw(sampler, found)
    assert repr(sampler.value) == repr(HELD[kind]())


def calls_in(act: Callable[[], object]) -> int:
    """Calls of Python's functions, and of C's, while something is done."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


MANY: dict[str, Callable[[int], Any]] = {
    "numbers": lambda n: [*range(n)],
    "tuples": lambda n: [(i, i % 5) for i in range(n)],
    "lists of tuples": lambda n: [[(i, 1), (i + 1, 2)] for i in range(n)],
    "dicts": lambda n: [{"id": i, "tags": [i]} for i in range(n)],
    "a dict of lists": lambda n: {i: [i] for i in range(n)},
}


class CountsEpochs(HoldsMuch):
    epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(range(20))


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("kind", MANY)
def test_a_save_looks_at_none_of_many_records_in_python(kind: str, epoch: int) -> None:
    def calls(count: int) -> int:
        loader = DataLoader(range(20), 2, sampler=CountsEpochs(MANY[kind](count)), seed=0)
        for _ in range(epoch):
            list(loader)
        iterator = iter(loader)
        next(iterator)
        iterator.state_dict()  # some things are looked at once
        gc.collect()
        gc.disable()
        try:
            return calls_in(iterator.state_dict)
        finally:
            gc.enable()

    assert calls(1000) == calls(10)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", [inexact.ListeningWithWeights, inexact.ListeningWithState])
def test_what_the_training_tells_a_sampler_outlives_a_resume_at_every_step(
    kind: Any, workers: int
) -> None:
    def make() -> DataLoader[Any]:
        # All indices are drawn before the training has told anything.
        return DataLoader(range(N), 3, sampler=kind(), num_workers=workers, prefetch_factor=5)

    def train(resumes: bool) -> list[Any]:
        loader, passes = make(), []
        for _ in range(3):
            iterator, seen = iter(loader), []
            while True:
                if resumes:  # there may be no index left to be drawn in between
                    state, loader = iterator.state_dict(), make()
                    iterator.close()
                    loader.load_state_dict(state)
                    iterator = iter(loader)
                try:
                    seen.append(next(iterator).tolist())
                except StopIteration:
                    break
                loader.sampler.feedback(seen[-1][0])  # type: ignore[attr-defined]
            passes.append(seen)
        return passes

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmptyEpochWarning)
        assert train(resumes=True) == train(resumes=False)


def test_a_copy_of_an_iterator_over_a_sampler_that_cannot_be_copied_is_refused_by_name() -> None:
    once: Any = (index for index in range(4))
    iterator = iter(DataLoader(range(4), sampler=once))  # type: ignore[arg-type]
    for make in (copy.copy, copy.deepcopy):
        with pytest.raises(CannotSaveError, match="copying them failed .TypeError"):
            make(iterator)
    assert int(next(iterator)) == 0


def test_a_state_after_the_epoch_of_a_generator_is_refused_as_it_cannot_begin_again() -> None:
    once: Any = (index for index in range(4))
    loader = DataLoader(range(4), sampler=once)  # type: ignore[arg-type]
    list(loader)
    with pytest.raises(CannotSaveError, match="an iterator, which cannot begin again"):
        loader.state_dict()
