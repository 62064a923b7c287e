"""Stack dumps that stuck workers write before the loader kills them."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

from ..transport.fork_safety import guard, loaders_ends
from ..worker.process import STACK_SIGNAL

#: seconds to wait for the first line, and for another one
_FIRST_S, _NEXT_S = 1.0, 0.05

_MOST_BYTES = 64 * 1024

_SILENT = "it could not tell where: it was stopped, or waits within the system"


class Stacks:
    """The loader's side: a pipe from each worker."""

    def __init__(self, context: BaseContext) -> None:
        self._context = context
        self._ours: dict[int, Connection[Any, Any]] = {}
        #: by worker, the stack dump that was read
        self.dumps: dict[int, str] = {}

    def open(self, worker: int) -> Any:
        """The end that a worker is given; the caller closes its own copy."""
        self._hang_up(worker)
        self._ours[worker], theirs = self._context.Pipe(duplex=False)
        loaders_ends.add(self._ours[worker])
        return theirs

    def ask(self, worker: int, pid: int) -> None:
        """Have a worker dump its stacks; it is about to be killed."""
        try:
            os.kill(pid, STACK_SIGNAL)
        except ProcessLookupError:
            return
        line, text, patience_s = self._ours[worker], b"", _FIRST_S
        while line.poll(patience_s) and len(text) < _MOST_BYTES:
            some = os.read(line.fileno(), _MOST_BYTES)
            if not some:
                break
            text, patience_s = text + some, _NEXT_S
        self.dumps[worker] = text.decode(errors="replace") or _SILENT

    def close(self) -> None:
        for worker in list(self._ours):
            self._hang_up(worker)

    def _hang_up(self, worker: int) -> None:
        line = self._ours.pop(worker, None)
        if line is not None:
            with guard:
                line.close()
