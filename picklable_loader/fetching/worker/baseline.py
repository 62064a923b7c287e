"""The attributes of a dataset before an epoch, for streams that can only be replayed.

A replay needs the dataset as it was when the epoch began. With ``num_workers=0`` a pickle holds the
program's own dataset in mid-epoch: `Baseline` undoes the changes of the iteration.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Container, Mapping, Set
from contextlib import suppress
from typing import Any
from zlib import crc32

import numpy as np
import torch

from ...datasets.protocol import is_stateful
from ...saving.pickles.by_reference import (
    Path,
    attributes_of,
    dumps,
    large_leaves,
    left_out,
    loads,
    set_attributes,
)
from .forms import Form, form_of, version_of

#: an attribute that is larger when pickled, large tensors and arrays in it aside, is left out
_MOST_BYTES = 1 << 24
_NOTHING: dict[str, Any] = {}


class Baseline:
    """A dataset's attributes, as they are now. An object that several refer to stays one.

    Large tensors and arrays are referred to, at any depth. A dataset that has a state needs none of
    this. With ``by_value`` classes of ``__main__`` go along. ``earlier`` is what epochs before have
    changed; see `FirstBaseline.reached`.
    """

    def __init__(
        self, dataset: Any, by_value: bool = False, earlier: Mapping[str, Any] = _NOTHING
    ) -> None:
        self._dataset = dataset
        self._by_value = by_value
        self._stateful = is_stateful(dataset)
        #: attributes that earlier epochs have changed, which no state holds
        self.drift: list[str] = earlier.get("drift", [])
        #: those of them that no pickle brings back either, unless it holds the dataset
        self._lost_before: list[str] = earlier.get("lost", [])
        #: the iterator's state: before the first sample, or as `at` was given it; None: it has none
        self.state: bytes | None = None
        #: attributes that this state leaves out; None: all
        self._left_out: Set[str] | None = None
        attributes = self._attributes()
        self._leaves, self._alive = large_leaves(dataset) if attributes else ({}, [])
        self._each = {name: self._form(value) for name, value in attributes.items()}
        known = {name: attributes[name] for name, form in self._each.items() if form.known}
        self._together = self._small(known, len(known) * _MOST_BYTES)
        self._versions = self._versions_now()

    def at(self, state: bytes, left_out: Set[str]) -> Baseline:
        """The same beginning, for a later state that leaves these attributes out.

        A resume from that state calls ``iter`` on the dataset as it is here, and so finds them.
        """
        later = copy.copy(self)
        later.state, later._left_out = state, left_out
        return later

    def changes(self) -> bytes | None:
        """A state with the changes to undo before a replay, and the drift; else what `state` is."""
        found = {"begun": self.to_undo(), "drift": self.drift}
        changes = {name: entry for name, entry in found.items() if entry}
        if not changes:
            return self.state
        entries = {} if self.state is None else pickle.loads(self.state)
        return pickle.dumps({**entries, **changes}, pickle.HIGHEST_PROTOCOL)

    def to_undo(self) -> tuple[list[str], bytes] | None:
        """New attributes, and a pickle of those that have changed; None if there are none."""
        new = sorted(self._attributes().keys() - self._each)
        changed = self.changed()
        if not new and not changed:
            return None
        leaves, gone = self._leaves_now()
        try:
            known = self._known() if changed else {}
            for name in gone:
                known.pop(name, None)
            return new, self._written(known, changed, leaves)
        except Exception:  # what cannot be read again cannot be put back: nor can the dataset
            return None

    def changed(self) -> set[str]:
        """Attributes that have changed since, of those that can be put back."""
        known = {name: form for name, form in self._each.items() if form.known}
        return differ(known, self._forms(known))

    def lost(self) -> set[str]:
        """Attributes that have changed since, and cannot be put back."""
        hidden = {name for name, form in self._each.items() if not form.known}
        lost = self._lost_among(self._forms(hidden))
        return self._of_left_out(lost | self._leaves_now()[1])

    def lost_with_its_own(self) -> set[str]:
        """The same for a pickle without its dataset, which `DataLoader.attach` gives it later."""
        return self._of_left_out(self._leaves_now()[1]).union(self._lost_before)

    def _of_left_out(self, names: set[str]) -> set[str]:
        return names if self._left_out is None else names & self._left_out

    def _lost_among(self, hidden: Mapping[str, Form]) -> set[str]:
        """Attributes that have changed and cannot be put back; ``hidden``: their forms, as now."""
        changed = {n for n, form in hidden.items() if form.digest and form != self._each[n]}
        return changed | self._written_over()

    def _written_over(self) -> set[str]:
        """Attributes with a large tensor or array that was changed in place."""
        now = self._versions_now()
        was = self._versions
        moved = {leaf for leaf in was.keys() & now.keys() if now[leaf] != was[leaf]}
        return {str(path[0]) for leaf, path in self._leaves.items() if leaf in moved}

    def _leaves_now(self) -> tuple[dict[int, Path], set[str]]:
        """Where large tensors and arrays are now, by id; and the attributes that have lost them.

        What the dataset no longer holds has to be written: if it is not too large, was not changed
        in place before, and its attribute pickles.
        """
        found, _ = large_leaves(self._dataset) if self._leaves else ({}, [])
        gone = [leaf for leaf in self._alive if id(leaf) not in found]
        names = {str(self._leaves[id(leaf)][0]) for leaf in gone}
        if names and sum(leaf.nbytes for leaf in gone) <= _MOST_BYTES:
            hidden = {name for name in names if not self._each[name].known}
            names &= self._written_over() | hidden
        return {leaf: path for leaf, path in found.items() if leaf in self._leaves}, names

    def _known(self) -> dict[str, Any]:
        """The attributes as they were, with the large tensors and arrays of then."""
        parts = {self._leaves[id(leaf)]: leaf for leaf in self._alive}
        known: dict[str, Any] = loads(self._together or b"", self._dataset, parts)
        return known

    def _versions_now(self) -> dict[int, Any]:
        """By id of large tensors and arrays, what differs once one was changed in place."""
        versions, left = dict[int, Any](), _MOST_BYTES
        for leaf in self._alive:
            of_torch = isinstance(leaf, torch.Tensor)
            versions[id(leaf)] = version_of(leaf) if of_torch else None
            there = leaf.device.type == "cpu" if of_torch else leaf.flags.writeable
            if there and leaf.nbytes <= left:
                left -= leaf.nbytes  # 2 ms for 16 MB
                with suppress(Exception):  # say a quantized tensor
                    versions[id(leaf)] = versions[id(leaf)], _checksum(leaf)
        return versions

    def _written(
        self, known: dict[str, Any], changed: Set[str], leaves: Mapping[int, Path]
    ) -> bytes:
        """A pickle of the values that have changed; what the others have is referred to."""
        same = {name: value for name, value in known.items() if name not in changed}
        by_id = left_out(known, same, None, self._dataset, self._by_value)
        values = {name: value for name, value in known.items() if name in changed}
        return dumps(values, self._dataset, self._by_value, {**by_id, **leaves})

    @staticmethod
    def put_back(dataset: Any, entries: dict[str, Any]) -> None:
        """Set a dataset's attributes to their values at the beginning of an epoch, from a state."""
        new, before = entries["begun"]
        there = attributes_of(dataset)
        set_attributes(dataset, loads(before, dataset), [name for name in new if name in there])

    def _attributes(self) -> dict[str, Any]:
        """The dataset's attributes, as they are now; none that its own state has."""
        return {} if self._stateful else attributes_of(self._dataset)

    def _forms(self, names: Container[str] | None = None) -> dict[str, Form]:
        """The forms of attributes, as they are now: of these names, or of all."""
        now = self._attributes().items()
        return {name: self._form(value) for name, value in now if names is None or name in names}

    def _form(self, value: Any) -> Form:
        return form_of(value, self._small(value, _MOST_BYTES, to_compare=True), self._dataset)

    def _small(self, value: Any, most_bytes: int, to_compare: bool = False) -> bytes | None:
        """A value's pickle; None if it is large, or has none."""
        dataset, by_value, leaves = self._dataset, self._by_value, self._leaves
        try:
            return dumps(value, dataset, by_value, leaves, most_bytes, to_compare, fast=True)
        except Exception:  # whatever people's __reduce__ raises
            return None


def differ(before: Mapping[str, Form], now: Mapping[str, Form]) -> set[str]:
    """The attributes that have another form now, or are there only before or now."""
    return {name for name in before.keys() | now if before.get(name) != now.get(name)}


def _checksum(leaf: Any) -> int:
    """The checksum of a tensor's or array's bytes: a write through ``.data`` moves no version."""
    if isinstance(leaf, torch.Tensor):
        leaf = leaf.detach().resolve_conj().resolve_neg().contiguous().view(torch.uint8).numpy()
    return crc32(np.ascontiguousarray(leaf).view(np.uint8).data)
