"""The converters by a short name; they are in `datasets.converters`."""

from .datasets.converters import DtypeConverter, KeyBasedDtypeConverter

__all__ = ["DtypeConverter", "KeyBasedDtypeConverter"]
