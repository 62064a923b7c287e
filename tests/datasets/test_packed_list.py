"""PackedList: a list of Python objects that forked workers read without copying its memory."""

from __future__ import annotations

import os
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws.observe import lists
from torch.utils.data import ConcatDataset, Dataset, Subset

from picklable_loader import DataLoader, PackedList
from picklable_loader.datasets import packed_list
from picklable_loader.errors import LoaderWarning

ITEMS = st.lists(
    st.none() | st.integers() | st.text() | st.binary() | st.tuples(st.text(), st.floats(width=16))
)


@given(ITEMS, st.data())
def test_it_reads_like_the_list_that_it_was_made_of(items: list[Any], data: st.DataObject) -> None:
    packed = PackedList(iter(items))
    assert len(packed) == len(items) and repr(list(packed)) == repr(items)
    assert repr([packed[at] for at in range(-len(items), 0)]) == repr(items)
    part = data.draw(st.slices(len(items)))
    assert repr(packed[part]) == repr(items[part])
    assert repr(list(pickle.loads(pickle.dumps(packed)))) == repr(items)


def test_it_is_a_sequence_and_a_dataset_of_any_objects() -> None:
    items = [{"name": "a", "at": [1, 2]}, torch.arange(3), np.int64(7), ("x", None)]
    packed = PackedList(items)
    assert packed[0] == items[0] and torch.equal(packed[1], items[1]) and packed[np.int64(2)] == 7
    assert ("x", None) in packed[3:] and PackedList("abc").index("c") == 2
    assert lists(DataLoader(PackedList(range(10)), 4, num_workers=2)) == lists(
        DataLoader(range(10), 4)
    )
    assert re.fullmatch(r"PackedList\(4 items, [\d,]+ bytes\)", repr(packed))


@pytest.mark.parametrize("bad, error", [(3, IndexError), (-4, IndexError), ("0", TypeError)])
def test_an_index_that_is_none_is_an_error(bad: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        PackedList("abc")[bad]


def test_an_item_that_is_changed_is_not_changed_in_it() -> None:
    packed = PackedList([[1]])
    packed[0].append(2)
    assert packed[0] == [1]
    with pytest.raises(TypeError):
        packed[0] = [3]  # type: ignore[index]


# --- memory --------------------------------------------------------------------------------------

COUNT = 200_000


class Named(Dataset[int]):
    """Reads all of its names with each sample, and says how much memory only this process has."""

    def __init__(self, names: Any) -> None:
        self.names = names

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        before = _private_bytes()
        for name in self.names:
            assert name
        return _private_bytes() - before


def _private_bytes() -> int:
    text = Path(f"/proc/{os.getpid()}/smaps_rollup").read_text()
    return sum(int(kb) << 10 for kb in re.findall(r"Private_Dirty: +(\d+) kB", text))


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="Linux says it")
def test_a_forked_worker_copies_a_list_that_it_reads_and_no_packed_list() -> None:
    names = [f"picture number {at}.jpeg" for at in range(COUNT)]

    def grown(data: Any) -> int:
        loader = DataLoader(Named(data), 1, num_workers=1, multiprocessing_context="fork")
        return int(next(iter(loader)))

    assert grown(names) > 60 * COUNT  # each name has its page copied
    assert grown(PackedList(names)) < 6 * COUNT


# --- the loader says when it sees a large list ---------------------------------------------------


@pytest.mark.parametrize("where", ["list", "dict", "within", "a split", "parts"])
def test_a_large_list_is_named_before_workers_copy_it(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_list, "LARGE", 50)
    data: Any = Named(dict.fromkeys(range(1, 51)) if where == "dict" else ["name"] * 50)
    path = "dataset.names"
    if where == "within":
        data, path = Subset(data, [0, 1]), "dataset.dataset.names"
    if where == "a split":
        data, path = Named({"a": ["name"] * 50}), r"dataset.names\['a'\]"
    if where == "parts":
        data, path = ConcatDataset([Named(["name"]), data]), r"dataset.datasets\[1\].names"
    loader = DataLoader(data, num_workers=1, multiprocessing_context="fork")
    with pytest.warns(LoaderWarning, match=f"{path} has 50 Python objects.*PackedList"):
        lists(loader)


@pytest.mark.parametrize("why", ["few", "packed", "an array", "no workers", "spawned workers"])
def test_others_are_not(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_list, "LARGE", 50)
    names: Any = ["name"] * (49 if why == "few" else 50)
    names = {"packed": PackedList(names), "an array": np.zeros(50) + 1}.get(why, names)
    method = "spawn" if why == "spawned workers" else "fork"
    workers = {"num_workers": 1, "multiprocessing_context": method} if why != "no workers" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(lists(DataLoader(Named(names), **workers))) == 2
