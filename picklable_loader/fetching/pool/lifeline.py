"""A pipe by which workers die at once with the loader's process, whatever that dies of.

A worker sees the end of its channel only when it asks for the next task, which may be never. So it
also holds an end of a pipe that nobody writes to. When the loader's process ends, the system closes
the other end, and that kills the worker. Unlike a "parent death signal", this does not depend on
the thread that has started the worker. It also reaches workers that are a fork server's children.

Where a system cannot do that, workers end when they next ask for a task.
"""

from __future__ import annotations

from multiprocessing.context import BaseContext

from ..transport.fork_safety import guard, loaders_ends


class Lifeline:
    """The loader's side."""

    def __init__(self, context: BaseContext) -> None:
        #: what workers are given
        self.end, self._ours = context.Pipe(duplex=False)
        loaders_ends.add(self._ours)

    def cut(self) -> None:
        """Close the pipe; processes that still hold its other end die."""
        with guard:
            self._ours.close()
            self.end.close()
