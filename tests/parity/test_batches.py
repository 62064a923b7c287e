"""Batches of every content, through workers, are what torch's workers give, bit for bit."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from .datasets import Made
from .identical import assert_identical
from .sides import OURS, TORCH, Make, assert_parity, outcome, rng_states

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Sample:
    name: str
    pixels: torch.Tensor
    labels: list[int]


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: torch.Tensor


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slotted) and self.value == other.value


class Marked(torch.Tensor):
    """A tensor subclass."""


class Level(enum.IntEnum):
    LOW = 1


class Words(list[str]):
    pass


class Table(dict[str, Any]):
    pass


def ramp(index: int, *shape: int) -> torch.Tensor:
    count = int(np.prod(shape)) if shape else 1
    return (torch.arange(count, dtype=torch.float32) + 10 * index).reshape(shape)


def floats_of(dtype: torch.dtype) -> Callable[[int], torch.Tensor]:
    return lambda index: ramp(index, 2, 3).to(dtype)


TENSORS: dict[str, Callable[[int], Any]] = {
    **{
        str(dtype).removeprefix("torch."): floats_of(dtype)
        for dtype in (
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.float8_e4m3fn,
            torch.complex64,
            torch.complex128,
            torch.int64,
            torch.int8,
            torch.uint8,
            torch.uint16,
            torch.bool,
        )
    },
    "no dimension": lambda i: torch.tensor(i),
    "empty": lambda i: torch.empty(0),
    "empty of shape": lambda i: torch.empty(2, 0, 3, dtype=torch.int16),
    "not a number": lambda i: torch.tensor([float("nan"), float("-inf"), -0.0]),
    "transposed": lambda i: ramp(i, 2, 3).t(),
    "strided": lambda i: ramp(i, 10)[1::3],
    "expanded": lambda i: ramp(i, 3, 1).expand(3, 4),
    "channels last": lambda i: ramp(i, 1, 3, 2, 2).to(memory_format=torch.channels_last),
    "gradient": lambda i: ramp(i, 2).requires_grad_(),
    "parameter": lambda i: torch.nn.Parameter(ramp(i, 2)),
    "frozen parameter": lambda i: torch.nn.Parameter(ramp(i, 2), requires_grad=False),
    "subclass": lambda i: ramp(i, 2).as_subclass(Marked),
    "sparse": lambda i: torch.eye(3).mul(i + 1).to_sparse(),
    "sparse, not coalesced": lambda i: torch.sparse_coo_tensor(
        [[0, 0, 2]], [1.0, 2.0, 3.0 + i], (4,), check_invariants=True
    ),
    "sparse, with dense part": lambda i: torch.sparse_coo_tensor(
        [[0, 2]], ramp(i, 2, 3), (4, 3), check_invariants=True
    ),
    "nested": lambda i: torch.nested.nested_tensor([ramp(i, 2), ramp(i, 3)]),
    "large": lambda i: ramp(i, 300, 1000),
}

ARRAYS: dict[str, Callable[[int], Any]] = {
    "array": lambda i: np.arange(6.0).reshape(2, 3) + i,
    "Fortran": lambda i: np.asfortranarray(np.arange(6).reshape(2, 3)),
    "sliced": lambda i: np.arange(10)[::3],
    "backwards": lambda i: np.arange(5)[::-1],
    "no dimension": lambda i: np.array(i),
    "empty": lambda i: np.empty((0, 3)),
    "text": lambda i: np.array(["a", "bcd"]),
    "objects": lambda i: np.array([i, "a", None], dtype=object),
    "dates": lambda i: np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
    "records": lambda i: np.array([(i, 1.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "truths": lambda i: np.array([True, False]),
    "scalars": lambda i: [np.float32(i), np.int8(1), np.bool_(True), np.str_("a")],
    "large": lambda i: np.full((200, 1000), i, dtype=np.float32),
    "read-only": lambda i: np.frombuffer(b"abcd", dtype=np.uint8),
}

OBJECTS: dict[str, Callable[[int], Any]] = {
    "nothing": lambda i: None,
    "numbers": lambda i: [i, -1, 2**100, 1.5, float("nan"), float("inf"), 2 + 3j, True],
    "text": lambda i: [
        "",
        "gr\u00fc\u00dfe",
        "\U0001f600",
        "caf\udce9",
        "a\0b",
        "x" * 100_000,
    ],
    "bytes": lambda i: [b"", b"\0\xff" * 70_000, bytearray(b"ab")],
    "tuples": lambda i: ((), (i,), ((i, "a"), [None])),
    "named tuple": lambda i: Point(ramp(i, 2), Point("a", i)),
    "dataclass": lambda i: Sample(f"s{i}", ramp(i, 2), [i, i]),
    "frozen dataclass": lambda i: Frozen(ramp(i, 3)),
    "slots": lambda i: Slotted(i),
    "dict": lambda i: {"a": ramp(i, 2), 1: "b", None: [i], (1, 2): {}},
    "ordered dict": lambda i: collections.OrderedDict([("b", i), ("a", ramp(i, 1))]),
    "default dict": lambda i: collections.defaultdict(list, {"a": [i]}),
    "counter": lambda i: collections.Counter("abca"),
    "deque": lambda i: collections.deque([i, 2], maxlen=3),
    "subclasses": lambda i: [Words(["a"]), Table(a=ramp(i, 2))],
    "sets": lambda i: [{i}, frozenset({1})],
    "enum": lambda i: Level.LOW,
    "range and slice": lambda i: [range(i), slice(1, i), ...],
    "torch's": lambda i: [
        torch.float16,
        torch.device("cpu"),
        torch.Size([1, i]),
        torch.strided,
    ],
    "dates": lambda i: [datetime.date(2020, 1, 1), datetime.timedelta(i)],
    "exact numbers": lambda i: [decimal.Decimal("1.10"), fractions.Fraction(1, 3)],
    "standard library": lambda i: [Path("a"), uuid.UUID(int=i)],
    "functions": lambda i: [len, np.sum, ramp, Point],
    "errors": lambda i: repr(ValueError("a value, not raised")),
    "packed": lambda i: tuple(torch.nn.utils.rnn.pack_sequence([ramp(i, 3), ramp(i, 1)])),
    "deep": lambda i: [[[[[[{"a": [(ramp(i, 1),)]}]]]]]],
    "many tensors": lambda i: [ramp(i + k, k % 5, 2) for k in range(200)],
    "several kinds": lambda i: [
        ramp(i, 2),
        np.arange(2),
        torch.eye(2).to_sparse(),
        "a",
        b"b",
    ],
}


def keep(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize(
    "make_sample",
    [
        pytest.param(make_sample, id=f"{kind}: {name}")
        for kind, table in (("tensor", TENSORS), ("array", ARRAYS), ("object", OBJECTS))
        for name, make_sample in table.items()
    ],
)
def test_whatever_a_worker_can_send_arrives_as_under_torch(
    make_sample: Callable[[int], Any],
) -> None:
    def observe(make: Make) -> Any:
        return list(make(Made(make_sample, 3), 2, collate_fn=keep, num_workers=1))

    assert_parity(observe)


def test_an_array_keeps_its_byte_order_where_torchs_workers_lose_it() -> None:
    data = Made(lambda i: np.arange(3, dtype=">i4") + i, 2)
    found = list(OURS(data, None, collate_fn=keep, num_workers=1))
    assert_identical(found, list(TORCH(data, None, collate_fn=keep)))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "make_sample",
    [
        pytest.param(table[name], id=name)
        for table, name in (
            (ARRAYS, "array"),
            (ARRAYS, "text"),
            (ARRAYS, "objects"),
            (ARRAYS, "scalars"),
            (OBJECTS, "tuples"),
            (OBJECTS, "named tuple"),
            (OBJECTS, "subclasses"),
            (OBJECTS, "dict"),
            (TENSORS, "sparse"),
        )
    ],
)
def test_without_batches_samples_are_converted_as_under_torch(
    make_sample: Callable[[int], Any], num_workers: int
) -> None:
    assert_parity(lambda make: list(make(Made(make_sample), None, num_workers=num_workers)))


COLLATED: dict[str, Callable[[int], Any]] = {
    **{name: TENSORS[name] for name in ("bfloat16", "complex64", "bool", "no dimension", "empty")},
    **{name: TENSORS[name] for name in ("transposed", "expanded", "channels last", "subclass")},
    **{name: TENSORS[name] for name in ("frozen parameter", "large")},
    "int": lambda i: i,
    "float": lambda i: i + 0.5,
    "truth": lambda i: i > 1,
    "text": lambda i: f"text {i}",
    "bytes": lambda i: b"b",
    "array": ARRAYS["array"],
    "numpy number": lambda i: np.float32(i),
    "tuple": lambda i: (i, f"{i}", ramp(i, 2)),
    "list": lambda i: [i, ramp(i, 2)],
    "dict": lambda i: {"x": ramp(i, 2), "y": {"z": i, "w": (1.5, "a")}},
    "ordered dict": lambda i: collections.OrderedDict(b=i, a=ramp(i, 2)),
    "named tuple": lambda i: Point(ramp(i, 2), i),
    "subclasses": lambda i: Table(x=Words(["a", f"{i}"])),
    "twenty tensors": lambda i: {str(k): ramp(i + k, 3) for k in range(20)},
}


@pytest.mark.parametrize("make_sample", COLLATED.values(), ids=COLLATED)
def test_the_default_collate_fn_joins_samples_in_a_worker_as_under_torch(
    make_sample: Callable[[int], Any],
) -> None:
    def observe(make: Make) -> Any:
        loader = make(Made(make_sample, 5), 2, num_workers=1)
        return loader.collate_fn is default_collate, list(loader)

    assert_parity(observe)


@pytest.mark.parametrize("name", ["dict", "named tuple", "subclasses", "large", "expanded"])
def test_the_default_collate_fn_joins_samples_in_the_main_process_as_under_torch(
    name: str,
) -> None:
    assert_parity(lambda make: list(make(Made(COLLATED[name], 5), 2)))


def test_a_type_that_was_added_to_torchs_collate_table_is_joined_in_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def join(batch: list[Slotted], *, collate_fn_map: Any = None) -> str:
        return "+".join(str(sample.value) for sample in batch)

    table = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(table, Slotted, join)

    def observe(make: Make) -> Any:
        return [list(make(Made(Slotted), 2, num_workers=n)) for n in (0, 1)]

    assert assert_parity(observe) == [["0+1", "2+3"]] * 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_views_of_one_storage_still_share_it_on_arrival(num_workers: int) -> None:
    def observe(make: Make) -> Any:
        def share(index: int) -> Any:
            base = ramp(index, 6)
            return {
                "base": base,
                "tail": base[2:],
                "grid": base.view(2, 3),
                "again": base,
            }

        [batch, _] = make(Made(share, 2), None, num_workers=num_workers)
        batch["tail"][0] = -1
        batch["grid"][1, 2] = -2
        return batch, batch["again"] is batch["base"]

    assert_parity(observe)


def test_one_object_twice_in_a_batch_is_still_one_object() -> None:
    def observe(make: Make) -> Any:
        def twice(index: int) -> Any:
            shared = [index]
            array = np.arange(3)
            return shared, shared, array, array

        [[first, second, array, other]] = make(Made(twice, 1), None, collate_fn=keep, num_workers=1)
        array[0] = 9
        return first is second, other

    assert_parity(observe)


def test_what_arrives_from_a_worker_may_be_written_to_without_touching_other_batches() -> None:
    def observe(make: Make) -> Any:
        def sample(index: int) -> Any:
            return ramp(index, 4), np.arange(4) + index

        loader = make(Made(sample, 8), None, collate_fn=keep, num_workers=1)
        seen = []
        for tensor, array in loader:
            seen.append((tensor.clone(), array.copy()))
            tensor.zero_().add_(1)
            array[:] = -1
        return seen

    assert_parity(observe)


@pytest.mark.parametrize("shape", [(3,), (64, 1024)])
def test_batches_that_the_consumer_keeps_are_never_written_again(
    shape: tuple[int, ...],
) -> None:
    def observe(make: Make) -> Any:
        loader = make(Made(lambda index: ramp(index, *shape), 40), 2, num_workers=2)
        kept = list(loader)
        other = [batch for step, batch in enumerate(loader) if step % 3]
        del loader
        return kept, other

    assert_parity(observe)


def test_what_is_left_of_a_batch_outlives_batch_iterator_and_loader() -> None:
    def observe(make: Make) -> Any:
        return [batch["x"][0] for batch in make(Made(COLLATED["dict"], 6), 2, num_workers=1)]

    assert_parity(observe)


def test_a_tensor_with_gradient_from_a_worker_can_be_trained_on() -> None:
    def observe(make: Make) -> Any:
        [batch] = make(Made(lambda i: ramp(i, 3).requires_grad_(), 1), None, num_workers=1)
        batch.square().sum().backward()
        return batch, batch.grad

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_batches_under_evaluation_modes_are_as_under_torch(mode: Any, num_workers: int) -> None:
    def sample(index: int) -> Any:
        return ramp(index, 3), ramp(index, 2).requires_grad_(), ramp(index, 300, 100)

    def observe(make: Make) -> Any:
        loader = make(Made(sample, 3), None, num_workers=num_workers)
        with mode():
            batches = list(loader)
        return batches, [[tensor.is_inference() for tensor in batch] for batch in batches]

    assert_parity(observe)


def test_a_batch_of_many_megabytes_and_many_small_ones_arrive_in_turn() -> None:
    def observe(make: Make) -> Any:
        def sample(index: int) -> torch.Tensor:
            return torch.full((2**20 if index % 4 == 0 else 1,), float(index))

        return list(make(Made(sample, 12), None, num_workers=2))

    assert_parity(observe)


class Pinned:
    """A batch with a pin_memory() of its own, as torch's documentation has it."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.state = "as collated"

    def pin_memory(self) -> Pinned:
        self.state = "pinned"
        return self


