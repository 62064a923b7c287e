"""Budget, bytes, transport and schedule: how much is fetched ahead, and never what is delivered."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from zoo.datasets import as_they_are

from picklable_loader import DataLoader
from picklable_loader.errors import UsageError
from picklable_loader.loader.setup import spec_of

#: bytes of each sample of `Gated`
BYTES = 200_000


class Gate:
    """Tasks that wait for a permit, and a note of each one that was begun."""

    def __init__(self) -> None:
        self._begun, self._begin = os.pipe()
        self._permits, self._permit = os.pipe()
        self._pass()

    def _pass(self) -> None:
        os.set_blocking(self._begun, True)

    def enter(self, index: int) -> None:
        """In a worker: say so, and wait until one may go on."""
        os.write(self._begin, bytes([index]))
        assert os.read(self._permits, 1)

    def begun(self, count: int) -> list[int]:
        """Wait until so many more have begun; which they are."""
        found = b""
        while len(found) < count:
            found += os.read(self._begun, count - len(found))
        return sorted(found)

    def open(self, count: int = 250) -> None:
        os.write(self._permit, b"!" * count)

    def close(self) -> None:
        for end in (self._begun, self._begin, self._permits, self._permit):
            os.close(end)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()
    made.close()


class Gated:
    """Samples of which those that are named wait at a gate."""

    def __init__(
        self, gate: Gate, waiting: range = range(250), length: int = 60, size: int = BYTES
    ) -> None:
        self.gate, self.waiting, self.length, self.size = gate, waiting, length, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.waiting:
            self.gate.enter(index)
        return torch.full((self.size,), index, dtype=torch.uint8)


class Drawn:
    """A sampler that says how many indices were drawn from it."""

    def __init__(self, length: int) -> None:
        self.length, self.drawn = length, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            self.drawn += 1
            yield index


class Noisy:
    """Samples with random numbers in them, and of different lengths."""

    def __len__(self) -> int:
        return 37

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(3 + 9000 * (index % 4)), np.random.rand()


def loader(dataset: Any, batch_size: Any = None, **options: Any) -> Any:
    return DataLoader(dataset, batch_size, collate_fn=as_they_are, **{"num_workers": 1, **options})


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [None, 0, "many", 1.5, True])
def test_a_live_iterator_refuses_what_is_no_budget_and_goes_on(budget: Any) -> None:
    iterator = iter(loader(range(20), prefetch_budget=3))
    with pytest.raises((ValueError, TypeError), match="prefetch_budget"):
        iterator.prefetch_budget = budget
    assert iterator.prefetch_budget == 3
    assert list(iterator) == list(range(20))


def test_a_budget_may_be_one_of_numpys_numbers() -> None:
    iterator = iter(loader(range(20), prefetch_budget=np.int64(3), prefetch_bytes=np.int32(10**6)))
    iterator.prefetch_budget = np.int16(4)
    assert iterator.prefetch_budget == 4
    assert list(iterator) == list(range(20))


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"prefetch_budget": 3}], ids=str)
def test_reading_the_budget_of_an_unpickled_iterator_starts_nothing(options: Any) -> None:
    iterator = iter(loader(range(20), **options))
    copied = pickle.loads(pickle.dumps(iterator))
    before = copied.prefetch_budget
    assert copied._position.run is None and before == iterator.prefetch_budget
    next(copied)
    assert copied.prefetch_budget >= before
    copied.close()
    closed = pickle.loads(pickle.dumps(iterator))
    closed.close()
    with pytest.raises(UsageError, match="closed"):
        closed.prefetch_budget
    iterator.close()


# --- what is delivered ---------------------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {"prefetch_budget": 1},
    {"prefetch_budget": 50},
    {"prefetch_budget": "auto"},
    {"prefetch_factor": 1},
    {"prefetch_budget": 3, "prefetch_factor": 7},
    {"prefetch_bytes": 0},
    {"prefetch_bytes": 1},
    {"prefetch_bytes": "0.1 MB", "prefetch_budget": 20},
    {"prefetch_bytes": "1GiB"},
    {"schedule": "balanced"},
    {"schedule": "round_robin"},
    {"schedule": "round_robin", "prefetch_bytes": 0, "prefetch_budget": 1},
    {"transport": "arena"},
    {"transport": "portable"},
    {"transport": "portable", "prefetch_bytes": 0},
    {"transport": "portable", "schedule": "round_robin", "prefetch_budget": 50},
]


def flat(batches: Any) -> list[Any]:
    return [
        (index, tensor.tolist(), number) for batch in batches for index, tensor, number in batch
    ]


@pytest.mark.parametrize("workers", [1, 3])
def test_no_batch_depends_on_how_far_ahead_or_by_which_way_it_was_fetched(workers: int) -> None:
    expected = flat(loader(Noisy(), 3, shuffle=True, seed=3, num_workers=0))
    for options in OPTIONS:
        found = flat(loader(Noisy(), 3, shuffle=True, seed=3, num_workers=workers, **options))
        assert found == expected, options


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_in_any_order_each_batch_still_comes_once(options: dict[str, Any]) -> None:
    found = flat(loader(Noisy(), 3, in_order=False, seed=3, num_workers=2, **options))
    assert sorted(found) == sorted(flat(loader(Noisy(), 3, seed=3, num_workers=0)))


def test_a_budget_that_changes_all_the_time_changes_no_batch() -> None:
    expected = flat(loader(Noisy(), 2, shuffle=True, seed=3, num_workers=0))
    iterator = iter(loader(Noisy(), 2, shuffle=True, seed=3, num_workers=2, prefetch_bytes=50_000))
    found = []
    for step, batch in enumerate(iterator):
        found.append(batch)
        iterator.prefetch_budget = 1 + 7 * step % 11
    assert flat(found) == expected


@pytest.mark.parametrize("seeding", ["batch", "worker"])
def test_without_workers_nothing_is_drawn_ahead_whatever_the_budget(seeding: Any) -> None:
    sampler = Drawn(20)
    options: dict[str, Any] = {"sampler": sampler, "num_workers": 0, "seeding": seeding}
    iterator = iter(loader(range(20), prefetch_budget=8, prefetch_bytes=0, **options))
    assert (next(iterator), sampler.drawn) == (0, 1)
    iterator.prefetch_budget = 5
    assert (next(iterator), sampler.drawn) == (1, 2)
    assert list(iterator) == list(range(2, 20))


# --- how many are under way ----------------------------------------------------------------------


@pytest.mark.parametrize("budget", [2, 5])
def test_no_more_tasks_are_drawn_than_the_budget_says(budget: int, gate: Gate) -> None:
    sampler = Drawn(20)
    iterator = iter(loader(Gated(gate), sampler=sampler, prefetch_budget=budget))
    assert gate.begun(1) == [0]
    assert (sampler.drawn, iterator.prefetch_budget) == (budget, budget)
    assert iterator.stats().under_way == budget
    gate.open(1)
    assert int(next(iterator)[0]) == 0
    assert gate.begun(1) == [1]
    assert sampler.drawn == budget + 1
    gate.open()
    assert len(list(iterator)) == 19
    iterator.close()


def test_a_larger_budget_sends_more_at_once_and_a_smaller_one_waits(gate: Gate) -> None:
    sampler = Drawn(40)
    iterator = iter(loader(Gated(gate), sampler=sampler, num_workers=4, prefetch_budget=2))
    assert gate.begun(2) == [0, 1]
    iterator.prefetch_budget = 4
    assert gate.begun(2) == [2, 3]
    iterator.prefetch_budget = 2
    gate.open(4)
    for step in range(2):
        assert int(next(iterator)[0]) == step
        assert sampler.drawn == 4
    assert int(next(iterator)[0]) == 2
    assert sampler.drawn == 5
    gate.open()
    assert [int(batch[0]) for batch in iterator] == list(range(3, 40))


def test_a_budget_that_was_set_stays_in_the_next_epoch_of_persistent_workers() -> None:
    fed = loader(range(20), prefetch_budget=2, persistent_workers=True)
    iterator = iter(fed)
    iterator.prefetch_budget = 7
    assert list(iterator) == list(range(20))
    assert iter(fed).prefetch_budget == 7


def test_a_budget_that_was_set_may_be_left_to_itself_again(gate: Gate) -> None:
    iterator = iter(loader(Gated(gate, waiting=range(1)), num_workers=2, prefetch_budget=1))
    gate.begun(1)
    iterator.prefetch_budget = "auto"
    assert iterator.prefetch_budget == 4
    assert int(next(GateKeeper(gate, iterator))[0]) == 0
    assert iterator.prefetch_budget == 16
    iterator.close()


def test_after_the_epoch_an_iterator_says_its_last_budget_and_takes_no_other() -> None:
    iterator = iter(loader(range(20), prefetch_budget=3))
    assert len(list(iterator)) == 20
    assert iterator.prefetch_budget == 3 and iterator.stats().prefetch_budget == 3
    with pytest.raises(UsageError, match=r"iterator is finished .* the next iter\(loader\)"):
        iterator.prefetch_budget = 4


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent": 1}])
def test_the_figures_of_an_epoch_that_is_over_have_its_budget(options: dict[str, Any]) -> None:
    more = {"persistent_workers": bool(options.pop("persistent", False)), **options}
    iterator = iter(loader(range(20), prefetch_budget=3, **more))
    next(iterator)
    iterator.prefetch_budget = 5
    assert len(list(iterator)) == 19
    assert iterator.stats().prefetch_budget == 5
    iterator.close()
    assert iterator.stats().prefetch_budget == 5


def test_an_iterator_that_never_was_at_work_has_no_budget() -> None:
    done = iter(loader(range(20)))
    assert len(list(done)) == 20
    closed = pickle.loads(pickle.dumps(iter(loader(range(20)))))
    closed.close()
    for iterator, state in ((pickle.loads(pickle.dumps(done)), "finished"), (closed, "closed")):
        with pytest.raises(UsageError, match=f"{state} and fetches nothing"):
            print(iterator.prefetch_budget)
        with pytest.raises(UsageError, match=f"{state} and fetches nothing"):
            iterator.prefetch_budget = 4


def test_the_budget_is_twice_the_workers_unless_a_prefetch_factor_is_given() -> None:
    assert iter(loader(range(50), num_workers=3)).prefetch_budget == 6
    assert iter(loader(range(50), num_workers=3, prefetch_factor=5)).prefetch_budget == 15
    both = loader(range(50), num_workers=3, prefetch_factor=5, prefetch_budget=2)
    assert iter(both).prefetch_budget == 2


def test_the_budget_grows_to_eight_times_the_workers_while_the_head_is_slow(gate: Gate) -> None:
    iterator = iter(loader(Gated(gate, waiting=range(1)), num_workers=2))
    gate.begun(1)
    # The other worker does all that it is given; next() sees that it idles, and that the head is
    # not there. It comes when all that may be fetched ahead has been.
    last = GateKeeper(gate, iterator)
    assert int(next(last)[0]) == 0
    assert iterator.prefetch_budget == 16
    assert [int(batch[0]) for batch in iterator] == list(range(1, 60))


class GateKeeper:
    """Opens a gate as soon as the iterator has grown as far as it may."""

    def __init__(self, gate: Gate, iterator: Any) -> None:
        self.gate, self.iterator = gate, iterator

    def __next__(self) -> Any:
        engine = self.iterator._driver._engine
        wait = engine.wait

        def watch() -> Any:
            if self.iterator._position.run.schedule.waiting == 15:
                self.gate.open(1)
            return wait()

        engine.wait = watch
        try:
            return next(self.iterator)
        finally:
            del engine.wait


def test_the_budget_does_not_grow_while_the_head_is_as_fast_as_the_rest(gate: Gate) -> None:
    # Not so small that a worker that was idle for a moment is reason enough.
    iterator = iter(loader(Gated(gate, length=20, size=8 * 2**20), num_workers=1))
    for step in range(20):
        assert gate.begun(1) == [step]
        gate.open(1)
        assert int(next(iterator)[0]) == step
        assert iterator.prefetch_budget == 2
    assert next(iterator, None) is None


@pytest.mark.parametrize("given", [True, False])
def test_a_budget_that_was_given_or_that_the_program_could_see_does_not_grow(
    given: bool, gate: Gate
) -> None:
    options: dict[str, Any] = {"prefetch_budget": 4} if given else {"sampler": Drawn(60)}
    iterator = iter(loader(Gated(gate, waiting=range(1)), num_workers=2, **options))
    gate.begun(1)
    engine = iterator._driver._engine
    while iterator._position.run.schedule.waiting < 3:
        iterator._driver.handle(engine.wait())
    gate.open(1)
    assert (int(next(iterator)[0]), iterator.prefetch_budget) == (0, 4)
    assert len(list(iterator)) == 59


AT_ONCE: dict[str, Any] = {
    "in order": lambda given: {"generator": given},
    "some": lambda given: {"sampler": RandomSampler(range(60), False, 7, given)},
    "a subset": lambda given: {"sampler": SubsetRandomSampler(range(60), given)},
    "weighted": lambda given: {"sampler": WeightedRandomSampler([1.0] * 60, 60, True, given)},
    "a list": lambda given: {"sampler": list(range(60)), "generator": given},
}
BIT_BY_BIT: dict[str, Any] = {
    "shuffle": lambda given: {"shuffle": True, "generator": given},
    "replacement": lambda given: {"sampler": RandomSampler(range(60), True, 60, given)},
    "two permutations": lambda given: {"sampler": RandomSampler(range(60), False, 61, given)},
    "a sampler": lambda given: {"sampler": Drawn(60)},
}


@pytest.mark.parametrize("kind", [*AT_ONCE, *BIT_BY_BIT])
def test_with_a_generator_the_budget_grows_where_the_first_draw_is_the_whole_order(
    kind: str,
) -> None:
    options = {**AT_ONCE, **BIT_BY_BIT}[kind](torch.Generator())
    most = 24 if kind in AT_ONCE else 0
    spec = spec_of(DataLoader(range(60), num_workers=3, **options))
    assert spec.budget_for("auto") == (6, most)


# --- how many bytes wait -------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["balanced", "round_robin"])
@pytest.mark.parametrize("transport", ["arena", "portable"])
@pytest.mark.parametrize("bound", [0, 1, BYTES, 3 * BYTES, 5 * BYTES + 1])
@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_bytes_wait_than_the_bound_and_a_batch_a_worker(
    workers: int, bound: int, transport: str, schedule: str, gate: Gate
) -> None:
    data = Gated(gate, waiting=range(0))
    options: dict[str, Any] = {"transport": transport, "schedule": schedule}
    iterator = iter(
        loader(data, num_workers=workers, prefetch_budget=30, prefetch_bytes=bound, **options)
    )
    highest = 0
    for step, batch in enumerate(iterator):
        assert int(batch[0]) == int(batch[-1]) == step
        del batch
        highest = max(highest, iterator.stats().waiting_bytes)
    assert step == 59 and iterator.stats().waiting_bytes == 0
    # A message takes a few hundred bytes beside its batch.
    assert highest <= bound + workers * (BYTES + 1000)


def test_nothing_waits_for_room_when_the_head_itself_is_what_is_missing(gate: Gate) -> None:
    data = Gated(gate, waiting=range(1))
    iterator = iter(loader(data, num_workers=2, prefetch_budget=30, prefetch_bytes=2 * BYTES))
    gate.begun(1)
    engine = iterator._driver._engine
    while iterator.stats().waiting_bytes < 2 * BYTES:
        iterator._driver.handle(engine.wait())
    held = iterator.stats()
    assert held.waiting_bytes <= 4 * BYTES and held.under_way <= 2
    gate.open(1)
    assert [int(batch[0]) for batch in iterator] == list(range(60))


@pytest.mark.parametrize(
    "text, count",
    [
        ("0B", 0),
        ("512MiB", 512 * 2**20),
        ("1.5 GB", 1_500_000_000),
        ("2kb", 2000),
        ("1KiB", 1024),
        (" 3 TiB ", 3 * 2**40),
    ],
)
def test_bytes_may_be_given_as_text(text: str, count: int) -> None:
    iterator = iter(loader(range(3), prefetch_bytes=text))
    assert iterator._position.run.schedule.policy.bytes == count
    assert list(iterator) == [0, 1, 2]


# --- stats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_stats_count_every_task_and_end_with_nothing_under_way(workers: int) -> None:
    iterator = iter(loader(range(50), num_workers=workers, persistent_workers=workers > 0))
    for done, _ in enumerate(iterator, 1):
        stats = iterator.stats()
        assert stats.under_way + stats.waiting <= stats.prefetch_budget
        assert sum(worker.tasks for worker in stats.workers) >= done
        if workers:
            assert stats.waited_s >= 0 and all(
                worker.busy_s > 0 or not worker.tasks for worker in stats.workers
            )
    after = iterator.stats()
    assert len(after.workers) == max(workers, 1)
    assert (after.under_way, after.waiting, after.waiting_bytes) == (0, 0, 0)


@pytest.mark.parametrize("transport", ["arena", "portable"])
def test_what_has_come_and_nobody_has_looked_at_waits_and_is_not_under_way(
    transport: str, gate: Gate
) -> None:
    sampler = Drawn(60)
    data = Gated(gate, waiting=range(3, 4))
    options: dict[str, Any] = {"prefetch_budget": 5, "transport": transport}
    iterator = iter(loader(data, sampler=sampler, **options))
    assert gate.begun(1) == [3]
    for _ in range(2):
        stats = iterator.stats()
        assert (stats.waiting, stats.under_way) == (3, 2)
        assert 3 * BYTES <= stats.waiting_bytes <= 3 * (BYTES + 1000)
        assert stats.workers[0].tasks == 3
    assert sampler.drawn == 5, "nothing is drawn because somebody asks for figures"
    iterator.skip(1)
    assert (iterator.stats().waiting, iterator.stats().under_way) == (2, 3)
    gate.open()
    assert [int(batch[0]) for batch in iterator] == list(range(1, 60))


def test_figures_may_be_asked_for_by_another_thread_while_the_consumer_waits(gate: Gate) -> None:
    iterator = iter(loader(Gated(gate), prefetch_budget=2))
    gate.begun(1)
    found: list[Any] = []
    engine = iterator._driver._engine
    wait = engine._lines.wait

    def while_waiting(timeout_s: float | None) -> Any:
        thread = threading.Thread(target=lambda: found.append(iterator.stats()))
        thread.start()
        thread.join()
        gate.open(1)
        return wait(timeout_s)

    engine._lines.wait = while_waiting
    assert int(next(iterator)[0]) == 0
    del engine._lines.wait
    assert [stats.under_way for stats in found] == [2]
    iterator.close()


@pytest.mark.parametrize("schedule", ["balanced", "round_robin"])
def test_a_worker_is_busy_while_it_is_at_a_sample_that_takes_long(
    schedule: str, gate: Gate
) -> None:
    iterator = iter(loader(Gated(gate), num_workers=2, prefetch_budget=2, schedule=schedule))
    gate.begun(2)
    before = iterator.stats().workers
    after = iterator.stats().workers
    for earlier, later in zip(before, after):
        assert later.tasks == 0 and later.busy_s > earlier.busy_s > 0
        assert later.idle_s == pytest.approx(earlier.idle_s, abs=1e-6)
    gate.open()
    assert len(list(iterator)) == 60


def test_a_worker_that_nothing_is_under_way_for_is_idle(gate: Gate) -> None:
    iterator = iter(loader(Gated(gate, waiting=range(0), length=3), prefetch_budget=1))
    assert int(next(iterator)[0]) == 0
    iterator._driver.handle(iterator._driver._engine.wait())
    before = iterator.stats().workers[0]
    after = iterator.stats().workers[0]
    assert after.busy_s == before.busy_s > 0 and after.idle_s > before.idle_s
    iterator.close()


class Counted(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_end_of_a_stream_is_no_batch_and_the_figures_outlive_the_workers(workers: int) -> None:
    iterator = iter(loader(Counted(), num_workers=workers))
    assert iterator.stats().workers[0].tasks < 7
    assert list(iterator) == list(range(7))
    stats = iterator.stats()
    assert [worker.tasks for worker in stats.workers] == [7]
    assert stats.workers[0].busy_s > 0 and stats.waited_s > 0
    assert (stats.under_way, stats.waiting) == (0, 0) and stats.prefetch_budget >= 1
    assert iterator.stats() == stats


def test_stats_name_the_processes_and_what_their_arenas_take(gate: Gate) -> None:
    iterator = iter(loader(Gated(gate, waiting=range(0)), num_workers=1, transport="arena"))
    kept = [next(iterator) for _ in range(20)]
    [worker] = iterator.stats().workers
    assert worker.pid in iterator._driver._engine._pool.pids
    assert worker.tasks >= 20 and worker.arena_bytes >= 20 * BYTES
    assert [int(batch[-1]) for batch in kept] == list(range(20))


def test_an_arena_that_was_asked_for_and_cannot_be_had_is_an_error_that_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("picklable_loader.fetching.engine.engine.packets_work_here", lambda: False)
    with pytest.raises(UsageError, match='transport="auto"'):
        iter(DataLoader(range(4), num_workers=1, transport="arena"))
    assert [int(batch) for batch in DataLoader(range(4), num_workers=1)] == [0, 1, 2, 3]
