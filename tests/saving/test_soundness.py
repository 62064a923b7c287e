"""States that were damaged, by accident or by hand: a named error, soon, and no trace of it."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.observe import expected_warnings, seed_everything, seen, seen_next
from torch.utils.data import (
    Dataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler
from zoo import samplers, streams
from zoo.datasets import Boom, N, sample
from zoo.hostile import at, bounded, changed, places
from zoo.orders import Cyclic, CyclicOrder

import picklable_loader
from picklable_loader import DataLoader, register_order
from picklable_loader.errors import DamagedStateError, LoaderError, StateError, StreamError
from picklable_loader.testing.compare import difference

HERE = Path(__file__).parents[1]
PACKAGE = Path(picklable_loader.__file__).parent


class Wary(Dataset[torch.Tensor]):
    """Knows its indices."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: Any) -> torch.Tensor:
        if type(index) is not int or not 0 <= index < N:
            raise Boom(f"no index: {index!r}")
        return sample(index)


class Counting(Wary):
    """A map-style dataset with a state."""

    def __init__(self) -> None:
        self.count = 0

    def __getitem__(self, index: Any) -> torch.Tensor:
        self.count += 1
        return super().__getitem__(index) + self.count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"]) % 1000


def loader_over(dataset: Callable[[], Any], **arguments: Any) -> Callable[[], DataLoader[Any]]:
    """What makes a loader; samplers and generators are made with it."""

    def make() -> DataLoader[Any]:
        made = {
            name: value() if name in ("sampler", "batch_sampler", "generator") else value
            for name, value in arguments.items()
        }
        size = {} if "batch_size" in made or "batch_sampler" in made else {"batch_size": 3}
        return DataLoader(dataset(), **size, **made)

    return make


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def with_sampler(sampler: Callable[[], Any], **more: Any) -> Callable[[], DataLoader[Any]]:
    return loader_over(Wary, sampler=sampler, **more)


KINDS = {
    "in sequence": loader_over(Wary),
    "shuffled": loader_over(Wary, shuffle=True),
    "seed": loader_over(Wary, shuffle=True, seed=7),
    "generator": loader_over(Wary, shuffle=True, generator=generator),
    "no batches": loader_over(Wary, batch_size=None, shuffle=True, seed=7),
    "by worker": loader_over(Wary, shuffle=True, seeding="worker", seed=7),
    "longer": with_sampler(lambda: RandomSampler(range(N), num_samples=23, generator=generator())),
    "replacement": with_sampler(lambda: RandomSampler(range(N), replacement=True, num_samples=70)),
    "subset": with_sampler(lambda: SubsetRandomSampler([1, 3, 5, 7, 9, 8])),
    "weighted": with_sampler(lambda: WeightedRandomSampler([1.0] * N, N, generator=generator())),
    "distributed": with_sampler(lambda: DistributedSampler(Wary(), 2, 0, seed=3)),
    "list of batches": loader_over(Wary, batch_sampler=lambda: [[1], [2, 3], [4, 5, 6], [7]]),
    "replayed": with_sampler(lambda: samplers.DrawsAsItGoes(samplers.from_torch)),
    "replayed, seed": with_sampler(lambda: samplers.DrawsAsItGoes(samplers.from_numpy), seed=7),
    "own generator": with_sampler(samplers.OwnNumpyGenerator),
    "counts epochs": with_sampler(samplers.CountsEpochsLazily, seed=7),
    "endless": with_sampler(samplers.Endless),
    "in tuples": loader_over(Wary, batch_sampler=samplers.GroupedInTuples, seed=7),
    "stateful iterator": with_sampler(samplers.StatefulAndCounting, seed=7),
    "stateful sampler": with_sampler(lambda: samplers.MySamplerAgain(N, 1, 8)),
    "map-style with a state": loader_over(Counting, shuffle=True, seed=7, num_streams=2),
    "stream to be replayed": loader_over(streams.Generated, num_streams=2),
    "stateful stream": loader_over(streams.StatefulIterator, num_streams=3, seed=7),
    "stateful stream by worker": loader_over(streams.StatefulDataset, seeding="worker"),
    "both have a state": loader_over(streams.Both, num_streams=2, snapshot_every_n_steps=2),
    "shuffled stream": loader_over(streams.shuffled, num_streams=2),
}

