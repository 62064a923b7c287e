"""The pool: workers start, answer, die and are retired, and none is ever left."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import os
import pickle
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from zoo.datasets import as_they_are

from picklable_loader import DataLoader
from picklable_loader.core.events import Failed
from picklable_loader.core.task import Task
from picklable_loader.fetching.pool.exit import Death, likely_cause, unexpected
from picklable_loader.fetching.pool.pool import Pool
from picklable_loader.fetching.pool.shutdown import retire
from picklable_loader.fetching.transport.channels import Lines
from picklable_loader.fetching.transport.messages import (
    Answer,
    EpochStart,
    Request,
    encode_request,
)
from picklable_loader.fetching.transport.pipes import PipeLines
from picklable_loader.fetching.transport.seqpacket import PacketLines
from picklable_loader.fetching.worker.fetch import Job
from picklable_loader.fetching.worker.loop import WorkerConfig

METHODS = pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])

#: seconds that a test waits for what is sure to come
PATIENCE_S = 60.0


class Squares:
    def __getitem__(self, index: int) -> int:
        return index * index


class Pids:
    """Tells who read it."""

    def __getitem__(self, index: int) -> int:
        return os.getpid()


class Large:
    """A sample larger than any pipe."""

    def __getitem__(self, index: int) -> bytes:
        return bytes([index]) * 4_000_000


class Dies:
    """Sample 0 ends the process that reads it, and any above kills it by that signal."""

    def __getitem__(self, index: int) -> int:
        if index < 0:
            return index
        if index == 0:
            os._exit(7)
        os.kill(os.getpid(), index)
        return signal.pause() or 0  # type: ignore[func-returns-value]


def a_block(pid: int) -> Path:
    """A name such as torch gives to shared memory while it is being made."""
    return Path(f"/dev/shm/torch_{pid}_1234567890_0")


class DiesInTheMiddle:
    """Its process is killed while torch makes shared memory."""

    def __getitem__(self, index: int) -> int:
        a_block(os.getpid()).write_bytes(bytes(8))
        os.kill(os.getpid(), signal.SIGKILL)
        return signal.pause() or 0  # type: ignore[func-returns-value]


class Stubborn:
    """Ignores the request to end, and SIGTERM, once it is asked for a sample."""

    def __init__(self, ready: Connection[Any, Any]) -> None:
        self.ready = ready

    def __getitem__(self, index: int) -> int:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.ready.send("ready")
        while True:
            signal.pause()


def job(dataset: Any) -> Job:
    return Job(dataset, as_they_are, iterable=False, batched=True)


def request(step: int, *indices: int, begins: bool = True, ticket: int = 0) -> bytes:
    begin = EpochStart(0, 1) if begins else None
    return encode_request(Request(0, Task(step, list(indices), 0), begin, ticket=ticket))


LINES: dict[str, Callable[[], Lines]] = {
    "packets": lambda: PacketLines(workers_fixed=True),
    "pipes": PipeLines,
}


@pytest.fixture(params=LINES)
def lines(request: pytest.FixtureRequest) -> Callable[[], Lines]:
    """Makes lines of each kind."""
    return LINES[request.param]


@pytest.fixture
def start(lines: Callable[[], Lines]) -> Iterator[Callable[..., Pool]]:
    """Starts pools, which are retired after the test."""
    pools: list[Pool] = []

    def make(dataset: Any, workers: int = 1, method: str = "fork") -> Pool:
        posts = [WorkerConfig(worker, workers, base_seed=5) for worker in range(workers)]
        pool = Pool(multiprocessing.get_context(method), job(dataset), posts, lines())
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.retire()


def answers(pool: Pool, count: int) -> list[Answer]:
    found: list[Answer] = []
    while len(found) < count:
        some = pool.lines.wait(PATIENCE_S)
        assert some, "no answer came"
        for worker, frame in some:
            answer = pool.lines.read(worker, frame)
            assert answer.worker == worker
            found.append(answer)
    return found


def children() -> set[int | None]:
    return {child.pid for child in multiprocessing.active_children()}


# --- work ----------------------------------------------------------------------------------------


@pytest.mark.costly
@METHODS
def test_workers_answer_under_every_start_method(start: Callable[..., Pool], method: str) -> None:
    pool = start(Squares(), 2, method)
    assert len(set(pool.pids)) == 2 and None not in pool.pids
    for worker in (0, 1):
        pool.lines.post(worker, request(worker, worker + 2, worker + 3))
    found = {answer.step: (answer.worker, answer.payload) for answer in answers(pool, 2)}
    assert found == {0: (0, [4, 9]), 1: (1, [9, 16])}
    pool.retire()
    assert pool.pids == [] and not children()


def test_the_pids_are_those_of_the_workers_in_their_order(start: Callable[..., Pool]) -> None:
    pool = start(Pids(), 3)
    for worker in range(3):
        pool.lines.post(worker, request(worker, 0))
    found = {answer.worker: answer.payload[0] for answer in answers(pool, 3)}
    assert [found[worker] for worker in range(3)] == pool.pids
    assert children() == set(pool.pids)


def test_a_worker_answers_in_the_order_of_its_requests(start: Callable[..., Pool]) -> None:
    pool = start(Squares())
    for step in range(20):
        pool.lines.post(0, request(step, step, begins=not step))
    found = answers(pool, 20)
    assert [(answer.step, answer.payload) for answer in found] == [
        (step, [step**2]) for step in range(20)
    ]


def test_wait_comes_back_with_an_answer_or_when_the_time_is_up(start: Callable[..., Pool]) -> None:
    pool = start(Squares(), 2)
    assert pool.lines.wait(0.0) is None
    assert pool.lines.wait(0.01) is None
    pool.lines.post(0, request(0, 3))
    [(worker, frame)] = pool.lines.wait(None)
    assert (worker, pool.lines.read(worker, frame).payload) == (0, [9])
    assert pool.lines.wait(0.0) is None


def test_large_answers_and_large_requests_never_block_each_other(
    start: Callable[..., Pool],
) -> None:
    pool = start(Large(), 2)
    for step in range(6):
        padding = [step] * (1 + 20_000 * (step > 1))
        padded = Task(step, Padded(padding), 0)
        pool.lines.post(step % 2, encode_request(Request(0, padded, EpochStart(0, 1))))
    found = answers(pool, 6)
    assert {answer.step: answer.payload for answer in found} == {
        step: [bytes([step]) * 4_000_000] for step in range(6)
    }


class Padded(list[int]):
    """A long list of which only the first index is asked for."""

    def __iter__(self) -> Iterator[int]:
        yield self[0]

    def __reduce__(self) -> Any:
        return Padded, (self[:],)


def test_a_failure_is_an_answer_and_the_worker_lives_on(start: Callable[..., Pool]) -> None:
    pool = start([10, 11])
    pool.lines.post(0, request(0, 5))
    assert answers(pool, 1)[0].kind is Failed
    pool.lines.post(0, request(1, 1, begins=False))
    assert answers(pool, 1)[0].payload == [11]


# --- death ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_killed_is_named_with_its_signal(
    start: Callable[..., Pool], number: signal.Signals, method: str
) -> None:
    pool = start(Dies(), 1, method)
    [pid] = pool.pids
    pool.lines.post(0, request(0, number))
    assert pool.lines.wait(PATIENCE_S) == []
    assert pool.deaths() == [Death(0, pid or 0, -number)]
    assert f"(pid(s) {pid}) exited unexpectedly" in str(unexpected(pool.deaths()))
    assert str(pool.deaths()[0]).endswith(f"signal: {number.name}")


def test_a_worker_that_exits_is_named_with_its_exit_code(start: Callable[..., Pool]) -> None:
    pool = start(Dies(), 2)
    pool.lines.post(1, request(0, 0))
    assert pool.lines.wait(PATIENCE_S) == []
    assert [str(death) for death in pool.deaths()] == [
        f"worker (pid {pool.pids[1]}) has exit code 7"
    ]


def test_all_the_dead_are_named(start: Callable[..., Pool]) -> None:
    pool = start(Squares(), 3)
    assert pool.deaths(0.0) == []
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    assert pool.lines.wait(PATIENCE_S) == []
    assert [death.pid for death in pool.deaths()] == pool.pids


def test_an_answer_that_a_worker_gave_before_it_died_is_not_lost(
    start: Callable[..., Pool],
) -> None:
    pool = start(Dies())
    [child] = multiprocessing.active_children()
    pool.lines.post(0, request(0, -3))
    pool.lines.post(0, request(1, signal.SIGKILL, begins=False))
    child.join()
    [(worker, frame)] = pool.lines.close(0)
    assert pool.lines.read(worker, frame).payload == [-3]


def test_a_request_to_a_dead_worker_is_noticed_by_wait(start: Callable[..., Pool]) -> None:
    pool = start(Squares())
    [child] = multiprocessing.active_children()
    child.kill()
    child.join()
    for step in range(3):
        pool.lines.post(0, request(step, 1))
    assert pool.lines.wait(PATIENCE_S) == []
    assert len(pool.deaths()) == 1


def test_whether_a_worker_dies_does_not_depend_on_others(
    start: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = start(Squares(), 2)
    one, other = pool.pids
    os.kill(one or 0, signal.SIGKILL)
    assert pool.dies(0)
    with monkeypatch.context() as patch:
        patch.setattr("picklable_loader.fetching.pool.pool.DYING_S", 0.0)
        assert not pool.dies(1)
    os.kill(other or 0, signal.SIGKILL)
    assert pool.dies(1)


@pytest.mark.costly
@METHODS
def test_another_worker_takes_the_place_of_a_dead_one(
    start: Callable[..., Pool], method: str
) -> None:
    pool = start(Dies(), 2, method)
    before = list(pool.pids)
    for _ in range(1 if method == "spawn" else 3):  # which takes seconds
        pool.lines.post(1, request(0, signal.SIGKILL))
        assert pool.lines.wait(PATIENCE_S) == []
        [death] = pool.deaths()
        pool.lines.close(1)
        pool.replace(1, WorkerConfig(1, 2, base_seed=5))
        assert death.worker == 1 and pool.pids[0] == before[0] and pool.pids[1] != death.pid
        pool.lines.post(1, request(1, -7))
        [answer] = answers(pool, 1)
        assert (answer.worker, answer.payload) == (1, [-7])


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no folder tells of shared memory")
@pytest.mark.parametrize("replaced", [True, False])
def test_shared_memory_that_a_killed_worker_was_making_is_removed(
    start: Callable[..., Pool], replaced: bool
) -> None:
    pool = start(DiesInTheMiddle())
    (pid,) = pool.pids
    assert pid is not None
    others = a_block(pid * 10)  # nobody's number, and one that begins like the worker's
    others.touch()
    try:
        pool.lines.post(0, request(0, 0))
        pool.lines.wait(PATIENCE_S)
        [death] = pool.deaths()  # its end is known by its exit code: who is about to die is alive
        assert death.pid == pid and a_block(pid).exists()
        if replaced:
            pool.lines.close(0)
            pool.replace(0, WorkerConfig(0, 1, base_seed=5))
        else:
            pool.retire()
        assert not a_block(pid).exists() and others.exists()
    finally:
        others.unlink()


def test_what_a_worker_was_at_is_known_when_it_is_dead(
    start: Callable[..., Pool],
) -> None:
    pool = start(Dies())
    pool.lines.post(0, request(0, -3))
    pool.lines.post(0, request(6, signal.SIGKILL, begins=False, ticket=2))
    answers(pool, 1)
    assert pool.deaths(PATIENCE_S)
    assert pool.lines.at_hand(0, owed=[2]) == 2


def test_what_is_recalled_is_in_nobodys_hand() -> None:
    lines = PacketLines(workers_fixed=False)
    lines.open(multiprocessing.get_context("fork"), 0).close()
    for length in (10, 100_000):
        assert lines.post(None, bytes(length)) is None
    lines.recall()
    assert lines.wait(0.0) == []  # its worker has hung up, and nothing is to be sent
    lines.hang_up()


@pytest.mark.parametrize(
    "exitcode, said",
    [
        (-signal.SIGTERM, "A scheduler, or somebody else, has sent it the signal"),
        (-signal.SIGSEGV, "compiled code has crashed"),
        (0, "has ended the process; or it was sent SIGTERM, perhaps with the whole job."),
        (255, "has ended the process; or the fork server has died"),
        (3, "has ended the process."),
    ],
)
def test_a_likely_cause_fits_the_exit_code(exitcode: int, said: str) -> None:
    assert said in likely_cause(exitcode)


@pytest.mark.parametrize("files", [2, 1])
def test_a_likely_cause_of_sigkill_is_the_memory_limit_with_its_figures(
    tmp_path: Path, files: int
) -> None:
    ours, names = {
        2: ("0::/job/step\n", ("job/memory.max", "job/memory.current")),
        1: (
            "5:cpu,memory:/job\n3:pids:/other\n",
            ("memory/job/memory.limit_in_bytes", "memory/job/memory.usage_in_bytes"),
        ),
    }[files]
    for name, figure in zip(names, (512, 500)):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(f"{figure * 2**20}\n")
    (tmp_path / "ours").write_text(ours)
    text = likely_cause(-signal.SIGKILL, tmp_path, tmp_path / "ours")
    assert "limit of the control group 512 MiB, in use 500 MiB" in text


@pytest.mark.parametrize("limit", ["max\n", str(2**63 - 4096), "", None])
def test_no_limit_is_made_up(tmp_path: Path, limit: str | None) -> None:
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("5\n")
    assert "no limit" in likely_cause(-signal.SIGKILL, tmp_path, tmp_path / "nothing")


# --- the end -------------------------------------------------------------------------------------


def test_retire_ends_workers_with_answers_that_nobody_reads(start: Callable[..., Pool]) -> None:
    pool = start(Large(), 2)
    sentinels = [child.sentinel for child in multiprocessing.active_children()]
    for worker in (0, 1):
        for step in range(3):
            pool.lines.post(worker, request(step, step))
    pool.retire()
    assert len(wait(sentinels, 0)) == 2 and not children()


def test_a_pool_that_nobody_holds_is_retired(lines: Callable[[], Lines]) -> None:
    context = multiprocessing.get_context("fork")
    pool = Pool(context, job(Squares()), [WorkerConfig(0, 1, base_seed=5)], lines())
    gone = weakref.ref(pool)
    assert len(children()) == 1
    del pool
    assert gone() is None and not children()


class Renamed(multiprocessing.context.ForkContext):
    """It forks, and its start method has a name of its own."""

    _name = "of the program"


def test_a_context_of_the_programs_own_may_fork() -> None:
    loader = DataLoader(range(4), 2, num_workers=1, multiprocessing_context=Renamed())
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_pools_end_in_any_order(start: Callable[..., Pool]) -> None:
    first, second, third = (start(Squares(), 2) for _ in range(3))
    for pool in (second, third, first):
        pids = set(pool.pids)
        pool.retire()
        assert not pids & children()


def test_a_worker_that_ignores_sigterm_is_killed(start: Callable[..., Pool]) -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        pool = start(Stubborn(theirs))
        pool.lines.post(0, request(0, 0))
        assert ours.poll(PATIENCE_S) and ours.recv() == "ready"
        [child] = multiprocessing.active_children()
        pool.retire()
        assert child.exitcode == -signal.SIGKILL
    assert not children()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_be_pickled_is_refused_and_no_worker_is_left(
    method: str, lines: Callable[[], Lines]
) -> None:
    local = job([lambda: None])
    posts = [WorkerConfig(worker, 2, base_seed=5) for worker in range(2)]
    refused = (TypeError, AttributeError, pickle.PicklingError)
    with pytest.raises(refused):
        Pool(multiprocessing.get_context(method), local, posts, lines())
    assert not children()


# --- the ladder ----------------------------------------------------------------------------------


def until_end_of_file(ready: Connection[Any, Any], line: Connection[Any, Any]) -> None:
    ready.close()
    try:
        line.recv()
    except EOFError:
        sys.exit(3)


def until_a_signal(ready: Connection[Any, Any], line: Connection[Any, Any]) -> None:
    ready.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    line.send("ready")
    signal.pause()


def until_killed(ready: Connection[Any, Any], line: Connection[Any, Any]) -> None:
    ready.close()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    line.send("ready")
    while True:
        signal.pause()


def begin(task: Callable[..., None], says_ready: bool) -> tuple[BaseProcess, Any]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=task, args=(ours, theirs))
    process.start()
    theirs.close()
    if says_ready:
        assert ours.poll(PATIENCE_S) and ours.recv() == "ready"
    return process, ours


def test_a_process_that_does_as_it_was_asked_is_left_to_end_by_itself() -> None:
    process, line = begin(until_end_of_file, says_ready=False)
    line.close()
    for _ in range(2):  # once more, it is dead
        retire([process])
        assert process.exitcode == 3


def test_a_process_that_does_not_is_terminated_and_then_killed() -> None:
    patient, line = begin(until_a_signal, says_ready=True)
    stubborn, other = begin(until_killed, says_ready=True)
    retire([patient, stubborn])
    assert (patient.exitcode, stubborn.exitcode) == (-signal.SIGTERM, -signal.SIGKILL)
    line.close()
    other.close()
