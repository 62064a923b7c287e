"""What inspect says of files that would run something, wherever they hide it."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from picklable_loader import DataLoader
from picklable_loader.__main__ import main
from picklable_loader.saving.files.pickle_tree import trace

Inspect = Callable[..., tuple[int, str, str]]


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Inspect:
    """Runs the command: its exit status, and what it prints to stdout and to stderr."""

    def run(*arguments: Any) -> tuple[int, str, str]:
        status = main(["inspect", *map(str, arguments)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


#: a call whose result is on the stack then
RUN = b"cposix\nsystem\n(S'false'\ntR"


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def old_torch(before: int | None = None) -> bytes:
    """A file of torch's old format, with a call before one of its five pickles."""
    file = io.BytesIO()
    torch.save({"a": torch.ones(2)}, file, _use_new_zipfile_serialization=False)
    data, at = file.getvalue(), 0
    for _ in range(before or 0):
        rest = io.BytesIO(data[at:])
        trace(rest)
        at += rest.tell()
    return data if before is None else data[:at] + data[at : at + 2] + RUN + b"0" + data[at + 2 :]


def new_torch(change: Callable[[bytes], list[bytes]], **more: bytes) -> bytes:
    """A file of torch.save, with other pickles in place of its own, and further parts."""
    file, changed = io.BytesIO(), io.BytesIO()
    torch.save({"a": torch.ones(2)}, file)
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(changed, "w") as target:
        for info in source.infolist():
            data = source.read(info)
            for each in change(data) if info.filename.endswith("data.pkl") else [data]:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a name that is there already
                    target.writestr(info.filename, each)
        for name, data in more.items():
            target.writestr(f"archive/{name.replace('_', '.')}", data)
    return changed.getvalue()


class OpensAFile:
    """Is pickled as torch pickles storages: with a file of an old torch in it."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        return torch.storage._load_from_bytes, (self.data,)


HIDDEN = {
    "dropped": RUN + b"0}.",
    "dropped with a mark": b"(" + RUN + b"1}.",
    "overwritten": b"\x80\x02}X\x01\x00\x00\x00a" + RUN + b"sX\x01\x00\x00\x00aK\x01s.",
    "a key": b"}" + RUN + b"K\x01s.",
    "memoised": RUN + b"p0\n0}.",
    "in a list that is dropped": b"]" + RUN + b"a0}.",
    "an instance": b"(S'false'\niposix\nsystem\n0}.",
    "an object": b"(cposix\nsystem\nS'false'\no0}.",
    "an import alone": b"cposix\nsystem\n0}.",
    "under a name with dots": b"\x80\x04}" + text("w") + text("torch.storage")
    + text("threading._os.system") + b"\x93" + text("false") + b"\x85Rs.",
    "in a tensor's bytes": pickle.dumps({"w": OpensAFile(old_torch(0))}),
    "in bytes that are no file": pickle.dumps({"w": OpensAFile(b"K")}),
    "in a stream's state": pickle.dumps({"streams": [{"mark": RUN + b"0}."}]}),
    "in a stream's iterator": pickle.dumps({"mark": pickle.dumps({"pickled": RUN + b"."})}),
    "in what a replay begins with": pickle.dumps({"begun": (["a"], RUN + b".")}),
    **{f"before pickle {at} of an old torch": old_torch(at) for at in range(5)},
    "in an archive": new_torch(lambda data: [data[:2] + RUN + b"0" + data[2:]]),
    "in an archive of TorchScript": new_torch(lambda data: [data], constants_pkl=b"}."),
}  # fmt: skip


@pytest.mark.parametrize("way", HIDDEN)
def test_code_is_told_whatever_becomes_of_it(way: str, tmp_path: Path, inspect: Inspect) -> None:
    (tmp_path / "file").write_bytes(HIDDEN[way])
    _, said, complaint = inspect(tmp_path / "file", "--json")
    assert json.loads(said)["needs_code"], complaint
    assert "imports, and may call" in inspect(tmp_path / "file")[1]


def test_what_codecs_carry_is_looked_through(tmp_path: Path, inspect: Inspect) -> None:
    loader = DataLoader(range(3), collate_fn=lambda batch: os.path.join("a", str(batch)))
    (tmp_path / "file").write_bytes(pickle.dumps(iter(loader)))
    told = json.loads(inspect(tmp_path / "file", "--json")[1])
    assert {
        "picklable_loader.saving.pickles.opened.open_carried",
        "cloudpickle.cloudpickle._make_function",
    } <= set(told["needs_code"])


def in_tar() -> bytes:
    """A pickle whose name is an archive's first entry, with others in it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("}."))
    return file.getvalue()


TWO_IN_ONE = {
    "two pickles": new_torch(lambda data: [data, RUN + b"0}."]),
    "two that differ in case": new_torch(lambda data: [data], DATA_PKL=RUN + b"0}."),
    "a pickle and an archive": in_tar(),
}


@pytest.mark.parametrize("way", TWO_IN_ONE)
def test_a_file_that_others_may_read_otherwise_is_refused(
    way: str, tmp_path: Path, inspect: Inspect
) -> None:
    (tmp_path / "file").write_bytes(TWO_IN_ONE[way])
    status, said, complaint = inspect(tmp_path / "file")
    assert (status, said) == (2, "") and complaint


def test_what_has_no_code_is_told_to_have_none(tmp_path: Path, inspect: Inspect) -> None:
    tensors = {"a": torch.ones(2, dtype=torch.bfloat16), "b": [torch.arange(3), b"x", {1, 2}, 1j]}
    for name, data in {
        "pickle": pickle.dumps(tensors), "old": old_torch(), "new": new_torch(lambda data: [data])
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(data)
        assert "runs no code" in inspect(tmp_path / name)[1], name


def test_the_tree_of_a_set_has_what_is_in_it() -> None:
    for protocol in (4, 5):
        assert trace(pickle.dumps([{1}, frozenset({2}), 3], protocol)).tree == [[1], [2], 3]


def test_what_stands_behind_a_pickle_is_told(tmp_path: Path, inspect: Inspect) -> None:
    (tmp_path / "file").write_bytes(pickle.dumps({"a": 1}) + RUN + b".")
    assert "bytes that were not looked at" in inspect(tmp_path / "file")[1]
