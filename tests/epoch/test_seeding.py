"""Seeds: what is random follows from them, and the program's own random numbers are left alone."""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import (
    assert_a_copy_may_be_left_unmoved,
    lists,
    random_states,
    seed_everything,
    seen,
)
from torch.utils.data import (
    Dataset,
    IterableDataset,
    RandomSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler
from zoo.datasets import (
    CountedNoise,
    Epochal,
    N,
    Noisy,
    NoisyInBulk,
    NoisyStream,
    noise,
    noisy_collate,
)
from zoo.samplers import (
    DrawsAsItGoes,
    DrawsAtOnce,
    ShufflesInPlace,
    Told,
    from_numpy,
    from_python,
    from_torch,
)

from picklable_loader import DataLoader, ShuffleBuffer, current_seed
from picklable_loader.errors import LoaderError, LoaderWarning, ReplayWarning

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])

SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: None,
    "random": lambda: RandomSampler(range(N)),
    "replacing": lambda: RandomSampler(range(N), replacement=True),
    "more": lambda: RandomSampler(range(N), num_samples=33),
    "subset": lambda: SubsetRandomSampler([1, 4, 5, 6, 8]),
    "weighted": lambda: WeightedRandomSampler([1.0] * N, N),
    "custom, torch": lambda: DrawsAsItGoes(from_torch),
    "custom, numpy": lambda: DrawsAtOnce(from_numpy),
    "custom, random": lambda: DrawsAsItGoes(from_python),
    "custom, in place": lambda: ShufflesInPlace(),
}


def make(num_workers: int = 0, **more: Any) -> DataLoader[Any]:
    arguments: dict[str, Any] = {"batch_size": 3, "num_workers": num_workers, **more}
    return DataLoader(arguments.pop("dataset", None) or Noisy(), **arguments)


def epochs(loader: DataLoader[Any], count: int) -> list[list[Any]]:
    return [seen(iter(loader)) for _ in range(count)]


def disturb() -> None:
    """Leave all generators in the middle of a pair of Gaussian numbers."""
    seed_everything(17)
    noise()


# --- seed= ---------------------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("seeding", ["batch", "sample", "worker"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_with_a_seed_no_global_generator_is_touched(
    sampler: str, seeding: Any, num_workers: int
) -> None:
    disturb()
    before = random_states()
    loader = make(num_workers, sampler=SAMPLERS[sampler](), seed=3, seeding=seeding)
    assert random_states() == before
    for _ in range(2):
        for _ in loader:
            assert random_states() == before
        loader.state_dict()
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(iterator.state_dict())
    seen(iter(loader))
    iterator.close()
    assert random_states() == before


