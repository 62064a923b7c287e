"""Findings: iterators and states in a file's tree, and where each of them stands."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ..core.snapshot import FORMAT
from ..errors import LoaderError
from ..values.ahead import batches_left
from .nodes import Built, Stored, Tensor
from .tracing import NotPickle, trace

__all__ = ["Finding", "find", "weigh", "walk"]

#: parts of a tree that are looked at; one that shares its parts may have any number of them
_MOST_PARTS = 200_000
_DEEPEST = 200
_MOST_FINDINGS = 100


@dataclass
class Finding:
    """An iterator or a state.

    Attributes:
        path: where it stands in the file.
        what: ``"iterator"``, ``"state"``.
        rows: what there is to say of it, by name.
    """

    path: str
    what: str
    rows: dict[str, Any]


def find(tree: Any) -> list[Finding]:
    """All iterators and states in a tree, in the order in which they stand there."""
    found: list[Finding] = []
    inside: set[int] = set()
    for path, node in walk(tree):
        if len(found) == _MOST_FINDINGS:
            break
        if isinstance(node, Built) and _is_iterator(node):
            inside.add(id(node.state["state"]))
            found.append(Finding(path, "iterator", _iterator_rows(node)))
        elif _is_state(node) and id(node) not in inside:
            found.append(Finding(path, "state", _state_rows(node)))
    return found


def walk(tree: Any, most: int = _MOST_PARTS) -> Iterator[tuple[str, Any]]:
    """Every part of a tree with its path, an owner before what it has.

    Args:
        tree: of a file.
        most: no more parts than these are looked at.
    """
    waiting: list[tuple[str, Any, int]] = [("", tree, 0)]
    for _ in range(most):
        if not waiting:
            return
        path, node, depth = waiting.pop()
        yield path, node
        if depth < _DEEPEST:
            parts = [(at, part, depth + 1) for at, part in parts_of(node, path)]
            waiting += reversed(parts)


def parts_of(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What stands directly in a part of a tree."""
    if isinstance(node, dict):
        yield from ((f"{path}[{_label(key)}]", value) for key, value in node.items())
    elif isinstance(node, list | tuple):
        yield from ((f"{path}[{at}]", value) for at, value in enumerate(node))
    elif isinstance(node, Built):
        attributes = node.state if isinstance(node.state, dict) else {}
        yield from ((f"{path}.{_name(key)}", value) for key, value in attributes.items())
        if node.state is not None and not attributes:
            yield f"{path}.state", node.state
        yield from (
            (f"{path}.arguments[{at}]", v) for at, v in enumerate(_sequence(node.arguments))
        )
        yield from ((f"{path}.items[{at}]", value) for at, value in enumerate(node.items))


def _label(key: Any) -> str:
    """A key in a path: a long one is shortened, and stays different from others."""
    text = key.name if isinstance(key, Built) else repr(key)
    if len(text) <= _LONGEST_LABEL:
        return text
    return f"{text[:_LONGEST_LABEL]}... {sha256(text.encode()).hexdigest()[:8]}"


def _name(key: Any) -> str:
    return key if isinstance(key, str) and key.isidentifier() and len(key) < 80 else _label(key)


_LONGEST_LABEL = 80


def _sequence(arguments: Any) -> list[Any]:
    return list(arguments) if isinstance(arguments, tuple | list) else []


def weigh(tree: Any) -> int:
    """About how many bytes a tree takes in its file; what is shared counts once."""
    total, seen = 0, set()
    for _, node in walk(tree):
        if isinstance(node, Tensor):
            node = node.stored
        key = node if isinstance(node, Stored) else id(node)
        if key in seen:
            continue
        seen.add(key)
        total += _own_weight(node)
    return total


def _own_weight(node: Any) -> int:
    if isinstance(node, Stored):
        return node.count * _SIZES.get(node.kind.removesuffix("Storage"), 1)
    if isinstance(node, bytes | bytearray | str):
        return len(node) + 5
    if isinstance(node, Built):
        return len(node.name) + 4 + _own_weight(node.state)
    if isinstance(node, dict):
        return 4 + sum(len(key) + 5 for key in node if isinstance(key, str))
    return 9 if isinstance(node, int | float) else 4


