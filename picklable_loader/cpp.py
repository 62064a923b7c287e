"""Datasets and samplers in C++ by a short name; they are in `integrations.cpp`."""

from .integrations.cpp import BuildError, Whole, include, load

__all__ = ["BuildError", "Whole", "include", "load"]
