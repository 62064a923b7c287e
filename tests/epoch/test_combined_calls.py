"""Calls that are exact one by one, combined: two passes, two resumes, a skip of nothing."""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, Sampler

from picklable_loader import DataLoader
from picklable_loader.errors import EmptyEpochWarning, LoaderWarning

N = 12


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


# --- at an epoch's end ---------------------------------------------------------------------------


def at_the_end(choice: Any) -> Any:
    """A loader with the state of after the last batch of epoch 0."""
    it = iter(DataLoader(range(6), batch_size=2, seed=7))  # type: ignore[arg-type]
    for _ in range(3):
        next(it)
    loader: Any = DataLoader(range(6), batch_size=2, seed=7, at_epoch_end=choice)  # type: ignore
    loader.load_state_dict(it.state_dict())
    return loader


@pytest.mark.parametrize("call", [lambda it: it.skip(0), lambda it: it.flush()])
def test_a_call_that_passes_over_nothing_leaves_the_choice_at_an_epochs_end(
    call: Callable[[Any], int],
) -> None:
    it = iter(at_the_end("next"))
    assert call(it) == 0
    assert len(list(it)) == 3 and it.epoch == 1
    it = iter(at_the_end("stop"))
    call(it)
    with pytest.warns(EmptyEpochWarning):
        assert list(it) == []


def test_a_skip_of_nothing_forgets_no_batch() -> None:
    it: Any = iter(DataLoader(range(6), batch_size=2, seed=7))  # type: ignore[arg-type]
    first = next(it)
    assert it.skip(0) == 0
    again: Any = DataLoader(range(6), batch_size=2, seed=7)  # type: ignore[arg-type]
    again.load_state_dict(it.state_dict(behind=1))
    assert torch.equal(next(iter(again)), first)


def test_a_skip_of_the_last_batches_that_is_interrupted_begins_no_other_epoch() -> None:
    loader: Any = DataLoader(range(8), batch_size=2, seed=7, at_epoch_end="next")  # type: ignore
    it = iter(loader)
    for _ in range(3):
        next(it)
    loader.load_state_dict(it.state_dict())
    it = iter(loader)
    handle = it._driver.handle

    def interrupted(event: Any) -> None:
        handle(event)
        raise KeyboardInterrupt

    it._driver.handle = interrupted
    with pytest.raises(KeyboardInterrupt):
        it.skip(1)
    it._driver.handle = handle
    assert list(it) == [] and it.epoch == 0


# --- two passes over one loader ------------------------------------------------------------------


class Late(Sampler[int]):
    """It reads its epoch when it is asked for the first index."""

    epoch = 0

    def __len__(self) -> int:
        return N

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> list[int]:
        return torch.randperm(N, generator=torch.Generator().manual_seed(self.epoch)).tolist()

    def __iter__(self) -> Iterator[int]:
        yield from self.order()


class AtOnce(Late):
    """It reads its epoch in ``iter``, which torch's loader calls at the first batch, too."""

    def __iter__(self) -> Iterator[int]:
        return iter(self.order())


SAMPLERS: dict[str, Callable[[], Any]] = {
    "torch's": lambda: DistributedSampler(range(N), 1, 0),  # type: ignore[arg-type]
    "late": Late,
    "at once": AtOnce,
}


@pytest.fixture(params=SAMPLERS)
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    sampler = SAMPLERS[request.param]
    return lambda: DataLoader(range(N), batch_size=3, sampler=sampler(), seed=7)  # type: ignore


def epoch(make: Callable[[], Any], number: int) -> list[Any]:
    loader = make()
    loader.set_epoch(number)
    return lists(loader)


def test_two_passes_at_once_have_an_epoch_each(make: Callable[[], Any]) -> None:
    loader = make()
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
    assert [a for a, _ in pairs] == epoch(make, 0)
    assert [b for _, b in pairs] == epoch(make, 1)


def test_the_state_of_a_pass_that_has_given_nothing_has_its_own_epoch(
    make: Callable[[], Any],
) -> None:
    loader = make()
    first, second = iter(loader), iter(loader)
    next(second)
    again = make()
    again.load_state_dict(first.state_dict())
    assert lists(again) == lists(first) == epoch(make, 0)


def test_a_pass_that_was_only_skipped_in_keeps_its_epoch_when_another_state_is_loaded(
    make: Callable[[], Any],
) -> None:
    loader, other = make(), make().state_dict()
    loader.set_epoch(1)
    it = iter(loader)
    it.skip(1)
    loader.load_state_dict(other)
    with pytest.warns(LoaderWarning, match="in the middle of this pass"):
        assert lists(it) == epoch(make, 1)[1:]


# --- copies while another state waits ------------------------------------------------------------


