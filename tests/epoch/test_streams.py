"""Streams as users meet them: torch's semantics, states, errors, and what a state costs."""

from __future__ import annotations

import pickle
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from laws.observe import lists
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from zoo.datasets import CountedNoise, as_they_are
from zoo.samplers import MySampler
from zoo.streams import Generated, StatefulDataset, StatefulIterator, StatefulWalk

from picklable_loader import DataLoader
from picklable_loader.errors import CannotSaveError, ReplayWarning, StateMismatch, StreamError
from picklable_loader.fetching.worker.cadence import Cadence

MS = 1_000_000


@pytest.fixture(autouse=True)
def as_many_workers_as_it_takes() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def taken(iterator: Any, count: int) -> list[Any]:
    return lists(next(iterator) for _ in range(count))


# --- the tutorial of torchdata's StatefulDataLoader, unchanged ------------------------------------


class NoisyRange(Dataset[float]):
    def __init__(self, high: int, mean: float, std: float) -> None:
        self.high, self.mean, self.std = high, torch.tensor([float(mean)]), float(std)

    def __len__(self) -> int:
        return self.high

    def __getitem__(self, idx: int) -> float:
        if not (0 <= idx < self.high):
            raise IndexError()
        x = torch.normal(self.mean, self.std)
        noise = x.item()
        return idx + noise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        torch.set_rng_state(state_dict["rng"])

    def state_dict(self) -> dict[str, Any]:
        return {"rng": torch.get_rng_state()}


class MyIterableDataset(IterableDataset[torch.Tensor]):
    def __init__(self, high: int, seed: int) -> None:
        self.high, self.seed = high, seed
        self.g = torch.Generator()
        self.i = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker_info = torch.utils.data.get_worker_info()
        if worker_info is not None:
            worker_id = worker_info.id
            num_workers = worker_info.num_workers
        else:
            worker_id = 0
            num_workers = 1
        self.g.manual_seed(self.seed)
        arr = torch.randperm(self.high, generator=self.g)
        arr = arr[worker_id : self.high : num_workers]
        for idx in range(self.i, len(arr)):
            self.i += 1
            yield arr[idx]
        self.i = 0

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.i = state_dict["i"]


TUTORIAL: dict[str, Any] = {
    "map-style": lambda: {"dataset": NoisyRange(5, 1, 1), "sampler": MySampler(5, 1, 10)},
    "iterable-style": lambda: {"dataset": MyIterableDataset(12, 0)},
}


