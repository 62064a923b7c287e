"""The bench command, on small loaders; and the benchmarks, from the command line to the chart."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from picklable_loader import DataLoader
from picklable_loader.__main__ import main
from picklable_loader.tools.bench.study import Study, advise, candidates
from picklable_loader.tools.bench.subject import Subject
from picklable_loader.tools.bench.trial import Trial, _processor_s

ROOT = Path(__file__).parents[2]

MODULE = """
import torch
from torch.utils.data import DataLoader as TorchDataLoader, IterableDataset
from picklable_loader import DataLoader

class Once(IterableDataset):
    left = iter(range(5))  # fewer than the least that two trials take
    def __iter__(self):
        return self.left

class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        raise OSError("no such picture")

def ours(): return DataLoader(torch.zeros(64, 4), batch_size=4, num_workers=1, seed=3)
def torchs(): return TorchDataLoader(torch.zeros(64, 4), batch_size=4, shuffle=True)
def empty(): return TorchDataLoader(torch.zeros(0, 4))
def once(): return TorchDataLoader(Once())
def broken(): return TorchDataLoader(Broken())
def nothing(): pass
def raises(): raise KeyError("learning_rate")
answer = 42
"""


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[..., int]:
    """The command, in a folder that has a module of loaders."""
    (tmp_path / "my_loaders.py").write_text(MODULE)
    (tmp_path / "half_a_module.py").write_text("import a_module_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    request.addfinalizer(lambda: sys.modules.pop("my_loaders", None))
    return lambda *arguments: main(["bench", *arguments])


@pytest.mark.parametrize("function", ["ours", "torchs"])
def test_a_loader_is_measured_and_a_setting_suggested(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str], function: str
) -> None:
    assert bench(f"my_loaders:{function}", "--seconds", "0.4", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 64
    assert found["times_as_fast"] > 0
    assert {len(trials) for trials in found["compared"].values()} <= {1, 2, 3}
    tried = [trial["num_workers"] for trial in found["by_workers"]]
    assert tried + found["left_out"] == [0, 1]
    assert found["suggested"]["num_workers"] in tried
    assert found["by_workers"][0]["batch_bytes"] == 64
    for trial in found["by_workers"][1:]:
        assert trial["computing"] is None or 0 <= trial["computing"] <= 1
        assert 0 < trial["busy"] <= 1 and 0 <= trial["waited"] <= 1 and trial["budget"] >= 2


def test_the_screen_fits_and_names_what_it_suggests(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("my_loaders:torchs", "--seconds", "0.4", "--step-ms", "0.1") == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert "Suggested: num_workers=" in said.out
    assert "training steps of 0.1 ms" in said.out
    assert "torch             num_workers=0" in said.err


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("my_loaders", ["MODULE:FUNCTION"]),
        ("not_there:ours", ["No module named 'not_there'", "Start this in the folder"]),
        ("half_a_module:ours", ["No module named 'a_module_that_nobody_has'"]),
        ("my_loaders:our", ["has no attribute 'our'", "Did you mean 'ours'?"]),
        ("my_loaders:answer", ["no function", "'int'"]),
        ("my_loaders:nothing", ["returned None", "should return a DataLoader"]),
        ("my_loaders:raises", ["KeyError: 'learning_rate'", "raised the exception above"]),
        ("my_loaders:empty", ["delivers no batch", "empty"]),
        ("my_loaders:once", ["only once"]),
        ("my_loaders:broken", ["no such picture", "num_workers=0"]),
    ],
)
def test_what_cannot_be_measured_is_told_with_whose_fault_it_is(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str], name: str, parts: list[str]
) -> None:
    assert bench(name, "--seconds", "0.2") == 2
    said = capsys.readouterr()
    assert not said.out
    for part in parts:
        assert part in said.err


def test_a_loader_is_built_again_from_its_own_arguments() -> None:
    data = torch.arange(10)
    init: Any = print
    ours = Subject(
        DataLoader(data, 4, shuffle=True, num_workers=2, prefetch_factor=3, seed=5, drop_last=True)
    )
    for side, kind in (("torch", TorchDataLoader), ("picklable_loader", DataLoader)):
        built = ours.build(side, 1)  # type: ignore[arg-type]
        assert type(built) is kind
        assert (built.num_workers, built.prefetch_factor, built.drop_last) == (1, 3, True)
        assert built.sampler is ours.loader.sampler
    assert ours.build("picklable_loader").seed == 5  # type: ignore[attr-defined]
    without = ours.build("picklable_loader", 0, prefetch_budget="auto")
    assert (without.num_workers, without.prefetch_factor) == (0, None)
    torchs = Subject(TorchDataLoader(data, batch_sampler=[[1], [2, 3]], worker_init_fn=init))
    built = torchs.build("picklable_loader")
    assert list(map(len, built)) == [1, 2] and built.worker_init_fn is init
    assert built.prefetch_budget == "auto"  # type: ignore[attr-defined]


def test_which_numbers_of_workers_are_tried() -> None:
    assert candidates(1, 0) == [0, 1]
    assert candidates(6, 3) == [0, 1, 2, 3, 4, 6]
    assert candidates(64, 16) == [0, 1, 2, 4, 8, 16, 32, 64]


def test_the_fewest_workers_that_are_about_as_fast_are_suggested() -> None:
    study = Study(Subject(TorchDataLoader(torch.zeros(4))), 1.0, 0.0)
    study.cores = 8
    for number, batches, busy, budget in ((1, 50, 1.0, 2), (2, 98, 0.97, 16), (4, 100, 0.5, 8)):
        study.by_workers[number] = Trial(number, 0.1, batches, 1.0, 1000, busy, 1.0, 1.0, budget)
    advice = advise(study)
    assert (advice.num_workers, advice.prefetch_budget, advice.prefetch_bytes) == (2, 16, 16_000)
    assert "97%" in advice.reasons[0] and "from 4 to 16" in advice.reasons[1]


WAITING = {"busy": 0.98, "computing": 0.05, "waited": 1.0}
AT_WORK = {"busy": 0.98, "computing": 0.95, "waited": 1.0}


def tried(
    monkeypatch: pytest.MonkeyPatch, cores: int, figures: dict[str, float], most: int
) -> Study:
    """A study whose trials are as fast as they have workers, up to a number."""

    def try_out(loader: Any, seconds: float, step_s: float) -> Trial:
        number = loader.num_workers
        known = {**figures, "budget": 2 * number} if number else {}
        return Trial(number, 0.1, 100 * min(max(1, number), most), 1.0, 1000, **known)

    monkeypatch.setattr("picklable_loader.tools.bench.study.try_out", try_out)
    study = Study(Subject(TorchDataLoader(torch.zeros(4))), 1000.0, 0.0)
    study.cores = cores
    study.do(lambda said: None)
    return study


def test_samples_that_wait_are_tried_with_more_workers_than_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = tried(monkeypatch, 2, WAITING, most=64)
    assert list(study.by_workers) == [0, 1, 2, 4, 8, 16]
    advice = advise(study)
    assert advice.num_workers == 16
    assert "compute only 5%" in advice.reasons[0] and "may help further" in advice.reasons[0]
    study = tried(monkeypatch, 2, WAITING, most=8)
    assert advise(study).num_workers == 8
    assert "do not make faster" in advise(study).reasons[0]


def test_samples_that_compute_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    study = tried(monkeypatch, 2, AT_WORK, most=64)
    assert list(study.by_workers) == [0, 1, 2]
    assert "no core for another" in advise(study).reasons[0]
    unknown = tried(monkeypatch, 2, {"busy": 0.98, "waited": 1.0}, most=64)
    assert list(unknown.by_workers) == [0, 1, 2]


def test_the_time_that_a_process_computes_is_known() -> None:
    before = _processor_s(os.getpid())
    assert before > 0 and math.isnan(_processor_s(None))
    while _processor_s(os.getpid()) == before:
        sum(range(10_000))


def test_the_benchmarks_run_from_the_command_line_to_the_chart(tmp_path: Path) -> None:
    quick = ["--quick", "--rounds", "1", "--only", "tiny-2", "--out", str(tmp_path)]
    paths = [str(ROOT / "tests"), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *quick],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    rate, cpu = results["figures"]
    assert rate["sides"]["torch"]["ratio"] == 1
    assert [len(side["values"]) for side in rate["sides"].values()] == [1, 1, 1]
    assert rate["target"] == "≥ 7 ×" and cpu["target"] == "≤ 0.25 ×"
    table = (tmp_path / "table.md").read_text()
    assert "| tiny batches, 2 workers | batches/s |" in table and table in done.stdout
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("script", "rows"), [("budgets", 5), ("conversions", 6)])
def test_the_scripts_of_the_docs_tables_print_them(script: str, rows: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{script}", "--quick"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 + rows and len({line.count("|") for line in lines}) == 1
