"""The order of indices, and where every random number generator stands after each step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler
from zoo.datasets import Numbers

from .datasets import (
    DrawsAsItGoes,
    DrawsAtOnce,
    Endless,
    Grouped,
    Turning,
    draws,
)
from .sides import (
    AS_TORCH,
    OURS,
    Loader,
    Make,
    assert_parity,
    rng_states,
    seed_everything,
    trace,
)

N = 11
DATA = Numbers(N)
WEIGHTS = [0.1 * (i + 1) for i in range(N)]
Build = Callable[[torch.Generator | None], dict[str, Any]]


class ReversedRandomSampler(RandomSampler):
    """A torch sampler by descent, with an order of its own."""

    def __iter__(self) -> Iterator[int]:
        return iter([*super().__iter__()][::-1])


class DoubledSequentialSampler(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        for index in super().__iter__():
            yield index
            yield index


class PairingBatchSampler(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        for batch in super().__iter__():
            yield [*batch, *batch]


class SkippingDistributedSampler(DistributedSampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([*super().__iter__()][1:])


SEEDABLE: dict[str, Build] = {
    "random": lambda g: {"sampler": RandomSampler(DATA, generator=g)},
    "random, fewer": lambda g: {"sampler": RandomSampler(DATA, num_samples=5, generator=g)},
    "random, as many": lambda g: {"sampler": RandomSampler(DATA, num_samples=N, generator=g)},
    "random, more": lambda g: {"sampler": RandomSampler(DATA, num_samples=3 * N + 4, generator=g)},
    "replacing": lambda g: {"sampler": RandomSampler(DATA, True, generator=g)},
    "replacing, fewer": lambda g: {"sampler": RandomSampler(DATA, True, 5, generator=g)},
    "replacing, 32": lambda g: {"sampler": RandomSampler(DATA, True, 32, generator=g)},
    "replacing, more": lambda g: {"sampler": RandomSampler(DATA, True, 70, generator=g)},
    "other source": lambda g: {"sampler": RandomSampler(range(6), generator=g)},
    "subset": lambda g: {"sampler": SubsetRandomSampler([3, 1, 4, 1, 5, 9, 2], generator=g)},
    "subset, array": lambda g: {
        "sampler": SubsetRandomSampler(torch.tensor([3, 1, 4]), generator=g)
    },
    "weighted": lambda g: {"sampler": WeightedRandomSampler(WEIGHTS, N, generator=g)},
    "weighted, more": lambda g: {"sampler": WeightedRandomSampler(WEIGHTS, 40, generator=g)},
    "weighted, once each": lambda g: {
        "sampler": WeightedRandomSampler(WEIGHTS, 7, replacement=False, generator=g)
    },
    "batches": lambda g: {
        "batch_sampler": BatchSampler(RandomSampler(DATA, generator=g), 4, False)
    },
    "whole batches": lambda g: {
        "batch_sampler": BatchSampler(RandomSampler(DATA, generator=g), 4, True)
    },
    "batches of weighted": lambda g: {
        "batch_sampler": BatchSampler(WeightedRandomSampler(WEIGHTS, N, generator=g), 4, True)
    },
    "batches as samples": lambda g: {
        "batch_size": None,
        "sampler": BatchSampler(RandomSampler(DATA, generator=g), 4, False),
    },
    "no batches": lambda g: {
        "batch_size": None,
        "sampler": RandomSampler(DATA, generator=g),
    },
    "subclass of random": lambda g: {"sampler": ReversedRandomSampler(DATA, generator=g)},
    "subclass of batch": lambda g: {
        "batch_sampler": PairingBatchSampler(RandomSampler(DATA, generator=g), 4, False)
    },
}

PLAIN: dict[str, Build] = {
    "default": lambda g: {},
    "shuffle": lambda g: {"shuffle": True},
    "shuffle, whole batches": lambda g: {"shuffle": True, "drop_last": True},
    "shuffle, no batches": lambda g: {"shuffle": True, "batch_size": None},
    "one by one": lambda g: {"batch_size": 1},
    "one big batch": lambda g: {"batch_size": 100, "shuffle": True},
    "no batch at all": lambda g: {
        "batch_size": 100,
        "drop_last": True,
        "shuffle": True,
    },
    "sequential": lambda g: {"sampler": SequentialSampler(DATA)},
    "subclass of sequential": lambda g: {"sampler": DoubledSequentialSampler(DATA)},
    "draws torch": lambda g: {"sampler": DrawsAsItGoes(N, "torch")},
    "draws numpy": lambda g: {"sampler": DrawsAsItGoes(N, "numpy")},
    "draws python": lambda g: {"sampler": DrawsAsItGoes(N, "python")},
    "draws at once": lambda g: {"sampler": DrawsAtOnce(N, "torch")},
    "draws at once, no batches": lambda g: {
        "sampler": DrawsAtOnce(N, "torch"),
        "batch_size": None,
    },
    "changes itself": lambda g: {"sampler": Turning(N)},
    "batches of custom": lambda g: {
        "batch_sampler": BatchSampler(DrawsAsItGoes(N, "torch"), 4, False)
    },
    "whole batches of custom": lambda g: {
        "batch_sampler": BatchSampler(DrawsAsItGoes(N, "numpy"), 4, True)
    },
    "batches of range": lambda g: {"batch_sampler": BatchSampler(range(N), 4, False)},
    "custom batches": lambda g: {"batch_sampler": Grouped(N)},
}


def cases(plain: tuple[str, ...], seedable: tuple[str, ...]) -> pytest.MarkDecorator:
    """Pair each sampler with the generators that it is to be tried with."""
    pairs = [(PLAIN, plain), (SEEDABLE, seedable)]
    return pytest.mark.parametrize(
        "build, which",
        [
            pytest.param(build, which, id=f"{name}-{which}")
            for builds, kinds in pairs
            for name, build in builds.items()
            for which in kinds
        ],
    )


def build_loader(make: Make, build: Build, which: str, **kwargs: Any) -> tuple[Loader, list[Any]]:
    """Make a loader whose own generator, or its sampler's, or both, are seeded ones."""
    own = torch.Generator().manual_seed(31) if which in ("loader", "shared") else None
    sampler = torch.Generator().manual_seed(41) if which == "sampler" else own
    arguments = build(sampler if which in ("sampler", "shared") else None)
    arguments = {"batch_size": 3, "collate_fn": note, **arguments, **kwargs}
    if "batch_sampler" in arguments:
        del arguments["batch_size"]
    loader = make(DATA, generator=own, **arguments)
    return loader, [generator for generator in (own, sampler) if generator is not None]


