"""Ranks that share data: which one this process is, and how all compare their loaders.

core/shard.py has the share of each.

They agree through the store of torch's process group and not by a collective operation. That works
with each backend, names the ranks that do not come, and leaves the process group as it was.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping
from hashlib import blake2b
from time import monotonic, sleep
from typing import Any, cast

import torch.distributed as dist

from ..core.checks import whole_number
from ..core.shard import ALONE, Shard, Tail
from ..datasets.protocol import stream_length_of
from ..errors import (
    CannotSaveError,
    Difference,
    RanksError,
    StateMismatch,
    UsageError,
    warn,
)
from ..orders.sampler_facts import has_distributed, is_distributed
from ..rng.process_rank import has_group, rank_and_world

#: variables that torchrun sets
_ENVIRONMENT = ("RANK", "WORLD_SIZE")
#: seconds between two questions to the store
_LONGEST_PAUSE = 0.05
#: characters of a fact; of a longer one the ranks compare a hash
_LONGEST = 80
#: so much longer than rank 0 do the others wait for its answer, in seconds
_LONGER = 10.0


def check_shard(shard: Any) -> Any:
    """``shard=``, checked; a pair as a tuple of two ints.

    Raises:
        ValueError, TypeError: it is none of those that `DataLoader` names.
    """
    if shard is None or shard == "auto":
        return shard
    if hasattr(shard, "get_local_rank"):  # a DeviceMesh
        if shard.ndim != 1:
            raise ValueError(
                f'shard should be one dimension of a DeviceMesh, as mesh["dp"], got {shard.ndim}'
            )
        return shard
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise ValueError(
            'shard should be None, "auto", a pair (rank, world_size) or a DeviceMesh of one '
            f"dimension, got shard={shard!r}"
        )
    rank, world = (whole_number("shard", number) for number in shard)
    if not 0 <= rank < world:
        raise ValueError(
            f"shard=(rank, world_size) should have a rank from 0 to world_size - 1, got {shard!r}"
        )
    return rank, world


def check_pickled(shard: Any) -> None:
    """Raise CannotSaveError if ``shard=`` is a DeviceMesh: its process groups are of this job."""
    if hasattr(shard, "get_local_rank"):
        raise CannotSaveError(
            "loader.shard",
            "it is a DeviceMesh, which has the ranks and process groups of this job, and another "
            "rank would take this one's",
            "Save state_dict(), or gather_state_dict() where the data comes in streams. On each "
            "rank, build the loader with the mesh that is there, and pass load_state_dict() that",
        )


def own_rank(given: Any) -> tuple[int, int] | None:
    """This rank, and the number of ranks, if a pickled loader has this one's share."""
    rank, world = rank_and_world()
    shares = world > 1 and any(map(has_distributed, (given.sampler, given.batch_sampler)))
    return (rank, world) if shares and _share_of(given)[1] != 1 else None


def _share_of(given: Any) -> tuple[int | None, int | None]:
    """The share of a loader's DistributedSampler, and the number of shares, if they are known."""
    samplers = given.sampler, given.batch_sampler, getattr(given.batch_sampler, "sampler", None)
    found = (each for each in samplers if isinstance(getattr(each, "num_replicas", None), int))
    sampler = next(found, None)
    return getattr(sampler, "rank", None), getattr(sampler, "num_replicas", None)


def check_rank(pickled_on: tuple[int, int] | None, given: Any) -> None:
    """Compare this rank with that of a pickle with a DistributedSampler, which reads one share.

    The program may have given the sampler this rank's share in the meantime.

    Raises:
        StateMismatch: another rank has pickled it, or there were more ranks, or fewer.
    """
    here = rank_and_world()
    share = _share_of(given)
    if pickled_on is None or here in (pickled_on, share):
        return
    # With fewer shares than ranks, this rank may read the same one: a tensor parallel one does.
    if here[1] > 1 and share[1] in (None, pickled_on[1]):
        raise StateMismatch([Difference("rank", list(here), list(pickled_on))], _ONE_SHARE)
    warn(
        f"rank {pickled_on[0]} of {pickled_on[1]} has pickled this loader, and it reads the share "
        f"of that rank only, by its DistributedSampler. {_ONE_SHARE}"
    )


