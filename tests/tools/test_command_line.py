"""inspect, diff, skip, verify and doctor: what they say, and their exit status."""

from __future__ import annotations

import copy
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.observe import seen
from zoo.datasets import Noisy
from zoo.hostile import sealed, torch_file
from zoo.streams import ByClass, Generated, StatefulIterator

from picklable_loader import DataLoader, from_json, load, save, to_json
from picklable_loader.__main__ import COMMANDS, main
from picklable_loader.errors import CannotSaveError
from picklable_loader.fetching.pool.exit import memory_limit
from picklable_loader.saving.files.pickle_nodes import Built
from picklable_loader.saving.files.pickle_tree import NotPickle, trace
from picklable_loader.tools.commands import doctor

Written = Callable[[Any, Path], None]


def make(**more: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(20), **{"batch_size": 3, "shuffle": True, "seed": 7, **more})


def after(steps: int, loader: DataLoader[Any] | None = None) -> Any:
    iterator = iter(make() if loader is None else loader)
    assert len(seen(iterator, steps)) == steps
    return iterator


def pickled(thing: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(thing))


def written(thing: Any, path: Path) -> None:
    path.write_text(to_json(thing))


WAYS: dict[str, Written] = {
    "checkpoint": save,
    "torch.save": lambda thing, path: torch.save(thing, path),
    "pickle": pickled,
    "JSON": written,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "last.ckpt"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A command's status, and what it has printed on either stream."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main([str(each) for each in arguments])
        return status, *capsys.readouterr()

    return run


Say = Callable[..., tuple[int, str, str]]


# --- the program ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_says_of_itself_is_its_modules_first_line(name: str) -> None:
    where, says = COMMANDS[name]
    module = importlib.import_module(f"picklable_loader.{where}")
    assert (module.__doc__ or "").splitlines()[0] == says


def test_help_imports_no_command() -> None:
    program = (
        "import sys\n"
        "from picklable_loader.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as ended: assert not ended.code\n"
        "assert 'torch' not in sys.modules\n"
        "print(sorted(name for name in sys.modules if name.startswith('picklable_loader.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)
    assert "commands" not in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        "", "nothing", "inspect", "skip a", "demo --epochs 0", "bench a:b --seconds 0",
        "bench a:b --seconds inf", "bench a:b --step-ms -1",
    ],
)  # fmt: skip
def test_what_cannot_be_understood_ends_with_2(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert "usage: python -m picklable_loader" in capsys.readouterr().err


# --- inspect -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_state_is_found_in_every_kind_of_file(way: str, file: Path, say: Say) -> None:
    WAYS[way]({"data": after(2).state_dict(), "loss": 0.5}, file)
    status, said, _ = say("inspect", file, "--json")
    told = json.loads(said)
    assert (status, told["kind"], told["bytes"]) == (0, way, file.stat().st_size)
    [found] = told["found"]
    assert (found["path"], found["what"]) == ("['data']", "state")
    rows = found["rows"]
    assert (rows["epoch"], rows["step"], rows["seed"], rows["batch_size"]) == (0, 2, 7, 3)
    assert rows["progress"] == "2 of 7 batches, 29%"
    assert [part["path"] for part in told["parts"]] == ["data", "loss"]
    assert told["needs_code"] == []


@pytest.mark.parametrize("protocol", range(6))
def test_an_iterator_is_found_under_every_protocol(protocol: int, file: Path, say: Say) -> None:
    file.write_bytes(pickle.dumps({"it": after(3)}, protocol))
    status, said, _ = say("inspect", file, "--json")
    [found] = json.loads(said)["found"]
    rows = found["rows"]
    assert (status, found["path"], found["what"]) == (0, "['it']", "iterator")
    assert (rows["step"], rows["progress"], rows["workers"]) == (3, "3 of 7 batches, 43%", 0)
    assert rows["dataset"] == f"{Noisy.__module__}.Noisy"
    assert rows["class"] == "picklable_loader.LoaderIterator"


@pytest.mark.parametrize("way", ["checkpoint", "torch.save", "pickle"])
def test_an_iterator_beside_a_model_is_told_in_words(way: str, file: Path, say: Say) -> None:
    WAYS[way]({"model": torch.nn.Linear(100, 100).state_dict(), "it": after(3)}, file)
    status, said, _ = say("inspect", file)
    assert status == 0
    assert "iterator ['it']" in said and "3 of 7 batches, 43%" in said
    assert "40 kB" in said or way == "pickle"
    assert "imports, and may call" in said and "zoo.datasets.Noisy" in said


KINDS = {
    "state_dict of iterator": StatefulIterator,
    "its iterator, pickled": ByClass,
    "replayed from its start": Generated,
}


@pytest.mark.parametrize("how", KINDS)
def test_streams_say_how_they_go_on(how: str, file: Path, say: Say) -> None:
    loader: Any = DataLoader(KINDS[how](), batch_size=3, num_streams=2, snapshot_every_n_steps=1)
    pickled(after(3, loader), file)
    status, said, _ = say("inspect", file)
    assert status == 0
    assert "stream 0" in said and "stream 1" in said and how in said
    assert "not known without its data" in said


class Command:
    def __reduce__(self) -> Any:
        return exec, ("raise AssertionError('it ran')",)


def test_the_files_of_an_old_torch_are_read_to_their_end(tmp_path: Path, say: Say) -> None:
    def old(name: str, thing: Any) -> Path:
        torch.save(thing, tmp_path / name, _use_new_zipfile_serialization=False)
        return tmp_path / name

    hostile = old("hostile", {"x": Command()})
    good = old("good", {"it": after(2), "weights": torch.zeros(3)})
    other = old("other", {"it": after(2), "weights": torch.ones(3)})
    status, said, _ = say("inspect", hostile)
    assert status == 1 and "exec" in said and "runs no code" not in said
    status, said, _ = say("inspect", good)
    assert status == 0 and "iterator ['object']['it']" in said
    assert say("diff", good, good)[0] == 0
    assert say("diff", good, hostile)[0] == 1
    assert say("diff", good, other)[0] == 1


def test_nothing_of_a_file_is_run_or_imported(file: Path, say: Say) -> None:
    file.write_bytes(b"cmodule_that_nobody_has\ncommand\n(S'echo'\ntR.")
    status, said, _ = say("inspect", file)
    assert status == 1
    assert "module_that_nobody_has.command" in said and "Neither an iterator nor" in said
    assert "module_that_nobody_has" not in sys.modules


def test_a_files_texts_cannot_steer_the_terminal(file: Path, say: Say) -> None:
    pickled({"\x1b[2J": 1, "data": after(1).state_dict()}, file)
    _, said, _ = say("inspect", file)
    assert "\x1b" not in said and r"\x1b[2J" in said


UNREAD = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(b"\x93NUMPY" + bytes(100)),
    "half a pickle": lambda path: path.write_bytes(pickle.dumps(list(range(99)))[:50]),
    "half JSON": lambda path: path.write_text('{"a": '),
    "another archive": lambda path: path.write_bytes(b"PK\x05\x06" + bytes(18)),
    "half an archive": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(18)),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", UNREAD)
