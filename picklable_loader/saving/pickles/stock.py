"""The codecs that are known by name, and whether they are installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ...errors import UsageError

#: the most careful one first; each takes what those before it take, and needs them to load
STOCK = ("pickle", "cloudpickle", "dill")


def needed(codec: str) -> Any:
    """A codec's module; UsageError if it is not installed."""
    try:  # not before it is needed: it takes tens of milliseconds
        return import_module(codec)
    except ImportError as error:
        raise _missing(codec) from error


def check_installed(codec: str) -> None:
    """Raise UsageError if a codec's module is not; nothing is imported."""
    if find_spec(codec) is None:
        raise _missing(codec)


def _missing(codec: str) -> UsageError:
    return UsageError(
        f'the codec {codec!r} is not installed: pip install {codec}, or say codec="pickle"'
    )


def codec_name(codec: Any) -> str:
    """A codec as messages call it."""
    return (
        codec if isinstance(codec, str) else str(getattr(codec, "name", type(codec).__qualname__))
    )
