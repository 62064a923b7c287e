"""The law of datasets that change themselves: a resume is exact, or the save or load has warned."""

from __future__ import annotations

import pickle
import random
import warnings
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import lists
from zoo.changing import Plan

from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning, ReplayWarning

OPTIONS: list[dict[str, Any]] = [
    {},
    {"seeding": "worker"},
    {"num_streams": 2},
    {"num_workers": 2},
    {"num_workers": 1, "persistent_workers": True},
]


@pytest.mark.parametrize("number", range(120))
def test_a_dataset_made_at_random_goes_on_exactly_or_its_loss_is_said(number: int) -> None:
    plan, chance = Plan.at_random(number), random.Random(-1 - number)
    options = {
        **OPTIONS[number % len(OPTIONS)],
        "batch_size": chance.choice([1, 2, None]),
        "snapshot_every_n_steps": chance.choice([0, 1, 2, 3]),
        "seed": 1,
    }
    door = chance.choice(["pickle", "pickle", "state", "attach"])

    def loader() -> DataLoader[Any]:
        return DataLoader(plan.dataset(), pickle_dataset=door != "attach", **options)

    def resumed(batches: Any) -> Any:
        if door == "state":
            other = loader()
            other.load_state_dict(batches.state_dict())
            return iter(other)
        again = pickle.loads(pickle.dumps(batches))
        if door == "attach":
            again.loader.attach(plan.dataset())
        return again

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        straight_on = loader()
        for _ in range(chance.choice([0, 0, 1, 2])):
            lists(straight_on)
        batches = iter(straight_on)
        for _ in islice(batches, chance.choice([0, 1, 2, 3])):
            pass
        once = resumed(batches)
        more = chance.choice([0, 0, 1, 2])
        first = lists(islice(once, more))
        _draw_elsewhere()
        twice = resumed(once)
        found = first + lists(twice), lists(twice.loader)
        expected = lists(batches), lists(straight_on)
    said = [each for each in given if issubclass(each.category, LoaderWarning)]
    if all(issubclass(each.category, ReplayWarning) for each in said):
        assert found == expected


def _draw_elsewhere() -> None:
    """The program has other random numbers than the one that saved."""
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
