"""A pass that was begun from a state, and has delivered nothing yet."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from laws.cases import CUSTOM, Case
from laws.observe import expected_warnings, seed_everything, seen
from zoo.datasets import N, Noisy, NoisyStream
from zoo.inexact import CountsPasses
from zoo.samplers import (
    CountsEpochs,
    DrawsAsItGoes,
    OwnPythonGenerator,
    OwnTorchGenerator,
    ShufflesInPlaceLazily,
    from_torch,
)

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(4)


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffle": lambda: {"shuffle": True},
    "generator": lambda: {"shuffle": True, "generator": _generator()},
    "generator of the loader only": lambda: {"sampler": range(N), "generator": _generator()},
    "draws": lambda: {"sampler": DrawsAsItGoes(from_torch)},
    "own torch.Generator": lambda: {"sampler": OwnTorchGenerator()},
    "own random.Random": lambda: {"sampler": OwnPythonGenerator(), "seed": 3},
    "shuffles in place": lambda: {"sampler": ShufflesInPlaceLazily()},
}


def make(kind: str, workers: int, persistent: bool = False) -> DataLoader[Any]:
    if kind == "stream":
        options, dataset = {"seed": 3}, NoisyStream()
    else:
        options, dataset = OPTIONS[kind](), Noisy(N)
    return DataLoader(dataset, 3, num_workers=workers, persistent_workers=persistent, **options)


def lists(batches: Any) -> list[Any]:
    return [repr(batch) for batch in batches]


@pytest.mark.parametrize("way", ["state", "pickle"])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("kind", OPTIONS)
def test_it_is_saved_where_it_begins_the_epoch(
    kind: str, workers: int, persistent: bool, way: str
) -> None:
    """What it had drawn to begin was drawn again, from generators that had moved on."""
    seed_everything(1)
    loader = make(kind, workers, persistent)
    list(loader)
    state = loader.state_dict()
    whole = [lists(loader), lists(loader)]

    seed_everything(99)
    loader = make(kind, workers, persistent)
    loader.load_state_dict(state)
    begun = iter(loader)
    saved = begun.state_dict() if way == "state" else pickle.dumps(begun)
    assert [lists(begun), lists(loader)] == whole

    seed_everything(98)
    if way == "state":
        loader = make(kind, workers, persistent)
        loader.load_state_dict(saved)
        again = iter(loader)
    else:
        again = pickle.loads(saved)
        loader = again.loader
    assert [lists(again), lists(loader)] == whole


@pytest.mark.parametrize("from_a_state", [False, True])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("kind", [*OPTIONS, "stream"])
def test_it_goes_on_from_a_state_that_its_loader_is_given_later(
    kind: str, workers: int, persistent: bool, from_a_state: bool
) -> None:
    """A trainer that calls iter in its __init__ began at the epoch's first batch, and each later
    state of its loader was the loaded one."""
    seed_everything(1)
    loader = make(kind, workers, persistent)
    list(loader)
    iterator = iter(loader)
    states = [loader.state_dict() for _ in zip(range(2), iterator)]
    whole = [lists(iterator), lists(loader)]

    seed_everything(99)
    loader = make(kind, workers, persistent)
    if from_a_state:
        loader.load_state_dict(states[0])
    begun = iter(loader)
    loader.load_state_dict(states[1])
    assert (begun.epoch, begun.step) == (1, 2)
    assert loader.state_dict() == begun.state_dict() == states[1]
    with expected_warnings():
        batches = lists(next(begun) for _ in range(1))
        assert loader.state_dict()["step"] == 3
        assert [batches + lists(begun), lists(loader)] == whole


#: what becomes of a begun pass's loader before the pass is left
COPIED: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda iterator: iterator.loader,
    "its pickle": lambda iterator: pickle.loads(pickle.dumps(iterator)).loader,
    "its copy": lambda iterator: copy.deepcopy(iterator).loader,
    "two pickles": lambda iterator: pickle.loads(pickle.dumps(COPIED["its pickle"](iterator))),
    "the loader's pickle": lambda iterator: pickle.loads(pickle.dumps(iterator.loader)),
}


@pytest.mark.parametrize("copied", COPIED)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", OPTIONS)
def test_if_it_is_left_the_next_epoch_is_that_after_an_original_that_is_left(
    kind: str, workers: int, copied: str
) -> None:
    """A sampler that is restored at the first batch was not restored at all; nor in a pickle."""
    seed_everything(1)
    loader = make(kind, workers)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = iterator.state_dict()
    torchs, pythons = torch.get_rng_state(), random.getstate()
    whole = lists(loader)

    loader = make(kind, workers)
    torch.set_rng_state(torchs)
    random.setstate(pythons)  # no pickle of a loader alone has the program's generators
    loader.load_state_dict(state)
    loader = COPIED[copied](iter(loader))
    assert lists(loader) == whole


class Curriculum(CountsEpochs):
    """The order comes of the count, and of what the program sets for each epoch."""

    level = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(random.Random(f"{self.epoch} {self.level}").sample(range(N), N))


@pytest.mark.parametrize("sets", ["level", "epoch", "both"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_of_some_steps_an_epoch_leaves_the_resumed_one_too(workers: int, sets: str) -> None:
    """The sampler was restored when the next epoch began, over the new level; or not at all."""
    steps = 2

    def trains(loader: Any, epoch: int, step: int) -> Iterator[tuple[list[int], Any]]:
        for epoch in range(epoch, 3):
            if sets != "epoch":
                loader.sampler.level = epoch
            if sets != "level":
                loader.set_epoch(epoch)
            for _, batch in zip(range(step, steps), loader):
                yield batch.tolist(), loader.state_dict()
            step = 0

    def made() -> Any:
        return DataLoader(range(N), 3, sampler=Curriculum(), seed=3, num_workers=workers)

    whole = [*trains(made(), 0, 0)]
    again = made()
    again.load_state_dict(whole[steps - 1][1])
    rest = [batch for batch, _ in trains(again, 0, steps)]
    assert rest == [batch for batch, _ in whole[steps:]]


#: torch's seeding of persistent workers is no function of the epoch: their generators run on
SEEDINGS = [(0, False, "batch"), (0, False, "worker"), (2, False, "worker"), (2, True, "batch")]


@pytest.mark.parametrize(("workers", "persistent", "seeding"), SEEDINGS)
@pytest.mark.parametrize("kind", ["in order", "shuffle", "stream"])
def test_with_a_seed_its_state_and_another_epoch_are_that_epoch(
    kind: str, workers: int, persistent: bool, seeding: Any
) -> None:
    """Epoch 7 had the augmentation of the epoch that had begun when the state was taken."""

    def made() -> DataLoader[Any]:
        dataset = NoisyStream() if kind == "stream" else Noisy(N)
        living = {"num_workers": workers, "persistent_workers": persistent}
        shuffle = True if kind == "shuffle" else None
        return DataLoader(dataset, 3, shuffle=shuffle, seed=3, seeding=seeding, **living)

    loader = made()
    loader.set_epoch(7)
    whole = lists(loader)

    loader = made()
    begun = iter(loader)
    state = begun.state_dict()
    again = made()
    again.load_state_dict(state)
    again.set_epoch(7)
    assert lists(again) == whole


def test_its_state_is_dropped_with_a_warning_if_the_sampler_remembers_earlier_epochs() -> None:
    """There is no batch to lose, but what the sampler has drawn before."""
    loader = make("own random.Random", 2)
    begun = iter(loader)
    state = begun.state_dict()
    loader = make("own random.Random", 2)
    loader.load_state_dict(state)
    with pytest.warns(LoaderWarning, match="drops the loaded state of epoch 0"):
        loader.set_epoch(1)


@pytest.mark.parametrize("after", ["pickle", "copy", "skip", "pickle, skip"])
@pytest.mark.parametrize("shard", [None, (1, 2)])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, True)])
@pytest.mark.parametrize("by_the_loader", [False, True])
def test_one_that_goes_on_with_the_next_epoch_does_so_after_a_pickle_and_a_skip(
    after: str, shard: Any, workers: int, persistent: bool, by_the_loader: bool
) -> None:
    def made(**options: Any) -> DataLoader[Any]:
        workers_ = {"num_workers": workers, "persistent_workers": persistent}
        return DataLoader(Noisy(N), 3, shuffle=True, seed=2, shard=shard, **workers_, **options)

    loader = made()
    for _ in loader:
        state = loader.state_dict()  # the last one is of the epoch's end
    whole = lists(loader)
    wish: Any = "next"
    again = made(at_epoch_end=wish) if by_the_loader else made()
    again.load_state_dict(state, at_epoch_end=None if by_the_loader else wish)
    iterator = iter(again)
    if "pickle" in after:
        iterator = pickle.loads(pickle.dumps(iterator))
    if after == "copy":
        iterator = copy.deepcopy(iterator)
    assert (iterator.epoch, iterator.step) == (1, 0)
    passed = iterator.skip(2) if "skip" in after else 0
    assert passed == (2 if "skip" in after else 0)
    assert lists(iterator) == whole[passed:]


STREAM = Case("counts passes", dict, CountsPasses)


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize("case", [*CUSTOM, STREAM], ids=str)
def test_a_pickle_goes_on_though_iter_has_moved_its_dataset_or_sampler(
    case: Case, step: int, workers: int
) -> None:
    """`iter` has counted a pass, and drawn ahead for the workers, before anything is delivered."""
    seed_everything(1)
    original = iter(case.make(workers))
    seen(original, step)
    loader = case.make(workers)
    loader.load_state_dict(original.state_dict())
    again = pickle.loads(pickle.dumps(iter(loader)))
    assert seen(again, case.limit) == seen(original, case.limit)
