"""torch.distributed.checkpoint (DCP), with FSDP2 and DDP: who is exact in which case."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Server
from .table import Options, Table

RUNS = "frameworks.dcp_runs"

#: the table's columns
_LOADERS: dict[str, Options] = {
    "`LoaderState`": {"loader": "ours"},
    "`LoaderState`, no `seed=`": {"loader": "ours without seed"},
    "ours alone": {"loader": "ours", "itself": True},
    "torch": {"loader": "torch"},
    "torchdata": {"loader": "torchdata"},
}

_OURS = {"no": ["torch", "torchdata"]}
_TWO = {"ranks": 2, "checkpoint": 13}
_SAMPLER = {**_TWO, "kind": "DistributedSampler"}

#: the table's rows
_CASES: dict[str, Options] = {
    "map-style, DistributedSampler, in mid-epoch": _SAMPLER,
    "at an epoch's last step": {**_SAMPLER, "checkpoint": 20},
    'map-style, `shard="auto"`': {**_TWO, "kind": "map", **_OURS},
    "a sharded batch sampler": {**_TWO, "kind": "own sampler"},
    "iterable-style with length": {**_TWO, "kind": "sized stream"},
    "iterable-style without length": {**_TWO, "kind": "stream"},
    "iterable-style with a state": {**_TWO, "kind": "stateful stream"},
    "with a state, at an epoch's last step": {
        **_TWO,
        "checkpoint": 20,
        "kind": "stateful stream",
    },
    "`dcp.async_save`": {**_SAMPLER, "at_once": False},
    "DDP": {**_SAMPLER, "ddp": True},
}

_CORE = ("map-style, DistributedSampler, in mid-epoch", "iterable-style with length")

DCP = Table("torch.distributed.checkpoint", "train", _LOADERS, _CASES, _CORE)


@pytest.mark.parametrize(("case", "loader"), DCP.cells())
def test_a_resume_is_as_the_table_says(
    server: Server, tmp_path: Path, case: str, loader: str
) -> None:
    found = DCP.found(server, tmp_path, case, loader)
    assert found == DCP.documented(case, loader)