@pytest.mark.parametrize("seeding", ["batch", "sample"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_with_a_seed_everything_follows_from_seed_and_epoch(sampler: str, seeding: Any) -> None:
    def both(seed: int) -> list[list[Any]]:
        return epochs(make(sampler=SAMPLERS[sampler](), seed=seed, seeding=seeding), 2)

    seed_everything(1)
    expected = both(3)
    seed_everything(2)
    assert both(3) == expected
    assert both(4) != expected
    assert expected[0] != expected[1]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_with_a_seed_an_epoch_is_the_same_whatever_came_before(num_workers: int) -> None:
    """With torch's seeding as well, which goes on from batch to batch within an epoch."""

    def loader() -> DataLoader[Any]:
        return make(seed=3, seeding="worker", shuffle=True, num_workers=num_workers)

    expected = epochs(loader(), 3)
    chosen = loader()
    chosen.set_epoch(2)
    assert epochs(chosen, 1) == expected[2:]
    left = loader()
    next(iter(left))
    assert epochs(left, 1) == expected[1:2]
    for saved in (left, copy.copy(left)):
        other = loader()
        other.load_state_dict(saved.state_dict())
        assert epochs(other, 1) == expected[2:]


def test_seeds_may_be_any_whole_number() -> None:
    streams = [seen(iter(make(shuffle=True, seed=s))) for s in (0, -1, 1, 2**31, 2**64, 10**30)]
    assert all(streams.count(stream) == 1 for stream in streams)
    assert seen(iter(make(shuffle=True, seed=np.int64(1)))) == streams[2]


def test_a_seed_and_a_generator_are_refused_together() -> None:
    with pytest.raises(ValueError, match="mutually exclusive"):
        make(seed=1, generator=torch.Generator())
    loader = make(seed=1)
    with pytest.raises(ValueError, match="mutually exclusive"):
        loader.generator = torch.Generator()
    assert loader.generator is None
    loader.generator = None
    unseeded, own = make(), torch.Generator()
    unseeded.generator = own
    assert unseeded.generator is own


def test_order_and_augmentation_do_not_come_from_the_same_random_numbers() -> None:
    loader = make(shuffle=True, seed=0)
    order = [row[0] for batch in seen(iter(loader)) for row in batch]
    generator = torch.Generator()
    generator.manual_seed(0)
    assert order != torch.randperm(N, generator=generator).tolist()


# --- the program's own random states -------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:seeding=.sample. cannot seed")
@pytest.mark.parametrize("seeding", ["batch", "sample"])
@pytest.mark.parametrize("dataset", [Noisy, NoisyInBulk, NoisyStream])
def test_in_the_main_process_the_programs_states_are_as_before_after_every_batch(
    dataset: Any, seeding: Any
) -> None:
    iterator = iter(make(dataset=dataset(), seeding=seeding))
    for step in range(4):
        disturb()
        for _ in range(step):
            noise()  # half of the times the spare Gaussians are used up
        before = random_states()
        assert next(iterator) is not None
        assert random_states() == before


def test_the_spare_gaussians_are_the_programs_again() -> None:
    disturb()
    expected = np.random.standard_normal(), random.gauss(0, 1)
    iterator = iter(make(dataset=Noisy()))
    disturb()
    next(iterator)
    assert (np.random.standard_normal(), random.gauss(0, 1)) == expected


def test_the_states_are_put_back_after_an_exception_too() -> None:
    class Unlucky(Noisy):
        def __getitem__(self, index: int) -> Any:
            raise ValueError(str(super().__getitem__(index)))

    iterator = iter(make(dataset=Unlucky()))
    disturb()
    before = random_states()
    for _ in range(3):
        with pytest.raises(ValueError):
            next(iterator)
        assert random_states() == before


def test_a_program_may_seed_itself_between_batches() -> None:
    seed_everything(1)
    expected = seen(iter(make(shuffle=True)))
    seed_everything(1)
    iterator = iter(make(shuffle=True))
    found = []
    for step in range(4):
        found.append(next(iterator).tolist())
        seed_everything(step)
    assert found == expected


def test_another_bit_generator_of_the_programs_stays_its_own() -> None:
    other = np.random.PCG64(5)
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(other)
    try:
        expected = dict(other.state["state"])
        assert len(seen(iter(make(shuffle=True)))) == 4
        assert np.random.get_bit_generator() is other
        assert other.state["state"] == expected
    finally:
        np.random.set_bit_generator(before)


@pytest.mark.parametrize("seeding", ["batch", "sample"])
def test_a_loader_inside_of_a_dataset_has_its_own_random_numbers(seeding: Any) -> None:
    class Nested(Noisy):
        def __getitem__(self, index: int) -> Any:
            first = noise()
            inner = seen(iter(make(shuffle=True, seed=index)))
            return torch.tensor([first, noise()]), torch.tensor(inner[0])

    def stream(num_workers: int) -> list[Any]:
        loader = make(num_workers, dataset=Nested(), seed=1, seeding=seeding)
        return [tuple(part.tolist() for part in batch) for batch in loader]

    assert stream(0) == stream(2)
    outer = torch.tensor(stream(0)[0][0])
    assert outer.unique().numel() == outer.numel()


# --- seeding= ------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [1, 2, 5, 10])
@WORKERS
@pytest.mark.parametrize("sampler", ["random", "weighted", "custom, torch"])
def test_by_sample_the_augmentation_is_the_same_under_any_batch_size(
    sampler: str, num_workers: int, other: int
) -> None:
    def samples(size: int) -> list[Any]:
        loader = make(
            num_workers,
            sampler=SAMPLERS[sampler](),
            seed=3,
            seeding="sample",
            batch_size=size,
        )
        return [[row for batch in epoch for row in batch] for epoch in epochs(loader, 2)]

    assert samples(other) == samples(3)


def test_by_sample_it_is_the_same_without_batches_too() -> None:
    def samples(size: int | None) -> list[Any]:
        loader = make(shuffle=True, seed=3, seeding="sample", batch_size=size)
        rows = seen(iter(loader))
        return rows if size is None else [row for batch in rows for row in batch]

    assert samples(None) == samples(4)


class InBulk(Noisy):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


#: torch's wrappers, which fetch whole batches even where the datasets within cannot
WRAPPERS: dict[str, Callable[[], Dataset[Any]]] = {
    "Subset": lambda: Subset(Noisy(), range(N)),
    "random_split": lambda: random_split(Noisy(), [N], torch.Generator())[0],
    "two of them": lambda: Subset(Subset(Noisy(), range(N)), range(N)),
    "StackDataset": lambda: StackDataset(Subset(Noisy(), range(N)), Noisy()),
    "StackDataset of names": lambda: StackDataset(one=Noisy(), other=Noisy()),
    "StackDataset with one in bulk": lambda: StackDataset(InBulk(), Noisy()),
}


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"on_error": "skip"}], ids=str)
@pytest.mark.parametrize("kind", WRAPPERS)
def test_by_sample_a_batchs_size_does_not_matter_within_torchs_wrappers(
    kind: str, options: dict[str, Any]
) -> None:
    def samples(size: int, **options: Any) -> list[str]:
        loader = make(
            dataset=WRAPPERS[kind](), batch_size=size, seed=3, seeding="sample",
            collate_fn=list, **options,
        )  # fmt: skip
        return [str(sample) for batch in loader for sample in batch]

    assert samples(5, **options) == samples(1) != samples(5, shard=(0, 2))


