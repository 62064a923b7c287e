"""Ctrl-C at any moment, figures for another thread, and copies of the program: nothing is lost."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any

import pytest
import torch
from laws.observe import lists
from torch.utils.data import Dataset, IterableDataset, RandomSampler, Sampler
from zoo import cuda
from zoo.datasets import Epochal

import picklable_loader
from picklable_loader import DataLoader, send_feedback
from picklable_loader.core.order import SequenceOrder
from picklable_loader.errors import CannotSaveError, UsageError
from picklable_loader.fetching.engine.inline import InlineEngine
from picklable_loader.fetching.engine.pool_engine import PoolEngine
from picklable_loader.fetching.transport.messages import Answer
from picklable_loader.loader.iterator import LoaderIterator
from picklable_loader.orders.chunked import ChunkedOrder
from picklable_loader.rng.current import fetching
from picklable_loader.rng.generators import Isolated, capture_all

OURS = os.path.dirname(picklable_loader.__file__)


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, int(torch.randint(10**6, ()))])


class Remembers(Numbers):
    total = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.total += index
        return super().__getitem__(index) + self.total

    def state_dict(self) -> dict[str, int]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.total = state["total"]


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        yield from (Numbers()[at] for at in range(first, 24, step))


class Interrupting:
    """A context that raises at a line of ours, by its number, as a signal's handler may."""

    #: only lines of files whose names end so count, and those of these functions
    files: tuple[str, ...] = ("",)
    functions: tuple[str, ...] = ()

    def __init__(self, at: int, kind: type[BaseException] = KeyboardInterrupt) -> None:
        self.at, self.kind, self.count = at, kind, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(OURS) or os.sep + "worker" + os.sep in name:
            return None
        counts = name.endswith(self.files) or frame.f_code.co_name in self.functions
        return self.line if counts else None

    def __enter__(self) -> Interrupting:
        self.before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self.before)

    @property
    def raised(self) -> bool:
        return self.count >= self.at

    def line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self.at:
                raise self.kind
        return self.line


class TimeIsUp(TimeoutError):
    """What a handler of SIGALRM raises."""


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize(
    "seeding, workers", [("batch", 0), ("worker", 0), ("batch", 1), ("worker", 1)]
)
@pytest.mark.parametrize("dataset", [Numbers, Remembers, Stream])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_what_a_signal_handler_raises_at_any_line_loses_no_batch(
    seeding: Any, dataset: Any, workers: int, device: Any
) -> None:
    options: dict[str, Any] = {"seed": 5, "seeding": seeding, "num_workers": workers}
    options["to_device"] = device
    expected = lists(DataLoader(dataset(), 3, **options))
    at, interrupted = 1 + len(dataset.__name__) % 2, True
    while interrupted:
        iterator = iter(DataLoader(dataset(), 3, **options))
        found = lists(next(iterator) for _ in range(2))
        kind = KeyboardInterrupt if at % 4 > 1 else TimeIsUp
        before = sys.gettrace()
        sys.settrace(OnTheWayOut(at, kind))
        try:
            batch = next(iterator)
            interrupted = False
        except kind:
            batch = None
        finally:
            sys.settrace(before)
        found += [] if batch is None else [batch.tolist()]
        assert iterator.step == len(found)
        assert found + lists(pickle.loads(pickle.dumps(iterator))) == expected, f"line {at}"
        assert found + lists(iterator) == expected, f"line {at}"
        at += 17 if workers else 3
    assert at > 60


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("sampler", [None, "batches", "own"])
def test_an_interrupted_skip_has_passed_over_what_the_iterator_says(
    sampler: str | None, workers: int
) -> None:
    batches = [[at, at + 1] for at in range(0, 24, 2)]
    options: dict[str, Any] = {"seed": 5, "num_workers": workers}
    if sampler is None:
        options |= {"batch_size": 2}
    else:
        options["batch_sampler"] = batches if sampler == "batches" else Lines(batches)
    expected = lists(DataLoader(Numbers(), **options))
    at, interrupted = 1, True
    while interrupted:
        iterator = iter(DataLoader(Numbers(), **options))
        next(iterator), next(iterator)
        with suppress(KeyboardInterrupt), WithinASkip(at) as tracer:
            assert iterator.skip(5) == 5
        interrupted = tracer.raised
        assert 2 <= iterator.step <= 7
        if interrupted and sampler == "own":
            try:
                copied = pickle.dumps(iterator)
            except CannotSaveError:  # the sampler was asked, and its answer was lost
                at += 2
                continue
        else:
            copied = pickle.dumps(iterator)
        rest = expected[iterator.step :]
        assert lists(pickle.loads(copied)) == rest, f"line {at}"
        assert lists(iterator) == rest, f"line {at}"
        at += 7 if workers else 2
    assert at > 40


