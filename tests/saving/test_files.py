"""``save`` and ``load``: the old file or the new one, whole, whatever happens in between."""

from __future__ import annotations

import errno
import functools
import gc
import inspect
import itertools
import math
import multiprocessing
import os
import pickle
import random
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laws.observe import random_states, seen
from zoo.datasets import Noisy

from picklable_loader import DataLoader, LoaderIterator, load, save
from picklable_loader.errors import (
    CannotLoadError,
    CannotSaveError,
    DamagedStateError,
    ForeignStateError,
    NewerStateError,
    StateError,
    UsageError,
)
from picklable_loader.saving.files import checkpoint as files

FORK = multiprocessing.get_context("fork")


def make(num_workers: int = 0) -> DataLoader[Any]:
    return DataLoader(Noisy(), batch_size=3, shuffle=True, seed=7, num_workers=num_workers)


def after(steps: int, num_workers: int = 0) -> LoaderIterator[Any]:
    iterator = iter(make(num_workers))
    assert len(seen(iterator, steps)) == steps
    return iterator


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "last.ckpt"


# --- what can be saved ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_goes_on_where_it_was_saved(target: Path, num_workers: int) -> None:
    iterator = after(2, num_workers)
    save(iterator, target)
    assert seen(load(target)) == seen(iterator)


def test_a_whole_training_run_fits_into_one_file(target: Path) -> None:
    iterator, model = after(1), torch.nn.Linear(3, 2)
    save({"model": model.state_dict(), "it": iterator, "state": iterator.state_dict()}, target)
    found = load(target, map_location="cpu")
    loader = make()
    loader.load_state_dict(found["state"])
    assert torch.equal(found["model"]["weight"], model.weight)
    assert seen(found["it"]) == seen(iter(loader)) == seen(iterator)


def test_a_state_and_tensors_are_read_without_running_code(target: Path) -> None:
    iterator, weights = after(2), torch.arange(5)
    save({"weights": weights, "state": iterator.state_dict()}, target)
    found = load(target, weights_only=True)
    loader = make()
    loader.load_state_dict(found["state"])
    assert found["state"] == iterator.state_dict() and torch.equal(found["weights"], weights)
    assert seen(iter(loader)) == seen(iterator)


@functools.cache
def values_of_torch() -> dict[str, Any]:
    """What torch.save writes and torch reads without code."""
    base = torch.arange(100.0)
    model = torch.nn.LSTM(4, 4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4))[0].sum().backward()
    optimizer.step()
    floats = (torch.half, torch.bfloat16, torch.double, torch.cfloat, torch.float8_e4m3fn)
    whole = (torch.int8, torch.uint8, torch.bool, torch.uint16, torch.int64)
    return {
        "views": [base[3:9], base[::3], base.reshape(10, 10).T, base[5:5], base[3]],
        "nothing": [torch.empty(0), torch.empty(0, 3), torch.empty(3, 0, 2)],
        "repeated numbers": [torch.arange(5).expand(1000, 5), torch.zeros(1).expand(10**6)],
        "dtypes": [torch.zeros(3).to(dtype) for dtype in (*floats, *whole)],
        "conjugated": torch.tensor([1 + 2j]).conj(),
        "layouts": [torch.eye(3).to_sparse(), torch.empty(3, device="meta")],
        "values": [2**70, 1j, b"b", bytearray(b"c"), {1, 2}, torch.Size([1]), torch.float32],
        "keys": {1: 1, 2.5: 1, (1, 2): 1, ((1, 2), (3, (4,))): 1, None: 1, 2**65: 1, b"x": 1},
        "many keys": {(at * 2654435761) % 2**64: at for at in range(3000)},
        "one dict often": [{"a": 1}] * 100,
        "sets": [set(range(1000)), *({at} for at in range(1000))],
        "generators": [torch.get_rng_state(), random.getstate()],
        "a model": [model.state_dict(), optimizer.state_dict(), list(model.parameters())],
    }