BY_KIND = pytest.mark.parametrize("kind", KINDS)


def advanced(kind: str, steps: int) -> DataLoader[Any]:
    """A loader of that kind, so many batches into its epoch; the iterator stays in it."""
    seed_everything(1)
    loader = KINDS[kind]()
    loader.iterator = iter(loader)  # type: ignore[attr-defined]
    seen(loader.iterator, steps)  # type: ignore[attr-defined]
    return loader


def states_of(kind: str) -> list[dict[str, Any]]:
    """At an epoch's beginning, in its middle, after its last batch, and after its end.

    Without checksum, which would be the first to notice whatever is done to them.
    """
    loader = advanced(kind, 0)
    found, iterator = [], loader.iterator  # type: ignore[attr-defined]
    for _ in range(20):
        found.append(unsealed(iterator))
        try:
            seen_next(iterator)
        except StopIteration:
            break
    return [*found[:3], found[-1], unsealed(iterator)]


def unsealed(owner: Any) -> dict[str, Any]:
    """The state of an iterator or a loader, without checksum: it may be edited."""
    state: dict[str, Any] = owner.state_dict()
    del state["checksum"]
    return state


def is_peoples(error: Exception) -> bool:
    """A sampler or dataset of the tests has raised it, of whose own state nobody else knows.

    Torch may have Python frames below theirs: of a default device, for example.
    """
    frames = [Path(frame.filename).parents for frame in traceback.extract_tb(error.__traceback__)]
    ours = [HERE in parents for parents in frames if HERE in parents or PACKAGE in parents]
    return ours[-1]


def check_refusal_or_batches(kind: str, state: Any) -> None:
    """A state is refused without a trace; or it is taken, and whatever comes is batches or errors.

    What fails at the first batch fails again, and never goes on from somewhere else.
    """
    loader = advanced(kind, 1)
    before = loader.state_dict()
    try:
        loader.load_state_dict(state)
    except StateError as error:
        assert str(error)
        assert_equal(loader.state_dict(), before)
        assert what_comes(loader) == undisturbed(kind)
        return
    failed = False
    iterator = None
    for _ in range(4):
        try:
            iterator = iter(loader) if iterator is None else iterator
            next(iterator)
            assert not failed, "it goes on after it has failed"
        except StopIteration:
            return
        except (StateError, StreamError) as error:
            failed = bool(str(error))
        except (LoaderError, Boom):
            pass
        except AssertionError:
            raise
        except Exception as error:
            assert is_peoples(error), traceback.format_exception(error)
            return


def assert_equal(one: Any, other: Any) -> None:
    assert difference(one, other, "state") is None


@cache
def undisturbed(kind: str) -> list[Any]:
    return what_comes(advanced(kind, 1))


def what_comes(loader: Any) -> list[Any]:
    """The rest of the epoch at hand, and the next one."""
    return [seen(loader.iterator, 6), seen(iter(loader), 6)]


# --- anything anywhere ---------------------------------------------------------------------------

NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 7, 2**31, 2**62, 2**63 - 1, 2**64, 10**30])
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.sampled_from([1.5, float("nan"), float("inf")]),
    st.sampled_from(["", "text", "low:", "raw:AAAA", "1::", "0:inf:", b"", b"bytes"]),
    st.sampled_from(["tuple", "set", "dict", "deque", "bytes", "number", "Tensor", "object"]).map(
        lambda kind: {"as": kind, "value": [[1], 2]}
    ),
    st.sampled_from(["plain", "generator", "random", "RandomState", "Generator", "iterator"]).map(
        lambda kind: [kind, {"state": 1}]
    ),
    st.builds(lambda count: [0, 0, None, count], NUMBERS),
    st.builds(torch.arange, st.integers(0, 3)),
)
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["as", "value", "state", "iterator", "seed"]), inner),
    max_leaves=4,
)


@st.composite
def damaged(draw: st.DrawFn, states: list[dict[str, Any]]) -> dict[str, Any]:
    """One of the states, with one to three changes anywhere."""
    state = copy.deepcopy(draw(st.sampled_from(states)))
    for _ in range(draw(st.integers(1, 3))):
        owner: Any = state
        while True:
            places = list(owner) if isinstance(owner, dict) else range(len(owner))
            place = draw(st.sampled_from(places))
            value = owner[place]
            if not isinstance(value, dict | list) or not value or draw(st.integers(0, 5)) == 0:
                break
            owner = value
        _change(draw, owner, place)
        if not state:
            break
    return state


