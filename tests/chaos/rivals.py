"""Rivals: the same faults against torch's loader, torchdata's and ours, as a table."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from picklable_loader import DataLoader

from .processes import fork, wait_for_all
from .scenes import SCENES, Faulty, Scene

__all__ = ["table"]

SIDES = ("torch", "torchdata", "picklable_loader")

#: seconds after which a trainer hangs
_LIMIT_S = 30.0

#: seconds within which nothing is left of a trainer
_GONE_S = 1.0

#: batches before something happens to the trainer
_BEFORE = 3

#: errors after which a trainer gives up
_ENOUGH = 2


def table() -> str:
    """What happened, in Markdown."""
    lines = [("fault", *SIDES), ("---",) * (1 + len(SIDES))]
    for scene in SCENES.values():
        with tempfile.TemporaryDirectory() as folder:
            lines.append((scene.name, *(_played(scene, side, Path(folder)) for side in SIDES)))
        print(*lines[-1], sep=" | ", flush=True)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _played(scene: Scene, side: str, folder: Path) -> str:
    """What happens, in words."""
    flag, said = folder / f"{side}-flag", folder / f"{side}-said"
    trainer = fork(partial(_train, scene, side, flag, said), folder / "output")
    ended = _await_end(trainer, flag if scene.killed else None)
    gone = wait_for_all(trainer, _GONE_S)
    if not gone:
        os.killpg(trainer, signal.SIGKILL)
        wait_for_all(trainer, _LIMIT_S)
    outcome = said.read_text() if said.exists() else "the trainer dies"
    if scene.killed:
        return "all are gone within a second" if gone else "**leaves processes**"
    return (outcome if ended else "**hangs**") + ("" if gone else ", **leaves processes**")


def _await_end(trainer: int, flag: Path | None) -> bool:
    """Wait for a trainer to end; kill it when the flag is there, or when the time is up.

    Returns:
        The time was not up.
    """
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        if os.waitpid(trainer, os.WNOHANG)[0]:
            return True
        if flag is not None and flag.exists():
            break
        time.sleep(0.01)
    os.kill(trainer, signal.SIGKILL)
    os.waitpid(trainer, 0)
    return flag is not None


# --- in the trainer ------------------------------------------------------------------------------


def _train(scene: Scene, side: str, flag: Path, said: Path) -> None:
    warnings.simplefilter("ignore")
    quiet = Scene("", samples=scene.samples, size=scene.size)
    expected = [_indices(batch) for batch in _loader(side, quiet, flag)]
    try:
        if scene.before is not None:
            scene.before()
    except PermissionError as error:
        said.write_text(f"not tried ({error})")
        return
    kept, errors = _all_batches(scene, iter(_loader(side, scene, flag)))
    said.write_text(_verdict(scene, [_indices(batch) for batch in kept], expected, errors))
    gc.collect()
    util._exit_function()  # type: ignore[attr-defined]  # what happens when a program ends


def _loader(side: str, scene: Scene, flag: Path) -> Any:
    arguments: dict[str, Any] = {
        "batch_size": 4,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(5),
        "num_workers": 2,
        **scene.loader,
    }
    dataset = Faulty(scene, flag)
    if side == "picklable_loader":
        return DataLoader(dataset, **arguments, **scene.ours)
    if side == "torchdata":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(dataset, **arguments)
    return TorchDataLoader(dataset, **arguments)


def _all_batches(scene: Scene, iterator: Iterator[Any]) -> tuple[list[Any], list[str]]:
    kept: list[Any] = []
    errors: list[str] = []
    while len(errors) < _ENOUGH:
        try:
            if len(kept) == _BEFORE and scene.in_trainer is not None and not errors:
                scene.in_trainer()
            kept.append(next(iterator))
        except StopIteration:
            break
        except (Exception, KeyboardInterrupt) as error:
            errors.append(type(error).__name__)
    return kept, errors


def _indices(batch: torch.Tensor) -> list[int]:
    assert torch.equal(batch, batch[:, :1].expand_as(batch)), "it was torn"
    return [int(index) for index in batch[:, 0]]


def _verdict(
    scene: Scene, found: list[list[int]], expected: list[list[int]], errors: list[str]
) -> str:
    whole = found == expected or (scene.fails and _all_but_one(found, expected))
    if not errors:
        return "goes on" if whole else "**other batches**"
    if whole:
        return f"{errors[0]}, then goes on"
    return f"**{errors[0]}**, {len(expected) - len(found)} of {len(expected)} batches are lost"


def _all_but_one(found: list[list[int]], expected: list[list[int]]) -> bool:
    return any(found == expected[:at] + expected[at + 1 :] for at in range(len(expected)))
