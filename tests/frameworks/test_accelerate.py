"""Accelerate: which loader is exact in which case."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
from torch.utils.data import BatchSampler

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning, StateMismatch, UsageError
from picklable_loader.integrations import accelerate as adapter
from picklable_loader.integrations.accelerate_batches import BatchesOfRanks, SeekableBatchesOfRanks

from .harness import Server

RUNS = "frameworks.accelerate_runs"


@pytest.mark.parametrize("loader", ["ours", "ours without seed"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("checkpoint", [13, 20])
@pytest.mark.parametrize("kind", ["map", "stream", "sized stream", "stateful stream"])
def test_a_prepared_loader_goes_on_exactly(
    server: Server, tmp_path: Path, loader: str, workers: int, checkpoint: int, kind: str
) -> None:
    options = {"loader": loader, "workers": workers, "kind": kind, "dropout": 0.5}
    assert server.compare("train", tmp_path, checkpoint, **options) == "exact"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("checkpoint", [12, 20])
@pytest.mark.parametrize("resume", ["state", "skip", "both"])
def test_skip_first_batches_is_exact(
    server: Server, tmp_path: Path, workers: int, checkpoint: int, resume: str
) -> None:
    options = {"loader": "ours", "workers": workers, "resume": resume, "accumulate": 2}
    assert server.compare("train", tmp_path, checkpoint, **options) == "exact"


#: options, checkpoint in mid-epoch, checkpoint at an epoch's end
RANKS: dict[str, tuple[dict[str, Any], int, int]] = {
    "batch by batch": ({"batch_size": 6, "per_epoch": 4}, 6, 8),
    "split": ({"config": {"split_batches": True}, "batch_size": 6, "per_epoch": 7}, 9, 14),
    "even": ({"config": {"even_batches": False}, "batch_size": 5, "per_epoch": 4}, 6, 8),
    "drop_last": ({"drop_last": True, "batch_size": 6, "per_epoch": 3}, 4, 6),
    "own sampler": ({"sampler": "own sampler", "batch_size": 6, "per_epoch": 4}, 6, 8),
    "batches": ({"sampler": "batches", "per_epoch": 5}, 7, 10),
    "shard": ({"shard": "auto", "batch_size": 6, "per_epoch": 4}, 6, 8),
    "dispatched": ({"config": {"dispatch_batches": True}, "per_epoch": 5}, 7, 10),
    "dispatched tail": (
        {
            "config": {"dispatch_batches": True, "split_batches": False},
            "batch_size": 8,
            "per_epoch": 3,
        },
        5,
        6,
    ),
    "dispatched split": (
        {"config": {"dispatch_batches": True, "split_batches": True}, "per_epoch": 10},
        13,
        20,
    ),
    "stream": ({"kind": "stream", "per_epoch": 5}, 7, 10),
    "stateful stream": ({"kind": "stateful stream", "per_epoch": 5}, 7, 10),
    "stream of each": (
        {
            "kind": "stream",
            "config": {"dispatch_batches": False},
            "batch_size": 5,
            "per_epoch": 4,
        },
        6,
        8,
    ),
}


@pytest.mark.parametrize("share", RANKS)
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader", ["ours", "ours without seed"])
def test_two_processes_go_on_exactly(
    server: Server, tmp_path: Path, share: str, at_end: bool, workers: int, loader: str
) -> None:
    options, within, end = RANKS[share]
    options = {"loader": loader, "workers": workers, "dropout": 0.5, **options}
    assert server.compare("train", tmp_path, end if at_end else within, 2, **options) == "exact"


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


def test_a_checkpoint_without_a_state_is_an_error(accelerator: Accelerator, tmp_path: Path) -> None:
    accelerator.save_state(str(tmp_path))
    adapter.prepare(accelerator, DataLoader(range(8), seed=0))
    with pytest.raises(UsageError, match="has no state of this loader"):
        accelerator.load_state(str(tmp_path))


def test_a_share_of_another_kind_is_an_error(accelerator: Accelerator, tmp_path: Path) -> None:
    prepared = adapter.prepare(accelerator, DataLoader(range(8), seed=0))
    prepared.save(tmp_path)
    prepared.layout = {**prepared.layout, "processes": 2}
    with pytest.raises(StateMismatch, match="processes: expected 2 .*found 0"):
        prepared.load(tmp_path)


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
