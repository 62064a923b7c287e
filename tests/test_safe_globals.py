"""Iterators through ``torch.load(weights_only=True)``: exact, and nobody's class is called."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from laws.cases import OPTIONS, SEEKABLE, Case
from laws.datasets import Noisy, NoisyStream
from laws.observe import expected_warnings, seed_everything, seen
from laws.streams import ByClass, StatefulDataset, StatefulIterator
from torch.utils.data import IterableDataset, TensorDataset

from picklable_loader import DataLoader, ShuffleBuffer, load, safe_globals, save
from picklable_loader.errors import NeedsCodeError
from picklable_loader.options import Options
from picklable_loader.values.safe import _code_in

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])
CASES = [case for case in [*SEEKABLE, *OPTIONS] if "custom" not in case.name]
CASES = [case for case in CASES if not case.name.startswith(("seed, ", "by worker, custom"))]

#: what ran while something was built, and should not have
ran: list[str] = []


def note(what: str) -> None:
    ran.append(what)


class Loud(Noisy):
    """Says when anything of it is called."""

    def __init__(self, size: int = 10) -> None:
        ran.append(f"__init__({size})")
        super().__init__(size)


class WithSetstate(Noisy):
    def __setstate__(self, state: Any) -> None:
        ran.append("__setstate__")


class WithReduce(Noisy):
    def __reduce__(self) -> Any:
        return WithReduce, ()


class Arrays(Noisy):
    """Holds what datasets hold."""

    def __init__(self) -> None:
        super().__init__()
        self.table = np.arange(6, dtype=np.int16).reshape(2, 3)
        self.number = np.float32(2)
        self.parts = {"a": [torch.arange(3), frozenset({1}), range(4)], ("b", 1): None}

    def collate(self, samples: Any) -> Any:
        return torch.stack(samples)


class Subclass(DataLoader[Any]):
    pass


class OwnState(DataLoader[Any]):
    def __setstate__(self, kept: Any) -> None:
        ran.append("its own")


def double(samples: list[torch.Tensor]) -> torch.Tensor:
    return 2 * torch.stack(samples)


def after(loader: DataLoader[Any], steps: int = 2) -> Any:
    seed_everything(1)
    iterator = iter(loader)
    assert len(seen(iterator, steps)) == steps
    return iterator


def saved(thing: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return file


def safely(file: io.BytesIO, listed: Any) -> Any:
    with torch.serialization.safe_globals(listed):
        return torch.load(file, weights_only=True)


def goes_on(loader: DataLoader[Any], like: DataLoader[Any], **more: Any) -> None:
    """It does after the safe door, where a loader of the same making has said what to list."""
    iterator = after(loader)
    file = saved({"it": iterator, "loss": 0.5})
    expected = seen(iterator)
    listed = safe_globals(like, **more)
    seed_everything(99)
    found = safely(file, listed)["it"]
    assert type(found) is type(iterator) and type(found.loader) is type(loader)
    with expected_warnings():
        assert seen(found) == expected


# --- what can be built ---------------------------------------------------------------------------


@WORKERS
@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_iterator_goes_on(case: Case, num_workers: int) -> None:
    goes_on(case.make(num_workers), case.make(num_workers))


@WORKERS
@pytest.mark.parametrize("kind", [StatefulIterator, StatefulDataset, NoisyStream])
def test_streams_go_on(kind: Any, num_workers: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(
            kind(), batch_size=2, num_workers=num_workers, seed=2, snapshot_every_n_steps=1
        )

    goes_on(make(), make())


def test_what_a_dataset_holds_comes_back() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Arrays(), batch_size=3)

    iterator = after(make())
    found = safely(saved(iterator), safe_globals(make())).loader.dataset
    assert np.array_equal(found.table, Arrays().table) and found.table.dtype == np.int16
    assert found.number == np.float32(2) and type(found.number) is np.float32
    assert found.parts["a"][1:] == [frozenset({1}), range(4)]
    goes_on(make(), make())


def test_a_dataset_of_tensors_goes_on() -> None:
    loader: Any = DataLoader(TensorDataset(torch.arange(10)), batch_size=3, shuffle=True, seed=2)
    iterator = iter(loader)
    next(iterator)
    found = safely(saved(iterator), safe_globals(iterator))
    assert [b.tolist() for (b,) in found] == [b.tolist() for (b,) in iterator]


def test_a_wrapped_dataset_and_a_class_derived_from_ours_go_on() -> None:
    def make() -> DataLoader[Any]:
        return Subclass(ShuffleBuffer(StatefulIterator(), size=4, seed=1), batch_size=3)

    goes_on(make(), make())


def test_the_list_may_be_made_of_the_iterator_itself() -> None:
    iterator = after(DataLoader(Noisy(), batch_size=2))
    assert seen(safely(saved(iterator), safe_globals(iterator))) == seen(iterator)


def test_without_the_list_nothing_is_built() -> None:
    with pytest.raises(pickle.UnpicklingError, match="Unsupported global"):
        torch.load(saved(after(DataLoader(Noisy()))), weights_only=True)


def test_a_file_of_ours_is_read_in_the_same_way(tmp_path: Path) -> None:
    iterator = after(DataLoader(Noisy(), batch_size=3))
    save({"it": iterator}, tmp_path / "file")
    with torch.serialization.safe_globals(safe_globals(iterator)):
        found = load(tmp_path / "file", weights_only=True)["it"]
    assert seen(found) == seen(iterator)


def test_an_error_of_ours_comes_out_of_a_file_of_ours(tmp_path: Path) -> None:
    listed = safe_globals(DataLoader(ByClass(), batch_size=3))
    iterator = after(DataLoader(ByClass(), batch_size=3, snapshot_every_n_steps=1))
    save({"it": iterator}, tmp_path / "file")
    with torch.serialization.safe_globals(listed), pytest.raises(NeedsCodeError, match="stream 0"):
        load(tmp_path / "file", weights_only=True)


class Counting(IterableDataset[torch.Tensor]):
    """A generator that keeps its place in its dataset."""

    def __init__(self) -> None:
        self.at, self.seen = 0, {"a": [0]}

    def __iter__(self) -> Iterator[torch.Tensor]:
        for self.at in range(self.at, 9):
            self.seen["a"].append(self.at)
            yield torch.tensor([self.at, len(self.seen["a"])])


def test_a_replay_begins_with_what_the_dataset_was() -> None:
    loader = DataLoader(Counting(), batch_size=2)
    goes_on(loader, DataLoader(Counting(), batch_size=2))


def test_what_a_replay_begins_with_is_looked_through_as_well() -> None:
    dataset: Any = Counting()
    dataset.seen = WithReduce()
    iterator = iter(DataLoader(dataset, batch_size=2))
    dataset.seen = {"a": [0]}
    next(iterator)
    with pytest.raises(NeedsCodeError, match="stream 0(.|\n)*state holds .*WithReduce"):
        safe_globals(iterator)


def test_a_function_that_is_trusted_is_read() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Noisy(), batch_size=3, collate_fn=double)

    goes_on(make(), make(), trusted=[double])


# --- what needs code -----------------------------------------------------------------------------


class Wrapping(Noisy):
    """Hands on whatever it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Noisy()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


