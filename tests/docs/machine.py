"""docs/elastic/train.py, on one of two machines: it waits for the other, or dies in mid-epoch."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[2] / "docs" / "elastic"))
train: Any = importlib.import_module("train")
note = train.note


def note_and_interrupt(folder: Path, step: int, rank: int, world: int, *batch: Any) -> None:
    note(folder, step, rank, world, *batch)
    if step == 7 and world == 1:
        (folder / "alone").open("w").close()  # a pipe: the test starts the other machine
        signal.pause()  # until torchrun has noticed that machine
    if step == 13 and "DIES" in os.environ:
        os.kill(os.getppid(), signal.SIGKILL)  # torchrun
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train.note = note_and_interrupt
    train.main()
