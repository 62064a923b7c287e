"""A PyTorch ``DataLoader`` whose iterator can be pickled in mid-epoch and goes on exactly there."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import LoaderError
    from .files import load, save
    from .interleaving import Interleave
    from .iterator import LoaderIterator
    from .loader import DataLoader
    from .samplers import register_order
    from .saving.explanation import explain
    from .showing.bars import progress
    from .shuffling import ShuffleBuffer
    from .values.readable import from_json, to_json
    from .version import __version__
    from .worker.seeding import current_seed

__all__ = [
    "DataLoader",
    "Interleave",
    "LoaderError",
    "LoaderIterator",
    "ShuffleBuffer",
    "__version__",
    "current_seed",
    "explain",
    "from_json",
    "load",
    "progress",
    "register_order",
    "save",
    "to_json",
]

#: Where each name is. It is looked up when it is wanted: a worker that is spawned imports this
#: package for its own part of it, and has no use for the rest.
_PLACES = {
    "DataLoader": "loader",
    "Interleave": "interleaving",
    "LoaderError": "errors",
    "LoaderIterator": "iterator",
    "ShuffleBuffer": "shuffling",
    "__version__": "version",
    "current_seed": "worker.seeding",
    "explain": "saving.explanation",
    "from_json": "values.readable",
    "load": "files",
    "progress": "showing.bars",
    "register_order": "samplers",
    "save": "files",
    "to_json": "values.readable",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
