"""Imports within a batch leave its random numbers as they were.

Some libraries draw while they are imported: ``rich``, say, draws from ``random``. An import inside
of ``__getitem__`` runs once in each process. The batch at hand would be another one after a resume,
or with another number of workers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .current import fetching
from .generators import capture_all, restore_all


class _Finder(threading.local):
    """Asks the finders behind it in ``sys.meta_path``, where it is put first.

    Within a batch, it restores the generators when the module that they find was executed.
    """

    #: this thread executes such a module, or one that it imports
    _within = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder.find_spec`; None outside of batches."""
        if self._within or not fetching():
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self._wrap(spec.loader)
                return spec  # type: ignore[no-any-return]
        return None

    def _wrap(self, runner: Any) -> None:
        """Have an import's loader run the module by `_run`; that of built-in ones is a class."""
        if not isinstance(runner, type) and hasattr(runner, "exec_module"):
            with suppress(AttributeError):  # it has no attributes of its own
                runner.exec_module = partial(self._run, runner)

    def _run(self, runner: Any, module: ModuleType) -> None:
        with suppress(AttributeError):
            del runner.exec_module
        if self._within or not fetching():
            runner.exec_module(module)
            return
        before, self._within = capture_all(), True
        try:
            runner.exec_module(module)
        finally:
            self._within = False
            restore_all(before)


_finder = _Finder()


def guard_imports() -> None:
    """Have imports within batches of this process move no random numbers, from now on."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
