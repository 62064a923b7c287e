"""Much of everything: workers, samples, loaders that are left, deaths; memory and descriptors."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from picklable_loader import DataLoader
from picklable_loader.errors import RestartWarning

#: loaders in a row; the issue's figure is reached with LOADERS=1000
LOADERS = int(os.environ.get("LOADERS", "60"))


class Indices(Dataset[torch.Tensor]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def memory_kb() -> int:
    """Memory that this process has touched, without the files that it maps.

    Not its share (Pss): that of a page grows when a worker that has it, too, ends or writes to it.
    """
    rows = Path("/proc/self/status").read_text().splitlines()
    figures = {name: rest.split() for name, _, rest in (row.partition(":") for row in rows)}
    return int(figures["RssAnon"][0]) + int(figures["RssShmem"][0])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("transport", ["arena", "portable"])
def test_sixty_four_workers_share_two_cores(transport: Any) -> None:
    loader = DataLoader(Indices(2000), batch_size=4, num_workers=64, transport=transport)
    with iter(loader) as iterator:
        found = [batch.tolist() for batch in itertools.islice(iterator, 250)]
        assert len(multiprocessing.active_children()) == 64
        found += [batch.tolist() for batch in pickle.loads(pickle.dumps(iterator))]
    assert found == [list(range(at, at + 4)) for at in range(0, 2000, 4)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_of_a_billion_samples_costs_what_a_small_one_does(workers: int) -> None:
    gc.collect()
    before = memory_kb()
    loader = DataLoader(Indices(10**9), batch_size=8, num_workers=workers)
    with iter(loader) as iterator:
        assert iterator.skip(10**8) == 10**8
        assert next(iterator)[0] == 8 * 10**8
        pickled = pickle.dumps(iterator)
        assert len(iterator) == 125_000_000
    assert len(pickled) < 6000
    with pickle.loads(pickled) as again:
        assert next(again)[0] == 8 * 10**8 + 8
    assert memory_kb() - before < 20_000


@pytest.mark.parametrize("transport", ["arena", "portable"])
def test_loaders_that_are_opened_and_abandoned_leave_nothing(transport: Any) -> None:
    seen = []
    for number in range(LOADERS):
        iterator = iter(DataLoader(Indices(100), num_workers=1, transport=transport))
        if number % 2:
            next(iterator)
        del iterator
        if number % 10 == 9:
            gc.collect()
            seen.append((memory_kb(), descriptors(), len(multiprocessing.active_children())))
    assert len({counts[1:] for counts in seen[1:]}) == 1, seen
    assert seen[-1][0] <= seen[1][0] + 4096, seen


class Dies(Indices):
    """Every tenth sample ends its worker, the first time that it is read."""

    def __init__(self, length: int, folder: Path) -> None:
        super().__init__(length)
        self.folder = folder

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 10 == 0:
            try:
                (self.folder / str(index)).touch(exist_ok=False)
            except FileExistsError:
                return super().__getitem__(index)
            os._exit(1)
        return super().__getitem__(index)


@pytest.mark.parametrize("transport", ["arena", "portable"])
def test_a_hundred_deaths_leave_no_more_than_one(transport: Any, tmp_path: Path) -> None:
    loader = DataLoader(Dies(1000, tmp_path), None, num_workers=2, transport=transport)
    seen = []
    with pytest.warns(RestartWarning) as caught, iter(loader) as iterator:
        for index, sample in enumerate(iterator):
            assert sample == index
            if index % 100 == 50:
                seen.append((memory_kb(), descriptors()))
    assert len(caught) == 100
    assert len({count for _, count in seen}) == 1, seen
    assert min(memory for memory, _ in seen[5:]) <= seen[0][0] + 4096, seen
