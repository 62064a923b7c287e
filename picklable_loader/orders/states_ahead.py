"""States of a sampler from before its last draws, for indices that no state can hold.

Lhotse's samplers yield objects. Workers have some of these ahead of the consumer. A saved state has
the sampler's state from before them instead, and a resume draws them again.
"""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

from ..datasets.protocol import is_stateful
from ..errors import CannotSaveError
from ..saving.states.arrays import NotPlain
from ..saving.states.plain import encode, encode_state

#: more than a usual prefetch budget has tasks
_MOST = 256
#: a larger state would cost more than the draw: it is written before each one
_MOST_BYTES = 1 << 16


class StatesAhead:
    """The results of ``state_dict`` before each draw, of a sampler that is its own iterator."""

    def __init__(self) -> None:
        self._states: deque[tuple[int, bytes]] = deque(maxlen=_MOST)
        #: its indices have to be drawn again; None: nobody has seen one yet
        self._wanted: bool | None = None

    def note(self, taken: int, sampler: Any, iterator: Any) -> None:
        """It is going to be drawn from, and has given so many indices."""
        if self._wanted is False:
            return
        try:
            if iterator is not sampler or not is_stateful(sampler):
                raise NotPlain
            state = pickle.dumps(encode_state(sampler.state_dict(), ""))
            if len(state) > _MOST_BYTES:
                raise NotPlain
        except (NotPlain, CannotSaveError):
            self._forget()
        else:
            self._states.append((taken, state))

    def drawn(self, indices: list[Any]) -> None:
        """These were given."""
        if self._wanted is not None or not indices:
            return
        try:
            encode(indices)
        except NotPlain:
            self._wanted = True
        else:
            self._forget()

    def before(self, taken: int) -> Any | None:
        """The state in which so many indices had been given; None: it is not known."""
        found = next((state for at, state in self._states if at == taken), None)
        return None if found is None else pickle.loads(found)

    def _forget(self) -> None:
        self._wanted = False
        self._states.clear()
