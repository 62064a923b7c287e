"""A PyTorch ``DataLoader`` whose iterator can be pickled in mid-epoch and goes on exactly there."""

from .errors import LoaderError
from .iterator import LoaderIterator
from .loader import DataLoader
from .samplers import register_order
from .version import __version__
from .worker.seeding import current_seed

__all__ = [
    "DataLoader",
    "LoaderError",
    "LoaderIterator",
    "__version__",
    "current_seed",
    "register_order",
]