def note(batch: Any) -> Any:
    return batch


@pytest.mark.inline
@cases(plain=("none", "loader"), seedable=("none", "loader", "sampler", "shared"))
def test_each_sampler_keeps_torchs_order_and_leaves_each_generator_where_torch_does(
    build: Build, which: str
) -> None:
    def observe(make: Make) -> Any:
        loader, generators = build_loader(make, build, which)
        return trace(loader, generators=generators)

    assert_parity(observe)


@pytest.mark.matrix
@cases(plain=("loader",), seedable=("none", "shared"))
def test_each_sampler_does_so_under_workers(build: Build, which: str) -> None:
    def observe(make: Make) -> Any:
        # one that is as far ahead as two are, which takes half the time
        options = {"num_workers": 1, "prefetch_factor": 4}
        loader, generators = build_loader(make, build, which, **options)
        return trace(loader, generators=generators, stop_at=(2, None))

    assert_parity(observe)


@pytest.mark.parametrize("which", ["none", "loader", "shared"])
@pytest.mark.parametrize(
    "build",
    [
        SEEDABLE["random"],
        SEEDABLE["weighted"],
        PLAIN["draws torch"],
        PLAIN["draws at once"],
    ],
    ids=["random", "weighted", "draws torch", "draws at once"],
)
def test_persistent_workers_draw_from_the_generators_as_torchs(build: Build, which: str) -> None:
    def observe(make: Make) -> Any:
        loader, generators = build_loader(
            make, build, which, num_workers=2, persistent_workers=True
        )
        return trace(loader, generators=generators)

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [{"seeding": "sample"}, {"seeding": "worker"}, {"schedule": "round_robin"}],
    ids=["sample", "worker", "round_robin"],
)
def test_how_workers_are_seeded_and_chosen_changes_nothing_about_the_order(
    options: dict[str, str], num_workers: int
) -> None:
    def observe(make: Make) -> Any:
        extra = options if make is OURS else {}
        build = SEEDABLE["replacing, more"]
        loader, generators = build_loader(make, build, "loader", num_workers=num_workers, **extra)
        return trace(loader, generators=generators)

    assert_parity(observe)


