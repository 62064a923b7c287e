"""Torch's DataPipes under our loader: seeds shared by all workers, and sharding.

DataPipes are old and no longer grow, but they are still part of torch; its loader treats them in
three places, and so does ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist
from torch.utils.data import IterDataPipe, MapDataPipe, graph_settings
from torch.utils.data.dataloader import (
    _get_distributed_settings,
    _sharding_worker_init_fn,
    _share_dist_seed,
)
from torch.utils.data.datapipes.datapipe import (
    _IterDataPipeSerializationWrapper,
    _MapDataPipeSerializationWrapper,
)

from ..core.seeds import base_seed
from ..rng.source import Source


def is_iter_datapipe(dataset: Any) -> bool:
    return isinstance(dataset, IterDataPipe)


class SharedSeeds:
    """The seeds that the workers of a DataPipe share, and all ranks."""

    def __init__(self, source: Source) -> None:
        self._source = source
        #: over which ranks agree on a seed; None outside of distributed training
        self._group: Any = None

    def draw(self, dataset: Any, epoch: int) -> int | None:
        """The seed of an epoch; None without DataPipes."""
        if not is_iter_datapipe(dataset):
            return None
        if self._source.seed is not None:
            return base_seed(self._source.seed, epoch)
        if self._group is None and dist.is_available() and dist.is_initialized():
            self._group = dist.new_group(backend="gloo")
        return self._source.draw("loader", self._drawn)

    def _drawn(self, generator: torch.Generator | None) -> int:
        with torch.device("cpu"):
            return int(_share_dist_seed(generator, self._group))


def wrapped(dataset: Any) -> Any:
    """A DataPipe as torch's DataLoader holds it; other datasets are returned as they are."""
    for kind, wrapper in _WRAPPERS.items():
        if isinstance(dataset, kind) and not isinstance(dataset, wrapper):
            return wrapper(dataset)
    return dataset


_WRAPPERS: dict[type[Any], type[Any]] = {
    IterDataPipe: _IterDataPipeSerializationWrapper,
    MapDataPipe: _MapDataPipeSerializationWrapper,
}


def seeded(dataset: Any, shared_seed: int) -> Any:
    """The datapipe, with its random parts seeded for an epoch."""
    generator = torch.Generator()
    generator.manual_seed(shared_seed)
    return graph_settings.apply_random_seed(dataset, generator)


def shard(dataset: Any) -> None:
    """Shard a datapipe over the ranks, for loading in the main process."""
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        graph_settings.apply_sharding(dataset, *_get_distributed_settings())


def sharding(
    dataset: Any, worker_init_fn: Callable[[int], object] | None, alone: bool
) -> Callable[[int], object] | None:
    """The ``worker_init_fn`` that also shards a datapipe over workers.

    Over ranks as well, unless it is ``alone``: the numbers of its workers are of all ranks then.
    """
    if not isinstance(dataset, IterDataPipe | MapDataPipe):
        return worker_init_fn
    ranks = (1, 0) if alone else _get_distributed_settings()
    return functools.partial(_sharding_worker_init_fn, worker_init_fn, *ranks)


def lasting(thing: Any) -> Any:
    """A DataPipe as far as an epoch can change the next one: its class and attributes, nested.

    Torch sets its hooks' attributes, and almost all of its own pipes', anew at each ``iter``. Other
    things are returned as they are.
    """
    if isinstance(thing, list | tuple) and any(map(is_iter_datapipe, thing)):
        return [lasting(each) for each in thing]
    if not is_iter_datapipe(thing):
        return thing
    kind, parts = type(thing), vars(thing).items()
    if kind.__module__.startswith("torch."):
        given = {"iterable", "sampler", "datapipes"}
        return kind, [
            lasting(part)
            for name, part in parts
            if name in given or callable(part) or is_iter_datapipe(part)
        ]
    return kind, {name: lasting(part) for name, part in parts if name not in _HOOKS}


_HOOKS = {name for name in vars(IterDataPipe) if name.startswith("_")} | {"_profile_name"}
