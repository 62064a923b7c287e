"""The iterator: where it says it stands, how it is closed, and what it survives."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from laws.cases import ALL, Case
from laws.cases import four_batches as make
from laws.observe import seen
from zoo.datasets import Boom, Broken, Noisy, NoisyStream
from zoo.samplers import Endless, WithoutLength
from zoo.streams import KINDS, Kind

from picklable_loader import DataLoader, LoaderIterator

WORKERS = pytest.mark.parametrize("num_workers", [0, 1, 2])


def expected(**more: Any) -> list[Any]:
    return seen(iter(make(**more)))


# --- where it stands -----------------------------------------------------------------------------


@WORKERS
def test_an_iterator_says_where_it_stands(num_workers: int) -> None:
    loader = make(num_workers)
    for epoch in range(2):
        iterator = iter(loader)
        assert isinstance(iterator, LoaderIterator) and isinstance(iterator, Iterator)
        assert iter(iterator) is iterator and iterator.loader is loader
        for step in range(4):
            assert (len(iterator), iterator.step, iterator.epoch) == (4, step, epoch)
            assert iterator.remaining == 4 - step
            next(iterator)
        assert (len(iterator), iterator.step, iterator.remaining) == (4, 4, 0)
        assert next(iterator, None) is None
        assert (iterator.step, iterator.epoch, iterator.remaining) == (4, epoch, 0)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 3, 5, 7, 10, 11, None])
def test_remaining_counts_the_batches_that_come(size: Any, drop_last: bool) -> None:
    iterator = iter(make(batch_size=size, drop_last=drop_last and size is not None))
    for _ in range(30):
        again = pickle.loads(pickle.dumps(iterator))
        assert again.remaining == iterator.remaining == len(seen(again))
        if next(iterator, None) is None:
            break
    assert iterator.remaining == 0


def test_without_a_length_nobody_knows_what_remains() -> None:
    for sampler in (WithoutLength(), Endless()):
        iterator = iter(make(shuffle=None, sampler=sampler))
        next(iterator)
        assert iterator.remaining is None
        with pytest.raises(TypeError):
            len(iterator)
        assert "1 batches delivered" in repr(iterator)


def test_an_exception_in_a_sample_counts_as_a_step() -> None:
    iterator = iter(DataLoader(Broken(), 2))
    seen(iterator, 2)
    with pytest.raises(Boom):
        next(iterator)
    assert (iterator.step, iterator.remaining) == (3, 2)


# --- its end -------------------------------------------------------------------------------------


@WORKERS
def test_close_retires_the_workers_and_keeps_the_place(num_workers: int) -> None:
    iterator = iter(make(num_workers))
    next(iterator)
    iterator.close()
    assert not multiprocessing.active_children()
    assert next(iterator, None) is None
    assert iterator.step == 1
    other = make()
    other.load_state_dict(iterator.state_dict())
    assert seen(iter(other)) == expected()[1:]
    iterator.close()


def test_what_is_unpickled_of_a_closed_iterator_goes_on() -> None:
    iterator = iter(make())
    next(iterator)
    iterator.close()
    again = pickle.loads(pickle.dumps(iterator))
    assert next(iterator, None) is None
    assert again.state_dict() == iterator.state_dict()
    assert seen(again) == expected()[1:]


@WORKERS
def test_leaving_its_context_closes_it(num_workers: int) -> None:
    with iter(make(num_workers)) as iterator:
        next(iterator)
        assert len(multiprocessing.active_children()) == num_workers
    assert not multiprocessing.active_children()
    with pytest.raises(KeyError), iter(make(num_workers)) as iterator:
        raise KeyError
    assert not multiprocessing.active_children()


@WORKERS
def test_after_its_end_there_is_no_worker_and_no_batch(num_workers: int) -> None:
    iterator = iter(make(num_workers))
    assert len(seen(iterator)) == 4
    assert not multiprocessing.active_children()
    for _ in range(3):
        assert next(iterator, None) is None


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("steps", [0, 1, 3, 4])
def test_an_iterator_that_nobody_has_is_gone_with_its_workers(steps: int, num_workers: int) -> None:
    """Without the garbage collector: there are no cycles."""
    gc.collect()
    gc.disable()
    try:
        loader = make(num_workers)
        iterator = iter(loader)
        seen(iterator, steps)
        gone = weakref.ref(iterator)
        del iterator
        assert gone() is None
        assert not multiprocessing.active_children()
    finally:
        gc.enable()


def in_cycles(use: Callable[[], object]) -> set[str]:
    """The package's classes with objects that only the garbage collector would free afterwards."""
    gc.collect()
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        use()
        gc.collect()
        kinds = map(type, gc.garbage)
        return {kind.__qualname__ for kind in kinds if kind.__module__.startswith("picklable_")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()  # what is frozen stays so: to look through it costs 0.3 s after each later test


def use(make: Callable[[], Any]) -> None:
    """Passes that end, are saved, broken off, pickled and resumed."""
    loader = make()
    assert [seen(iter(loader), 20) for _ in range(2)] != [[], []]
    iterator = iter(loader)
    seen(iterator, 1)
    iterator.state_dict()
    seen(pickle.loads(pickle.dumps(iterator)), 20)


STREAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several streams": {"num_streams": 2},
    "bad samples": {"on_error": "skip"},
    "generators": {"seeding": "worker", "seed": 3},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hugging_face", [False, True])
@pytest.mark.parametrize("options", STREAMS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_passes_over_streams_leave_nothing_to_the_garbage_collector(
    kind: Kind, options: str, hugging_face: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hugging_face:  # with its datasets, the loader looks at what is drawn
        monkeypatch.setitem(sys.modules, "datasets.iterable_dataset", ModuleType("some"))
    assert not in_cycles(lambda: use(lambda: DataLoader(kind.make(), 3, **STREAMS[options])))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ALL, ids=str)
def test_passes_leave_nothing_to_the_garbage_collector(case: Case) -> None:
    assert not in_cycles(lambda: use(case.make))


def test_the_collector_finds_a_cycle_of_the_loaders() -> None:
    def cycle() -> None:
        loader: Any = make()
        loader.itself = loader

    assert "DataLoader" in in_cycles(cycle)


def test_loader_and_iterators_may_go_in_any_order() -> None:
    for first in ("loader", "older", "newer"):
        loader = make(1)
        alive: dict[str, Any] = {"loader": loader, "older": iter(loader), "newer": iter(loader)}
        del loader
        next(alive["older"])
        next(alive["newer"])
        del alive[first]
        left = [name for name in ("older", "newer") if name in alive]
        assert all(len(seen(alive[name])) == 3 for name in left)
        alive.clear()
        assert not multiprocessing.active_children()


def test_breaks_leave_nothing_behind() -> None:
    loader = make(2)
    for stop in (0, 2, 3, 1):
        for step, _ in enumerate(loader):
            if step == stop:
                break
        assert not multiprocessing.active_children()
    assert len(seen(iter(loader))) == 4


def test_batches_outlive_their_iterator() -> None:
    loader = make(2)
    batches = list(loader)
    del loader
    gc.collect()
    assert [batch.tolist() for batch in batches] == expected()


# --- interruptions -------------------------------------------------------------------------------


class Interrupted(Noisy):
    """Presses Ctrl-C in the middle of a batch, once for each file that is there."""

    def __init__(self, button: Path) -> None:
        super().__init__()
        self.button = button

    def __getitem__(self, index: int) -> Any:
        if index == 4 and self.button.exists():
            self.button.unlink()
            self.press()
        return super().__getitem__(index)

    def press(self) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_in_the_dataset_loses_nothing(tmp_path: Path) -> None:
    button = tmp_path / "pressed"
    button.touch()
    iterator = iter(DataLoader(Interrupted(button), 3, shuffle=True, seed=7))
    found: list[Any] = []
    interruptions = 0
    while len(found) < 4:
        try:
            found.append(next(iterator).tolist())
        except KeyboardInterrupt:
            interruptions += 1
            assert iterator.step == len(found)
            again = pickle.loads(pickle.dumps(iterator))
            assert seen(again) == expected()[len(found) :]
    assert interruptions == 1 and found == expected()


class Deadly(Interrupted):
    """Kills its worker, as the kernel does when memory is short, once."""

    def press(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_worker_that_dies_at_a_sample_is_an_error_and_nothing_is_lost(
    tmp_path: Path, num_workers: int, in_order: bool, persistent: bool
) -> None:
    button = tmp_path / "deadly"
    button.touch()
    loader = DataLoader(
        Deadly(button),
        3,
        shuffle=True,
        seed=7,
        num_workers=num_workers,
        in_order=in_order,
        persistent_workers=persistent,
        max_task_deaths=0,
    )
    iterator, found, errors = iter(loader), [], 0
    while True:
        try:
            found.append(next(iterator).tolist())
        except RuntimeError as error:
            errors += 1
            assert "SIGKILL" in str(error)
            state = iterator.state_dict()
            other = make(in_order=in_order)
            other.load_state_dict(state)
            assert sorted(found + seen(iter(other))) == sorted(expected())
        except StopIteration:
            break
    assert errors == 1
    assert sorted(found) == sorted(expected())
    assert not in_order or found == expected()
    second = seen(iter(make()))
    assert len(seen(iter(loader))) == len(second)
    del iterator, loader


def test_a_killed_worker_of_iterable_style_data_is_an_error_and_what_came_does_not_come_again() -> (
    None
):
    whole = seen(iter(DataLoader(NoisyStream(), 2, num_workers=1, seed=1)))
    options: Any = {"num_workers": 1, "prefetch_factor": 1, "max_task_deaths": 0}
    iterator = iter(DataLoader(NoisyStream(), 2, seed=1, **options))
    found = [next(iterator).tolist()]
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join()
    errors = 0
    while True:
        try:
            with pytest.warns(UserWarning) if errors else nullcontext():
                found.append(next(iterator).tolist())
            if errors:
                break
        except RuntimeError:
            errors += 1
    found += seen(iterator)
    assert errors == 1 and found == whole