@pytest.mark.parametrize("wrap", [InBulk, lambda: StackDataset(Subset(InBulk(), range(N)))])
def test_by_sample_a_dataset_that_fetches_whole_batches_is_warned_of_once(wrap: Any) -> None:
    loader = make(dataset=wrap(), seed=3, seeding="sample")
    with pytest.warns(LoaderWarning, match="cannot seed each sample within __getitems__ of"):
        seen(iter(loader))
    seen(iter(loader))
    seen(iter(make(dataset=wrap(), seed=3)))
    seen(iter(make(dataset=wrap(), seed=3, seeding="sample", batch_size=None)))


def test_by_sample_a_subclass_of_a_wrapper_fetches_as_it_says() -> None:
    class Negated(StackDataset[Any]):
        def __getitem__(self, index: int) -> Any:
            raise AssertionError("its __getitems__ is StackDataset's")

    with pytest.warns(LoaderWarning, match=r"__getitems__ of .*\.Negated"):
        seen(iter(make(dataset=Negated(Noisy()), seed=3, seeding="sample")))


def test_by_sample_an_index_that_comes_twice_is_augmented_twice() -> None:
    loader = make(sampler=[5, 5, 5], seed=3, seeding="sample")
    (batch,) = seen(iter(loader))
    assert len({tuple(row) for row in batch}) == 3


@pytest.mark.parametrize("seeding", ["batch", "sample"])
def test_batches_have_noise_of_their_own(seeding: Any) -> None:
    loader = make(sampler=[1] * 9, seed=3, seeding=seeding, collate_fn=noisy_collate)
    rows = [tuple(row) for epoch in epochs(loader, 2) for batch in epoch for row in batch]
    assert len(set(rows)) == 18


@WORKERS
@pytest.mark.parametrize("seeding", ["batch", "sample"])
def test_a_collate_fn_draws_what_it_draws_under_any_number_of_workers(
    seeding: Any, num_workers: int
) -> None:
    def stream(workers: int) -> list[list[Any]]:
        loader = make(workers, shuffle=True, seed=3, seeding=seeding, collate_fn=noisy_collate)
        return epochs(loader, 2)

    assert stream(num_workers) == stream(0)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_by_worker_it_is_torchs_scheme(num_workers: int) -> None:
    seed_everything(1)
    theirs = torch.utils.data.DataLoader(Noisy(), 3, shuffle=True, num_workers=num_workers)
    expected = [[batch.tolist() for batch in theirs] for _ in range(2)]
    seed_everything(1)
    ours = make(num_workers, shuffle=True, seeding="worker")
    assert epochs(ours, 2) == expected


# --- current_seed and seed_hooks -----------------------------------------------------------------