@pytest.mark.parametrize("seeding", ["batch", "sample"])
def test_a_dataset_that_draws_leaves_the_consumers_generators_as_one_that_does_not(
    seeding: str,
) -> None:
    def observe(make: Make) -> Any:
        if make is OURS:
            return trace(make(Drawing(N), 3, shuffle=True, collate_fn=first, seeding=seeding))
        return trace(make(DATA, 3, shuffle=True, collate_fn=note))

    def first(samples: list[Any]) -> list[int]:
        return [index for index, _ in samples]

    assert_parity(observe)


class Drawing(Numbers):
    def __getitem__(self, index: int) -> Any:
        return index, draws()


def test_with_torchs_seeding_the_main_process_draws_samples_as_under_torch() -> None:
    def observe(make: Make) -> Any:
        return trace(make(Drawing(N), 3, shuffle=True, collate_fn=note))

    assert_parity(observe, ours=AS_TORCH)


@pytest.mark.parametrize("prefetch_factor", [1, 3])
@pytest.mark.parametrize("build", [PLAIN["draws torch"], PLAIN["draws python"]])
def test_a_sampler_that_draws_as_it_goes_is_as_far_ahead_as_under_torch(
    build: Build, prefetch_factor: int
) -> None:
    def observe(make: Make) -> Any:
        loader, _ = build_loader(
            make,
            build,
            "none",
            num_workers=2,
            prefetch_factor=prefetch_factor,
            batch_size=1,
        )
        return trace(loader)

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_endless_sampler_goes_on_as_under_torch(num_workers: int) -> None:
    def observe(make: Make) -> Any:
        loader = make(DATA, 3, sampler=Endless(N), num_workers=num_workers, collate_fn=note)
        return trace(loader, stop_at=(9, 4))

    assert_parity(observe)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("rank", [0, 2])
def test_ranks_see_the_samples_torch_gives_them(rank: int, drop_last: bool, shuffle: bool) -> None:
    def observe(make: Make) -> Any:
        sampler: Any = DistributedSampler(DATA, 3, rank, shuffle, 5, drop_last)
        loader = make(DATA, 2, sampler=sampler, collate_fn=note)
        seen = []
        for epoch in (0, 1, 4):
            sampler.set_epoch(epoch)
            seen.append(trace(loader, stop_at=(1, None)))
        return seen

    assert_parity(observe)


def test_ranks_see_the_samples_torch_gives_them_under_workers() -> None:
    def observe(make: Make) -> Any:
        sampler: Any = DistributedSampler(DATA, 2, 1)
        loader = make(DATA, 2, sampler=sampler, collate_fn=note, num_workers=2)
        seen = []
        for epoch in (0, 3):
            sampler.set_epoch(epoch)
            seen.append(trace(loader, stop_at=(1, None)))
        return seen

    assert_parity(observe)


def test_a_subclass_of_distributed_sampler_keeps_its_own_order() -> None:
    def observe(make: Make) -> Any:
        sampler = SkippingDistributedSampler(DATA, 2, 1)
        return trace(make(DATA, 2, sampler=sampler, collate_fn=note))

    assert_parity(observe)


def test_the_shuffle_is_drawn_at_the_first_batch_and_not_at_iter() -> None:
    def observe(make: Make) -> Any:
        iterator = iter(make(DATA, 3, shuffle=True, collate_fn=note))
        seed_everything(99)
        return list(iterator), rng_states()

    assert_parity(observe)


