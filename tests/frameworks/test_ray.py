"""Ray's own preparation of loaders, with the real Ray."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch.utils.data

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning

train_loop_utils = pytest.importorskip("ray.train.torch.train_loop_utils")


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch):
    """``prepare_data_loader`` as the first of two workers calls it."""
    session = SimpleNamespace(get_world_size=lambda: 2, get_world_rank=lambda: 0)
    monkeypatch.setattr(train_loop_utils, "session", session)
    # It would start a cluster, to see which devices there are.
    monkeypatch.setattr(train_loop_utils, "get_torch_device_manager_by_context", lambda: None)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    accelerator = train_loop_utils._TorchAccelerator()
    return lambda loader: accelerator.prepare_data_loader(loader, move_to_device=False)


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
