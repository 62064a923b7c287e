"""The extension of all tests, built once; where there is no compiler they are skipped.

It is built before the first test begins: that takes most of a minute, and on a busy machine longer
than a test may take.
"""

from __future__ import annotations

import os
import shlex
import shutil
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

#: the module of parts.cpp, or what its build has raised
_built: ModuleType | Exception | None = None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    chosen = shlex.split(os.environ.get("CXX", ""))[:1]
    if not any(map(shutil.which, chosen or ("c++", "g++", "clang++"))):
        missing = pytest.mark.skip(reason="no C++ compiler: apt install g++ runs these tests")
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(missing)


def pytest_collection_finish(session: pytest.Session) -> None:
    global _built
    if session.config.option.collectonly or not any(map(_needs_parts, session.items)):
        return
    try:
        _built = import_module("cpp.parts")
    except Exception as error:  # the tests that need it raise it; others run
        _built = error


def _needs_parts(item: pytest.Item) -> bool:
    here = item.path.parent == Path(__file__).parent
    skipped = item.get_closest_marker("skip") is not None
    return here and not skipped and "parts" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def parts() -> Any:
    """The module with the classes of parts.cpp."""
    if isinstance(_built, Exception):
        raise _built
    return _built
