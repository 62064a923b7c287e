"""Does the state of a stream follow its samples? One that does not is no position to go on from."""

from __future__ import annotations

from typing import Any

from ...datasets.protocol import is_hugging_face, save
from ...datasets.wrapper import Wrapper
from ...saving.pickles.picklers import to_bytes

#: samples after which the state is looked at; the first one may also count an epoch
_SAMPLES = 2
#: a larger state costs too much to be looked at
_MOST_BYTES = 1 << 20


class PositionProof:
    """Looks at a stream's state around the first samples of its process.

    Two examples that fail: ``{"epoch": 3}``, and a count that follows the ``yield``, which is one
    sample behind.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        # Theirs and ours are known; theirs may be asked for at an example only.
        knows = is_hugging_face(dataset) or isinstance(dataset, Wrapper)
        #: samples that are still to be looked at
        self.samples = 0 if knows else _SAMPLES
        self._before: bytes | None = None
        #: the number of a sample, from 1, that has not changed the state; 0: none is known
        self.unmoved_by = 0

    def begin(self, iterator: Any) -> None:
        """An epoch begins."""
        self._before = self._state(iterator) if self.samples == _SAMPLES else None

    def sampled(self, iterator: Any) -> None:
        """It has given a sample."""
        now = self._state(iterator)
        if now is not None and now == self._before and not self.unmoved_by:
            self.unmoved_by = 1 + _SAMPLES - self.samples
        self._before = now
        self.samples = max(0, self.samples - 1)

    def _state(self, iterator: Any) -> bytes | None:
        try:
            entries = save(self._dataset, iterator)
            if None in entries.values():  # of an iterator that has given nothing yet
                return None
            state = to_bytes(entries) if entries else b""
        except Exception:  # whatever people's state_dict raises; a state says it
            state = b""
        if not 0 < len(state) <= _MOST_BYTES:
            self.samples = 0
            return None
        return state
