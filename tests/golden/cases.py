"""The loaders whose saved states are kept for ever, and what they must go on to yield."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import (
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler
from zoo.samplers import (
    DrawsAsItGoes,
    Grouped,
    MySamplerAgain,
    OwnPythonGenerator,
    ShufflesInPlaceLazily,
    StatefulAndCounting,
    from_numpy,
    from_torch,
)

from picklable_loader import DataLoader, Interleave, ShuffleBuffer, current_seed

N = 10
FOLDER = Path(__file__).parent


def seed_and_indices(samples: list[Any]) -> Any:
    """A batch: the seed of its augmentation, and which samples it has."""
    return [current_seed(), samples]


class Generated(IterableDataset[int]):
    """Is replayed."""

    def __iter__(self) -> Iterator[int]:
        yield from range(2 * N)


class Counted(IterableDataset[int]):
    """Has a state."""

    def __init__(self, start: int = 0) -> None:
        self.start, self.at = start, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 2 * N:
            self.at += 1
            yield self.start + self.at
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "of": (self.start, {2 * N})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["of"] == (self.start, {2 * N})
        self.at = state["at"]


class CountedItems(Dataset[int]):
    """Map-style data with a state."""

    def __init__(self) -> None:
        self.given = 0

    def __len__(self) -> int:
        return 2 * N

    def __getitem__(self, index: int) -> int:
        self.given += 1
        return 100 * index + self.given

    def state_dict(self) -> int:
        return self.given

    def load_state_dict(self, state: int) -> None:
        self.given = state


def mixed() -> Interleave:
    return Interleave([Counted(), Counted(100)], weights=[1, 2], seed=3)


EACH = {"snapshot_every_n_steps": 1}


@dataclass(frozen=True)
class Golden:
    """One kept state."""

    name: str
    arguments: Callable[[], dict[str, Any]]
    #: batches that were delivered when it was saved; None: all of them, and StopIteration
    delivered: int | None = 2
    #: False: states like it are read, and are written in another way today
    written: bool = True

    def make(self) -> DataLoader[Any]:
        arguments = {"batch_size": 3, "collate_fn": seed_and_indices, **self.arguments()}
        if "batch_sampler" in arguments:
            del arguments["batch_size"]
        return DataLoader(arguments.pop("dataset", list(range(2 * N))), **arguments)

    def path(self, version: int) -> Path:
        """Where it is kept; states that hold tensors are not text."""
        suffix = "pt" if "MySampler" in self.name else "json"
        return FOLDER / f"format_{version}" / f"{self.name.replace(' ', '_')}.{suffix}"

    def __str__(self) -> str:
        return self.name


def generator() -> torch.Generator:
    made = torch.Generator()
    made.manual_seed(4)
    return made


GOLDEN = [
    Golden("sequential", dict),
    Golden("indexed", lambda: {"shuffle": "indexed", "seed": 5}),
    Golden("before the first", lambda: {"shuffle": True}, 0),
    Golden("after the end", lambda: {"shuffle": True}, None),
    Golden("shuffle", lambda: {"shuffle": True}),
    Golden("generator", lambda: {"shuffle": True, "generator": generator()}),
    Golden("seed", lambda: {"shuffle": True, "seed": 6}),
    Golden("seed after the end", lambda: {"shuffle": True, "seed": 6}, None),
    Golden("by sample", lambda: {"shuffle": True, "seed": 6, "seeding": "sample"}),
    Golden("by worker", lambda: {"shuffle": True, "seed": 6, "seeding": "worker"}),
    Golden(
        "persistent workers",
        lambda: {"seed": 6, "seeding": "worker", "num_workers": 2, "persistent_workers": True},
        None,
    ),
    Golden("drop_last", lambda: {"drop_last": True, "seed": 6}),
    # without `source_length`
    Golden(
        "replacement",
        lambda: {"sampler": RandomSampler(range(N), True, 40, generator())},
        12,
        written=False,
    ),
    Golden(
        "repeated", lambda: {"sampler": RandomSampler(range(N), num_samples=25)}, 6, written=False
    ),
    Golden(
        "replacement of a source",
        lambda: {"sampler": RandomSampler(range(N), True, 40, generator())},
        12,
    ),
    Golden("repeated source", lambda: {"sampler": RandomSampler(range(N), num_samples=25)}, 6),
    Golden("subset", lambda: {"sampler": SubsetRandomSampler(range(0, N, 2))}, 1),
    Golden("weighted", lambda: {"sampler": WeightedRandomSampler([1.0] * N, N)}),
    Golden("distributed", lambda: {"sampler": DistributedSampler(range(2 * N), 2, 1), "seed": 6}),
    Golden("draws from torch", lambda: {"sampler": DrawsAsItGoes(from_torch)}),
    Golden("draws from numpy", lambda: {"sampler": DrawsAsItGoes(from_numpy), "seed": 6}),
    Golden("own generator", lambda: {"sampler": OwnPythonGenerator()}),
    Golden("shuffles in place", lambda: {"sampler": ShufflesInPlaceLazily()}),
    # without `between`: its sampler is as it was after iter(), so that a second iter() counts again
    Golden("stateful iterator", lambda: {"sampler": StatefulAndCounting()}, written=False),
    Golden("stateful iterator that was opened", lambda: {"sampler": StatefulAndCounting()}),
    Golden("MySampler", lambda: {"sampler": MySamplerAgain(N, 1, 10)}),
    Golden("custom batches", lambda: {"batch_sampler": Grouped()}),
    Golden("stream", lambda: {"dataset": Counted(), **EACH}),
    Golden("stream after the end", lambda: {"dataset": Counted(), **EACH}, None),
    Golden("streams", lambda: {"dataset": Counted(), "num_streams": 2, **EACH}, 3),
    Golden(
        "stream by worker", lambda: {"dataset": Counted(), **EACH, "seed": 6, "seeding": "worker"}
    ),
    Golden("replayed stream", lambda: {"dataset": Generated(), "seed": 6}),
    # A resume warns, which is an error here, if the checksum of a batch is made in another way.
    Golden("stream with a checksum", lambda: {"dataset": Generated(), "seed": 6}),
    Golden(
        "map-style with a state",
        lambda: {
            "dataset": CountedItems(),
            "shuffle": True,
            "seed": 6,
            "snapshot_every_n_steps": 2,
        },
        3,
    ),
    Golden("buffer", lambda: {"dataset": ShuffleBuffer(Counted(), 4), "seed": 6, **EACH}),
    Golden(
        "buffer of numbers",
        lambda: {"dataset": ShuffleBuffer(Counted(), 4, state="rebuild"), "seed": 6, **EACH},
    ),
    Golden("interleaved", lambda: {"dataset": mixed(), "seed": 6, **EACH}),
    Golden(
        "buffer of interleaved",
        lambda: {"dataset": ShuffleBuffer(mixed(), 4), "seed": 6, **EACH},
    ),
]


# --- iterators that were pickled -----------------------------------------------------------------


@dataclass(frozen=True)
class GoldenPickle:
    """One kept pickle of an iterator, two batches into its epoch."""

    name: str
    arguments: Callable[[], dict[str, Any]]
    dumps: Callable[[Any], bytes] = lambda iterator: pickle.dumps(iterator, 5)
    loads: Callable[[bytes], Any] = pickle.loads
    #: it holds code, which only the Python that has written it can read
    holds_code: bool = False

    def make(self) -> DataLoader[Any]:
        arguments = {"seed": 1, "collate_fn": seed_and_indices, **EACH, **self.arguments()}
        return DataLoader(arguments.pop("dataset", list(range(2 * N))), 3, **arguments)

    @property
    def path(self) -> Path:
        return PICKLES / f"{self.name}.pickle"

    def __str__(self) -> str:
        return self.name


#: where they are kept
PICKLES = FOLDER / "pickles"


def torch_saved(iterator: Any) -> bytes:
    file = io.BytesIO()
    torch.save({"iterator": iterator}, file)
    return file.getvalue()


def torch_loaded(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)["iterator"]


def attached(data: bytes) -> Any:
    iterator = pickle.loads(data)
    iterator.attach(list(range(2 * N)))
    return iterator


def by_lambda() -> dict[str, Any]:
    return {"shuffle": True, "collate_fn": lambda samples: seed_and_indices(samples)}


PICKLED = [
    GoldenPickle("plain", lambda: {"shuffle": True}),
    GoldenPickle("own_sampler", lambda: {"sampler": OwnPythonGenerator(), "num_workers": 1}),
    GoldenPickle("torch_save", lambda: {"shuffle": True}, torch_saved, torch_loaded),
    GoldenPickle("cloudpickle", by_lambda, holds_code=True),
    GoldenPickle("dill", lambda: {**by_lambda(), "codec": "dill"}, holds_code=True),
    GoldenPickle("without_dataset", lambda: {"pickle_dataset": False}, loads=attached),
    GoldenPickle("stream", lambda: {"dataset": Counted()}),
    GoldenPickle("replayed_stream", lambda: {"dataset": Generated(), "num_workers": 1}),
    GoldenPickle("ShuffleBuffer", lambda: {"dataset": ShuffleBuffer(Counted(), 4, seed=3)}),
    GoldenPickle("Interleave", lambda: {"dataset": mixed()}),
]
