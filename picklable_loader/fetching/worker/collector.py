"""Python's garbage collector in a worker process: rare during imports, then as usual."""

from __future__ import annotations

import gc
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

#: Allocations from one collection to the next during imports; Python's own value is 700 or 2,000.
#: No program sets this one: another value is the program's own, and stays.
_RARE = 999_983

#: A new process runs this before it imports the program. It has none of our modules by then.
_EARLY = f"""
import gc
if not hasattr(gc, "usual_threshold"):
    gc.usual_threshold = gc.get_threshold()
    gc.set_threshold({_RARE})
"""


@contextmanager
def collect_rarely(process: BaseProcess, method: str) -> Iterator[None]:
    """Let a process that is started meanwhile collect rarely, until it calls `collect_as_usual`.

    A new process unpickles its name before all else, so the name carries `_EARLY`. It starts in
    756 ms in place of 836: collections visit what torch has imported so far, again and again.
    A forked process imports nothing.
    """
    if method == "fork":
        yield
        return
    name = process.name
    process.name = _Name(name)
    try:
        yield
    finally:
        process.name = name


def collect_as_usual() -> None:
    """Collect as the program has set it, and leave out the objects that are there already.

    These are what was imported, and what a fork has copied. A full collection would visit, and so
    copy, each of them: 80 of the 110 ms in which a fork server's worker started.
    """
    threshold = vars(gc).pop("usual_threshold", None)
    if gc.get_threshold()[0] == _RARE and threshold is not None:
        gc.set_threshold(*threshold)
    gc.freeze()


class _Name(str):
    """The name of a process; it runs `_EARLY` where it is unpickled, and is a plain str there."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, ((str(self), _Run()), 0)


class _Run:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_EARLY,)