NEEDY = {
    "loader.dataset .*Wrapping.*__getattr__": lambda: DataLoader(Wrapping()),
    "loader.collate_fn .*Arrays.collate(.|\\n)*getattr": lambda: DataLoader(
        Noisy(), collate_fn=Arrays().collate
    ),
    "loader.collate_fn .*stack(.|\\n)*getattr": lambda: DataLoader(
        Noisy(), collate_fn=torch.stack  # type: ignore[arg-type]
    ),
    "loader.collate_fn .*double.*function": lambda: DataLoader(Noisy(), collate_fn=double),
    "loader.worker_init_fn .*print": lambda: DataLoader(Noisy(), worker_init_fn=print),
    "loader.dataset .*WithSetstate.*__setstate__": lambda: DataLoader(WithSetstate()),
    "loader.dataset .*WithReduce.*__reduce__": lambda: DataLoader(WithReduce()),
    r"loader.dataset\[1\] .*WithReduce": lambda: DataLoader([Noisy(), WithReduce()]),
    "loader .*OwnState.*__setstate__": lambda: OwnState(Noisy()),
    "LONG4": lambda: DataLoader([2**3000]),
    "loader.collate_fn .*cloudpickle carries it": lambda: DataLoader(
        Noisy(), collate_fn=lambda s: s
    ),
    "without its dataset(.|\\n)*state_dict": lambda: DataLoader(Noisy(), pickle_dataset=False),
    "the loader's class .*cloudpickle carries it": lambda: local_class()(Noisy()),
}


def local_class() -> Any:
    class Local(DataLoader[Any]):
        pass

    return Local


