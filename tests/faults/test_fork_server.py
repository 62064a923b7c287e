"""The fork server dies, say of a signal to the whole job: the pass goes on, with other workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from picklable_loader import DataLoader
from picklable_loader.errors import RestartWarning
from picklable_loader.fetching.pool.new_processes import start
from picklable_loader.fetching.pool.shutdown import wait_for_end

from .test_deaths import lists
from .ways import Remembers, Samples, Stateful, Stream

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="nobody can wait for a process that is not a child"
)

FROM_SERVER = multiprocessing.get_context("forkserver")

#: Python's own; it has no public attributes
SERVER: Any = getattr(forkserver, "_forkserver")

#: seconds that a test waits for what is sure to come
PATIENCE_S = 30.0


def server() -> int:
    """The process number of the fork server, started if need be."""
    forkserver.ensure_running()
    pid: int = SERVER._forkserver_pid
    return pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize(
    "dataset, more",
    [
        (Samples(), {}),
        (Samples(), {"seeding": "worker"}),
        (Samples(), {"in_order": False}),
        (Samples(), {"persistent_workers": True}),
        (Remembers(), {}),
        (Stream(), {}),
        (Stateful(), {}),
    ],
)
def test_a_pass_whose_fork_server_dies_gives_the_same_batches_and_leaves_no_worker(
    dataset: Any, more: dict[str, Any], number: signal.Signals
) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(
            dataset, 2, seed=3, num_workers=2, multiprocessing_context=FROM_SERVER, **more
        )

    expected = lists(loader())
    with ExitStack() as files:
        with closing(iter(loader())) as batches:
            seen = [next(batches)]
            children = multiprocessing.active_children()
            workers = [os.pidfd_open(child.pid) for child in children if child.pid is not None]
            for file in workers:
                files.callback(os.close, file)
            os.kill(server(), number)
            for child in children:
                assert wait([child.sentinel], PATIENCE_S)
            with pytest.warns(RestartWarning, match="the fork server has died"):
                seen += batches
        assert len(workers) == 2
        for file in workers:
            assert wait([file], PATIENCE_S)
    if "in_order" in more:
        assert sorted(lists(seen)) == sorted(expected)
    else:
        assert lists(seen) == expected


def a_process(target: Callable[..., Any] = os._exit) -> BaseProcess:
    return FROM_SERVER.Process(target=target, args=(3,))


def test_a_process_starts_although_the_fork_server_is_about_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its socket refuses a moment before it has ended; Python asks only whether it has."""
    os.kill(server(), signal.SIGKILL)
    ask, asked = SERVER.ensure_running, []

    def not_yet() -> None:
        asked.append(True)
        if len(asked) > 1:
            ask()

    assert wait_for_end(SERVER._forkserver_pid)
    monkeypatch.setattr(SERVER, "ensure_running", not_yet)
    monkeypatch.setattr(forkserver, "ensure_running", not_yet)
    process = a_process()
    start(process)
    process.join()
    assert process.exitcode == 3 and len(asked) > 1


def test_an_error_that_is_no_end_of_a_fork_server_is_raised_and_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(process: BaseProcess) -> None:
        raise ConnectionRefusedError

    process = FROM_SERVER.Process(target=os._exit, args=(0,))
    monkeypatch.setattr(type(process), "start", fails)
    monkeypatch.setattr(SERVER, "_forkserver_pid", None)
    with pytest.raises(ConnectionRefusedError):
        start(process)


def test_a_process_is_sent_a_signal_and_waited_for_and_may_be_gone() -> None:
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", "input()"])
    assert wait_for_end(pid, signal.SIGKILL)
    assert wait_for_end(pid)  # it waits to be asked for its exit code
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert wait_for_end(pid)
