"""save_on_signal: a checkpoint between two steps, written once, whatever else comes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from picklable_loader import DataLoader, load, save_on_signal
from picklable_loader.errors import UsageError

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    before = [signal.getsignal(each) for each in SIGNALS]
    yield
    assert [signal.getsignal(each) for each in SIGNALS] == before


def come(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_preempted_epoch_goes_on_with_the_next_batch(
    number: signal.Signals, num_workers: int, tmp_path: Path
) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(range(20), 2, shuffle=True, seed=1, num_workers=num_workers)

    loader, seen = make(), []
    with save_on_signal(tmp_path / "file", lambda: loader.state_dict()) as stop:
        for step, batch in enumerate(loader):
            if step == 3:
                come(number)  # within a step: the handler only notes it
            assert not (tmp_path / "file").exists()
            seen += batch.tolist()
            if stop():
                break
    assert stop.received is number and step == 3
    again = make()
    again.load_state_dict(load(tmp_path / "file", weights_only=True))
    assert seen + torch.cat([*again]).tolist() == torch.cat([*make()]).tolist()


def test_within_itself_it_is_refused_and_puts_the_handlers_back(tmp_path: Path) -> None:
    saving = save_on_signal(tmp_path / "file", dict)
    with saving:
        with pytest.raises(UsageError, match="entered already"):
            saving.__enter__()
        come()
    assert saving.saved


def test_what_could_not_be_saved_is_noticed_when_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="make_checkpoint should be callable, got {'a': 1}"):
        save_on_signal(tmp_path / "file", {"a": 1})  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="needs its folder.*no folder"):
        save_on_signal(tmp_path / "no folder" / "file", dict)


def test_without_a_signal_nothing_is_written(tmp_path: Path) -> None:
    with save_on_signal(tmp_path / "file", dict) as stop:
        assert not stop()
    assert stop.received is None and not stop.saved and not (tmp_path / "file").exists()


def test_signals_while_it_is_written_change_nothing(tmp_path: Path) -> None:
    class Slow:
        """Signals come in the midst of its pickle."""

        made = 0

        def __reduce__(self) -> Any:
            Slow.made += 1
            for each in SIGNALS:
                come(each)
            return dict, ()

    with save_on_signal(tmp_path / "file", Slow) as stop:
        come()
        assert stop() and stop()
    assert Slow.made == 1 and load(tmp_path / "file") == {}


def test_a_signal_after_the_last_step_is_served_at_the_end(tmp_path: Path) -> None:
    with save_on_signal(tmp_path / "file", lambda: {"done": True}) as stop:
        assert not stop()
        come()
    assert load(tmp_path / "file") == {"done": True}


def test_after_an_exception_nothing_is_written_as_a_step_may_be_half_done(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), save_on_signal(tmp_path / "file", dict):
        come()
        raise ZeroDivisionError
    assert not (tmp_path / "file").exists()


def test_it_can_be_entered_again_and_begins_anew(tmp_path: Path) -> None:
    numbers = iter(range(9))
    stop = save_on_signal(tmp_path / "file", lambda: next(numbers))
    for number in range(2):
        with stop:
            assert not stop() and stop.received is None and not stop.saved
            come()
            assert stop() and stop.saved
        assert load(tmp_path / "file") == number


def test_a_checkpoint_that_cannot_be_made_is_tried_again(tmp_path: Path) -> None:
    tries = iter([ZeroDivisionError(), {"done": True}])

    def make() -> Any:
        found = next(tries)
        if isinstance(found, Exception):
            raise found
        return found

    with save_on_signal(tmp_path / "file", make) as stop:
        come()
        with pytest.raises(ZeroDivisionError):
            stop()
        assert stop()
    assert load(tmp_path / "file") == {"done": True}


def test_another_thread_and_a_signal_that_cannot_be_handled_are_refused(tmp_path: Path) -> None:
    caught: list[Exception] = []

    def enter() -> None:
        try:
            with save_on_signal(tmp_path / "file", dict):
                pass
        except UsageError as error:
            caught.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])
    with pytest.raises(OSError), save_on_signal("file", dict, [signal.SIGTERM, signal.SIGKILL]):
        pass


SCRIPT = """
import os, signal, sys
from picklable_loader import DataLoader, load, save_on_signal
path = sys.argv[1]
method = sys.argv[2]
loader = DataLoader(
    range(40), 2, shuffle=True, seed=1, num_workers=2, multiprocessing_context=method
)
if os.path.exists(path):
    loader.load_state_dict(load(path, weights_only=True))