def test_an_interrupted_flush_or_change_of_the_budget_loses_no_batch() -> None:
    def budget(iterator: Any) -> None:
        iterator.prefetch_budget = 5

    options: dict[str, Any] = {"seed": 5, "num_workers": 1, "prefetch_budget": 3}
    expected = lists(DataLoader(Numbers(), 2, **options))
    for act in (LoaderIterator.flush, budget):
        at, interrupted = 1, True
        while interrupted:
            iterator = iter(DataLoader(Numbers(), 2, **options))
            found = lists(islice(iterator, 2))
            with suppress(KeyboardInterrupt), WithinASkip(at) as tracer:
                act(iterator)
            interrupted = tracer.raised
            assert found + lists(iterator) == expected, f"line {at}"
            at += 5
        assert at > 20


class AsItLoads(Interrupting):
    """Within a load; what comes after it is the next batch's."""

    files = ("iterator.py", "driver.py", "run.py", "history.py", "position.py", "pickling.py")


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupted_load_is_done_or_has_done_nothing(workers: int, seed: int | None) -> None:
    """The loader had the state, and its iterator went on in the pass before."""
    at, found, interrupted = 1, set[str](), True
    while interrupted:
        torch.manual_seed(0)
        loader = DataLoader(range(12), 2, shuffle=True, seed=seed, num_workers=workers)
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = iterator.state_dict()
        next(iterator)
        with suppress(KeyboardInterrupt), AsItLoads(at) as tracer:
            iterator.load_state_dict(state)
        interrupted = tracer.raised
        left, step = lists(iterator), loader.epoch
        assert (len(left), step) in ((3, 1), (4, 1)), f"line {at}"
        found.add(str((left, lists(loader))))
        at += 9 if workers else 1
    assert at > 20 and len(found) == 2


class AsItSetsTheEpoch(Interrupting):
    files = ("set_epoch.py", "history.py", "protocol.py")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupted_set_epoch_has_reached_loader_and_dataset_or_neither(workers: int) -> None:
    at, found, interrupted = 1, set[str](), True
    while interrupted:
        loader = DataLoader(Epochal(6), 2, shuffle=True, seed=5, num_workers=workers)
        loader.set_epoch(1)
        list(loader)
        with suppress(KeyboardInterrupt), AsItSetsTheEpoch(at) as tracer:
            loader.set_epoch(4)
        interrupted = tracer.raised
        found.add(str(lists(loader)))
        at += 3 if workers else 1
    assert at > 10 and len(found) == 2


class WithinASkip(Interrupting):
    """Wherever batches are passed over or given up; a signal is handled after a draw is noted."""

    files = ("iterator.py", "driver.py", "run.py", "schedule.py", "window.py", "streams.py")
    functions = ("advance", "_leap", "_stride", "put_back")


class Lines(Sampler[list[int]]):
    """A batch sampler of the program's own."""

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.batches