def test_what_cannot_be_read_is_said_with_status_2(how: str, file: Path, say: Say) -> None:
    save(after(1).state_dict(), file)
    UNREAD[how](file)
    status, said, complaint = say("inspect", file)
    assert (status, said) == (2, "")
    assert file.name in complaint and complaint.count("\n") == 1


def test_a_pickle_is_traced_as_it_would_be_built() -> None:
    values = [1, (2.5, None, True), {"a": b"x"}, "t"]
    assert (trace(pickle.dumps(values)).tree, trace(pickle.dumps(values)).names) == (values, set())
    built = trace(pickle.dumps(Noisy(4))).tree
    assert isinstance(built, Built) and built.called and built.state == {"size": 4}
    for damaged in (b"", b"K\x01", b".", b"a.", b"tR.", b"\xff."):
        with pytest.raises(NotPickle):
            trace(damaged)


def test_output_that_nobody_reads_is_no_error(file: Path) -> None:
    save(after(2).state_dict(), file)
    command = [sys.executable, "-m", "picklable_loader", "inspect", str(file)]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_json_may_have_been_edited_anywhere(encoding: str, file: Path, say: Say) -> None:
    file.write_text(to_json(after(2).state_dict()), encoding=encoding)
    assert say("inspect", file)[0] == 0
    assert say("skip", file, "-n", "1", "-o", file)[0] == 0
    assert from_json(file.read_text())["step"] == 3


def test_the_file_at_fault_is_the_one_that_is_named(file: Path, say: Say) -> None:
    save(after(2).state_dict(), file)
    status, _, complaint = say("skip", file, "-n", "1", "-o", file.parent / "absent" / "new")
    assert status == 2 and "absent" in complaint and str(file) not in complaint
    file.write_bytes(b"")
    assert "the file is empty" in say("skip", file, "-n", "1", "-o", file)[2]


