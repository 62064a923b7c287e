"""explain: what a pickle is made of, and what of it cannot be saved."""

from __future__ import annotations

import pickle
import socket
import sqlite3
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from picklable_loader import DataLoader, explain
from picklable_loader.errors import CannotSaveError
from picklable_loader.saving.pickles.explain import Part, blame


class Samples(Dataset[Any]):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return index


def found(whole: Part, path: str) -> Part:
    [part] = [part for part in whole if part.path == path]
    return part


def test_every_part_is_there_with_its_path_kind_and_weight() -> None:
    readers = [{"rows": np.zeros(1000)}, {"rows": np.zeros(2000)}]
    dataset = Samples(data=torch.zeros(500), readers=readers, pair=(1, [2, 3]))
    whole = explain(iter(DataLoader(dataset, 2)))
    rows = found(whole, "loader.dataset.readers[1]['rows']")
    assert rows.kind == "ndarray" and 16_000 <= rows.bytes < 16_500
    assert found(whole, "loader.dataset.readers").bytes > 24_000
    assert found(whole, "loader.dataset.data").kind == "Tensor"
    assert found(whole, "loader.dataset.pair[1]").kind == "list"
    assert found(whole, "state['rng']").bytes > 0
    assert whole.bytes >= sum(part.bytes for part in whole.parts) > 0
    assert whole.problems == []


def test_the_weight_is_that_of_the_pickle() -> None:
    dataset = Samples(data=torch.zeros(5000), names=[f"file-{n}" for n in range(3000)])
    for it in (iter(DataLoader(dataset, 2)), iter(DataLoader(dataset, 2, shuffle=True, seed=1))):
        real, told = len(pickle.dumps(it)), explain(it).bytes
        assert 0.9 * real < told < 1.1 * real


def test_what_stands_in_several_places_is_counted_once() -> None:
    data = torch.zeros(100_000)
    whole = explain(Samples(one=data, same=data, view=data[10:20], array=np.zeros(3)))
    assert whole.bytes < 1.1 * data.nbytes
    # Pickle takes all of a storage, however little of it a view shows.
    assert explain(Samples(view=data[10:20])).bytes > data.nbytes


def test_what_a_codec_carries_is_marked() -> None:
    big = torch.zeros(10_000)
    dataset = Samples(transform=lambda value: value + big.sum())
    whole = explain(DataLoader(dataset, collate_fn=lambda samples: samples))
    part = found(whole, "loader.dataset.transform")
    assert part.codec == "cloudpickle" and part.bytes > big.nbytes
    assert found(whole, "loader.collate_fn").codec == "cloudpickle"
    assert found(explain(Samples(lock=threading.Lock())), "obj.lock").codec == "cloudpickle"


def test_a_closure_over_its_owner_weighs_no_more_than_itself() -> None:
    dataset = Samples(data=torch.zeros(10_000))
    dataset.transform = lambda value: value + dataset.data.sum()  # type: ignore[attr-defined]
    assert explain(dataset).bytes < 1.2 * dataset.data.nbytes  # type: ignore[attr-defined]


def test_everything_that_cannot_be_saved_is_named_at_once() -> None:
    with socket.socket() as line:
        dataset = Samples(line=line, rows=(n for n in range(3)), fine=[1], deep={"b": [line]})
        whole = explain(DataLoader(dataset))
        problems = {part.path: part.problem or "" for part in whole.problems}
        assert set(problems) == {"loader.dataset.line", "loader.dataset.rows"}
        assert "worker_init_fn" in problems["loader.dataset.line"]
        assert "generator" in problems["loader.dataset.rows"]
        text = str(whole)
    assert "! is a socket.socket" in text and "loader.dataset.rows (generator)" in text


@pytest.mark.parametrize("of", [lambda loader: loader, iter])
def test_a_loader_that_only_pickle_may_write_has_the_problems_of_pickle(of: Any) -> None:
    data = [lambda: 0]
    assert explain(of(DataLoader(data))).problems == []
    refused = of(DataLoader(data, codec="pickle"))
    assert [part.path.partition(".")[2] for part in explain(refused).problems] == ["dataset[0]"]
    with pytest.raises(CannotSaveError, match=r"dataset\[0\]"):
        pickle.dumps(refused)


