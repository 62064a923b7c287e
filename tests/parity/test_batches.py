"""Batches of every content, small or large, by either transport: what torch's workers give.

One worker sends all cases of a table: types, bits, sharing and what can be written are compared.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import os
import pickle
import traceback
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.datasets import Made, as_they_are

from picklable_loader.core.events import Arrived
from picklable_loader.fetching.transport.arena import Arena, ArenaReader, new_memory
from picklable_loader.fetching.transport.messages import Answer, encode_answer, read_answer
from picklable_loader.fetching.transport.tensors import INLINE_BYTES

from .identical import assert_identical
from .sides import OURS, TORCH, Make, assert_parity, outcome, rng_states

pytestmark = [
    pytest.mark.unpinned,
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
    pytest.mark.filterwarnings("ignore:.*[Qq]uantiz"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]

TRANSPORTS = pytest.mark.parametrize("transport", ["arena", "portable"])

#: elements: a batch of a few bytes, and one that is no message for a pipe
SMALL, LARGE = 6, 60_000


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Sample:
    name: str
    pixels: torch.Tensor


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


class Plain:
    """An object of people's own, with tensors and arrays in it."""

    def __init__(self, **values: Any) -> None:
        self.values = values


def ramp(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32).fmod(120).to(dtype)


def bits(n: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of any type at all."""
    tensor = torch.arange(n * dtype.itemsize, dtype=torch.int64).fmod(2).to(torch.uint8)
    return torch.empty(0, dtype=dtype).set_(tensor.untyped_storage(), 0, (n,), (1,))


def records(n: int) -> np.ndarray[Any, Any]:
    array = np.zeros(n, dtype=[("a", "i4"), ("b", "f8", (2,)), ("c", "U3")])
    array["a"], array["c"] = np.arange(n), "xyz"
    return array


def objects(n: int) -> np.ndarray[Any, Any]:
    array = np.empty(n, dtype=object)
    array[:] = [None, "text", 3] * (n // 3)
    return array


def picture(n: int) -> Any:
    image = pytest.importorskip("PIL.Image")
    return image.fromarray(np.arange(n, dtype=np.uint8).reshape(2, -1), "L")


def read_only(n: int) -> np.ndarray[Any, Any]:
    array = np.arange(n)
    array.flags.writeable = False
    return array


def shared(n: int) -> dict[str, torch.Tensor]:
    base = ramp(n)
    return {"tail": base[2:], "base": base, "grid": base.view(2, -1), "again": base, "b": base[::2]}


def within(n: int) -> Any:
    base = ramp(n)
    return [{"x": (base, [base[1:]])}, Point(base.view(torch.int32), Sample("s", base[:1]))]


DTYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)

TENSORS: dict[str, Callable[[int], Any]] = {
    **{
        str(dtype).removeprefix("torch."): lambda n, dtype=dtype: bits(n, dtype)
        for dtype in DTYPES
        if not str(dtype).startswith("torch.q")
    },
    "no dimension": lambda n: torch.tensor(n),
    "empty": lambda n: torch.empty(0, n),
    "empty view": lambda n: ramp(n)[n:],
    "transposed": lambda n: ramp(n).view(2, -1).t(),
    "strided": lambda n: ramp(n)[1::3],
    "expanded": lambda n: ramp(n)[:, None].expand(n, 2),
    "one element expanded": lambda n: torch.tensor(1.5).expand(n, 2),
    "channels last": lambda n: ramp(n).view(1, 3, 2, -1).to(memory_format=torch.channels_last),
    "a row": lambda n: ramp(n).view(2, -1)[1],
    "gradient": lambda n: ramp(n).requires_grad_(),
    "detached": lambda n: (ramp(n).requires_grad_() * 2).detach(),
    "real part": lambda n: torch.complex(ramp(n), ramp(n)).real,
    "parameter": lambda n: torch.nn.Parameter(ramp(n)),
    "frozen parameter": lambda n: torch.nn.Parameter(ramp(n), requires_grad=False),
    "buffer": lambda n: torch.nn.Buffer(ramp(n)),
    "subclass": lambda n: ramp(n).as_subclass(Marked),
    "sparse": lambda n: ramp(n).to_sparse(),
    "sparse, not coalesced": lambda n: torch.sparse_coo_tensor(
        [[0, 0, 2]], [1.0, 2.0, float(n)], (4,), check_invariants=True
    ),
    "sparse, with dense part": lambda n: torch.sparse_coo_tensor(
        [[0, 2]], ramp(2 * n).view(2, -1), (4, n), check_invariants=True
    ),
    "not a number": lambda n: torch.tensor([float("nan"), float("-inf"), -0.0] * n),
    "sparse rows": lambda n: ramp(n).view(2, -1).to_sparse_csr(),
    "nested": lambda n: torch.nested.nested_tensor([ramp(n), ramp(n + 1)]),
    "meta": lambda n: torch.empty(n, device="meta").shape,
    "from numpy": lambda n: torch.from_numpy(np.arange(n)),
    "in shared memory": lambda n: ramp(n).share_memory_(),
    "list": lambda n: [ramp(n), ramp(n + 1)],
}

ARRAYS: dict[str, Callable[[int], Any]] = {
    **{
        f"array of {code}": lambda n, code=code: np.arange(n).astype(code)
        for code in "?bBhHiIlLefdFD"
    },
    "Fortran": lambda n: np.asfortranarray(np.arange(n).reshape(2, -1)),
    "sliced": lambda n: np.arange(n)[::3],
    "backwards": lambda n: np.arange(n)[::-1],
    "no dimension": lambda n: np.array(n),
    "empty": lambda n: np.empty((0, n)),
    "text": lambda n: np.array(["a", "bcd"] * n),
    "bytes": lambda n: np.array([b"a", b"bcd"] * n),
    "raw": lambda n: np.zeros(n, dtype="V5"),
    "objects": objects,
    "records": records,
    "a field": lambda n: records(n)["b"],
    "recarray": lambda n: records(n).view(np.recarray),
    "masked": lambda n: np.ma.masked_array(np.arange(n), np.arange(n) % 2),
    "dates": lambda n: np.arange(n).astype("datetime64[D]"),
    "times": lambda n: np.arange(n).astype("timedelta64[s]"),
    "read-only": read_only,
    "big-endian": lambda n: np.arange(n, dtype=">i4"),
    "big-endian and not in order": lambda n: np.arange(n, dtype=">f8").reshape(2, -1).T,
    "big-endian fields": lambda n: np.ones(n, dtype=[("a", ">i4"), ("b", "f8")]),
    "broadcast": lambda n: np.broadcast_to(np.arange(3), (n, 3)),
    "scalars": lambda n: [np.float32(n), np.int8(1), np.bool_(True), np.str_("a"), records(n)[1]],
    "same twice": lambda n: (lambda array: [array, array])(np.arange(n)),
    "two views": lambda n: (lambda array: [array, array[1:], array.reshape(2, -1)])(np.arange(n)),
}

OBJECTS: dict[str, Callable[[int], Any]] = {
    "nothing": lambda n: None,
    "numbers": lambda n: [list(range(n)), 2 ** (8 * n), 1.5, float("nan"), 2 + 3j, True],
    "text": lambda n: ["gr\u00fc\u00dfe" * n, "caf\udce9", "a\0b"],
    "strings": lambda n: [f"text {i}" for i in range(n)],
    "bytes": lambda n: [b"\0\xff" * n, bytearray(b"ab" * n), b""],
    "tuples": lambda n: ((), (n,), ((n, "a"), [None] * n)),
    "named tuple": lambda n: Point(ramp(n), Point("a", np.arange(n))),
    "dataclass": lambda n: Sample("s" * n, ramp(n)),
    "dict": lambda n: {"a": ramp(n), 1: "b", None: [n], (1, 2): {"x": {"y": ramp(n)}}},
    "ordered dict": lambda n: collections.OrderedDict([("b", n), ("a", ramp(n))]),
    "default dict": lambda n: collections.defaultdict(list, {"a": [ramp(n)]}),
    "counter": lambda n: collections.Counter("abca" * n),
    "deque": lambda n: collections.deque(["a" * n, 2], maxlen=3),
    "subclasses": lambda n: [Words(["a"] * n), Table(a=ramp(n))],
    "frozen dataclass": lambda n: Frozen(ramp(n)),
    "slots": Slotted,
    "sets": lambda n: [{n}, frozenset({1})],
    "enum": lambda n: Level.LOW,
    "range and slice": lambda n: [range(n), slice(1, n), ...],
    "torch's": lambda n: [torch.float16, torch.device("cpu"), torch.Size([1, n]), torch.strided],
    "dates": lambda n: [datetime.date(2020, 1, 1), datetime.timedelta(n)],
    "exact numbers": lambda n: [decimal.Decimal("1.10"), fractions.Fraction(1, 3)],
    "standard library": lambda n: [Path("a"), uuid.UUID(int=n)],
    "functions": lambda n: [len, np.sum, ramp, Point],
    "deep": lambda n: [[[[[[{"a": [(ramp(n),)]}]]]]]],
    "picture": picture,
    "errors": lambda n: repr(ValueError("a value" * n)),
    "packed": lambda n: tuple(torch.nn.utils.rnn.pack_sequence([ramp(n), ramp(n)])),
    "many kinds": lambda n: [ramp(n), np.arange(n), ramp(n).to_sparse(), "a" * n, objects(n)],
    "forty tensors": lambda n: [ramp(n // 2 + k) for k in range(40)],
    "many tensors": lambda n: [ramp(2 * (k % 5)).view(-1, 2) for k in range(200)],
}

SHARING: dict[str, Callable[[int], Any]] = {
    "views": shared,
    "views in depth": within,
    "same twice": lambda n: (lambda tensor: [tensor, tensor])(ramp(n)),
    "views of several types": lambda n: (lambda t: [t, t.view(torch.int8), t.view(torch.int32)])(
        ramp(n)
    ),
    "parts of a whole": lambda n: list(ramp(n).view(2, -1).unbind()),
    "leaf and its data": lambda n: (lambda t: [t, t.detach()])(ramp(n).requires_grad_()),
}

#: A plain tensor stands in the arena, and what shares its storage goes in torch's way.
SHARING_OF_KINDS: dict[str, Callable[[int], Any]] = {
    "tensor and parameter": lambda n: (lambda t: [t, torch.nn.Parameter(t)])(ramp(n)),
    "parameter and tensor": lambda n: (lambda t: [torch.nn.Parameter(t), t])(ramp(n)),
    "tensor and subclass": lambda n: (lambda t: [t, t.as_subclass(Marked)])(ramp(n)),
    "subclass and tensor": lambda n: (lambda t: [t.as_subclass(Marked), t])(ramp(n)),
    "tensor and storage": lambda n: (lambda t: [t, t.untyped_storage()])(ramp(n)),
}


def waves(n: int) -> torch.Tensor:
    return torch.complex(ramp(n), ramp(n).flip(0))


def labelled(n: int) -> torch.Tensor:
    tensor = ramp(n)
    tensor.label = n  # type: ignore[attr-defined]
    return tensor


#: Torch's workers lose what is known of a tensor beside its memory.
BESIDE_MEMORY: dict[str, Callable[[int], Any]] = {
    "conjugate": lambda n: waves(n).conj(),
    "negative": lambda n: waves(n).conj().imag,
    "negative and conjugate": lambda n: torch._neg_view(waves(n).conj()),
    "negative of complex": lambda n: torch._neg_view(waves(n)),
    "conjugate and transposed": lambda n: waves(n).view(2, -1).mH,
    "part of a conjugate": lambda n: waves(n).conj()[1::2],
    "conjugate of no dimension": lambda n: waves(n)[1].conj(),
    "empty conjugate": lambda n: waves(n)[:0].conj(),
    "conjugate with a gradient": lambda n: waves(n).conj().requires_grad_(),
    "conjugate as a parameter": lambda n: torch.nn.Parameter(waves(n).conj()),
    "tensor and conjugate": lambda n: (lambda t: [t, t.conj()])(waves(n)),
    "conjugate and tensor": lambda n: (lambda t: [t.conj(), t])(waves(n)),
    "conjugate and its imaginary part": lambda n: (lambda t: [t, t.imag])(waves(n).conj()),
    "subclass": lambda n: waves(n).conj().as_subclass(Marked),
    "sparse": lambda n: waves(n).to_sparse().conj(),
    "attributes": labelled,
    "same twice, with attributes": lambda n: (lambda t: [t, t])(labelled(n)),
}


class Cases:
    """Each sample is another case."""

    def __init__(self, cases: dict[str, Callable[[int], Any]], n: int) -> None:
        self.cases = list(cases.values())
        self.n = n

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: int) -> Any:
        return self.cases[index](self.n)


def parts(thing: Any) -> Iterator[Any]:
    """All tensors, storages and arrays within a batch, in order."""
    if isinstance(thing, (torch.Tensor, torch.UntypedStorage, np.ndarray)):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from parts(value)
    elif isinstance(thing, (list, tuple, collections.deque)):
        for value in thing:
            yield from parts(value)
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        yield from parts(vars(thing))


def has_memory(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def sharing(batch: Any) -> list[Any]:
    """For each part: what it sees of its memory, and the first part that sees the same memory."""
    seen: dict[int, int] = {}
    facts: list[Any] = []
    for place, part in enumerate(parts(batch)):
        if isinstance(part, np.ndarray):
            facts.append((part.strides, part.flags.writeable, part.flags.aligned))
        elif isinstance(part, torch.UntypedStorage):
            facts.append((part.nbytes(), seen.setdefault(part.data_ptr(), place)))
        elif has_memory(part):
            storage = part.untyped_storage()
            first = seen.setdefault(storage.data_ptr(), place) if storage.nbytes() else None
            facts.append((part.storage_offset(), storage.nbytes(), first))
        else:
            facts.append(str(part.layout))
    return facts


def can_be_written(batch: Any) -> list[bool]:
    """Each tensor is changed in place, and what comes of it is seen by all that share it."""
    seen = []
    for part in parts(batch):
        if isinstance(part, torch.Tensor) and has_memory(part) and not part.requires_grad:
            if part.numel() and not part.is_conj() and not part.is_neg():
                data = part.as_subclass(torch.Tensor)
                raw = torch.empty(0, dtype=torch.uint8).set_(data.untyped_storage())
                raw[-1] ^= 1
                seen.append(bool(raw[-1]))
    return seen


def attributes(batch: Any) -> list[Any]:
    return [dict(vars(part)) for part in parts(batch) if isinstance(part, torch.Tensor)]


def differences(
    cases: dict[str, Callable[[int], Any]],
    n: int,
    transport: str,
    torchs_workers: int = 1,
    **options: Any,
) -> list[str]:
    """What of a worker's batches is not as under torch."""
    options = {"collate_fn": as_they_are, "num_workers": 1, "batch_size": None, **options}
    found: list[str] = []
    torchs = {**options, "num_workers": torchs_workers}
    expected = iter(TORCH(Cases(cases, n), **torchs))  # type: ignore[arg-type]
    ours = iter(OURS(Cases(cases, n), transport=transport, **options))  # type: ignore[call-arg]
    for name in cases:
        here, there = said(lambda: next(ours)), said(lambda: next(expected))
        try:
            assert_identical(here, there, name)
            assert_identical(sharing(here), sharing(there), f"sharing({name})")
            assert_identical(can_be_written(here), can_be_written(there), f"write({name})")
            if not torchs_workers:
                assert_identical(attributes(here), attributes(there), f"attributes({name})")
        except Exception as error:
            found.append(f"{name}: {error!r}"[:300])
            traceback.clear_frames(error.__traceback__)
    return found


#: Python 3.14 pickles by protocol 5, which leaves these as the dataset made them
LEFT_BY_PROTOCOL_5 = ("read-only", "big-endian", "big-endian and not in order")
SEES_LITTLE = ("empty view", "a row", "conjugate of no dimension", "empty conjugate")
SIZES = pytest.mark.parametrize("n", [SMALL, LARGE], ids=["small", "large"])


@TRANSPORTS
@SIZES
@pytest.mark.parametrize("kind", ["tensors", "arrays", "objects", "sharing"])
def test_whatever_a_worker_sends_arrives_as_under_torch(kind: str, n: int, transport: str) -> None:
    table = {"tensors": TENSORS, "arrays": ARRAYS, "objects": OBJECTS, "sharing": SHARING}[kind]
    others = LEFT_BY_PROTOCOL_5 if pickle.DEFAULT_PROTOCOL >= 5 else ()
    if n == LARGE:  # of a large storage only what is seen is sent; torch sends it whole
        others += SEES_LITTLE
    table = {name: case for name, case in table.items() if name not in others}
    assert differences(table, n, transport) == []


@TRANSPORTS
@SIZES
def test_an_array_of_a_worker_can_be_written_to_and_is_native(n: int, transport: str) -> None:
    table = {name: ARRAYS[name] for name in LEFT_BY_PROTOCOL_5}
    options: dict[str, Any] = {"num_workers": 1, "batch_size": None, "transport": transport}
    for name, got in zip(table, OURS(Cases(table, n), collate_fn=as_they_are, **options)):
        made = table[name](n)
        assert np.array_equal(got, made), name
        assert got.flags.writeable and got.dtype == made.dtype.newbyteorder("="), name


@TRANSPORTS
@SIZES
@pytest.mark.parametrize("name", SHARING_OF_KINDS)
def test_a_tensor_and_what_is_no_plain_tensor_still_share_their_storage(
    name: str, n: int, transport: str
) -> None:
    assert differences({name: SHARING_OF_KINDS[name]}, n, transport) == []


@TRANSPORTS
@SIZES
def test_a_tensor_arrives_with_what_its_memory_does_not_hold(n: int, transport: str) -> None:
    table = BESIDE_MEMORY
    if n == LARGE:
        table = {name: case for name, case in table.items() if name not in SEES_LITTLE}
    assert differences(table, n, transport, torchs_workers=0) == []


@TRANSPORTS
def test_a_tensor_without_memory_arrives_as_zeros(transport: str) -> None:
    zeros = Cases({"zeros": lambda n: torch._efficientzerotensor(n)}, 3)
    [found] = OURS(
        zeros, batch_size=None, collate_fn=as_they_are, num_workers=1, transport=transport
    )  # type: ignore[call-overload]
    assert_identical(found, torch.zeros(3))


@TRANSPORTS
@SIZES
def test_objects_of_peoples_own_arrive_with_all_that_is_in_them(n: int, transport: str) -> None:
    def observe(make: Make, **options: Any) -> Any:
        made = {"own": lambda n: Plain(x=ramp(n), y=[np.arange(n)], z=Sample("s", ramp(n)))}
        data = Cases(made, n)
        [batch] = make(data, batch_size=None, collate_fn=as_they_are, num_workers=1, **options)
        return type(batch), vars(batch)

    assert_identical(observe(OURS, transport=transport), observe(TORCH))


@TRANSPORTS
@SIZES
def test_without_batches_samples_are_converted_as_under_torch(n: int, transport: str) -> None:
    cases = {**SHARING, **ARRAYS, **OBJECTS}
    convert = torch.utils.data._utils.collate.default_convert
    assert differences(cases, n, transport, collate_fn=convert) == []


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_without_batches_samples_are_converted_in_the_main_process_too() -> None:
    cases = {**SHARING, **ARRAYS, **OBJECTS}
    convert = torch.utils.data._utils.collate.default_convert
    options = {"collate_fn": convert, "num_workers": 0}
    assert differences(cases, SMALL, "auto", torchs_workers=0, **options) == []


@TRANSPORTS
@SIZES
@pytest.mark.parametrize("kind", [torch.quint8, torch.qint8, torch.qint32], ids=str)
def test_quantised_tensors_arrive_or_fail_as_under_torch(
    kind: torch.dtype, n: int, transport: str
) -> None:
    def observe(make: Make, **options: Any) -> Any:
        cases = {
            "tensor": lambda n: torch.quantize_per_tensor(ramp(n), 0.5, 3, kind),
            "after it": lambda n: ramp(n),
        }
        data = Cases(cases, n)
        iterator = iter(
            make(data, batch_size=None, collate_fn=as_they_are, num_workers=1, **options)
        )
        first = said(lambda: quantised(next(iterator)))
        return first, next(iterator)

    assert_identical(observe(OURS, transport=transport), observe(TORCH))


def quantised(tensor: torch.Tensor) -> Any:
    return tensor.dtype, tensor.stride(), tensor.int_repr(), tensor.q_scale(), tensor.dequantize()


# --- the default collate_fn ----------------------------------------------------------------------


#: those that torch's default collate_fn takes
BYTES = (torch.uint8, torch.int8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2)
NOT_COLLATED = ("torch.q", "torch.bits")

COLLATED: dict[str, Callable[[int, int], Any]] = {
    **{
        str(dtype).removeprefix("torch."): lambda i, n, dtype=dtype: bits(n, dtype)
        for dtype in DTYPES
        if dtype in BYTES or (dtype.itemsize > 1 and not str(dtype).startswith(NOT_COLLATED))
    },
    "no dimension": lambda i, n: torch.tensor(i),
    "empty": lambda i, n: torch.empty(0, n),
    "transposed": lambda i, n: ramp(n).view(2, -1).t(),
    "strided": lambda i, n: ramp(n)[i::3],
    "expanded": lambda i, n: ramp(n)[:, None].expand(n, 2),
    "channels last": lambda i, n: (
        ramp(n).view(1, 3, 2, -1).to(memory_format=torch.channels_last) + i
    ),
    "subclass": lambda i, n: ramp(n).as_subclass(Marked),
    "first of them a subclass": lambda i, n: ramp(n) if i else ramp(n).as_subclass(Marked),
    "last of them a subclass": lambda i, n: ramp(n).as_subclass(Marked) if i else ramp(n),
    "frozen parameter": lambda i, n: torch.nn.Parameter(ramp(n), requires_grad=False),
    "arrays": lambda i, n: np.arange(n) + i,
    "Fortran": lambda i, n: np.asfortranarray(np.arange(n).reshape(2, -1)),
    "arrays of no dimension": lambda i, n: np.array(i),
    "numpy numbers": lambda i, n: np.float32(i),
    "mixed float types": lambda i, n: ramp(n, (torch.float32, torch.float64, torch.float16)[i]),
    "mixed, float first": lambda i, n: ramp(n, torch.int64 if i else torch.float32),
    "mixed, whole first": lambda i, n: ramp(n, torch.float32 if i else torch.int64),
    "mixed, truth first": lambda i, n: ramp(n, torch.float32 if i else torch.bool),
    "mixed, complex last": lambda i, n: ramp(n, torch.complex64 if i else torch.float32),
    "sizes differ": lambda i, n: ramp(n + i),
    "dimensions differ": lambda i, n: ramp(n).view(1, -1) if i else ramp(n),
    "one is empty": lambda i, n: ramp(n if i else 0),
    "gradient": lambda i, n: ramp(n).requires_grad_(),
    "gradient of the last": lambda i, n: ramp(n).requires_grad_(i == 2),
    "objects": lambda i, n: object,
    "text arrays": lambda i, n: np.array(["a"]),
    "lists of different lengths": lambda i, n: [1] * (i + 1),
    "sparse": lambda i, n: ramp(n).to_sparse(),
    "dict": lambda i, n: {"x": ramp(n) + i, "y": {"z": i, "w": (1.5, "a")}},
    "missing key": lambda i, n: {"x": 1, str(i): 2},
    "named tuple": lambda i, n: Point(ramp(n), np.arange(n)),
    "text": lambda i, n: f"text {i}" * n,
    "bytes": lambda i, n: b"b" * n,
    "list": lambda i, n: [i, ramp(n)],
    "ordered dict": lambda i, n: collections.OrderedDict(b=i, a=ramp(n)),
    "subclasses": lambda i, n: Table(x=Words(["a", f"{i}"])),
    "numbers": lambda i, n: (i, i + 0.5, i > 1, 2**40),
    "same twice": lambda i, n: (lambda t: (t, t))(ramp(n)),
    "forty tensors": lambda i, n: {str(k): ramp(n // 2 + k) for k in range(40)},
}


class Threes:
    """Three samples of each case."""

    def __init__(self, n: int) -> None:
        self.cases = list(COLLATED.values())
        self.n = n

    def __getitem__(self, index: int) -> Any:
        return self.cases[index // 3](index % 3, self.n)


def said(call: Callable[[], Any]) -> Any:
    """The value, or the kind of what was raised, and what torch says of it at the end."""
    try:
        return call()
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
        return type(error), str(error).strip().splitlines()[-1]


@TRANSPORTS
@SIZES
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_default_collate_fn_joins_any_samples_or_fails_as_under_torch(
    num_workers: int, n: int, transport: str
) -> None:
    batches = [[3 * case + i for i in range(3)] for case in range(len(COLLATED))]
    options: dict[str, Any] = {"batch_sampler": batches, "num_workers": num_workers}
    ours = iter(OURS(Threes(n), transport=transport, **options))  # type: ignore[call-arg,arg-type]
    theirs = iter(TORCH(Threes(n), **options))  # type: ignore[arg-type]
    found: list[str] = []
    for name in COLLATED:
        here, there = said(lambda: next(ours)), said(lambda: next(theirs))
        try:
            assert_identical(here, there, name)
            assert_identical(sharing(here), sharing(there), f"sharing({name})")
        except Exception as error:
            found.append(f"{name}: {error!r}"[:300])
            traceback.clear_frames(error.__traceback__)
    assert found == []


@TRANSPORTS
@SIZES
def test_a_way_with_tensors_that_somebody_put_into_torchs_table_stays_theirs(
    n: int, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def join(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return {"joined": torch.cat(list(batch)), "of": len(batch)}

    table = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(table, torch.Tensor, join)

    def observe(make: Make, **options: Any) -> Any:
        data = Cases({str(i): lambda n, i=i: {"x": ramp(n) + i} for i in range(4)}, n)
        return list(make(data, 2, num_workers=1, **options))

    found = observe(OURS, transport=transport)
    assert found[0]["x"]["of"] == 2
    assert_identical(found, observe(TORCH))


@TRANSPORTS
def test_a_way_that_a_worker_puts_into_torchs_table_counts_from_then_on(transport: str) -> None:
    def observe(make: Make, **options: Any) -> Any:
        data = Cases({str(i): ramp for i in range(4)}, LARGE)
        return list(make(data, 2, num_workers=1, worker_init_fn=count_instead, **options))

    found = observe(OURS, transport=transport)
    assert found == [2, 2]
    assert_identical(found, observe(TORCH))


def count_instead(worker: int) -> None:
    table = torch.utils.data._utils.collate.default_collate_fn_map
    table[torch.Tensor] = lambda batch, *, collate_fn_map=None: len(batch)


# --- what is done with a batch --------------------------------------------------------------------


def test_an_array_keeps_its_byte_order_where_torchs_workers_lose_it() -> None:
    data = Made(lambda i: np.arange(3, dtype=">i4") + i, 2)
    found = list(OURS(data, None, collate_fn=as_they_are, num_workers=1))
    assert_identical(found, list(TORCH(data, None, collate_fn=as_they_are)))


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


def test_one_object_twice_in_a_batch_is_still_one_object() -> None:
    def observe(make: Make) -> Any:
        def twice(index: int) -> Any:
            shared = [index]
            array = np.arange(3)
            return shared, shared, array, array

        [[first, second, array, other]] = make(
            Made(twice, 1), None, collate_fn=as_they_are, num_workers=1
        )
        array[0] = 9
        return first is second, other

    assert_parity(observe)


def test_what_arrives_from_a_worker_may_be_written_to_without_touching_other_batches() -> None:
    def observe(make: Make) -> Any:
        def sample(index: int) -> Any:
            return ramp(4) + index, np.arange(4) + index

        loader = make(Made(sample, 8), None, collate_fn=as_they_are, num_workers=1)
        seen = []
        for tensor, array in loader:
            seen.append((tensor.clone(), array.copy()))
            tensor.zero_().add_(1)
            array[:] = -1
        return seen

    assert_parity(observe)


def test_a_tensor_with_gradient_from_a_worker_can_be_trained_on() -> None:
    def observe(make: Make) -> Any:
        [batch] = make(Made(lambda i: ramp(3).requires_grad_(), 1), None, num_workers=1)
        batch.square().sum().backward()
        return batch, batch.grad

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_batches_under_evaluation_modes_are_as_under_torch(mode: Any, num_workers: int) -> None:
    def sample(index: int) -> Any:
        return ramp(3) + index, ramp(2).requires_grad_(), ramp(30_000)

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
def test_with_an_accelerator_batches_are_pinned_as_deep_as_under_torch(num_workers: int) -> None:
    def observe(make: Make) -> Any:
        options: dict[str, Any] = {"collate_fn": as_they_are, "num_workers": num_workers}
        return list(map(states, make(Cases(PINNABLE, 3), None, pin_memory=True, **options)))

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
        loader = make(
            Made(lambda i: COLLATED["dict"](i, SMALL), 6),
            2,
            pin_memory=True,
            num_workers=num_workers,
        )
        return [(batch["x"].is_pinned(), batch["y"]["z"].is_pinned(), batch) for batch in loader]

    assert_parity(observe)


def test_reading_batches_draws_nothing_from_the_consumers_generators() -> None:
    def observe(make: Make) -> Any:
        list(make(Made(lambda i: ramp(3) + i, 6), 2, num_workers=2))
        return rng_states()

    assert_parity(observe)
    assert list(OURS(Made(lambda i: i, 2), None)) == [0, 1]


# --- any nesting ---------------------------------------------------------------------------------

#: elements of a float64: below and above what travels within the message
COUNTS = st.sampled_from([0, 1, 5, INLINE_BYTES // 8, INLINE_BYTES // 8 + 1, INLINE_BYTES // 4])


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from([torch.float64, torch.int16, torch.bool, torch.bfloat16]))
    tensor = torch.arange(draw(COUNTS)).fmod(99).to(dtype)
    tensor = tensor[draw(st.integers(0, 3)) :: draw(st.integers(1, 3))]
    if draw(st.booleans()) and tensor.numel() % 2 == 0:
        tensor = tensor.view(-1, 2).t() if tensor.is_contiguous() else tensor
    return tensor.requires_grad_(tensor.is_floating_point() and draw(st.booleans()))


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    code = draw(st.sampled_from(["f8", "i2", "?", "U2", "M8[s]", "i4,f8"]))
    array = np.zeros(draw(COUNTS), dtype=code)[:: draw(st.sampled_from([1, 1, 2, -1]))]
    return array


LEAVES = (
    tensors()
    | arrays()
    | st.none()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(["x" * 40_000, b"y" * 70_000])
)
BATCHES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.builds(Point, inner, inner)
        | st.builds(lambda thing: [thing, thing], inner)
    ),
    max_leaves=10,
)


@settings(deadline=None, max_examples=300)
@given(BATCHES)
def test_any_nesting_comes_through_an_arena_as_it_was_and_as_in_torchs_way(batch: Any) -> None:
    fd = new_memory()
    arena, reader = Arena(fd), ArenaReader(fd)
    try:
        answer = Answer(0, 0, 0, Arrived, batch)
        first = read_answer(encode_answer(answer, arena), reader.open)
        second = read_answer(encode_answer(answer, arena), reader.open)
        assert first.kind is Arrived
        by_torch = pickle.loads(ForkingPickler.dumps(batch))
        assert_identical(first.payload, by_torch)
        assert_identical(sharing(first.payload), sharing(by_torch))
        can_be_written(first.payload)  # whoever has one of them sees nothing of that in the other
        assert_identical(second.payload, by_torch)
        del first, second
        arena.collect()
        assert arena._blocks.in_use == 0
    finally:
        os.close(fd)
