"""The torture itself: it finds what is wrong, and nothing stops it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torture import campaign
from torture.campaign import Verdict, verdicts
from torture.law import Hop
from torture.trials import Trial

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

#: a defect: a loader that is given a state begins its epoch anew
DEFECT = """
from picklable_loader import DataLoader

DataLoader.load_state_dict = lambda self, state, **options: None
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """In a fresh process, in which the defect is."""
    (folder / "sitecustomize.py").write_text(DEFECT)
    path = os.pathsep.join(map(str, (folder, ROOT / "tests", ROOT)))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr or "Wrong" in done.stderr, done.stderr
    return done


def test_a_planted_defect_is_found_and_made_a_script_that_fails_by_itself(tmp_path: Path) -> None:
    only = ("--only", "sequential", "--seed", "3", "--trials", "5")
    found = run(tmp_path, "-m", "torture", *only)
    assert found.returncode == 1 and "fails by itself" in found.stdout, found.stdout
    script = tmp_path / "script.py"
    script.write_text(re.findall(r'^"""Seed 3.*?\)\)$', found.stdout, re.MULTILINE | re.DOTALL)[0])
    failed = run(tmp_path, str(script))
    assert failed.returncode == 1 and "Wrong: the copy differs" in failed.stderr
    (tmp_path / "sitecustomize.py").unlink()
    subprocess.run([sys.executable, str(script)], check=True)


def exit_at_once() -> None:
    os._exit(3)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "happens, result",
    [(signal.pause, "hangs"), (exit_at_once, "process died"), (be_killed, "process died")],
)
def test_a_trial_that_hangs_or_dies_is_a_failure_and_the_next_one_is_tried(
    happens: object, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verdict(trial: Trial) -> Verdict:
        if trial.workers:
            happens()  # type: ignore[operator]
        return Verdict("held")

    monkeypatch.setattr(campaign, "_verdict", verdict)
    trials = [Trial("shuffle", workers=workers) for workers in (0, 1, 0)]
    found = [verdict.result for _, verdict in verdicts(trials, limit_s=2)]
    assert found == ["held", result, "held"]


def test_what_was_promised_and_is_refused_is_a_failure_and_what_was_not_is_none() -> None:
    hops = (Hop(0, 2, "state_dict", 0),)
    [(_, said), (_, held)] = verdicts([Trial("goes round", hops=hops), Trial("shuffle", hops=hops)])
    assert (said.result, held.result) == ("said", "held")
    assert "CannotSaveError" in said.text


def test_a_warning_of_other_batch_sizes_is_no_failure_where_they_are_equal() -> None:
    options = {"seeding": "'sample'", "dataset": "NoisyInBulk()"}
    trial = Trial("shuffle", options, hops=(Hop(0, 2, "state_dict", 0),))
    assert [verdict.result for _, verdict in verdicts([trial])] == ["held"]
