"""A program that ends, however it ends, takes its workers with it, at whatever they are."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

ROOT = Path(__file__).parents[2]

#: seconds within which everything must be gone; what would stay would stay for ever
PATIENCE_S = 20.0

PROGRAM = """
import os, sys, time
import picklable_loader

class Stuck:
    '''Tells who reads it, and then never comes to an end.'''

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index >= 2:
            with open(sys.argv[2], "w") as told:
                print(os.getpid(), file=told)
            read, write = os.pipe()
            os.read(read, 1)
        return index

def main():
    loader = picklable_loader.DataLoader(
        Stuck(), None, num_workers=2, schedule="round_robin", transport=sys.argv[3],
        multiprocessing_context=sys.argv[1],
    )
    iterator = iter(loader)
    next(iterator)
    sys.stdin.readline()
    ENDING

if __name__ == "__main__":
    main()
"""

ENDINGS = {
    "killed": ("time.sleep(1000)", -signal.SIGKILL),
    "terminated": ("time.sleep(1000)", -signal.SIGTERM),
    "crashed": ("os.abort()", -signal.SIGABRT),
    "_exit": ("os._exit(3)", 3),
    "over": ("keep.append(iterator)", 0),
    "over, in a cycle": ("iterator.itself = iterator", 0),
    "sys.exit": ("sys.exit(4)", 4),
    "an exception": ("raise KeyError('in the loop')", 1),
}


def start(
    folder: Path, ending: str, told: Path, transport: str, method: str
) -> subprocess.Popen[bytes]:
    text = PROGRAM.replace("ENDING", ENDINGS[ending][0]).replace(
        "def main", "keep = []\n\ndef main"
    )
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, "-W", "ignore", str(script), method, str(told), transport]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def workers_at(line: IO[str]) -> list[int]:
    """Descriptors of two workers that are stuck by now."""
    return [os.pidfd_open(int(line.readline())) for _ in range(2)]


@pytest.mark.costly
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
@pytest.mark.parametrize(
    ("ending", "transport", "method"),
    [
        *((ending, transport, "fork") for ending in ENDINGS for transport in ("arena", "portable")),
        ("killed", "arena", "spawn"),
        ("killed", "arena", "forkserver"),
        ("over", "arena", "forkserver"),
    ],
)
def test_workers_that_are_stuck_end_with_their_program(
    ending: str, transport: str, method: str, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)
    with (
        start(tmp_path, ending, told, transport, method) as program,
        open(os.open(told, os.O_RDWR)) as line,  # no end of it, though each worker closes its own
    ):
        workers = workers_at(line)
        assert program.stdin is not None
        program.stdin.write(b"\n")
        program.stdin.flush()
        if ending in ("killed", "terminated"):
            program.send_signal(-ENDINGS[ending][1])
        code = program.wait(PATIENCE_S)
        gone = [bool(select.select([worker], [], [], PATIENCE_S)[0]) for worker in workers]
        for worker in workers:
            os.close(worker)
    assert gone == [True] * 2
    assert code == ENDINGS[ending][1]