def as_pickle(it: Any) -> Any:
    return pickle.loads(pickle.dumps(it))


COPIES = [as_pickle, copy.copy, copy.deepcopy, lambda it: as_pickle(it.behind(0))]


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_has_its_own_position_and_its_loader_the_state_that_waits(
    copied: Callable[[Any], Any],
) -> None:
    loader: Any = DataLoader(range(6), batch_size=2, seed=7)  # type: ignore[arg-type]
    start = loader.state_dict()
    it = iter(loader)
    for _ in range(3):
        next(it)
    loader.load_state_dict(start, at_epoch_end="next")
    other = copied(it)
    assert list(other) == []
    assert len(list(other.loader)) == 3


# --- two resumes ---------------------------------------------------------------------------------


class Noisy(IterableDataset[float]):
    at = 0

    def __iter__(self) -> Iterator[float]:
        while self.at < 8:
            self.at += 1
            yield self.at + torch.rand(()).item()
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("options", [{}, {"seed": 3}], ids=["no seed", "seed"])
@pytest.mark.parametrize("every", [0, 1, 3, "auto"])
def test_a_resume_between_two_epochs_and_one_in_the_next_draw_the_same(
    every: Any, options: Any
) -> None:
    def make() -> Any:
        return DataLoader(
            Noisy(), batch_size=2, seeding="worker", snapshot_every_n_steps=every, **options
        )

    def resumed(state: Any, rng: Any) -> Any:
        loader = make()
        torch.set_rng_state(rng)
        loader.load_state_dict(state)
        return loader

    torch.manual_seed(1)
    loader = make()
    list(loader)
    saved = loader.state_dict(), torch.get_rng_state()
    expected = lists(loader)
    loader = resumed(*saved)
    assert next(iter(loader)).tolist() == expected[0]
    saved = loader.state_dict(), torch.get_rng_state()
    assert lists(resumed(*saved)) == expected[1:]


class Reader:
    """An iterator with a state; each epoch makes a new one."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> int:
        if self.at == 10:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Read(IterableDataset[int]):
    def __iter__(self) -> Reader:
        return Reader()


@pytest.mark.parametrize("seeding", ["batch", "worker"])
@pytest.mark.parametrize("given", [0, 1])
@pytest.mark.parametrize("way", [as_pickle, lambda it: it.state_dict()], ids=["pickle", "state"])
def test_a_state_that_reads_an_epoch_from_its_beginning_is_saved_again(
    way: Callable[[Any], Any], given: int, seeding: Any
) -> None:
    """In a later epoch of persistent workers, before its first snapshot: then without workers."""

    def make(workers: int = 0) -> Any:
        living: Any = {"num_workers": workers, "persistent_workers": workers > 0}
        return DataLoader(
            Read(), batch_size=2, snapshot_every_n_steps=5, seed=1, seeding=seeding, **living
        )

    loader = make(1 if seeding == "batch" else 0)
    list(loader)
    it = iter(loader)
    next(it), next(it)
    state = it.state_dict()
    again = make()
    again.load_state_dict(state)
    it = iter(again)
    for _ in range(given):
        next(it)
    found = way(it)
    if isinstance(found, dict):
        again = make()
        again.load_state_dict(found)
        found = again
    assert lists(found) == [[4, 5], [6, 7], [8, 9]][given:]


# --- a pass that has given nothing ---------------------------------------------------------------


class Passes(Sampler[int]):
    """Another order in each pass."""

    passes = 0

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter(random.Random(self.passes).sample(range(6), 6))


def test_a_pass_that_was_left_before_its_first_batch_takes_no_turn_at_the_sampler() -> None:
    loader: Any = DataLoader(range(6), batch_size=2, sampler=Passes(), seed=0)  # type: ignore
    it = iter(loader)
    del it
    again = pickle.loads(pickle.dumps(loader))
    assert lists(loader) == lists(again) and loader.sampler.passes == 1


# --- a chosen epoch ------------------------------------------------------------------------------


class Crops(Dataset[float]):
    def __init__(self) -> None:
        self.rng = random.Random(3)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        return index + self.rng.random() / 10


@pytest.mark.parametrize("options", [{"seeding": "worker"}, {"seed_dataset": "off"}], ids=str)
def test_epoch_0_that_is_chosen_again_warns_of_generators_that_have_moved(options: Any) -> None:
    loader: Any = DataLoader(Crops(), batch_size=2, seed=0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.state_dict()
        it = iter(loader)
        loader.state_dict()  # nothing has moved
        list(it)
        loader.set_epoch(0)
    with pytest.warns(LoaderWarning, match=r"loader.dataset.rng \(random Random\)"):
        loader.state_dict()