@pytest.mark.parametrize("seeding", ["batch", "worker"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("example", TUTORIAL)
def test_the_tutorials_examples_print_equal_lists(
    example: str, num_workers: int, seeding: Any
) -> None:
    dl: Any = DataLoader(
        **TUTORIAL[example](),
        batch_size=2,
        drop_last=False,
        num_workers=num_workers,
        seeding=seeding,
    )
    batches = []
    for i, batch in enumerate(dl):
        batches.append(batch)
        if i == 2:
            sd = dl.state_dict()
    dl.load_state_dict(sd)
    batches2 = list(dl)
    assert lists(batches[3:]) == lists(batches2) != []


def test_the_tutorials_iterable_example_gives_torchdatas_batches() -> None:
    def observe(num_workers: int) -> Any:
        return lists(DataLoader(MyIterableDataset(12, 0), batch_size=2, num_workers=num_workers))

    assert observe(0)[3:] == [[2, 10], [3, 1], [11, 6]]
    assert observe(2)[3:] == [[4, 10], [3, 11], [1, 6]]


@pytest.mark.parametrize("num_workers, others", [(0, 0), (2, 2), (2, 0), (0, 3), (4, 1)])
@pytest.mark.parametrize("every", [0, 1, 3, "auto"])
def test_a_map_style_dataset_with_a_state_goes_on_at_every_step(
    every: Any, num_workers: int, others: int
) -> None:
    def make(workers: int) -> Any:
        counted, options = CountedNoise(15), {"snapshot_every_n_steps": every, "seed": 2}
        return DataLoader(counted, 2, shuffle=True, num_workers=workers, **options)

    expected = lists(make(num_workers))
    iterator, saves = iter(make(num_workers)), []
    for batch in expected:
        saves.append((pickle.dumps(iterator), iterator.state_dict()))
        assert taken(iterator, 1) == [batch]
    saves.append((pickle.dumps(iterator), iterator.state_dict()))
    by_state = every in (0, 3)  # the steps take turns: each is followed through either door
    for step, (pickled, state) in enumerate(saves):
        if step % 2 == by_state:
            assert lists(pickle.loads(pickled)) == expected[step:]
            continue
        loader = make(others)
        loader.load_state_dict(state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # at the end nothing is left
            assert lists(loader) == expected[step:]


# --- streams and processes ------------------------------------------------------------------------


class Where(IterableDataset[Any]):
    """Says in which stream it is read."""

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.shard: int | None = None

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        own = info is None or info.dataset is self
        for index in range(self.length):
            yield (None if info is None else (info.id, info.num_workers)), own, self.shard, index


def choose_shard(stream: int) -> None:
    info: Any = get_worker_info()
    info.dataset.shard = info.id
    assert info.id == stream


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4, 5])
def test_num_streams_fixes_the_data_whatever_the_number_of_processes(num_workers: int) -> None:
    def batches(workers: int) -> list[Any]:
        loader = DataLoader(
            Where(),
            2,
            num_workers=workers,
            num_streams=4,
            collate_fn=as_they_are,
            worker_init_fn=choose_shard,
        )
        return [list(loader) for _ in range(2)]

    found = batches(num_workers)
    assert found == batches(4)
    assert [batch[0][0] for batch in found[0][:4]] == [(stream, 4) for stream in range(4)]
    assert all(own and shard == of[0] for batch in found[0] for of, own, shard, _ in batch)


def test_without_workers_there_is_one_stream_and_no_worker_information() -> None:
    samples = list(DataLoader(Where(2), None))
    assert samples == [[None, True, None, 0], [None, True, None, 1]]
    assert get_worker_info() is None


class SaysWhere(IterableDataset[list[Any]]):
    """Each sample shows the worker information at the iteration's beginning, and now."""

    def __iter__(self) -> Iterator[list[Any]]:
        began = where()
        for number in range(8):
            yield [number, began, where()]


class SaysWhereAndSaves(SaysWhere):
    """The same, with a state."""

    def __iter__(self) -> Iterator[list[Any]]:
        return Place()


class Place:
    def __init__(self) -> None:
        self.number, self.began = 0, where()

    def __next__(self) -> list[Any]:
        if self.number == 8:
            raise StopIteration
        self.number += 1
        return [self.number, self.began, where()]

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def where() -> Any:
    info = get_worker_info()
    return None if info is None else (info.id, info.num_workers)


ONE_STREAM: dict[str, dict[str, Any]] = {
    "no worker": {},
    "one worker": {"num_workers": 1},
    "a persistent one": {"num_workers": 1, "persistent_workers": True},
    "num_streams": {"num_streams": 1},
}


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize("kind", [SaysWhere, SaysWhereAndSaves])
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("before", ONE_STREAM)
@pytest.mark.parametrize("now", [*ONE_STREAM, "two workers"])
def test_a_stream_sees_after_a_resume_the_worker_information_that_it_saw(
    kind: Any, seed: int | None, before: str, now: str
) -> None:
    """A state from 0 or 1 worker goes on under 0, 1 or 2, and is saved twice."""

    def made(options: dict[str, Any]) -> DataLoader[Any]:
        return DataLoader(kind(), 2, collate_fn=as_they_are, seed=seed, **options)

    options = ONE_STREAM.get(now, {"num_workers": 2})
    iterator = iter(made(ONE_STREAM[before]))
    next(iterator)
    state = iterator.state_dict()
    expected = lists(iterator)
    again = made(options)
    again.load_state_dict(state)
    later = iter(again)
    first = taken(later, 1)
    last = made(ONE_STREAM[before])
    last.load_state_dict(later.state_dict())
    assert first + lists(later) == expected
    assert first + lists(last) == expected
    fresh = lists(made(options))
    assert lists(again) == fresh, "the next epoch is the loader's own"


def test_streams_in_this_process_leave_no_worker_information_behind() -> None:
    for _ in DataLoader(Where(2), None, num_streams=2):
        assert get_worker_info() is None


@pytest.mark.parametrize("length", [3, 100_000])
def test_streams_in_this_process_collate_into_ordinary_memory(length: int) -> None:
    class Tensors(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            assert get_worker_info() is not None
            yield from torch.zeros(4, length)

    batches = list(DataLoader(Tensors(), 2, num_streams=2))
    assert len(batches) == 4
    assert not any(batch.is_shared() for batch in batches)


def test_an_epoch_that_was_saved_over_four_workers_is_followed_by_one_over_the_loaders_own() -> (
    None
):
    iterator = iter(DataLoader(Where(), None, num_workers=4))
    seen = [next(iterator) for _ in range(5)]
    loader = DataLoader(Where(), None, num_workers=2)
    loader.load_state_dict(iterator.state_dict())
    with pytest.warns(ReplayWarning, match="5 batches"):
        seen += list(loader)
    assert [sample[0] for sample in seen] == [[stream, 4] for _ in range(5) for stream in range(4)]
    assert [sample[0] for sample in loader][:3] == [[0, 2], [1, 2], [0, 2]]


class Locked(Where):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_that_cannot_be_copied_has_a_process_for_each_stream(num_workers: int) -> None:
    assert len(list(DataLoader(Locked(), None, num_workers=2, num_streams=2))) == 10
    with pytest.raises(RuntimeError, match="Locked cannot be copied.*at least as many workers"):
        list(DataLoader(Locked(), None, num_workers=num_workers, num_streams=2))


class Endless(StatefulDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self.at += 1
            yield torch.tensor(self.at)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_endless_data_goes_on_from_a_state(num_workers: int) -> None:
    iterator = iter(DataLoader(Endless(), 4, num_workers=num_workers))
    taken(iterator, 50)
    loader = DataLoader(Endless(), 4, num_workers=num_workers)
    loader.load_state_dict(iterator.state_dict())
    assert taken(iter(loader), 20) == taken(iterator, 20)


# --- states ---------------------------------------------------------------------------------------


class Strict(IterableDataset[int]):
    """Notes in which order it is restored, and is iterated once."""

    notes: list[str] = []

    def __iter__(self) -> Iterator[int]:
        self.notes.append("iter")
        return StrictWalk(self.notes)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}
        self.notes.append("dataset")


class StrictWalk(StatefulWalk):
    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self.notes = notes

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.notes.append("iterator")


def test_a_stream_is_restored_in_torchdatas_order_and_iterated_once() -> None:
    iterator = iter(DataLoader(Strict(), 2))
    next(iterator)
    loader = DataLoader(Strict(), 2)
    state = iterator.state_dict()
    Strict.notes.clear()
    loader.load_state_dict(state)
    assert Strict.notes == []
    next(iter(loader))
    assert Strict.notes == ["dataset", "iter", "iterator"]


def test_a_state_is_that_of_the_last_batch_delivered_not_of_those_fetched_ahead() -> None:
    iterator = iter(DataLoader(StatefulDataset(), 3, num_workers=2, snapshot_every_n_steps=1))
    for step in range(1, 5):
        next(iterator)
        states = [stream["mark"] for stream in iterator.state_dict()["streams"]]
        ats = [state and dict(state["dataset"]["value"])["at"] for state in states]
        assert ats == [3 * -(-step // 2), 3 * (step // 2) or None]


def test_a_state_that_was_handed_out_does_not_change() -> None:
    iterator = iter(DataLoader(StatefulIterator(), 3, snapshot_every_n_steps=1))
    next(iterator)
    state = iterator.state_dict()
    before = pickle.dumps(state)
    lists(iterator)
    assert pickle.dumps(state) == before


def test_a_replay_says_how_many_batches_it_fetches_again_and_how_to_avoid_it() -> None:
    iterator = iter(DataLoader(Generated(), 3, num_workers=2))
    taken(iterator, 3)
    again = pickle.loads(pickle.dumps(iterator))
    with pytest.warns(ReplayWarning, match="Generated.*3 batches.*it goes on at once$") as caught:
        assert [batch.tolist() for batch in again] == lists(iterator)
    assert [warning.filename for warning in caught] == [__file__]


# --- bad input ------------------------------------------------------------------------------------


class Unsavable(StatefulDataset):
    def state_dict(self) -> dict[str, Any]:
        return {"lock": threading.Lock()}


class Absent(StatefulDataset):
    def state_dict(self) -> Any:
        return None


class Raising(StatefulDataset):
    def state_dict(self) -> dict[str, Any]:
        raise KeyError("where was I")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "kind, cause",
    [(Unsavable, "cannot pickle '_thread.lock'"), (Absent, "None"), (Raising, "where was I")],
)
def test_a_state_that_cannot_be_had_is_an_error_for_who_asks_and_loses_nothing(
    kind: Any, cause: str, num_workers: int
) -> None:
    iterator = iter(DataLoader(kind(), 3, num_workers=num_workers, seed=1))
    found = taken(iterator, 2)
    for attempt in (iterator.state_dict, iterator.loader.state_dict):
        with pytest.raises(
            CannotSaveError, match=f"stream 0 of the dataset {kind.__name__}"
        ) as raised:
            attempt()
        assert re.search(cause, str(raised.value))
    whole = DataLoader(StatefulDataset(), 3, num_workers=num_workers, seed=1)
    assert found + lists(iterator) == lists(whole)


class Refusing(StatefulIterator):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return RefusingWalk()


class RefusingWalk(StatefulWalk):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise ValueError("the shards are others now")


def renamed(state: dict[str, Any], kind: Any) -> dict[str, Any]:
    renamed = {**state, "fits": {**state["fits"], "dataset": kind.__qualname__}}
    return {name: part for name, part in renamed.items() if name != "checksum"}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_load_state_dict_that_raises_names_stream_dataset_and_cause(num_workers: int) -> None:
    iterator = iter(DataLoader(StatefulIterator(), 3, num_workers=num_workers))
    taken(iterator, 2)
    state = renamed(iterator.state_dict(), Refusing)
    again = iter(DataLoader(Refusing(), 3, num_workers=num_workers))
    again.load_state_dict(state)
    text = r"stream \d of the dataset Refusing.*ValueError: the shards are others now"
    for _ in range(2):
        with pytest.raises(StreamError, match=text):
            next(again)
        assert again.step == 2
    good = DataLoader(StatefulIterator(), 3, num_workers=num_workers)
    good.load_state_dict(renamed(again.state_dict(), StatefulIterator))
    assert lists(good) == lists(iterator)


def test_a_worker_answers_what_was_queued_behind_a_stream_that_cannot_go_on(capfd: Any) -> None:
    options: dict[str, Any] = {"num_workers": 1, "num_streams": 2, "prefetch_factor": 6}
    iterator = iter(DataLoader(StatefulIterator(), 1, **options))
    taken(iterator, 3)
    again = iter(DataLoader(Refusing(), 1, **options))
    again.load_state_dict(renamed(iterator.state_dict(), Refusing))
    with pytest.raises(StreamError, match="the shards are others now"):
        next(again)
    again.close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_data_that_ends_before_its_state_is_an_error(num_workers: int) -> None:
    # Without a state in between it has to be fetched again.
    def make(dataset: Any) -> Any:
        return DataLoader(dataset, 1, num_workers=num_workers, snapshot_every_n_steps=50)

    iterator = iter(make(Generated()))
    taken(iterator, 8)
    loader = make(Short())
    loader.load_state_dict(renamed(iterator.state_dict(), Short))
    with pytest.raises(StreamError, match=r"stream \d of the dataset Short.*ended before batch"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReplayWarning)
            next(iter(loader))


class Short(Generated):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from list(super().__iter__())[:2]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_that_cannot_be_fetched_again_is_an_error(num_workers: int) -> None:
    options: dict[str, Any] = {"num_workers": num_workers, "snapshot_every_n_steps": 2}
    iterator = iter(DataLoader(StatefulIterator(), 2, **options))
    taken(iterator, 3)
    again = iter(DataLoader(BrokenSince(), 2, **options))
    again.load_state_dict(renamed(iterator.state_dict(), BrokenSince))
    with pytest.raises(StreamError, match="fetched again, a batch raises OSError: cannot be read"):
        next(again)


class BrokenSince(StatefulIterator):
    """A sample can no longer be read."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return BrokenSinceWalk()


class BrokenSinceWalk(StatefulWalk):
    def __next__(self) -> torch.Tensor:
        if self.at == 4:
            raise OSError("cannot be read")
        return super().__next__()


def test_a_stream_does_not_go_on_in_batches_of_another_size() -> None:
    iterator = iter(DataLoader(StatefulDataset(), 3))
    next(iterator)
    with pytest.raises(StateMismatch, match="batch_size: expected 2"):
        DataLoader(StatefulDataset(), 2).load_state_dict(iterator.state_dict(), strict=False)


def test_a_state_of_another_dataset_class_does_not_fit() -> None:
    state = iter(DataLoader(StatefulDataset(), 3)).state_dict()
    with pytest.raises(StateMismatch, match="dataset: expected 'StatefulIterator'"):
        DataLoader(StatefulIterator(), 3).load_state_dict(state)


@pytest.mark.parametrize(
    "damage",
    [
        {"streams": {}},
        {"streams": [3]},
        {"streams": [{"given": 1}]},
        {"streams": [{"given": -1, "ended": False, "marked": 0, "mark": None, "since": []}]},
        {"streams": [{"given": 1, "ended": False, "marked": 2, "mark": None, "since": []}]},
        {"streams": [{"given": 1, "ended": False, "marked": 1, "mark": [1], "since": []}]},
        {"streams": [{"given": 1, "ended": False, "marked": 1, "mark": {"code": 1}, "since": []}]},
    ],
)
def test_damaged_streams_are_refused_and_the_loader_is_as_it_was(damage: dict[str, Any]) -> None:
    iterator = iter(DataLoader(StatefulDataset(), 3))
    next(iterator)
    loader = DataLoader(StatefulDataset(), 3)
    before = loader.state_dict()
    with pytest.raises(ValueError, match="damaged.*streams"):
        loader.load_state_dict({**iterator.state_dict(), **damage})
    assert loader.state_dict() == before


# --- what a snapshot costs ------------------------------------------------------------------------


def taken_after(cadence: Cadence, batches: int, fetch_ns: int, cost_ns: int) -> list[int]:
    """The batches after which a state is taken, each costing so much."""
    found = []
    for batch in range(batches):
        if cadence.due(fetch_ns):
            found.append(batch)
            cadence.taken(cost_ns)
    return found


def test_the_first_batch_is_marked_and_then_each_so_many() -> None:
    assert taken_after(Cadence(None), 3, MS, MS) == [0]
    assert taken_after(Cadence(3), 10, MS, 1000 * MS) == [2, 5, 8]


@pytest.mark.parametrize("cost_ms", [0.01, 0.1, 1, 5, 10])
def test_automatic_marks_take_a_hundredth_of_the_time_and_are_a_second_apart_at_most(
    cost_ms: float,
) -> None:
    cost_ns = int(cost_ms * MS)
    found = taken_after(Cadence(None), 100_000, MS // 10, cost_ns)
    assert len(found) * cost_ns <= 0.0101 * 100_000 * MS / 10 + 2 * cost_ns
    assert max(b - a for a, b in zip(found, found[1:])) <= 10_001


def test_what_it_costs_to_send_a_mark_and_to_receive_it_counts() -> None:
    cadence = Cadence(None)
    assert cadence.due(MS)
    cadence.taken(MS)
    cadence.sent(2 * MS)
    assert [cadence.due(100 * MS) for _ in range(5)] == [False] * 4 + [True]


def test_marks_that_cost_much_are_rare_and_take_a_twentieth_of_the_time_at_most() -> None:
    found = taken_after(Cadence(None), 100_000, MS, 100 * MS)
    assert len(found) * 100 <= 0.051 * 100_000


class Typed:
    """An iterator that pickle can save, by the name of its class."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        self.at += 1
        return self.at


class OfTyped(IterableDataset[int]):
    def __iter__(self) -> Any:
        return Typed()


def test_an_iterators_class_that_only_a_script_had_is_an_error_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Typed, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Typed", Typed, raising=False)
    iterator = iter(DataLoader(OfTyped(), 2, num_workers=1))
    next(iterator)
    saved = pickle.dumps(iterator)
    iterator.close()
    monkeypatch.delattr(sys.modules["__main__"], "Typed")
    with pytest.raises(StreamError, match='only a script has travels with codec="cloudpickle"'):
        next(pickle.loads(saved))
