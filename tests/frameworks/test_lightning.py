"""Lightning: who is exact in which case; ``docs/frameworks/tables.md`` has the table."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .data import BATCHES, EPOCHS, SIZE
from .harness import Server
from .table import Options, Table

RUNS = "frameworks.lightning_runs"

#: the table's columns
_LOADERS: dict[str, Options] = {
    "`ResumeLoaders`": {"loader": "ours", "callback": True},
    "`ResumeLoaders`, no `seed=`": {"loader": "ours without seed", "callback": True},
    "ours alone": {"loader": "ours"},
    "torch": {"loader": "torch"},
    "torchdata": {"loader": "torchdata"},
}

#: an option of ours
_OURS = {"no": ["torch", "torchdata"]}
_END = {"save": "epoch end"}
_DDP = {"ranks": 2, "strategy": "ddp"}
_OWN = {**_DDP, "kind": "own sampler", "use_distributed_sampler": False}
_VALIDATION = {"dropout": 0.5, "validation": True}

_RELOADS = {"module": True, "reload_dataloaders_every_n_epochs": 1}
_ONCE, _TWO = {"once": True}, {"reload_dataloaders_every_n_epochs": 2}
_ACCUMULATES = {"save": "exception", "accumulate_grad_batches": 2}
_AVERAGED = {"annealing": 3}
_UNEVEN = {"accumulate_grad_batches": 3}

#: the table's rows
_CASES: dict[str, Options] = {
    "map-style, in mid-epoch": {"checkpoint": 13},
    "at an epoch's last step": {"checkpoint": 20},
    "after an epoch's end": {"checkpoint": 20, **_END},
    "iterable-style with length, in mid-epoch": {"checkpoint": 13, "kind": "sized stream"},
    "with length, after an epoch's end": {"checkpoint": 20, "kind": "sized stream", **_END},
    "iterable-style without length, in mid-epoch": {"checkpoint": 13, "kind": "stream"},
    "without length, at an epoch's first step": {"checkpoint": 11, "kind": "stream"},
    "without length, at its last step": {"checkpoint": 20, "kind": "stream"},
    "without length, after its end": {"checkpoint": 20, "kind": "stream", **_END},
    "`estimated_stepping_batches`": {"checkpoint": 13, "estimated": True},
    "dropout": {"checkpoint": 13, "dropout": 0.5},
    "dropout, after an epoch's end": {"checkpoint": 20, "dropout": 0.5, **_END},
    "validation every 4 steps": {"checkpoint": 13, "val_check_interval": 4, **_VALIDATION},
    "as an epoch begins": {"checkpoint": 20, "save": "on_train_epoch_start", "dropout": 0.5},
    "without length, as an epoch begins": {
        "checkpoint": 20,
        "save": "on_train_epoch_start",
        "kind": "stream",
    },
    "after a validation": {"checkpoint": 20, "save": "validation end", **_VALIDATION},
    "before a validation": {"checkpoint": 20, **_VALIDATION},
    "gradient accumulation": {"checkpoint": 12, "accumulate_grad_batches": 2},
    "GradientAccumulationScheduler": {
        "checkpoint": 14,
        "schedule": {"0": 1, "1": 2},
        "save": "on_train_batch_end",
    },
    "StochasticWeightAveraging, in its annealing": {"checkpoint": [13, 17, 23], **_AVERAGED},
    "averaging, at an epoch's last step": {"checkpoint": [10, 20], **_AVERAGED},
    "averaging, after an epoch's end": {"checkpoint": 20, **_AVERAGED, **_END},
    "an uneven accumulation, at an epoch's last step": {"checkpoint": 20, **_UNEVEN},
    "the same, without length": {"checkpoint": 20, "kind": "stream", **_UNEVEN},
    "`limit_train_batches=7`, in mid-epoch": {"checkpoint": 10, "limit_train_batches": 7},
    "`limit_train_batches=7`, after its end": {"checkpoint": 14, "limit_train_batches": 7, **_END},
    "LightningDataModule": {"checkpoint": 13, "module": True},
    "`reload_dataloaders_every_n_epochs=1`": {"checkpoint": [13, 20], **_RELOADS},
    "reloaded, after an epoch's end": {"checkpoint": 20, **_RELOADS, **_END},
    "reloaded, a loader that was made once": {"checkpoint": [13, 20], **_RELOADS, **_ONCE},
    "`reload_dataloaders_every_n_epochs=2`": {"checkpoint": [13, 20], **_RELOADS, **_TWO},
    "the same, other data by the epoch": {
        "checkpoint": [13, 20],
        **_RELOADS,
        **_TWO,
        "grows": True,
    },
    "the same, a loader that was made once": {
        "checkpoint": [13, 20],
        **_RELOADS,
        **_TWO,
        **_ONCE,
    },
    "persistent workers": {"checkpoint": 13, "persistent": True},
    "an exception in a step": {"checkpoint": 13, "save": "exception"},
    "an exception, without length": {"checkpoint": 13, "save": "exception", "kind": "stream"},
    "an exception between optimizer steps": {"checkpoint": 13, **_ACCUMULATES},
    "`save_checkpoint` after `fit(max_steps=13)`": {"checkpoint": 13, "save": "after fit"},
    "`save_checkpoint` after `fit(max_epochs=2)`": {"checkpoint": 20, "save": "after fit"},
    "after `fit`, without length": {"checkpoint": 20, "save": "after fit", "kind": "stream"},
    "two loaders, `max_size_cycle`": {"checkpoint": 13, "kind": "max_size_cycle:map"},
    "two loaders, after an epoch's end": {"checkpoint": 20, "kind": "max_size_cycle:map", **_END},
    "two loaders, `min_size`": {"checkpoint": 16, "kind": "min_size:map", **_END},
    "two loaders, `min_size`, the shorter one without length": {
        "checkpoint": 16,
        "kind": "min_size:map+stream",
    },
    "the same, after an epoch's end": {"checkpoint": 16, "kind": "min_size:map+stream", **_END},
    "two loaders without length": {"checkpoint": 13, "kind": "max_size_cycle:stream"},
    "the shorter one has just ended": {"checkpoint": 8, "kind": "max_size_cycle:stream"},
    "two ranks, DistributedSampler": {"checkpoint": 7, **_DDP},
    "two ranks, after an epoch's end": {"checkpoint": 10, **_DDP, **_END},
    "two ranks, a sharded batch sampler": {"checkpoint": 13, **_OWN},
    'two ranks, `shard="auto"`': {"checkpoint": 13, **_OWN, "kind": "shard", **_OURS},
    'two ranks, streams with `shard="auto"`': {
        "checkpoint": 13,
        **_OWN,
        "kind": "shard stream",
        **_OURS,
    },
}

_CORE = (
    "dropout",
    "after an epoch's end",
    "iterable-style without length, in mid-epoch",
    "two ranks, DistributedSampler",
)

LIGHTNING = Table("Lightning", "train", _LOADERS, _CASES, _CORE)


@pytest.mark.parametrize(("case", "loader"), LIGHTNING.cells())
def test_a_resume_is_as_the_table_says(
    server: Server, tmp_path: Path, case: str, loader: str
) -> None:
    assert LIGHTNING.found(server, tmp_path, case, loader) == LIGHTNING.documented(case, loader)


_ELASTIC: Options = {"workers": 0, "use_distributed_sampler": False}


@pytest.mark.parametrize("kind", ["shard", "shard stream"])
@pytest.mark.parametrize(
    ("ranks", "checkpoint", "save"),
    [
        ((1, 2), 8, "step"),  # of 20, and then of 10
        ((1, 2), 28, "step"),
        ((1, 2), 20, "step"),
        ((1, 2), 40, "epoch end"),
        ((2, 1), 4, "step"),
        ((2, 1), 10, "step"),
        ((2, 1), 10, "epoch end"),
    ],
)
def test_another_number_of_ranks_trains_on_each_sample_once_an_epoch(
    server: Server,
    tmp_path: Path,
    ranks: tuple[int, int],
    checkpoint: int,
    save: str,
    kind: str,
) -> None:
    options = {**_LOADERS["`ResumeLoaders`"], **_ELASTIC, "kind": kind, "save": save}
    ids = server.on_other_ranks("train", tmp_path, checkpoint, ranks, **options)
    epochs = [sorted(ids[at : at + 2 * SIZE]) for at in range(0, len(ids), 2 * SIZE)]
    assert epochs == EPOCHS * [[*range(2 * SIZE)]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_step_that_raised_behind_its_dropout_has_the_same_dropout_when_it_is_resumed(
    server: Server, tmp_path: Path, kind: str, workers: int
) -> None:
    options = {**_LOADERS["`ResumeLoaders`"], "kind": kind, "dropout": 0.5, "save": "exception"}
    assert server.compare("train", tmp_path, 13, workers=workers, **options) == "exact"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("checkpoint", [10, 13, 19])
def test_a_batch_whose_way_to_the_device_raised_is_trained_on_after_a_resume(
    server: Server, tmp_path: Path, checkpoint: int, kind: str, workers: int
) -> None:
    options = {"kind": kind, "dropout": 0.5, "save": "exception before a step"}
    options |= {**_LOADERS["`ResumeLoaders`"], "workers": workers}
    assert server.compare("train", tmp_path, checkpoint, **options) == "exact"


_BATCH, _EPOCH, _BEGIN = "on_train_batch_end", "on_train_epoch_end", "on_train_epoch_start"
_BY_STEPS = {"max_epochs": -1, "max_steps": 30}
_SKIPS = {"skips": [0, 6]}


@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize(
    ("saves", "options"),
    [
        ([(_BATCH, 10), (_BATCH, 13)], {}),
        ([(_EPOCH, 10), (_BATCH, 13)], {}),
        ([(_BEGIN, 10), (_BATCH, 13)], {}),
        ([(_BATCH, 10), (_BATCH, 20)], {}),
        ([(_BATCH, 13), (_BATCH, 20)], {}),
        ([(_BATCH, 10), (_BATCH, 14)], {"accumulate_grad_batches": 2}),
        ([(_BATCH, 10), (_BATCH, 13)], {"validation": True, "val_check_interval": 4}),
        (
            [("on_validation_end", 10), (_BATCH, 13)],
            {"validation": True, "val_check_interval": 5},
        ),
        ([(_BATCH, 7), (_BATCH, 9)], {"limit_train_batches": 7}),
        ([(_EPOCH, 7), (_BATCH, 9)], {"limit_train_batches": 7}),
        ([(_BATCH, 10), (_BATCH, 13)], _BY_STEPS),
        ([(_EPOCH, 10), (_BATCH, 13)], _BY_STEPS),
        ([(_BEGIN, 10), (_BATCH, 13)], _BY_STEPS),
        ([(_EPOCH, 6), (_BATCH, 9)], _SKIPS),
        ([(_BATCH, 9), (_BATCH, 12)], _SKIPS),
        ([(_BATCH, 16), (_BATCH, 19)], _SKIPS),
    ],
)
def test_a_run_that_is_resumed_twice_has_the_same_steps_hooks_and_validations(
    server: Server, tmp_path: Path, saves: list[Any], options: Options, kind: str
) -> None:
    log = server.log("resumed_twice", tmp_path, kind=kind, saves=saves, **options)
    assert (tmp_path / "found.json").exists(), log
    whole, *resumed = json.loads((tmp_path / "found.json").read_text())
    _, steps, epochs, validations = whole
    assert epochs == [*range(epochs[-1] + 1)] and len(steps) >= 21
    for (begun, *found), (hook, _) in zip(resumed, saves, strict=True):
        rest = steps[begun:]
        begins = [epoch for epoch in epochs if epoch > steps[begun - 1][0]]
        expected = [rest, begins, [at for at in validations if at >= rest[0][2] + 1]]
        assert found == expected, f"behind {hook} of step {begun}"


def test_the_progress_bar_of_a_resumed_run_ends_at_100_percent(
    server: Server, tmp_path: Path
) -> None:
    options = {**_LOADERS["`ResumeLoaders`"], "workers": 0, "enable_progress_bar": True}
    assert server.compare("train", tmp_path, checkpoint=13, **options) == "exact"
    shown = (tmp_path / "killed" / "resumed-0.log").read_text()
    assert re.search(r"Epoch 1:\s+40%.* 4/10 ", shown)
    assert re.search(r"Epoch 1:\s*100%.* 10/10 ", shown)


def test_loaders_that_are_made_anew_have_other_orders_in_each_epoch(
    server: Server, tmp_path: Path
) -> None:
    options = {**_LOADERS["`ResumeLoaders`"], "workers": 0, **_RELOADS}
    assert server.compare("train", tmp_path, 13, **options) == "exact"
    rows = (tmp_path / "whole" / "whole-0.jsonl").read_text().splitlines()
    ids = [json.loads(row)["ids"] for row in rows]
    assert len({str(ids[at : at + BATCHES]) for at in range(0, 3 * BATCHES, BATCHES)}) == 3


_LAUNCHED = """
import lightning.pytorch as pl
import torch

