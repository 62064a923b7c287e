"""on_error: bad samples are skipped, or replaced, and nothing else changes."""

from __future__ import annotations

import os
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    get_worker_info,
)
from zoo.datasets import as_they_are
from zoo.streams import SavedWalk, Walk, share

from picklable_loader import DataLoader, ShuffleBuffer
from picklable_loader.epoch import driver
from picklable_loader.errors import EmptyEpochWarning, NoSampleError, SkippedWarning, UsageError
from picklable_loader.fetching.engine.stats import SkippedSample
from picklable_loader.fetching.worker.fetch import MapFetcher, make_fetcher
from picklable_loader.loader.setup import job_of, spec_of
from picklable_loader.testing import verify_resume

pytestmark = [
    pytest.mark.filterwarnings("ignore::picklable_loader.errors.SkippedWarning"),
    pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning"),
]

N = 22
#: in batches of four and in order, step 2 has no other sample, and step 5 has no good one
BAD = {3, 8, 9, 10, 11, 17, 20, 21}


class Bad(Exception):
    """What a dataset raises for a bad sample."""


def sample(index: int) -> list[float]:
    """The index, and noise from all generators, which a bad sample draws as well."""
    noise = [torch.rand(()).item(), float(np.random.rand()), random.random()]
    if index in BAD:
        raise Bad(f"sample {index}")
    return [float(index), *noise]


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> list[float]:
        return sample(index)


class InBulk(Noisy):
    """A bad sample spoils the whole call."""

    def __getitems__(self, indices: list[int]) -> list[list[float]]:
        return [sample(index) for index in indices]


class Counting(Noisy):
    """Map-style with a state: how often it was asked, bad samples included."""

    asked = 0

    def __getitem__(self, index: int) -> list[float]:
        self.asked += 1
        return [*sample(index), self.asked]

    def state_dict(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


class Walking(IterableDataset[Any]):
    """Iterable-style; each stream has a share of the samples."""

    def __init__(self, kind: Callable[..., Iterator[Any]] = partial(Walk, give=sample)) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        return self.kind(share(N))


def instead(error: Exception, index: int) -> list[float] | None:
    """On_error: gives something else for some bad samples, with noise, and skips the others."""
    assert isinstance(error, Bad)
    return [-float(index), random.random(), 0.0] if index % 2 else None


def loader_of(dataset: Any, **options: Any) -> DataLoader[Any]:
    given = {"batch_size": 4, "collate_fn": as_they_are, "on_error": "skip", "seed": 5, **options}
    return DataLoader(dataset, **given)


def indices(batches: Any) -> list[list[int]]:
    return [[int(row[0]) for row in batch] for batch in batches]


def skipped(iterator: Any) -> list[int]:
    """The indices that it has skipped."""
    stats = iterator.stats()
    assert stats.skipped == len(stats.last_skipped)
    return [sample.index for sample in stats.last_skipped]


# --- the laws ------------------------------------------------------------------------------------

SAMPLED = {"batch_size": 1, "batch_sampler": BatchSampler(RandomSampler(range(N)), 3, False)}
STREAMS = {"num_streams": 2, "snapshot_every_n_steps": 2}
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "in order": (Noisy, {}),
    "in pairs": (Noisy, {"batch_size": 2, "shuffle": True, "drop_last": True}),
    "not batched": (Noisy, {"batch_size": None, "shuffle": True}),
    "batch sampler": (Noisy, SAMPLED),
    "seeds for each sample": (Noisy, {"shuffle": True, "seeding": "sample"}),
    "in bulk": (InBulk, {"shuffle": True}),
    "a subset in bulk": (partial(Subset, InBulk(), range(N)), {}),
    "replaced": (Noisy, {"on_error": instead}),
    "map-style with a state": (Counting, STREAMS),
    "pickled iterators": (Walking, STREAMS),
    "iterators with a state": (partial(Walking, partial(SavedWalk, give=sample)), STREAMS),
    "streams that are not batched": (Walking, {**STREAMS, "batch_size": None}),
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_a_resume_at_any_step_gives_the_same_batches_and_skips_the_same_samples(
    case: str, num_workers: int
) -> None:
    dataset, options = CASES[case]
    make = partial(loader_of, **options)
    whole = iter(make(dataset()))
    expected = list(whole)
    last = whole.stats().last_skipped
    assert expected and last
    iterator = iter(make(dataset(), num_workers=num_workers))
    for place in range(len(expected) + 1):
        saved, state = pickle.dumps(iterator), iterator.state_dict()
        before = iterator.stats().last_skipped
        for resumed in (pickle.loads(saved), resumed_from(state, make(dataset()))):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", EmptyEpochWarning)
                assert list(resumed) == expected[place:]
            assert before + resumed.stats().last_skipped == last
        assert next(iterator, None) == (expected[place] if place < len(expected) else None)
    assert iterator.stats().last_skipped == last


@pytest.mark.parametrize("batch_size", [4, None])
def test_with_torchs_seeding_workers_go_on_behind_a_batch_that_was_empty(
    batch_size: int | None,
) -> None:
    make = partial(loader_of, Noisy(), batch_size=batch_size, seeding="worker", num_workers=2)
    expected = list(make())
    iterator = iter(make())
    for place in range(len(expected)):
        saved = pickle.dumps(iterator)
        assert list(pickle.loads(saved)) == expected[place:]
        next(iterator)


def resumed_from(state: dict[str, Any], loader: DataLoader[Any]) -> Any:
    loader.load_state_dict(state)
    return iter(loader)


@pytest.mark.parametrize("case", ["in bulk", "map-style with a state", "pickled iterators"])
def test_verify_resume_finds_nothing(case: str) -> None:
    dataset, options = CASES[case]

    def make_loader(num_workers: int) -> DataLoader[Any]:
        return loader_of(dataset(), **options, num_workers=num_workers)

    verify_resume(make_loader, codecs=("pickle", "state_dict"), fresh_process=False)


# --- skipping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_comes_without_its_bad_samples_and_an_empty_one_not_at_all(
    num_workers: int,
) -> None:
    iterator = iter(loader_of(Noisy(), num_workers=num_workers))
    expected = [[0, 1, 2], [4, 5, 6, 7], [12, 13, 14, 15], [16, 18, 19]]
    assert indices(iterator) == expected
    assert skipped(iterator) == sorted(BAD)
    assert iterator.step == 6, "batches 2 and 5 keep their numbers"


