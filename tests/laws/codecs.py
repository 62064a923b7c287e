"""The ways to save an iterator, and to go on from what was saved."""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import dill
import torch

from picklable_loader import DataLoader, LoaderIterator

Iter = LoaderIterator[Any]
Make = Callable[[], DataLoader[Any]]


@dataclass(frozen=True)
class Codec:
    """A way to save an iterator."""

    name: str
    save: Callable[[Iter], Any]
    #: the iterator that goes on; the loader of a state is built anew
    load: Callable[[Any, Make], Iter]
    #: the loader, and the settings that it will go on with, are the original's
    shares_loader: bool = False

    def __str__(self) -> str:
        return self.name


def _to_torch(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def _from_torch(data: bytes, weights_only: bool) -> Any:
    return torch.load(io.BytesIO(data), weights_only=weights_only)


def by_torch(content: Any) -> Any:
    """What torch gives back of what it has saved, code included."""
    return _from_torch(_to_torch({"it": content}), weights_only=False)["it"]


def by_weights_only(content: Any) -> Any:
    """What torch's safe reader gives back."""
    return _from_torch(_to_torch(content), weights_only=True)


def _attach(state: dict[str, Any], make: Make) -> Iter:
    loader = make()
    loader.load_state_dict(state)
    return iter(loader)


def _attach_to_iterator(state: dict[str, Any], make: Make) -> Iter:
    iterator = iter(make())
    iterator.load_state_dict(state)
    return iterator


def _beside_tensors(iterator: Iter) -> bytes:
    return _to_torch({"model": {"weight": torch.ones(3)}, "it": iterator})


PICKLES = [
    Codec("pickle", pickle.dumps, lambda data, make: pickle.loads(data)),
    Codec("pickle protocol 2", lambda it: pickle.dumps(it, 2), lambda data, _: pickle.loads(data)),
    Codec("cloudpickle", cloudpickle.dumps, lambda data, make: cloudpickle.loads(data)),
    Codec("dill", dill.dumps, lambda data, make: dill.loads(data)),
    Codec("torch.save", _beside_tensors, lambda data, make: _from_torch(data, False)["it"]),
    Codec("deepcopy", copy.deepcopy, lambda copied, make: copied),
]
COPY = Codec("copy", copy.copy, lambda copied, make: copied, shares_loader=True)
STATES = [
    Codec("state_dict", lambda it: it.state_dict(), _attach),
    Codec("the loader's state_dict", lambda it: it.loader.state_dict(), _attach),
    Codec("into an iterator", lambda it: it.state_dict(), _attach_to_iterator),
    Codec(
        "weights_only",
        lambda it: _to_torch(it.state_dict()),
        lambda data, make: _attach(_from_torch(data, True), make),
    ),
]
JSON = Codec(
    "JSON",
    lambda it: json.dumps(it.state_dict()),
    lambda data, make: _attach(json.loads(data), make),
)
