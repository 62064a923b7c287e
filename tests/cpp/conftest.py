"""The extension of all tests, built once; where there is no compiler they are skipped."""

from __future__ import annotations

import os
import shlex
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    chosen = shlex.split(os.environ.get("CXX", ""))[:1]
    if not any(map(shutil.which, chosen or ("c++", "g++", "clang++"))):
        missing = pytest.mark.skip(reason="no C++ compiler: apt install g++ runs these tests")
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(missing)


@pytest.fixture(scope="session")
def parts() -> Any:
    """The module with the classes of parts.cpp."""
    return import_module("cpp.parts")
