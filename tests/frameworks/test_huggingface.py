"""transformers.Trainer: who is exact in which case; ``docs/frameworks/tables.md`` has the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .harness import Server
from .table import Options, Table

RUNS = "frameworks.huggingface_runs"

#: the table's columns
_LOADERS: dict[str, Options] = {
    "`ExactResume`": {"loader": "ours", "exact": True},
    "`ExactResume`, no `seed=`": {"loader": "ours without seed", "exact": True},
    "ours alone": {"loader": "ours"},
    "torch": {"loader": "torch"},
    "torchdata": {"loader": "torchdata"},
}

_MIDDLE_AND_END = {"checkpoint": [13, 20]}
_TWO = {"ranks": 2, "checkpoint": [7, 10]}
_OTHERS = ["ours alone", "torch", "torchdata"]
_OWN = [_OTHERS[0], _OTHERS[2]]

#: the table's rows
_CASES: dict[str, Options] = {
    "map-style, in mid-epoch": {"checkpoint": 13},
    "at an epoch's last step": {"checkpoint": 20},
    "iterable-style without length": {**_MIDDLE_AND_END, "kind": "stream"},
    "iterable-style with length": {**_MIDDLE_AND_END, "kind": "sized stream"},
    "iterable-style with a state": {**_MIDDLE_AND_END, "kind": "stateful stream"},
    "gradient accumulation, an uneven end": {"checkpoint": [16, 20], "accumulate": 3},
    "`eval_steps=4`": {"checkpoint": [12, 13], "eval_strategy": "steps", "eval_steps": 4},
    "`predict` every 4 steps": {"checkpoint": [12, 13], "predicts": True},
    "saved before an evaluation": {"checkpoint": 20, "eval_strategy": "epoch"},
    "`prepare_loader`, a sampler of one's own": {**_MIDDLE_AND_END, "own": True, "no": _OTHERS},
    "`enable_jit_checkpoint`, after a step": {
        "checkpoint": [13, 20],
        "preempted": "on_optimizer_step",
        "no": _OTHERS,
    },
    "the same, as a step begins": {
        "checkpoint": [9, 13, 20],
        "preempted": "on_step_end",
        "no": _OTHERS,
    },
    "the same, gradient accumulation": {
        "checkpoint": [13, 16, 19],
        "accumulate": 3,
        "preempted": "on_step_end",
        "no": _OTHERS,
    },
    "before the optimizer's step": {
        "checkpoint": [9, 10, 13],
        "preempted": "on_step_begin",
        "no": _OTHERS,
    },
    "the same, iterable-style without length": {
        "checkpoint": [9, 10, 13],
        "kind": "stream",
        "preempted": "on_step_begin",
        "no": _OTHERS,
    },
    "two processes": _TWO,
    "two processes, iterable-style": {**_TWO, "kind": "stream", "no": _OWN},
    "two processes, with a state": {**_TWO, "kind": "stateful stream", "no": _OWN},
}

_CORE = (
    "map-style, in mid-epoch",
    "at an epoch's last step",
    "iterable-style without length",
    "two processes",
)

TRAINER = Table("Hugging Face Trainer", "train", _LOADERS, _CASES, _CORE)


@pytest.mark.parametrize(("case", "loader"), TRAINER.cells())
def test_a_resume_is_as_the_table_says(
    server: Server, tmp_path: Path, case: str, loader: str
) -> None:
    assert TRAINER.found(server, tmp_path, case, loader) == TRAINER.documented(case, loader)


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_the_progress_bar_of_a_resumed_run_ends_at_100_percent(
    server: Server, tmp_path: Path, kind: str
) -> None:
    options = {**_LOADERS["`ExactResume`"], "workers": 0, "kind": kind, "disable_tqdm": False}
    assert server.compare("train", tmp_path, 13, **options) == "exact"
    shown = (tmp_path / "killed" / "resumed-0.log").read_text()
    assert re.findall(r"(\d+%).* (\d+/30) ", shown)[-1] == ("100%", "30/30")


@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("loader", ["`ExactResume`", "`ExactResume`, no `seed=`"])
@pytest.mark.parametrize(
    "within", [{"eval_strategy": "steps", "eval_steps": 4}, {"predicts": True}]
)
def test_evaluations_between_persistent_workers_are_the_same_after_a_resume(
    server: Server, tmp_path: Path, within: Options, loader: str, kind: str
) -> None:
    options = {**_LOADERS[loader], **within, "kind": kind, "workers": 2}
    options |= {"dataloader_persistent_workers": True, "dataloader_prefetch_factor": 4}
    assert server.compare("train", tmp_path, 13, **options) == "exact"


def test_a_trainer_that_leaves_our_loader_warns_when_it_resumes(
    server: Server, tmp_path: Path
) -> None:
    server.compare("train", tmp_path, 13, loader="ours", workers=0, quiet=False)
    log = (tmp_path / "killed" / "resumed-0.log").read_text()
    assert (
        "LoaderWarning: Accelerate's prepare and skip_first_batches make a loader of torch's" in log
    )
    assert "self.prepare_loader(loader)" in log


def test_a_version_without_what_the_mixin_overrides_is_refused(
    server: Server, tmp_path: Path
) -> None:
    log = server.log("unknown_version", tmp_path)
    assert "the Trainer has no _load_rng_state. It was tried with transformers 5.24.0" in log


@pytest.mark.core
def test_a_class_in_which_the_mixin_would_have_no_effect_is_refused() -> None:
    from transformers import Trainer

    from picklable_loader.errors import UsageError
    from picklable_loader.integrations.huggingface import ExactResume

    with pytest.raises(UsageError, match="the Trainer is named before ExactResume"):
        type("Late", (Trainer, ExactResume), {})
    with pytest.raises(UsageError, match="Alone is no transformers.Trainer"):
        type("Alone", (ExactResume,), {})()
