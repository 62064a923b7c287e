"""worker_init_fn_arg and worker_exit_fn: what issue 13023 asks for."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset, IterDataPipe, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper
from zoo.datasets import as_they_are, noise
from zoo.samplers import PlainIterator
from zoo.streams import Allotted, SavedWalk, Walk

from picklable_loader import DataLoader, WorkerStart
from picklable_loader.errors import RestartWarning, UsageError
from picklable_loader.rng.generators import capture_all

SHARES: dict[str, Any] = {}


class Shared(Dataset[Any]):
    """Gives what its worker was given; a worker dies of one sample, once."""

    def __init__(self, flag: str = "") -> None:
        self.flag = flag

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index == 6 and os.path.exists(self.flag):
            os.remove(self.flag)
            os.kill(os.getpid(), signal.SIGKILL)
        info = get_worker_info()
        assert info is not None
        return index, info.id, SHARES["given"]


def init(worker: int, given: Any) -> None:
    SHARES["given"] = (worker, given)


def describe(start: WorkerStart) -> Any:
    return (
        start.worker_id,
        start.num_workers,
        start.base_seed,
        start.epoch,
        start.rank,
        start.world_size,
    )


def make(**options: Any) -> DataLoader[Any]:
    given = {"num_workers": 2, "collate_fn": as_they_are, "worker_init_fn": init, **options}
    return DataLoader(given.pop("dataset", None) or Shared(), 2, **given)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_each_worker_has_an_argument_of_its_own(context: str) -> None:
    loader = make(worker_init_fn_arg=describe, seed=1, multiprocessing_context=context)
    for epoch in range(2):
        for batch in loader:
            for _, worker, given in batch:
                seed = given[1][2]
                assert given == (worker, (worker, 2, seed, epoch, 0, 1)) and seed > 2**20


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_an_argument_that_cannot_be_pickled_is_named_with_its_worker(
    context: str,
) -> None:
    answers: Iterator[Any] = iter([0, lambda: None, 0, 1])
    options = {"worker_init_fn_arg": lambda start: next(answers), "seed": 1}
    loader = make(multiprocessing_context=context, **options)
    wrong = (
        "(?s)has returned <function .*for worker 1, which cannot be pickled"
        f".*'{context}' needs.* Then call iter or next again"
    )
    with pytest.raises(UsageError, match=wrong):
        iter(loader)
    assert {given for batch in loader for _, _, given in batch} <= {(0, 0), (1, 1)}


def test_the_main_process_shows_its_dataset_and_the_samplers_live_iterator() -> None:
    starts: list[WorkerStart] = []
    dataset = Shared()
    loader = make(dataset=dataset, sampler=PlainIterator(), worker_init_fn_arg=starts.append)
    iterator = iter(loader)
    next(iterator)
    assert [start.worker_id for start in starts] == [0, 1]
    assert all(start.dataset is dataset for start in starts)
    assert all(start.sampler_iter is iterator.get_sampler_iter() for start in starts)


def test_an_order_that_is_computed_has_no_iterator_to_show() -> None:
    starts: list[WorkerStart] = []
    next(iter(make(shuffle=True, worker_init_fn_arg=starts.append)))
    assert [start.sampler_iter for start in starts] == [None, None]


def test_a_replacement_has_an_argument_too_made_when_it_starts(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    given: list[int] = []

    def count(start: WorkerStart) -> int:
        given.append(start.worker_id)
        return len(given)

    loader = make(dataset=Shared(str(flag)), num_workers=1, worker_init_fn_arg=count)
    with pytest.warns(RestartWarning):
        batches = [*loader]
    assert given == [0, 0]
    assert {sample[2] for batch in batches for sample in batch} == {(0, 1), (0, 2)}


def test_a_resume_makes_the_arguments_anew() -> None:
    loader = make(worker_init_fn_arg=lambda start: describe(start), seed=1)
    iterator = iter(loader)
    next(iterator)
    samples = [sample for batch in pickle.loads(pickle.dumps(iterator)) for sample in batch]
    assert [index for index, *_ in samples] == [*range(2, 12)]
    assert all(given[0] == worker == given[1][0] for _, worker, given in samples)


def test_what_it_raises_names_the_worker_and_iter_can_be_called_again() -> None:
    faults = iter([True])

    def refuse(start: WorkerStart) -> int:
        if start.worker_id and next(faults, False):
            raise ZeroDivisionError("no share")
        return 0

    loader = make(worker_init_fn_arg=refuse)
    wrong = "ZeroDivisionError: no share, .* for worker 1.* Call iter or next again"
    with pytest.raises(UsageError, match=wrong):
        iter(loader)
    assert len([*loader]) == 6


def test_what_worker_init_fn_raises_in_a_worker_names_the_worker() -> None:
    def init_without(worker: int) -> None:
        pass

    loader = make(worker_init_fn=init_without, worker_init_fn_arg=describe)
    with pytest.raises(TypeError, match="worker process [01](.|\n)*takes 1 positional argument"):
        next(iter(loader))


def test_an_argument_without_a_function_that_takes_it_is_refused() -> None:
    with pytest.raises(UsageError, match="needs worker_init_fn"):
        iter(make(worker_init_fn=None, worker_init_fn_arg=describe))
    pipe: IterDataPipe[int] = IterableWrapper(range(4))
    with pytest.raises(UsageError, match="DataPipes"):
        iter(make(dataset=pipe, worker_init_fn_arg=describe))


@pytest.mark.parametrize("workers", [{"num_workers": 2}, {"num_workers": 0, "num_streams": 2}])
def test_an_argument_may_be_random_and_leaves_the_programs_generators(workers: Any) -> None:
    before = capture_all()
    arguments: list[list[float]] = []

    def made(start: WorkerStart) -> None:
        arguments.append(noise())

    options = {"worker_init_fn": lambda worker, given: None, "seed": 1, **workers}
    iterator = iter(DataLoader(Allotted(), 2, worker_init_fn_arg=made, **options))
    iterator.start()
    state = pickle.dumps(iterator.state_dict())
    iterator.close()
    loader = DataLoader(Allotted(), 2, worker_init_fn_arg=made, **options)
    loader.load_state_dict(pickle.loads(state))
    iter(loader).start()
    assert arguments[:2] == arguments[2:] and arguments[0] != arguments[1]
    assert capture_all() == before


# --- several streams in a process ----------------------------------------------------------------


def allot(start: WorkerStart) -> range:
    return range(start.worker_id, 20, start.num_workers)


def take(worker: int, mine: range) -> None:
    info = get_worker_info()
    assert info is not None and mine == range(info.id, 20, info.num_workers) and worker == info.id
    info.dataset.mine = mine


def allotted(num_workers: int, walk: Any = SavedWalk, **options: Any) -> DataLoader[Any]:
    given = {"worker_init_fn": take, "worker_init_fn_arg": allot, "seed": 1, **options}
    return DataLoader(Allotted(walk), 2, num_workers=num_workers, **given)


def samples_of(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.tolist()]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_each_stream_has_an_argument_of_its_own(num_workers: int) -> None:
    assert sorted(samples_of(allotted(num_workers, num_streams=3))) == [*range(20)]


@pytest.mark.filterwarnings("ignore:the dataset Allotted has no state")
@pytest.mark.parametrize("walk", [SavedWalk, Walk, iter])
@pytest.mark.parametrize("now", [0, 1, 2, 4])
@pytest.mark.parametrize("saved", [2, 3])
def test_a_resume_under_other_workers_gives_each_stream_its_argument(
    saved: int, now: int, walk: Any
) -> None:
    whole = samples_of(allotted(saved, walk))
    iterator = iter(allotted(saved, walk))
    seen = samples_of(next(iterator) for _ in range(3))
    state = iterator.state_dict()
    iterator.close()
    loader = allotted(now, walk)
    loader.load_state_dict(state)
    assert sorted(whole) == [*range(20)] and seen + samples_of(loader) == whole


class Unequal(Allotted):
    """Of two streams the second one is short: its rank reads it again, and then the other one."""

    def stream_length(self, stream: int, streams: int) -> int:
        return len(of_unequal(stream))


def of_unequal(stream: int) -> range:
    return range(100, 102) if stream else range(40)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_streams_that_a_rank_reads_again_have_their_arguments(num_workers: int) -> None:
    def take_its(worker: int, mine: range) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.mine = mine

    hooks = {
        "worker_init_fn": take_its,
        "worker_init_fn_arg": lambda start: of_unequal(start.worker_id),
    }
    options = {"num_workers": num_workers, "num_streams": 2, "shard": (1, 2), **hooks}
    loader = DataLoader(Unequal(), 2, seed=1, **options)
    assert samples_of(loader) == [100, 101, 100, 101, *range(36)]


# --- the end of a worker -------------------------------------------------------------------------


class Leaves:
    """Writes a file when its worker ends; it may take a while, or fail."""

    def __init__(self, folder: Path, seconds: float = 0.0, fails: bool = False) -> None:
        self.folder, self.seconds, self.fails = folder, seconds, fails

    def __call__(self, worker: int) -> None:
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            pass
        (self.folder / str(worker)).write_text(str(os.getpid()))
        if self.fails:
            raise ZeroDivisionError(f"of worker {worker}")


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("ends", ["the epoch", "close", "the last reference"])
def test_a_worker_that_ends_in_good_order_calls_worker_exit_fn(
    ends: str, context: str, tmp_path: Path
) -> None:
    """Also if that takes longer than a worker has without one."""
    exits = Leaves(tmp_path, seconds=0.6)
    loader = DataLoader(
        range(12), 2, num_workers=2, worker_exit_fn=exits, multiprocessing_context=context
    )
    iterator = iter(loader)
    next(iterator)
    if ends == "the epoch":
        for _ in iterator:
            pass
    elif ends == "close":
        iterator.close()
    else:
        del iterator, loader
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_persistent_workers_call_it_once_at_their_end(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
    loader = DataLoader(range(4), worker_exit_fn=Leaves(tmp_path), **options)
    for _ in range(2):
        for _ in loader:
            pass
        assert not [*tmp_path.iterdir()]
    del loader
    assert len([*tmp_path.iterdir()]) == 1


def test_its_failure_is_a_warning_with_the_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in DataLoader(range(4), num_workers=1, worker_exit_fn=Leaves(tmp_path, fails=True)):
        pass
    said = capfd.readouterr().err
    assert "worker_exit_fn has failed in DataLoader worker 0" in said
    assert "ZeroDivisionError: of worker 0" in said