def test_a_pickle_differs_in_nothing_from_one_of_another_protocol(tmp_path: Path, say: Say) -> None:
    iterator = after(2, make(sampler=range(20), shuffle=False))
    for protocol in range(2, 6):
        (tmp_path / str(protocol)).write_bytes(pickle.dumps(iterator, protocol))
        status, said, _ = say("diff", tmp_path / "2", tmp_path / str(protocol))
        assert status == 0, said


# --- diff ----------------------------------------------------------------------------------------


def ordered(attribute: int) -> Any:
    made: Any = OrderedDict(a=1)
    made.attribute = attribute
    return made


def test_two_states_differ_where_they_stand(tmp_path: Path, say: Say) -> None:
    save(after(2).state_dict(), tmp_path / "a")
    save(after(4).state_dict(), tmp_path / "b")
    status, said, _ = say("diff", tmp_path / "a", tmp_path / "b", "--json")
    told = {each["path"]: (each["A"], each["B"]) for each in json.loads(said)}
    assert status == 1
    assert told.pop("['checksum']")
    assert told == {
        "['step']": ("2", "4"),
        "['next_step']": ("2", "4"),
        "['position']": ("6", "12"),
    }
    assert "['step']" in say("diff", tmp_path / "a", tmp_path / "b")[1]


@pytest.mark.parametrize("way", WAYS)
def test_a_file_is_like_its_copy_and_like_its_state_in_other_files(
    way: str, tmp_path: Path, say: Say
) -> None:
    state = after(2).state_dict()
    WAYS[way](state, tmp_path / "a")
    written(state, tmp_path / "b")
    status, said, _ = say("diff", tmp_path / "a", tmp_path / "b")
    assert status == 0 and "they hold the same" in said


def test_tensors_are_compared_by_what_they_hold(tmp_path: Path, say: Say) -> None:
    one = {"a": torch.zeros(5), "b": torch.ones(5), "c": 1}
    torch.save(one, tmp_path / "a")
    save({**one, "b": torch.tensor([1.0, 1, 1, 1, 2]), "d": None}, tmp_path / "b")
    status, said, _ = say("diff", tmp_path / "a", tmp_path / "b", "--json")
    assert status == 1
    assert [each["path"] for each in json.loads(said)] == ["['b']", "['d']"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [1, 150, 300, 2000])
def test_what_differs_at_any_depth_differs(depth: int, way: str, tmp_path: Path, say: Say) -> None:
    if way == "JSON" and depth > 150:
        pytest.skip("JSON is not read so deep")
    for name, last in (("a", 1), ("b", 2), ("c", 1)):
        write_nested(way, depth, last, tmp_path / name)
    status, said, _ = say("diff", tmp_path / "a", tmp_path / "b", "--json")
    [found] = json.loads(said)
    assert (status, found["A"], found["B"]) == (1, "1", "2")
    assert say("diff", tmp_path / "a", tmp_path / "c")[0] == 0


def write_nested(way: str, depth: int, last: int, path: Path) -> None:
    """A file of a number within lists; pickle itself goes less deep."""
    data = b"\x80\x02" + depth * b"]" + b"K" + bytes([last]) + depth * b"a" + b"."
    if way == "JSON":
        path.write_text(f"{'[' * depth}{last}{']' * depth}")
    elif way == "checkpoint":
        sealed(path, torch_file(data))
    else:
        path.write_bytes(data if way == "pickle" else torch_file(data))


class Named:
    def __init__(self, name: Any) -> None:
        self.name = name