def _change(draw: st.DrawFn, owner: Any, place: Any) -> None:
    value = owner[place]
    how = draw(st.sampled_from(["replace", "replace", "shift", "drop", "add"]))
    if how == "shift" and type(value) is int:
        owner[place] = value + draw(NUMBERS)
    elif how == "shift" and isinstance(value, str) and value:
        at = draw(st.integers(0, len(value) - 1))
        owner[place] = value[:at] + draw(st.sampled_from(["", "A", "!", ":"])) + value[at + 1 :]
    elif how == "drop":
        del owner[place]
    elif how == "add" and isinstance(owner, list):
        owner.insert(place, copy.deepcopy(value))
    elif how == "add":
        names = ["iterator", "shared_seed", "log", "state", "checksum", "chunks"]
        owner[draw(st.sampled_from(names))] = draw(ANYTHING)
    else:
        owner[place] = draw(ANYTHING)


@BY_KIND
def test_a_damaged_state_is_refused_without_a_trace_or_gives_batches_or_named_errors(
    kind: str,
) -> None:
    @given(state=damaged(states_of(kind)))
    @settings(max_examples=40, derandomize=True, deadline=None, database=None)
    def check(state: dict[str, Any]) -> None:
        check_refusal_or_batches(kind, state)

    with bounded(), expected_warnings():
        check()


@given(state=ANYTHING)
@settings(derandomize=True, deadline=None, database=None)
def test_what_is_no_state_at_all_is_refused(state: Any) -> None:
    loader = KINDS["seed"]()
    if isinstance(state, dict) and not state:
        return  # the beginning
    with pytest.raises(StateError):
        loader.load_state_dict(state)


@BY_KIND
def test_a_huge_number_anywhere_takes_no_time_and_no_memory(kind: str) -> None:
    with bounded(), expected_warnings():
        for state in states_of(kind)[1:3]:
            for path in places(state):
                if type(at(state, path)) is int:
                    check_refusal_or_batches(kind, changed(state, path, 2**62 - 1))


# --- no code -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "__class__", "__dict__", "__init__.__globals__.N", "draw.__module__", "__class__.N",
        "__iter__.__globals__.N", "draw.__class__", "__dict__.__iter__",
    ],
)  # fmt: skip
def test_a_state_sets_a_samplers_own_attributes_only(path: str) -> None:
    state = states_of("replayed")[0]
    state["sampler"] = {"attributes": {path: ["plain", {"as": "dict", "value": []}]}}
    loader = KINDS["replayed"]()
    before = dict(vars(loader.sampler))
    with pytest.raises(DamagedStateError):
        loader.load_state_dict(state)
    assert vars(loader.sampler) == before
    assert samplers.N == N
    assert samplers.from_torch.__module__ == "zoo.samplers"


# --- what a state may not be ---------------------------------------------------------------------


def refused(kind: str, state: Any, match: str) -> None:
    loader = KINDS[kind]()
    before = loader.state_dict()
    with pytest.raises(DamagedStateError, match=match):
        loader.load_state_dict(state)
    assert_equal(loader.state_dict(), before)


def with_fields(kind: str, nth: int, **fields: Any) -> dict[str, Any]:
    return {**states_of(kind)[nth], **fields}


def test_streams_of_a_dataset_that_has_none() -> None:
    place = states_of("stateful stream")[1]["streams"][0]
    refused("seed", with_fields("seed", 1, streams=[place]), "streams")


def test_streams_that_have_given_another_number_of_batches() -> None:
    refused("stateful stream", with_fields("stateful stream", 2, step=1, next_step=1), "step")


def test_a_custom_sampler_in_the_middle_of_an_order_that_is_missing() -> None:
    refused("endless", with_fields("endless", 2, order=None), "order")


def test_indices_that_an_endless_sampler_has_not_given_yet() -> None:
    state = states_of("endless")[2]
    state["order"]["taken"] = 2**40
    with bounded():
        refused("endless", state, "taken")


@pytest.mark.parametrize("kind", ["in sequence", "shuffled", "weighted", "distributed"])
def test_a_position_beyond_the_end(kind: str) -> None:
    refused(kind, with_fields(kind, 1, position=N + 1), "position")


