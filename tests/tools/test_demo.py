"""The demo, for real: six training runs, two of them killed; a shorter training than `make demo`'s.

What it claims is checked against the journals of the runs, and with planted faults.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from zoo.processes import processes_with

from picklable_loader.__main__ import main
from picklable_loader.tools.demo import command
from picklable_loader.tools.demo.compare import compare
from picklable_loader.tools.demo.train import Plan

ROOT = Path(__file__).parents[2]
#: the demo takes 30 s, and 300 s beside three busy processes on each core
_LIMIT_S = 800
pytestmark = pytest.mark.timeout(_LIMIT_S + 100)
#: what the demo has ended needs a moment; Python's resource tracker ends last
_GRACE_S = 15


@dataclass
class Shown:
    """A demo that is over."""

    folder: Path
    facts: dict[str, Any]
    screen: str
    bars: str
    mark: str

    def journal(self, run: str) -> list[dict[str, Any]]:
        lines = (self.folder / "runs" / f"{run}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def losses(self, run: str) -> dict[int, str]:
        return {event["step"]: event["loss"] for event in self.journal(run) if "step" in event}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder, mark = tmp_path_factory.mktemp("demo"), uuid.uuid4().hex
    # Files, not pipes: a killed run's workers may hold a pipe open when the demo has ended.
    with (folder / "screen").open("w") as screen, (folder / "bars").open("w") as bars:
        process = subprocess.Popen(
            [sys.executable, "-m", "picklable_loader", "demo", "--epochs", "2", "--output", "out"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "A_RUN_OF_THE_DEMO": mark},
            stdout=screen,
            stderr=bars,
        )
        status = process.wait(timeout=_LIMIT_S)
    assert status == 0, (folder / "bars").read_text()
    return Shown(
        folder=folder / "out",
        facts=json.loads((folder / "out" / "summary.json").read_text()),
        screen=(folder / "screen").read_text(),
        bars=(folder / "bars").read_text(),
        mark=mark,
    )


@pytest.fixture
def copied(shown: Shown, tmp_path: Path) -> Plan:
    """The runs, for a test to tamper with."""
    shutil.copytree(shown.folder / "runs", tmp_path / "runs")
    return Plan(tmp_path / "runs", epochs=2)


def test_the_resumed_run_is_the_uninterrupted_one_to_the_last_bit(shown: Shown) -> None:
    usual = shown.losses("picklable_loader.uninterrupted")
    resumed = shown.losses("picklable_loader.resumed")
    assert resumed == {step: loss for step, loss in usual.items() if step >= 20}
    assert list(usual) == list(range(96))
    facts = shown.facts["picklable_loader"]
    assert facts["exact"] and facts["weights_equal"] and facts["redone_equal"]
    assert (facts["steps_equal"], facts["steps_compared"]) == (76, 76)
    assert facts["largest_difference"] == facts["repeated"] == facts["missed"] == 0


def test_the_killed_run_ends_without_an_end(shown: Shown) -> None:
    for kind in ("picklable_loader", "torch"):
        events = shown.journal(f"{kind}.killed")
        assert events[-1]["step"] == shown.facts["killed_at"] - 1
        assert "save_ms" in events[shown.facts["saved_at"]]
        assert not any("accuracy" in event for event in events)


def test_torchs_loader_repeats_samples_and_misses_as_many(shown: Shown) -> None:
    facts = shown.facts["torch"]
    assert facts["repeated"] == facts["missed"] > 0
    assert not facts["weights_equal"]
    assert facts["steps_equal"] < facts["steps_compared"] == 76


def test_the_position_in_the_checkpoint_is_small(shown: Shown) -> None:
    assert 0 < shown.facts["picklable_loader"]["state_bytes"] < 8192


def test_the_progress_bar_goes_on_where_the_checkpoint_was(shown: Shown) -> None:
    states = shown.bars.replace("\r", "\n").splitlines()
    resumed = [state for state in states if state.startswith("picklable_loader, resumed")]
    assert " 20/96 " in resumed[0]
    assert " 96/96 " in resumed[-1]


def test_the_summary_fits_on_one_screen(shown: Shown) -> None:
    lines = shown.screen.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert "76 of 76" in shown.screen


def test_the_picture_shows_both_stories(shown: Shown) -> None:
    from picklable_loader.tools.demo.picture import RESUMED, SEEN  # and matplotlib, 20 MB

    with Image.open(shown.folder / "demo.png") as picture:
        assert picture.format == "PNG"
        width, height = picture.size
        colours = {colour[:3]: count for count, colour in picture.getcolors(width * height)}
    assert max(colours.values()) < 0.95 * width * height
    for wanted in (*RESUMED.values(), *SEEN.values()):
        assert colours.get(tuple(bytes.fromhex(wanted[1:])), 0) > 100, wanted


def test_no_process_of_the_demo_outlives_it(shown: Shown) -> None:
    deadline = time.monotonic() + _GRACE_S
    while left := processes_with(shown.mark):
        assert time.monotonic() < deadline, left


def edit_journal(plan: Plan, step: int, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The facts after a change in one event of the resumed run."""
    path = plan.journal("picklable_loader", "resumed")
    lines = path.read_text().splitlines()
    change(event := json.loads(lines[step]))
    path.write_text("\n".join([*lines[:step], json.dumps(event), *lines[step + 1 :]]))
    return compare(plan, "picklable_loader").facts


def test_one_wrong_bit_in_one_loss_is_found(copied: Plan) -> None:
    def change(event: dict[str, Any]) -> None:
        event["loss"] = (float.fromhex(event["loss"]) * (1 + 2**-52)).hex()

    facts = edit_journal(copied, 40, change)
    assert (facts["steps_equal"], facts["steps_compared"]) == (75, 76)
    assert not facts["exact"]


def test_one_wrong_weight_is_found(copied: Plan) -> None:
    path = copied.weights("picklable_loader", "resumed")
    weights = torch.load(path)
    next(iter(weights.values())).view(-1)[0] += 1e-3
    torch.save(weights, path)
    facts = compare(copied, "picklable_loader").facts
    assert not facts["weights_equal"]
    assert not facts["exact"]


def test_a_sample_seen_twice_is_found(copied: Plan) -> None:
    def change(event: dict[str, Any]) -> None:
        event["indices"][0] = event["indices"][1]

    facts = edit_journal(copied, 0, change)
    assert (facts["repeated"], facts["missed"]) == (1, 1)
    assert not facts["exact"]


def test_what_is_not_installed_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(command._NEEDED, "a_module_that_nobody_has", "scikit-learn")
    assert main(["demo", "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "scikit-learn" in said and "picklable-loader[demo]" in said
    assert not (tmp_path / "out").exists()
