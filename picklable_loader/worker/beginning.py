"""Beginning: what a dataset was before an epoch, for streams that can only be replayed.

In a worker the dataset is a copy, and whoever replays a stream begins with the program's, which no
epoch has touched. With ``num_workers=0`` there is only the program's: pickled in mid-epoch it is
what the iteration has made of it, and a generator that keeps its place there (``self.at``) would
be replayed from that place on.
"""

from __future__ import annotations

import pickle
from typing import Any

from ..stateful import is_stateful
from .referring import attributes_of, dumps, loads

__all__ = ["Beginning"]

#: an attribute that is larger when pickled is no place where a reader stands
_MOST_BYTES = 1 << 16


class Beginning:
    """A dataset's small attributes, as they are now. What they refer to in common stays common.

    Args:
        dataset: the dataset; one that has a state needs none of this.
        by_value: classes of ``__main__`` go along.
    """

    def __init__(self, dataset: Any, by_value: bool = False) -> None:
        self._dataset = dataset
        self._by_value = by_value
        attributes = {} if is_stateful(dataset) else attributes_of(dataset)
        self._names = set(attributes)
        self._each = {name: self._small(value) for name, value in attributes.items()}
        known = {name: attributes[name] for name, small in self._each.items() if small is not None}
        self._together = self._small(known, len(known) * _MOST_BYTES)

    def changes(self) -> bytes | None:
        """A mark of what is to be undone before a replay; None: nothing is."""
        now = attributes_of(self._dataset)
        new = sorted(now.keys() - self._names)
        changed = {
            name
            for name, small in self._each.items()
            if small is not None and (name not in now or self._small(now[name]) != small)
        }
        if not new and not changed:
            return None
        try:
            known = loads(self._together or b"", self._dataset) if changed else {}
            before = {name: value for name, value in known.items() if name in changed}
            entry = new, dumps(before, self._dataset, self._by_value)
        except Exception:  # what cannot be read again cannot be put back: nor can the dataset
            return None
        return pickle.dumps({"begun": entry}, pickle.HIGHEST_PROTOCOL)

    @staticmethod
    def put_back(dataset: Any, entries: dict[str, Any]) -> None:
        """Undo what an epoch has done to a dataset.

        Args:
            dataset: the one that was saved, in mid-epoch.
            entries: a mark's.
        """
        if "begun" not in entries:
            return
        new, before = entries["begun"]
        for name in new:
            vars(dataset).pop(name, None)
        vars(dataset).update(loads(before, dataset))

    def _small(self, value: Any, most_bytes: int = _MOST_BYTES) -> bytes | None:
        """A value's pickle; None if it is large, or has none."""
        try:
            return dumps(value, self._dataset, self._by_value, most_bytes=most_bytes)
        except Exception:  # whatever people's __reduce__ raises
            return None
