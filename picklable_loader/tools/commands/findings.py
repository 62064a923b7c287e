"""Findings: iterators and states in a file's tree, and the path to each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...core.snapshot import FORMAT
from ...errors import LoaderError
from ...saving.files.pickle_nodes import Built, Key, Ordered, Stored, Tensor
from ...saving.files.pickle_tree import NotPickle, trace
from ...saving.states.skip import MOST_TASKS, batches_left, tasks_claimed

_MOST_FINDINGS = 100


@dataclass
class Finding:
    """An iterator or a state: its path in the file, which of both it is, its figures."""

    path: str
    what: str
    rows: dict[str, Any]


def find(tree: Any) -> list[Finding]:
    """All iterators and states in a tree, in their order there."""
    found: list[Finding] = []
    inside: set[int] = set()
    rows = _Rows(MOST_TASKS)
    for path, node in walk(tree):
        if len(found) == _MOST_FINDINGS:
            break
        if isinstance(node, Built) and _is_iterator(node):
            inside.add(id(node.state["state"]))
            found.append(Finding(text_of_path(path), "iterator", rows.of_iterator(node)))
        elif is_state(node) and id(node) not in inside:
            found.append(Finding(text_of_path(path), "state", rows.of_state(node)))
    return found


# --- walking -------------------------------------------------------------------------------------

#: of a part: the path of its owner, its name there, and its depth. It is
#: made into text for what is shown only: a tree may be as deep as its file is large.
Path = tuple[Any, Callable[[], str], int] | None


def walk(tree: Any, seen: set[Any] | None = None) -> Iterator[tuple[Path, Any]]:
    """Every part of a tree with its path, an owner before what it has; a shared part once.

    ``seen`` has ids of containers that are passed over; those that are visited are added.
    """
    waiting: list[tuple[Path, Any]] = [(None, tree)]
    seen = set() if seen is None else seen
    while waiting:
        path, node = waiting.pop()
        if is_container(node):
            if id(node) in seen:
                continue
            seen.add(id(node))
        yield path, node
        depth = 0 if path is None else path[2]
        parts = [((path, label, depth + 1), part) for _, label, part in parts_of(node)]
        waiting += reversed(parts)


def is_container(node: Any) -> bool:
    """It has parts, so that it may be shared or contain itself."""
    return isinstance(node, dict | list | tuple | Built)


def parts_of(node: Any) -> Iterator[tuple[Any, Callable[[], str], Any]]:
    """The direct parts of a part of a tree, each with its key and a function for its label."""
    if isinstance(node, dict):
        yield from _entries("key", _at_key, node)
        if isinstance(node, Ordered) and node.state is not None:
            yield "state", partial(str, ".state"), node.state
    elif isinstance(node, list | tuple):
        yield from ((at, partial("[{}]".format, at), value) for at, value in enumerate(node))
    elif isinstance(node, Built):
        if isinstance(node.state, dict) and node.state:
            yield from _entries("attribute", _at_name, node.state)
        elif node.state is not None:
            yield "state", partial(str, ".state"), node.state
        given = node.arguments
        arguments = given if isinstance(given, tuple | list) else () if given is None else (given,)
        for name, values in (("arguments", arguments), ("items", node.items)):
            for at, value in enumerate(values):
                yield (name, at), partial(f".{name}[{{}}]".format, at), value


def _entries(
    kind: str, label: Callable[[Any], str], node: dict[Any, Any]
) -> Iterator[tuple[Any, Callable[[], str], Any]]:
    """The entries of a dict. Keys that are built have parts as well, and differ by a number."""
    counts: Counter[Any] = Counter()
    for key, value in node.items():
        held = key.value if isinstance(key, Key) else key
        flat = held if isinstance(held, tuple) else (held,)
        names = tuple(
            p.name if isinstance(p, Built) else (type(p), repr(p) if isinstance(p, float) else p)
            for p in flat
        )
        known: Any = kind, type(held), names
        if any(isinstance(part, Built) for part in flat):
            counts[known] += 1
            known = *known, counts[known]
            yield ("the key", known), partial(label, key), held
        yield known, partial(label, key), value


def text_of_path(path: Path) -> str:
    """A path in words; of a long one its end."""
    labels: list[str] = []
    depth = 0 if path is None else path[2]
    while path is not None and len(labels) < _MOST_LABELS:
        labels.append(path[1]())
        path = path[0]
    left_out = depth - len(labels)
    text = "".join(reversed(labels))
    if not left_out and len(text) <= _LONGEST_PATH:
        return text
    return f"({depth} levels deep) ...{text[-_LONGEST_PATH:]}"


_MOST_LABELS, _LONGEST_PATH = 40, 400


def _at_key(key: Any) -> str:
    return f"[{brief(key)}]"


def _at_name(key: Any) -> str:
    plain = isinstance(key, str) and len(key) < 80 and key.isidentifier()
    return f".{key if plain else brief(key)}"


def brief(value: Any) -> str:
    """A value in few characters, and in no more time than these take."""
    if isinstance(value, str | bytes | bytearray):
        if len(value) <= _LONGEST:
            return repr(value)
        return f"{value[:_LONGEST]!r}... ({len(value)} in all)"
    if isinstance(value, Key):
        return brief(value.value)
    if isinstance(value, Built):
        return value.name[:_LONGEST]
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, tuple):
        parts = [brief(part) if not isinstance(part, tuple) else "(...)" for part in value[:8]]
        return f"({', '.join(parts)}{', ...' if len(value) > 8 else ''})"[: 4 * _LONGEST]
    return repr(value)[: 4 * _LONGEST]


_LONGEST = 80


def weigh(tree: Any, seen: set[Any] | None = None) -> int:
    """About how many bytes a tree takes in its file, without what was ``seen`` before."""
    total, seen = 0, set() if seen is None else seen
    for _, node in walk(tree, seen):
        if isinstance(node, Tensor):
            node = node.stored
        if isinstance(node, Stored | str | bytes | bytearray):
            key = node if isinstance(node, Stored) else id(node)
            if key in seen:
                continue
            seen.add(key)
        total += _own_weight(node)
    return total


def _own_weight(node: Any) -> int:
    if isinstance(node, Stored):
        return node.count if node.bytes is None else node.bytes
    if isinstance(node, bytes | bytearray | str):
        return len(node) + 5
    if isinstance(node, Built):
        return len(node.name) + 4 + _own_weight(node.state)
    if isinstance(node, dict):
        return 4 + sum(len(key) + 5 for key in node if isinstance(key, str))
    return 9 if isinstance(node, int | float) else 4


# --- what there is to say ------------------------------------------------------------------------


def is_state(node: Any) -> bool:
    """It is a state, whether damaged or not."""
    found = node.get("format") if isinstance(node, dict) else None
    return type(found) is str and found == FORMAT and "version" in node


def _is_iterator(node: Built) -> bool:
    state = node.state
    return isinstance(state, dict) and {"loader", "state", "finished"} <= state.keys()


class _Rows:
    """Rows that describe iterators and states, whose windows have up to so many tasks together."""

    def __init__(self, tasks: int) -> None:
        self._tasks_left = tasks
        self._states: dict[int, tuple[bytes, Any]] = {}

    def of_iterator(self, node: Built) -> dict[str, Any]:
        loader, state = node.state["loader"], node.state["state"]
        rows: dict[str, Any] = {"class": node.name}
        begun = is_state(state)
        rows.update(self.of_state(state) if begun else {"state": "none: it is yet to begin"})
        rows["bytes"] = weigh(node)
        rows["finished"] = node.state["finished"] is True
        attributes = loader.state if isinstance(loader, Built) else None
        if isinstance(attributes, dict):
            rows["workers"] = _shown(attributes.get("num_workers"))
            rows["dataset"] = _named(attributes.get("dataset"))
            rows["dataset bytes"] = weigh(attributes.get("dataset"))
            rows["collate_fn"] = _named(attributes.get("collate_fn"))
        return rows

    def of_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        fits = state.get("fits")
        fits = fits if isinstance(fits, dict) else {}
        rows = {"format version": _shown(state.get("version"))}
        rows |= {name: _shown(state.get(name)) for name in ("epoch", "step", "position")}
        rows["progress"] = self._progress(state)
        if "next_epoch" in state:
            rows["next epoch"] = _shown(state["next_epoch"])
        rows |= {name: _shown(fits[name]) for name in _FITS if name in fits}
        rows["base_seed"] = _shown(state.get("base_seed"))
        window = state.get("window")
        if isinstance(window, list) and window:
            rows["window"] = f"{len(window)} entries, drawn and not delivered"
        streams = state.get("streams")
        if isinstance(streams, list):
            rows["streams"] = [self._stream(position) for position in streams[:_MOST_STREAMS]]
        rows["bytes"] = weigh(state)
        return rows

    def _progress(self, state: Mapping[str, Any]) -> str:
        self._tasks_left -= tasks_claimed(state)
        if self._tasks_left < 0:
            return "not known: the windows are too large"
        try:
            left = batches_left(state)
        except LoaderError as error:
            return f"not known: {error}"
        if left is None or type(state.get("step")) is not int:
            return "not known without its data"
        done = state["step"]
        share = 1.0 if not left else done / (done + left)
        return f"{done} of {done + left} batches, {share:.0%}"

    def _stream(self, position: Any) -> str:
        if not isinstance(position, dict):
            return "damaged"
        given, state_at = _shown(position.get("given")), _shown(position.get("marked"))
        ended = ", ended" if position.get("ended") is True else ""
        return f"{given} batches given{ended}; {self._how(position.get('mark'), state_at)}"

    def _how(self, state: Any, state_at: Any) -> str:
        """How a stream goes on."""
        if state is None:
            return "no state: replayed from its start"
        state = self._opened(state) if isinstance(state, bytes) else state
        if state is None:
            return "its state cannot be read"
        if not isinstance(state, dict):
            return "its state is of no known form"
        if "begun" in state:
            return "no state: replayed from its start, with the dataset as it was then"
        names = [name for name in ("dataset", "iterator") if name in state]
        pickled = "pickled" in state
        how = "its iterator, pickled" if pickled else f"state_dict of {' and '.join(names)}"
        return f"{how}, after {state_at} of them"

    def _opened(self, state: bytes) -> Any:
        """The contents of a state. Many streams may have the same bytes, which are read once."""
        if id(state) not in self._states:
            try:
                tree = trace(state).tree
            except NotPickle:
                tree = None
            self._states[id(state)] = state, tree
        return self._states[id(state)][1]


_MOST_STREAMS = 64
_FITS = "seed seeding sampler batch_size drop_last dataset_length dataset num_workers".split()


def _named(node: Any) -> str:
    if isinstance(node, Built):
        return node.name
    return "none" if node is None else type(node).__name__


def _shown(value: Any) -> Any:
    """A value that JSON can hold."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else brief(value)
    return text if len(text) <= 80 else text[:77] + "..."
