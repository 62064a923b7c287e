"""States that do not follow their samples, and samplers that change more than themselves."""

from __future__ import annotations

import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning

N = 48


class CountsAfter(Sampler[int]):
    """Its state is one index behind: the usual mistake."""

    position = 0

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        for index in range(self.position, N):
            yield index
            self.position += 1
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class CountsBefore(CountsAfter):
    def __iter__(self) -> Iterator[int]:
        for index in range(self.position, N):
            self.position = index + 1
            yield index
        self.position = 0


@pytest.mark.parametrize("way", ["state", "pickle"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("kind", [CountsAfter, CountsBefore])
def test_a_sampler_that_counts_after_its_yield_is_replayed_whatever_the_batch_size(
    kind: type[CountsAfter], batch_size: int, workers: int, way: str
) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(range(N), batch_size=batch_size, sampler=kind(), num_workers=workers)

    iterator = iter(make())
    for _ in range(3):
        next(iterator)
    state, saved = iterator.state_dict(), pickle.dumps(iterator)
    assert ("checksum" in state["order"]) == (kind is CountsAfter)  # of a replay
    expected = [batch.tolist() for batch in iterator]
    again: Any = pickle.loads(saved)
    if way == "state":
        again = make()
        again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == expected


@pytest.mark.parametrize("way", ["state", "pickle"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_it_is_replayed_after_any_number_of_resumes(
    batch_size: int, workers: int, way: str
) -> None:
    loader: Any = None
    saved: Any = None
    seen: list[int] = []
    while len(seen) < N:
        if way == "pickle" and saved:
            iterator = pickle.loads(saved)
        else:
            sampler = CountsAfter()
            options: Any = {"num_workers": workers, "prefetch_factor": 2 if workers else None}
            loader = DataLoader(range(N), batch_size=batch_size, sampler=sampler, **options)
            if saved:
                loader.load_state_dict(saved)
            iterator = iter(loader)
        for _ in range(4):
            seen += next(iterator, torch.tensor([], dtype=torch.long)).tolist()
        saved = pickle.dumps(iterator) if way == "pickle" else iterator.state_dict()
    assert seen == list(range(N))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_state_that_follows_is_used_after_a_resume_from_a_replay(steps: int) -> None:
    """The first save comes too early to know that, and is replayed."""
    loader = DataLoader(range(N), batch_size=None, sampler=CountsBefore())
    iterator = iter(loader)
    next(iterator)
    early = iterator.state_dict()
    assert "checksum" in early["order"]
    loader = DataLoader(range(N), batch_size=None, sampler=CountsBefore())
    loader.load_state_dict(early)
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    late = iterator.state_dict()
    assert "sampler_state" in late["order"] and "checksum" not in late["order"]
    loader = DataLoader(range(N), batch_size=None, sampler=CountsBefore())
    loader.load_state_dict(late)
    assert list(loader) == list(range(1 + steps, N))


class Lines(IterableDataset[int]):
    """Counts its position, after the yield or before it; or its epochs only."""

    def __init__(self, count: str) -> None:
        self.count, self.at, self.epoch = count, 0, 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for at in range(self.at, N // workers):
            self.at = at + (self.count == "before")
            yield at * workers + worker
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch} if self.count == "epochs" else {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


def _texts(act: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", LoaderWarning)
        act()
    return [str(each.message) for each in given]


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("count", ["after", "epochs", "before"])
def test_a_save_warns_of_a_streams_state_that_does_not_follow_its_samples(
    count: str, workers: int, batch_size: int
) -> None:
    every: Any = {"snapshot_every_n_steps": 1}
    loader = DataLoader(Lines(count), batch_size=batch_size, num_workers=workers, **every)
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    for save in (loader.state_dict, lambda: pickle.dumps(iterator)):
        found = _texts(save)
        assert len(found) == (count != "before"), found
        assert not found or "the same before and after sample 1 of the stream" in found[0]
    iterator.close()


class Opens(Lines):
    """Its first sample counts a file, and no sample its position."""

    def __iter__(self) -> Iterator[int]:
        for index in range(N):
            self.at = 1
            yield index


def test_the_second_sample_has_to_change_a_streams_state_as_well() -> None:
    loader = DataLoader(Opens(""), batch_size=4)
    iterator = iter(loader)
    next(iterator)
    (found,) = _texts(loader.state_dict)
    assert "the same before and after sample 2 of the stream" in found


class Asked(Lines):
    """Counts how often it is asked for its state."""

    asked = 0

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {**super().state_dict(), "buffer": bytes(self.size)}

    size = 10


def test_a_large_state_is_not_asked_for_after_samples() -> None:
    def asked(size: int) -> int:
        data = Asked("before")
        data.size = size
        every: Any = {"snapshot_every_n_steps": N}
        list(DataLoader(data, batch_size=4, **every))
        return data.asked

    assert asked(10) == asked(1 << 21) + 2  # after the first sample and the second


# --- samplers that change more than themselves ---------------------------------------------------


class Pairs(Dataset[int]):
    def __init__(self) -> None:
        self.order, self.level, self.epoch = list(range(N)), 0, 0
        self.lengths: list[int] = []

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return self.order[index]


class Resamples(Sampler[int]):
    """Its ``iter`` has the dataset pair its samples anew."""

    def __init__(self, dataset: Pairs) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.dataset.order)
        return iter(range(N))


class FillsLengths(Resamples):
    """Sorts by lengths that the dataset finds when it is first asked."""

    def __iter__(self) -> Iterator[int]:
        if not self.dataset.lengths:
            self.dataset.lengths.extend(range(N))
        return iter(sorted(range(N), key=lambda index: -self.dataset.lengths[index]))


class Announces(Resamples):
    """Its ``iter`` gives the dataset its epoch, as some trainers' do."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.dataset.epoch = self.epoch
        return iter(range(N))


def _resumed(kind: type[Resamples], way: str, workers: int, epoch: int) -> list[str]:
    def make() -> DataLoader[Any]:
        data = Pairs()
        options: Any = {"num_workers": workers, "seed": 1}
        return DataLoader(data, batch_size=4, sampler=kind(data), **options)

    loader = make()
    for _ in range(epoch):
        list(loader)
    iterator = iter(loader)
    next(iterator)
    state = iterator.state_dict()
    again: Any = pickle.loads(pickle.dumps(iterator))
    if way == "state":
        again = make()
        again.load_state_dict(state)
    found = _texts(lambda: list(again))
    iterator.close()
    return found


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("way", ["state", "pickle"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_resume_warns_if_drawing_again_changes_the_dataset(
    workers: int, way: str, epoch: int
) -> None:
    found = _resumed(Resamples, way, workers, epoch)
    exact = way == "state" and not workers and not epoch  # it is shuffled once in either run
    assert len(found) == (not exact)
    assert exact or "the sampler Resamples has changed loader.dataset.order" in found[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_fills_a_lazy_list_is_not_warned_of(workers: int) -> None:
    assert _resumed(FillsLengths, "state", workers, 1) == []


@pytest.mark.parametrize("way", ["state", "pickle"])
def test_a_sampler_that_gives_the_dataset_its_epoch_is_exact_without_workers(way: str) -> None:
    assert _resumed(Announces, way, 0, 1) == []


def test_a_sampler_that_seeds_what_is_seeded_leaves_the_programs_generators_alone() -> None:
    """Its seeding has changed nothing, so the state does not say that it seeds."""

    def seed_all(seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

    class SeedsAll(Sampler[int]):
        def __len__(self) -> int:
            return N

        def __iter__(self) -> Iterator[int]:
            seed_all(42)
            return iter(torch.randperm(N).tolist())

    def make() -> DataLoader[Any]:
        seed_all(42)
        torch.rand(1)
        return DataLoader(range(N), batch_size=4, sampler=SeedsAll())

    def draws() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(1))]

    iterator = iter(make())
    next(iterator)
    draws()
    state = iterator.state_dict(save_rng=True)
    expected = [(batch.tolist(), draws()) for batch in iterator]
    again = make()
    again.load_state_dict(state, restore_rng=True)
    assert [(batch.tolist(), draws()) for batch in again] == expected