def test_an_epoch_set_between_iter_and_the_first_batch_counts() -> None:
    def observe(make: Make) -> Any:
        sampler: Any = DistributedSampler(DATA, 2, 1)
        iterator = iter(make(DATA, 3, sampler=sampler, collate_fn=note))
        sampler.set_epoch(5)
        return list(iterator)

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_generator_used_elsewhere_between_epochs_moves_the_order_as_under_torch(
    num_workers: int,
) -> None:
    def observe(make: Make) -> Any:
        generator = torch.Generator().manual_seed(3)
        loader = make(
            DATA,
            3,
            shuffle=True,
            generator=generator,
            collate_fn=note,
            num_workers=num_workers,
        )
        seen = [trace(loader, generators=[generator], stop_at=(None,))]
        torch.rand(5, generator=generator)
        seen.append(trace(loader, generators=[generator], stop_at=(2,)))
        generator.manual_seed(3)
        seen.append(trace(loader, generators=[generator], stop_at=(None,)))
        return seen

    assert_parity(observe)


def test_a_generator_drawn_from_within_an_epoch_moves_the_rest_as_under_torch() -> None:
    def observe(make: Make) -> Any:
        generator = torch.Generator().manual_seed(3)
        sampler = RandomSampler(DATA, True, 100, generator=generator)
        iterator = iter(make(DATA, 3, sampler=sampler, collate_fn=note))
        seen = [next(iterator) for _ in range(5)]
        torch.rand(7, generator=generator)
        return seen + [(batch, rng_states([generator])) for batch in iterator]

    assert_parity(observe)


def test_two_loaders_that_share_a_sampler_and_its_generator_do_not_clash() -> None:
    def observe(make: Make) -> Any:
        generator = torch.Generator().manual_seed(3)
        sampler = RandomSampler(DATA, True, 80, generator=generator)
        first, second = (iter(make(DATA, 3, sampler=sampler, collate_fn=note)) for _ in range(2))
        return [(a, b, rng_states([generator])) for a, b in zip(first, second)]

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_live_iterators_of_one_loader_draw_as_under_torch(num_workers: int) -> None:
    def observe(make: Make) -> Any:
        generator = torch.Generator().manual_seed(3)
        loader = make(
            DATA,
            3,
            shuffle=True,
            generator=generator,
            collate_fn=note,
            num_workers=num_workers,
        )
        first = iter(loader)
        seen = [next(first)]
        second = iter(loader)
        seen += [next(second), next(first), next(second)]
        return seen, list(second), list(first), rng_states([generator])

    assert_parity(observe)


def test_what_the_consumer_draws_between_batches_moves_a_drawing_sampler_as_under_torch() -> None:
    def observe(make: Make) -> Any:
        loader = make(DATA, 3, sampler=DrawsAsItGoes(N, "torch"), collate_fn=note)
        return [(batch, torch.rand(2), rng_states()) for _ in range(2) for batch in loader]

    assert_parity(observe)


def test_an_exhausted_iterator_stays_exhausted_and_draws_nothing() -> None:
    def observe(make: Make) -> Any:
        iterator = iter(make(DATA, 3, shuffle=True, collate_fn=note))
        seen = [list(iterator), rng_states()]
        return seen, next(iterator, "end"), next(iterator, "end"), rng_states()

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_that_grows_between_epochs_is_read_to_its_new_end(
    num_workers: int,
) -> None:
    def observe(make: Make) -> Any:
        data = Numbers(4)
        loader = make(data, 3, shuffle=True, collate_fn=note, num_workers=num_workers)
        seen = [len(loader), trace(loader, stop_at=(None,))]
        data.size = 9
        seen += [len(loader), trace(loader, stop_at=(None,))]
        data.size = 2
        return seen, len(loader), trace(loader, stop_at=(None,))

    assert_parity(observe)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_dataset_that_grows_before_the_first_batch_is_read_to_its_new_end(
    shuffle: bool,
) -> None:
    def observe(make: Make) -> Any:
        data = Numbers(4)
        iterator = iter(make(data, 3, shuffle=shuffle, collate_fn=note))
        data.size = 9
        return list(iterator)

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_seeded_run_is_bit_equal_to_torchs_when_a_model_draws_between_batches(
    num_workers: int,
) -> None:
    def observe(make: Make) -> Any:
        loader = make(DATA, 3, shuffle=True, num_workers=num_workers)
        return [
            (batch, torch.nn.functional.dropout(torch.ones(4)), rng_states())
            for _ in range(2)
            for batch in loader
        ]

    assert_parity(observe)
    assert_parity(observe, ours=AS_TORCH)