#: two values each that differ in something that is easily passed over
UNLIKE: dict[str, tuple[Any, Any]] = {
    "a key that is built": ({torch.device("cpu"): 1}, {torch.device("meta"): 1}),
    "a key of tuples": ({((1, 2), 3): 1}, {((1, 2), 4): 1}),
    "a number for a flag": ({"a": 1}, {"a": True}),
    "a float for a number": ({1: 1}, {1.0: 1}),
    "a tuple for a list": ([1, (2,)], [1, [2]]),
    "nothing for none": ({"a": None}, {}),
    "the sign of zero": (0.0, -0.0),
    "one NaN more": ([float("nan")], [float("nan")] * 2),
    "the end of a text": ("a" * 500 + "b", "a" * 500 + "c"),
    "the end of bytes": (b"a" * 500 + b"b", b"a" * 500 + b"c"),
    "the middle of a tensor": (torch.zeros(5000), (torch.arange(5000) == 2500).float()),
    "a parameter": tuple(torch.nn.Parameter(torch.full((2,), at)) for at in (1.0, 2.0)),
    "the type of a tensor": (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
    "a tensor's gradient": (torch.zeros(2), torch.zeros(2, requires_grad=True)),
    "a tensor's stride": (torch.eye(3), torch.eye(3).T),
    "an attribute of a dict": (ordered(1), ordered(2)),
    "what is called": (Named(1), Named(2)),
    "the class": (Noisy(4), range(4)),
    "what is shared": ([shared := [1], shared], [[1], [2]]),
    "many parts": (list(range(30_000)), [*range(29_999), 0]),
}


NOT_IN_JSON = ("a tensor's gradient", "a tensor's stride", "an attribute of a dict")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", UNLIKE)
def test_whatever_differs_is_a_difference(what: str, way: str, tmp_path: Path, say: Say) -> None:
    one, other = UNLIKE[what]
    try:
        WAYS[way]([one], tmp_path / "a")
        WAYS[way]([other], tmp_path / "b")
    except CannotSaveError:
        pytest.skip("JSON does not hold it")
    if way == "JSON" and what in NOT_IN_JSON:
        pytest.skip("JSON holds a tensor's numbers only, and no attributes")
    assert say("diff", tmp_path / "a", tmp_path / "b")[0] == 1
    assert say("diff", tmp_path / "a", tmp_path / "a")[0] == 0
    WAYS[way](copy.deepcopy([one]), tmp_path / "again")  # a file may name a tensor by its address
    assert say("diff", tmp_path / "a", tmp_path / "again")[0] == 0


def test_a_state_behind_many_parts_is_found(file: Path, say: Say) -> None:
    pickled([list(range(300_000)), after(2).state_dict()], file)
    status, said, _ = say("inspect", file)
    assert status == 0 and "state [1]" in said


def test_iterators_are_compared_without_running_them(tmp_path: Path, say: Say) -> None:
    for name, steps in (("a", 1), ("b", 1), ("c", 2)):
        pickled(after(steps), tmp_path / name)
    assert say("diff", tmp_path / "a", tmp_path / "b")[0] == 0
    status, said, _ = say("diff", tmp_path / "a", tmp_path / "c")
    assert status == 1 and ".state['step']" in said


# --- skip ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["checkpoint", "torch.save", "JSON"])
def test_a_state_is_moved_on_and_all_else_is_kept(way: str, tmp_path: Path, say: Say) -> None:
    iterator = after(1)
    content = {"data": iterator.state_dict(), "weights": torch.arange(3), "pair": (1, [2])}
    WAYS[way](content, tmp_path / "old")
    before = (tmp_path / "old").read_bytes()
    status, said, _ = say("skip", tmp_path / "old", "-n", 3, "-o", tmp_path / "new")
    assert status == 0 and "step 1 → 4" in said
    assert (tmp_path / "old").read_bytes() == before
    found = reading(way, tmp_path / "new")
    assert iterator.skip(3) == 3
    assert found["data"] == iterator.state_dict()
    assert torch.equal(found["weights"], content["weights"]) and found["pair"] == (1, [2])
    assert say("diff", tmp_path / "old", tmp_path / "new")[0] == 1


def reading(way: str, path: Path) -> Any:
    if way == "checkpoint":
        return load(path, weights_only=True)
    return from_json(path.read_text()) if way == "JSON" else torch.load(path, weights_only=True)


def test_the_programs_generators_stay_in_a_checkpoint_that_is_moved_on(
    tmp_path: Path, say: Say
) -> None:
    old, new, without = tmp_path / "old", tmp_path / "new", tmp_path / "without"
    iterator = after(1)
    save({"data": iterator.state_dict()}, old, save_rng=True)
    save({"data": iterator.state_dict()}, without)
    expected = torch.rand(2)
    status, said, _ = say("skip", old, "-n", 3, "-o", new, "--json")
    assert (status, json.loads(said)["states"][0]["path"]) == (0, "['data']")
    assert load(new, weights_only=True, restore_rng=True)["data"]["step"] == 4
    assert torch.equal(torch.rand(2), expected)
    status, said, _ = say("diff", old, without, "--json")
    assert status == 1
    assert [each["path"] for each in json.loads(said)] == ["(the program's generators)"]
    assert "the program's generators" in say("inspect", old)[1]


def test_a_file_may_take_its_own_place(file: Path, say: Say) -> None:
    save(after(1).state_dict(), file)
    status, said, _ = say("skip", file, "-n", 2, "-o", file, "--json")
    assert status == 0
    assert json.loads(said)["states"] == [{"path": "", "from": 1, "to": 3}]
    assert load(file)["step"] == 3


REFUSED: dict[str, Callable[[Path], object]] = {
    "streams": lambda path: save(
        after(1, DataLoader(StatefulIterator(), batch_size=3)).state_dict(), path
    ),
    "has 6 batches left": lambda path: save(after(1).state_dict(), path),
    "more than states": lambda path: save(after(1), path),
    "is a pickle": lambda path: pickled(after(1).state_dict(), path),
    "no state in it": lambda path: save({"a": 1}, path),
    "No such file": lambda path: None,
    "damaged": lambda path: path.write_text('{"a"'),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_moved_on_exactly_is_refused_and_nothing_is_written(
    why: str, tmp_path: Path, say: Say
) -> None:
    REFUSED[why](tmp_path / "old")
    status, said, complaint = say("skip", tmp_path / "old", "-n", 7, "-o", tmp_path / "new")
    assert (status, said) == (2, "")
    assert why in complaint and "old" in complaint
    assert not (tmp_path / "new").exists()


# --- verify --------------------------------------------------------------------------------------

MODULE = """
import itertools
import torch
from picklable_loader import DataLoader

class Counts(torch.utils.data.Dataset):
    count = itertools.count()
    def __len__(self): return 6
    def __getitem__(self, index): return index + 100 * next(self.count)

def exact(num_workers=0): return DataLoader(range(9), batch_size=3, shuffle=True, seed=1)
def counts(): return DataLoader(Counts(), batch_size=3)
def nothing(): return None
def raises(): raise ConnectionError("no such host")
"""


@pytest.fixture
def loaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of loaders in the folder at hand."""
    (tmp_path / "loaders_to_verify.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "loaders_to_verify"


def test_a_loader_that_resumes_exactly_is_told(loaders: str, say: Say) -> None:
    status, said, _ = say("verify", f"{loaders}:exact", "--num-workers", 0, "--json")
    told = json.loads(said)
    assert status == 0 and told["exact"] is True and told["batches"] == 3


def test_a_loader_that_does_not_is_told_where_and_why(loaders: str, say: Say) -> None:
    status, said, _ = say("verify", f"{loaders}:counts")
    assert status == 1
    assert "does not resume exactly" in said and "repeatability" in said and "counter" in said


@pytest.mark.parametrize("name", ["nothing", "absent", "", "raises"])
def test_without_a_loader_there_is_nothing_to_verify(name: str, loaders: str, say: Say) -> None:
    status, said, complaint = say("verify", f"{loaders}:{name}")
    assert (status, said) == (2, "") and loaders in complaint


# --- doctor --------------------------------------------------------------------------------------


def test_doctor_asks_for_the_versions_that_the_package_needs() -> None:
    setup = ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    needed = dict(line.split(">=") for line in setup["options"]["install_requires"].split())
    assert {name: doctor._numbers(least) for name, least in needed.items()} == doctor._NEEDED


def test_the_machine_is_described(say: Say) -> None:
    status, said, _ = say("doctor", "--json")
    told = {each["name"]: each for each in json.loads(said)}
    assert status == 0
    assert (
        told["torch"]["value"] == torch.__version__.split("+")[0] or "+" in told["torch"]["value"]
    )
    names = {"Python", "numpy", "cloudpickle", "dill", "cores", "start methods"}
    assert names | {"transport", "descriptors", "/dev/shm", "memory"} <= told.keys()
    assert "This machine" in say("doctor")[1]


def test_a_package_that_is_missing_or_old_is_named_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "dill" else "1.0")
    status, said, _ = say("doctor")
    assert status == 1
    assert "pip install 'dill>=0.3'" in said and "pip install 'torch>=2.6'" in said


def test_a_machine_without_arenas_is_told_so(monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    monkeypatch.setattr(doctor, "packets_work_here", lambda: False)
    status, said, _ = say("doctor")
    assert status == 0 and "portable, no memfd" in said


@pytest.mark.parametrize(
    ("text", "limit"), [("1000\n", (1000, 7)), ("max\n", None), (f"{2**62}", None)]
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_is_read(
    text: str, limit: tuple[int, int] | None, version: int, tmp_path: Path
) -> None:
    names = {1: ("limit_in_bytes", "usage_in_bytes"), 2: ("max", "current")}[version]
    folder = tmp_path / ("memory" if version == 1 else "")
    folder.mkdir(exist_ok=True)
    for name, content in zip(names, (text, "7"), strict=True):
        (folder / f"memory.{name}").write_text(content)
    assert memory_limit(tmp_path, tmp_path / "no groups") == limit