_SIZES = {
    "Double": 8,
    "Long": 8,
    "Float": 4,
    "Int": 4,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
}


# --- what there is to say ------------------------------------------------------------------------


def _is_state(node: Any) -> bool:
    return isinstance(node, dict) and node.get("format") == FORMAT and "version" in node


def _is_iterator(node: Built) -> bool:
    state = node.state
    return isinstance(state, dict) and {"loader", "state", "finished"} <= state.keys()


def _iterator_rows(node: Built) -> dict[str, Any]:
    loader, state = node.state["loader"], node.state["state"]
    rows: dict[str, Any] = {"class": node.name}
    rows.update(_state_rows(state) if _is_state(state) else {"state": "none: it is yet to begin"})
    rows["bytes"] = weigh(node)
    rows["finished"] = node.state["finished"] is True
    attributes = loader.state if isinstance(loader, Built) else None
    if isinstance(attributes, dict):
        rows["workers"] = _shown(attributes.get("num_workers"))
        rows["dataset"] = _named(attributes.get("dataset"))
        rows["dataset bytes"] = weigh(attributes.get("dataset"))
        rows["collate_fn"] = _named(attributes.get("collate_fn"))
    return rows


def _state_rows(state: Mapping[str, Any]) -> dict[str, Any]:
    fits = state.get("fits")
    fits = fits if isinstance(fits, dict) else {}
    rows = {"format version": _shown(state.get("version"))}
    rows |= {name: _shown(state.get(name)) for name in ("epoch", "step", "position")}
    rows["progress"] = _progress(state)
    rows |= {name: _shown(fits[name]) for name in _FITS if name in fits}
    rows["base_seed"] = _shown(state.get("base_seed"))
    window = state.get("window")
    if isinstance(window, list) and window:
        rows["window"] = f"{len(window)} entries, drawn and not delivered"
    streams = state.get("streams")
    if isinstance(streams, list):
        rows["streams"] = [_stream(place) for place in streams[:_MOST_STREAMS]]
    rows["bytes"] = weigh(state)
    return rows


_MOST_STREAMS = 64
_FITS = (
    "seed",
    "seeding",
    "sampler",
    "batch_size",
    "drop_last",
    "dataset_length",
    "dataset",
    "num_workers",
)


def _progress(state: Mapping[str, Any]) -> str:
    try:
        left = batches_left(state)
    except LoaderError as error:
        return f"not known: {error}"
    if left is None or type(state.get("step")) is not int:
        return "not known without its data"
    done = state["step"]
    share = 1.0 if not left else done / (done + left)
    return f"{done} of {done + left} batches, {share:.0%}"


def _stream(place: Any) -> str:
    if not isinstance(place, dict):
        return "damaged"
    given, marked = _shown(place.get("given")), _shown(place.get("marked"))
    ended = ", ended" if place.get("ended") is True else ""
    return f"{given} batches given{ended}; {_mark(place.get('mark'), marked)}"


def _mark(mark: Any, marked: Any) -> str:
    if mark is None:
        return "no state: replayed from its start"
    if isinstance(mark, bytes):
        try:
            mark = trace(mark).tree
        except NotPickle:
            return "its state cannot be read"
    if not isinstance(mark, dict):
        return "its state is of no known form"
    if "begun" in mark:
        return "no state: replayed from its start, with the dataset as it was then"
    names = [name for name in ("dataset", "iterator") if name in mark]
    how = "its iterator, pickled" if "pickled" in mark else f"state_dict of {' and '.join(names)}"
    return f"{how}, after {marked} of them"


def _named(node: Any) -> str:
    if isinstance(node, Built):
        return node.name
    return "none" if node is None else type(node).__name__


def _shown(value: Any) -> Any:
    """A value that JSON can hold."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else reprlib.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
