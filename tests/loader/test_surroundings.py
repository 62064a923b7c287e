"""What a program has set for itself is nothing to a loader: default devices, sockets' timeouts."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from zoo.datasets import Filled

import picklable_loader
from picklable_loader import DataLoader
from picklable_loader.errors import LoaderWarning

#: elements of a sample: a batch that travels within a message, and one that does not
SMALL, LARGE = 3, 60_000

ROOT = Path(picklable_loader.__file__).parents[1]


def views(samples: list[torch.Tensor]) -> Any:
    """Parts of one storage that overlap, and one of another."""
    batch = default_collate(samples)
    return batch[:, :1], batch[:, :2], batch[0, :0], torch.zeros(LARGE, device="cpu")[5:9]


def numbers(batch: Any) -> list[Any]:
    parts = [batch] if isinstance(batch, torch.Tensor) else batch
    return [(part.device.type, part.shape, part.flatten()[:9].tolist()) for part in parts]


# --- a default device ----------------------------------------------------------------------------


@pytest.fixture
def no_tensor_is_real() -> Iterator[None]:
    """Whatever is made without a word about its device has no data."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("no_tensor_is_real")
@pytest.mark.parametrize("collate", [None, views], ids=["a batch", "views"])
@pytest.mark.parametrize("transport", ["arena", "portable"])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_batches_stay_where_they_were_made_whatever_the_default_device(
    size: int, transport: Any, collate: Any
) -> None:
    def batches(workers: int) -> list[Any]:
        options: dict[str, Any] = {"num_workers": workers, "transport": transport}
        return [numbers(b) for b in DataLoader(Filled(8, size), 2, collate_fn=collate, **options)]

    found = batches(2)
    assert found == batches(0)
    assert len(found) == 4 and {device for batch in found for device, *_ in batch} == {"cpu"}


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(range(8)),
    "random": lambda: RandomSampler(range(8)),
    "replacement": lambda: RandomSampler(range(8), replacement=True, num_samples=40),
    "subset": lambda: SubsetRandomSampler(range(5)),
    "weighted": lambda: WeightedRandomSampler(torch.ones(8, device="cpu"), 6),  # type: ignore
    "distributed": lambda: DistributedSampler(Filled(8, SMALL), 2, 0),  # type: ignore[type-var]
}


def orders(sampler: Any) -> tuple[list[Any], list[Any]]:
    """What an epoch delivers as a whole, and resumed in its middle."""
    torch.manual_seed(3)
    whole = [numbers(batch) for batch in DataLoader(Filled(8, SMALL), 2, sampler=sampler)]
    torch.manual_seed(3)
    iterator = iter(DataLoader(Filled(8, SMALL), 2, sampler=sampler))
    first = numbers(next(iterator))
    return whole, [first, *map(numbers, pickle.loads(pickle.dumps(iterator)))]


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_an_order_does_not_depend_on_the_default_device(
    make: Callable[[], Any], request: pytest.FixtureRequest
) -> None:
    sampler = make()
    expected, _ = orders(sampler)
    request.getfixturevalue("no_tensor_is_real")
    assert orders(sampler) == (expected, expected)


# --- a default timeout of sockets ----------------------------------------------------------------


OLD = pytest.mark.skipif(
    sys.version_info >= (3, 14),
    reason="with a default timeout Python 3.14 loses its fork server; torch fails as well",
)
IDLES = """
import socket, sys
from multiprocessing.connection import wait
from picklable_loader import DataLoader

socket.setdefaulttimeout(0.01)  # a spawned worker runs this as well

if __name__ == "__main__":
    method, schedule = sys.argv[1:]
    loader = DataLoader(
        range(40),
        num_workers=1,
        transport="arena",
        prefetch_budget=4,
        schedule=schedule,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    first = list(loader)
    sentinels = [each.sentinel for each in loader._pl.driver._engine._pool._processes]
    assert wait(sentinels, 0.5) == [], "a worker that has nothing to do has ended"
    print(len(first), len(list(loader)), socket.getdefaulttimeout())
"""


@pytest.mark.parametrize(
    "method, schedule",
    [
        ("fork", "balanced"),
        ("spawn", "round_robin"),
        pytest.param("forkserver", "balanced", marks=OLD),
    ],
)
def test_workers_wait_for_ever_whatever_the_default_timeout(
    method: str, schedule: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(IDLES)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), method, schedule],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (0, "40 40 0.01\n"), done.stderr


@pytest.mark.filterwarnings("ignore:.*torch.distributed:UserWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize("what", ["loader", "iterator"])
def test_a_checkpoint_of_dcp_that_has_the_loader_itself_is_warned_of_and_can_be_rescued(
    what: str, tmp_path: Path
) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    from picklable_loader.integrations.dcp import LoaderState

    loader, again = (DataLoader(range(40), 4, shuffle=True, seed=1) for _ in range(2))
    iterator = iter(loader)
    next(iterator)
    dcp.save({what: LoaderState(loader)}, checkpoint_id=tmp_path / "right")  # warns of nothing
    itself: Any = {"loader": loader, "iterator": iterator}[what]
    with pytest.warns(LoaderWarning, match="DCP has saved this loader itself.*LoaderState"):
        dcp.save({what: itself}, checkpoint_id=tmp_path / "wrong")
    dcp_to_torch_save(tmp_path / "wrong", tmp_path / "rescued.pt")
    state = torch.load(tmp_path / "rescued.pt", weights_only=False)[what]
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in iterator]
