"""Lifeline: whoever dies of whatever, its workers go with it, at once.

A worker sees the end of its line only when it asks for the next task, which may be never. So it
has an end of a pipe as well that nobody writes to: when the loader is gone, the system closes the
other end, and kills the worker by that. Unlike a "parent death signal" this does not depend on the
thread that has started the worker, and it reaches workers that are a fork server's children.

Where a system cannot do that, workers end when they next ask for a task.
"""

from __future__ import annotations

from multiprocessing.context import BaseContext

from ..transport.fork_safety import guard, loaders_ends

__all__ = ["Lifeline"]


class Lifeline:
    """The loader's side.

    Args:
        context: how workers are started.
    """

    def __init__(self, context: BaseContext) -> None:
        #: what workers are given
        self.end, self._ours = context.Pipe(duplex=False)
        loaders_ends.add(self._ours)

    def cut(self) -> None:
        """Whoever still holds on to it dies."""
        with guard:
            self._ours.close()
            self.end.close()
