"""Accelerate: which loader is exact in which case."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
from accelerate.utils import concatenate, slice_tensors
from torch.utils.data import BatchSampler

from picklable_loader import DataLoader, progress
from picklable_loader.errors import LoaderWarning, StateMismatch, UsageError
from picklable_loader.integrations import accelerate as adapter
from picklable_loader.integrations.accelerate_batches import BatchesOfRanks, SeekableBatchesOfRanks

from .data import EPOCHS, SIZE, Map, SizedStream
from .harness import Server
from .table import Options, Table

RUNS = "frameworks.accelerate_runs"


#: the table's columns
_LOADERS: dict[str, Options] = {
    "`prepare`": {"loader": "ours"},
    "`prepare`, no `seed=`": {"loader": "ours without seed"},
    "ours alone": {"loader": "ours", "alone": True},
    "torch": {"loader": "torch"},
    "torchdata": {"loader": "torchdata"},
}


#: both processes write torchdata's states into one file: who is the last is chance
_TWO_PROCESSES = {"ranks": 2, "no": ["torchdata"]}
_OURS = {"no": ["ours alone", "torch", "torchdata"]}


def _dispatch(**config: Any) -> Options:
    return {**_TWO_PROCESSES, "config": {"dispatch_batches": True, **config}}


_MIDDLE_AND_END = {"checkpoint": [13, 20]}
#: two processes with 4 batches each in an epoch, of 6 samples
_TWO = {**_TWO_PROCESSES, "checkpoint": [6, 8], "batch_size": 6, "per_epoch": 4}
_FIVES = {**_TWO, "batch_size": 5}
_HALVES = {**_TWO_PROCESSES, "checkpoint": [7, 10], "per_epoch": 5}

#: the table's rows
_CASES: dict[str, Options] = {
    "map-style, in mid-epoch": {"checkpoint": 13},
    "at an epoch's last step": {"checkpoint": 20},
    "iterable-style without length": {**_MIDDLE_AND_END, "kind": "stream"},
    "iterable-style with length": {**_MIDDLE_AND_END, "kind": "sized stream"},
    "iterable-style with a state": {**_MIDDLE_AND_END, "kind": "stateful stream"},
    "gradient accumulation": {"checkpoint": [12, 20], "accumulate": 2},
    "`skip_first_batches` and no state": {**_MIDDLE_AND_END, "resume": "skip"},
    "`skip_first_batches` after `load_state`": {**_MIDDLE_AND_END, "resume": "both"},
    "a loop over `range(saved_epoch, ...)`": {**_MIDDLE_AND_END, "counts": "epochs"},
    "the same, iterable-style without length": {
        **_MIDDLE_AND_END,
        "kind": "stream",
        "counts": "epochs",
    },
    "the same, with `set_epoch`": {**_MIDDLE_AND_END, "counts": "set_epoch"},
    "the same, with `dispatch_batches=True`": {**_HALVES, **_dispatch(), "counts": "set_epoch"},
    "two processes": _TWO,
    "`split_batches=True`": {
        **_TWO,
        "checkpoint": [9, 14],
        "per_epoch": 7,
        "config": {"split_batches": True},
    },
    "`even_batches=False`": {**_FIVES, "config": {"even_batches": False}},
    "`drop_last=True`": {**_TWO, "checkpoint": [4, 6], "per_epoch": 3, "drop_last": True},
    "a sampler of one's own": {**_TWO, "sampler": "own sampler"},
    "a batch sampler of one's own": {**_HALVES, "sampler": "batches"},
    '`shard="auto"`': {**_TWO, "shard": "auto", **_OURS},
    "`dispatch_batches=True`": {**_HALVES, **_dispatch()},
    "`dispatch_batches=True`, an uneven end": {
        **_dispatch(split_batches=False),
        "kind": "odd",
        "checkpoint": [5, 6],
        "batch_size": 8,
        "per_epoch": 3,
    },
    "`dispatch_batches=True`, `split_batches=True`": {
        **_MIDDLE_AND_END,
        **_dispatch(split_batches=True),
    },
    "two processes, iterable-style": {**_HALVES, "kind": "stream"},
    "two processes, iterable-style with a state": {**_HALVES, "kind": "stateful stream"},
    "iterable-style, `dispatch_batches=False`": {
        **_FIVES,
        "kind": "stream",
        "config": {"dispatch_batches": False},
    },
}

_CORE = (
    "map-style, in mid-epoch",
    "at an epoch's last step",
    "iterable-style without length",
    "two processes",
    "two processes, iterable-style",
)

ACCELERATE = Table("Accelerate", "train", _LOADERS, _CASES, _CORE)


@pytest.mark.parametrize(("case", "loader"), ACCELERATE.cells())
def test_a_resume_is_as_the_table_says(
    server: Server, tmp_path: Path, case: str, loader: str
) -> None:
    assert ACCELERATE.found(server, tmp_path, case, loader) == ACCELERATE.documented(case, loader)


@pytest.mark.parametrize("kind", ["map", "sized stream"])
@pytest.mark.parametrize(
    ("ranks", "checkpoint", "per_epoch"),
    [((1, 2), 14, 10), ((1, 2), 20, 10), ((2, 1), 7, 5), ((2, 1), 10, 5)],
)
def test_any_number_of_processes_goes_on_with_the_share_of_the_loader_itself(
    server: Server,
    tmp_path: Path,
    ranks: tuple[int, int],
    checkpoint: int,
    per_epoch: int,
    kind: str,
) -> None:
    options: Options = {"loader": "ours", "workers": 0, "shard": "auto", "kind": kind}
    options |= {"num_streams": 2} if kind != "map" else {}
    ids = server.on_other_ranks(
        "train", tmp_path, checkpoint, ranks, per_epoch=per_epoch, **options
    )
    epochs = [sorted(ids[at : at + SIZE]) for at in range(0, len(ids), SIZE)]
    assert epochs == EPOCHS * [[*range(SIZE)]]


# --- in this process -----------------------------------------------------------------------------


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_processes_have_the_batches_that_accelerate_gives_them(
    split: bool, even: bool, drop_last: bool
) -> None:
    for world, size in product((2, 3), range(1, 40)):
        order = torch.randperm(size).tolist()
        inner = BatchSampler(order, 6, drop_last)
        shares = [BatchSamplerShard(inner, world, rank, split, even) for rank in range(world)]
        theirs = [list(share) for share in shares]
        for kind in (BatchesOfRanks, SeekableBatchesOfRanks):
            ours = [
                list(
                    DataLoader(
                        range(size),
                        batch_sampler=kind(inner, share),
                        collate_fn=list,
                        shard=(rank, world),
                        shard_tail="uneven",
                        seed=0,
                    )
                )
                for rank, share in enumerate(shares)
            ]
            assert ours == theirs, (world, size, kind)
            assert sum(map(len, theirs)) == len(kind(inner, shares[0]))


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_an_uneven_last_step_is_filled_from_itself_and_not_from_where_the_pass_began(
    processes: int,
) -> None:
    for size in range(1, 3 * processes):
        shares = []
        for process in range(processes):
            made = object.__new__(adapter.PreparedDispatcher)
            made.__dict__.update(processes=processes, _slice=slice_tensors, _fills=True)
            first = made.slice_fn({"id": torch.arange(90, 99)}, slice(0, processes))
            last = concatenate([{"id": torch.arange(size)}, first])  # as Accelerate does
            count = -(-size // processes)
            rows = slice(process * count, (process + 1) * count)
            shares.append(made.slice_fn(last, rows, process_index=process)["id"].tolist())
        assert [len(share) for share in shares] == [count] * processes
        assert sum(shares, []) == [number % size for number in range(count * processes)]


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    accelerator = Accelerator(cpu=True)
    yield accelerator
    accelerator.free_memory()


def test_all_options_survive(accelerator: Accelerator) -> None:
    loader = DataLoader(range(8), batch_size=2, seed=3, seeding="sample", remember=5)
    prepared = adapter.prepare(accelerator, loader)
    assert prepared.base_dataloader is loader
    assert loader.remember == 5
    assert isinstance(prepared, DataLoaderShard) and isinstance(prepared, DataLoader)


def test_gradients_are_synchronised_at_the_last_batch(accelerator: Accelerator) -> None:
    prepared = adapter.prepare(accelerator, DataLoader(range(5), batch_size=2, seed=0))
    state = accelerator.gradient_state
    assert [state.end_of_dataloader for _ in prepared] == [False, False, True]
    assert prepared.total_batch_size == 2
    assert prepared.remainder == 1


def test_accelerates_own_prepare_warns(accelerator: Accelerator) -> None:
    with pytest.warns(LoaderWarning, match="picklable_loader.integrations.accelerate"):
        accelerator.prepare(DataLoader(range(8)))


def test_a_skip_of_a_loader_that_is_not_prepared_warns() -> None:
    with pytest.warns(LoaderWarning, match="skip_first_batches make a loader of torch's"):
        skip_first_batches(DataLoader(range(8)), 2)


def test_accelerates_own_skip_first_batches_is_refused(accelerator: Accelerator) -> None:
    prepared = adapter.prepare(accelerator, DataLoader(range(8), seed=0))
    with pytest.raises(UsageError, match="accelerator.skip_first_batches"):
        skip_first_batches(prepared, 2)


def test_a_skip_fetches_nothing_and_counts_from_the_epochs_beginning(
    accelerator: Accelerator,
) -> None:
    fetched: list[int] = []

    class Noted(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            fetched.append(index)
            return index

    prepared = adapter.prepare(accelerator, DataLoader(Noted(), batch_size=2, seed=0))
    list(accelerator.skip_first_batches(prepared, 3))
    assert fetched == [6, 7, 8, 9]
    fetched.clear()
    list(prepared)
    assert fetched == list(range(10))


def test_a_skip_goes_on_from_a_loaded_state_and_not_back(accelerator: Accelerator) -> None:
    prepared = adapter.prepare(accelerator, DataLoader(range(10), batch_size=2, seed=0))
    batches = iter(prepared)
    next(batches), next(batches)
    state = prepared.state_dict()
    assert state["step"] == 2
    prepared.load_state_dict(state)
    assert [batch.tolist() for batch in adapter.skip_first_batches(prepared, 4)] == [[8, 9]]
    prepared.load_state_dict(state)
    with pytest.raises(UsageError, match="cannot go back"):
        next(iter(adapter.skip_first_batches(prepared, 1)))


def test_loaders_that_were_freed_are_in_no_checkpoint(
    accelerator: Accelerator, tmp_path: Path
) -> None:
    """``find_executable_batch_size`` prepares others after ``free_memory``."""

    def batches_after(saved: Any) -> list[Any]:
        return [batch.tolist() for batch in saved]

    for attempt, size in enumerate((4, 3, 2)):
        first, second = (
            adapter.prepare(accelerator, DataLoader(range(12), size, shuffle=True, seed=seed))
            for seed in (attempt, 9)
        )
        iterators = iter(first), iter(second)
        next(iterators[0])
        accelerator.save_state(str(tmp_path / str(size)))
        rest = [batches_after(iterator) for iterator in iterators]
        accelerator.load_state(str(tmp_path / str(size)))
        assert [batches_after(loader) for loader in (first, second)] == rest
        freed = weakref.ref(first)
        del first, second, iterators
        accelerator.free_memory()
        gc.collect()
        assert freed() is None


def test_a_checkpoint_without_a_state_is_an_error(accelerator: Accelerator, tmp_path: Path) -> None:
    accelerator.save_state(str(tmp_path))
    adapter.prepare(accelerator, DataLoader(range(8), seed=0))
    with pytest.raises(UsageError, match="has no state of this loader"):
        accelerator.load_state(str(tmp_path))


def _at_the_last_step(folder: Path, at_epoch_end: Any = None) -> tuple[Accelerator, Any]:
    """A loader that goes on from a checkpoint of the last step of epoch 0."""
    for resumes in (False, True):
        accelerator = Accelerator(cpu=True)
        loader = DataLoader(range(6), batch_size=2, shuffle=True, seed=0)
        prepared = adapter.prepare(accelerator, loader, at_epoch_end)
        if resumes:
            accelerator.load_state(str(folder))
        for step, _ in enumerate(prepared if not resumes else ()):
            if step == 2:
                accelerator.save_state(str(folder))
    return accelerator, prepared


def _epochs(count: int) -> list[list[list[int]]]:
    loader = DataLoader(range(6), batch_size=2, shuffle=True, seed=0)
    return [[batch.tolist() for batch in loader] for _ in range(count)]


@pytest.mark.parametrize(("at_epoch_end", "first"), [("stop", 0), ("next", 1)])
def test_the_program_says_what_follows_an_epochs_last_step(
    tmp_path: Path, at_epoch_end: str, first: int, recwarn: pytest.WarningsRecorder
) -> None:
    accelerator, prepared = _at_the_last_step(tmp_path, at_epoch_end)
    expected = [[], *_epochs(3)[1:]][first:]
    assert [[batch.tolist() for batch in prepared] for _ in expected] == expected
    assert not [each for each in recwarn if issubclass(each.category, LoaderWarning)]


def test_a_loop_that_does_not_say_so_is_warned(tmp_path: Path) -> None:
    accelerator, prepared = _at_the_last_step(tmp_path)
    with pytest.warns(LoaderWarning, match="last step of epoch 0, and this pass is epoch 1"):
        assert [batch.tolist() for batch in prepared] == _epochs(2)[1]


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_set_epoch_says_so_as_well(
    tmp_path: Path, epoch: int, recwarn: pytest.WarningsRecorder
) -> None:
    accelerator, prepared = _at_the_last_step(tmp_path)
    for each in range(epoch, 3):
        prepared.set_epoch(each)
        assert [batch.tolist() for batch in prepared] == ([] if not each else _epochs(3)[each])
    assert not [each for each in recwarn if issubclass(each.category, LoaderWarning)]


def test_a_checkpoint_that_is_saved_before_the_next_pass_is_of_the_last_step_as_well(
    tmp_path: Path,
) -> None:
    accelerator, prepared = _at_the_last_step(tmp_path, "stop")
    accelerator.save_state(str(tmp_path / "second"))
    accelerator.load_state(str(tmp_path / "second"))
    assert list(prepared) == []
    accelerator.save_state(str(tmp_path / "third"))
    accelerator.load_state(str(tmp_path / "third"))
    assert [batch.tolist() for batch in prepared] == _epochs(2)[1]


@pytest.mark.parametrize("leaves", ["zip", "islice", "break", "not"])
def test_a_pass_that_was_left_at_its_last_step_is_over(
    accelerator: Accelerator, tmp_path: Path, leaves: str
) -> None:
    def make() -> Any:
        return DataLoader(range(6), batch_size=2, shuffle=True, seed=0)

    prepared, other = (adapter.prepare(accelerator, make(), "stop") for _ in range(2))
    if leaves == "zip":
        list(zip(other, prepared))
    elif leaves == "islice":
        list(islice(prepared, 3))
    for step, _ in enumerate(prepared if leaves in ("break", "not") else ()):
        if step == 2 and leaves == "break":
            break
    accelerator.save_state(str(tmp_path))
    accelerator.load_state(str(tmp_path))
    assert [batch.tolist() for batch in prepared] == _epochs(2)[1]


@pytest.mark.parametrize(("skipped", "first"), [(0, 1), (3, 0)])
def test_skip_first_batches_says_so_as_well(
    tmp_path: Path, skipped: int, first: int, recwarn: pytest.WarningsRecorder
) -> None:
    accelerator, prepared = _at_the_last_step(tmp_path)
    expected = [[], *_epochs(3)[1:]][first:]
    accelerator.skip_first_batches(prepared, skipped)
    assert [[batch.tolist() for batch in prepared] for _ in expected] == expected
    assert not [each for each in recwarn if issubclass(each.category, LoaderWarning)]


def test_a_prepared_loader_is_prepared_once_and_others_are_refused(
    accelerator: Accelerator,
) -> None:
    prepared = adapter.prepare(accelerator, DataLoader(range(8), seed=0))
    assert adapter.prepare(accelerator, prepared) is prepared
    with pytest.raises(UsageError, match="got a DataLoader: use accelerator.prepare"):
        adapter.prepare(accelerator, torch.utils.data.DataLoader(range(8)))


def test_set_epoch_in_mid_epoch_leaves_the_position_as_it_is(accelerator: Accelerator) -> None:
    prepared = adapter.prepare(accelerator, DataLoader(range(6), batch_size=2, seed=0))
    batches = iter(prepared)
    next(batches)
    before = prepared.state_dict()
    prepared.set_epoch(3)
    assert (prepared.state_dict()["step"], before["step"]) == (1, 1)
    assert len(list(batches)) == 2
    del batches
    for _ in prepared:
        break
    prepared.set_epoch(5)  # nobody can go on with the pass that was left
    assert (prepared.state_dict()["epoch"], prepared.state_dict()["step"]) == (5, 0)


@pytest.mark.parametrize("steps", [1, 3])
def test_progress_of_a_prepared_loader_ends_at_100_percent(
    accelerator: Accelerator, tmp_path: Path, steps: int
) -> None:
    prepared = adapter.prepare(accelerator, DataLoader(range(6), batch_size=2, seed=0), "stop")
    for step, _ in enumerate(prepared, 1):
        if step == steps:
            accelerator.save_state(str(tmp_path))
    accelerator.load_state(str(tmp_path))
    bar = progress(prepared, file=io.StringIO())
    assert (bar.initial, bar.total) == (steps, 3)
    assert len(list(bar)) == 3 - steps
    assert bar.n == 3


def test_a_loader_that_is_prepared_after_load_state_is_warned_of(tmp_path: Path) -> None:
    def prepared(accelerator: Accelerator) -> Any:
        return adapter.prepare(accelerator, DataLoader(range(8), seed=0))

    saved, late = Accelerator(cpu=True), Accelerator(cpu=True)
    loaders = [prepared(saved) for _ in range(2)]
    next(iter(loaders[1]))
    saved.save_state(str(tmp_path))
    first = prepared(late)
    with pytest.warns(LoaderWarning, match="states of more loaders than the 1 that are prepared"):
        late.load_state(str(tmp_path))
    with pytest.warns(LoaderWarning, match="prepared after load_state.*begins at epoch 0"):
        prepared(late)
    late.free_memory()
    assert [prepared(late) for _ in range(1)] != [first]  # it begins anew, without a warning


def test_a_checkpoint_that_is_overwritten_has_no_loaders_of_before(tmp_path: Path) -> None:
    for count in (3, 1):
        accelerator = Accelerator(cpu=True)
        loaders = [adapter.prepare(accelerator, DataLoader([0], seed=0)) for _ in range(count)]
        accelerator.save_state(str(tmp_path))
    assert len(loaders) == len([*tmp_path.glob("picklable_loader_*")]) == 1


def test_a_share_of_another_kind_is_an_error(accelerator: Accelerator, tmp_path: Path) -> None:
    prepared = adapter.prepare(accelerator, DataLoader(range(8), seed=0))
    prepared.save(tmp_path)
    prepared.layout = {**prepared.layout, "processes": 2}
    with pytest.raises(StateMismatch, match="processes: expected 2 .*found 0"):
        prepared.load(tmp_path)


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize("dataset", [Map, SizedStream])
def test_files_that_a_larger_job_has_left_in_the_folder_are_not_read(
    accelerator: Accelerator, tmp_path: Path, dataset: Any
) -> None:
    seen: list[int] = []
    for world, steps in (4, 2), (2, 1), (3, None):
        jobs = []
        for process in range(world):
            streams = {} if dataset is Map else {"num_streams": 8}
            loader = DataLoader(
                dataset(96), 2, seed=1, shard=(process, world), shard_tail="uneven", **streams
            )
            prepared = adapter.prepare(accelerator, loader)
            prepared.index, prepared.process, prepared.processes = 0, process, world
            if world < 4:
                prepared.load(tmp_path)
            jobs.append(prepared)
        for prepared in jobs:
            for batch in islice(prepared, steps):
                seen += batch["id"].tolist()
            if steps:
                prepared.save(tmp_path)
    assert len([*tmp_path.iterdir()]) == 4
    assert sorted(seen) == [*range(96)]


def test_a_loader_with_a_loaded_state_is_refused(accelerator: Accelerator) -> None:
    loader = DataLoader(range(8), seed=0)
    loader.load_state_dict({})
    with pytest.raises(UsageError, match="prepare the loader first"):
        adapter.prepare(accelerator, loader)


def test_an_accelerate_without_a_hook_is_named(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(adapter.DataLoaderDispatcher, "_fetch_batches")
    with pytest.raises(UsageError, match="_fetch_batches.*tried with accelerate 1.15.0"):
        adapter.prepare(accelerator, DataLoader(range(8)))


def test_an_accelerate_whose_loaders_lack_an_attribute_is_named(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = adapter.DataLoaderShard.__init__

    def without(self: object, *arguments: object, **options: object) -> None:
        begun(self, *arguments, **options)
        del self._non_blocking  # type: ignore[attr-defined]

    monkeypatch.setattr(adapter.DataLoaderShard, "__init__", without)
    with pytest.raises(UsageError, match="has no _non_blocking.*tried with accelerate 1.15.0"):
        adapter.prepare(accelerator, DataLoader(range(8)))