class Asking(Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return current_seed()


def ask_again(samples: list[int]) -> tuple[list[int], int]:
    return samples, current_seed()


@WORKERS
def test_current_seed_is_that_of_the_batch(num_workers: int) -> None:
    loader = make(num_workers, dataset=Asking(), seed=1, collate_fn=ask_again, batch_size=2)
    batches = [batch for _ in range(2) for batch in loader]
    assert all(len({*samples, again}) == 1 for samples, again in batches)
    assert len({again for _, again in batches}) == 6
    assert all(0 <= again < 2**62 for _, again in batches)


@WORKERS
def test_current_seed_is_that_of_the_sample(num_workers: int) -> None:
    loader = make(num_workers, dataset=Asking(), seed=1, collate_fn=ask_again, seeding="sample")
    samples = [seed for _ in range(2) for batch, _ in loader for seed in batch]
    assert len(set(samples)) == 12


@WORKERS
@pytest.mark.parametrize("seeding", ["batch", "sample"])
def test_current_seed_does_not_depend_on_workers_and_comes_again_on_resume(
    seeding: Any, num_workers: int
) -> None:
    def loader(workers: int) -> DataLoader[Any]:
        return make(workers, dataset=Asking(), seed=1, seeding=seeding, batch_size=2)

    expected = seen(iter(loader(0)))
    assert seen(iter(loader(num_workers))) == expected
    iterator = iter(loader(num_workers))
    next(iterator)
    other = loader(0)
    other.load_state_dict(iterator.state_dict())
    iterator.close()
    assert seen(iter(other)) == expected[1:]


def test_current_seed_is_torchs_seed_of_the_worker_when_seeding_by_worker() -> None:
    loader = make(2, dataset=Asking(), seeding="worker", seed=1, batch_size=2)
    first, second, third = seen(iter(loader))
    assert set(first) == set(third) == {second[0] - 1}


def test_current_seed_is_unknown_where_no_batch_is_fetched() -> None:
    iterator = iter(make(dataset=Asking()))
    next(iterator)
    with pytest.raises(LoaderError, match="only while a batch is being fetched"):
        current_seed()


class AskingStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        for _ in range(3):
            yield current_seed()


@WORKERS
def test_current_seed_is_known_in_iterable_style_data(num_workers: int) -> None:
    seeds = [int(batch) for batch in make(num_workers, dataset=AskingStream(), batch_size=1)]
    assert len(set(seeds)) == 3 * max(1, num_workers)


own_generator = np.random.default_rng(0)
heard: list[int] = []


def seed_own(seed: int) -> None:
    global own_generator
    own_generator = np.random.default_rng(seed)
    heard.append(seed)


class WithOwnGenerator(Dataset[float]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> float:
        return float(own_generator.normal())


@pytest.mark.parametrize("seeding", ["batch", "sample"])
def test_seed_hooks_seed_generators_that_the_loader_does_not_know_of(seeding: Any) -> None:
    def stream(num_workers: int) -> list[list[Any]]:
        loader = make(
            num_workers,
            dataset=WithOwnGenerator(),
            seed=1,
            seeding=seeding,
            seed_hooks=[seed_own],
            batch_size=2,
        )
        return epochs(loader, 2)

    seed_own(5)
    expected = stream(0)
    seed_own(6)
    assert stream(0) == expected
    assert stream(2) == expected


def test_seed_hooks_are_given_what_current_seed_gives() -> None:
    heard.clear()
    loader = make(dataset=Asking(), seed=1, seed_hooks=[seed_own], batch_size=2)
    assert [seed for batch in seen(iter(loader)) for seed in batch][::2] == heard


# --- set_epoch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [0, 1, 5])
@WORKERS
def test_set_epoch_selects_the_epoch(num_workers: int, epoch: int) -> None:
    expected = epochs(make(shuffle=True, seed=3), 7)
    loader = make(num_workers, shuffle=True, seed=3)
    loader.set_epoch(epoch)
    assert loader.epoch == epoch
    assert epochs(loader, 2) == expected[epoch : epoch + 2]
    loader.set_epoch(epoch)
    assert epochs(loader, 1) == expected[epoch : epoch + 1]


def test_set_epoch_selects_it_for_samplers_of_peoples_own_too() -> None:
    for sampler in ("custom, torch", "custom, numpy", "custom, random"):
        expected = epochs(make(sampler=SAMPLERS[sampler](), seed=3), 4)
        loader = make(sampler=SAMPLERS[sampler](), seed=3)
        loader.set_epoch(2)
        assert epochs(loader, 2) == expected[2:]


def test_set_epoch_reaches_the_sampler() -> None:
    sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
    loader = DataLoader(Epochal(), batch_size=2, sampler=sampler)
    orders = []
    for epoch in (3, 4):
        loader.set_epoch(epoch)
        orders.append([int(i) for batch in DataLoader(range(8), sampler=sampler) for i in batch])
        assert sampler.epoch == epoch
    assert orders[0] != orders[1]


def test_set_epoch_reaches_a_sampler_inside_of_a_batch_sampler() -> None:
    sampler = Told()
    batch_sampler = torch.utils.data.BatchSampler(sampler, 3, False)
    make(batch_size=1, batch_sampler=batch_sampler).set_epoch(4)
    assert sampler.epoch == 4


@pytest.mark.parametrize("kind", [Told, lambda: DistributedSampler(range(N), 1, 0)])
def test_with_a_seed_samplers_that_are_told_epochs_are_told_each_one(kind: Any) -> None:
    loader = make(sampler=kind(), seed=3)
    orders = [[row[0] for batch in epoch for row in batch] for epoch in epochs(loader, 3)]
    for epoch, order in enumerate(orders):
        sampler = kind()
        sampler.set_epoch(epoch)
        assert order == list(sampler)


@pytest.mark.parametrize("kind", [Told, lambda: DistributedSampler(range(N), 1, 0)])
def test_without_a_seed_samplers_are_told_only_what_the_program_tells_them(kind: Any) -> None:
    first, second = epochs(make(sampler=kind()), 2)
    assert [row[0] for batch in first for row in batch] == list(kind())
    assert [row[0] for batch in second for row in batch] == list(kind())


@WORKERS
@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_reaches_the_datasets_copies_in_workers(
    num_workers: int, persistent: bool
) -> None:
    loader = make(
        num_workers,
        dataset=Epochal(),
        batch_size=1,
        persistent_workers=persistent and num_workers > 0,
    )
    told = []
    for epoch in (None, 3, 4, None, 0):
        if epoch is not None:
            loader.set_epoch(epoch)
        told.append({int(sample) // 100 for sample in loader})
    assert told == [{-1}, {3}, {4}, {4}, {0}]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("kind", [Told, lambda: DistributedSampler(range(N), 1, 0)])
def test_a_state_between_set_epoch_and_iter_is_of_that_epoch(kind: Any, seed: Any) -> None:
    loader = make(sampler=kind(), seed=seed)
    loader.set_epoch(2)
    state = loader.state_dict()
    expected = seen(iter(loader))
    other = make(sampler=kind(), seed=seed)
    other.load_state_dict(state)
    found = seen(iter(other))
    assert [[row[0] for row in batch] for batch in found] == [
        [row[0] for row in batch] for batch in expected
    ]


def load(loader: DataLoader[Any], by_iterator: bool, state: dict[str, Any]) -> Any:
    """The object to go on with, after the loader or its iterator has taken a state."""
    if not by_iterator:
        loader.load_state_dict(state)
        return loader
    iterator = iter(loader)
    next(iterator)
    iterator.load_state_dict(state)
    return iterator


@pytest.mark.parametrize("by_iterator", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("epoch", [0, 1, 4])
@pytest.mark.parametrize("dataset, workers", [(Epochal, 0), (Epochal, 1), (Noisy, 0)])
def test_set_epoch_counts_after_a_state_of_a_moment_between_two_epochs(
    dataset: Any, workers: int, epoch: int, again: bool, by_iterator: bool
) -> None:
    """The last call wins, whoever has loaded the state, and whoever is asked for batches then."""
    arguments = {"dataset": dataset(), "shuffle": True, "seed": 3, "num_workers": workers}
    expected = make(**arguments)
    expected.set_epoch(epoch)
    first, second = seen(iter(expected)), seen(iter(expected))
    loader = make(**arguments)
    seen(iter(loader))
    other = make(**arguments)
    loaded = load(other, by_iterator, loader.state_dict())
    other.set_epoch(epoch)
    assert other.epoch == other.state_dict()["epoch"] == epoch
    assert seen(iter(other) if again else iter(loaded)) == first
    assert seen(iter(other)) == second


@pytest.mark.parametrize("by_iterator", [False, True])
def test_set_epoch_of_the_loaded_epoch_goes_on_in_the_middle_of_it(by_iterator: bool) -> None:
    expected = epochs(make(shuffle=True, seed=3), 3)
    loader = make(shuffle=True, seed=3)
    loader.set_epoch(1)
    seen(iter(loader), 2)
    other = make(shuffle=True, seed=3)
    load(other, by_iterator, loader.state_dict())
    other.set_epoch(1)
    assert seen(iter(other)) == expected[1][2:]
    assert seen(iter(other)) == expected[2]


@pytest.mark.parametrize("workers", [0, 1])
def test_set_epoch_before_the_first_batch_of_a_copy_is_for_the_next_epoch(workers: int) -> None:
    """As it is for the original, whose epoch is under way."""
    found = []
    for copied in (False, True):
        loader = make(workers, dataset=Epochal(), batch_size=1)
        loader.set_epoch(2)
        iterator = iter(loader)
        next(iterator)
        if copied:
            iterator.close()
            iterator = pickle.loads(pickle.dumps(iterator))
            loader = iterator.loader
        loader.set_epoch(5)
        list(iterator)
        found.append([iter(loader).epoch, [int(sample) for sample in loader]])
    assert found[0] == found[1]


def test_set_epoch_of_another_epoch_drops_the_loaded_state_and_warns() -> None:
    loader = make(shuffle=True, seed=3)
    seen(iter(loader), 2)
    state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="drops the loaded state of epoch 0"):
        loader.set_epoch(2)
    assert seen(iter(loader)) == epochs(make(shuffle=True, seed=3), 3)[2]


def test_a_negative_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="epoch"):
        make().set_epoch(-1)


class TorchsNoise(torch.utils.data.Dataset[float]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> float:
        return round(torch.rand(()).item() + random.random() + np.random.rand(), 6)


def begins_with_a_draw(worker_id: int) -> None:
    torch.rand(worker_id + 1)


def assert_each_save_goes_on(
    make: Callable[[], Any], steps: list[tuple[int, ...]], by_state: bool = True
) -> list[list[Any]]:
    """Saves at these steps of each epoch go on with its rest and the next one, in any program.

    Returns:
        The epochs, of which there is one more.
    """
    whole = make()
    epochs = [lists(whole) for _ in range(len(steps) + 1)]
    loader = make()
    for epoch, at in enumerate(steps):
        iterator = iter(loader)
        for step in (*at, None):  # None: after StopIteration
            while iterator.step < step if step is not None else not iterator.finished:
                next(iterator, None)
            rest = [] if step is None else epochs[epoch][step:]
            again = pickle.loads(pickle.dumps(iterator))
            assert (lists(again), lists(again.loader)) == (rest, epochs[epoch + 1]), (epoch, step)
            if by_state:
                other = make()
                other.load_state_dict(iterator.state_dict())
                passes = [rest, epochs[epoch + 1]][step is None :]
                assert [lists(other) for _ in passes] == passes, (epoch, step)
    return epochs


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
@pytest.mark.parametrize("init", [None, begins_with_a_draw])
@pytest.mark.parametrize("num_workers", [1, 2, 6])
def test_workers_that_live_on_have_their_random_numbers_in_every_state(
    num_workers: int, init: Any
) -> None:
    """Also those that have delivered nothing in this epoch, or in any."""
    options: dict[str, Any] = {"num_workers": num_workers, "worker_init_fn": init}

    def make() -> Any:
        torch.manual_seed(0)
        return DataLoader(TorchsNoise(), None, persistent_workers=True, seeding="worker", **options)

    assert_each_save_goes_on(make, [(0, 1), (4, 5), (0, 4)])


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("taken", [1, 4])
@pytest.mark.parametrize("lives", [True, False], ids=["iterator", "loader alone"])
def test_workers_that_live_on_hand_their_random_numbers_on_from_a_pass_that_is_left_unmoved(
    num_workers: int, taken: int, lives: bool
) -> None:
    """A loop of so many steps an epoch, saved after the last of them, begins the next at once."""
    options: dict[str, Any] = {"num_workers": num_workers, "schedule": "round_robin"}
    loader = DataLoader(TorchsNoise(), None, persistent_workers=True, seeding="worker", **options)
    assert_a_copy_may_be_left_unmoved(loader, taken, lives)


def test_a_state_may_be_loaded_into_the_living_workers_that_it_was_taken_from() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    loader = DataLoader(TorchsNoise(), None, seeding="worker", **options)
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    loader.load_state_dict(state)
    assert list(loader) == rest


def test_a_pass_that_was_left_has_moved_the_workers_random_numbers() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    loader = DataLoader(TorchsNoise(), None, seeding="worker", **options)
    next(iter(loader))
    iterator = iter(loader)
    data = pickle.dumps(iterator)
    assert list(iterator) == list(pickle.loads(data))


class Draws(torch.utils.data.IterableDataset[float]):
    """Draws from torch's global generator while it is read."""

    def __iter__(self) -> Iterator[float]:
        for _ in range(5):
            yield round(torch.rand(()).item() + random.random() + np.random.rand(), 6)


class DrawsWhenOpened(Draws):
    """And once before that; it gives a generator."""

    def __iter__(self) -> Iterator[float]:
        first = torch.rand(()).item()
        return (round(first + each, 6) for each in super(DrawsWhenOpened, self).__iter__())


class DrawsAhead(Draws):
    """And all before that, and more beside; its iterator can be pickled."""

    def __iter__(self) -> Iterator[float]:
        return Drawn(list(super().__iter__()))


class Drawn(Iterator[float]):
    def __init__(self, samples: list[float]) -> None:
        self.samples = samples

    def __next__(self) -> float:
        if not self.samples:
            raise StopIteration
        return round(self.samples.pop(0) + random.random(), 6)


class SeededByTheWorker(Draws):
    """A generator of its own, from the seed of torch's worker information."""

    def __iter__(self) -> Iterator[float]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        rng = np.random.default_rng(info.seed)
        yield from (round(rng.random(), 6) for _ in range(5))


class SeededAtTheStart(SeededByTheWorker):
    """``worker_init_fn`` gives it its generator."""

    rng: Any = None

    def __iter__(self) -> Iterator[float]:
        yield from (round(self.rng.random(), 6) for _ in range(5))


def gives_a_generator(worker_id: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.rng = np.random.default_rng(torch.initial_seed())


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
@pytest.mark.parametrize(
    "dataset, seeding, seed",
    [
        (Draws, "worker", None),
        (DrawsWhenOpened, "worker", 1),
        (DrawsAhead, "worker", None),
        (SeededByTheWorker, "batch", None),
        (SeededByTheWorker, "batch", 1),
        (SeededAtTheStart, "batch", None),
    ],
)
def test_streams_of_workers_that_live_on_have_their_random_numbers_in_every_state(
    dataset: Any, seeding: Any, seed: int | None
) -> None:
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "seeding": seeding}
    by_pickle_only = dataset is SeededAtTheStart  # its generator is an attribute, which moves

    def make() -> Any:
        torch.manual_seed(0)
        init = gives_a_generator if by_pickle_only else None
        return DataLoader(dataset(), 2, seed=seed, worker_init_fn=init, **options)

    epochs = assert_each_save_goes_on(make, [(0, 1, 5), (1, 5), (0, 1)], not by_pickle_only)
    assert len({str(epoch) for epoch in epochs}) == (1 if dataset is SeededByTheWorker else 4)


def draws_of_the_program() -> None:
    torch.rand(3)


def look(loader: DataLoader[Any]) -> None:
    next(iter(loader))


@pytest.mark.parametrize(
    "between, seed, warns",
    [(None, None, True), (draws_of_the_program, 3, False), (look, 3, True), (None, 3, False)],
)
def test_a_replay_of_numbers_from_generators_that_others_draw_from_is_warned_of(
    between: Callable[..., None] | None, seed: int | None, warns: bool
) -> None:
    """It is no replay of what was read ahead of its batch, between draws of others."""
    loader = DataLoader(
        ShuffleBuffer(NoisyStream(), size=5), batch_size=2, seeding="worker", seed=seed
    )
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
        if between is not None:
            between(*([loader] if between is look else []))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = iterator.state_dict()
    assert warns == any("other passes of the loader draw" in str(each.message) for each in caught)
    if not warns:
        rest = lists(iterator)
        resumed = DataLoader(
            ShuffleBuffer(NoisyStream(), size=5), batch_size=2, seeding="worker", seed=seed
        )
        resumed.load_state_dict(state)
        with pytest.warns(ReplayWarning):
            assert lists(resumed) == rest


@pytest.mark.parametrize("generator", [False, True])
def test_in_this_process_torchs_seeding_saves_what_the_first_epoch_draws_from(
    generator: bool,
) -> None:
    """A state from before the first `iter` had none of Python's and numpy's generators."""

    def made(seed: int) -> DataLoader[Any]:
        seed_everything(seed)
        own = torch.Generator().manual_seed(3) if generator else None
        return DataLoader(Noisy(N), 3, shuffle=True, seeding="worker", generator=own)

    loader = made(1)
    state = loader.state_dict()
    whole = [lists(loader), lists(loader)]
    loader = made(2)
    loader.load_state_dict(state)
    assert [lists(loader), lists(loader)] == whole


@pytest.mark.parametrize("by_loader", [False, True])
def test_a_pickle_of_a_pickle_has_what_persistent_workers_draw_from(by_loader: bool) -> None:
    """The loader of an unpickled iterator left it to that iterator alone."""
    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    loader = DataLoader(Noisy(N), 3, shuffle=True, seed=5, seeding="worker", **workers)
    iterator = iter(loader)
    list(iterator)
    again = pickle.loads(pickle.dumps(iterator))
    again = pickle.loads(pickle.dumps(again.loader)) if by_loader else again.loader
    assert lists(again) == lists(loader)


# --- streams that are replayed, by seeding="worker" ----------------------------------------------


class OrderedAtFirst(IterableDataset[int]):
    """A generator that shuffles before its first sample, and draws for each one as well."""

    def __iter__(self) -> Iterator[float]:
        for index in random.sample(range(8), 8):
            yield index + torch.rand(()).item() + np.random.rand()


class OrderedByIter(IterableDataset[int]):
    """Its order is drawn by ``iter``, before anybody asks for a sample."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(8), 8))


class Deck:
    def __init__(self) -> None:
        self.left = random.sample(range(8), 8)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop()


class OrderedByIterator(IterableDataset[int]):
    """Pickle takes its iterator, and a state begins it anew."""

    def __iter__(self) -> Iterator[int]:
        return Deck()


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("step", [0, 1, 2, 4])
@pytest.mark.parametrize("program_draws", [False, True])
@pytest.mark.parametrize("dataset", [OrderedAtFirst, OrderedByIter, OrderedByIterator])
def test_a_replay_draws_from_where_the_epoch_began(
    dataset: Any, program_draws: bool, step: int, epoch: int, num_workers: int, seed: Any
) -> None:
    def make() -> Any:
        options: dict[str, Any] = {"persistent_workers": num_workers > 0}
        return DataLoader(
            dataset(), 2, num_workers=num_workers, seeding="worker", seed=seed, **options
        )

    loader = make()
    for _ in range(epoch):
        list(loader)
    iterator = iter(loader)
    for _ in range(step):
        next(iterator)
        if program_draws:
            random.random(), torch.rand(1), np.random.rand()
    pickled, state = pickle.dumps(iterator), iterator.state_dict()
    second = make()
    second.load_state_dict(state)  # and what is saved of one that has not moved
    state_of_a_state = pickle.loads(pickle.dumps(second)).state_dict()
    expected = lists(iterator), lists(loader)
    for saved in (state, state_of_a_state):
        seed_everything(9)
        other = make()
        other.load_state_dict(saved)
        assert (lists(other), lists(other)) == expected
    again = pickle.loads(pickled)
    assert (lists(again), lists(again.loader)) == expected


@pytest.mark.parametrize("seed", [None, 1])
def test_a_replay_that_other_draws_may_have_changed_says_so(seed: Any) -> None:
    iterator = iter(DataLoader(OrderedAtFirst(), 2, seeding="worker", seed=seed))
    next(iterator), next(iterator)
    with pytest.warns(ReplayWarning) as given:
        next(pickle.loads(pickle.dumps(iterator)))
    assert ("ahead of its batches" in str(given[0].message)) is (seed is None)


class DrawsForItsConvert(IterableDataset[torch.Tensor]):
    """Its samples, and what becomes of their batches, are drawn from its own generator."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)

    def __iter__(self) -> Iterator[Any]:
        for index in range(12):
            yield index + torch.tensor(self.rng.random())

    def convert(self, batch: torch.Tensor) -> torch.Tensor:
        return batch + 100 * int(self.rng.integers(9))


def noisy_convert(batch: Any) -> Any:
    return [batch, torch.rand(())]


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("seeding", ["batch", "worker"])
@pytest.mark.parametrize("kind", [NoisyStream, CountedNoise, DrawsForItsConvert])
@pytest.mark.parametrize("every", [1, 4])
def test_a_replay_draws_what_convert_has_drawn(
    every: int, kind: Any, seeding: Any, num_workers: int
) -> None:
    def make() -> DataLoader[Any]:
        dataset = kind()
        options: Any = {"num_workers": num_workers, "snapshot_every_n_steps": every}
        convert = getattr(dataset, "convert", noisy_convert)
        return DataLoader(dataset, 3, seed=1, seeding=seeding, convert=convert, **options)

    for step in (1, 2, 3):
        seen(iterator := iter(make()), step)
        state, pickled, rest = iterator.state_dict(), pickle.dumps(iterator), seen(iterator)
        assert seen(pickle.loads(pickled)) == rest
        loader = make()
        loader.load_state_dict(state)
        assert seen(iter(loader)) == rest
