"""What odd programs do: threads, nested loaders, samplers told from outside, numpy everywhere."""

from __future__ import annotations

import io
import json
import pickle
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import expected_warnings, seed_everything, seen
from torch.utils.data import (
    Dataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler
from zoo.datasets import Epochal, N, Noisy
from zoo.odd_samplers import GoesRound, InArrays, ShufflesSamplers
from zoo.samplers import Told

from picklable_loader import DataLoader, current_seed, register_order
from picklable_loader.errors import CannotSaveError, StateMismatch, UsageError
from picklable_loader.fetching.transport.arena import ArenaFull

# --- samplers that the program tells something ---------------------------------------------------


@pytest.mark.parametrize("kind", [Told, lambda: DistributedSampler(range(N), 1, 0)])
def test_what_a_sampler_is_told_after_loading_counts(kind: Any) -> None:
    """The loop of every distributed training: load, and then set_epoch on the sampler."""

    def run(start: int, state: dict[str, Any] | None) -> Iterator[Any]:
        sampler = kind()
        loader = DataLoader(Noisy(), 3, sampler=sampler)
        if state is not None:
            loader.load_state_dict(state)
        for epoch in range(start, 3):
            sampler.set_epoch(epoch)
            yield [row[0] for batch in seen(iter(loader)) for row in batch], loader.state_dict()

    whole = list(run(0, None))
    rest = list(run(1, whole[0][1]))
    assert [order for order, _ in rest] == [order for order, _ in whole[1:]]


def test_a_sampler_of_which_no_one_knows_the_place_is_not_saved_wrongly() -> None:
    iterator = iter(DataLoader(Noisy(), 3, sampler=GoesRound()))
    next(iterator)
    for save in (pickle.dumps, lambda it: it.state_dict()):
        with pytest.raises(CannotSaveError, match="cycle is an iterator"):
            save(iterator)


def test_objects_that_change_their_places_are_not_saved_wrongly() -> None:
    iterator = iter(DataLoader(Noisy(), 3, sampler=ShufflesSamplers()))
    next(iterator)
    with pytest.raises(CannotSaveError, match="samplers holds objects"):
        iterator.state_dict()


def test_an_iterator_as_sampler_cannot_be_saved() -> None:
    iterator = iter(DataLoader(Noisy(), 3, sampler=(i for i in range(N))))
    next(iterator)
    with pytest.raises(CannotSaveError, match="begin again"):
        iterator.state_dict()


def test_a_samplers_tensor_stays_the_users_unless_it_has_changed() -> None:
    class Weighted(Sampler[int]):
        def __init__(self, weights: torch.Tensor) -> None:
            self.weights = weights

        def __iter__(self) -> Iterator[int]:
            yield from torch.multinomial(self.weights, 4).tolist()

    weights = torch.ones(N)
    sampler = Weighted(weights)
    loader = DataLoader(Noisy(), 2, sampler=sampler)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    seen(iter(loader))
    assert sampler.weights is weights


class Lambdas:
    """A batch sampler of which some batches, in a list of steps, are of what cannot be pickled."""

    def __init__(self, steps: Any) -> None:
        self.steps = steps

    def __iter__(self) -> Iterator[list[Any]]:
        for step in range(8):
            yield [lambda: step] if step in self.steps else [step]


@pytest.mark.parametrize("schedule", ["balanced", "round_robin"])
@pytest.mark.parametrize("transport", ["arena", "portable"])
def test_indices_that_cannot_be_pickled_fail_their_own_step_and_no_other(
    transport: Any, schedule: Any
) -> None:
    options: dict[str, Any] = {"transport": transport, "schedule": schedule}
    # The first that each worker would be given, and two in a row.
    loader = DataLoader(range(8), batch_sampler=Lambdas({0, 4, 5}), num_workers=2, **options)
    iterator, found = iter(loader), []
    for step in range(8):
        try:
            found.append(int(next(iterator)))
        except UsageError as error:
            assert f"sampler gave for step {step} cannot be sent to a worker" in str(error)
            assert "num_workers=0" in str(error)
            found.append(None)
    assert found == [None, 1, 2, 3, None, None, 6, 7]
    assert next(iterator, None) is None


def test_indices_for_which_there_is_no_memory_fail_their_step_and_name_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any) -> None:
        raise ArenaFull("no memory for 90000 bytes more")

    batches = [list(range(3)), list(range(30_000)), list(range(4))]
    loader = DataLoader(range(30_000), batch_sampler=batches, num_workers=1, transport="arena")
    monkeypatch.setattr("picklable_loader.fetching.transport.arena.Arena.give", full)
    iterator = iter(loader)
    monkeypatch.undo()
    assert len(next(iterator)) == 3
    with pytest.raises(UsageError, match='step 1 .*no memory.*transport="portable"'):
        next(iterator)
    assert len(next(iterator)) == 4
    assert next(iterator, None) is None


