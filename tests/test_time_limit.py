"""The time limit that all tests have, tried on tests that hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HANGING = """
import subprocess, sys, threading

def wait_for_ever():
    threading.Event().wait()

def wait_in_a_thread():
    threading.Event().wait()

def test_that_hangs():
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    with open("child", "w") as file:
        file.write(str(child.pid))
    threading.Thread(target=wait_in_a_thread, daemon=True).start()
    while True:
        try:
            wait_for_ever()
        except Exception:
            pass

def test_after_it():
    pass
"""


@pytest.mark.parametrize("processes", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_test_that_hangs_fails_with_all_stacks_and_ends_its_processes_and_the_next_one_runs(
    processes: list[str], tmp_path: Path
) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "time_limit", "--timeout", "2", *processes, "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)},
        capture_output=True,
        text=True,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    for text in ("not done within 2 s", "in wait_for_ever", "in wait_in_a_thread"):
        assert text in done.stdout, done.stdout
    child = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z"
