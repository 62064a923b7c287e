"""The journal of a training run, on disk after each step, so that SIGKILL cannot lose it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Journal:
    """Writes one line per event.

    Args:
        path: a new file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)  # a line is with the kernel when it is written

    def step(self, number: int, loss: float, indices: list[int]) -> None:
        """Note a step that was done.

        Args:
            number: of the step, from 0.
            loss: kept to the last bit.
            indices: which samples the batch was made of.
        """
        self._write(step=number, loss=loss.hex(), indices=indices)

    def saved(self, milliseconds: float, checkpoint_bytes: int, state_bytes: int | None) -> None:
        """Note a checkpoint: what it cost, its size, and the loader's position's size in it."""
        self._write(milliseconds=milliseconds, checkpoint=checkpoint_bytes, state=state_bytes)

    def finished(self, accuracy: float) -> None:
        """Note the end; ``accuracy`` is the part of test images told right, from 0 to 1."""
        self._write(accuracy=accuracy)

    def _write(self, **event: Any) -> None:
        self._file.write(json.dumps(event) + "\n")


@dataclass
class Record:
    """A journal that was read.

    Attributes:
        losses: by number of step.
        indices: the samples of each step, by its number.
        saved: the checkpoint's figures, if there was one.
        accuracy: None if the run did not come to its end.
    """

    losses: dict[int, float] = field(default_factory=dict)
    indices: dict[int, list[int]] = field(default_factory=dict)
    saved: dict[str, Any] | None = None
    accuracy: float | None = None


def read(path: Path) -> Record:
    """Read a run's journal."""
    record = Record()
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if "step" in event:
            record.losses[event["step"]] = float.fromhex(event["loss"])
            record.indices[event["step"]] = event["indices"]
        elif "accuracy" in event:
            record.accuracy = event["accuracy"]
        else:
            record.saved = event
    return record