def test_each_skipped_sample_is_told_with_its_place_and_its_error() -> None:
    iterator = iter(loader_of(Noisy()))
    iterator.skip(1)
    next(iterator), next(iterator)
    last = iterator.stats().last_skipped
    assert last[0] == SkippedSample(0, 2, None, 8, "test_on_error.Bad: sample 8")
    assert [sample.step for sample in last] == [2, 2, 2, 2]
    assert str(last[0]) == "epoch 0, step 2, index 8: test_on_error.Bad: sample 8"


def test_of_a_stream_the_number_of_the_sample_is_told() -> None:
    iterator = iter(loader_of(Walking(), num_streams=2, num_workers=1))
    list(iterator)
    found = [(s.step, s.stream, s.index) for s in iterator.stats().last_skipped]
    # Stream 0 has the even indices, stream 1 the odd ones; each batch takes four.
    assert found == [(1, 1, 1), (2, 0, 4), (2, 0, 5), (3, 1, 4), (3, 1, 5)] + [
        (4, 0, 10), (5, 1, 8), (5, 1, 10)
    ]  # fmt: skip


def test_other_batches_are_as_they_would_be_without_bad_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = list(loader_of(Noisy(), num_workers=2))
    monkeypatch.setattr("test_on_error.BAD", set())
    without = list(loader_of(Noisy()))
    assert [found[1], found[2]] == [without[1], without[3]]


def test_a_sample_that_is_not_batched_is_passed_over() -> None:
    iterator = iter(loader_of(Noisy(), batch_size=None))
    assert [int(row[0]) for row in iterator] == sorted(set(range(N)) - BAD)
    assert (skipped(iterator), iterator.step) == (sorted(BAD), N)


def test_a_batch_that_was_never_delivered_has_skipped_nothing() -> None:
    iterator = iter(loader_of(Noisy(), num_workers=1, prefetch_budget=20))
    assert iterator.stats().skipped == 0
    next(iterator)
    assert skipped(iterator) == [3]
    assert iterator.skip(2) == 2
    assert indices([next(iterator)]) == [[12, 13, 14, 15]]
    assert skipped(iterator) == [3], "batch 2 was passed over on demand"


def test_what_was_skipped_is_known_when_the_workers_are_gone() -> None:
    iterator = iter(loader_of(Noisy(), num_workers=1))
    next(iterator)
    iterator.close()
    assert skipped(iterator) == [3]


def test_a_resumed_iterator_counts_from_nothing() -> None:
    iterator = iter(loader_of(Walking(), snapshot_every_n_steps=10))
    next(iterator), next(iterator)
    assert skipped(iterator) == [3]
    resumed = pickle.loads(pickle.dumps(iterator))
    next(resumed)
    assert skipped(resumed) == [8, 9, 10, 11], "what is fetched again was skipped before"