def test_weights_that_are_changed_within_an_epoch_count_from_the_next_one() -> None:
    def observe(make: Make) -> Any:
        sampler = WeightedRandomSampler(WEIGHTS, 30)
        loader = make(DATA, 3, sampler=sampler, collate_fn=note)
        iterator = iter(loader)
        seen = [next(iterator) for _ in range(3)]
        sampler.weights[:5] = 0
        return seen, list(iterator), list(loader), rng_states()

    assert_parity(observe)


def test_a_subset_that_is_changed_within_an_epoch_is_read_as_under_torch() -> None:
    def observe(make: Make) -> Any:
        indices = list(range(10))
        loader = make(DATA, 3, sampler=SubsetRandomSampler(indices), collate_fn=note)
        iterator = iter(loader)
        seen = [next(iterator)]
        indices[:] = range(10, 20)
        return seen, list(iterator), list(loader)

    assert_parity(observe)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_batch_size_that_is_changed_within_an_epoch_counts_as_under_torch(
    shuffle: bool,
) -> None:
    def observe(make: Make) -> Any:
        loader: Any = make(DATA, 1, shuffle=shuffle, collate_fn=note)
        seen = []
        for batch in loader:
            seen.append(batch)
            loader.batch_sampler.batch_size += 1
        return seen

    assert_parity(observe)


class Plain:
    """A sampler with nothing but what a test adds."""

    def __init__(self, **extra: Any) -> None:
        self.__dict__.update(extra)

    def __iter__(self) -> Iterator[int]:
        return (index for index in (4, 2, 0, 1))


class RefusesLength(Plain):
    def __len__(self) -> int:
        raise RuntimeError("not known yet")


class RefusesLengthPolitely(Plain):
    def __len__(self) -> int:
        raise NotImplementedError


class Understates(Plain):
    def __len__(self) -> int:
        return 1


class Overstates(Plain):
    def __len__(self) -> int:
        return 100


class RefusesPickle(Plain):
    def __reduce__(self) -> Any:
        raise RuntimeError("I am not to be pickled")

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("I am not to be copied")


class Slotted:
    __slots__ = ()

    def __iter__(self) -> Iterator[int]:
        return iter([1, 0])


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "sampler",
    [
        Plain(lock=threading.Lock()),
        RefusesLength(),
        RefusesLengthPolitely(),
        Understates(),
        Overstates(),
        RefusesPickle(),
        Slotted(),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_a_sampler_needs_nothing_but_to_be_iterable(sampler: Any, num_workers: int) -> None:
    def observe(make: Make) -> Any:
        options: dict[str, Any] = {"collate_fn": note, "num_workers": num_workers}
        loaders = [make(DATA, b, sampler=sampler, **options) for b in (3, None)]
        loaders.append(make(DATA, batch_sampler=BatchSampler(sampler, 3, True), **options))
        return [trace(loader, stop_at=(1, None)) for loader in loaders]

    assert_parity(observe)


def test_a_dataset_is_not_asked_for_its_length_where_torch_does_not_ask() -> None:
    class Refuses(Numbers):
        def __len__(self) -> int:
            raise RuntimeError("opening the file would be too early")

    def observe(make: Make) -> Any:
        data = Refuses(9)
        samplers: Any = [range(5), RandomSampler(range(5)), SubsetRandomSampler([3, 1])]
        seen = [list(make(data, 2, sampler=s, collate_fn=note)) for s in samplers]
        return seen, list(make(data, 2, sampler=range(5), num_workers=1))

    assert_parity(observe)