class Damaged(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 1:
            raise KeyError("damaged")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_error_of_a_batch_comes_again_if_an_interruption_has_replaced_it(workers: int) -> None:
    def pressed(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is Answer.reraise.__code__:
            sys.setprofile(before)
            raise KeyboardInterrupt

    iterator = iter(DataLoader(Damaged(), 1, seed=5, num_workers=workers))
    next(iterator)
    before = sys.getprofile()
    sys.setprofile(pressed)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    with pytest.raises(KeyError, match="damaged"):
        next(iterator)
    assert next(iterator)[0, 0] == 2


class WhileSending(Interrupting):
    """Raises at a line of what `PoolEngine.send` calls, as it holds a lock itself.

    A tracer can raise where a ``with`` ends and the lock is held; no signal's handler can.
    """

    inside = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is PoolEngine.send.__code__:
            return self.sending
        return super().__call__(frame, event, _) if self.inside else None

    def sending(self, frame: FrameType, event: str, _: Any) -> Any:
        self.inside = event != "return"
        return self.sending


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize("transport", ["arena", "portable"])
def test_what_a_signal_handler_raises_while_a_task_is_sent_loses_no_batch(transport: Any) -> None:
    options: dict[str, Any] = {"seed": 5, "num_workers": 1, "transport": transport}
    expected = lists(DataLoader(Numbers(), 3, **options))
    at, interrupted = 1, True
    while interrupted:
        iterator = iter(DataLoader(Numbers(), 3, **options))
        found = lists(next(iterator) for _ in range(2))
        before = sys.gettrace()
        sys.settrace(WhileSending(at, TimeIsUp))
        try:
            found.append(next(iterator).tolist())
            interrupted = False
        except TimeIsUp:
            pass
        finally:
            sys.settrace(before)
        assert found + lists(iterator) == expected, f"line {at}"
        at += 1
    assert at > 20


class AtCalls:
    """Raises where a signal's handler can: as a function begins, or right after one of C's."""

    def __init__(self, at: int, kind: type[BaseException]) -> None:
        self.left, self.kind = at, kind

    def __call__(self, frame: FrameType, event: str, function: Any) -> None:
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(OURS):
            return
        # Only Python 3.14 lets a signal in before the block of `with lock` (python/cpython#148874).
        if event == "c_return" and function.__name__ == "__enter__":
            return
        self.left -= 1
        if self.left == 0:
            raise self.kind


def drawn(batch: torch.Tensor) -> torch.Tensor:
    return batch + torch.rand(())


ACTS: dict[str, Any] = {
    "next": next,
    "state_dict": lambda iterator: iterator.state_dict(),
    "pickle": pickle.dumps,
    "stats": lambda iterator: iterator.stats(),
}


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("way", ["plain", "locked", "converted", "portable"])
@pytest.mark.parametrize("act", ACTS)
def test_after_what_a_signal_handler_raises_any_thread_can_go_on(
    act: str, way: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"seed": 5, "num_workers": workers, "prefetch_budget": 4}
    if way == "locked":  # memory that a GPU would read
        cuda.pretend(monkeypatch)
        options["pin_memory"] = True
    if way == "portable":
        options["transport"] = "portable"
    if way == "converted":
        options |= {"to_device": "cpu", "device_convert": drawn}
    expected = lists(DataLoader(Numbers(), 3, **options))
    at, interrupted = 1, True
    while interrupted:
        iterator = iter(DataLoader(Numbers(), 3, **options))
        found = lists(next(iterator) for _ in range(2))
        if workers and way == "plain":  # something is there to be read
            assert iterator._driver._engine._lines._poll.poll(5000)
        # Without workers, what is no KeyboardInterrupt may be the batch's own.
        kind = KeyboardInterrupt if at % 2 or not workers else TimeIsUp
        before, program = sys.getprofile(), torch.get_rng_state()
        sys.setprofile(AtCalls(at, kind))
        try:
            done = ACTS[act](iterator)
            interrupted = False
            found += [done.tolist()] if act == "next" else []
        except (kind, pickle.PicklingError):  # the latter: in the look-up of a class
            pass
        finally:
            sys.setprofile(before)
        assert torch.equal(torch.get_rng_state(), program), f"call {at}"
        with pytest.raises(UsageError, match="none is being fetched here"):
            send_feedback(f"call {at}")
        iterator.stats()
        with ThreadPoolExecutor(1) as another:
            assert found + another.submit(lists, iterator).result(30) == expected, f"call {at}"
        at += 5 if workers and act != "stats" else 1
    assert at > 5


class Large(Numbers):
    """Samples that come in shared memory, where there is no arena."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((9000,), index)


class WhileConnecting:
    """Raises, as a signal's handler may, when a worker has accepted a connection for a tensor."""

    #: the descriptor that is lost with it
    lost = -1

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        back = frame.f_back
        if (
            back is None
            or back.f_code.co_name != "SocketClient"
            or frame.f_code.co_name != "detach"
        ):
            return
        if event == "c_call" and self.lost < 0:
            self.lost = frame.f_locals["self"].fileno()
        if event == "c_return":
            raise TimeIsUp


def test_after_a_connection_that_a_signal_handler_has_cut_the_next_tensors_still_come() -> None:
    """The worker waits on that connection, which nobody closes, and answers no other."""
    loader = DataLoader(Large(), 3, num_workers=1, seed=5, transport="portable")
    expected = lists(loader)
    iterator, cut = iter(loader), WhileConnecting()
    found = lists(next(iterator) for _ in range(2))
    before = sys.getprofile()
    sys.setprofile(cut)
    try:
        with pytest.raises(TimeIsUp):
            next(iterator)
    finally:
        sys.setprofile(before)
    assert found + lists(iterator) == expected
    os.close(cut.lost)


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("transport", ["arena", "portable"])
@pytest.mark.parametrize("dataset", [Numbers, Remembers, Stream])
def test_a_second_ctrl_c_while_workers_are_awaited_loses_no_batch(
    dataset: Any, transport: Any, persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The button is pressed again, as nothing seems to happen while a worker ends its sample."""

    def pressed(*_: Any) -> None:
        monkeypatch.setattr("picklable_loader.fetching.pool.pool.retire", pressed_again)
        raise KeyboardInterrupt

    def pressed_again(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    # With a budget of 2 not all batches can be here: the rest has to be waited for.
    options: dict[str, Any] = {"seed": 5, "num_workers": 2, "transport": transport}
    options["prefetch_budget"] = 2
    expected = lists(DataLoader(dataset(), 3, **options))
    iterator = iter(DataLoader(dataset(), 3, persistent_workers=persistent, **options))
    found = lists(next(iterator) for _ in range(2))
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    monkeypatch.setattr(PoolEngine, "wait", pressed)
    with pytest.raises(KeyboardInterrupt):
        list(iterator)
    found += expected[2 : iterator.step]  # what was there already
    for worker in workers:
        worker.join(10)
        assert worker.exitcode is not None
    assert found + lists(pickle.loads(pickle.dumps(iterator))) == expected
    assert found + lists(iterator) == expected
    iterator.close()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeIsUp])
def test_what_a_signal_handler_raises_after_indices_were_drawn_loses_none(
    kind: type[BaseException], shuffle: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"seed": 5, "num_workers": workers, "shuffle": shuffle}
    expected = lists(DataLoader(Numbers(), 3, **options))
    order = ChunkedOrder if shuffle else SequenceOrder
    take = order.take

    def interrupted(self: Any, count: int) -> Any:
        monkeypatch.setattr(order, "take", take)
        take(self, count)
        raise kind

    iterator = iter(DataLoader(Numbers(), 3, **options))
    found = lists(next(iterator) for _ in range(2))
    monkeypatch.setattr(order, "take", interrupted)
    with pytest.raises(kind):
        next(iterator)
    assert found + lists(pickle.loads(pickle.dumps(iterator))) == expected
    assert found + lists(iterator) == expected


@pytest.mark.parametrize("step", range(4))
def test_an_interruption_leaves_no_random_numbers_of_the_batch_that_was_not_delivered(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches of steps 0 and 1 are the first of their workers."""
    options: dict[str, Any] = {"seed": 5, "seeding": "worker", "num_workers": 2}
    expected = lists(DataLoader(Numbers(), 3, **options))
    hand_over = LoaderIterator._hand_over

    def interrupted(self: Any, *_: Any) -> Any:
        monkeypatch.setattr(LoaderIterator, "_hand_over", hand_over)
        raise KeyboardInterrupt

    iterator = iter(DataLoader(Numbers(), 3, **options))
    found = lists(next(iterator) for _ in range(step))
    monkeypatch.setattr(LoaderIterator, "_hand_over", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert found + lists(pickle.loads(pickle.dumps(iterator))) == expected
    assert found + lists(iterator) == expected


class OnTheWayOut(Interrupting):
    """Wherever the batch is on its way out; drawing from a sampler is the plan's."""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename.endswith(OUT):
            return super().__call__(frame, event, argument)
        return None


OUT = ("iterator.py", "driver.py", "run.py", "schedule.py", "window.py", "places.py", "streams.py")


class Pressed:
    """Ctrl-C is pressed once, in the midst of a sample: after some draws, and before others."""

    at = -1

    def sample(self, index: int) -> torch.Tensor:
        before = torch.randint(10**6, ())
        if index == self.at:
            self.at = -1
            raise KeyboardInterrupt
        return torch.stack([torch.tensor(index), before, torch.randint(10**6, ())])


class PressedInMap(Pressed, Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample(index)


class PressedInStream(Pressed, IterableDataset[torch.Tensor]):
    """It has no state: what was read of it is read again."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from map(self.sample, range(12))


class PressedInStreamWithState(Pressed, IterableDataset[torch.Tensor]):
    done = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.done < 12:
            self.done += 1
            yield self.sample(self.done - 1)
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def with_noise(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples) + torch.randint(10**6, ())


@pytest.mark.inline
@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("seeding", ["batch", "sample", "worker"])
@pytest.mark.parametrize("dataset", [PressedInMap, PressedInStream, PressedInStreamWithState])
def test_ctrl_c_in_the_midst_of_a_batch_does_not_show_in_any_batch_nor_in_the_program(
    dataset: Any, seeding: Any, seed: int | None
) -> None:
    if seeding == "sample" and dataset is not PressedInMap:
        pytest.skip("streams are seeded by the batch")

    def observed(at: int, copied: bool) -> Any:
        torch.manual_seed(3)
        data = dataset()
        loader = DataLoader(data, 3, seed=seed, seeding=seeding, collate_fn=with_noise)
        iterator, found = iter(loader), []
        torch.rand(1)  # the program draws as well
        data.at = at
        while len(found) < 4:
            try:
                found.append(next(iterator).tolist())
            except KeyboardInterrupt:
                iterator = pickle.loads(pickle.dumps(iterator)) if copied else iterator
        return (found,) if copied else (found, lists(iterator), lists(loader), float(torch.rand(1)))

    for copied in False, True:
        expected = observed(-1, copied)
        for at in range(12):
            assert observed(at, copied) == expected, f"sample {at}"


class PressedInSampler(Sampler[int]):
    """Ctrl-C is pressed once, in the midst of a batch's indices, of a generator or of `map`."""

    def __init__(self, generator: bool) -> None:
        self.generator, self.at = generator, -1

    def __len__(self) -> int:
        return 24

    def index(self, index: int) -> int:
        if index == self.at:
            self.at = -1
            raise KeyboardInterrupt
        return 23 - index

    def __iter__(self) -> Iterator[int]:
        return (
            (self.index(at) for at in range(24)) if self.generator else map(self.index, range(24))
        )


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("generator", [True, False])
def test_ctrl_c_within_a_sampler_of_ones_own_is_an_error_at_the_next_draw_and_save(
    generator: bool, workers: int
) -> None:
    sampler = PressedInSampler(generator)
    loader = DataLoader(Numbers(), 3, sampler=sampler, seed=5, num_workers=workers)
    expected = lists(loader)
    for at in range(9, 24, 4):
        with iter(DataLoader(Numbers(), 3, sampler=sampler, seed=5, num_workers=workers)) as it:
            found, sampler.at = lists([next(it)]), at
            with pytest.raises(KeyboardInterrupt):
                found.extend(batch.tolist() for batch in it)
            for save in (it.state_dict, partial(pickle.dumps, it)):
                with pytest.raises(CannotSaveError, match="position is unknown"):
                    save()
            with pytest.raises(UsageError, match="Begin the epoch anew"):
                found.extend(batch.tolist() for batch in it)
            # Batches that were drawn before are known.
            assert len(found) >= at // 3 - 2 * workers and found == expected[: len(found)]
    loader.set_epoch(0)
    assert lists(loader) == expected


class RaisesAtItsFourth(Sampler[int]):
    """It ends there if it is a generator, and goes on otherwise."""

    def __init__(self, generator: bool) -> None:
        self.generator = generator

    def index(self, at: int) -> int:
        if at == 3:
            raise ValueError("no index")
        return at

    def __iter__(self) -> Iterator[int]:
        return (self.index(at) for at in range(6)) if self.generator else map(self.index, range(6))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("generator", [True, False])
def test_what_a_sampler_has_raised_comes_after_an_interruption_as_well(
    generator: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    sampler, options = RaisesAtItsFourth(generator), {"prefetch_budget": 6} if workers else {}
    options |= {"num_workers": workers}
    iterator = iter(DataLoader(Numbers(), 1, sampler=sampler, seed=5, **options))
    monkeypatch.setattr(PoolEngine if workers else InlineEngine, "wait", pressed)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    for at in range(3):
        assert next(iterator)[0, 0] == at
    with pytest.raises(ValueError, match="no index"):
        next(iterator)
    assert len(list(iterator)) == (0 if generator else 2)


class InTheOrder(Interrupting):
    """Where the order of one of torch's samplers draws."""

    files = (os.sep + "chunked.py",)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "sampler, step",
    [({}, 6), ({"num_samples": 33}, 6), ({"num_samples": 50, "replacement": True}, 10)],
    ids=str,
)
def test_an_interrupted_draw_of_torchs_samplers_loses_no_index(
    sampler: dict[str, Any], step: int, workers: int
) -> None:
    """A chunk that was to be replaced was lost: the last 2 of 20 indices, for example."""

    def make() -> DataLoader[Any]:
        order = RandomSampler(range(20), **sampler)
        return DataLoader(Numbers(), 3, sampler=order, seed=2, num_workers=workers)

    expected = lists(make())
    at, interrupted = 1, True
    while interrupted:
        iterator = iter(make())
        found = lists(islice(iterator, step))
        with suppress(KeyboardInterrupt), InTheOrder(at) as tracer:
            found += lists(islice(iterator, 1))
        interrupted = tracer.raised
        assert found + lists(iterator) == expected, f"line {at}"
        at += 3 if workers else 1
    assert at > 3


def test_an_interrupted_batch_at_leaves_the_programs_generators_to_it() -> None:
    """And to other threads: a lock was left locked."""
    loader = DataLoader(Numbers(), 3, shuffle=True)
    next(iter(loader))
    expected, program = loader.batch_at(0), torch.get_rng_state()
    at, interrupted = 1, True
    while interrupted:
        with suppress(KeyboardInterrupt), AroundABatch(at) as tracer:
            loader.batch_at(0)
        interrupted = tracer.raised
        held = Isolated.turn._is_owned()  # type: ignore[attr-defined]
        assert not held and not Isolated._entered, f"line {at}"
        assert torch.equal(torch.get_rng_state(), program), f"line {at}"
        at += 1
    assert at > 20
    assert torch.equal(loader.batch_at(0), expected)


class AroundADraw(Interrupting):
    """Where the program's generators are set aside for a sampler's draw, and come back."""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename.endswith("generators.py"):
            return super().__call__(frame, event, argument)
        return None


@pytest.mark.parametrize("seed", [5, None])
def test_an_interruption_of_a_samplers_draw_leaves_the_programs_generators_to_it(
    seed: int | None,
) -> None:
    at, interrupted = 0, True
    while interrupted:
        at += 1
        iterator = iter(DataLoader(Numbers(), 3, sampler=PressedInSampler(True), seed=seed))
        next(iterator)
        program, before = capture_all(), sys.gettrace()
        sys.settrace(AroundADraw(at))
        try:
            next(iterator)
            interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert capture_all() == program, f"line {at}"
        assert not Isolated.turn._is_owned(), f"line {at}"  # type: ignore[attr-defined]
    assert at > 30


class AroundABatch(Interrupting):
    """Where the program's generators are set aside for a batch, and come back.

    A tracer can raise where a ``with`` of `Isolated.undone` ends; no signal's handler can.
    """

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        name, undone = frame.f_code.co_filename, frame.f_code.co_name == "undone"
        if name.endswith(("generators.py", "current.py", "inline.py")) and not undone:
            return super().__call__(frame, event, argument)
        return None


@pytest.mark.inline
@pytest.mark.parametrize("seeding", ["batch", "worker"])
def test_an_interruption_at_any_line_leaves_the_programs_generators_to_it(seeding: Any) -> None:
    options: dict[str, Any] = {"seed": 5, "seeding": seeding}
    expected = lists(DataLoader(Numbers(), 3, **options))
    at, interrupted = 0, True
    while interrupted:
        at += 1
        iterator = iter(DataLoader(Numbers(), 3, **options))
        found = lists(next(iterator) for _ in range(2))
        program, before = capture_all(), sys.gettrace()
        sys.settrace(AroundABatch(at))
        try:
            found += lists([next(iterator)])
            interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert capture_all() == program and not fetching(), f"line {at}"
        with ThreadPoolExecutor(1) as other:
            assert other.submit(Isolated.turn.acquire, timeout=1).result(), f"line {at}"
            other.submit(Isolated.turn.release).result()
        assert found + lists(iterator) == expected, f"line {at}"
    assert at > 30


@pytest.mark.parametrize("transport", ["arena", "portable"])
def test_figures_may_be_asked_for_in_another_thread_all_the_time(transport: Any) -> None:
    loader = DataLoader(range(6000), batch_size=1, num_workers=2, transport=transport)
    over = threading.Event()
    with iter(loader) as iterator:

        def ask() -> None:
            while not over.is_set():
                iterator.stats()

        asker = threading.Thread(target=ask, daemon=True)
        asker.start()
        try:
            assert sum(1 for _ in iterator) == 6000
        finally:
            over.set()
            asker.join()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("transport", ["arena", "portable"])
def test_a_forked_copy_of_the_program_goes_on_with_workers_of_its_own(transport: Any) -> None:
    expected = lists(DataLoader(Numbers(), 3, seed=5, num_workers=1))
    iterator = iter(DataLoader(Numbers(), 3, seed=5, num_workers=1, transport=transport))
    found = lists([next(iterator)])
    child = os.fork()
    if not child:
        code = 1
        try:
            try:
                next(iterator)
            except UsageError as error:
                assert "Call next again" in str(error)
                code = 0 if found + lists(iterator) == expected else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert found + lists(iterator) == expected


def test_ctrl_c_in_the_consumers_own_code_loses_nothing(ctrl_c_is_heard: None) -> None:
    expected = lists(DataLoader(Numbers(), 3, seed=5, num_workers=2))
    iterator, found = iter(DataLoader(Numbers(), 3, seed=5, num_workers=2)), []
    with pytest.raises(KeyboardInterrupt):
        for batch in iterator:
            found.append(batch)
            signal.raise_signal(signal.SIGINT)
    assert lists(found) + lists(iterator) == expected


@pytest.mark.parametrize("transport", ["arena", "portable"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_leave_ctrl_c_to_the_program(method: str, transport: Any) -> None:
    expected = lists(DataLoader(Numbers(), 3, seed=5))
    loader = DataLoader(
        Numbers(), 3, seed=5, num_workers=1, multiprocessing_context=method, transport=transport
    )
    iterator, found = iter(loader), []
    if method == "forkserver":  # the others are about to start now, or import
        found = lists([next(iterator)])
    while (figures := iterator.stats()) and len(found) < len(expected):
        for worker in figures.workers:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGINT)
        found.append(next(iterator).tolist())
        assert [worker.pid for worker in iterator.stats().workers] == [
            worker.pid for worker in figures.workers
        ], "none was replaced"
    assert found == expected
    iterator.close()


class StartsPrograms(Numbers):
    asks = "import signal as s; print(s.getsignal(s.SIGINT), s.pthread_sigmask(s.SIG_BLOCK, []))"

    def __getitem__(self, index: int) -> Any:
        return subprocess.run([sys.executable, "-c", self.asks], capture_output=True).stdout


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_program_that_a_dataset_starts_hears_ctrl_c(method: str, ctrl_c_is_heard: None) -> None:
    loader = DataLoader(
        StartsPrograms(), None, sampler=[0], num_workers=1, multiprocessing_context=method
    )
    [told] = loader
    assert b"default_int_handler" in told and b"SIGINT" not in told, told