with save_on_signal(path, lambda: loader.state_dict()) as stop:
    for batch in loader:
        print(*batch.tolist(), flush=True)
        if stop():
            break
        if "wait" in sys.argv:
            sys.stdin.readline()
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_signal_to_the_whole_job_reaches_workers_too_and_loses_nothing(
    tmp_path: Path, method: str
) -> None:
    """A cluster sends SIGTERM to all processes of a job, its fork server among them."""
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "file"), method]
    whole = subprocess.run(words, capture_output=True, text=True, timeout=60).stdout
    job = subprocess.Popen(
        [*words, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, start_new_session=True,
    )  # fmt: skip
    assert job.stdin is not None and job.stdout is not None
    first = job.stdout.readline()
    os.killpg(job.pid, signal.SIGTERM)
    rest, _ = job.communicate("\n" * 40, timeout=60)
    assert job.returncode == 0 and (tmp_path / "file").exists()
    seen = first + rest
    after = subprocess.run(words, capture_output=True, text=True, timeout=60).stdout
    assert 0 < seen.count("\n") < 20 and seen + after == whole


FORK = multiprocessing.get_context("fork")


def ended(helper: BaseProcess) -> int | None:
    """The exit code of a helper that ends, or is to end."""
    helper.join(30)
    exitcode = helper.exitcode
    helper.kill()
    helper.join()
    return exitcode


def test_a_forked_helper_ends_as_without_it_even_at_once(tmp_path: Path) -> None:
    """A helper of multiprocessing, or a worker of torch's."""
    with save_on_signal(tmp_path / "1", dict), save_on_signal(tmp_path / "2", dict) as inner:
        for _ in range(20):  # the signal may come before its first line, or later
            asked, answer = FORK.Pipe()
            helper = FORK.Process(target=answer.recv)
            helper.start()
            helper.terminate()
            assert ended(helper) == -signal.SIGTERM
        come()
        assert inner.received is signal.SIGTERM  # this process has its handlers still


def test_a_forked_helper_has_the_programs_own_handlers(tmp_path: Path) -> None:
    def noted(number: int, frame: Any) -> None:
        os._exit(7)

    before = signal.signal(signal.SIGUSR1, noted)
    try:
        with save_on_signal(tmp_path / "file", dict):
            helper = FORK.Process(target=come, args=[signal.SIGUSR1])
            helper.start()
            assert ended(helper) == 7
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_forked_helper_writes_nothing_though_the_signal_came_before(tmp_path: Path) -> None:
    def leave() -> None:
        with stop:
            pass
        os._exit(1 if stop() else 7)

    with save_on_signal(tmp_path / "file", os.getpid) as stop:
        come()
        helper = FORK.Process(target=leave)
        helper.start()
        assert ended(helper) == 7 and not (tmp_path / "file").exists()
    assert load(tmp_path / "file") == os.getpid()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_the_programs_generators_a_run_without_a_seed_goes_on_exactly(
    num_workers: int, tmp_path: Path
) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(range(20), 2, shuffle=True, num_workers=num_workers)

    def train(loader: DataLoader[Any], batches: Any) -> list[Any]:
        """The rest of an epoch, and the next one, with a dropout of the program's own."""
        rest = [(each.tolist(), torch.rand(1).item()) for each in batches]
        return [*rest, *((each.tolist(), torch.rand(1).item()) for each in loader)]

    torch.manual_seed(3)
    loader = make()
    with save_on_signal(tmp_path / "file", loader.state_dict, save_rng=True) as stop:
        batches = iter(loader)
        for _ in range(3):
            next(batches), torch.rand(1)
        come()
        assert stop()
    expected = train(loader, batches)
    torch.manual_seed(4)
    again = make()
    again.load_state_dict(load(tmp_path / "file", weights_only=True, restore_rng=True))
    assert train(again, iter(again)) == expected
