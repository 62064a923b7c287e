"""Stateful: datasets and iterators that save their own position.

The protocol is torchdata's, which Hugging Face's datasets have as well: ``state_dict`` and
``load_state_dict``, on the dataset, on its iterator, or on both.
"""

from __future__ import annotations

from typing import Any

__all__ = ["is_stateful", "iterate", "save"]

_NONE = object()


def is_stateful(thing: Any) -> bool:
    """It has both methods of the protocol."""
    methods = getattr(thing, "state_dict", None), getattr(thing, "load_state_dict", None)
    return all(map(callable, methods)) and not isinstance(thing, type)


def save(dataset: Any, iterator: Any) -> dict[str, Any]:
    """The states of an iterable-style dataset and of an iterator over it, as they are handed out.

    A ``state_dict`` may raise NotImplementedError: "not in this case", as a wrapper does around
    something that has none.

    Returns:
        What `iterate` goes on from: ``"dataset"``, ``"iterator"``, either, or neither where nobody
        has a state. A dataset that is its own iterator stands under ``"iterator"``.
    """
    parts = {"iterator": iterator}
    if dataset is not iterator:
        parts["dataset"] = dataset
    states = {name: _state_of(part) for name, part in parts.items()}
    return {name: state for name, state in states.items() if state is not _NONE}


def iterate(dataset: Any, states: dict[str, Any]) -> Any:
    """Go on with an iteration: the dataset's state, then ``iter``, then the iterator's state."""
    if "dataset" in states:
        dataset.load_state_dict(states["dataset"])
    iterator: Any = iter(dataset)
    if "iterator" in states:
        iterator.load_state_dict(states["iterator"])
    return iterator


def _state_of(part: Any) -> Any:
    if not is_stateful(part):
        return _NONE
    try:
        return part.state_dict()
    except NotImplementedError:
        return _NONE