_ONE_SHARE = (
    "To go on with all data, save loader.state_dict(), build the loader on each rank, and pass "
    'load_state_dict() that. Or pass shard="auto" in place of the sampler, and one pickle serves '
    "any number of ranks. Or save a pickle on each rank, and load it on the same one of as many"
)


def shard_of(shard: Any, tail: Tail, undecided: bool = False) -> Shard:
    """This process's share under ``shard=`` and ``shard_tail=``.

    Args:
        shard: the loader's.
        tail: the loader's.
        undecided: nobody asks for the share yet. A launcher may set some of the variables before
            its process group names the rank, as Lightning's does.

    Raises:
        UsageError: a DeviceMesh has no process group here, or lacks this rank; or the environment
            names no rank.
    """
    if shard is None:
        return ALONE
    if shard == "auto":
        shard = rank_and_world()
        if not has_group() and (problem := _problem_of_environment(*shard)):
            if undecided:
                return ALONE
            raise UsageError(problem)
    if isinstance(shard, tuple):
        rank, world = shard
        return Shard(rank, world, tail)
    if not has_group():
        raise UsageError(
            "shard= is a DeviceMesh, which has no ranks before torch.distributed is initialised: "
            "call init_process_group first"
        )
    if getattr(shard, "get_coordinate", tuple)() is None:
        raise UsageError(
            f"shard= is a DeviceMesh that rank {dist.get_rank()} is not in: build the loader on "
            "the ranks of the mesh only, or use a mesh of all ranks"
        )
    return Shard(shard.get_local_rank(), shard.size(), tail)


def check_shared(sampler: Any, shard: Shard, num_streams: int | None) -> None:
    """Raise ValueError if this data cannot have a loader with ``shard=``."""
    if has_distributed(sampler):
        within = "" if is_distributed(sampler) else " (in the sampler you passed)"
        raise ValueError(
            f"shard option is mutually exclusive with a DistributedSampler{within}, which shards "
            "as well: give the loader the sampler of the whole dataset, or shuffle=True"
        )
    if num_streams is not None and num_streams < shard.world:
        raise ValueError(
            f"num_streams={num_streams} is the number of streams of all ranks together, and less "
            f"than the {shard.world} ranks: some would have no data"
        )


def check_lengths(dataset: Any, tail: Tail) -> None:
    """Raise ValueError unless the lengths of streams, and so those of ranks, are known."""
    if stream_length_of(dataset) is None:
        raise ValueError(_UNKNOWN_LENGTHS.format(tail=tail))


_UNKNOWN_LENGTHS = (
    "shard_tail={tail!r} gives all ranks as many batches, for which the lengths of an "
    "iterable-style dataset's streams must be known. Give the dataset __len__, the samples of all "
    "streams together, if its streams share these evenly; or stream_length(stream, streams), the "
    'samples of one stream; or pass shard_tail="uneven" and use model.join()'
)


def _problem_of_environment(rank: int, world: int) -> str | None:
    """An error's text, unless the environment names no ranks, or this one of several."""
    said = [f"{name}={os.environ[name]}" for name in _ENVIRONMENT if name in os.environ]
    alone = not said or said == ["WORLD_SIZE=1"]
    if 0 <= rank < world and (alone or said == [f"RANK={rank}", f"WORLD_SIZE={world}"]):
        return None
    return (
        f'shard="auto" reads the rank from the environment, which has {", ".join(said)}. Set '
        "RANK from 0 to WORLD_SIZE - 1, and WORLD_SIZE, as torchrun does; or call "
        "init_process_group first; or pass shard=(rank, world_size)"
    )


# --- agreement -----------------------------------------------------------------------------------

#: problem and advice of `RanksError`
_LATE = (
    "not all ranks that share the data came before the process group's timeout",
    "Ranks begin each pass together, and gather its state together. Call iter(loader), and "
    "gather_state_dict(), on every rank, for the same loaders in the same order; or pass "
    "shard=(rank, world_size) and seed=, which need no agreement.",
)
_DIFFER = (
    "the ranks that share the data do not agree",
    "Build the same loaders in the same order on every rank, or pass seed=. Give samplers of your "
    "own the same seed on every rank; leave shard= out for one that shares indices out by itself. "
    "Load the same state on every rank, or on none.",
)
#: by store, how often this process has agreed through it
_COUNTS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def can_agree(choice: Any, shard: Shard) -> bool:
    """There are other ranks, and a process group to ask them; a pair of numbers names none.

    Torch's backend "fake" has one process, alone for all ranks, for example to measure memory.
    """
    ranks = shard.world > 1 and not isinstance(choice, tuple) and has_group()
    return ranks and dist.get_backend() != "fake"


