"""Facts about a sampler: its kind, its data, its settings, how it draws, whether it shares by rank.

A new kind of sampler with an order of its own (`torch_samplers`) needs a line in each function.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from ..datasets.protocol import length_of
from ..errors import warn
from ..rng.reads import ATOMS
from .shuffle_sampler import ShuffleSampler
from .torch_samplers import is_known


def describe(sampler: Any) -> str:
    """The kind of order that a sampler has, as text for a fingerprint."""
    name = type(sampler).__qualname__
    if isinstance(sampler, RandomSampler) and sampler.replacement:
        return f"{name}(replacement=True)"
    if isinstance(sampler, WeightedRandomSampler) and not sampler.replacement:
        return f"{name}(replacement=False)"
    if isinstance(sampler, ShuffleSampler) and sampler.seed is not None:
        return f"{name}(seed={sampler.seed})"
    if isinstance(sampler, DistributedSampler):
        return f"{name}(num_replicas={sampler.num_replicas}, shuffle={sampler.shuffle})"
    return name


def draws_at_once(sampler: Any) -> bool:
    """The first index takes all of an epoch's draws, so that how far ahead others are is the same.

    RandomSampler draws once more after its last index: a permutation that nobody uses. The program
    sees its generator move then, so that this must not come earlier than in torch.
    """
    if isinstance(sampler, RandomSampler):
        return not sampler.replacement and sampler.num_samples < len(sampler.data_source)
    of_torch = SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler
    return isinstance(sampler, (*of_torch, ShuffleSampler, range, list, tuple))


def data_of(sampler: Any) -> Any:
    """The indices or weights that the program has given a sampler; None where there are none.

    A saved state does not hold them: other ones would be another order. It does hold those that a
    sampler with code of its own has changed, for example when it received feedback.
    """
    if isinstance(sampler, SubsetRandomSampler) and is_known(sampler):
        sampler = sampler.indices
    elif isinstance(sampler, WeightedRandomSampler) and is_known(sampler):
        sampler = sampler.weights
    if isinstance(sampler, range):
        return [sampler.start, sampler.stop, sampler.step]
    if isinstance(sampler, list | tuple):  # an __iter__ of its own may draw, or change it
        return sampler if is_known(sampler) else None
    return sampler if isinstance(sampler, torch.Tensor | np.ndarray) else None


#: attributes of torch's samplers from which an order is drawn
_SETTINGS = (
    *("weights", "indices", "replacement", "num_samples", "_num_samples", "shuffle"),
    *("num_replicas", "rank"),
)


def settings_of(sampler: Any) -> dict[str, tuple[Any, int]]:
    """The attributes that an order is drawn from: by name, the value, and a sign of its changes.

    A resume draws the order again, and would do so from what they are then.
    """
    found = vars(sampler) if is_known(sampler) and hasattr(sampler, "__dict__") else {}
    settings = {name: (found[name], _changes(found[name])) for name in _SETTINGS if name in found}
    for name in ("data_source", "dataset"):
        if (length := length_of(found.get(name))) is not None:
            settings[name] = length, 0
    return settings


def warn_of_settings(sampler: Any, before: dict[str, tuple[Any, int]]) -> None:
    """Warn of those that are other ones now; a list's own items are not compared."""
    found = []
    for name, (value, changes) in before.items():
        now = getattr(sampler, name, None)
        if now is value and type(value) in ATOMS:
            continue
        if name in ("data_source", "dataset"):
            now = length_of(now)
            if now == value or (name == "data_source" and now is not None and now > value):
                continue  # the order's state has the length that it began with
        same = now is value or (type(now) is int and now == value)
        if not same or _changes(now) != changes:
            found.append(name.lstrip("_"))
    if found:
        warn(
            f"{', '.join(sorted(found))} of the {type(sampler).__qualname__} has changed in "
            "mid-epoch: this epoch is drawn from the old value, and its resume would draw it from "
            "the new one. Change it between two epochs, or write a sampler with state_dict and "
            "load_state_dict"
        )


def _changes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value._version
    return len(value) if isinstance(value, list | tuple | np.ndarray) else 0


def source_length(sampler: Any, data: int | None) -> int | None:
    """The samples that a sampler draws from, unless it is as long, and the ``data`` as well."""
    if not is_known(sampler):
        return None
    source: Any = None
    if isinstance(sampler, RandomSampler):
        source = sampler.data_source
        data = data if sampler.num_samples == data else None
    elif isinstance(sampler, DistributedSampler):
        source = sampler.dataset
    return None if source is None or len(source) == data else len(source)


#: samplers in a list that are looked at; longer ones are lists of indices
_MOST_SAMPLERS = 64


def is_distributed(sampler: Any) -> bool:
    """It is torch's DistributedSampler; or its C++ one, bound by integrations/cpp."""
    return isinstance(sampler, DistributedSampler) or hasattr(type(sampler), "_rank_share")


def has_distributed(sampler: Any) -> bool:
    """It is a DistributedSampler, or is made of one, as a batch sampler around one is."""
    found, seen = [sampler], {id(sampler)}
    for each in found:
        if is_distributed(each):
            return True
        within: Any = ()
        if each is sampler or isinstance(each, Sampler):
            within = getattr(each, "__dict__", {}).values()
        elif isinstance(each, list | tuple) and len(each) <= _MOST_SAMPLERS:
            within = each
        elif isinstance(each, dict) and len(each) <= _MOST_SAMPLERS:
            within = each.values()
        new = [part for part in within if id(part) not in seen]
        seen.update(map(id, new))
        found += new
    return False
