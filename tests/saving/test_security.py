"""Hostile files: nothing runs, nothing grows, and the error has a name (docs/security.md)."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import seen
from torch.utils.data import IterableDataset
from zoo.datasets import Noisy
from zoo.hostile import bounded, sealed, torch_file, zipped
from zoo.streams import StatefulIterator, share

from picklable_loader import DataLoader, from_json, load, save, to_json
from picklable_loader.__main__ import main
from picklable_loader.errors import (
    CannotSaveError,
    DamagedStateError,
    LoaderError,
    StateError,
    UsageError,
)

HUGE = 2**40

#: what a file had run
ran: list[str] = []


def note(what: str) -> str:
    ran.append(what)
    return what


class Command:
    """Pickles as a call of ``note``: as a command would."""

    def __reduce__(self) -> Any:
        return note, ("a file",)


@pytest.fixture(autouse=True)
def nothing_ran() -> Any:
    ran.clear()
    yield
    assert ran == []


def test_the_command_of_these_tests_does_run_where_pickle_reads_it() -> None:
    pickle.loads(pickle.dumps(Command()))
    assert ran == ["a file"]
    ran.clear()


def make() -> DataLoader[Any]:
    return DataLoader(Noisy(), batch_size=3, shuffle=True, seed=7)


def make_stream() -> DataLoader[Any]:
    return DataLoader(StatefulIterator(), batch_size=3, snapshot_every_n_steps=1)


def state_of(loader: DataLoader[Any], steps: int = 2) -> dict[str, Any]:
    iterator = iter(loader)
    assert len(seen(iterator, steps)) == steps
    return iterator.state_dict()


def calling(name: str, argument: bytes) -> bytes:
    """A pickle that calls a global with one argument."""
    return b"\x80\x02c" + name.replace(" ", "\n").encode() + b"\n" + argument + b"\x85R."


# --- files ---------------------------------------------------------------------------------------

LONG = b"\x8a\x06" + HUGE.to_bytes(6, "little")  # the number, as pickle writes it

BODIES: dict[str, Callable[[], bytes]] = {
    "no archive": lambda: pickle.dumps(Command()),
    "torch's old format": lambda: _old_format(Command()),
    "nothing": lambda: b"",
    "a part that is compressed": lambda: zipped(
        {"data.pkl": b"\x80\x02N.", "data/0": bytes(2**24)}, zipfile.ZIP_DEFLATED
    ),
    "a part that claims to be huge": lambda: _claiming(HUGE),
    "parts that share bytes": lambda: _overlapping(),
    "a huge bytearray": lambda: torch_file(calling("__builtin__ bytearray", LONG)),
    "a huge tensor": lambda: torch_file(calling("torch Tensor", LONG)),
    "cut short": lambda: torch_file(b"\x80\x02(K\x01"),
    "a stack that is empty": lambda: torch_file(b"\x80\x02a."),
    "a memo that is empty": lambda: torch_file(b"\x80\x02h\x05."),
    "a text of 4 GB": lambda: torch_file(b"\x80\x02X\xff\xff\xff\xffa."),
    "no pickle in it": lambda: zipped({"version": b"3\n"}),
    "a negative offset": lambda: torch_file(tensor(offset=-1), **DATA),
    "an offset beyond the data": lambda: torch_file(tensor(offset=4), **DATA),
    "a negative stride": lambda: torch_file(tensor(stride=(-1,)), **DATA),
    "a negative size": lambda: torch_file(tensor(shape=(-2,)), **DATA),
    "a stride without a size": lambda: torch_file(tensor(stride=(1, 1)), **DATA),
    "a tensor beyond its data": lambda: torch_file(tensor(shape=(5,)), **DATA),
    "strides beyond its data": lambda: torch_file(tensor(shape=(2, 2), stride=(3, 1)), **DATA),
    "a tensor of 2**40 views": lambda: torch_file(tensor(shape=(HUGE,), stride=(0,)), **DATA),
    "views by numbers": lambda: torch_file(tensor(shape=(2,) * 40, stride=(0,) * 40), **DATA),
    "sizes that are no numbers": lambda: torch_file(tensor(shape=("a",)), **DATA),
    "more numbers than data": lambda: torch_file(tensor(count=5), **DATA),
    "fewer numbers than data": lambda: torch_file(tensor(shape=(2,), count=3), **DATA),
    "numbers without data": lambda: torch_file(tensor()),
    "a negative count": lambda: torch_file(tensor(count=-4), **DATA),
    "TorchScript": lambda: torch_file(tensor(), **DATA, **{"constants.pkl": b"\x80\x02)."}),
    "two parts of one name": lambda: torch_file(tensor(), **DATA, **{"DATA.pkl": b"\x80\x02N."}),
    "two folders": lambda: zipped({"data.pkl": b"\x80\x02N.", "../other/version": b"3\n"}),
    "an archive behind something": lambda: b"PK\x03\x04" + torch_file(b"\x80\x02N."),
    "an order of bytes that is none": lambda: zipped(
        {"data.pkl": tensor(), "byteorder": b"middle", "version": b"3\n", **DATA}
    ),
}

#: four numbers
DATA = {"data/0": bytes(16)}


def tensor(
    shape: tuple[Any, ...] = (4,), stride: tuple[Any, ...] = (1,), offset: int = 0, count: int = 4
) -> bytes:
    """A pickle of a tensor, as torch.save writes it."""

    class Storage:
        pass

    class Writer(pickle._Pickler):  # type: ignore[name-defined, misc]
        def persistent_id(self, thing: Any) -> Any:
            if isinstance(thing, Storage):
                return "storage", torch.FloatStorage, "0", "cpu", count
            return None

    class Tensor:
        def __reduce__(self) -> Any:
            given = Storage(), offset, shape, stride, False, OrderedDict()
            return torch._utils._rebuild_tensor_v2, given

    buffer = io.BytesIO()
    Writer(buffer, 2).dump({"a": Tensor()})
    return buffer.getvalue()


def _old_format(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def _claiming(size: int) -> bytes:
    """An archive whose directory says that a part of four bytes is as large as that."""
    whole = bytearray(torch_file(b"\x80\x02N.", data=b"four"))
    entry = whole.rindex(b"PK\x01\x02")
    struct.pack_into("<II", whole, entry + 20, min(size, 2**32 - 2), min(size, 2**32 - 2))
    return bytes(whole)


def _overlapping() -> bytes:
    """An archive in which many parts are the same bytes."""
    whole = torch_file(b"\x80\x02N.", data=bytes(2**16))
    start, end = whole.index(b"PK\x01\x02"), whole.index(b"PK\x05\x06")
    entry = whole[whole.rindex(b"PK\x01\x02") : end]
    count = whole[start:end].count(b"PK\x01\x02") + 1000
    tail = bytearray(whole[end:])
    directory = whole[start:end] + 1000 * entry
    struct.pack_into("<HHI", tail, 8, count, count, len(directory))
    return whole[:start] + directory + bytes(tail)


@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_save_never_writes_is_damage(body: str, tmp_path: Path) -> None:
    path = sealed(tmp_path / "file", BODIES[body]())
    with bounded(), pytest.raises(DamagedStateError) as raised:
        load(path, weights_only=True)
    assert str(path) in str(raised.value) or "file" in raised.value.field


@pytest.mark.parametrize("content", [Command(), {"it": [Command()]}], ids=["alone", "inside"])
def test_a_pickle_that_would_run_a_command_is_refused(content: Any, tmp_path: Path) -> None:
    save(content, tmp_path / "file")
    with pytest.raises(UsageError, match="weights_only=False if you trust"):
        load(tmp_path / "file", weights_only=True)


def test_the_bodies_of_these_tests_are_read_where_they_are_honest(tmp_path: Path) -> None:
    path = sealed(tmp_path / "file", torch_file(b"\x80\x02]K\x05a."))
    assert load(path, weights_only=True) == [5]
    for honest in (
        {},
        {"shape": (2, 2), "stride": (2, 1)},
        {"shape": (10**6, 4), "stride": (0, 1)},
    ):
        path = sealed(tmp_path / "file", torch_file(tensor(**honest), **DATA))
        assert load(path, weights_only=True)["a"].shape == honest.get("shape", (4,))


def test_an_error_of_the_callers_own_map_location_is_the_callers(tmp_path: Path) -> None:
    def broken(storage: Any, location: str) -> Any:
        raise KeyError("mine")

    save(torch.zeros(2), tmp_path / "file")
    with pytest.raises(KeyError, match="mine"):
        load(tmp_path / "file", weights_only=True, map_location=broken)


# --- looking into files --------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["ours", "torch's", "bare"])
@pytest.mark.parametrize("body", BODIES)
def test_a_look_into_any_body_is_short_and_runs_nothing(
    body: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(BODIES[body]() if form != "bare" else pickle.dumps([Command()]))
    if form == "ours":
        sealed(path, BODIES[body]())
    with bounded():
        assert main(["inspect", str(path)]) in (1, 2)
        assert main(["diff", str(path), str(path)]) in (0, 2)
        assert main(["skip", str(path), "-n", "1", "-o", str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()
    capsys.readouterr()


@pytest.mark.parametrize("way", ["archive", "pickle", "JSON"])
def test_a_look_into_a_file_that_was_damaged_anywhere_ends_well(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    iterator = iter(make_stream())
    next(iterator)
    held = {"it": iterator, "model": torch.arange(9)}
    whole = {
        "archive": lambda: (torch.save(held, tmp_path / "a"), (tmp_path / "a").read_bytes())[1],
        "pickle": lambda: pickle.dumps(held),
        "JSON": lambda: to_json(iterator.state_dict()).encode(),
    }[way]()
    chance, path = random.Random(3), tmp_path / "file"
    statuses = set()
    with bounded():
        for _ in range(300):
            changed = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                changed[chance.randrange(len(whole))] = chance.randrange(256)
            path.write_bytes(changed)
            statuses.add(main(["inspect", str(path)]))
            statuses.add(main(["diff", str(path), str(path)]))
    assert 0 in statuses and 2 in statuses and statuses <= {0, 1, 2}
    capsys.readouterr()


# --- states --------------------------------------------------------------------------------------


def refused(make_loader: Callable[[], DataLoader[Any]], state: Any) -> StateError:
    """The error of a state whose author has left out the checksum: it would notice any change."""
    if type(state.get("checksum")) is str:
        del state["checksum"]
    loader = make_loader()
    before = repr(loader.state_dict())
    with bounded(), pytest.raises(StateError) as raised:
        loader.load_state_dict(state)
    assert repr(loader.state_dict()) == before
    return raised.value


def marked(mark: Any) -> dict[str, Any]:
    state = state_of(make_stream())
    state["streams"][0]["mark"] = mark
    return state


def test_the_bytes_of_a_mark_in_a_state_are_not_opened() -> None:
    for hostile in (Command(), {"iterator": Command()}, {"pickled": pickle.dumps(Command())}):
        error = refused(make_stream, marked(pickle.dumps(hostile)))
        assert isinstance(error, DamagedStateError) and error.field == "streams[0].mark"


def test_a_mark_that_says_that_it_is_a_pickled_iterator_is_refused() -> None:
    refused(make_stream, marked({"pickled": pickle.dumps(Command())}))


class Own:
    """A sampler of somebody's, which may draw from a generator."""

    def __init__(self, rng: Any = None) -> None:
        self.rng = rng

    def __iter__(self) -> Any:
        return iter(range(10) if self.rng is None else self.rng.permutation(10).tolist())


