"""Saves that threads, signal handlers, datasets and samplers ask for while `next` is at work."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import lists
from torch.utils.data import Dataset, IterableDataset, Sampler

from picklable_loader import DataLoader
from picklable_loader.errors import CannotSaveError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")

N = 24
#: seconds until a test that waits for nothing any more fails
PATIENCE_S = 20.0

#: what people's code calls, by where it stands: "sample", "index", "pickled"
hooks: dict[str, Callable[[], object]] = {}


def reach(where: str) -> None:
    if where in hooks:
        hooks[where]()


@pytest.fixture(autouse=True)
def no_hook_is_left() -> Iterator[None]:
    yield
    hooks.clear()


# --- what is loaded ------------------------------------------------------------------------------


def noisy(index: int) -> torch.Tensor:
    reach("sample")
    numbers = [torch.rand(()).item(), np.random.rand(), float(index)]
    return torch.tensor(numbers, dtype=torch.float64)


class Pickled:
    def __getstate__(self) -> Any:
        reach("pickled")
        return self.__dict__


class Mapped(Pickled, Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return noisy(index)


class Counting(Pickled, IterableDataset[Any]):
    """Its place is an attribute of its own."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        self.at = 0
        while self.at < N:
            self.at += 1
            yield noisy(self.at)


class Stateful(Counting):
    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["at"]

    def __iter__(self) -> Iterator[Any]:
        self.at = self.__dict__.pop("loaded", 0) % N
        while self.at < N:
            self.at += 1
            yield noisy(self.at)


class Sized(Sampler[int]):
    def __len__(self) -> int:
        return N


class Generates(Sized):
    """Draws from torch's global generator as it goes."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            reach("index")
            yield int(torch.randint(N, ()))


class Steps:
    """An iterator that pickle takes."""

    def __init__(self, owner: Any) -> None:
        self.owner, self.at = owner, -1

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> int:
        reach("index")
        self.at += 1
        if self.at >= N:
            raise StopIteration
        return int(self.owner.rng.permutation(N)[self.at])


class Stepping(Sized):
    """Its generator is shared with its iterator, and goes on from epoch to epoch."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __iter__(self) -> Any:
        return Steps(self)


class ShufflesInPlace(Sized):
    def __init__(self) -> None:
        self.order, self.rng = list(range(N)), np.random.default_rng(5)

    def __iter__(self) -> Iterator[int]:
        self.rng.shuffle(self.order)
        for index in self.order:
            reach("index")
            yield index


class SortsFirst(Sized):
    """Its order is made by the call of `iter`, as that of a sampler that sorts by length."""

    def __iter__(self) -> Iterator[int]:
        reach("order")
        return iter(torch.randperm(N).tolist())


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


MAPPED: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffled": lambda: {"shuffle": True},
    "shuffled by a generator": lambda: {"shuffle": True, "generator": generator()},
    "shuffled by a seed": lambda: {"shuffle": True, "seed": 4},
    "a generator's sampler": lambda: {"sampler": Generates()},
    "a generator's sampler with a seed": lambda: {"sampler": Generates(), "seed": 4},
    "a sampler with an iterator": lambda: {"sampler": Stepping()},
    "a sampler that shuffles in place": lambda: {"sampler": ShufflesInPlace()},
}
STREAMS: dict[str, Callable[[], Any]] = {"counting": Counting, "stateful": Stateful}


def build(kind: str, workers: int) -> Any:
    torch.manual_seed(1)
    np.random.seed(1)
    if kind in STREAMS:
        return DataLoader(STREAMS[kind](), 4, num_workers=workers)
    return DataLoader(Mapped(), 4, num_workers=workers, **MAPPED[kind]())


CASES = [(kind, workers) for kind in (*MAPPED, *STREAMS) for workers in (0, 2)]


# --- how it is saved -----------------------------------------------------------------------------


def from_state(state: Any, kind: str, workers: int) -> Any:
    loader = build(kind, workers)
    torch.manual_seed(99)
    loader.load_state_dict(state)
    return iter(loader)


