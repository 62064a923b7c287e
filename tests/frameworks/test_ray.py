"""Ray's own preparation of loaders, with the real Ray."""

from __future__ import annotations

import warnings
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch.utils.data

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning

pytest.importorskip("ray.train.torch")


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