# --- numpy's numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_numpys_indices_are_plain_in_a_state_and_come_back_as_they_were(num_workers: int) -> None:
    class Kinds(Dataset[str]):
        def __len__(self) -> int:
            return N

        def __getitem__(self, index: Any) -> str:
            return f"{type(index).__name__} {index}"

    def make() -> DataLoader[Any]:
        seed_everything(1)
        return DataLoader(Kinds(), 2, sampler=InArrays(), num_workers=num_workers, collate_fn=list)

    expected = list(make())
    iterator = iter(make())
    found = [next(iterator)]
    state = iterator.state_dict()
    iterator.close()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    for saved in (loaded, json.loads(json.dumps(state))):
        loader = make()
        loader.load_state_dict(saved)
        assert found + list(loader) == expected
    assert expected[0][0].startswith("int64 ")


def test_epochs_and_seeds_may_be_numpys_numbers() -> None:
    loader = DataLoader(Noisy(), 3, shuffle=True, seed=np.int64(3))  # type: ignore[arg-type]
    loader.set_epoch(np.int64(2))  # type: ignore[arg-type]
    state = json.loads(json.dumps(loader.state_dict()))
    other = DataLoader(Noisy(), 3, shuffle=True, seed=3)
    other.load_state_dict(state)
    assert seen(iter(other)) == seen(iter(loader))


# --- states of other samplers --------------------------------------------------------------------

OTHERS = {
    "num_samples": [lambda: RandomSampler(range(N), True, 40), lambda: RandomSampler(range(N))],
    "subset": [lambda: SubsetRandomSampler(range(9)), lambda: SubsetRandomSampler(range(3))],
    "weighted": [
        lambda: WeightedRandomSampler([1.0] * N, 30),
        lambda: WeightedRandomSampler([1.0] * N, 4),
    ],
    "range": [lambda: range(9), lambda: range(0, 9, 4)],
    "list": [lambda: [1, 2, 3, 4, 5, 6, 7], lambda: [1, 2, 3]],
}


@pytest.mark.parametrize("saved, other", OTHERS.values(), ids=OTHERS)
def test_a_sampler_of_another_length_does_not_fit(saved: Any, other: Any) -> None:
    iterator = iter(DataLoader(Noisy(), 2, sampler=saved()))
    next(iterator)
    with pytest.raises(StateMismatch, match="sampler_length"):
        DataLoader(Noisy(), 2, sampler=other()).load_state_dict(iterator.state_dict())


def test_data_in_sequence_may_have_grown_where_that_is_said() -> None:
    iterator = iter(DataLoader(Noisy(6), 2))
    first = seen(iterator, 2)
    loader = DataLoader(Noisy(9), 2)
    with pytest.raises(StateMismatch, match="dataset_length"):
        loader.load_state_dict(iterator.state_dict())
    loader.load_state_dict(iterator.state_dict(), strict=False)
    rest = seen(iter(loader))
    assert [row[0] for batch in first + rest for row in batch] == list(range(9))


def test_a_subclass_with_a_length_of_its_own_delivers_what_torchs_loader_delivers() -> None:
    class Short(RandomSampler):
        def __len__(self) -> int:
            return 3

    from torch.utils.data import DataLoader as TorchDataLoader

    seed_everything(1)
    expected = [batch.tolist() for batch in TorchDataLoader(range(N), 4, sampler=Short(range(N)))]
    seed_everything(1)
    found = [batch.tolist() for batch in DataLoader(range(N), 4, sampler=Short(range(N)))]
    assert found == expected and len(found) == 3