#: how a save is made, and gone on from; of a copy the loader is the one to be looked at
WAYS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, str, int], Any]]] = {
    "pickle": (pickle.dumps, lambda data, kind, workers: pickle.loads(data)),
    "deepcopy": (copy.deepcopy, lambda copied, kind, workers: copied),
    "copy": (copy.copy, lambda copied, kind, workers: copied),
    "state": (lambda it: it.state_dict(), from_state),
    "the loader's state": (lambda it: it.loader.state_dict(), from_state),
}

Seen = list[Any]


def assert_goes_on(way: str, data: Any, kind: str, workers: int, whole: list[Seen]) -> None:
    """What was saved yields the rest of the first epoch, and the whole second one."""
    torch.manual_seed(99)
    np.random.seed(99)
    again = WAYS[way][1](data, kind, workers)
    step = again.step
    assert again.epoch == 0 and lists(again) == whole[0][step:], f"{way}, from step {step}"
    assert lists(again.loader) == whole[1], f"{way}, from step {step}: the next epoch"


class Watched:
    """A loader's lock, which says when another thread asks for it."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.asked = threading.Event()
        self.waiting = 0

    def acquire(self, blocking: bool = True) -> bool:
        if self.lock.acquire(blocking=False):
            return True
        self.waiting += 1
        self.asked.set()
        try:
            return blocking and bool(self.lock.acquire())
        finally:
            self.waiting -= 1

    def release(self) -> None:
        self.lock.release()

    def _is_owned(self) -> bool:
        return bool(self.lock._is_owned())

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def watched(loader: Any) -> Watched:
    lock = loader._pl.turn.lock = Watched(loader._pl.turn.lock)
    return lock


class Saver(threading.Thread):
    """Saves once; ``settled`` as soon as it has, or waits for whoever is in `next`."""

    def __init__(self, iterator: Any, way: str, lock: Watched) -> None:
        super().__init__(daemon=True)
        self.iterator, self.way, self.settled = iterator, way, lock.asked
        self.data: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.data = WAYS[self.way][0](self.iterator)
        except BaseException as error:
            self.error = error
        self.settled.set()

    def result(self) -> Any:
        self.join(PATIENCE_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.data


def once(act: Callable[[], object]) -> Callable[[], None]:
    turns = itertools.count()

    def hook() -> None:
        if next(turns) == 0:
            act()

    return hook


WHERE = [("index", workers) for workers in (0, 2)] + [("sample", 0)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "where", "workers"),
    [
        (kind, where, workers)
        for kind in (*MAPPED, *STREAMS)
        for where, workers in WHERE
        if where == "sample" or "sampler" in kind
    ],
)
def test_a_save_that_begins_within_next_of_another_thread_is_exact(
    kind: str, where: str, workers: int, way: str
) -> None:
    whole = [lists(loader := build(kind, workers)), lists(loader)]
    loader = build(kind, workers)
    iterator = iter(loader)
    found = [next(iterator).tolist()]
    saver = Saver(iterator, way, watched(loader))

    def save() -> None:
        saver.start()
        assert saver.settled.wait(PATIENCE_S)

    hooks[where] = once(save)
    for _ in range(3):  # it may be drawn ahead from a sampler
        found.append(next(iterator).tolist())
    data = saver.result()
    hooks.clear()
    assert [found + lists(iterator), lists(loader)] == whole, "saving has disturbed the original"
    assert_goes_on(way, data, kind, workers, whole)


@pytest.mark.parametrize(("kind", "workers"), CASES)
def test_what_next_moves_while_a_pickle_is_written_is_in_it_as_it_was(
    kind: str, workers: int
) -> None:
    whole = [lists(loader := build(kind, workers)), lists(loader)]
    iterator = iter(loader := build(kind, workers))
    found = [next(iterator).tolist()]
    go, gone = threading.Event(), threading.Event()
    lock = watched(loader)
    saver = Saver(iterator, "pickle", lock)

    def let_next_go_on() -> None:
        if threading.current_thread() is saver:
            go.set()  # until it has, or waits for the lock that a copy is made under
            while not (gone.is_set() or lock.waiting):
                gone.wait(0.001)

    hooks["pickled"] = let_next_go_on
    saver.start()
    assert go.wait(PATIENCE_S)
    found += [next(iterator).tolist(), next(iterator).tolist()]
    gone.set()
    data = saver.result()
    hooks.clear()
    assert [found + lists(iterator), lists(loader)] == whole
    assert_goes_on("pickle", data, kind, workers, whole)


@pytest.mark.parametrize(("kind", "workers"), CASES)
def test_threads_that_save_all_the_time_disturb_nothing_and_save_what_is_there(
    kind: str, workers: int
) -> None:
    whole = [lists(loader := build(kind, workers)), lists(loader)]
    iterator = iter(loader := build(kind, workers))
    stop, saves = threading.Event(), list[tuple[str, Any]]()

    def save() -> None:
        for way in itertools.cycle(WAYS):
            data = WAYS[way][0](iterator)
            if stop.is_set():
                return
            saves.append((way, data))

    threads = [threading.Thread(target=save, daemon=True) for _ in range(2)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        first = [batch.tolist() for batch in itertools.islice(iterator, N // 4 - 1)]
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    finally:
        sys.setswitchinterval(before)
    assert [first + lists(iterator), lists(loader)] == whole
    for way, data in saves[:: max(1, len(saves) // 4)]:
        assert_goes_on(way, data, kind, workers, whole)


LOADER_WAYS: dict[str, Callable[[Any], Any]] = {
    "state": lambda loader: loader.state_dict(),
    "gathered state": lambda loader: loader.gather_state_dict(),
    "pickle": pickle.dumps,
}
#: a pickle has no part of torch's global generator without one of these
OPTIONS: list[dict[str, Any]] = [{}, {"seed": 4}, {"seed": 4, "persistent_workers": True}]


@pytest.mark.parametrize(
    ("way", "options"), [(w, o) for w in LOADER_WAYS for o in OPTIONS if o or w == "state"]
)
@pytest.mark.parametrize(("epoch", "workers"), [(0, 0), (1, 0), (0, 2), (1, 2)])
def test_a_save_of_the_loader_that_begins_within_iter_of_another_thread_waits_for_it(
    epoch: int, workers: int, options: dict[str, Any], way: str
) -> None:
    options = {name: value for name, value in options.items() if workers or name == "seed"}

    def build() -> Any:
        torch.manual_seed(1)
        shard: Any = (0, 1) if way == "gathered state" else None
        return DataLoader(
            Mapped(), 4, sampler=SortsFirst(), num_workers=workers, shard=shard, **options
        )

    loader = build()
    whole = [lists(loader) for _ in range(3)]
    loader = build()
    for _ in range(epoch):
        lists(loader)
    saved: list[Any] = []
    lock = watched(loader)
    saver = threading.Thread(target=lambda: saved.append(LOADER_WAYS[way](loader)), daemon=True)

    def save() -> None:
        saver.start()
        assert lock.asked.wait(PATIENCE_S)

    hooks["order"] = once(save)
    iterator = iter(loader)
    found = [] if workers else [next(iterator).tolist()]  # the first `next` asks the sampler
    saver.join(PATIENCE_S)
    hooks.clear()
    assert found + lists(iterator) == whole[epoch], "saving has disturbed the original"
    again = build()
    if way == "pickle":
        again = pickle.loads(saved[0])
    else:
        again.load_state_dict(saved[0])
        assert lists(again) == whole[epoch][saved[0]["step"] :]
    assert lists(again) == whole[epoch + 1]


def test_a_loader_that_only_iter_of_another_thread_has_moved_is_pickled_as_it_was() -> None:
    loader = build("shuffled by a generator", 0)
    with ThreadPoolExecutor(1) as other:
        iterator = other.submit(iter, loader).result()
        expected = lists(pickle.loads(pickle.dumps(loader)))
        hooks["pickled"] = once(lambda: other.submit(lists, iterator).result(PATIENCE_S))
        assert lists(pickle.loads(pickle.dumps(loader))) == expected


# --- the same thread -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [*MAPPED, *STREAMS])
def test_a_dataset_saves_its_own_iterator_as_it_is_before_the_batch(kind: str, way: str) -> None:
    whole = [lists(loader := build(kind, 0)), lists(loader)]
    iterator = iter(loader := build(kind, 0))
    saves: list[Any] = []
    found = [next(iterator).tolist()]
    hooks["sample"] = once(lambda: saves.append(WAYS[way][0](iterator)))
    found += lists(iterator)
    hooks.clear()
    assert [found, lists(loader)] == whole
    assert_goes_on(way, saves[0], kind, 0, whole)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [kind for kind in MAPPED if "sampler" in kind])
def test_a_save_within_the_sampler_is_refused_by_name(kind: str, workers: int, way: str) -> None:
    whole = lists(build(kind, workers))
    iterator = iter(build(kind, workers))
    errors: list[CannotSaveError] = []

    def save() -> None:
        try:
            WAYS[way][0](iterator)
        except CannotSaveError as error:
            errors.append(error)

    found = [next(iterator).tolist()]
    hooks["index"] = once(save)
    assert found + lists(iterator) == whole
    assert "signal handler" in str(errors[0])


def test_with_torchs_seeding_a_save_within_the_dataset_is_refused_by_name() -> None:
    iterator = iter(DataLoader(Mapped(), 4, seeding="worker"))
    errors: list[BaseException] = []

    def save() -> None:
        with pytest.raises(CannotSaveError) as caught:
            iterator.state_dict()
        errors.append(caught.value)

    hooks["sample"] = once(save)
    next(iterator)
    assert errors


@pytest.mark.parametrize("act", ["skip", "load_state_dict", "the loader's"])
def test_a_position_is_not_left_within_next(act: str) -> None:
    iterator = iter(loader := DataLoader(Mapped(), 4, seed=1))
    state = iterator.state_dict()
    jumps = {
        "skip": lambda: iterator.skip(1),
        "load_state_dict": lambda: iterator.load_state_dict(state),
        "the loader's": lambda: loader.load_state_dict(state),
    }
    errors: list[str] = []

    def jump() -> None:
        with pytest.raises(UsageError, match="after next()") as caught:
            jumps[act]()
        errors.append(str(caught.value))

    hooks["sample"] = once(jump)
    assert lists(iterator) == lists(DataLoader(Mapped(), 4, seed=1))
    assert errors


#: set when the program handles signals: fast workers may else have sent all of them before
_handles_signals = multiprocessing.get_context("fork").Event()


class Signals(Mapped):
    """Its samples send a signal to the process of the loader."""

    def __getitem__(self, index: int) -> Any:
        if index % 5 == 0:
            assert _handles_signals.wait(PATIENCE_S)
            os.kill(
                os.getppid() if torch.utils.data.get_worker_info() else os.getpid(), signal.SIGUSR1
            )
        return noisy(index)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shuffled", "shuffled by a generator", "a generator's sampler"])
def test_a_signal_handler_saves_exactly_or_is_refused(kind: str, workers: int) -> None:
    def make() -> Any:
        torch.manual_seed(1)
        np.random.seed(1)
        return DataLoader(Signals(), 4, num_workers=workers, **MAPPED[kind]())

    saves: list[Any] = []

    def save(number: int, frame: Any) -> None:
        try:
            saves.append(pickle.dumps(iterator))
        except CannotSaveError:
            saves.append(None)

    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        loader = make()
        _handles_signals.set()
        whole = [lists(loader), lists(loader)]
        loader = make()
        _handles_signals.clear()
        iterator = iter(loader)
        signal.signal(signal.SIGUSR1, save)
        _handles_signals.set()
        found = lists(iterator)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert [found, lists(loader)] == whole
        assert saves and (workers or None not in saves)
        for data in filter(None, saves):
            again = pickle.loads(data)
            step = again.step
            assert lists(again) == whole[0][step:]
    finally:
        signal.signal(signal.SIGUSR1, before)


# --- closing, and other loaders ------------------------------------------------------------------


def test_a_batch_does_not_wait_for_another_loader_that_waits_for_it() -> None:
    """Its dataset saves a loader, whose thread is in `next` and wants the global generators."""
    # of a class of one's own: nothing is seeded for a range, so its batches would not wait
    other = iter(other_loader := DataLoader(Mapped(), 4, seed=1))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(lists(other)), daemon=True)
    errors: list[str] = []

    def save() -> None:
        thread.start()
        lock = other_loader._pl.turn.lock
        while lock.acquire(blocking=False):  # until the thread is in next
            lock.release()
        for act in (other.state_dict, other_loader.state_dict, lambda: pickle.dumps(other)):
            with pytest.raises(CannotSaveError, match="after the batch") as caught:
                act()
            errors.append(str(caught.value))

    hooks["sample"] = once(save)
    lists(DataLoader(Mapped(), 4))
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and len(errors) == 3
    assert found == lists(DataLoader(Mapped(), 4, seed=1))


def test_close_waits_for_the_batch_of_another_thread() -> None:
    whole = lists(DataLoader(Mapped(), 4, seed=1))
    iterator = iter(DataLoader(Mapped(), 4, seed=1))
    thread = threading.Thread(target=iterator.close)

    def close() -> None:
        thread.start()
        while not iterator.closed:  # it is about to wait
            pass

    hooks["sample"] = once(close)
    assert lists(iterator) == whole[:1]
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and list(iterator) == []


class ClosesElsewhere(Sampler[int]):
    """Its second epoch waits until another thread has asked to close the iterator."""

    def __init__(self) -> None:
        self.iterator: Any = None
        self.thread: threading.Thread | None = None

    def __len__(self) -> int:
        return 24

    def set_epoch(self, epoch: int) -> None:
        if self.iterator is not None and self.thread is None:
            self.thread = threading.Thread(target=self.iterator.close)
            self.thread.start()
            while not self.iterator.closed:  # it is about to wait for the pass that begins
                pass

    def __iter__(self) -> Iterator[int]:
        return iter(range(24))


def test_close_while_another_thread_begins_a_pass_of_the_same_workers_closes_that_pass() -> None:
    """The workers were gone, and the pass counted as open: `next` waited for ever."""
    sampler = ClosesElsewhere()
    loader = DataLoader(
        Mapped(), 4, sampler=sampler, num_workers=1, persistent_workers=True, seed=1
    )
    sampler.iterator = iter(loader)
    assert len(lists(sampler.iterator)) == 6
    again = iter(loader)
    assert sampler.thread is not None
    sampler.thread.join(PATIENCE_S)
    assert not sampler.thread.is_alive() and list(again) == []
    assert len(lists(iter(loader))) == 6


class SignalsOnce(Mapped):
    """Its first sample sends a signal to the process of the loader, as soon as it may."""

    def __init__(self) -> None:
        self.may = torch.multiprocessing.Event()

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            self.may.wait(PATIENCE_S)
            of_worker = torch.utils.data.get_worker_info()
            os.kill(os.getppid() if of_worker else os.getpid(), signal.SIGUSR1)
        return noisy(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_signal_handler_may_close_the_iterator(workers: int) -> None:
    whole = lists(DataLoader(Mapped(), 4, seed=1))
    before = signal.signal(signal.SIGUSR1, lambda number, frame: iterator.close())
    try:
        dataset = SignalsOnce()
        iterator = iter(DataLoader(dataset, 4, num_workers=workers, seed=1))
        dataset.may.set()
        found = lists(iterator)
        assert iterator.closed and found == whole[: len(found)] and len(found) < len(whole)
        again = DataLoader(Mapped(), 4, seed=1)
        again.load_state_dict(iterator.state_dict())
        assert lists(again) == whole[len(found) :]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_portrait_waits_for_nobody() -> None:
    """Whoever looks for the reason of a hang prints the iterator."""
    iterator = iter(DataLoader(Mapped(), 4, shuffle=True))
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(repr(iterator)), daemon=True)

    def look() -> None:
        thread.start()
        thread.join(PATIENCE_S)

    hooks["sample"] = once(look)
    next(iterator)
    assert texts and "0 of 6 batches delivered" in texts[0]