from picklable_loader import DataLoader


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        print(f"rank {self.global_rank} has {batch.tolist()}", flush=True)
        return self.net(batch[:, None] / 8).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


loader = DataLoader(range(8), batch_size=4, seed=3, shard="auto")  # before there are ranks
trainer = pl.Trainer(
    max_epochs=1,
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    logger=False,
    enable_checkpointing=False,
    use_distributed_sampler=False,
)
trainer.fit(Net(), loader)
"""


def test_lightnings_own_launcher_may_name_the_ranks_after_the_loader_was_built(
    tmp_path: Path,
) -> None:
    (tmp_path / "launched.py").write_text(_LAUNCHED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "launched.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 has [0, 2, 4, 6]" in done.stdout
    assert "rank 1 has [1, 3, 5, 7]" in done.stdout


_STOPS: Options = {"save": "each epoch end", "max_steps": 13}


@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("options", [{}, {"max_steps": 13}, {"limit_train_batches": 7}])
def test_a_training_whose_checkpoints_are_exact_is_silent(
    server: Server, tmp_path: Path, options: Options, kind: str
) -> None:
    common = {"workers": 0, "callback": True, "quiet": False, "loader": "ours", "save": "step"}
    log = server.log("train", tmp_path, **{**common, "kind": kind, **options})
    assert "LoaderWarning" not in log and "Traceback" not in log


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_training_behind_lightnings_tuner_is_silent_and_begins_anew(
    server: Server, tmp_path: Path, kind: str
) -> None:
    log = server.log("tuned", tmp_path, kind=kind)
    assert "trained to the end" in log, log
    assert "LoaderWarning" not in log


# --- what is refused, and warned of --------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loader": "torch"}, "UsageError: a torch.utils.data.dataloader.DataLoader has no state"),
        ({"loader": "ours", "kind": "max_size:map"}, 'UsageError: CombinedLoader(mode="max_size")'),
    ],
)
def test_a_training_that_could_not_be_resumed_does_not_begin(
    server: Server, tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    assert text in server.log("train", tmp_path, workers=0, callback=True, **options)


def test_a_version_without_what_the_callback_reads_is_refused(
    server: Server, tmp_path: Path
) -> None:
    log = server.log("unknown_version", tmp_path)
    assert "UsageError: ResumeLoaders was tried with Lightning 2.5.6 and 2.6.6" in log
    for name in "_data_fetcher", "_data_fetcher.batches", "_combined_loader._iterator._consumed":
        assert f"This version has no trainer.fit_loop.{name}:" in log


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loader": "ours without seed", "kind": "min_size:map"}, "without seed= draw from one"),
        ({"loader": "ours", "validation": True}, "saved before a validation"),
        ({"loader": "ours", **_STOPS}, "saved after its epoch was stopped within"),
        ({"loader": "ours", **_STOPS, "kind": "stream"}, "saved after its epoch was stopped"),
        ({"loader": "ours", "fails": 13, **_ACCUMULATES}, "saved between two optimizer steps"),
    ],
)
def test_what_will_not_be_exact_is_warned_of_by_the_first_run(
    server: Server, tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    log = server.log("train", tmp_path, workers=0, callback=True, quiet=False, **options)
    assert text in log


def test_a_checkpoint_that_was_saved_without_the_callback_is_warned_of(
    server: Server, tmp_path: Path
) -> None:
    assert "saved without ResumeLoaders" in server.log("without_callback_then_with", tmp_path)


def test_a_tuner_for_which_lightning_drops_the_checkpoint_of_a_resume_is_warned_of(
    server: Server, tmp_path: Path
) -> None:
    log = server.log("tuned", tmp_path, kind="map", resumes=True)
    assert "LearningRateFinder or BatchSizeFinder has run in a resumed fit" in log
    assert "trained to the end" in log, log


# --- Fabric --------------------------------------------------------------------------------------

_FABRICS_CASES: dict[str, Options] = {
    "map-style, in mid-epoch": {"checkpoint": 13},
    "at an epoch's last step": {"checkpoint": 20},
    "iterable-style without length": {"checkpoint": 13, "kind": "stream"},
    "two ranks, DistributedSampler": {"checkpoint": 7, "ranks": 2},
    "two ranks, a sharded batch sampler": {"checkpoint": 13, "ranks": 2, "kind": "own sampler"},
    'two ranks, `shard="auto"`': {"checkpoint": 13, "ranks": 2, "kind": "shard", **_OURS},
}

_FABRICS_LOADERS: dict[str, Options] = {
    "`LoaderStates`": {"loader": "ours", "states": True},
    "ours alone": {"loader": "ours"},
    "torchdata": {"loader": "torchdata"},
}


FABRIC = Table("Fabric", "fabric", _FABRICS_LOADERS, _FABRICS_CASES, ["map-style, in mid-epoch"])


@pytest.mark.parametrize(("case", "loader"), FABRIC.cells())
def test_fabric_is_as_the_table_says(
    server: Server, tmp_path: Path, case: str, loader: str
) -> None:
    assert FABRIC.found(server, tmp_path, case, loader) == FABRIC.documented(case, loader)


def test_a_fabric_without_what_is_read_is_refused(server: Server, tmp_path: Path) -> None:
    log = server.log("unknown_fabric", tmp_path)
    assert "UsageError: LoaderStates was tried with Fabric 2.6.6" in log
    assert "loaders have no _dataloader" in log
