"""Write a checkpoint anew with its state moved on by a number of batches."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch

from ...errors import LoaderError, UsageError
from ...saving.files.archive import load_screened
from ...saving.files.checkpoint import open_file, replacement, rewrite
from ...saving.states.skip import MOST_TASKS, moved_on, tasks_claimed
from ...saving.states.state_json import from_json, to_json
from ..table import Table, complain, show
from .contents import NotRead, kind_of, text_of
from .findings import is_state, text_of_path, walk


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="with a state in it, as inspect shows it")
    parser.add_argument("-n", dest="count", type=int, required=True, help="how many batches")
    parser.add_argument(
        "-o",
        dest="output",
        metavar="NEW",
        required=True,
        help="the file to be written, or replaced",
    )
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")


def run(options: argparse.Namespace) -> int:
    """Move on every state in the file: 0; 2 if that is not exact, and nothing was written."""
    try:
        moved: list[dict[str, Any]] = []

        def move(content: Any) -> None:
            moved.extend(_move(content, options.count))
            if not moved:
                raise NotRead(f"{options.file}: there is no state in it")

        kind = kind_of(options.file)
        if kind == "checkpoint":
            rewrite(options.file, options.output, move)
        else:
            content = _read(options.file, kind)
            move(content)
            _write(content, options.output, kind)
    except RecursionError:
        return complain(f"{options.file}: it is nested too deep to be written anew")
    except (NotRead, LoaderError, OSError) as error:
        return complain(_worded(error, options.file))
    title = f"{options.output}: moved on by {options.count} batches"
    rows = [(m["path"] or "the state", f"step {m['from']} → {m['to']}") for m in moved]
    data = {"file": options.output, "states": moved}
    show([Table(title, rows)], data, options.json)
    return 0


def _read(path: str, kind: str) -> Any:
    if kind == "torch.save":
        with open_file(path) as file:
            return load_screened(file, path, "cpu")
    if kind == "JSON":
        return from_json(text_of(path))
    if not os.path.getsize(path):
        raise NotRead(f"{path}: the file is empty")
    raise UsageError(
        f"{path!r} is a pickle, and reading that runs its code. Load it in your program, call "
        "skip of the iterator, and save it again"
    )


def _write(content: Any, path: str, kind: str) -> None:
    with replacement(path) as file:
        if kind == "JSON":
            file.write(to_json(content).encode())
        else:
            torch.save(content, file)


def _move(content: Any, count: int) -> list[dict[str, Any]]:
    """Move on each state in a file's content; returns where they are, and their steps."""
    moved, tasks_left = [], MOST_TASKS
    for path, node in walk(content):
        if is_state(node):
            tasks_left -= tasks_claimed(node)
            if tasks_left < 0:
                raise UsageError(f"The windows of all states have more than {MOST_TASKS} tasks")
            there, before = moved_on(node, count), node["step"]
            node.clear()
            node.update(there)
            moved.append({"path": text_of_path(path), "from": before, "to": there["step"]})
    return moved


def _worded(error: Exception, path: str) -> str:
    text = str(error)
    named = path in text or (isinstance(error, OSError) and error.filename is not None)
    return text if named else f"{path}: {text}"
