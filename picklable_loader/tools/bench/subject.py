"""The user's loader: found by name, taken apart, and built again on either side."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sized
from dataclasses import dataclass, fields
from pkgutil import resolve_name
from typing import Any, Literal

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from ...epoch.options import Options
from ...loader.loader import DataLoader

Side = Literal["torch", "picklable_loader"]

#: torch's prefetch_factor where none is given; its loader does not tell the difference
_USUAL_FACTOR = 2


class BenchError(Exception):
    """There is nothing that can be measured; the text says whose fault that is and what to do.

    Where the user's own code has raised something, that is its cause.
    """


@dataclass(frozen=True)
class Subject:
    """A loader whose like can be built with any number of workers."""

    loader: TorchDataLoader[Any]

    @property
    def samples(self) -> int | None:
        """In the dataset; None where it does not say."""
        dataset: Any = self.loader.dataset
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            return None
        return len(dataset)

    def build(
        self, side: Side, num_workers: int | None = None, **others: Any
    ) -> TorchDataLoader[Any]:
        """A new loader of a side from the same arguments, but for these."""
        workers = self.loader.num_workers if num_workers is None else num_workers
        arguments = self._arguments(workers)
        if side == "torch":
            return TorchDataLoader(**{**arguments, **others})
        if not isinstance(self.loader, DataLoader):
            if arguments.get("prefetch_factor") == _USUAL_FACTOR:
                del arguments["prefetch_factor"]  # not given, as far as is known
            return DataLoader(**{**arguments, **others})
        ours = {name: getattr(self.loader, name) for name in _OURS}
        return DataLoader(**{**arguments, **ours, **others})

    def _arguments(self, workers: int) -> dict[str, Any]:
        """Torch's arguments; without those that it refuses where there are no workers."""
        loader = self.loader
        arguments = {name: getattr(loader, name) for name in _ALWAYS} | self._batching()
        arguments["num_workers"] = workers
        if workers:
            arguments |= {name: getattr(loader, name) for name in _WITH_WORKERS}
            if arguments["prefetch_factor"] is None:
                del arguments["prefetch_factor"]
        return arguments

    def _batching(self) -> dict[str, Any]:
        loader = self.loader
        if isinstance(loader.dataset, IterableDataset):
            return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if loader.batch_size is None and loader.batch_sampler is not None:
            return {"batch_sampler": loader.batch_sampler}
        options = {"batch_size": loader.batch_size, "sampler": loader.sampler}
        return {**options, "drop_last": loader.drop_last}


_ALWAYS = (
    "dataset collate_fn pin_memory worker_init_fn generator pin_memory_device in_order".split()
)
_WITH_WORKERS = "timeout multiprocessing_context prefetch_factor persistent_workers".split()
_OURS = tuple(field.name for field in fields(Options))


def find(name: str) -> Subject:
    """Call the function of that name, ``module:function``, and look at what it returns."""
    make = function(name)
    try:
        loader = make()
    except Exception as error:
        raise BenchError("it raised the exception above. Fix it, then measure again.") from error
    if not isinstance(loader, TorchDataLoader):
        raise BenchError(
            f"it returned {_described(loader)}. It should return a DataLoader, of "
            "picklable_loader or of torch.utils.data."
        )
    return Subject(loader)


def function(name: str) -> Callable[..., Any]:
    """The function of that name, ``module:function``; BenchError if there is none."""
    module, _, what = name.partition(":")
    if not (module and what):
        raise BenchError("this is not MODULE:FUNCTION, such as train.data:make_loader.")
    try:
        found = resolve_name(name)
    except Exception as error:
        near = difflib.get_close_matches(what, vars(sys.modules.get(module, object)), n=1)
        hint = "Start this in the folder that has the module. It is named with dots, without .py."
        if near:
            hint = f"Did you mean {near[0]!r}?"
        raise BenchError(f"{type(error).__name__}: {error}. {hint}") from error
    if not callable(found):
        raise BenchError(
            f"{what!r} is {_described(found)}, no function. Name one that returns a DataLoader."
        )
    return found  # type: ignore[no-any-return]


def _described(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__qualname__!r}"
