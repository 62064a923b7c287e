"""A pickle in tests/golden names this module."""

from __future__ import annotations

from zoo.samplers import OwnPythonGenerator  # noqa: F401
