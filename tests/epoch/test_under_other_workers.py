"""A run without ``seed=`` goes on under other workers: later epochs are those of the run, too.

Torch draws a base seed for each epoch, but none while persistent workers live. It calls ``iter`` of
a sampler twice when it starts workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from laws.observe import seed_everything
from torch.utils.data import Sampler
from zoo.datasets import N, Noisy

from picklable_loader import DataLoader
from picklable_loader.errors import DamagedStateError

pipes = pytest.importorskip("torch.utils.data.datapipes.iter")


class CountsAtOnce(Sampler[Any]):
    """Its call of ``__iter__`` changes it, and draws."""

    def __init__(self) -> None:
        self.calls = 0

    def __len__(self) -> int:
        return N // 2

    def __iter__(self) -> Iterator[list[int]]:
        self.calls += 1
        order = torch.randperm(N).tolist()
        return iter([[self.calls % N, index] for index in order[: N // 2]])


def _noisy(**options: Any) -> dict[str, Any]:
    return {"dataset": Noisy(N), "batch_size": 3, **options}


def _pipe() -> Any:
    return pipes.IterableWrapper(range(12)).shuffle().sharding_filter()


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffle": lambda: _noisy(shuffle=True),
    "generator": lambda: _noisy(shuffle=True, generator=torch.Generator().manual_seed(4)),
    "samples": lambda: _noisy(shuffle=True, batch_size=None),
    "batch_sampler": lambda: {"dataset": Noisy(N), "batch_sampler": CountsAtOnce()},
    "batch_sampler with a seed": lambda: {
        "dataset": Noisy(N),
        "batch_sampler": CountsAtOnce(),
        "seed": 3,
    },
    "DataPipe": lambda: {"dataset": _pipe(), "batch_size": 2, "num_streams": 2},
}
WORKERS: dict[str, dict[str, Any]] = {
    "none": {},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


def make(kind: str, workers: str) -> DataLoader[Any]:
    return DataLoader(**KINDS[kind](), **WORKERS[workers])


def lists(batches: Any) -> list[str]:
    return [repr(batch) for batch in batches]


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize("now", WORKERS)
@pytest.mark.parametrize("before", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_later_epochs_are_those_of_the_run_that_was_saved(kind: str, before: str, now: str) -> None:
    """They were those of a run with as many workers as the loader has that resumes."""
    seed_everything(1)
    loader = make(kind, before)
    states, whole = [], []
    for _ in range(4):
        iterator = iter(loader)
        whole.append([repr(next(iterator))])
        states.append(iterator.state_dict())
        whole[-1] += lists(iterator)
        states.append(loader.state_dict())
    del iterator
    for number, state in enumerate(states[:-1]):
        epoch, over = divmod(number, 2)
        expected = whole[epoch + 1 :] if over else [whole[epoch][1:], *whole[epoch + 1 :]]
        seed_everything(99)
        loader = make(kind, now)
        loader.load_state_dict(state)
        assert [lists(loader) for _ in expected] == expected, f"state {number}"


def test_what_no_loader_draws_as_is_damage() -> None:
    loader = make("shuffle", "workers")
    state = loader.state_dict()
    assert state["draws_as"] == "workers"
    with pytest.raises(DamagedStateError, match="draws_as"):
        loader.load_state_dict({**state, "draws_as": "nobody"})
