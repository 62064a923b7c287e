"""Keeps shared memory and channels safe when the loader's process is forked.

A forked child shares the mappings, and so everything that its parent had at that moment. It also
has one end of a pipe, which the system closes when the child ends (or executes another program).
Until then nobody may write to memory that the child can see.

The child also has copies of the loader's ends of all channels. It closes them; otherwise a worker
could not see that its loader is gone. It closes the arenas' files too, which would use up its
descriptors.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Collection
from typing import Any

#: The loader's ends of all lines of this process, and its copies of what others write to.
loaders_ends: weakref.WeakSet[Any] = weakref.WeakSet()


#: Locked while this process forks, and while anything changes that a child has a copy of.
#: Re-entrant, as a garbage collection may change something anywhere.
guard: Any = threading.RLock()


class _Children:
    """Children that were forked one after the other, with nothing returned in between."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        try:
            self._ours, self._theirs = os.pipe()
        except OSError:  # no more descriptors: taken for alive for ever
            self._ours = self._theirs = -1

    @property
    def open(self) -> bool:
        """The next child may be one of them."""
        return self._theirs >= 0

    def alive(self) -> bool:
        """One of them is. There will be no more of them."""
        if self._ours < 0:
            return True
        if self.open:
            end, self._theirs = self._theirs, -1
            os.close(end)
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
    """The slots of a set that forked children can see; each fork looks at ``slots``."""

    def __init__(self, slots: Collection[int]) -> None:
        self._slots = slots
        self._seen: dict[_Children, set[int]] = {}
        _all.add(self)

    def see(self, slot: int) -> bool:
        """A child that lives, or is about to, can see the slot."""
        if not self._seen:
            return False
        with guard:
            if _forking:
                return True
            self._forget_the_dead()
            return any(slot in slots for slots in self._seen.values())

    def forget(self) -> None:
        """Nothing is asked any more."""
        with guard:
            self._seen.clear()

    def note(self) -> None:
        """The process is about to fork."""
        if self._slots:
            self._forget_the_dead(but=_next_children())
            self._seen.setdefault(_next_children(), set()).update(list(self._slots))

    def _forget_the_dead(self, but: _Children | None = None) -> None:
        for children in list(self._seen):
            if children is not but and not children.alive():
                del self._seen[children]


_all: weakref.WeakSet[Forks] = weakref.WeakSet()
#: those that the next child will belong to
_newest: weakref.ref[_Children] | None = None
#: not empty between the noting and the child's birth
_forking: list[bool] = []


def _next_children() -> _Children:
    global _newest
    children = None if _newest is None else _newest()
    if children is None or not children.open:
        children = _Children()
        _newest = weakref.ref(children)
    return children


def _before() -> None:
    _forking.append(True)
    try:
        _note()
    except BaseException:  # a signal handler's: Python prints it, and forks all the same
        _note()
        raise


def _note() -> None:
    for forks in list(_all):
        forks.note()


def _in_child() -> None:
    global _newest
    _newest = None
    _forking.clear()
    guard._at_fork_reinit()  # as Python's own modules do it
    for end in list(loaders_ends):
        end.close()


os.register_at_fork(before=_before, after_in_parent=_forking.clear, after_in_child=_in_child)
# These run first before a fork, and last after it. They are functions of C: a signal handler
# that raised in one of Python's would leave the guard locked for all other threads.
os.register_at_fork(before=guard.acquire, after_in_parent=guard.release)
