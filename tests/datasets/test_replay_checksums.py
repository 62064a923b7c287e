"""A replay compares batches with those that were delivered, and warns if they are other ones."""

from __future__ import annotations

import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

from picklable_loader import DataLoader, current_seed
from picklable_loader.errors import DamagedStateError, LoaderWarning, ReplayWarning
from picklable_loader.fetching.worker.batch_checksum import batch_checksum, is_other

SAMPLES = 40


class Shuffled(IterableDataset[Any]):
    """Its ``__iter__`` makes a generator."""

    def __init__(self, generator: Callable[[], random.Random] = random.Random) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[Any]:
        order = list(range(SAMPLES))
        self.generator().shuffle(order)
        yield from map(self.sample, order)

    def sample(self, index: int) -> Any:
        return index


class Texts(Shuffled):
    """Its samples are no numbers."""

    def sample(self, index: int) -> Any:
        return {"text": f"number {index}", "same": (1.5, None)}


class Images(Shuffled):
    """Its samples are arrays."""

    def sample(self, index: int) -> Any:
        return np.full((3, 20, 20), index, np.uint8), torch.full((50,), index / 7)


def seeded() -> random.Random:
    return random.Random(current_seed())


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def differences(resume: Callable[[], Any]) -> list[str]:
    """The warnings of other batches, of a pass that goes on to its end."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", LoaderWarning)
        list(resume())
    return [str(w.message) for w in said if not isinstance(w.message, ReplayWarning)]


def saved(make: Callable[[], Any], step: int) -> tuple[Any, bytes]:
    iterator = iter(make())
    for _ in range(step):
        next(iterator)
    state, data = iterator.state_dict(), pickle.dumps(iterator)
    iterator.close()
    return state, data


def loaded(make: Callable[[], Any], state: Any) -> Any:
    loader = make()
    loader.load_state_dict(state)
    return loader


@pytest.mark.parametrize("step", [1, 3, 7])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Shuffled, Texts, Images])
def test_a_stream_that_is_read_in_another_order_is_warned_of(
    kind: Any, workers: int, step: int
) -> None:
    def make() -> Any:
        return DataLoader(kind(), 4, num_workers=workers, seed=1, collate_fn=as_they_are)

    state, data = saved(make, step)
    for resume in (lambda: loaded(make, state), lambda: pickle.loads(data)):
        said = differences(resume)
        assert said and all("came as another one" in text for text in said)


@pytest.mark.parametrize("step", [1, 3, 7])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Shuffled, Texts, Images])
def test_one_that_is_seeded_is_not(kind: Any, workers: int, step: int) -> None:
    def make() -> Any:
        dataset = kind(seeded)
        return DataLoader(dataset, 4, num_workers=workers, seed=1, collate_fn=as_they_are)

    state, data = saved(make, step)
    assert not differences(lambda: loaded(make, state))
    assert not differences(lambda: pickle.loads(data))


def test_a_stream_with_a_state_has_no_checksum() -> None:
    class Walk:
        at = 0

        def __iter__(self) -> Walk:
            return self

        def __next__(self) -> int:
            self.at += 1
            return self.at

    class Walks(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return Walk()

        def __len__(self) -> int:
            return 8

    state, _ = saved(lambda: DataLoader(Walks(), 2, codec="cloudpickle"), 3)
    assert "seen" not in state["streams"][0]


def test_which_batches_are_compared_depends_on_their_numbers_alone() -> None:
    def make() -> Any:
        return DataLoader(Shuffled(seeded), 1, seed=1)

    numbers = [saved(make, step)[0]["streams"][0]["seen"][0] for step in (1, 2, 3, 7, 9, 31, 40)]
    assert numbers == [1, 2, 2, 4, 8, 16, 32]


@pytest.mark.parametrize("seen", [[0, 1], [4, 1], [1], [1, 2**32], [1, -1], [True, 1], ["1", 1]])
def test_a_damaged_checksum_is_refused(seen: Any) -> None:
    state, _ = saved(lambda: DataLoader(Shuffled(seeded), 4, seed=1), 3)
    state["streams"][0]["seen"] = seen
    del state["checksum"]
    with pytest.raises(DamagedStateError, match="seen|checksum"):
        DataLoader(Shuffled(seeded), 4, seed=1).load_state_dict(state)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- the checksum --------------------------------------------------------------------------------

_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary())
_BATCHES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(_BATCHES)
def test_equal_batches_have_one_checksum(batch: Any) -> None:
    assert batch_checksum(batch) == batch_checksum(pickle.loads(pickle.dumps(batch))) < 2**32


@pytest.mark.parametrize(
    "one, other",
    [
        (1, 2),
        (1, True),
        ("a", "b"),
        (b"a", "a"),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"b": 1}),
        (torch.arange(4), torch.arange(4).flip(0)),
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(4), torch.zeros(4, dtype=torch.int)),
        (np.arange(1000), np.arange(1, 1001)),
        (torch.rand(1000) + 1, torch.rand(1000) + 3),
        (torch.full((3,), 1 + 1j), torch.full((3,), 1 + 2j)),
        (torch.ones(3, dtype=torch.bfloat16), -torch.ones(3, dtype=torch.bfloat16)),
        (np.ones(3, np.complex64), 2 * np.ones(3, np.complex64)),
        (np.arange(64) + 1j, np.arange(64) * 5 + 7j),
        (torch.eye(40).T, torch.ones(40, 40).T),
        (10**5000, 10**5000 + 1),
        ([{"a": 1, "b": n} for n in range(64)], [{"a": 1, "b": -n} for n in range(64)]),
        (torch.zeros(32, 512), torch.arange(512).expand(32, 512) % 2),
    ],
    ids=lambda each: type(each).__name__,
)
def test_others_have_another_one(one: Any, other: Any, one_thread: None) -> None:
    assert batch_checksum(one) != batch_checksum(other)
    assert is_other(other, batch_checksum(one)) and not is_other(one, batch_checksum(one))


def test_the_last_bits_of_floats_do_not_count(one_thread: None) -> None:
    sums = torch.tensor([0.1, 3.3, -7.7e9, float("inf"), 0.0, float("nan")])
    assert batch_checksum(sums) == batch_checksum(sums * (1 + 2**-23)) == batch_checksum(sums + 0)
    assert batch_checksum(0.1) == batch_checksum(0.1 + 1e-9)
    assert batch_checksum(0.0) == batch_checksum(-0.0)


def test_floats_count_only_where_both_have_one_thread(one_thread: None) -> None:
    one, other = (7, torch.zeros(3)), (7, torch.ones(3))
    exact = batch_checksum(one)
    torch.set_num_threads(2)
    inexact = batch_checksum(one)
    assert not is_other(other, exact) and not is_other(other, inexact)
    assert is_other((8, torch.zeros(3)), inexact)
    torch.set_num_threads(1)
    assert is_other(other, exact) and not is_other(other, inexact)


def test_the_order_of_a_dict_does_not_count() -> None:
    assert batch_checksum({"a": 1, "b": [2]}) == batch_checksum({"b": [2], "a": 1})


def test_a_large_batch_is_not_copied() -> None:
    one, other = (torch.tensor([n]).expand(1 << 40) for n in (1, 2))
    assert batch_checksum(one) != batch_checksum(other)


class Raises(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise RuntimeError("no items")

    def __len__(self) -> int:
        raise RuntimeError("no length")


def test_a_batch_whose_methods_raise_comes_all_the_same() -> None:
    assert batch_checksum([Raises(a=1)]) == batch_checksum([Raises(a=1)])


def test_padding_within_an_array_does_not_count() -> None:
    padded = np.dtype([("id", "i1"), ("x", "f8")], align=True)
    one, other = (np.frombuffer(bytes([fill] * 64), padded).copy() for fill in (0, 255))
    for each in (one, other):
        each["id"], each["x"] = 1, 2
    assert batch_checksum(one) == batch_checksum(other)


@pytest.mark.parametrize(
    "odd",
    [
        torch.eye(3).to_sparse(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        torch.empty(3, device="meta"),
        torch.ones(3, requires_grad=True),
        np.array([object()]),
        np.array(["2024-01-01"], "datetime64[D]"),
        np.zeros(2, [("a", "i4"), ("b", "f8")]),
        torch.empty(0),
        object(),
        {1, 2},
        "\ud800",
    ],
    ids=lambda odd: type(odd).__name__,
)
def test_odd_parts_of_a_batch_have_one_too(odd: Any) -> None:
    assert 0 <= batch_checksum([odd, odd]) < 2**32
