"""Compare two checkpoints, or states, path by path, without running anything of them."""

from __future__ import annotations

import argparse
from typing import Any

from .contents import Contents, NotRead, read
from .findings import walk
from .nodes import Built, Stored, Tensor
from .screen import Table, complain, show

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("one", metavar="A", help="a file, as inspect reads it")
    parser.add_argument("other", metavar="B", help="another one")
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")


def run(options: argparse.Namespace) -> int:
    """Compare the files.

    Returns:
        0 if they hold the same; 1 if not; 2 if one cannot be read.
    """
    try:
        one, other = read(options.one), read(options.other)
        found = _differences(_leaves(one), _leaves(other))
    except (NotRead, OSError) as error:
        return complain(str(error))
    rows = [(path, _side(a), _side(b)) for path, a, b in found]
    title = f"{options.one} and {options.other}: " + (
        f"{len(found)} differences" if found else "they hold the same"
    )
    data = [{"path": path, "A": a, "B": b} for path, a, b in found]
    show([Table(title, [(p, f"{a} → {b}") for p, a, b in rows])], data, options.json)
    return 1 if found else 0


def _leaves(contents: Contents) -> dict[str, str]:
    """What stands at each path, as text."""
    leaves = {}
    for count, (path, node) in enumerate(walk(contents.tree, _MOST + 1)):
        if count == _MOST:
            raise NotRead(f"{contents.path}: it has more than {_MOST} parts to be compared")
        text = _text(node, contents)
        if text is not None:
            leaves[path or "(the file itself)"] = text
    return leaves


_MOST = 1_000_000


def _text(node: Any, contents: Contents) -> str | None:
    if isinstance(node, Tensor):
        held = _text(node.stored, contents)
        return f"a tensor {list(node.shape)} at {node.offset}, {list(node.stride)}, of {held}"
    if isinstance(node, Stored):
        return f"{node.count} numbers of {node.kind} ({contents.digest(node)})"
    if isinstance(node, Built):
        return f"{node.name}{'(...)' if node.called else ''}"
    if isinstance(node, dict | list | tuple):
        return None if node else repr(node)
    return repr(node)


def _differences(
    one: dict[str, str], other: dict[str, str]
) -> list[tuple[str, str | None, str | None]]:
    paths = [*one, *(path for path in other if path not in one)]
    pairs = [(path, one.get(path), other.get(path)) for path in paths]
    return [(path, a, b) for path, a, b in pairs if a != b]


def _side(text: str | None) -> str:
    if text is None:
        return "(not there)"
    return text if len(text) <= 60 else f"{text[:57]}..."
