"""A PyTorch ``DataLoader`` whose iterator can be pickled in mid-epoch and goes on exactly there."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .datasets import converters as converters  # noqa: F401
    from .datasets.converters import DtypeConverter, KeyBasedDtypeConverter
    from .datasets.interleave import Interleave
    from .datasets.packed_list import PackedList
    from .datasets.shuffle import ShuffleBuffer
    from .errors import LoaderError
    from .fetching.worker.feedback import send_feedback
    from .fetching.worker.hooks import WorkerStart
    from .integrations import cpp as cpp  # noqa: F401
    from .loader.iterator import LoaderIterator
    from .loader.loader import DataLoader
    from .loader.progress import progress
    from .orders.shuffle_sampler import ShuffleSampler
    from .orders.torch_samplers import register_order
    from .rng.current import current_seed
    from .saving.files.checkpoint import load, save
    from .saving.files.on_signal import save_on_signal
    from .saving.pickles.explain import explain
    from .saving.states.merge import merge_states
    from .saving.states.state_json import from_json, to_json

__version__ = "0.1.0"

__all__ = [
    "DataLoader",
    "DtypeConverter",
    "Interleave",
    "KeyBasedDtypeConverter",
    "LoaderError",
    "LoaderIterator",
    "PackedList",
    "ShuffleBuffer",
    "ShuffleSampler",
    "WorkerStart",
    "__version__",
    "current_seed",
    "explain",
    "from_json",
    "load",
    "merge_states",
    "progress",
    "register_order",
    "save",
    "save_on_signal",
    "send_feedback",
    "to_json",
]

#: The module of each name. It is imported when the name is wanted: a spawned worker imports this
#: package for its own part of it, and has no use for the rest.
_MODULES = {
    "DataLoader": "loader.loader",
    "DtypeConverter": "datasets.converters",
    "KeyBasedDtypeConverter": "datasets.converters",
    "Interleave": "datasets.interleave",
    "LoaderError": "errors",
    "LoaderIterator": "loader.iterator",
    "PackedList": "datasets.packed_list",
    "ShuffleBuffer": "datasets.shuffle",
    "ShuffleSampler": "orders.shuffle_sampler",
    "WorkerStart": "fetching.worker.hooks",
    "current_seed": "rng.current",
    "explain": "saving.pickles.explain",
    "from_json": "saving.states.state_json",
    "load": "saving.files.checkpoint",
    "merge_states": "saving.states.merge",
    "progress": "loader.progress",
    "register_order": "orders.torch_samplers",
    "save": "saving.files.checkpoint",
    "save_on_signal": "saving.files.on_signal",
    "send_feedback": "fetching.worker.feedback",
    "to_json": "saving.states.state_json",
}

#: modules that have a name here
_ALIASES = {"converters": "datasets.converters", "cpp": "integrations.cpp"}


def __getattr__(name: str) -> Any:
    if name in _ALIASES:
        globals()[name] = module = import_module(f"{__name__}.{_ALIASES[name]}")
        return module
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _short(name: str) -> ModuleType:
    """An alias that can be imported from, as DataPorter's users do with its converters."""

    def attribute(of: str) -> Any:
        if of.startswith("__"):  # programs that look through all modules ask for these
            raise AttributeError(of)
        return getattr(__getattr__(name), of)

    module = ModuleType(f"{__name__}.{name}")
    module.__getattr__ = attribute  # type: ignore[method-assign]
    return module


sys.modules.update({f"{__name__}.{name}": _short(name) for name in _ALIASES})
