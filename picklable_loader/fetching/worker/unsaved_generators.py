"""Generators that samples are drawn from, and that no state of their stream holds."""

from __future__ import annotations

from typing import Any

from ...datasets.protocol import is_hugging_face
from ...rng.owned import owned_not_in

#: two states show which generators move
_LOOKS = 2


class UnsavedGenerators:
    """Finds the generators that a dataset or its iterator owns, draws from, and does not save."""

    def __init__(self, looks: bool) -> None:
        #: states that it is still to look at; a generator has moved between two
        self.looks = _LOOKS if looks else 0
        #: their paths, at most 3
        self.paths: list[str] = []
        self._seen: dict[str, bytes] = {}

    def wants_another(self) -> bool:
        """Count a state; is it to be looked at?"""
        wants = self.looks > 0
        self.looks -= wants
        return wants

    def look(self, entries: dict[str, Any], dataset: Any, iterator: Any) -> None:
        """Look at dataset and iterator, and at a state of theirs."""
        found = owned_not_in(entries, {"dataset": dataset, "iterator": iterator})
        if is_hugging_face(dataset):  # its own shuffles copy theirs in each epoch
            found = {path: each for path, each in found.items() if not path.endswith(".generator")}
        before, self._seen = self._seen, found
        self.paths = [path for path in found if before.get(path, found[path]) != found[path]][:3]
