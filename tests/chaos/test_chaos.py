"""A short chaos run: hundreds of faults, and not a batch is another one; `make chaos` is longer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: seconds within which it has ended, or hangs
_LIMIT_S = 600

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.timeout(_LIMIT_S + 60),
]

#: as unlike each other as may be
KINDS = ("map", "sampler", "remembering-persistent", "stateful-map-persistent", "state-dict")


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own: it adopts orphans."""
    return subprocess.run(
        [sys.executable, "-m", "chaos", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )


def count(of: str, table: str) -> int:
    found = re.search(rf"^{of} +([\d,]+)$", table, re.MULTILINE)
    assert found, table
    return int(found[1].replace(",", ""))


def test_workers_and_trainers_die_by_the_hundred_and_no_batch_is_another_one() -> None:
    done = chaos("--seed", "7", "--faults", "200", "--most", "40", "--only", *KINDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 7" in done.stdout
    assert count("faults", done.stdout) > 150
    assert count("workers replaced", done.stdout) > 0
    assert count("trainer: SIGKILL", done.stdout) > 0
    assert count("batches compared", done.stdout) > 500
    for bad in ("batches that differ", "trainers that left processes", "failures"):
        assert count(bad, done.stdout) == 0