class ShufflesItself(list[int]):
    """A list that nobody may look through but its loader: that draws, and shuffles it."""

    def __init__(self) -> None:
        super().__init__(range(N))

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self)
        return iter(self[:])


@pytest.mark.parametrize("shuffles", [False, True])
def test_a_list_with_an_iter_of_its_own_is_looked_through_by_nobody_else(shuffles: bool) -> None:
    from torch.utils.data import DataLoader as TorchDataLoader

    orders = []
    for kind in (TorchDataLoader, DataLoader):
        seed_everything(1)
        loader = kind(range(N), 4, sampler=ShufflesItself() if shuffles else list(range(N)))
        orders.append([[batch.tolist() for batch in loader] for _ in range(3)])
    assert orders[1] == orders[0]

    def make() -> DataLoader[Any]:
        return DataLoader(range(N), 4, sampler=ShufflesItself() if shuffles else list(range(N)))

    seed_everything(1)
    iterator = iter(loader := make())
    found, state = seen(iterator, 1), iterator.state_dict()
    assert found + seen(iterator) == orders[0][0]
    assert seen(iter(loader)) == orders[0][1]
    loader = make()
    loader.load_state_dict(state)
    assert found + seen(iter(loader)) == orders[0][0]
    assert seen(iter(loader)) == orders[0][1]


# --- threads and nesting -------------------------------------------------------------------------


class Seeded(Dataset[int]):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        return current_seed()


def test_each_thread_has_its_own_current_seed() -> None:
    found: dict[int, Any] = {}

    def iterate(seed: int) -> None:
        found[seed] = [batch.tolist() for batch in DataLoader(Seeded(), 2, seed=seed)]

    threads = [threading.Thread(target=iterate, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(3):
        expected = [batch.tolist() for batch in DataLoader(Seeded(), 2, seed=seed)]
        assert found[seed] == expected


class Nested(Dataset[Any]):
    """Each sample is an epoch of a loader of its own."""

    def __init__(self) -> None:
        self.inner = DataLoader(Noisy(4), 2, shuffle=True)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.cat(list(self.inner))


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_loader_inside_of_a_dataset_is_exact(num_workers: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Nested(), 2, seed=4, num_workers=num_workers)

    expected = epochs_of(DataLoader(Nested(), 2, seed=4))
    assert epochs_of(make()) == expected
    iterator = iter(make())
    first = seen(iterator, 1)
    other = make()
    other.load_state_dict(iterator.state_dict())
    assert [first + seen(iter(other)), *epochs_of(other, 1)] == expected
    assert first + seen(pickle.loads(pickle.dumps(iterator))) == expected[0]
    iterator.close()


def epochs_of(loader: DataLoader[Any], count: int = 2) -> list[Any]:
    return [seen(iter(loader)) for _ in range(count)]


class Preempted(Noisy):
    """While it reads a sample, a signal comes."""

    def __init__(self) -> None:
        super().__init__()
        self.signal: int | None = signal.SIGUSR1

    def __getitem__(self, index: int) -> Any:
        if index == 5 and self.signal is not None:
            number, self.signal = self.signal, None
            signal.raise_signal(number)
        return super().__getitem__(index)


class Enough(BaseException):
    pass


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, Enough])
def test_a_handler_that_leaves_the_program_within_the_dataset_loses_no_batch(
    error: type[BaseException],
) -> None:
    """``sys.exit`` did: its batch counted as delivered, as after an Exception of the dataset."""

    def handler(*_: Any) -> None:
        raise error

    whole = seen(iter(DataLoader(Noisy(), 2, seed=1)))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        iterator = iter(DataLoader(Preempted(), 2, seed=1))
        found = seen(iterator, 2)
        with pytest.raises(error):
            next(iterator)
    finally:
        signal.signal(signal.SIGUSR1, before)
    again = DataLoader(Noisy(), 2, seed=1)
    again.load_state_dict(iterator.state_dict())
    assert found + seen(iter(again)) == whole
    assert found + seen(iterator) == whole


