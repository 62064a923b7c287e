"""Compare two checkpoints, or states, path by path, without running anything of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

from ...saving.files.nested_pickles import data_of
from ...saving.files.pickle_nodes import Built, Stored, Tensor
from ..table import Table, complain, show
from .contents import Contents, NotRead, reading
from .findings import Path, brief, is_container, parts_of, text_of_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("one", metavar="A", help="a file, as inspect reads it")
    parser.add_argument("other", metavar="B", help="another one")
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")


def run(options: argparse.Namespace) -> int:
    """Compare the files: 0 if they hold the same; 1 if not; 2 if one cannot be read."""
    try:
        with reading(options.one) as one, reading(options.other) as other:
            found = list(_Comparison(one, other).differences())
    except (NotRead, OSError) as error:
        return complain(str(error))
    title = f"{options.one} and {options.other}: " + (
        f"{len(found)} differences" if found else "they hold the same"
    )
    data = [{"path": path, "A": a, "B": b} for path, a, b in found]
    rows = [(path, f"{_side(a)} → {_side(b)}") for path, a, b in found[:_MOST_ROWS]]
    if len(found) > _MOST_ROWS:
        rows.append(("...", f"and {len(found) - _MOST_ROWS} more: --json shows all"))
    show([Table(title, rows)], data, options.json)
    return 1 if found else 0


_MOST_ROWS = 1000

_NOTHING = object()


def _as_bytes(data: str | bytes | bytearray) -> bytes | bytearray:
    return data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data


class _Comparison:
    """Two trees, walked side by side to their ends, whatever their depth.

    Parts that were compared are joined into groups of what should be the same, and no two parts of
    one group are compared again. So trees that share their parts, or contain themselves, take no
    more comparisons than both files have parts.
    """

    def __init__(self, one: Contents, other: Contents) -> None:
        self._one, self._other = one, other
        self._groups: dict[int, int] = {}
        self._digests: dict[Any, str] = {}

    def differences(self) -> Iterator[tuple[str, str | None, str | None]]:
        """The path of each difference, and the values in both files."""
        generators: Path = (None, lambda: "(the program's generators)", 1)
        waiting: list[tuple[Path, Any, Any]] = [
            (generators, self._one.program, self._other.program),
            (None, self._one.tree, self._other.tree),
        ]
        while waiting:
            path, a, b = waiting.pop()
            inner = is_container(a) and type(a) is type(b)
            if inner and not self._join(a, b):
                continue
            if not self._alike(a, b):
                where = text_of_path(path) or "(the file itself)"
                yield where, self._text(a, self._one), self._text(b, self._other)
            if inner:
                waiting += reversed(list(_pairs(path, a, b)))

    def _join(self, a: Any, b: Any) -> bool:
        """Put two parts into one group; False if they were in one."""
        one, other = self._group(id(a)), self._group(id(b))
        self._groups[one] = other
        return one != other

    def _group(self, part: int) -> int:
        while (above := self._groups.setdefault(part, part)) != part:
            self._groups[part] = self._groups[above]
            part = above
        return part

    def _alike(self, a: Any, b: Any) -> bool:
        """Two parts are alike; what they contain is not looked at."""
        if type(a) is not type(b):
            return False
        if isinstance(a, Built):
            return bool((a.name, a.called) == (b.name, b.called))
        if is_container(a):
            return True
        if isinstance(a, Tensor):
            bare = replace(a, stored=b"") == replace(b, stored=b"")
            if bare and isinstance(a.stored, bytes) and isinstance(b.stored, bytes):
                return self._digest(a.stored, data_of) == self._digest(b.stored, data_of)
            return bare and self._alike(a.stored, b.stored)
        if isinstance(a, Stored):
            alike = (a.kind, a.count) == (b.kind, b.count)
            return alike and self._one.digest(a) == self._other.digest(b)
        if isinstance(a, float | complex):  # a NaN is like a NaN
            return repr(a) == repr(b)
        if isinstance(a, str | bytes | bytearray) and len(a) == len(b) > _LONG:
            return self._digest(a) == self._digest(b)
        return bool(a == b)

    def _digest(self, data: Any, read: Callable[[Any], Any] = _as_bytes) -> str:
        """A checksum, made once: many paths may lead to one text, many tensors to one storage.

        With `data_of`, of the numbers in a file of torch that a plain pickle holds.
        """
        known = id(data), read
        if known not in self._digests:
            self._digests[known] = sha256(read(data)).hexdigest()
        return self._digests[known]

    def _text(self, node: Any, contents: Contents) -> str | None:
        if node is _NOTHING:
            return None
        if isinstance(node, Tensor):
            held = self._text(node.stored, contents)
            if isinstance(node.stored, bytes):
                held = f"numbers within the pickle ({self._digest(node.stored, data_of)[:16]})"
            gradient = ", with gradient" if node.gradient else ""
            where = f"{list(node.shape)} at {node.offset}, {list(node.stride)}"
            return f"a tensor {where}, of {held}{gradient}"
        if isinstance(node, Stored):
            return f"{node.count} numbers of {node.kind} ({contents.digest(node)})"
        if isinstance(node, Built):
            return f"{brief(node)}{'(...)' if node.called else ''}"
        return brief(node)


_LONG = 100


def _pairs(path: Path, a: Any, b: Any) -> Iterator[tuple[Path, Any, Any]]:
    """The parts of two parts, by their keys; `_NOTHING` where one has none."""
    depth = 1 if path is None else path[2] + 1
    parts = {key: (label, part) for key, label, part in parts_of(a)}
    others = {key: (label, part) for key, label, part in parts_of(b)}
    for key, (label, part) in parts.items():
        _, other = others.get(key, (label, _NOTHING))
        yield (path, label, depth), part, other
    for key, (label, other) in others.items():
        if key not in parts:
            yield (path, label, depth), _NOTHING, other


def _side(text: str | None) -> str:
    if text is None:
        return "(not there)"
    return text if len(text) <= 60 else f"{text[:57]}..."
