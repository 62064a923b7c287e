"""Show what is in a checkpoint, without running it; that it looks harmless is no proof."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from ...saving.files.nested_pickles import BUILT_BY_TORCH
from ...saving.files.pickle_nodes import Built, Ordered, Tensor
from ...saving.files.pickle_tree import OPENED
from ...saving.pickles.size import in_words
from ..table import Table, complain, show
from .contents import Contents, NotRead, reading
from .findings import Finding, brief, find, weigh


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="of picklable_loader.save, of torch.save, a pickle, or a state as JSON",
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(options: argparse.Namespace) -> int:
    """Look into the file: 0; 1 if no iterator and no state is in it; 2 if it cannot be read."""
    try:
        with reading(options.file) as contents:
            found = find(contents.tree)
    except (NotRead, OSError) as error:
        return complain(str(error))
    parts = _parts(contents.tree)
    # Names that may do more than make values. What `OPENED` opens is among the names.
    code = sorted(contents.names - BUILT_BY_TORCH - {OPENED})
    data = {
        "file": contents.path,
        "kind": contents.kind,
        "bytes": contents.bytes,
        "notes": contents.notes,
        "found": [asdict(finding) for finding in found],
        "parts": [{"path": path, "what": what, "bytes": size} for path, what, size in parts],
        "needs_code": code,
    }
    show(_tables(contents, found, parts, code), data, options.json)
    return 0 if found else 1


_MOST = 40


def _tables(
    contents: Contents, found: list[Finding], parts: list[Any], code: list[str]
) -> list[Table]:
    about: list[tuple[Any, ...]] = [("kind", contents.kind), ("size", in_words(contents.bytes))]
    about += contents.notes.items()
    about.append(("loading it", _loading(code)))
    tables = [Table(contents.path, about)]
    tables += [
        Table(f"{each.what} {each.path or '(the file itself)'}", _rows(each)) for each in found
    ]
    if not found:
        tables.append(Table("Neither an iterator nor a state is in it."))
    if len(parts) > 1:
        rows = [(path, in_words(size), what) for path, what, size in parts[:_MOST]]
        tables.append(Table("parts, about", rows))
    return tables


def _rows(finding: Finding) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for name, value in finding.rows.items():
        if name == "streams":
            rows += [(f"stream {at}", each) for at, each in enumerate(value)]
        elif name.endswith("bytes"):
            rows.append((name.replace("bytes", "size"), f"about {in_words(value)}"))
        else:
            rows.append((name, "none" if value is None else value))
    return rows


def _parts(tree: Any) -> list[tuple[str, str, int]]:
    """The file's direct parts, each with its kind and size; shared memory counts once."""
    if not isinstance(tree, dict):
        return [("(the file itself)", _kind(tree), weigh(tree))]
    seen: set[Any] = set()
    return [
        (
            key if isinstance(key, str) and len(key) <= 80 else brief(key),
            _kind(value),
            weigh(value, seen),
        )
        for key, value in tree.items()
    ]


def _kind(node: Any) -> str:
    if isinstance(node, Built):
        return node.name
    names = {Tensor: "tensor", Ordered: "OrderedDict"}
    return names.get(type(node), type(node).__name__)


def _loading(code: list[str]) -> str:
    if not code:
        return "runs no code: weights_only=True is enough"
    shown = ", ".join(code[:8]) + (f" and {len(code) - 8} more" if len(code) > 8 else "")
    return f"imports, and may call: {shown}"
