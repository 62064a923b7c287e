"""A case: a training runs whole, another one is killed after its checkpoint, and is resumed.

A run is a function ``train(run, **options)`` of a module that imports a framework. Such an import
takes seconds, so a server imports the module once, and forks a fresh process for every run::

    verdict = server.compare("train", folder, checkpoint=13, loader="ours", workers=2)
    assert verdict == "exact"
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import TCPStore

#: so many steps after its checkpoint a run is killed
STEPS_TO_DEATH = 2


@dataclass
class Run:
    """One rank of a run, as the training function sees it.

    Attributes:
        phase: "whole", "killed" or "resumed".
        folder: where checkpoints are; the killed and the resumed run have the same one.
        checkpoint: after this many steps a checkpoint has to be saved.
        rank: the number of this process.
        world: the number of processes.
        steps: the number of steps so far, those before the checkpoint included.
        outlives: what is not freed before the process ends.
    """

    phase: str
    folder: Path
    checkpoint: int
    rank: int
    world: int
    steps: int = 0
    outlives: list[Any] = field(default_factory=list)

    @property
    def resumes(self) -> bool:
        return self.phase == "resumed"

    def note(self, batch: Any, loss: Any, **others: Any) -> None:
        """Record a step; the killed run ends here, and nothing of it is closed or flushed.

        Args:
            batch: the step's batch, or several of them.
            loss: its loss.
            others: other numbers that have to be equal.
        """
        self.steps += 1
        row = {"ids": _numbers(batch, "id"), "noise": _numbers(batch, "noise")}
        row["loss"] = [float(loss), {name: float(value) for name, value in others.items()}]
        with (self.folder / f"{self.phase}-{self.rank}.jsonl").open("a") as file:
            print(json.dumps(row), file=file)
        if self.phase == "killed" and self.steps == self.checkpoint + STEPS_TO_DEATH:
            self.die()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def _numbers(batch: Any, name: str) -> Any:
    """The numbers of one name in a batch, or in each of several batches (None: it is missing)."""
    if batch is None or name in batch:
        return batch if batch is None else batch[name].tolist()
    parts = batch.values() if isinstance(batch, dict) else batch
    return [_numbers(part, name) for part in parts]


class Server:
    """A process that has imported a module, and forks a run of a function of it."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def compare(
        self,
        train: str,
        folder: Path,
        checkpoint: int,
        ranks: int = 1,
        processes: int | None = None,
        **options: Any,
    ) -> str:
        """What of the three runs is equal, in words: see `verdict`.

        Args:
            train: the name of the function.
            folder: an empty one.
            checkpoint: after so many steps a checkpoint is saved.
            ranks: how many processes train.
            processes: how many are started here, and not by the framework; None: all.
            options: arguments of the function, as JSON has them.
        """
        processes = ranks if processes is None else processes
        common = {"train": train, "checkpoint": checkpoint, "ranks": processes, "options": options}
        paths = {
            "whole": folder / "whole",
            "killed": folder / "killed",
            "resumed": folder / "killed",
        }
        codes = {}
        for phase, path in paths.items():
            path.mkdir(parents=True, exist_ok=True)
            codes[phase] = self._ask({**common, "phase": phase, "folder": str(path)})
        assert not any(codes["whole"]), _log(paths["whole"], "whole")
        raised = codes["killed"] != [-signal.SIGKILL] * processes
        steps = len(_rows(paths["killed"], "killed", 0))
        assert steps >= checkpoint, (codes, _log(paths["killed"], "killed"))
        if raised or any(codes["resumed"]):
            print(_log(paths["killed"], "killed" if raised else "resumed"))
            return "error"
        verdicts = [
            verdict(*(_rows(path, phase, rank) for phase, path in paths.items()), checkpoint)
            for rank in range(ranks)
        ]
        return worst(verdicts)

    def on_other_ranks(
        self, train: str, folder: Path, checkpoint: int, ranks: tuple[int, int], **options: Any
    ) -> list[int]:
        """The ids of a run that is killed, and resumed by another number of ranks, step by step."""
        ids: list[int] = []
        for phase, world in zip(("killed", "resumed"), ranks, strict=True):
            job = {"train": train, "checkpoint": checkpoint, "ranks": world, "options": options}
            codes = self._ask({**job, "phase": phase, "folder": str(folder)})
            expected = -signal.SIGKILL if phase == "killed" else 0
            assert codes == [expected] * world, f"{phase}: {codes}\n{_log(folder, phase)}"
            rows = [_rows(folder, phase, rank) for rank in range(world)]
            steps = [*zip(*rows, strict=True)][: checkpoint if phase == "killed" else None]
            ids += [number for step in steps for row in step for number in row["ids"]]
        return ids

    def log(self, train: str, folder: Path, checkpoint: int = 10, **options: Any) -> str:
        """What a whole run prints, with the traceback if it raises."""
        common = {"train": train, "checkpoint": checkpoint, "ranks": 1, "options": options}
        self._ask({**common, "phase": "whole", "folder": str(folder)})
        return _log(folder, "whole")

    def _ask(self, job: dict[str, Any]) -> list[int]:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        answer: list[int] = json.loads(self._process.stdout.readline())
        return answer