def test_workers_that_live_on_go_on_counting_in_the_next_epoch() -> None:
    loader = loader_of(Noisy(), num_workers=1, persistent_workers=True)
    list(loader)
    iterator = iter(loader)
    list(iterator)
    found = iterator.stats().last_skipped
    assert [sample.epoch for sample in found] == [0] * len(BAD) + [1] * len(BAD)


class Hopeless(Noisy):
    """No sample is good."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        raise Bad("x" * 10_000)


def test_only_the_last_hundred_are_kept_and_no_text_is_long() -> None:
    iterator = iter(loader_of(Hopeless(150)))
    assert list(iterator) == []
    stats = iterator.stats()
    assert stats.skipped == 150
    assert [sample.index for sample in stats.last_skipped] == list(range(50, 150))
    assert all(len(sample.error) == 500 for sample in stats.last_skipped)


# --- an epoch's end ------------------------------------------------------------------------------


@pytest.mark.parametrize("at_epoch_end", ["stop", "next"])
def test_an_epoch_of_nothing_but_bad_samples_is_empty(at_epoch_end: Any) -> None:
    loader = loader_of(Hopeless(9), at_epoch_end=at_epoch_end)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EmptyEpochWarning)
        assert (list(loader), list(loader), loader.epoch) == ([], [], 2)


def test_what_is_left_of_an_epoch_may_be_bad() -> None:
    loader = loader_of(Noisy())
    for _ in loader:
        state = loader.state_dict()  # before batch 5, which is empty
    loader.load_state_dict(state)
    with pytest.warns(EmptyEpochWarning):
        assert list(loader) == []
    loader.load_state_dict(state, at_epoch_end="next")
    assert len(list(loader)) == 4
    assert loader.epoch == 2


# --- samples that are replaced -------------------------------------------------------------------


def test_a_callable_gives_another_sample_or_none() -> None:
    iterator = iter(loader_of(Noisy(), on_error=instead))
    expected = [[0, 1, 2, -3], [4, 5, 6, 7], [-9, -11], [12, 13, 14, 15], [16, -17, 18, 19], [-21]]
    assert indices(iterator) == expected
    assert skipped(iterator) == [8, 10, 20]


def test_a_callable_of_a_stream_is_given_the_number_of_the_sample() -> None:
    iterator = iter(loader_of(Walking(), num_streams=2, on_error=number_instead))
    replaced = [int(row[0]) for batch in iterator for row in batch if row[0] < 0]
    assert replaced == [-1, -4, -5, -4, -5, -10, -8, -10]


def number_instead(error: Exception, index: int) -> list[float]:
    return [-float(index)]


def as_raised(error: Exception, index: int) -> Any:
    if index == 3:
        return None
    raise  # noqa: PLE0704  (the dataset's exception, which is being handled)


def something_else(error: Exception, index: int) -> Any:
    raise KeyError(index) from error


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_callable_raises_is_the_batchs_error(num_workers: int) -> None:
    iterator = iter(loader_of(Noisy(), on_error=as_raised, num_workers=num_workers))
    assert indices([next(iterator), next(iterator)]) == [[0, 1, 2], [4, 5, 6, 7]]
    with pytest.raises(Bad, match="sample 8"):
        next(iterator)
    assert indices([next(iterator)]) == [[12, 13, 14, 15]], "the epoch goes on"
    assert skipped(iterator) == [3]
    with pytest.raises(KeyError):
        next(iter(loader_of(Noisy(), on_error=something_else, num_workers=num_workers)))


def where_it_is(error: Exception, index: int) -> list[float]:
    info = get_worker_info()
    return [-1.0 if info is None else info.id, os.getpid()]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_callable_is_called_where_the_sample_is_fetched(method: str) -> None:
    loader = loader_of(Noisy(), on_error=where_it_is, num_workers=1, multiprocessing_context=method)
    worker, process = next(iter(loader))[3]
    assert worker == 0 and process != os.getpid()


# --- what is no bad sample -----------------------------------------------------------------------


def test_batches_are_fetched_as_ever_as_long_as_nothing_is_said() -> None:
    loader = DataLoader(Noisy())
    assert type(make_fetcher(job_of(loader, spec_of(loader)), 0)) is MapFetcher


def cannot_collate(samples: Any) -> Any:
    raise Bad("collate")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_collate_fn_is_raised(num_workers: int) -> None:
    iterator = iter(loader_of(Noisy(), collate_fn=cannot_collate, num_workers=num_workers))
    with pytest.raises(Bad, match="collate"):
        next(iterator)


class Raising(Noisy):
    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __getitem__(self, index: int) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, NotImplementedError])
def test_what_is_no_matter_of_a_sample_is_raised(error: type[BaseException]) -> None:
    with pytest.raises(error):
        next(iter(loader_of(Raising(error))))


# --- __getitems__ --------------------------------------------------------------------------------


def test_a_bulk_call_that_raises_is_done_again_singly_with_the_same_random_numbers() -> None:
    assert list(loader_of(InBulk())) == list(loader_of(Noisy()))


class OnlyInBulk(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitems__(self, indices: list[int]) -> list[list[float]]:
        return [sample(index) for index in indices]


class NoDatasetOfTorch:
    __len__ = OnlyInBulk.__len__
    __getitems__ = OnlyInBulk.__getitems__


@pytest.mark.parametrize("kind", [OnlyInBulk, NoDatasetOfTorch])
def test_what_a_bulk_call_raises_is_raised_where_there_is_no_other_way(kind: Any) -> None:
    iterator = iter(loader_of(kind()))
    with pytest.raises(Bad, match="sample 3"):
        next(iterator)
    assert indices([next(iterator)]) == [[4, 5, 6, 7]]


class Table(Noisy):
    """What it gives in bulk is no list, and has no truth value."""

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.tensor(indices)


def test_a_bulk_call_may_give_anything() -> None:
    assert next(iter(loader_of(Table()))).tolist() == [0, 1, 2, 3]


# --- iterators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, num_workers", [(Walk, 0), (Walk, 2), (map, 0)])
def test_an_iterator_that_goes_on_loses_its_bad_samples_only(kind: Any, num_workers: int) -> None:
    dataset = Walking(partial(map, sample) if kind is map else partial(Walk, give=sample))
    iterator = iter(loader_of(dataset, num_streams=1, num_workers=num_workers))
    expected = [[0, 1, 2], [4, 5, 6, 7], [12, 13, 14, 15], [16, 18, 19]]
    assert indices(iterator) == expected
    assert skipped(iterator) == sorted(BAD)


def test_drop_last_looks_at_what_was_asked_for_and_not_at_what_is_left() -> None:
    iterator = iter(loader_of(Walking(), batch_size=5, drop_last=True))
    assert indices(iterator) == [[0, 1, 2, 4], [5, 6, 7], [12, 13, 14], [15, 16, 18, 19]]
    assert skipped(iterator) == [3, 8, 9, 10, 11, 17], "20 and 21 were dropped"


def generated(indices: range) -> Iterator[list[float]]:
    for index in indices:
        yield sample(index)


def in_an_expression(indices: range) -> Iterator[list[float]]:
    return (sample(index) for index in indices)


def with_a_generator_inside(indices: range) -> Iterator[list[float]]:
    return map(list, generated(indices))


class Explaining(Walk):
    """Raises an error of its own for that of a generator."""

    def __init__(self, indices: range) -> None:
        self.samples = generated(indices)

    def __next__(self) -> list[float]:
        try:
            return next(self.samples)
        except Bad as error:
            raise ValueError("no sample") from error


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", [generated, in_an_expression, with_a_generator_inside, Explaining])
def test_the_error_of_a_generator_which_is_dead_then_is_raised(kind: Any, num_workers: int) -> None:
    iterator = iter(loader_of(Walking(kind), num_workers=num_workers, batch_size=2))
    assert indices([next(iterator)]) == [[0, 1]]
    with pytest.raises((Bad, ValueError), match="sample"):
        next(iterator)
    assert next(iterator, None) is None
    assert iterator.stats().skipped == 0


def test_a_shuffle_buffer_does_not_hide_that_its_generator_is_dead() -> None:
    iterator = iter(loader_of(ShuffleBuffer(Walking(generated), 4, seed=0), on_error=instead))
    with pytest.raises(Bad, match="sample 3"):
        next(iterator)


class Itself(Bad):
    """Raised from itself, as people do."""


class Circular(Walk):
    def __next__(self) -> list[float]:
        try:
            return super().__next__()
        except Bad:
            error = Itself()
            raise error from error


def test_an_error_may_be_its_own_cause() -> None:
    assert len(list(loader_of(Walking(partial(Circular, give=sample))))) == 4


# --- too many ------------------------------------------------------------------------------------


class Endless(Walk):
    """A connection that is dead, and has an error for every call."""

    def __next__(self) -> list[float]:
        self.at += 1
        if self.at in (1, 40):
            return [self.at]
        raise Bad("dead")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_iterator_that_has_errors_only_does_not_go_on_for_ever(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_MOST_EMPTY", 3)
    iterator = iter(loader_of(Walking(Endless), num_workers=num_workers))
    assert indices([next(iterator)]) == [[1]]
    with pytest.raises(
        NoSampleError, match=r"batches in a row .*index \d+ of stream 0: .*dead"
    ) as caught:
        next(iterator)
    assert caught.value.batches >= 3
    with pytest.raises(NoSampleError):
        next(iterator)
    assert indices([next(iterator)]) == [[40]], "whoever asks again is given what comes next"
    again = pickle.loads(pickle.dumps(iterator))
    assert again.step == iterator.step == 10


def test_a_resumed_iterator_stands_behind_what_it_has_passed_over_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "_MOST_EMPTY", 3)
    resumed = pickle.loads(pickle.dumps(iter(loader_of(Hopeless(40)))))
    for step in (3, 6):
        with pytest.raises(NoSampleError, match="3 batches in a row"):
            next(resumed)
        assert resumed.step == pickle.loads(pickle.dumps(resumed)).step == step


# --- warnings ------------------------------------------------------------------------------------


def told(act: Callable[[], object]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return caught


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_first_bad_sample_of_an_epoch_is_told_where_the_program_asks_for_it(
    num_workers: int,
) -> None:
    loader = loader_of(Noisy(), num_workers=num_workers, persistent_workers=num_workers > 0)
    for epoch in (0, 1):
        [warning] = told(lambda: list(loader))
        assert warning.category is SkippedWarning
        assert f"epoch {epoch}, step 0, index 3: test_on_error.Bad: sample 3" in str(warning)
        assert warning.filename == __file__


def test_a_pass_that_skips_nothing_warns_of_nothing() -> None:
    assert told(lambda: next(iter(loader_of(Subset(Noisy(), [0, 1, 2]))))) == []


def test_an_empty_batch_is_told_as_well_the_epochs_last_one_too() -> None:
    [warning] = told(lambda: list(loader_of(Hopeless(2))))
    assert "step 0, index 0" in str(warning)


class HeadLast(Noisy):
    """Step 0 comes when step 3 has begun; all of step 1 is bad."""

    def __init__(self) -> None:
        self.wait, self.go = os.pipe()

    def __getitem__(self, index: int) -> list[float]:
        if index == 0:
            os.read(self.wait, 1)
        if index == 3:
            os.write(self.go, b"!")
        if index == 1:
            raise Bad
        return [index]


def test_a_warning_that_is_raised_as_an_error_loses_no_batch() -> None:
    dataset = HeadLast()
    iterator = iter(loader_of(dataset, batch_size=1, num_workers=2))
    assert indices([next(iterator)]) == [[0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error", SkippedWarning)
        with pytest.raises(SkippedWarning, match="step 1"):
            next(iterator)
    resumed = pickle.dumps(iterator)
    assert (iterator.step, indices([next(iterator)])) == (2, [[2]])
    assert iterator.stats().skipped == 1
    assert indices(pickle.loads(resumed))[0] == [2]
    iterator.close()
    os.close(dataset.wait), os.close(dataset.go)


# --- batch_at ------------------------------------------------------------------------------------


def test_batch_at_gives_the_batch_without_its_bad_samples() -> None:
    loader = loader_of(Noisy())
    batches = list(loader)
    assert [loader.batch_at(step, 0) for step in (0, 1, 3, 4)] == batches
    with pytest.raises(UsageError, match="step 2 has no batch: .* at index 8, with .*sample 8"):
        loader.batch_at(2, 0)


# --- the argument --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["ignore", None, 3, ["skip"]])
def test_other_values_are_refused_at_once(value: Any) -> None:
    with pytest.raises(ValueError, match='on_error should be "raise", "skip" or a callable'):
        DataLoader(Noisy(), on_error=value)


def test_it_is_kept_with_a_loader_and_with_its_iterators() -> None:
    loader = pickle.loads(pickle.dumps(loader_of(Noisy(), on_error=instead)))
    assert loader.on_error is instead
    again = pickle.loads(pickle.dumps(iter(loader)))
    assert indices([next(again)]) == [[0, 1, 2, -3]]


def test_a_state_goes_on_under_another_choice() -> None:
    iterator = iter(loader_of(Noisy(), on_error="skip"))
    next(iterator), next(iterator)
    loader = loader_of(Noisy(), on_error="raise")
    loader.load_state_dict(iterator.state_dict())
    with pytest.raises(Bad, match="sample 8"):
        next(iter(loader))
