"""Several iterators of one sampler: each notes what others have changed since it moved it last."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from ..rng.source import Source
from .attribute_rngs import ATTRIBUTE_RNGS
from .attributes import Frozen, changed, freeze, objects_in

#: by the sampler's id, who has moved it last; absent if that one is gone, or a state was loaded
_NEWEST: WeakValueDictionary[int, SamplerTurns] = WeakValueDictionary()


class SamplerTurns:
    """One iterator's turns at moving a sampler.

    Args:
        sampler: other iterators may move it as well.
        source: of the loader's draws.
    """

    def __init__(self, sampler: Any, source: Source) -> None:
        self._sampler, self._source = sampler, source
        #: how others have found the sampler; None: only this one has moved it since it began
        self._left: Frozen | None = None
        #: objects in it that an iterator may have taken, by their paths
        self._objects: dict[str, Any] = {}

    @property
    def newest(self) -> bool:
        """Nobody else has moved the sampler since this one did."""
        return _NEWEST.get(id(self._sampler)) is self

    def claim(self, now: Frozen | None = None) -> Frozen | None:
        """This one moves the sampler from now on.

        Args:
            now: the sampler's attributes, if they are known.

        Returns:
            The attributes, if another one that still lives has moved it; else None.
        """
        other, _NEWEST[id(self._sampler)] = _NEWEST.get(id(self._sampler)), self
        if other is None or other is self:
            return None
        now = self.frozen() if now is None else now
        other.leave(now)
        return now

    def give_up(self) -> None:
        """It has failed to move the sampler, and moves it no more; a traceback may hold it."""
        if self.newest:
            forget(self._sampler)

    def begin(self) -> tuple[Frozen, str | None]:
        """This one is about to move the sampler, as it is now; returns what `changes` does."""
        now = self.claim()
        found = self.changes(now)
        self._left, self._objects = None, {}
        return found

    def hand_over(self) -> None:
        """Another one is about to begin: whoever has moved the sampler last leaves it."""
        if (other := _NEWEST.get(id(self._sampler))) is not None:
            other.leave()

    def leave(self, now: Frozen | None = None) -> None:
        """Another one is about to move the sampler."""
        if self._left is None:
            self._left = self.frozen() if now is None else now
            self._objects = objects_in(self._sampler, self._left)

    def changes(self, now: Frozen | None = None) -> tuple[Frozen, str | None]:
        """The attributes that others have changed, as they are now; each change is given once.

        Returns:
            The attributes; and the path of one that a replay cannot set as others did. They have
            changed an object that this iterator may read, or replaced a generator that it may have.
        """
        if self._left is None:
            return {}, None
        now = self.frozen() if now is None else now
        found, had = changed(now, self._left), self._objects
        self._left, self._objects = now, objects_in(self._sampler, now)
        unclear = (
            path
            for path, (kind, _) in found.items()
            if path in had and (kind in ATTRIBUTE_RNGS) != (self._objects.get(path) is had[path])
        )
        return found, next(unclear, None)

    def frozen(self) -> Frozen:
        """The sampler's attributes."""
        return freeze(self._sampler, self._source.dataset)


def forget(sampler: Any) -> None:
    """The sampler was made what a state says: nobody has moved it since."""
    _NEWEST.pop(id(sampler), None)
