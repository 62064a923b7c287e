"""Ray Train, with the real Ray: who is exact in which case, and Ray's preparation of loaders."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.utils.data
from test_docs import ROOT, run

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning

from .harness import Server
from .table import Options, Table

pytest.importorskip("ray.train.torch")

RUNS = "frameworks.ray_runs"

#: the table's columns
_LOADERS: dict[str, Options] = {
    "ours": {"loader": "ours"},
    "ours, no `seed=`": {"loader": "ours without seed"},
    "torch": {"loader": "torch"},
    "torchdata": {"loader": "torchdata"},
}

_MID = {"checkpoint": 13, "workers": [2]}
_OURS = {"no": ["torch", "torchdata"]}

#: the table's rows
_CASES: dict[str, Options] = {
    'map-style, `shard="auto"`, in mid-epoch': {**_MID, "kind": "map", **_OURS},
    "at an epoch's last step": {**_MID, "checkpoint": 20, "kind": "map", **_OURS},
    "map-style, DistributedSampler": {**_MID, "kind": "DistributedSampler"},
    "a sharded batch sampler": {**_MID, "kind": "own sampler"},
    "iterable-style without length": {**_MID, "kind": "stream"},
    "iterable-style with a state": {**_MID, "kind": "stateful stream"},
}

_CORE = ('map-style, `shard="auto"`, in mid-epoch',)

RAY = Table("Ray Train", "train", _LOADERS, _CASES, _CORE)


#: a program that has a cluster until its input ends
_CLUSTER = """
import sys, ray
context = ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
print("address", context.address_info["address"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One for all programs of this module: it takes 10 seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # its workers' as well
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else a cluster has a token, which few are given
        program = subprocess.Popen(
            [sys.executable, "-c", _CLUSTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.stdin is not None and program.stdout is not None
        words = next(words for line in program.stdout if (words := line.split())[:1] == ["address"])
        patch.setenv("RAY_ADDRESS", words[1])
        yield
        program.stdin.close()
        program.wait()
        program.stdout.close()


@pytest.fixture(scope="module")
def server(cluster: None) -> Iterator[Server]:
    """A server whose programs find the cluster."""
    server = Server(RUNS)
    yield server
    server.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("case", "loader"), RAY.cells())
def test_a_resume_is_as_the_table_says(
    server: Server, tmp_path: Path, case: str, loader: str
) -> None:
    found = RAY.found(server, tmp_path, case, loader, ranks=2, processes=1)
    assert found == RAY.documented(case, loader)


@pytest.fixture(params=["v1", "v2"])
def prepare(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """``prepare_data_loader`` as the first of two workers calls it; v2 is Ray's default."""
    of_two = SimpleNamespace(get_world_size=lambda: 2, get_world_rank=lambda: 0)
    # They would start a cluster: to see which devices there are, and to count who calls them.
    if request.param == "v1":
        utils = import_module("ray.train.torch.train_loop_utils")
        monkeypatch.setattr(utils, "session", of_two)
        monkeypatch.setattr(utils, "get_torch_device_manager_by_context", lambda: None)
        prepared = utils._TorchAccelerator().prepare_data_loader
    else:
        utils = import_module("ray.train.v2.torch.train_loop_utils")
        monkeypatch.setattr("ray.train.get_context", lambda: of_two)
        monkeypatch.setattr(utils, "record_extra_usage_tag", lambda *_: None)
        prepared = utils.prepare_data_loader
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    return lambda loader: prepared(loader, move_to_device=False)


@pytest.mark.core
@pytest.mark.timeout(600)
def test_the_recipe_of_the_page_runs(cluster: None, tmp_path: Path) -> None:
    done = run(ROOT / "docs/frameworks/ray.md", tmp_path, opening="```python no-run", limit_s=500)
    assert done.returncode == 0, done.stderr


def test_a_loader_that_ray_builds_anew_says_that_it_is_lost(prepare) -> None:
    loader = DataLoader(range(40), batch_size=4, shuffle=True, seed=1)
    with pytest.warns(LoaderWarning, match='prepare_data_loader makes a loader.*shard="auto"'):
        made = prepare(loader)
    assert type(made) is torch.utils.data.DataLoader


def test_loaders_of_torch_and_other_readers_of_the_attribute_hear_nothing(prepare) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)
        prepare(torch.utils.data.DataLoader(range(40), batch_size=4))
        assert DataLoader(range(40), worker_init_fn=print).worker_init_fn is print
