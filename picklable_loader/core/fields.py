"""Table of all fields that a saved state may have, and the check that it has no others.

A new field is added here, and in the other files that the package's README.md lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DamagedStateError

_NULL: type[Any] = type(None)
_SCALAR: tuple[type[Any], ...] = (_NULL, bool, int, float, str)
#: a value as `plain.encode` writes it
_FORM: tuple[type[Any], ...] = (*_SCALAR, list, dict)

#: the sampler of a fingerprint whose dataset needs none
ITERABLE = "iterable-style dataset"

#: Every field of a state: the records of a state, their fields, and the exact types that these may
#: have. Anything else is damage. docs/state.md shows each with an example.
FIELDS: dict[str, dict[str, tuple[type[Any], ...]]] = {
    "state": {
        "format": (str,),
        "version": (int,),
        "epoch": (int,),
        "step": (int,),
        "next_step": (int,),
        "position": (int,),
        "window": (list,),
        "base_seed": (int, _NULL),
        "worker_seed": (int,),
        "draws_as": (str,),
        "order": (dict, _NULL),
        "sampler": (dict,),
        "rng": (dict,),
        "workers": (dict,),
        "streams": (list,),
        "num_streams": (int,),
        "again": (dict,),
        "batches": (int,),
        "worker_info": (bool,),
        "dataset_rng": (dict,),
        "announced": (int, _NULL),
        "next_epoch": (int,),
        "counted": (bool,),
        "rank": (list,),
        "fits": (dict,),
        "program": (dict,),
        "feedback": (dict,),
        "checksum": (str,),
    },
    "feedback": {"budget": (int,), "heard": (int,), "notes": (list,), "newest": (int,)},
    "program": {
        "torch": (str,), "numpy": (str,), "python": (str,), "cuda": (list,), "rank": (list,),
    },
    "sampler": {"attributes": (dict,), "state": _FORM, "after": (dict,)},
    "rng": {
        "loader": (str,), "sampler": (str,), "torch": (str,), "numpy": (str,), "python": (str,),
    },
    "generators": {"torch": (str,), "numpy": (str,), "python": (str,)},
    "fits": {
        "dataset_length": (int, _NULL),
        "sampler": (str,),
        "sampler_length": (int, _NULL),
        "sampler_checksum": (str,),
        "source_length": (int,),
        "sampler_seed": (int,),
        "batch_size": (int, _NULL),
        "batches_from": (str,),
        "drop_last": (bool,),
        "seeding": (str,),
        "seed_dataset": (str,),
        "seed": (int, _NULL),
        "num_workers": (int,),
        "dataset": (str,),
        "world_size": (int,),
        "shard_tail": (str,),
    },
    "stream": {
        "given": (int,),
        "ended": (bool,),
        "mark": (dict, _NULL),
        "marked": (int,),
        "since": (list,),
        "seen": (list,),
    },
    "mark": {
        "dataset": _FORM, "iterator": _FORM, "rng": (dict,), "first_rng": (dict,), "over": (bool,),
        "announced": (int,), "after": _FORM,
    },
    # The order's own state: one of these. That of a registered order is checked by its factory.
    "order of a sequence": {"grown_from": (list,)},
    "order in chunks": {
        "seed": (int,), "generator": (str,), "chunks": (int,), "grown_from": (list,),
    },
    "order of ranks": {"epoch": (int,), "seed": (int,), "shift": (int,)},
    "order of a permutation": {"key": (int,), "grown_from": (list,)},
    "order of DataPipes": {"shared_seed": (int,)},
    "order of a custom sampler": {
        "opens": (int,),
        "taken": (int,),
        "ended": (bool,),
        "log": (list,),
        "checksum": (str,),
        "sampler": (dict,),
        "between": (dict,),
        "events": (list,),
        "others": (list,),
        "universe": (dict,),
        "iterator_state": _FORM,
        "sampler_state": _FORM,
        "after": (dict,),
        "tail": _FORM,
    },
}  # fmt: skip


def check_fields(record: Mapping[str, Any], kind: str, path: str = "") -> None:
    """Raise DamagedStateError unless a record has only fields of its kind, of the exact types.

    Args:
        record: a dict of a state.
        kind: its name in `FIELDS`.
        path: what leads to its fields, ``"streams[0]."`` for example.
    """
    known = FIELDS[kind]
    for name, value in record.items():
        if name not in known:
            raise DamagedStateError(f"{path}{name}"[:200], f"absent; here are {list(known)}", value)
        if type(value) not in known[name]:
            raise DamagedStateError(f"{path}{name}", in_words(known[name]), value)


def check_attributes(attributes: Mapping[str, Any], path: str) -> None:
    """Raise DamagedStateError unless these are attributes of a sampler, each with its kind."""
    for name, value in attributes.items():
        if type(value) is not list or len(value) != 2 or type(value[0]) is not str:
            raise DamagedStateError(f"{path}.{name}"[:200], "a kind and a value", value)


def in_words(kinds: tuple[type[Any], ...]) -> str:
    """The types, for an error: `a whole number or null`."""
    return " or ".join(_WORDS[kind] for kind in kinds)


_WORDS: dict[type[Any], str] = {
    _NULL: "null",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a dict",
}


def check_records(state: Mapping[str, Any]) -> None:
    """Raise DamagedStateError unless all fields of a state, but the order's, are the table's."""
    check_fields(state, "state")
    for name in ("sampler", "rng", "fits", "workers"):
        if type(state.get(name)) is not dict:
            raise DamagedStateError(name, "a dict", state.get(name))
        if name != "workers":
            check_fields(state[name], name, f"{name}.")
    check_fields(state.get("program", {}), "program", "program.")
    check_fields(state.get("feedback", {}), "feedback", "feedback.")
    for name in ("attributes", "after"):
        check_attributes(state["sampler"].get(name, {}), f"sampler.{name}")
    for worker, states in state["workers"].items():
        if type(states) is not dict:
            raise DamagedStateError(f"workers.{worker}"[:200], "states of generators", states)
        check_fields(states, "generators", f"workers.{worker}."[:200])
    _check_streams(state.get("streams", ()), "streams")
    for rank, streams in state.get("again", {}).items():
        path = f"again.{rank}"[:200]
        if type(streams) is not list:
            raise DamagedStateError(path, "a list", streams)
        _check_streams(streams, path)


def _check_streams(streams: Any, name: str) -> None:
    for at, stream in enumerate(streams):
        path = f"{name}[{at}]"
        if type(stream) is not dict:
            raise DamagedStateError(path, "the position of a stream", stream)
        check_fields(stream, "stream", f"{path}.")
        form = stream.get("mark") or {}
        check_fields(form, "mark", f"{path}.mark.")
        for name in ("rng", "first_rng"):
            check_fields(form.get(name, {}), "generators", f"{path}.mark.{name}.")