def test_a_batch_beyond_the_last_one_of_a_list() -> None:
    refused("list of batches", with_fields("list of batches", 1, next_step=5, step=5), "next_step")


@pytest.mark.parametrize(
    "indices", [{"as": "nothing"}, {"as": "tuple", "value": 1}, {"as": "Tensor", "value": 1}]
)
def test_indices_in_a_window_that_are_none(indices: Any) -> None:
    state = with_fields("in tuples", 2, next_step=3, window=[[2, 3, indices]], step=2)
    refused("in tuples", state, "window")


def test_a_task_without_indices_that_no_order_gives_again() -> None:
    refused("endless", with_fields("endless", 2, next_step=3, window=[[2, 3, None]]), "window")
    refused("seed", with_fields("seed", 2, next_step=3, window=[[2, 99, None]]), "window")
    lists = with_fields("list of batches", 2, next_step=5, window=[[4, 3, None]])
    refused("list of batches", lists, "window|next_step")


@pytest.mark.parametrize("indices", [7, [7], "text", [[1]], {"as": "tuple", "value": [1]}])
def test_indices_that_torchs_order_gives_are_in_no_state(indices: Any) -> None:
    for kind in ("seed", "in sequence", "weighted", "distributed", "list of batches"):
        refused(kind, with_fields(kind, 2, next_step=3, window=[[2, 3, indices]]), "window")


@pytest.mark.parametrize("indices", [7, "text", [], [1, 2, 3, 4], {"as": "tuple", "value": [1]}])
def test_indices_of_a_custom_sampler_are_gathered_in_a_list(indices: Any) -> None:
    refused("endless", with_fields("endless", 2, next_step=3, window=[[2, 3, indices]]), "window")


def test_one_number_is_no_batch_of_a_custom_batch_sampler() -> None:
    refused("in tuples", with_fields("in tuples", 2, next_step=3, window=[[2, 3, 7]]), "window")


def test_a_window_longer_than_any() -> None:
    runs = [[0, 0, None, 1000], [1000, 0, None, 10**6]]
    with bounded():
        refused("seed", with_fields("seed", 2, next_step=10**9, window=runs), "window")


def test_generators_of_workers_that_there_are_not() -> None:
    refused("seed", with_fields("seed", 1, workers={"0": {}}), "workers")
    refused("by worker", with_fields("by worker", 1, workers={"1": {}}), "workers")
    refused("by worker", with_fields("by worker", 1, workers={"0": {}}), "workers")


@pytest.mark.parametrize("value", [torch.arange(3), [torch.arange(3)], float("nan")])
def test_a_fingerprint_is_made_of_numbers_and_text(value: Any) -> None:
    state = states_of("seed")[1]
    state["fits"]["batch_size"] = value
    refused("seed", state, "batch_size")


def test_the_state_of_an_order_that_somebody_has_registered() -> None:
    register_order(Cyclic, CyclicOrder)
    loader = DataLoader(Wary(), batch_size=3, sampler=Cyclic(N))
    next(iter(loader))
    state = loader.state_dict()
    for order in ({"begin": 1}, {"start": "text"}, {"start": []}):
        with pytest.raises(DamagedStateError, match="order"):
            loader.load_state_dict({**state, "order": order})


# --- what only the sampler can tell --------------------------------------------------------------


def test_a_sampler_that_cannot_be_restored_says_so_each_time_and_gives_nothing() -> None:
    loader = advanced("stateful sampler", 2)
    state = unsealed(loader)
    state["order"]["sampler_state"] = {"i": 3, "rng": torch.zeros(5)}
    loader.load_state_dict(state)
    for _ in range(3):
        with pytest.raises(DamagedStateError, match="order"):
            iter(loader)
    assert_equal(loader.state_dict()["order"], state["order"])


def test_ctrl_c_while_a_sampler_is_restored_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = seen(advanced("stateful sampler", 2).iterator)  # type: ignore[attr-defined]
    state = advanced("stateful sampler", 2).state_dict()
    loader = KINDS["stateful sampler"]()
    loader.load_state_dict(state)

    def interrupted(sampler: Any, state: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(samplers.MySamplerAgain, "load_state_dict", interrupted)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
    assert seen(iter(loader)) == expected