#: from good to bad
WORDS = ("exact", "other losses", "other noise", "other ids", "other number of steps", "error")


def worst(verdicts: list[str]) -> str:
    return max(verdicts, key=WORDS.index)


def verdict(whole: list[Any], killed: list[Any], resumed: list[Any], checkpoint: int) -> str:
    """One of `WORDS`: in which way the resumed run differs from the whole one, bit for bit."""
    assert killed == whole[: len(killed)], "two runs differ before their checkpoint"
    expected = whole[checkpoint:]
    for name, word in zip(("ids", "noise", "loss"), (*WORDS[3:1:-1], WORDS[1])):
        same = min(len(resumed), len(expected))
        if [row[name] for row in resumed[:same]] != [row[name] for row in expected[:same]]:
            return word
    return WORDS[0] if len(resumed) == len(expected) else WORDS[4]


def _rows(folder: Path, phase: str, rank: int) -> list[Any]:
    path = folder / f"{phase}-{rank}.jsonl"  # absent if it made no step
    return [json.loads(row) for row in path.read_text().splitlines()] if path.exists() else []


def _log(folder: Path, phase: str) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob(f"{phase}-*.log")))


# --- the server's side ---------------------------------------------------------------------------


def _serve(module: str) -> None:
    # What libraries print goes to stderr: stdout has the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    functions = importlib.import_module(module)
    importlib.import_module("torch._dynamo")  # as each run's optimizer does, which takes 3 seconds
    for line in sys.stdin:
        print(json.dumps(_processes(functions, json.loads(line))), file=answers, flush=True)


def _processes(functions: Any, job: dict[str, Any]) -> list[int]:
    """Run each rank in a process; when one dies, the others are killed. Returns their codes."""
    # The kernel chooses the port, and the store holds it: two servers once chose the same free one.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pids = [_fork(functions, job, rank, store.port) for rank in range(job["ranks"])]
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        pid, status = os.wait()
        codes[pid] = os.waitstatus_to_exitcode(status)
        if codes[pid]:
            for other in set(pids) - set(codes):
                os.kill(other, signal.SIGKILL)
    return [codes[pid] for pid in pids]


def _fork(functions: Any, job: dict[str, Any], rank: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        folder = Path(job["folder"])
        os.chdir(folder)
        log = os.open(f"{job['phase']}-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if job["ranks"] > 1:
            _as_torchrun_does(rank, job["ranks"], port)
        torch.set_num_threads(1)
        seed_all()
        run = Run(job["phase"], folder, job["checkpoint"], rank, job["ranks"])
        run.steps = run.checkpoint if run.resumes else 0
        getattr(functions, job["train"])(run, **job["options"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def seed_all() -> None:
    """Each process of a training begins so."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)


def _as_torchrun_does(rank: int, world: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "frameworks",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
    }


if __name__ == "__main__":
    _serve(sys.argv[1])