def test_the_text_shows_what_weighs_most_first_and_nothing_that_is_negligible() -> None:
    dataset = Samples(small=[1], large=np.zeros(50_000), middle=np.zeros(20_000))
    rows = str(explain(dataset)).splitlines()
    assert "obj.large" in rows[1] and "400 kB" in rows[1]
    assert "obj.middle" in rows[2]
    assert not any("small" in row for row in rows)


def test_nothing_is_changed_and_nothing_is_started() -> None:
    it = iter(DataLoader(Samples(lock=threading.Lock()), 2, shuffle=True, seed=3))
    next(it)
    before = it.state_dict()
    explain(it)
    assert it.state_dict() == before
    fresh = pickle.loads(pickle.dumps(it))
    explain(fresh)
    assert fresh._position.run is None


def test_what_is_nested_too_deeply_is_a_problem_and_no_crash() -> None:
    nest: list[Any] = []
    for _ in range(100_000):
        nest = [nest]
    [problem] = explain(nest).problems
    assert "nested too deeply" in (problem.problem or "")
    while nest:  # to free it at once would be as deep
        nest = nest.pop()


class Refuses:
    """Fails to be pickled with something that is nobody's attribute."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("not today: come back")


def test_an_objects_own_refusal_is_told() -> None:
    error = blame(Samples(part=[Refuses()]), "loader.dataset")
    assert isinstance(error, CannotSaveError)
    assert error.what == "loader.dataset.part[0]"
    assert "not today" in error.reason and "__getstate__" in error.advice
    assert "fix its __reduce_ex__" in error.advice


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, torch.zeros(2), len])
def test_anything_can_be_explained(value: Any) -> None:
    whole = explain(value)
    assert whole.problems == [] and str(whole)


OPEN = sqlite3.connect(":memory:")


def uses_a_global() -> Any:
    return lambda batch: (batch, OPEN)


def uses_a_default() -> Any:
    return lambda batch, held=OPEN: batch


def uses_a_keyword() -> Any:
    return lambda batch, *, held=OPEN: batch


def uses_what_uses_it() -> Any:
    inner = uses_a_global()
    return lambda batch: inner(batch)


def is_a_method() -> Any:
    class Local:
        def use(self, batch: Any) -> Any:
            return OPEN

    return Local().use


def stands_in_a_class() -> Any:
    class Local:
        held = OPEN

        def __call__(self, batch: Any) -> Any:
            return batch

    return Local()


IN_CODE = {
    uses_a_global: ".__globals__['OPEN']",
    uses_a_default: ".__defaults__[0]",
    uses_a_keyword: ".__kwdefaults__['held']",
    uses_what_uses_it: ".__closure__['inner'].__globals__['OPEN']",
    is_a_method: ".use.__globals__['OPEN']",
    stands_in_a_class: ".held",
}


@pytest.mark.parametrize("make", IN_CODE, ids=lambda make: make.__name__)
def test_what_code_refers_to_is_named_as_well(make: Any) -> None:
    with pytest.raises(CannotSaveError, match="sqlite3.Connection") as raised:
        pickle.dumps(DataLoader(range(3), collate_fn=make()))
    assert raised.value.what.startswith("loader.collate_fn")
    assert raised.value.what.endswith(IN_CODE[make])


_IN_MAIN = """
import pickle, sqlite3
from picklable_loader import DataLoader

OPEN = sqlite3.connect(":memory:")

def helper(batch):
    return OPEN

def collate(batch):
    return helper(batch)

class Samples(list):
    held = OPEN

for more in {"collate_fn": collate}, {"dataset": Samples("ab")}:
    try:
        pickle.dumps(DataLoader(**{"dataset": range(3), "codec": "cloudpickle", **more}))
    except Exception as error:
        print(error.what)
"""


def test_so_is_what_code_of_main_refers_to_when_it_goes_by_value() -> None:
    command = [sys.executable, "-c", _IN_MAIN]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split() == [
        "loader.collate_fn.__globals__['helper'].__globals__['OPEN']",
        "loader.dataset.held",
    ]
