"""Work: a file costs no more steps than its size has, whatever it is made of.

Each builder makes a file of a size. A file that is twice as large may take twice as many steps:
lines and calls of Python are counted, no time is measured.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from zoo.hostile import bounded, sealed, torch_file

from picklable_loader import DataLoader, from_json, load, save, to_json
from picklable_loader.__main__ import main
from picklable_loader.errors import CannotSaveError, DamagedStateError, LoaderError
from picklable_loader.saving.states import state_json as readable

pytestmark = pytest.mark.inline

#: more would not be in proportion to the size
_TWICE = 2.6


def steps(do: Callable[[], object]) -> int:
    """Lines of Python that were run, and functions of C that were called."""
    count = 0

    def line(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "c_call"

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(line)
    sys.setprofile(call)
    try:
        do()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return count


def state() -> dict[str, Any]:
    iterator = iter(DataLoader(range(20), batch_size=3, seed=1))
    next(iterator)
    return iterator.state_dict()


# --- builders ------------------------------------------------------------------------------------


class Opened:
    """Pickles as a call that opens a pickle."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        return torch.storage._load_from_bytes, (self.data,)  # type: ignore[attr-defined]


def marks_in_marks(size: int) -> bytes:
    data = pickle.dumps(1)
    for _ in range(size):
        data = pickle.dumps({"mark": data, "x": {"mark": data}}, 4)
    return data


def calls_in_calls(size: int) -> bytes:
    data = pickle.dumps(1)
    for _ in range(size):
        data = pickle.dumps([Opened(data), Opened(data)], 4)
    return data


def one_mark_often(size: int) -> bytes:
    mark = pickle.dumps(list(range(size)))
    return pickle.dumps([{"mark": mark} for _ in range(size)])


def one_mark_of_many_streams(size: int) -> bytes:
    mark = pickle.dumps({"dataset": list(range(20 * size))})
    place = {"given": 1, "ended": False, "marked": 1, "mark": mark, "since": []}
    return pickle.dumps([{**state(), "streams": [dict(place) for _ in range(size)]}])


def one_part_under_many_names(size: int) -> bytes:
    part = list(range(size))
    return pickle.dumps({str(at): part for at in range(size)})


def one_part_in_many_places(size: int) -> bytes:
    return pickle.dumps(many_times(size, ()))


def many_times(levels: int, part: Any) -> Any:
    for _ in range(levels):
        part = (part, part)
    return part


def claims_to_be_a_state(size: int) -> bytes:
    many = many_times(size, (1,))
    fits = {"batches_from": many, "sampler_length": 3}
    return pickle.dumps(
        [{"format": "picklable_loader", "version": many}, {**state(), "fits": fits}]
    )


def names_of_endless_tuples(size: int) -> bytes:
    many = many_times(size, (1,))
    return pickle.dumps((many, many))[:-2] + b"\x93."


def storage_of_endless_tuples(size: int) -> bytes:
    return pickle.dumps(many_times(size, (1,)))[:-1] + b"Q."


def long_number(size: int) -> bytes:
    return pickle.dumps(2 ** (500 * size))


def deep(size: int) -> bytes:
    return b"\x80\x04" + size * b"]" + (size - 1) * b"a" + b"."


def deep_with_many_at_the_end(size: int) -> bytes:
    text = b"X" + struct.pack("<I", size) + size * b"k"
    start = b"\x80\x04" + text + b"\x940" + size * b"}h\x00"  # each dict has one key, the same one
    return start + b"](" + size * b"K\x01" + b"e" + size * b"s" + b"."


def sets_of_one_list(size: int) -> bytes:
    numbers = b"](" + b"".join(b"J" + struct.pack("<i", at) for at in range(size)) + b"eq\x00"
    call = b"c__builtin__\nset\nq\x010"
    return b"\x80\x02" + numbers + b"0" + call + b"](" + size * b"h\x01h\x00\x85R" + b"e."


def texts_of_one_text(size: int) -> bytes:
    text = (
        b"X"
        + struct.pack("<I", 20 * size)
        + 20 * size * b"k"
        + b"q\x00X\x06\x00\x00\x00latin1q\x01"
    )
    call = b"c_codecs\nencode\nq\x020"
    return b"\x80\x02" + text + b"00" + call + b"](" + size * b"h\x02h\x00h\x01\x86R" + b"e."


def tensors_of_one_shape(size: int) -> bytes:
    shape = b"(" + 20 * size * b"K\x01" + b"tq\x00"
    call = b"ctorch._utils\n_rebuild_tensor_v2\nq\x010"
    one = b"h\x01(NK\x00h\x00h\x00tR"
    return b"\x80\x02" + shape + b"0" + call + b"](" + size * one + b"e."


def numbers_of_one_hash(size: int) -> bytes:
    return pickle.dumps({at * (2**61 - 1): None for at in range(1, size)}, 2)


