"""Errors in datasets, samplers and workers: same type, the worker's traceback, and on it goes."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from zoo.datasets import Made, Numbers

from .identical import assert_identical
from .sides import AS_TORCH, OURS, TORCH, Make, assert_parity, outcome, seed_everything

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]


class TwoArguments(ValueError):
    def __init__(self, field: str, value: int) -> None:
        super().__init__(field, value)


class OnlyByName(Exception):
    def __init__(self, *, field: str) -> None:
        super().__init__(field)


class WithMessage(Exception):
    """As the errors of some clouds' SDKs: a class that says it takes `message`."""

    message = "default"

    def __init__(self, code: int = 0, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class Picky(TypeError):
    def __init__(self, text: str) -> None:
        if len(text) > 20:
            raise RuntimeError("the text is too long for me")
        super().__init__(text)


class Chained(Exception):
    pass


class NotText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def raise_chained() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise Chained("outer") from error


def raising(kind: type[BaseException], *args: Any, **kwargs: Any) -> Callable[[], None]:
    def throw() -> None:
        raise kind(*args, **kwargs)

    return throw


FAILURES: dict[str, Callable[[], Any]] = {
    "ValueError": raising(ValueError, "a bad sample"),
    "without text": raising(ValueError),
    "several lines": raising(ValueError, "one\ntwo\n\nthree"),
    "KeyError": raising(KeyError, "name"),
    "KeyError with tuple": raising(KeyError, ("a", 1)),
    "IndexError": raising(IndexError, "too far"),
    "OSError": raising(FileNotFoundError, 2, "No such file", "x.png"),
    "several arguments": raising(TwoArguments, "size", 3),
    "by name only": raising(OnlyByName, field="size"),
    "with message": raising(WithMessage, 3, "from the cloud"),
    "picky": raising(Picky, "short"),
    "UnicodeDecodeError": lambda: b"\xff".decode(),
    "lone surrogate": raising(ValueError, "caf\udce9"),
    "not ASCII": raising(ValueError, "gr\u00fc\u00dfe \U0001f600"),
    "null": raising(ValueError, "a\0b"),
    "chained": raise_chained,
    "no text at all": raising(NotText),
    "AssertionError": raising(AssertionError),
    "NotImplementedError": raising(NotImplementedError, "later"),
    "MemoryError": raising(MemoryError, "no more"),
    "RecursionError": raising(RecursionError, "too deep"),
    "TimeoutError": raising(TimeoutError, "too slow"),
    "EOFError": raising(EOFError, "cut off"),
    "ConnectionResetError": raising(ConnectionResetError, 104, "reset"),
    "subclass of KeyError": raising(type("LookupFailed", (KeyError,), {}), "x"),
}
PICKLABLE = {name: throw for name, throw in FAILURES.items() if name != "subclass of KeyError"}


class Failing(Dataset[int]):
    """Six samples; fetching 1 and 4 calls `throw`."""

    def __init__(self, throw: Callable[[], Any]) -> None:
        self.throw = throw

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index in (1, 4):
            self.throw()
        return index


def consume(make: Make, dataset: Any, steps: int = 7, **kwargs: Any) -> list[Any]:
    """Ask for `steps` batches, whatever happens; note each batch, or its error's outline."""
    iterator = iter(make(dataset, **kwargs))
    return [outline(outcome(lambda: next(iterator))) for _ in range(steps)]


def outline(seen: Any) -> Any:
    """Keep type, first line and last line of an error: between them stands the traceback."""
    if not isinstance(seen, tuple):
        return seen
    kind, text = seen
    lines = text.splitlines() or [""]
    return kind, lines[0], lines[-1]


def anonymous(seen: list[Any]) -> list[Any]:
    """Forget which worker it was."""
    return [
        (
            (item[0], re.sub(r"process \d+", "process N", item[1]), item[2])
            if isinstance(item, tuple)
            else item
        )
        for item in seen
    ]


@pytest.mark.parametrize("throw", FAILURES.values(), ids=FAILURES)
def test_in_the_main_process_errors_arrive_as_they_are_and_the_next_batch_follows(
    throw: Callable[[], Any],
) -> None:
    assert_parity(lambda make: consume(make, Failing(throw)))


@pytest.mark.parametrize("throw", PICKLABLE.values(), ids=PICKLABLE)
def test_a_workers_errors_arrive_in_torchs_type_and_words_and_the_next_batch_follows(
    throw: Callable[[], Any],
) -> None:
    expected = assert_parity(lambda make: consume(make, Failing(throw), num_workers=1))
    assert any(isinstance(item, tuple) for item in expected[:6])


def test_two_workers_errors_name_the_worker_that_torch_would_name() -> None:
    def observe(make: Make) -> Any:
        return consume(make, Failing(FAILURES["ValueError"]), num_workers=2)

    assert_parity(observe, ours=AS_TORCH)


def test_under_the_default_schedule_they_come_at_the_same_steps() -> None:
    def observe(make: Make) -> Any:
        return anonymous(consume(make, Failing(FAILURES["KeyError"]), num_workers=2))

    assert_parity(observe)


@pytest.mark.parametrize("name", ["ValueError", "KeyError", "several arguments", "lone surrogate"])
def test_the_workers_traceback_is_in_the_text(name: str) -> None:
    def observe(make: Make) -> Any:
        iterator = iter(make(Failing(FAILURES[name]), num_workers=1))
        next(iterator)
        _, text = outcome(lambda: next(iterator))
        lines = text.splitlines()
        return [
            lines[1],
            [line for line in lines if "test_failures.py" in line],
            [line for line in lines if "self.throw()" in line],
        ]

    assert all(assert_parity(observe))


def test_a_key_errors_text_is_readable_and_not_one_escaped_line() -> None:
    def observe(make: Make) -> Any:
        iterator = iter(make(Failing(FAILURES["KeyError"]), num_workers=1))
        next(iterator)
        _, text = outcome(lambda: next(iterator))
        return len(text.splitlines()) > 3, "\\n" in text

    assert assert_parity(observe) == (True, False)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_for_loop_ends_at_the_error_and_the_next_epoch_is_whole_again(
    num_workers: int,
) -> None:
    def observe(make: Make) -> Any:
        ill = torch.ones(1).share_memory_()
        data = Made(lambda index: index if index < 2 or not ill else 1 // 0, size=5)
        loader = make(data, shuffle=True, num_workers=num_workers)
        first = outcome(lambda: list(loader))
        ill.zero_()
        return first[0], list(loader), list(loader)

    assert_parity(observe)


def test_persistent_workers_outlive_an_error() -> None:
    def observe(make: Make) -> Any:
        data = Failing(FAILURES["ValueError"])
        loader = make(data, num_workers=1, persistent_workers=True)
        seen = []
        for _ in range(3):
            iterator = iter(loader)
            seen.append([outline(outcome(lambda: next(iterator))) for _ in range(3)])
        return seen

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_in_collate_fn_are_treated_alike(num_workers: int) -> None:
    def observe(make: Make) -> Any:
        return consume(make, Numbers(4), 5, collate_fn=explode, num_workers=num_workers)

    def explode(samples: list[int]) -> list[int]:
        if samples == [2]:
            raise TwoArguments("collate", 2)
        return samples

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "samples",
    [
        [torch.ones(2), torch.ones(3)],
        [torch.ones(2), "two"],
        [[1, 2], [1]],
        [{"a": 1}, {"b": 1}],
        [None, None],
        [object, object],
        [torch.ones(2).to_sparse()] * 2,
        [1, "one"],
    ],
    ids=[
        "shapes",
        "kinds",
        "lengths",
        "keys",
        "None",
        "classes",
        "sparse",
        "number and text",
    ],
)
def test_what_the_default_collate_fn_cannot_join_is_refused_in_torchs_words(
    samples: list[Any], num_workers: int
) -> None:
    expected = assert_parity(
        lambda make: consume(make, samples, 1, batch_size=2, num_workers=num_workers)
    )
    assert isinstance(expected[0], tuple)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_that_raises_stop_iteration_ends_the_for_loop(
    num_workers: int,
) -> None:
    def observe(make: Make) -> Any:
        seen = consume(make, Failing(raising(StopIteration)), 2, num_workers=num_workers)
        return seen[0], seen[1][0]

    assert assert_parity(observe)[1] is StopIteration


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_error_in_worker_init_fn_comes_with_the_first_batch(
    num_workers: int,
) -> None:
    def observe(make: Make) -> Any:
        return consume(make, Numbers(6), 1, num_workers=num_workers, worker_init_fn=explode)

    def explode(worker_id: int) -> None:
        raise TwoArguments("start", "up")

    assert_parity(observe, ours=AS_TORCH)
    seed_everything()
    # Under our own schedule either worker may be the first, which the text says.
    assert anonymous(observe(OURS)) == anonymous(observe(TORCH))


def test_an_error_in_one_workers_init_fn_leaves_the_others_batches() -> None:
    def observe(make: Make) -> Any:
        kwargs = {"num_workers": 2, "worker_init_fn": explode}
        return consume(make, Numbers(6), 2, **kwargs)

    def explode(worker_id: int) -> None:
        if worker_id == 1:
            raise ValueError("not me")

    assert_parity(observe, ours=AS_TORCH)


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("schedule", ["round_robin", "balanced"])
@pytest.mark.parametrize("kind", ["Prepared", "PreparedStream"])
def test_no_worker_fetches_that_its_init_fn_has_not_prepared(
    kind: str, schedule: str, persistent_workers: bool
) -> None:
    """Torch's next epoch of workers that live on gives what such a worker has fetched."""
    tries = torch.zeros((), dtype=torch.int64).share_memory_()

    def prepare(worker_id: int) -> None:
        if worker_id == 1 and tries.add_(1) <= 3:
            raise ValueError("not prepared")
        prepared.append(worker_id)

    options: dict[str, Any] = {"schedule": schedule, "persistent_workers": persistent_workers}
    loader = OURS(globals()[kind](), 2, num_workers=2, worker_init_fn=prepare, **options)
    epochs = []
    for _ in range(2):
        seen, iterator = [], iter(loader)
        while (batch := outcome(lambda: next(iterator))) != (StopIteration, ""):
            if not isinstance(batch, torch.Tensor):
                assert batch[0] is ValueError and "not prepared" in batch[1]
            else:
                seen.append(batch.tolist())
        epochs.append(seen)
    assert epochs[0] == epochs[1] and sorted(sum(epochs[0], [])) == list(range(8))


prepared: list[int] = []


class Prepared(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        assert prepared
        return index


class PreparedStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        assert prepared
        yield from range(4 * prepared[0], 4 * prepared[0] + 4)


def test_an_error_in_a_streams_iter_comes_with_the_first_batch() -> None:
    assert_parity(lambda make: consume(make, BadStart(), 1, num_workers=1))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_within_a_stream_comes_after_the_batches_before_it(
    num_workers: int,
) -> None:
    def observe(make: Make) -> Any:
        return consume(make, BadMiddle(), 3, batch_size=2, num_workers=num_workers)

    assert_parity(observe)


class BadStart(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        raise TwoArguments("stream", 1)


class BadMiddle(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)
        raise KeyError("the fourth")


@pytest.mark.parametrize(
    "die",
    [
        pytest.param(lambda: os.kill(os.getpid(), signal.SIGKILL), id="SIGKILL"),
        pytest.param(lambda: os.kill(os.getpid(), signal.SIGTERM), id="SIGTERM"),
        pytest.param(lambda: os._exit(3), id="_exit"),
        pytest.param(lambda: sys.exit(3), id="sys.exit"),
    ],
)
def test_a_worker_that_dies_while_it_fetches_is_a_runtime_error_as_under_torch(
    die: Callable[[], None],
) -> None:
    kind, text = outcome(lambda: list(OURS(Failing(die), num_workers=1, max_task_deaths=0)))
    assert kind is RuntimeError
    assert text.startswith("DataLoader worker (pid")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_worker_that_is_killed_from_outside_is_named_by_its_pid(
    num_workers: int,
) -> None:
    class Pids(Dataset[int]):
        def __len__(self) -> int:
            return 50_000  # a process may take a while to die

        def __getitem__(self, index: int) -> int:
            return os.getpid()

    iterator = iter(OURS(Pids(), None, num_workers=num_workers, max_task_deaths=0))
    victim = next(iterator)
    os.kill(victim, signal.SIGKILL)
    kind, text = outcome(lambda: list(iterator))
    assert kind is RuntimeError
    assert re.match(rf"DataLoader worker \(pid.*\b{victim}\b", text)


def test_large_batches_that_a_killed_worker_had_sent_are_its_death_and_no_other_error() -> None:
    at_the_fourth = multiprocessing.get_context("fork").Event()

    def fetch(index: int) -> torch.Tensor:
        if index == 3:
            at_the_fourth.set()
        return torch.full((2**18,), float(index))

    options: Any = {"num_workers": 1, "prefetch_factor": 4, "max_task_deaths": 0}
    iterator = iter(OURS(Made(fetch, 30), None, **options))
    assert at_the_fourth.wait(30.0)
    [worker] = multiprocessing.active_children()
    worker.kill()
    worker.join()
    kind, text = outcome(lambda: list(iterator))
    assert kind is RuntimeError
    assert text.startswith(f"DataLoader worker (pid(s) {worker.pid}) exited unexpectedly")


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_after_a_workers_death_the_next_epoch_is_whole(
    persistent_workers: bool,
) -> None:
    deadly = torch.ones(1).share_memory_()
    data = Made(lambda index: os._exit(1) if deadly and index == 3 else index, 6)
    options: Any = {"persistent_workers": persistent_workers, "max_task_deaths": 0}
    loader = OURS(data, None, num_workers=2, **options)
    kind, _ = outcome(lambda: list(loader))
    deadly.zero_()
    assert kind is RuntimeError
    assert [*loader] == [*range(6)]
    assert [*loader] == [*range(6)]


@pytest.mark.parametrize(
    "make_sample",
    [
        pytest.param(lambda index: lambda: index, id="a local function"),
        pytest.param(lambda index: (i for i in range(index)), id="a generator"),
        pytest.param(lambda index: 2 * torch.ones(1, requires_grad=True), id="part of a graph"),
        pytest.param(lambda index: type("Local", (), {})(), id="of a local class"),
    ],
)
def test_a_batch_that_cannot_be_sent_is_an_error_where_torch_waits_for_ever(
    make_sample: Callable[[int], Any],
) -> None:
    data = Made(lambda index: make_sample(index) if index == 1 else index)
    seen = consume(OURS, data, 5, batch_size=None, num_workers=1)
    assert isinstance(seen[1], tuple)
    assert [*seen[:1], *seen[2:4]] == [0, 2, 3]


def test_a_local_exception_class_is_an_error_where_torch_waits_for_ever() -> None:
    class Local(Exception):
        pass

    seen = consume(OURS, Failing(raising(Local, "trouble of my own")), 3, num_workers=1)
    assert seen[1][0].__name__ in ("Local", "RuntimeError")
    assert seen[1][1].startswith("Caught Local in DataLoader worker process 0")
    assert seen[1][2].endswith("trouble of my own")
    assert_identical(seen[2], torch.tensor([2]))


class BlocksUntilSet(Dataset[int]):
    """Sample `blocked` waits for the event."""

    def __init__(self, event: Any, blocked: int) -> None:
        self.event = event
        self.blocked = blocked

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == self.blocked:
            self.event.wait()
        return index


def again_while_too_slow(iterator: Iterator[Any]) -> list[Any]:
    """Take what is left; where the machine is too busy to keep to the timeout, ask again."""
    batches: list[Any] = []
    while True:
        try:
            batches.append(next(iterator))
        except RuntimeError as error:
            assert "timed out" in str(error)
        except StopIteration:
            return batches


def test_a_timeout_is_a_runtime_error_in_torchs_words_after_which_nothing_is_lost() -> None:
    def observe(make: Make) -> Any:
        event = multiprocessing.get_context("fork").Event()
        loader = make(BlocksUntilSet(event, 0), None, num_workers=1, timeout=0.3)
        iterator = iter(loader)
        errors = [outcome(lambda: next(iterator)) for _ in range(2)]
        event.set()
        return errors, again_while_too_slow(iterator)

    errors, batches = assert_parity(observe)
    assert errors == [(RuntimeError, "DataLoader timed out after 0.3 seconds")] * 2
    assert batches == [*range(6)]


def test_a_timeout_in_mid_epoch_names_its_seconds_as_they_were_given() -> None:
    def observe(make: Make) -> Any:
        event = multiprocessing.get_context("fork").Event()
        loader = make(BlocksUntilSet(event, 5), None, num_workers=2, timeout=1)
        iterator = iter(loader)
        batches = [next(iterator) for _ in range(5)]
        error = outcome(lambda: next(iterator))
        event.set()
        return batches, error, again_while_too_slow(iterator)

    assert assert_parity(observe)[1] == (
        RuntimeError,
        "DataLoader timed out after 1 seconds",
    )


def test_out_of_order_delivery_does_not_wait_for_a_slow_worker_and_loses_nothing() -> None:
    def observe(make: Make) -> Any:
        event = multiprocessing.get_context("fork").Event()
        loader = make(BlocksUntilSet(event, 0), None, num_workers=2, in_order=False)
        iterator = iter(loader)
        first = next(iterator)
        event.set()
        rest = list(iterator)
        return first in range(1, 6), sorted([first, *rest])

    assert assert_parity(observe) == (True, [*range(6)])


@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_ctrl_c_while_waiting_for_a_worker_loses_no_batch() -> None:
    def observe(make: Make) -> Any:
        event = multiprocessing.get_context("fork").Event()
        iterator = iter(make(InterruptsParent(event), None, num_workers=1))
        seen: list[Any] = [next(iterator) for _ in range(3)]
        with pytest.raises(KeyboardInterrupt) as caught:
            event.set()
            next(iterator)
        traceback.clear_frames(caught.tb)
        return seen + list(iterator)

    assert assert_parity(observe) == [*range(6)]


class InterruptsParent(Dataset[int]):
    """Sample 3 waits for the event and then, once, sends Ctrl-C to the main process."""

    def __init__(self, event: Any) -> None:
        self.event = event
        self.sent = torch.zeros(1).share_memory_()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 3:
            self.event.wait()
            if not self.sent:
                self.sent.fill_(1)
                os.kill(os.getppid(), signal.SIGINT)
        return index


def test_workers_within_workers_are_refused_as_under_torch() -> None:
    def observe(make: Make) -> Any:
        data = Made(lambda index: list(make(Numbers(2), num_workers=1)), 1)
        return consume(make, data, 1, batch_size=None, num_workers=1)

    assert assert_parity(observe)[0][0] is AssertionError


class BadReceiver(Numbers):
    """Can be sent to a spawned worker, but not received there."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        if multiprocessing.current_process().name != "MainProcess":
            raise ValueError("cannot be set up in a worker")
        self.__dict__.update(state)


def test_a_dataset_that_a_spawned_worker_cannot_receive_is_a_runtime_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    options: Any = {"multiprocessing_context": "spawn", "max_task_deaths": 0}
    loader = OURS(BadReceiver(4), num_workers=1, **options)
    kind, text = outcome(lambda: next(iter(loader)))
    assert issubclass(kind, RuntimeError)
    assert text.startswith("DataLoader worker (pid")
    assert "cannot be set up in a worker" in text + capfd.readouterr().err


def test_a_forked_worker_needs_no_pickling_of_what_it_was_given() -> None:
    class Local(Dataset[Any]):
        def __init__(self) -> None:
            self.unpicklable = (i for i in range(3))

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            info = get_worker_info()
            return index, next(self.unpicklable), info.dataset is self

    def observe(make: Make) -> Any:
        kwargs = {
            "collate_fn": lambda sample: sample,
            "worker_init_fn": lambda worker_id: None,
        }
        return list(make(Local(), None, num_workers=1, multiprocessing_context="fork", **kwargs))

    assert_parity(observe)


class Raises(Dataset[Any]):
    """One sample, which is a RuntimeError: torch's errors of CUDA, on any machine."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        raise RuntimeError(self.text)


def test_the_error_of_a_forked_worker_that_uses_cuda_says_what_to_pass_to_the_loader() -> None:
    dataset = Raises("Cannot re-initialize CUDA in forked subprocess. Use 'spawn'")
    with pytest.raises(RuntimeError, match='Use .spawn.*multiprocessing_context="spawn"'):
        next(iter(OURS(dataset, num_workers=1)))


def test_an_error_of_the_driver_in_a_process_that_is_no_fork_comes_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="^CUDA error: initialization error$"):
        next(iter(OURS(Raises("CUDA error: initialization error"))))
