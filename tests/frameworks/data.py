"""What all frameworks train on: 10 batches of 4 samples an epoch, 3 epochs; and the loaders."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

import picklable_loader

from .harness import Run

SIZE, BATCH_SIZE, BATCHES, EPOCHS = 40, 4, 10, 3
#: samples of the shorter one of two datasets
SHORT = 32

#: the loaders that are compared; ours without seed= as well
LOADERS = ("ours", "ours without seed", "torch", "torchdata")

Sample = dict[str, torch.Tensor]


def sample(index: int) -> Sample:
    """A sample with noise of all three generators, which makes its loss random as well."""
    noise = [torch.rand(()).item(), float(np.random.rand()), random.random()]
    return {
        "id": torch.tensor(index),
        "noise": torch.tensor(noise, dtype=torch.float64),
        "x": torch.tensor([index / SIZE, *noise], dtype=torch.float32),
    }


class Map(Dataset[Sample]):
    #: the number of its first sample
    first = 0

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Sample:
        return sample(self.first + index)


class Stream(IterableDataset[Sample]):
    """Each worker yields its share, whole batches of it."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from map(sample, range(number, self.size, workers))


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.size


class StatefulStream(Stream):
    """It goes on from a state, and not by replay."""

    def __init__(self, size: int = SIZE) -> None:
        super().__init__(size)
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(number, self.size, workers)[self.given :]:  # draws for no other sample
            self.given += 1
            yield sample(index)
        self.given = 0


DATASETS = {
    "map": Map,
    "stream": Stream,
    "sized stream": SizedStream,
    "stateful stream": StatefulStream,
}


class ShardedBatches:
    """A batch sampler of the user's own: each rank's share of a shuffled order."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(SIZE * self.world).tolist()[self.rank :: self.world]
        for start in range(0, SIZE, BATCH_SIZE):
            yield [index % SIZE for index in order[start : start + BATCH_SIZE]]


def loader(
    kind: str,
    dataset: Dataset[Any],
    workers: int,
    own: Any = torch.utils.data.DataLoader,
    **options: Any,
) -> Any:
    """A loader of one of `LOADERS`; map-style data is shuffled, unless a sampler is given."""
    options = {"batch_size": BATCH_SIZE, "num_workers": workers, **options}
    if "batch_sampler" in options:
        del options["batch_size"]
    elif not isinstance(dataset, IterableDataset) and "sampler" not in options:
        options.setdefault("shuffle", True)
    if kind == "torch":
        return own(dataset, **options)
    if kind == "torchdata":
        return StatefulDataLoader(dataset, **options)
    seed = {"seed": 3} if kind == "ours" else {}
    return picklable_loader.DataLoader(dataset, **seed, **options)


class Careful:
    """A loader of torch's or torchdata's, as a careful program of one's own reads it.

    Each epoch has the order of its number. Of an epoch that is resumed, torch's loader fetches the
    first batches again, and the program skips them; torchdata's goes on from its state.
    """

    def __init__(self, loader: Any, around: Any = iter) -> None:
        self.loader, self.around = loader, around
        self.epoch = self.step = 0

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self.loader.sampler, "set_epoch"):
            self.loader.sampler.set_epoch(self.epoch)
        if getattr(self.loader, "generator", None) is not None:
            self.loader.generator.manual_seed(self.epoch)
        for batch in islice(self.around(self.loader), 0 if self._has_state else self.step, None):
            self.step += 1
            yield batch
        self.epoch, self.step = self.epoch + 1, 0

    @property
    def _has_state(self) -> bool:
        return hasattr(self.loader, "state_dict")

    def state_dict(self) -> dict[str, Any]:
        loader = self.loader.state_dict() if self._has_state else None
        return {"epoch": self.epoch, "step": self.step, "loader": loader}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.step = state["epoch"], state["step"]
        if self._has_state:
            self.loader.load_state_dict(state["loader"])


def counting(
    kind: str, dataset: Dataset[Any], workers: int, around: Any = iter, **options: Any
) -> Any:
    """The same for a program of one's own: it has ``epoch`` and a state, whichever loader it is."""
    if kind.startswith("ours"):
        return loader(kind, dataset, workers, at_epoch_end="next", **options)
    if not isinstance(dataset, IterableDataset) and not options.keys() & _ORDERS:
        options["generator"] = torch.Generator()
    return Careful(loader(kind, dataset, workers, **options), around)


_ORDERS = {"sampler", "batch_sampler"}


def sharded(run: Run, kind: str, workers: int, of: str) -> Any:
    """One rank's loader, as `counting` makes it.

    Args:
        kind: the loader.
        of: the kind of its dataset, or "own sampler" or "DistributedSampler" of map-style data.
    """
    if of == "own sampler":
        sampler = ShardedBatches(run.rank, run.world)
        return counting(kind, Map(), workers, batch_sampler=sampler)
    if of == "DistributedSampler":
        of_all = Map(2 * SIZE)
        order = DistributedSampler(of_all, run.world, run.rank, seed=3)
        return counting(kind, of_all, workers, sampler=order)
    if not kind.startswith("ours"):  # each rank reads a stream of its own
        return counting(kind, DATASETS[of](), workers)
    dataset = DATASETS[of](2 * SIZE)
    options: dict[str, Any] = {"shard": "auto"}
    if isinstance(dataset, IterableDataset):
        options["num_streams"] = 4
        options["shard_tail"] = "pad" if hasattr(dataset, "__len__") else "uneven"
    return counting(kind, dataset, workers, **options)


def model(dropout: float = 0.0) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Dropout(dropout), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    )


def loss(net: torch.nn.Module, batch: Sample) -> torch.Tensor:
    return (net(batch["x"]) - batch["x"].sum(1, keepdim=True)).square().mean()
