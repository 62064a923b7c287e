"""Ranks that share data agree on a seed and a position before a pass, and gather their states."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Subset

from ..core.cursor import Cursor
from ..core.plan import Plan
from ..core.shard import Shard
from ..datasets.protocol import datasets_within
from ..epoch.history import History
from ..epoch.position import Position
from ..epoch.ranks import can_agree, compare_ranks
from ..epoch.spec import Spec
from ..errors import CannotSaveError, UsageError
from ..orders.attribute_rngs import ATTRIBUTE_RNGS
from ..orders.custom import CustomOrder
from ..rng.process_rank import has_group
from ..rng.source import random_int64
from ..saving.states.checksum import checksum
from ..saving.states.merge import merge_states
from ..saving.states.plain import SCALARS, Later
from .internals import Owner
from .setup import spec_of


def agree_before_pass(loader: Owner[Any], spec: Spec, position: Position | None) -> Spec:
    """How the loader is set up, once all ranks have agreed; for a loader on its own, as it was.

    A loader with ``shard=`` and without ``seed=`` takes the seed that rank 0 draws, for good.

    Args:
        loader: this rank's.
        spec: how it is set up.
        position: of a pass that goes on from a state; None for a new epoch.

    Raises:
        RanksError: the ranks do not agree, or some do not come.
        UsageError: they have no seed, and no process group to agree on one.
    """
    if not spec.shared:
        return spec
    start = None if position is None else position.start
    cursor, inner = None if start is None else start.cursor, loader._pl
    history, source = inner.history, inner.history.source
    facts = _facts(spec, history, cursor)
    undecided = spec.options.seed is None and (cursor is None or cursor.base_seed is None)
    if undecided and inner.number is not None:  # two that are alike must not swap their seeds
        facts["loader with shard= and without seed="] = f"number {inner.number}"
    if position is not None and position.given is not None:
        facts |= {"step of all ranks": sum(position.given), "batches by stream": position.given}
    source.generators = spec.generators
    proposal = source.draw("loader", random_int64) if undecided else None
    seed = compare_ranks(spec.options.shard, spec.shard, facts, proposal)
    if not undecided:
        return spec
    if seed is None:
        raise UsageError(
            f"{spec.shard.world} ranks share one order, and have no process group to agree on its "
            "seed: pass seed= to the DataLoader, the same on every rank; or call "
            'init_process_group first, with shard="auto"'
        )
    adopt(loader, seed)
    if position is not None:
        position.agree(seed)
    return spec_of(loader)


def _facts(spec: Spec, history: History, cursor: Cursor | None) -> dict[str, Any]:
    """Properties that must be equal on all ranks, by their names."""
    facts = spec.fingerprint()
    facts |= _subsets(spec.dataset)
    facts["num_streams"] = spec.streams.total if spec.iterable else None
    if cursor is not None and spec.iterable:  # each rank has delivered as many as its streams give
        if cursor.streams:
            facts["num_streams"] = cursor.num_streams or len(cursor.streams)
        left = spec.batches if cursor.batches is None else cursor.batches - cursor.step
        resumes = {"epoch": cursor.epoch, "goes on from a state": bool(cursor.streams)}
        return facts | resumes | {"batches": left}
    if cursor is not None:
        facts |= {"epoch": cursor.epoch, "step": cursor.step}
        if spec.in_order or not spec.workers:
            facts["position"] = cursor.position
        order = cursor.order or {}
        return facts | {f"order.{n}": v for n, v in order.items() if type(v) in (int, str, bool)}
    facts["epoch"] = history.next_epoch
    if spec.iterable:
        return facts | {"goes on from a state": False, "batches": spec.batches}
    # A sampler's own generator, or its list of indices, may be another one on each rank.
    for path, (kind, form) in spec.attributes().items():
        if kind == "plain" or kind in ATTRIBUTE_RNGS:
            plain = form.form if type(form) is Later else form
            said = _deciding(plain) if kind == "plain" else plain
            if said is not None:
                facts[f"sampler.{path}"] = json.dumps(said, default=_digest)
    return facts


def _subsets(dataset: Any) -> dict[str, str]:
    """Checksums of the Subsets in a dataset: ``random_split`` draws from a rank's generator."""
    found, ahead = dict[str, str](), deque([("dataset", dataset)])
    while ahead and len(found) < _MOST_SUBSETS:
        path, each = ahead.popleft()
        indices: Any = getattr(each, "indices", None) if isinstance(each, Subset) else None
        if isinstance(indices, Sequence | np.ndarray | torch.Tensor):
            size = len(indices)
            some = [indices[n] for n in range(0, size, 1 + size // _MOST_INDICES)]
            found[f"{path}.indices"] = f"{size} of checksum {checksum(some)}"
        within = datasets_within(each)[:_MOST_SUBSETS]
        ahead += [(f"{path}.dataset[{n}]", one) for n, one in enumerate(within)]
    return found


#: Subsets that are compared, and indices of each
_MOST_SUBSETS, _MOST_INDICES = 64, 1000


def _deciding(form: Any) -> Any:
    """The part of a plain form that may decide an order; None: none.

    Whole numbers, containers and tensors may. A flag, a float, a text or a device may be one
    rank's: to log, or to measure. The ranks compare the first indices as well.
    """
    kind = form.get("as") if type(form) is dict else type(form)
    if kind in ("dict", "OrderedDict", "Counter"):
        items = [[key, _deciding(value)] for key, value in form["value"]]
        return [item for item in items if item[1] is not None] or None
    if kind == "number":
        return form if type(form["value"]) is int else None
    return _sorted(form) if kind in _MAY_DECIDE else None


def _sorted(form: Any) -> Any:
    """A form whose sets have one order: each process has texts in another one."""
    if type(form) is list:
        return form if SCALARS.issuperset(map(type, form)) else [*map(_sorted, form)]
    if type(form) is not dict:
        return form
    form = {name: _sorted(each) for name, each in form.items()}
    if form.get("as") in ("set", "frozenset"):
        form["value"] = sorted(form["value"], key=repr)
    return form


_MAY_DECIDE = (
    *(int, list, "int", "rows", "tuple", "set", "frozenset", "deque", "defaultdict"),
    *("Tensor", "ndarray", "Size"),
)


def _digest(value: Any) -> str:
    """For a tensor, which a state holds as it is; its repr leaves out most of a large one."""
    return checksum([value])


def compare_first(spec: Spec, position: Position) -> None:
    """Have the ranks compare what a sampler that nobody knows gives first.

    It may draw from what nobody sees, for example from a generator in a global variable.

    Args:
        spec: how this rank's loader is set up.
        position: of the pass that begins, or goes on: its sampler is asked for the first indices.

    Raises:
        RanksError: the samplers of two ranks give other indices.
    """
    run, choice = position.run, spec.options.shard
    order = None if run is None else run.order
    if run is None or not isinstance(order, CustomOrder) or not can_agree(choice, spec.shard):
        return
    plan = cast(Plan, run.schedule.plan)
    try:
        plan.look_ahead()
        first = f"{order.record.taken} of checksum {order.record.checksum}"
        compare_ranks(choice, spec.shard, {"the sampler's first indices": first}, None)
    except BaseException:
        position.run = None  # the next call asks and compares again
        raise


def gathered(
    loader: Owner[Any], state_dict: Callable[[], dict[str, Any]], group: Any
) -> dict[str, Any]:
    """See `DataLoader.gather_state_dict`; ``state_dict`` gives this rank's state."""
    choice, shard = loader._pl.options.shard, spec_of(loader).shard
    if choice is None:
        raise UsageError(
            "gather_state_dict() needs a loader with shard=: without, each rank has data of its "
            "own. Save state_dict() on each rank, and load it there"
        )
    if shard.world == 1:
        return state_dict()
    group = _gathering(choice, shard, group)
    own: Exception | None = None
    try:
        said: Any = state_dict()
    except Exception as error:  # the others wait for this rank
        own, said = error, f"{type(error).__name__}: {error}"
    states: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(states, said, group)
    if own is not None:
        raise own
    for rank, state in enumerate(states):
        if type(state) is str:
            raise CannotSaveError(f"the state of rank {rank}", state, "See the error of that rank")
    return merge_states(states)


def _gathering(choice: Any, shard: Shard, group: Any) -> Any:
    """The process group that gathers; RanksError names those of all ranks that do not come."""
    if not has_group():
        raise UsageError(
            "gather_state_dict() needs a process group: call init_process_group first; or bring "
            "the ranks' states together yourself, and call merge_states([...])"
        )
    if group is None and hasattr(choice, "get_group"):
        return choice.get_group()
    if group is not None and dist.get_rank(group) < 0:
        raise UsageError(
            f"gather_state_dict(group=) was called on rank {dist.get_rank()}, which is not in that "
            "group: call it on the group's ranks only"
        )
    if group is None:  # the collective operation itself names nobody
        compare_ranks(choice, shard, {"call": "gather_state_dict()"}, None)
    return group


def adopt(loader: Owner[Any], seed: int | None) -> None:
    """Take a seed that the ranks share, if the loader has none.

    Args:
        loader: one with ``shard=``.
        seed: the ranks', or that of a state.
    """
    inner = loader._pl
    if seed is None or inner.options.shard is None or inner.options.seed is not None:
        return
    inner.options = replace(inner.options, seed=seed)
    loader.__dict__["seed"] = inner.history.source.seed = seed