class RefusesPinning(Pinned):
    def pin_memory(self) -> Pinned:
        raise ValueError("not this one")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is there")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_without_accelerator_nothing_is_asked_to_pin_itself(num_workers: int) -> None:
    def observe(make: Make) -> Any:
        loader = make(Made(RefusesPinning, 3), None, pin_memory=True, num_workers=num_workers)
        return [batch.state for batch in loader]

    assert_parity(observe)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU pass for an accelerator."""
    for name, value in {
        "is_available": True,
        "current_accelerator": torch.device("cpu"),
        "current_device_index": 0,
        "set_device_index": None,
    }.items():
        monkeypatch.setattr(torch.accelerator, name, lambda *args, value=value, **kwargs: value)


PINNABLE: dict[str, Callable[[int], Any]] = {
    "alone": Pinned,
    "in list": lambda i: [Pinned(i), i],
    "in subclass of list": lambda i: Words([Pinned(i)]),  # type: ignore[list-item]
    "in tuple": lambda i: (Pinned(i), "text", b"bytes", None),
    "in named tuple": lambda i: Point(Pinned(i), {"a": Pinned(i)}),
    "in dict": lambda i: {"a": Pinned(i), "b": [Pinned(i)]},
    "in default dict": lambda i: collections.defaultdict(list, a=Pinned(i)),
    "in subclass of dict": lambda i: Table(a=Pinned(i)),
    "range": lambda i: [range(3), Pinned(i)],
    "in slots": lambda i: Slotted(Pinned(i)),
}


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("make_sample", PINNABLE.values(), ids=PINNABLE)
def test_with_an_accelerator_batches_are_pinned_as_deep_as_under_torch(
    make_sample: Callable[[int], Any], num_workers: int
) -> None:
    def observe(make: Make) -> Any:
        loader = make(
            Made(make_sample, 3),
            None,
            collate_fn=keep,
            pin_memory=True,
            num_workers=num_workers,
        )
        return [states(batch) for batch in loader]

    assert_parity(observe)


def states(batch: Any) -> Any:
    """Replace each Pinned within the batch by its state."""
    if isinstance(batch, Pinned):
        return batch.state
    if isinstance(batch, dict):
        return type(batch).__name__, {key: states(value) for key, value in batch.items()}
    if isinstance(batch, Slotted):
        return states(batch.value)
    if isinstance(batch, (list, tuple)):
        return type(batch).__name__, [states(item) for item in batch]
    return batch


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_while_pinning_is_an_error_of_that_batch_alone(
    num_workers: int,
) -> None:
    def observe(make: Make) -> Any:
        data = Made(lambda i: RefusesPinning(i) if i == 1 else Pinned(i), 3)
        iterator = iter(make(data, None, pin_memory=True, num_workers=num_workers))
        first = next(iterator).state
        kind, text = outcome(lambda: next(iterator))
        return (
            first,
            kind,
            "not this one" in text,
            next(iterator).state,
            next(iterator, "end"),
        )

    assert_parity(observe)


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator here")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_on_a_real_accelerator_every_tensor_of_a_batch_is_pinned(
    num_workers: int,
) -> None:
    def observe(make: Make) -> Any:
        loader = make(Made(COLLATED["dict"], 6), 2, pin_memory=True, num_workers=num_workers)
        return [(batch["x"].is_pinned(), batch["y"]["z"].is_pinned(), batch) for batch in loader]

    assert_parity(observe)


def test_reading_batches_draws_nothing_from_the_consumers_generators() -> None:
    def observe(make: Make) -> Any:
        list(make(Made(lambda i: ramp(i, 3), 6), 2, num_workers=2))
        return rng_states()

    assert_parity(observe)
    assert list(OURS(Made(lambda i: i, 2), None)) == [0, 1]