def make_own(make_rng: Callable[[], Any] = lambda: None) -> DataLoader[Any]:
    return DataLoader(Noisy(), batch_size=3, sampler=Own(make_rng()))


def test_a_sampler_s_own_iterator_cannot_come_with_a_state() -> None:
    state = state_of(make_own())
    state["order"]["iterator"] = iter([1, 2])
    assert refused(make_own, state).field == "order.iterator"  # type: ignore[attr-defined]


class Taken(IterableDataset[int]):
    """Takes whatever state it is given."""

    at = 0

    def __iter__(self) -> Any:
        for self.at, sample in enumerate(share(), 1):
            yield sample

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.given = state


VIEW = torch.zeros(1).expand(HUGE)
#: plain forms that are small and would be large values
FORMS: dict[str, Any] = {
    "a tensor that is a view of one number": {"as": "Tensor", "value": VIEW},
    "such an array": {"as": "ndarray", "value": VIEW},
    "a numpy scalar of any size": {"as": "number", "dtype": "V", "value": HUGE},
    "an array of a huge shape": {"as": "ndarray", "value": ["|u1", [HUGE], "AA=="]},
    "an array of objects": {"as": "ndarray", "value": ["|O", [1], "AAAAAAAAAAA="]},
    "an array of huge texts": {"as": "ndarray", "value": [f"|S{2**31 - 1}", [HUGE], ""]},
    "records of objects": {
        "as": "ndarray",
        "value": [{"fields": [["a", 0, "|O"]], "size": 8}, [1], "AAAAAAAAAAA="],
    },
    "huge records": {
        "as": "ndarray",
        "value": [{"fields": [["a", 0, "|u1"]], "size": 2**31 - 1}, [HUGE], ""],
    },
    "records of huge parts": {"as": "ndarray", "value": [["|u1", [2**30]], [HUGE], ""]},
    "records of no size": {"as": "scalar", "value": ["|V0", [], ""]},
    "a scalar with a shape": {"as": "scalar", "value": ["|u1", [1], "AA=="]},
    "a dtype that is none": {"as": "dtype", "value": "load"},
    "a huge size": {"as": "Size", "value": HUGE},
    "a factory": {"as": "defaultdict", "value": ["eval", []]},
    "no kind": {"as": "__import__", "value": "os"},
}


