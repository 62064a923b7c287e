"""Limits: few descriptors, next to no shared memory, files that may not grow, a killed parent."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import picklable_loader

ROOT = Path(picklable_loader.__file__).parents[1]

KEEPS = """
import resource, sys
import torch
from {module} import DataLoader

class Filled:
    def __len__(self):
        return {count}
    def __getitem__(self, index):
        return torch.full(({size},), float(index))

def limit(worker):
    {in_worker}

if __name__ == "__main__":
    {here}
    {sharing}
    kept = list(DataLoader(Filled(), 1, num_workers=2, worker_init_fn=limit))
    assert all(bool((batch == step).all()) for step, batch in enumerate(kept)), "wrong content"
    print(len(kept))
"""

NOFILE = "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
FSIZE = "resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, 16 << 20))"
BY_NAME = "torch.multiprocessing.set_sharing_strategy('file_system')"


def program(module: str, size: int = 20_000, count: int = 1000, **parts: str) -> str:
    parts = {"in_worker": "pass", "here": "", "sharing": "", **parts}
    return KEEPS.format(module=module, size=size, count=count, **parts)


def run(text: str, *before: str) -> Any:
    command = [*before, sys.executable, "-W", "ignore", "-c", text]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100)


def test_a_thousand_batches_are_kept_with_64_descriptors_where_torch_has_not_enough() -> None:
    done = run(program("picklable_loader", here=NOFILE))
    assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr
    assert run(program("torch.utils.data", here=NOFILE)).returncode != 0


REFUSED = """
import resource
import torch
from picklable_loader import DataLoader

class Filled:
    def __len__(self):
        return 200
    def __getitem__(self, index):
        return torch.full((20_000,), float(index))

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        options = dict(transport="arena", multiprocessing_context="fork")
        list(DataLoader(Filled(), 1, num_workers={workers}, **options))
    except OSError as error:
        print(error)
"""


@pytest.mark.parametrize(
    "workers, what",
    [(12, r"the batch of step \d+ is here and"), (30, "30 workers cannot be started")],
)
def test_too_few_descriptors_are_an_error_that_names_the_limit_and_the_way_out(
    workers: int, what: str
) -> None:
    done = run(REFUSED.format(workers=workers))
    assert re.search(what, done.stdout), (done.stdout, done.stderr)
    for part in ("64 files open", "ulimit -n", "fewer workers"):
        assert part in done.stdout


#: a new world of mounts, in which /dev/shm is small
SMALL = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "-"]


def can_make_it_small() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*SMALL, "true"], capture_output=True).returncode == 0


needs_mounts = pytest.mark.skipif(
    not can_make_it_small(), reason="this system does not let us mount a small /dev/shm"
)


@needs_mounts
def test_a_thousand_batches_are_kept_with_a_megabyte_in_dev_shm_where_torch_fails() -> None:
    done = run(program("picklable_loader"), *SMALL)
    assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr
    assert run(program("torch.utils.data"), *SMALL).returncode != 0


def test_workers_whose_files_may_not_be_large_still_send_batches_that_are_small() -> None:
    small = program("picklable_loader", 100_000, 100, in_worker=FSIZE, sharing=BY_NAME)
    done = run(small)
    assert (done.returncode, done.stdout) == (0, "100\n"), done.stderr


KILLED = """
import os, sys, torch
from picklable_loader import DataLoader

class Large:
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        return torch.full((100_000,), float(os.getpid()), dtype=torch.float64)

if __name__ == "__main__":
    loader = DataLoader(
        Large(), 4, num_workers=2, schedule="round_robin", multiprocessing_context=sys.argv[1]
    )
    kept = [batch for batch, _ in zip(loader, range(6))]
    iterator = iter(loader)
    print(*{int(next(iterator)[0, 0]) for _ in range(6)}, flush=True)
    for batch in iterator:
        kept = [*kept[-20:], batch]
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_parent_that_is_killed_in_mid_epoch_leaves_nothing(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), method],
        stdout=subprocess.PIPE,
        env=environment,
    )
    with process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        workers = [os.pidfd_open(pid) for pid in pids]
        process.kill()
    gone = [bool(select.select([worker], [], [], 20.0)[0]) for worker in workers]
    for worker in workers:
        os.close(worker)
    assert gone == [True] * 2
    made_here = tuple(f"torch_{pid}_" for pid in (process.pid, *pids))
    assert [name for name in os.listdir("/dev/shm") if name.startswith(made_here)] == []
