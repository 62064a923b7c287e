"""Write a checkpoint anew with its state moved on by a number of batches."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from ..ahead import moved_on
from ..core.snapshot import FORMAT
from ..errors import LoaderError, UsageError
from ..files import load, replacement, save
from ..readable import from_json, to_json
from ..screening import load_screened
from .contents import NotRead, kind_of
from .screen import Table, complain, show

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
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
    """Move on every state in the file, and write all of it to the new one.

    Returns:
        0; 2 if that cannot be done exactly, and nothing was written.
    """
    moved: list[dict[str, Any]] = []
    try:
        kind = kind_of(options.file)
        content = _read(options.file, kind)
        changed = _moved(content, options.count, "", moved)
        if not moved:
            raise NotRead(f"{options.file}: there is no state in it")
        _write(changed, options.output, kind)
    except (NotRead, LoaderError, OSError) as error:
        return complain(_worded(error, options.file))
    title = f"{options.output}: moved on by {options.count} batches"
    rows = [(each["path"] or "the state", f"step {each['from']} → {each['to']}") for each in moved]
    data = {"file": options.output, "states": moved}
    show([Table(title, rows)], data, options.json)
    return 0


def _read(path: str, kind: str) -> Any:
    if kind == "checkpoint":
        return load(path, weights_only=True, map_location="cpu")
    if kind == "torch.save":
        with open(path, "rb") as file:
            return load_screened(file, path, "cpu")
    if kind == "JSON":
        with open(path, encoding="utf-8") as text:
            return from_json(text.read())
    raise UsageError(
        f"{path!r} is a pickle, and reading that runs its code. Load it in your program, call "
        "skip of the iterator, and save it again"
    )


def _write(content: Any, path: str, kind: str) -> None:
    if kind == "checkpoint":
        save(content, path)
        return
    with replacement(path) as file:
        if kind == "JSON":
            file.write(to_json(content).encode())
        else:
            torch.save(content, file)


def _moved(node: Any, count: int, path: str, moved: list[dict[str, Any]]) -> Any:
    """A copy in which states are moved on; what has none in it stays as it is."""
    if type(node) is dict and node.get("format") == FORMAT and "version" in node:
        there = moved_on(node, count)
        moved.append({"path": path, "from": node["step"], "to": there["step"]})
        return there
    if type(node) is dict:
        return {k: _moved(each, count, f"{path}[{k!r}]", moved) for k, each in node.items()}
    if type(node) in (list, tuple):
        return type(node)(
            _moved(each, count, f"{path}[{at}]", moved) for at, each in enumerate(node)
        )
    return node


def _worded(error: Exception, path: str) -> str:
    text = str(error)
    return text if path in text else f"{path}: {text}"