@pytest.mark.parametrize("text", NEEDY)
def test_a_part_that_needs_code_is_named_with_its_path_and_the_way_out(text: str) -> None:
    loader: Any = NEEDY[text]()
    with pytest.raises(NeedsCodeError, match=text) as raised:
        safe_globals(loader)
    assert "cannot be read without running code" in str(raised.value)


def test_a_stream_whose_iterator_is_pickled_is_named() -> None:
    iterator = after(DataLoader(ByClass(), batch_size=3, snapshot_every_n_steps=1))
    with pytest.raises(NeedsCodeError, match="stream 0(.|\n)*was pickled as a whole"):
        safe_globals(iterator)


# --- files that say something else ---------------------------------------------------------------


class Says:
    """Pickles as a call."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


def test_no_class_that_is_listed_can_be_called_by_a_file() -> None:
    listed = safe_globals(DataLoader(Loud(), batch_size=2))
    ran.clear()
    for thing in (Loud, DataLoader):
        with pytest.raises(pickle.UnpicklingError, match="built from nothing|to be called"):
            safely(saved(Says(thing, 2**40)), listed)
    assert ran == []


def test_no_file_can_say_the_name_of_a_class_itself() -> None:
    listed = safe_globals(DataLoader(Loud(), batch_size=2))
    names = [name for thing, name in listed if thing is Loud]
    assert names == [f"\n{Loud.__module__}.Loud"]


@pytest.mark.parametrize("where", ["state", "disguised", "carried", "resume"])
def test_a_mark_that_would_run_a_command_is_not_opened(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = pickle.dumps({"iterator": Says(note, "the mark")})
    loader: Any = DataLoader(StatefulIterator(), batch_size=2, snapshot_every_n_steps=1)
    listed = safe_globals(loader)
    iterator = after(loader)
    put = {"given": 2, "ended": False, "marked": 2, "mark": hostile, "since": []}
    if where == "state":
        honest = iterator.__getstate__()
        changed = {**honest, "state": {**honest["state"], "streams": [put]}}
        monkeypatch.setattr(type(iterator), "__getstate__", lambda self: changed)
    elif where == "disguised":  # as a loader's own, in which no state is looked for
        honest = {**iterator.__getstate__(), "_pl": loader.__getstate__()["_pl"]}
        changed = {**honest, "state": {**honest["state"], "streams": [put]}}
        monkeypatch.setattr(type(iterator), "__getstate__", lambda self: changed)
    elif where == "carried":
        loader._pl.carried = {0: hostile}
    else:
        loader._pl.resume = {**iterator.state_dict(), "streams": [put]}
    file = saved(iterator)
    monkeypatch.undo()
    ran.clear()
    with pytest.raises(NeedsCodeError, match="stream 0(.|\n)*state holds .*note|the field '_pl'"):
        safely(file, listed)
    assert ran == []


@pytest.mark.parametrize("where", ["iterator", "loader"])
def test_a_field_that_is_not_known_is_not_opened(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader: Any = DataLoader(Noisy())
    iterator, listed = after(loader), safe_globals(loader)
    owner = {"iterator": type(iterator), "loader": type(loader._pl)}[where]
    name = {"iterator": "__getstate__", "loader": "saved"}[where]
    honest = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda self: {**honest(self), "embedded": b"code"})
    file = saved(iterator)
    with pytest.raises(NeedsCodeError, match="the field 'embedded'"):
        safe_globals(iterator)
    monkeypatch.undo()
    with pytest.raises(NeedsCodeError, match="the field 'embedded'"):
        safely(file, listed)


def test_a_class_of_ours_is_listed_only_if_it_is_known_to_hold_values() -> None:
    class Opens:
        pass

    Opens.__module__, Opens.__qualname__ = "picklable_loader.saving.codecs", "Opens"
    assert "class of this package" in str(_code_in(Opens))
    assert _code_in(Options) is None


def test_an_iterator_without_a_loader_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = after(DataLoader(Noisy()))
    listed = safe_globals(iterator)
    monkeypatch.setattr(
        type(iterator), "__getstate__", lambda self: {"loader": {}, "state": {"order": None}}
    )
    file = saved(iterator)
    with pytest.raises(pickle.UnpicklingError, match="belongs to a loader"):
        safely(file, listed)


@pytest.fixture(autouse=True)
def nothing_stays_listed() -> Iterator[None]:
    before = torch.serialization.get_safe_globals()
    yield
    assert set(torch.serialization.get_safe_globals()) == set(before)


class Hashed:
    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        raise AssertionError("nobody is to call this")


def test_a_class_with_a_hash_of_its_own_needs_code() -> None:
    assert _code_in(Hashed) == "a class with __hash__"