@pytest.mark.parametrize("name", list(values_of_torch()))
def test_what_torch_reads_without_code_is_read(name: str, target: Path) -> None:
    value = values_of_torch()[name]
    save(value, target)
    assert repr(load(target, weights_only=True)) == repr(value)


def test_tensors_that_share_memory_share_it_afterwards(target: Path) -> None:
    shared = torch.zeros(4)
    save([shared, shared[1:]], target)
    one, other = load(target)
    one[1] = 5
    assert other[0] == 5


def test_saving_disturbs_no_iterator_and_no_generator(target: Path) -> None:
    iterator, other = after(2), after(2)
    before = random_states()
    save(iterator, target)
    assert random_states() == before
    load(target)
    assert random_states() == before
    assert seen(iterator) == seen(other)


def test_an_iterator_without_running_code_is_refused_and_the_way_out_is_named(target: Path) -> None:
    save(after(1), target)
    with pytest.raises(UsageError, match=r"last\.ckpt(.|\n)*weights_only=False"):
        load(target, weights_only=True)


# --- where ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_a_path_may_be_of_any_kind(target: Path, kind: Callable[[Path], Any]) -> None:
    save(1, kind(target))
    assert load(kind(target)) == 1


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(1, "here.ckpt")
    assert load("here.ckpt") == load(tmp_path / "here.ckpt") == 1


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 255)
    save(1, target)
    assert load(target) == 1


def test_a_link_goes_on_to_lead_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    file, link = tmp_path / "far" / "step_1.ckpt", tmp_path / "last.ckpt"
    link.symlink_to(file)
    for value in (1, 2):  # a link that leads nowhere yet, and one that does
        save(value, link)
        assert link.is_symlink()
        assert load(file) == load(link) == value
    assert sorted(os.listdir(tmp_path)) == ["far", "last.ckpt"]
    assert os.listdir(tmp_path / "far") == ["step_1.ckpt"]


def test_a_link_that_the_system_does_not_follow_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kernel does with somebody else's link in a folder that everybody may write to."""
    file, link = tmp_path / "file", tmp_path / "link"
    save(1, file)
    link.symlink_to(file)
    follow = os.stat

    def refuse(path: Any, **more: Any) -> os.stat_result:
        if path == link:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return follow(path, **more)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(PermissionError):
        save(2, link)
    monkeypatch.undo()
    assert load(file) == 1 and sorted(os.listdir(tmp_path)) == ["file", "link"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o4755, 0o2644, 0o1666])
def test_the_new_file_has_the_permissions_and_no_other_bits(target: Path, mode: int) -> None:
    save(1, target)
    target.chmod(mode)
    save(2, target)
    assert stat.S_IMODE(target.stat().st_mode) == mode & 0o777