@pytest.mark.parametrize("kind", FORMS)
def test_a_small_form_of_a_huge_value_is_refused(kind: str) -> None:
    state = state_of(DataLoader(Taken(), batch_size=3, snapshot_every_n_steps=1))
    state["streams"][0]["mark"] = {"dataset": FORMS[kind]}
    error = refused(lambda: DataLoader(Taken(), batch_size=3), state)
    assert isinstance(error, DamagedStateError)


@pytest.mark.parametrize("depth", [10**3, 10**5])
@pytest.mark.parametrize("field", ["window", "rng", "fits", "order"])
def test_a_state_that_is_nested_without_end_is_refused(field: str, depth: int) -> None:
    nested: Any = []
    for _ in range(depth):
        nested = [nested] if field == "window" else {"seed": nested}
    assert len(str(refused(make, {**state_of(make()), field: nested}))) < 1000


def test_a_file_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    nested = b"\x80\x02" + 10**5 * b"]" + (10**5 - 1) * b"a" + b"."
    with bounded(), pytest.raises(StateError):
        make().load_state_dict(
            load(sealed(tmp_path / "file", torch_file(nested)), weights_only=True)
        )


def test_a_generator_is_one_of_numpys() -> None:
    state = make_own().state_dict()
    state["sampler"] = {"attributes": {"rng2": ["Generator", {"bit_generator": "seed"}]}}
    before = np.random.get_state()[1].copy()  # type: ignore[union-attr, index]
    refused(make_own, state)
    assert np.array_equal(np.random.get_state()[1], before)  # type: ignore[index, arg-type]


