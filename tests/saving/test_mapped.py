"""pickle_mapped=False: arrays and tensors over a file are saved by its name."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from picklable_loader import DataLoader, explain
from picklable_loader.errors import CannotLoadError, UsageError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell of files")

ROWS, COLUMNS = 2000, 100


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    np.random.rand(ROWS, COLUMNS).astype("float32").tofile(path)
    return path


class Rows(Dataset[Any]):
    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.scale = np.ones(3)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return float(self.rows[index].sum()) * self.scale[0]


def mapped(path: Path) -> Any:
    return np.memmap(path, dtype="float32", mode="r", shape=(ROWS, COLUMNS))


def by_torch(path: Path) -> Any:
    return torch.from_file(str(path), size=ROWS * COLUMNS).reshape(ROWS, COLUMNS)


def loaded(path: Path) -> Any:
    file = path.with_suffix(".pt")
    torch.save({"rows": torch.rand(ROWS, COLUMNS)}, file)
    return torch.load(file, mmap=True)["rows"]


KINDS = {
    "numpy": mapped,
    "numpy, a slice": lambda path: mapped(path)[100:1900:3, 5:50],
    "numpy, backwards": lambda path: mapped(path)[::-1],
    "numpy, transposed": lambda path: mapped(path).T,
    "numpy, as an array": lambda path: np.asarray(mapped(path))[7:],
    "torch.from_file": by_torch,
    "torch.from_file, a view": lambda path: by_torch(path)[10:, ::2],
    "torch.load": loaded,
    "torch.load, a view": lambda path: loaded(path)[3:500],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", ["auto", "pickle", "cloudpickle", "dill"])
@pytest.mark.parametrize("workers", [0, 1])
def test_data_in_a_file_is_saved_by_name(data: Path, kind: str, codec: Any, workers: int) -> None:
    rows = KINDS[kind](data)
    loader = DataLoader(
        Rows(rows), 3, shuffle=True, seed=1, num_workers=workers, codec=codec, pickle_mapped=False
    )
    it = iter(loader)
    next(it)
    saved = pickle.dumps(it)
    assert len(saved) < 10_000
    again = pickle.loads(saved)
    other = again.loader.dataset.rows
    assert other.shape == rows.shape and other.dtype == rows.dtype
    assert np.array_equal(np.asarray(other), np.asarray(rows))
    assert again.loader.sampler.data_source is again.loader.dataset
    assert [b.tolist() for b in again] == [b.tolist() for b in it]


def test_without_being_asked_the_data_goes_along(data: Path) -> None:
    saved = pickle.dumps(DataLoader(Rows(mapped(data))))
    assert len(saved) > ROWS * COLUMNS * 4
    data.unlink()
    assert pickle.loads(saved).dataset.rows.shape == (ROWS, COLUMNS)


def test_what_is_in_no_file_goes_along_in_any_case(data: Path) -> None:
    changed = mapped(data) + 1
    again = pickle.loads(pickle.dumps(DataLoader(Rows(changed), pickle_mapped=False)))
    assert np.array_equal(again.dataset.rows, changed)


def test_what_is_changed_after_loading_does_not_reach_the_file(data: Path) -> None:
    before = data.read_bytes()
    again = pickle.loads(pickle.dumps(DataLoader(Rows(mapped(data)), pickle_mapped=False)))
    again.dataset.rows[:] = 0
    del again
    assert data.read_bytes() == before


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_what_was_changed_in_memory_alone_goes_along(data: Path, kind: str) -> None:
    if kind == "numpy":
        rows: Any = np.memmap(data, dtype="float32", mode="c", shape=(ROWS, COLUMNS))
    else:
        rows = loaded(data)
    for touched in (False, True):
        if touched:
            rows[3, 4] = 77.0
        saved = pickle.dumps(DataLoader(Rows(rows), pickle_mapped=False))
        assert (len(saved) > ROWS * COLUMNS * 4) == touched
        again = pickle.loads(saved).dataset.rows
        assert np.array_equal(np.asarray(again), np.asarray(rows))


def test_what_was_written_to_the_file_is_in_the_file(data: Path) -> None:
    rows = np.memmap(data, dtype="float32", mode="r+", shape=(ROWS, COLUMNS))
    rows[5] = 3.0
    rows.flush()
    saved = pickle.dumps(DataLoader(Rows(rows), pickle_mapped=False))
    assert len(saved) < 10_000
    assert np.array_equal(pickle.loads(saved).dataset.rows, rows)


def test_a_file_that_was_removed_is_data_like_any_other(data: Path) -> None:
    rows = mapped(data)
    data.unlink()
    again = pickle.loads(pickle.dumps(DataLoader(Rows(rows), pickle_mapped=False)))
    assert np.array_equal(again.dataset.rows, rows)


@pytest.mark.parametrize("harm", ["gone", "shorter", "newer"])
def test_a_file_that_is_not_what_it_was_is_refused_by_name(data: Path, harm: str) -> None:
    saved = pickle.dumps(DataLoader(Rows(mapped(data)), pickle_mapped=False))
    if harm == "gone":
        data.unlink()
    elif harm == "shorter":
        os.truncate(data, 1000)
    else:
        now = data.stat()
        os.utime(data, ns=(now.st_atime_ns, now.st_mtime_ns + 1))
    with pytest.raises(CannotLoadError, match=r"data\.bin cannot be opened.*pickle_mapped=True"):
        pickle.loads(saved)


def test_where_the_system_does_not_tell_of_files_it_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "picklable_loader.saving.pickles.mapped_files._MAPS", str(tmp_path / "nothing")
    )
    with pytest.raises(UsageError, match="pickle_mapped=False needs"):
        pickle.dumps(DataLoader(Rows(mapped(data)), pickle_mapped=False))


def test_explain_tells_what_they_would_weigh(data: Path) -> None:
    assert explain(Rows(mapped(data))).bytes > ROWS * COLUMNS * 4
