"""States of a stream whose dataset has none: pickles of its iterator."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Set
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from ...saving.pickles.by_reference import (
    LARGE_BYTES,
    attributes_of,
    dumps,
    left_out,
    loads,
    set_attributes,
)
from ...saving.states.arrays import bytes_of
from .forms import form_of, version_of

#: a smaller attribute goes along with each state; its digest would cost as much
_SMALL_BYTES = 4096
_LOCKS = (type(threading.Lock()), type(threading.RLock()))


class PickledIterator:
    """Pickles of an iterator, with what it shares with its dataset.

    Large attributes of the dataset are left out if they are as they were at the iteration's
    beginning: ``iter`` finds, or makes, them again.
    """

    def __init__(self, dataset: Any, by_value: bool) -> None:
        self._dataset = dataset
        self._by_value = by_value
        self._begun = {n: _digest(value, dataset) for n, value in attributes_of(dataset).items()}
        self._refused = None in self._begun.values()
        #: the attributes that the newest state leaves out
        self.left_out: Set[str] = frozenset()
        #: an iterator was read, and none written yet
        self.was_read = False

    def write(self, iterator: Any) -> dict[str, Any]:
        """The entry of a state; none if pickle refuses the iterator, or changes may go unseen."""
        attributes = attributes_of(self._dataset)
        digests = {name: _digest(value, self._dataset) for name, value in attributes.items()}
        if self._refused or None in digests.values():
            return {}
        same = {n: attributes[n] for n, digest in digests.items() if digest == self._begun.get(n)}
        try:
            by_id = left_out(attributes, same, iterator, self._dataset, self._by_value)
            changed = {name: value for name, value in attributes.items() if name not in same}
            parts = list(attributes), changed, iterator
            entry = {"pickled": dumps(parts, self._dataset, self._by_value, by_id)}
            self.left_out, self.was_read = frozenset(same), False
            return entry
        except Exception:  # whatever people's __reduce__ raises
            self._refused = True
            return {}

    def read(self, pickled: bytes) -> Any:
        """The iterator; the dataset's attributes are as they were then."""
        names, changed, iterator = loads(pickled, self._dataset)
        set_attributes(self._dataset, changed, attributes_of(self._dataset).keys() - names)
        self.left_out, self.was_read = frozenset(names) - changed.keys(), True
        return iterator


def _digest(value: Any, dataset: Any) -> Any:
    """A value that differs if the attribute has changed; None: nothing can show it.

    Small attributes always differ, and go along: a counter that ``iter`` counts up, for example.
    """
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        if value.nbytes <= LARGE_BYTES:  # `.data` and `.numpy()` show no change in its version
            return object() if value.nbytes <= _SMALL_BYTES else bytes_of(value)
        return id(value), version_of(value), value.data_ptr()
    if isinstance(value, np.ndarray) and value.flags.c_contiguous and not value.dtype.hasobject:
        data: Any = value.reshape(-1).view(np.uint8)
        return blake2b(data, digest_size=16).digest()
    try:
        pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:  # whatever people's __reduce__ raises
        if not callable(value) and not isinstance(value, _LOCKS):
            return None
        return id(value), form_of(value, None, dataset)  # a transform may count beside a lambda
    return object() if len(pickled) <= _SMALL_BYTES else blake2b(pickled, digest_size=16).digest()