@pytest.mark.parametrize("place", [-1, 625, 10**9, 2**70, True, 1.5, "1"])
@pytest.mark.parametrize(
    "make_rng",
    [
        lambda: np.random.RandomState(1),
        lambda: np.random.Generator(np.random.MT19937(1)),
        lambda: np.random.Generator(np.random.Philox(1)),
    ],
    ids=["RandomState", "MT19937", "Philox"],
)
def test_a_generator_stands_within_its_own_memory(make_rng: Callable[[], Any], place: Any) -> None:
    """NumPy takes any position, and reads memory there."""
    used = make_own(make_rng)
    list(used)
    state = used.state_dict()
    kind, form = state["sampler"]["attributes"]["rng"]
    if kind == "RandomState":
        form[2] = place
    elif form["bit_generator"] == "MT19937":
        form["state"]["pos"] = place
    else:
        form["buffer_pos"] = place
    refused(lambda: make_own(make_rng), state)


def test_no_name_in_a_state_imports_a_module() -> None:
    """getattr(torch, name) would: torch imports parts of itself when they are asked for."""
    program = (
        "import json, sys, torch\n"
        "from picklable_loader import from_json\n"
        "from picklable_loader.saving.states.plain import decode\n"
        "before = set(sys.modules)\n"
        "for name in ('_inductor', 'onnx', '_dynamo', '_export', 'numpy.f2py', 'os'):\n"
        "    for form in ({'as': 'dtype', 'value': name},\n"
        "                 {'as': 'number', 'dtype': name, 'value': 1},\n"
        "                 {'as': 'ndarray', 'value': [name, [1], 'AA==']}):\n"
        "        try: decode(form)\n"
        "        except (ValueError, KeyError): continue\n"
        "        raise AssertionError(form)\n"
        "    text = {'$type': 'Tensor', 'dtype': name, 'shape': [1], 'base64': 'AA=='}\n"
        "    try: from_json(json.dumps(text))\n"
        "    except ValueError: continue\n"
        "    raise AssertionError(name)\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_state_of_an_unpickled_iterator_holds_values_and_no_pickle() -> None:
    iterator = iter(make_stream())
    next(iterator)
    again = pickle.loads(pickle.dumps(iterator))
    state = again.state_dict()
    assert json.loads(json.dumps(state["streams"][0]["mark"]["iterator"]["as"])) == "dict"
    loader = make_stream()
    loader.load_state_dict(state)
    assert seen(iter(loader)) == seen(again) == seen(iterator)


class Holding(StatefulIterator):
    """Its state holds an object."""

    def __iter__(self) -> Any:
        iterator: Any = super().__iter__()
        give = iterator.state_dict
        iterator.state_dict = lambda: {**give(), "held": [1, Command]}
        return iterator


@pytest.mark.parametrize("workers", [0, 1])
def test_an_object_in_a_stream_s_state_is_named_when_the_state_is_taken(workers: int) -> None:
    iterator = iter(DataLoader(Holding(), 3, num_workers=workers, snapshot_every_n_steps=1))
    next(iterator)
    with pytest.raises(CannotSaveError) as raised:
        iterator.state_dict()
    assert raised.value.what == "stream 0: state_dict() of the iterator['held'][1]"
    assert "builtins.type" in raised.value.reason
    iterator.close()


# --- JSON ----------------------------------------------------------------------------------------

PICKLED = json.dumps(
    {"$type": "bytes", "base64": "gASVHAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjARleGl0lIWUUpQu"}
)


def test_a_huge_number_of_batches_is_refused_at_once() -> None:
    text = to_json(state_of(make())).replace('"$skip": 0', f'"$skip": {HUGE}')
    with bounded(), pytest.raises(UsageError, match="has 2 batches left"):
        from_json(text)


def test_bytes_in_json_stay_bytes() -> None:
    found = from_json(PICKLED)
    assert type(found) is bytes
    assert isinstance(refused(make_stream, marked(found)), DamagedStateError)


def test_the_way_out_does_not_run_anything_either() -> None:
    with pytest.raises(CannotSaveError):
        to_json({"a": Command()})
    assert issubclass(CannotSaveError, LoaderError)


def test_a_form_whose_parts_stand_in_many_places_is_refused() -> None:
    form: Any = [1]
    for _ in range(60):
        form = [form, form]
    state = state_of(DataLoader(Taken(), batch_size=3, snapshot_every_n_steps=1))
    for hostile in (form, {"as": "tuple", "value": form}, {"as": "dict", "value": [[1, form]]}):
        state["streams"][0]["mark"] = {"dataset": hostile}
        assert isinstance(refused(lambda: DataLoader(Taken(), batch_size=3), state), StateError)
    shuffled = state_of(make())
    for field in shuffled:
        refused(make, {**shuffled, field: form})