def keys_of_endless_tuples(size: int) -> bytes:
    return b"\x80\x02}K\x01" + size * b"q\x00h\x00\x86" + b"K\x01s."


PICKLES: dict[str, Callable[[int], bytes]] = {
    "marks in marks": marks_in_marks,
    "calls in calls": calls_in_calls,
    "one mark often": one_mark_often,
    "one mark of many streams": one_mark_of_many_streams,
    "one part under many names": one_part_under_many_names,
    "one part in many places": one_part_in_many_places,
    "a state of many places": claims_to_be_a_state,
    "names of endless tuples": names_of_endless_tuples,
    "a storage of endless tuples": storage_of_endless_tuples,
    "a long number": long_number,
    "deep": deep,
    "deep, with many at the end": deep_with_many_at_the_end,
    "sets of one list": sets_of_one_list,
    "texts of one text": texts_of_one_text,
    "tensors of one shape": tensors_of_one_shape,
    "numbers of one hash": numbers_of_one_hash,
    "keys of endless tuples": keys_of_endless_tuples,
}
SIZES = {"marks in marks": 40, "calls in calls": 40}


def archive_of_many_data(size: int) -> bytes:
    buffer = io.BytesIO()
    torch.save([torch.tensor([at]) for at in range(size)], buffer)
    return buffer.getvalue()


def repeated_names(size: int) -> bytes:
    names = [f"n{at}" for at in range(size)] + ["twice", "twice"]
    return ("{" + ",".join(f'"{name}": 1' for name in names) + "}").encode()


def long_name_above_many(size: int) -> bytes:
    return json.dumps({"k" * size: {str(at): [at] for at in range(size)}}).encode()


def states_moved_on(size: int) -> bytes:
    one = {**state(), "next_step": 500, "position": 600, "window": [[1, 3, None, 400]]}
    fits = {**one["fits"], "sampler_length": 10**6}
    return to_json([{**one, "fits": fits} for _ in range(size)]).replace(
        '"$skip": 0', '"$skip": 1'
    ).encode()  # fmt: skip


def keys_of_one_hash(size: int) -> bytes:
    items = [[at * (2**61 - 1), None] for at in range(1, size)]
    return json.dumps({"$type": "dict", "items": items}).encode()


def deep_json(size: int) -> bytes:
    depth = min(size, 200)
    return ("[" * depth + ",".join(["[1]"] * size) + "]" * depth).encode()


def set_of_one_hash(size: int) -> bytes:
    items = [at * (2**61 - 1) for at in range(1, size)]
    return json.dumps({"$type": "plain", "value": {"as": "set", "value": items}}).encode()


TEXTS: dict[str, Callable[[int], bytes]] = {
    "repeated names": repeated_names,
    "a long name above many": long_name_above_many,
    "states that are moved on": states_moved_on,
    "keys of one hash": keys_of_one_hash,
    "a set of one hash": set_of_one_hash,
    "deep": deep_json,
}


