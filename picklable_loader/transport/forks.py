"""Forks: which processes that were forked from this one can still see a region.

A forked child shares the mappings, and so everything that its parent held at that moment. It has
one end of a pipe as well, which the system closes when it ends (or executes another program): as
long as nobody has, what it can see must not be written to.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Collection

__all__ = ["Forks"]


class _Children:
    """Children that were forked one after the other, with nothing returned in between."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        try:
            self._ours, self._theirs = os.pipe()
        except OSError:  # no more descriptors: taken for alive for ever
            self._ours = self._theirs = -1

    def alive(self) -> bool:
        """One of them is. There will be no more of them."""
        if self._ours < 0:
            return True
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1
            _newest[:] = []
        line = select.poll()
        line.register(self._ours, select.POLLIN)
        return not line.poll(0)

    def __del__(self) -> None:
        if os.getpid() != self._owner:
            return  # a child, which keeps its end open as long as it lives
        for end in (self._ours, self._theirs):
            if end >= 0:
                os.close(end)


class Forks:
    """What forked children can see of a set of slots.

    Args:
        held: the slots that can be seen at present; looked at whenever the process forks.
    """

    def __init__(self, held: Collection[int]) -> None:
        self._held = held
        self._seen: dict[_Children, set[int]] = {}
        _all.add(self)

    def see(self, slot: int) -> bool:
        """A child that lives can see the slot."""
        if not self._seen:
            return False
        for children in [children for children in self._seen if not children.alive()]:
            del self._seen[children]
        return any(slot in slots for slots in self._seen.values())

    def forget(self) -> None:
        """Nothing is asked any more."""
        self._seen.clear()

    def note(self) -> None:
        """The process is about to fork."""
        if self._held:
            children = _next_children()
            self._seen[children] = self._seen.get(children, set()) | set(self._held)


_all: weakref.WeakSet[Forks] = weakref.WeakSet()
#: those that the next child will belong to
_newest: list[weakref.ref[_Children]] = []


def _next_children() -> _Children:
    children = _newest[0]() if _newest else None
    if children is None:
        children = _Children()
        _newest[:] = [weakref.ref(children)]
    return children


def _before() -> None:
    for forks in list(_all):
        forks.note()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_newest.clear)