def test_a_folder_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as raised:
        save(1, tmp_path)
    assert raised.value.filename == str(tmp_path)
    assert os.listdir(tmp_path) == []


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="regular file"):
        save(1, pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_that_is_missing_is_named_by_the_path_that_was_given(tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "last.ckpt"
    with pytest.raises(FileNotFoundError) as raised:
        save(1, target)
    assert raised.value.filename == str(target)


def test_a_class_that_has_moved_is_named_with_the_way_out(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save({"thing": MovedAway()}, target)
    monkeypatch.delitem(globals(), "MovedAway")
    with pytest.raises(CannotLoadError, match="MovedAway.*importable under that name") as raised:
        load(target)
    assert str(target) in str(raised.value)


class MovedAway:
    pass


def test_a_file_that_is_missing_is_missing(target: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(target)


def test_a_file_that_is_write_protected_stays(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(1, target)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(PermissionError):
        save(2, target)
    assert load(target) == 1


def test_an_open_file_is_not_a_path(target: Path) -> None:
    with open(target, "wb") as file, pytest.raises(TypeError):
        save(1, file)  # type: ignore[arg-type]


def test_a_new_file_has_the_permissions_of_any_new_file(target: Path) -> None:
    before = os.umask(0o027)
    try:
        save(1, target)
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


# --- what goes wrong while it is written ---------------------------------------------------------


class Unpicklable:
    def __reduce__(self) -> Any:
        raise CannotSaveError("it", "it is a test", "Do not")


@contextmanager
def only_whole_files_in(folder: Path) -> Iterator[None]:
    """The old checkpoint is there afterwards, and nothing else."""
    save("old", folder / "last.ckpt")
    yield
    assert os.listdir(folder) == ["last.ckpt"]
    assert load(folder / "last.ckpt") == "old"


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (Unpicklable(), CannotSaveError),
        ([torch.ones(9), lambda: 1], (AttributeError, pickle.PicklingError)),
    ],
    ids=["refused", "lambda"],
)
def test_what_cannot_be_pickled_leaves_the_old_file(target: Path, what: Any, error: Any) -> None:
    with only_whole_files_in(target.parent), pytest.raises(error):
        save(what, target)


@pytest.mark.parametrize("room", [0, 40, 56, 57, 200, 1000, 5000, 40_000, 80_600])
def test_a_full_disk_leaves_the_old_file_and_no_other(target: Path, room: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with only_whole_files_in(target.parent):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            with pytest.raises(OSError) as raised:
                save({"weights": torch.zeros(10_000), "more": torch.zeros(10_000)}, target)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert raised.value.errno == errno.EFBIG


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", ["fsync", "replace", "fchmod"])
def test_an_error_of_any_call_leaves_the_old_file_and_no_other(
    target: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    with only_whole_files_in(target.parent), monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(type(error)):
            save("new", target)


@pytest.mark.parametrize("write", [1, 2, 9, 40])
def test_ctrl_c_as_torch_writes_is_that_and_leaves_the_old_file(target: Path, write: int) -> None:
    """Torch's writer made an error of its own of it, and then ended the process."""
    written = files._Written.write.__code__
    calls = itertools.count(1)

    def pressed(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is written and next(calls) == write:
            raise KeyboardInterrupt

    before = sys.getprofile()
    with only_whole_files_in(target.parent):
        sys.setprofile(pressed)
        try:
            with pytest.raises(KeyboardInterrupt):
                save([torch.zeros(1000) for _ in range(20)], target)
        finally:
            sys.setprofile(before)
        gc.collect()  # the traceback holds torch's writer


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_folder_may_not_be_made_for_it_but_a_new_name_has_to_survive(
    number: int, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(OSError) if number == errno.EIO else nullcontext():
        save(1, target)
    assert load(target) == 1


def test_file_and_folder_are_on_the_disk_in_that_order(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    sync, replace = os.fsync, os.replace

    def noted_sync(descriptor: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def noted_replace(*names: str) -> None:
        calls.append("name")
        replace(*names)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    save(1, target)
    assert calls == ["file", "name", "folder"]


# --- struck at any moment ------------------------------------------------------------------------


class Struck:
    """Stands for the module ``os``, and for ``open``; strikes before or after one of their calls.

    Args:
        life: so many moments pass before that.
        strike: what happens then.
    """

    def __init__(self, life: float, strike: Callable[[], None]) -> None:
        self.life, self._strike = life, strike
        self.moments = 0

    def moment(self) -> None:
        self.moments += 1
        if self.moments == self.life:
            self._strike()

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        return self._around(found) if inspect.isroutine(found) else found

    def open_file(self, *arguments: Any) -> Torn:
        self.moment()
        return Torn(open(*arguments, buffering=0), self.moment)

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def struck(*arguments: Any, **named: Any) -> Any:
            self.moment()
            result = call(*arguments, **named)
            self.moment()
            return result

        return struck


class Torn:
    """A file that is written in halves, with a moment in between."""

    def __init__(self, file: Any, moment: Callable[[], None]) -> None:
        self._file, self._moment = file, moment

    def write(self, data: Any) -> int:
        half = len(data) // 2
        self._file.write(memoryview(data)[:half])
        self._moment()
        self._file.write(memoryview(data)[half:])
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Torn:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def save_struck(value: Any, target: Path, life: float, strike: Callable[[], None]) -> int:
    """Save, and strike in between; returns how many moments there were."""
    struck = Struck(life, strike)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "os", struck)
        patch.setattr(files, "open", struck.open_file, raising=False)
        save(value, target)
    return struck.moments


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def moments(target: Path) -> int:
    """How many there are while a file is replaced."""
    save(OLD, target)
    return save_struck(NEW, target, math.inf, die)


OLD = {"state": 1, "weights": torch.zeros(3)}
NEW = {"state": [1, 2, 3], "weights": torch.ones(99)}


def is_new(target: Path) -> bool:
    """The new file is there, whole; if not, the old one."""
    found = load(target)
    expected = OLD if found["state"] == 1 else NEW
    assert found["state"] == expected["state"]
    assert torch.equal(found["weights"], expected["weights"])  # type: ignore[arg-type]
    return expected is NEW


def killed(target: Path, life: int) -> None:
    """Save over the file, and be killed in between."""
    child = FORK.Process(target=save_struck, args=(NEW, target, life, die))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    child.close()


def test_a_process_killed_at_any_moment_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    found = []
    for life in range(1, moments(tmp_path / "measured.ckpt") + 1):
        target = tmp_path / f"{life}.ckpt"
        save(OLD, target)
        killed(target, life)
        found.append(is_new(target))
    assert found.count(False) > 30
    assert found == sorted(found) and found[-1], "from some moment on it is the new one"


def test_ctrl_c_at_any_moment_leaves_the_old_file_or_the_new_one_and_no_other(
    target: Path,
) -> None:
    for life in range(1, moments(target) + 1):
        save(OLD, target)
        with pytest.raises(KeyboardInterrupt):
            save_struck(NEW, target, life, press_ctrl_c)
        is_new(target)
        assert os.listdir(target.parent) == [target.name], life


def test_what_a_killed_process_leaves_is_no_checkpoint(target: Path) -> None:
    killed(target, moments(target) // 2)
    (left,) = set(os.listdir(target.parent)) - {target.name}
    with pytest.raises(DamagedStateError):
        load(target.parent / left)


def test_what_killed_processes_left_an_hour_ago_is_removed_and_nothing_else(target: Path) -> None:
    stale = target.parent / f".last.ckpt.{'0' * 16}.unfinished"
    kept = [
        target.parent / f".last.ckpt.{'1' * 16}.unfinished",  # it may be written to right now
        target.parent / f".first.ckpt.{'0' * 16}.unfinished",
        target.parent / "last.ckpt.unfinished",
        target.parent / ".last.ckpt.mine.unfinished",
    ]
    for path in (stale, *kept):
        path.write_bytes(b"")
        os.utime(path, (0, time.time() - 3700))
    os.utime(kept[0], (0, time.time() - 60))
    save(1, target)
    assert set(target.parent.iterdir()) == {target, *kept}


# --- at the same time ----------------------------------------------------------------------------


def save_often(value: int, target: Path) -> None:
    for _ in range(20):
        save([value] * 10_000, target)


@pytest.mark.parametrize("start", [FORK.Process, threading.Thread])
def test_savers_at_the_same_time_do_not_mix(target: Path, start: Any) -> None:
    save([0] * 10_000, target)
    savers = [start(target=save_often, args=(value, target)) for value in (1, 2, 3)]
    for saver in savers:
        saver.start()
    while any(saver.is_alive() for saver in savers):
        assert len(set(load(target))) == 1
    for saver in savers:
        saver.join()
    assert load(target)[0] in (1, 2, 3)
    assert os.listdir(target.parent) == [target.name]


# --- damage --------------------------------------------------------------------------------------


class Tripwire:
    """Tells when it is unpickled."""

    unpickled = 0

    def __reduce__(self) -> Any:
        return Tripwire.made, ()

    @staticmethod
    def made() -> None:
        Tripwire.unpickled += 1


def refused(target: Path, data: bytes | bytearray) -> StateError:
    """The error that these bytes give, of which nothing was unpickled."""
    target.unlink(missing_ok=True)  # to write over a file takes some systems milliseconds
    target.write_bytes(data)
    before = Tripwire.unpickled
    with pytest.raises(StateError) as raised:
        load(target)
    assert Tripwire.unpickled == before
    error = raised.value.with_traceback(None)
    del raised  # a cycle with this frame: 1,260 buffers of 1 MB would make each later fork slow
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)
    return error


@pytest.fixture
def whole(target: Path) -> bytes:
    save([after(1).state_dict(), Tripwire()], target)
    load(target)
    assert Tripwire.unpickled
    return target.read_bytes()


def test_every_truncation_is_damage(target: Path, whole: bytes) -> None:
    for length in range(len(whole)):
        assert type(refused(target, whole[:length])) is DamagedStateError


def test_whatever_is_appended_is_damage(target: Path, whole: bytes) -> None:
    for more in (b"\0", b"\n", whole):
        assert type(refused(target, whole + more)) is DamagedStateError


def test_every_flipped_bit_of_the_header_is_found(target: Path, whole: bytes) -> None:
    for bit in range(56 * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        kind = ForeignStateError if bit < 64 else DamagedStateError
        assert type(refused(target, flipped)) is kind


def test_every_changed_byte_is_damage(target: Path, whole: bytes) -> None:
    chance = random.Random(1)
    for at in range(56, len(whole)):
        changed = bytearray(whole)
        changed[at] ^= chance.randrange(1, 256)
        assert type(refused(target, changed)) is DamagedStateError


def test_changes_anywhere_in_a_large_file_are_damage(target: Path) -> None:
    save({"weights": torch.zeros(300_000), "state": after(1).state_dict()}, target)
    whole = target.read_bytes()
    chance = random.Random(2)
    for _ in range(100):
        changed = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(56, len(whole))] ^= chance.randrange(1, 256)
        assert changed == whole or type(refused(target, changed)) is DamagedStateError


def test_blocks_of_zeros_that_a_power_failure_leaves_are_damage(target: Path, whole: bytes) -> None:
    for start in (0, 56, 512):
        error = refused(target, whole[:start] + bytes(len(whole) - start))
        assert type(error) is DamagedStateError


@given(data=st.binary(max_size=200))
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_bytes_of_anything_else_are_refused(target: Path, data: bytes) -> None:
    assert isinstance(refused(target, data), (DamagedStateError, ForeignStateError))


def test_a_damaged_file_is_named_with_what_was_expected_and_found(
    target: Path, whole: bytes
) -> None:
    error = refused(target, whole[:-1])
    assert isinstance(error, DamagedStateError)
    assert error.field == str(target)
    assert str(len(whole)) in str(error) and str(len(whole) - 1) in str(error)
    assert "earlier checkpoint" in str(error)


def test_a_file_of_torch_save_is_foreign_and_the_way_out_is_named(target: Path) -> None:
    torch.save(after(1).state_dict(), target)
    error = refused(target, target.read_bytes())
    assert isinstance(error, ForeignStateError)
    assert "torch.load" in str(error) and "last.ckpt" in str(error)


def test_a_file_of_a_later_version_asks_for_an_upgrade(target: Path, whole: bytes) -> None:
    error = refused(target, files._origin(2) + b"another layout altogether")
    assert isinstance(error, NewerStateError)
    assert (error.found, error.supported) == (2, 1)
    assert "upgrade" in str(error)


def test_the_format_is_the_one_that_is_written_down(target: Path) -> None:
    """Checkpoints of this version must be read by every later one."""
    save({"a": 1}, target)
    data = target.read_bytes()
    assert data[:16] == b"\x89PLOAD\r\n" + bytes.fromhex("00000001 aff2cd32")
    assert int.from_bytes(data[16:24], "big") == len(data) - 56
    assert data[56:60] == b"PK\x03\x04"


def test_a_checkpoint_of_the_first_version_is_read() -> None:
    # written by save({"state": after(2).state_dict(), "weights": torch.arange(3)}, path)
    found = load(Path(__file__).parents[1] / "golden" / "version_1.ckpt", weights_only=True)
    assert found["weights"].tolist() == [0, 1, 2]
    loader = make()
    loader.load_state_dict(found["state"])
    assert seen(iter(loader)) == seen(after(2))