def test_two_iterators_and_their_loader_survive_one_pickle() -> None:
    def make() -> tuple[Any, Any, DataLoader[Any]]:
        given = torch.Generator()
        given.manual_seed(3)
        loader = DataLoader(Noisy(), 3, shuffle=True, generator=given)
        first, second = iter(loader), iter(loader)
        next(first)
        next(second)
        return first, second, loader

    def rest(first: Any, second: Any, loader: DataLoader[Any]) -> list[Any]:
        return [seen(first), seen(second), seen(iter(loader))]

    assert rest(*pickle.loads(pickle.dumps(make()))) == rest(*make())


# --- the rest ------------------------------------------------------------------------------------


def test_batch_at_of_another_epoch_asks_the_dataset_as_it_was_then() -> None:
    loader = DataLoader(Epochal(), 3, shuffle=True, seed=2)
    expected = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        expected.append(seen(iter(loader)))
    assert [loader.batch_at(1, epoch).tolist() for epoch in range(3)] == [e[1] for e in expected]
    assert loader.dataset.epoch == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("epoch, error", [(-1, ValueError), (1.5, TypeError), ("a", TypeError)])
def test_batch_at_refuses_what_is_no_epoch(epoch: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="epoch"):
        DataLoader(Noisy(), 3, seed=1).batch_at(0, epoch)


def test_a_factory_has_to_be_callable() -> None:
    with pytest.raises(TypeError, match="factory"):
        register_order(Told, None)  # type: ignore[arg-type]


def test_every_argument_is_an_attribute() -> None:
    loader = DataLoader(Noisy(), seed=3, seeding="sample", at_epoch_end="next", seed_hooks=[print])
    found = (loader.seed, loader.seeding, loader.at_epoch_end, loader.seed_hooks, loader.schedule)
    assert found == (3, "sample", "next", [print], None)


def test_set_epoch_after_a_break_begins_that_epoch_in_the_state_too() -> None:
    loader = DataLoader(Noisy(), 3, shuffle=True, seed=1)
    for _ in loader:
        break
    assert (loader.epoch, loader.state_dict()["step"]) == (0, 1)
    loader.set_epoch(7)
    assert (loader.epoch, loader.state_dict()["step"]) == (7, 0)
    other = DataLoader(Noisy(), 3, shuffle=True, seed=1)
    other.load_state_dict(loader.state_dict())
    with expected_warnings():
        assert seen(iter(other)) == seen(iter(loader))


@pytest.mark.parametrize("persistent", [False, True])
def test_next_at_an_epochs_end_is_the_epoch_of_an_uninterrupted_run(persistent: bool) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Noisy(), 3, shuffle=True, num_workers=1, persistent_workers=persistent)

    seed_everything(1)
    expected = epochs_of(make(), 3)
    seed_everything(1)
    iterator = iter(make())
    seen(iterator, 4)
    state = iterator.state_dict()
    iterator.close()
    seed_everything(9)
    loader = make()
    loader.load_state_dict(state, at_epoch_end="next")
    assert epochs_of(loader) == expected[1:]


NAMES = (
    "source run job driver resume options iterable announced next_epoch newest pinned group kept"
)


class Subclass(DataLoader[Any]):
    """Has attributes of every name that might be in the way."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for name in NAMES.split():
            setattr(self, f"_{name}", f"my {name}")
        self.epoch = -5
        self.start_method = "mine"


def test_attributes_of_a_subclass_stay_what_they_are() -> None:
    def make() -> Subclass:
        return Subclass(Noisy(), 3, shuffle=True, seed=3)

    expected = epochs_of(make())
    iterator = iter(make())
    first = seen(iterator, 2)
    again = pickle.loads(pickle.dumps(iterator))
    assert first + seen(again) == expected[0]
    assert epochs_of(again.loader, 1) == expected[1:]
    other = make()
    other.load_state_dict(iterator.state_dict())
    assert first + seen(iter(other)) == expected[0]
    for loader in (other, again.loader):
        assert [getattr(loader, f"_{name}") for name in NAMES.split()] == [
            f"my {name}" for name in NAMES.split()
        ]
        assert (loader.epoch, loader.start_method) == (-5, "mine")


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_that_call_next_are_given_each_batch_once(workers: int) -> None:
    iterator = iter(DataLoader(Noisy(), 1, seed=1, num_workers=workers))
    expected = [batch.tolist() for batch in DataLoader(Noisy(), 1, seed=1)]
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.extend(batch.tolist() for batch in iterator))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(expected)