def in_archive(build: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda size: torch_file(build(size))


FILES: dict[str, tuple[str, Callable[[int], bytes]]] = {
    **{f"pickle: {name}": (name, build) for name, build in PICKLES.items()},
    **{f"archive: {name}": (name, in_archive(build)) for name, build in PICKLES.items()},
    "archive: many data": ("many data", archive_of_many_data),
    **{f"JSON: {name}": (name, build) for name, build in TEXTS.items()},
}


# --- work ----------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def read_without_code(path: Path) -> None:
    try:
        load(path, weights_only=True)
    except (LoaderError, ValueError):
        pass


COMMANDS: dict[str, Callable[[Path], object]] = {
    "inspect": lambda path: main(["inspect", str(path)]),
    "diff": lambda path: main(["diff", str(path), str(path)]),
    "skip": lambda path: main(["skip", str(path), "-n", "1", "-o", str(path.parent / "new")]),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_twice_as_large_takes_twice_the_steps(
    file: str,
    command: str,
    path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, build = FILES[file]
    monkeypatch.setattr(readable, "MOST_TASKS", 1000)
    size = SIZES.get(name, 200)
    took = []
    for each in (size, 2 * size):
        path.write_bytes(build(each))
        with bounded():
            took.append(steps(lambda: COMMANDS[command](path)) / path.stat().st_size)
    assert took[1] * 2 <= took[0] * _TWICE
    assert took[1] < 2000
    capsys.readouterr()


@pytest.mark.parametrize("name", PICKLES)
def test_a_checkpoint_is_read_without_code_in_steps_like_its_size(name: str, path: Path) -> None:
    size = SIZES.get(name, 200)
    took = []
    for each in (size, 2 * size):
        sealed(path, torch_file(PICKLES[name](each)))
        with bounded():
            took.append(steps(lambda: read_without_code(path)) / path.stat().st_size)
    assert took[1] * 2 <= took[0] * _TWICE


#: what torch itself would do for ever, or fill the memory with
ENDLESS = ("sets of one list", "texts of one text", "numbers of one hash", "keys of endless tuples")


@pytest.mark.parametrize("name", ENDLESS)
def test_a_pickle_that_torch_would_build_for_ever_is_damage(name: str, path: Path) -> None:
    sealed(path, torch_file(PICKLES[name](3000)))
    with bounded(), pytest.raises(DamagedStateError, match="endless work"):
        load(path, weights_only=True)


@pytest.mark.parametrize("build", [keys_of_one_hash, set_of_one_hash])
def test_json_that_python_would_hash_for_ever_is_damage(build: Callable[[int], bytes]) -> None:
    assert len(from_json(build(50).decode())) == 49
    with pytest.raises(DamagedStateError):
        from_json(build(500).decode())


def test_an_honest_checkpoint_is_far_from_endless_work(path: Path) -> None:
    keys = {at: [at] for at in range(5000)} | {(at, at + 1): at for at in range(5000)}
    content = {
        "numbers": keys,
        "large": {2**64 + at: at for at in range(5000)},
        "sets": [{at, -at} for at in range(5000)],
        "bytes": [bytes([at % 256]) * 9 for at in range(5000)],
        "views": list(torch.zeros(5000, 3).unbind()),
        "model": torch.nn.LSTM(8, 8, 9).state_dict(),
    }
    save(content, path)
    found = load(path, weights_only=True)
    assert found.keys() == content.keys() and found["numbers"] == keys


class Counted(str):
    """A text that counts how often it is compared."""

    count = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.count += 1
        return str.__eq__(self, other)


def test_a_repeated_name_is_found_without_comparing_all_with_all() -> None:
    took = []
    for size in (1000, 2000):
        pairs: list[tuple[str, Any]] = [(Counted(f"n{at}"), at) for at in range(size)]
        Counted.count = 0
        with pytest.raises(DamagedStateError, match="'n7' should be there once"):
            readable._unique([*pairs, ("n7", 1)])
        took.append(Counted.count)
    assert took[1] <= _TWICE * took[0] and took[1] <= 4000


@pytest.mark.parametrize("kind", [dict, list, tuple])
def test_values_whose_text_would_be_endless_are_refused(kind: Any) -> None:
    part: Any = kind()
    for _ in range(60):
        part = {"a": part, "b": part} if kind is dict else kind([part, part])
    with bounded(), pytest.raises(CannotSaveError, match="so many places"):
        to_json({"a": part})
    honest = kind([kind()] * 3) if kind is not dict else {"a": {}, "b": {}}
    assert from_json(to_json([honest] * 1000)) == [honest] * 1000


def test_a_view_of_one_number_is_not_written_as_2_to_40() -> None:
    with bounded(), pytest.raises(CannotSaveError, match="clone"):
        to_json({"a": torch.zeros(1).expand(2**40)})


# --- what is no file -----------------------------------------------------------------------------


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_sparse(start: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(start)
        os.truncate(path, 60 * 2**30)

    return make


NO_FILES: dict[str, Callable[[Path], object]] = {
    "a pipe": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
    "a socket": make_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to(path.parent / "nothing"),
    "a link to itself": lambda path: path.symlink_to(path),
    "holes": make_sparse(b""),
    "holes in text": make_sparse(b'{"a": 1'),
    "holes in text of 16 bits": make_sparse('{"a": 1'.encode("utf-16")),
    "holes in an archive": make_sparse(b"PK\x03\x04"),
    "holes in a checkpoint": make_sparse(b"\x89PLOAD\r\n"),
    "holes in a pickle": make_sparse(b"\x80\x04"),
}
OTHER_COMMANDS: dict[str, Callable[[Path, Path], list[Path | str]]] = {
    "inspect": lambda path, good: ["inspect", path],
    "diff, first": lambda path, good: ["diff", path, good],
    "diff, second": lambda path, good: ["diff", good, path],
    "skip": lambda path, good: ["skip", path, "-n", "1", "-o", good.parent / "new"],
}


@pytest.mark.parametrize("command", OTHER_COMMANDS)
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_ends_at_once_with_status_2(
    kind: str, command: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    NO_FILES[kind](path)
    save(state(), good := tmp_path / "good")
    arguments = OTHER_COMMANDS[command](path, good)

    def run() -> None:
        assert main([str(each) for each in arguments]) == 2

    with bounded():
        assert steps(run) < 100_000
    said = capsys.readouterr()
    assert said.out == "" and str(path) in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_not_loaded(kind: str, weights_only: bool, path: Path) -> None:
    NO_FILES[kind](path)
    with bounded(), pytest.raises((OSError, LoaderError), match=str(path)):
        load(path, weights_only=weights_only)
