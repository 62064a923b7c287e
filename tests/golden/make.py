"""Writes the kept states that are missing. Those that are there are never written again.

Run after VERSION in picklable_loader/core/snapshot.py has gone up: ``python -m golden.make`` in
the folder ``tests``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from laws.observe import seed_everything, seen

from picklable_loader.core.snapshot import VERSION

from .cases import GOLDEN, PICKLED, PICKLES, Golden, GoldenPickle


def record(case: Golden) -> dict[str, Any]:
    """A state, the rest of its epoch, and the epoch after that."""
    seed_everything(1)
    loader = case.make()
    iterator = iter(loader)
    seen(iterator, case.delivered)
    state = iterator.state_dict()
    rest = seen(iterator) if case.delivered is not None else seen(iter(loader))
    return {"state": state, "rest": rest, "next": seen(iter(loader))}


def record_pickle(case: GoldenPickle) -> tuple[bytes, list[Any]]:
    """A pickled iterator, and the rest of its epoch."""
    seed_everything(1)
    iterator = iter(case.make())
    seen(iterator, 2)
    return case.dumps(iterator), seen(iterator)


def write(path: Path, recorded: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".pt":
        torch.save(recorded, path)
    else:
        path.write_text(json.dumps(recorded, indent=1) + "\n")


def read(path: Path) -> dict[str, Any]:
    if path.suffix == ".pt":
        return dict(torch.load(path, weights_only=True))
    return dict(json.loads(path.read_text()))


if __name__ == "__main__":
    for golden in GOLDEN:
        kept = golden.path(VERSION)
        if not kept.exists():
            write(kept, record(golden))
            print(kept)
    for case in PICKLED:
        if not case.path.exists():
            PICKLES.mkdir(exist_ok=True)
            data, rest = record_pickle(case)
            case.path.write_bytes(data)
            python = list(sys.version_info[:2])
            text = json.dumps({"python": python, "rest": rest})
            case.path.with_suffix(".json").write_text(text + "\n")
            print(case.path)