def compare_ranks(
    choice: Any, shard: Shard, facts: Mapping[str, Any], seed: int | None
) -> int | None:
    """Compare facts over all ranks of the process group, and agree on a seed.

    Args:
        choice: the loader's ``shard=``.
        shard: this rank's.
        facts: those that must be equal on all ranks.
        seed: the one that this rank proposes; None: it needs none.

    Returns:
        Rank 0's proposal; None if several ranks have no process group.

    Raises:
        RanksError: facts differ, two ranks have the same share, or a rank does not come before
            the process group's timeout.
    """
    if not can_agree(choice, shard):
        return seed if shard.world == 1 else None
    # The only way to the group's store; torch's own modules (FSDP, elastic) take it, too.
    store: Any = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    number = _COUNTS.get(store, 0) + 1
    while store.check([f"picklable_loader/{number}/verdict"]):
        number += 1  # the others have waited in vain, and will try again
    _COUNTS[store], prefix = number, f"picklable_loader/{number}/"
    share = [shard.rank, shard.world]
    said = {name: _short(repr(value)) for name, value in facts.items()}
    store.set(f"{prefix}{rank}", json.dumps([share, said, seed]))
    patience = store.timeout.total_seconds()
    verdict: dict[str, Any] | None = None
    if rank == 0:
        verdict = _verdict(store, prefix, world, patience)
    elif not _waited(store, [f"{prefix}verdict"], patience + _LONGER):
        verdict = {"missing": [0]}
    if verdict is not None:  # of two, for example if rank 0 comes too late, the first one counts
        store.compare_set(f"{prefix}verdict", "", json.dumps(verdict))
    verdict = cast("dict[str, Any]", json.loads(store.get(f"{prefix}verdict")))
    if rank == 0 and not verdict["missing"]:  # all have read what was agreed on before
        for name in (*range(world), "verdict"):
            store.delete_key(f"picklable_loader/{number - 1}/{name}")
    if verdict["missing"] or verdict["differences"]:
        differ = verdict.get("differences", {})
        raise RanksError(*(_DIFFER if differ else _LATE), verdict["missing"], [], differ)
    return cast("int | None", verdict["seed"])


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:20]}... ({blake2b(text.encode(), digest_size=8).hexdigest()})"


def _verdict(store: Any, prefix: str, world: int, patience: float) -> dict[str, Any]:
    """Rank 0's answer to all: the ranks that are missing, or the differences and the seed."""
    keys = [f"{prefix}{rank}" for rank in range(world)]
    if not _waited(store, keys, patience):
        return {"missing": [rank for rank, key in enumerate(keys) if not store.check([key])]}
    at_once = store.has_extended_api()  # 4096 single requests take a third of a second
    said = [
        json.loads(text) for text in (store.multi_get(keys) if at_once else map(store.get, keys))
    ]
    differences = {}
    for name in {name: None for _, facts, _ in said for name in facts}:
        ranks: dict[str, list[int]] = {}
        for rank, (_, facts, _) in enumerate(said):
            ranks.setdefault(facts.get(name, "absent"), []).append(rank)
        if len(ranks) > 1:
            differences[name] = ranks
    shares: dict[str, list[int]] = {}
    for rank, (share, _, _) in enumerate(said):
        shares.setdefault(f"{share[0]} of {share[1]}", []).append(rank)
    complete = {f"{part} of {said[0][0][1]}" for part in range(said[0][0][1])}
    if shares.keys() != complete or len({*map(len, shares.values())}) > 1:
        differences["share"] = shares
    return {"missing": [], "differences": differences, "seed": said[0][2]}


def _waited(store: Any, keys: list[str], patience: float) -> bool:
    """Wait for the keys; False: some have not come in that many seconds."""
    until, pause = monotonic() + patience, 0.0005
    while not store.check(keys):
        # store.wait would not notice Ctrl-C, and writes two lines to stderr when its time is over.
        if monotonic() > until:
            return False
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True
