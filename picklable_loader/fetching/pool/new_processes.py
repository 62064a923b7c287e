"""Prepares for workers that are new processes, under spawn and forkserver.

Finds out whether these can import the program's ``__main__`` again.
Under spawn and forkserver ``multiprocessing`` has every process run the program's file once more,
which defines its classes and functions there. A notebook, a prompt or ``python -c`` has no such
file. A script without ``if __name__ == "__main__"`` would start its workers in each of its workers.
"""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from ..worker.process import work
from .shutdown import wait_for_end


def is_importable() -> bool:
    """A new process can import what ``__main__`` defines, and does no harm by it."""
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name.endswith("__main__"):
        return False  # python -m PACKAGE, which multiprocessing leaves alone
    path = getattr(main, "__file__", None)
    return path is not None and _is_guarded(path)


@contextmanager
def hidden(context: BaseContext) -> Iterator[None]:
    """Meanwhile processes that are started do not import ``__main__``, if it is not importable."""
    main: Any = sys.modules["__main__"]
    if context.get_start_method() == "fork" or is_importable():
        yield
        return
    given = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    vars(main).update(dict.fromkeys(given))
    try:
        yield
    finally:
        vars(main).update(given)


@lru_cache(maxsize=8)
def _is_guarded(path: str) -> bool:
    """A file asks whether it is the program."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except OSError:
        return False  # "<stdin>"
    except (SyntaxError, ValueError):
        return True  # compiled code, or an archive, as multiprocessing has it
    return any("__main__" in ast.dump(node.test) for node in tree.body if isinstance(node, ast.If))


# --- the fork server -----------------------------------------------------------------------------
# It imports torch first. That takes more than a second, which each worker would spend anew.

#: imports torch, numpy and whatever a worker needs of us
_WORKER = "picklable_loader.fetching.worker.preloaded"


class Work:
    """The main function of a worker. Its pickle has the new process import the module above.

    This process must not import it: it would set the program's own garbage aside for good.
    """

    def __call__(self, *arguments: Any) -> None:  # forked, or in any process that needs no pickle
        work(*arguments)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return pkgutil.resolve_name, (f"{_WORKER}:work",)


def preload(context: BaseContext) -> None:
    """Start Python's resource tracker, and have a fork server import what workers need.

    It is without effect on a fork server that is running.
    """
    if context.get_start_method() == "fork":
        return
    # It needs one, and would unblock Ctrl-C in the middle of the first worker's start.
    resource_tracker.ensure_running()
    if context.get_start_method() != "forkserver":
        return
    server: Any = forkserver._forkserver
    # A program's own list stays; there is no public way to read it.
    wanted = list(getattr(server, "_preload_modules", ["__main__"]))
    if _WORKER not in wanted:
        forkserver.set_forkserver_preload([*wanted, _WORKER])


def start(process: BaseProcess) -> None:
    """Start a process; by another fork server, if the present one is about to end.

    A signal to the whole job ends a fork server too. Python starts another one only when the first
    has ended, and its socket closes a moment before that.
    """
    try:
        process.start()
    except (ConnectionError, EOFError):
        server = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if server is None or not wait_for_end(server):
            raise
        process.start()
