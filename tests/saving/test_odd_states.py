"""Every type that a state cannot hold, in every field of it: a named error, and nothing runs.

A state is read by torch's safe reader, by `from_json`, or stands in memory. Here every type that
these can build, and some that only memory can hold, is put into each place of real states.
"""

from __future__ import annotations

import io
import math
import pickle
import types
import warnings
from collections import Counter, OrderedDict, UserDict, UserString
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import expected_warnings, seed_everything, seen
from test_soundness import KINDS, Wary, is_peoples, loader_over, unsealed
from torch.utils.data import IterableDataset
from zoo import samplers, streams
from zoo.hostile import bounded, changed, places
from zoo.listeners import Generated, Sending

from picklable_loader import DataLoader, Interleave, ShuffleBuffer
from picklable_loader.core.fields import FIELDS
from picklable_loader.errors import DamagedStateError, LoaderError, StateError

#: what was called, and should not have been
called: list[str] = []


def note(name: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        called.append(name)
        raise AssertionError(f"{name} of the canary was called")

    return call


_METHODS = (
    "eq ne lt hash bool len iter next getitem contains call int index float reduce deepcopy "
    "getstate copy enter"
)
#: an object that notices whatever is done with it
Canary = type("Canary", (), {f"__{name}__": note(name) for name in _METHODS.split()})


class Command:
    """Pickles as a call."""

    def __reduce__(self) -> Any:
        return note("a pickle"), ()


class Text(str):
    pass


class Dict(dict[str, Any]):
    pass


def deep(part: Callable[[Any], Any], levels: int) -> Any:
    made = part(1)
    for _ in range(levels):
        made = part(made)
    return made


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch will drop them
        return torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)


#: what torch's safe reader builds
READ: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "true": lambda: True,
    "below zero": lambda: -1,
    "large": lambda: 2**62,
    "huge": lambda: 10**300,
    "half": lambda: 1.5,
    "no number": lambda: math.nan,
    "infinite": lambda: -math.inf,
    "text": lambda: "text",
    "long text": lambda: "low:" + "A" * 10**5,
    "half a character": lambda: "\ud800",
    "bytes": lambda: pickle.dumps({"dataset": 1}),
    "a bytearray": lambda: bytearray(pickle.dumps({"dataset": 1})),
    "complex": lambda: 1j,
    "an empty list": list,
    "an empty dict": dict,
    "a tuple": lambda: (1, 2),
    "a set": lambda: {1, 2},
    "an ordered dict": lambda: OrderedDict(given=1),
    "a counter": lambda: Counter("abc"),
    "a dict of numbers": lambda: {1: 2},
    "a size": lambda: torch.Size([1, 2]),
    "a dtype": lambda: torch.bfloat16,
    "a device": lambda: torch.device("cpu"),
    "a tensor": lambda: torch.arange(3),
    "a tensor of text": lambda: torch.tensor(list(b"low:"), dtype=torch.uint8),
    "a parameter": lambda: torch.nn.Parameter(torch.zeros(2)),
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "a quantized tensor": lambda: quantized(),
    "a tensor without data": lambda: torch.empty(3, device="meta"),
    "a view of one number": lambda: torch.zeros(1).expand(2**40),
    "a tensor with gradient": lambda: torch.zeros(2, requires_grad=True),
    "a tensor of few bits": lambda: torch.zeros(2, dtype=torch.float8_e5m2),
    "an empty tensor": lambda: torch.zeros(0),
    "a value of an old version": lambda: {"as": "object", "value": [1]},
    "a value of no kind": lambda: {"as": "eval", "value": "1"},
    "a form of a form": lambda: {"as": {"as": "dict"}, "value": []},
    "a dtype of objects": lambda: {"as": "ndarray", "value": ["|O", [1], "QUFBQUFBQUE="]},
    "a module as dtype": lambda: {"as": "dtype", "value": "_dynamo"},
    "a dtype by its module": lambda: {"as": "number", "dtype": "numpy.f2py", "value": 1},
    "tuples in tuples": lambda: deep(lambda part: (part, part), 60),
    "lists in lists": lambda: deep(lambda part: [part, part], 60),
    "dicts in dicts": lambda: deep(lambda part: {"as": part, "value": part}, 60),
    "a deep list": lambda: deep(lambda part: [part], 10**4),
    "a deep dict": lambda: deep(lambda part: {"seed": part}, 10**4),
}
#: what only memory holds
HELD: dict[str, Callable[[], Any]] = {
    "an array": lambda: np.arange(3),
    "a number of numpy's": lambda: np.int64(1),
    "an array of objects": lambda: np.array([{}]),
    "a mapping": lambda: UserDict(given=1),
    "a text of another class": lambda: UserString("text"),
    "a class derived from text": lambda: Text("text"),
    "a class derived from dict": lambda: Dict(given=1),
    "a storage": lambda: torch.zeros(2).untyped_storage(),
    "a canary": Canary,
    "a list of canaries": lambda: [Canary()],
    "a command": Command,
    "a module": lambda: types,
    "a function": lambda: deep,
    "a generator": lambda: (each for each in ()),
    "a range": lambda: range(10**9),
}
ODD = {**READ, **HELD}


@pytest.fixture(autouse=True)
def nothing_was_called() -> Iterator[None]:
    called.clear()
    yield
    assert called == []


# --- real states ---------------------------------------------------------------------------------


class Quiet(IterableDataset[int]):
    """Draws no random numbers: it may be read again."""

    def __iter__(self) -> Iterator[int]:
        return streams.SavedWalk(streams.share())


def shuffled(state: Any) -> Callable[[], Any]:
    return lambda: ShuffleBuffer(Quiet(), 4, state=state)


class Holding(IterableDataset[int]):
    """Its state holds values of many kinds."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 20:
            self.at += 1
            yield self.at

    def state_dict(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "array": np.arange(3, dtype=">i4"),
            "record": np.zeros(2, dtype=[("a", "i4"), ("b", "f8", (2,))]),
            "tensor": torch.arange(3),
            "number": np.float32(2),
            "dtype": torch.int8,
            "tuple": (1, {"b"}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = int(state["at"]) % 20


STATES: dict[str, Callable[[], DataLoader[Any]]] = {
    **KINDS,
    "a buffer": loader_over(shuffled("samples"), snapshot_every_n_steps=1),
    "a buffer of numbers": loader_over(shuffled("rebuild"), snapshot_every_n_steps=1),
    "interleaved": loader_over(
        lambda: Interleave([streams.StatefulIterator(), streams.StatefulIterator()]),
        snapshot_every_n_steps=1,
    ),
    "values of many kinds": loader_over(Holding, snapshot_every_n_steps=1),
    "a window of indices": loader_over(Wary, sampler=samplers.Endless, num_workers=1),
    "a window of batches": loader_over(Wary, batch_sampler=samplers.GroupedInTuples, num_workers=1),
    "a chosen epoch": loader_over(Wary, shuffle=True, seed=1),
    "feedback": loader_over(Sending, sampler=Generated),
    "by one worker": loader_over(Wary, shuffle=True, seeding="worker", num_workers=1),
}
BY_KIND = pytest.mark.parametrize("kind", STATES)


@cache
def taken(kind: str) -> Any:
    seed_everything(1)
    iterator = iter(STATES[kind]())
    assert seen(iterator, 2)
    if kind == "a chosen epoch":
        iterator.loader.set_epoch(7)
    state = unsealed(iterator)
    iterator.close()
    return state


def load_and_read(kind: str, state: Any, workers: int) -> bool:
    """Load a state, and read to the third batch; was it taken?"""
    loader = STATES[kind]()
    if loader.num_workers != workers and loader._pl.options.seeding != "worker":
        loader.num_workers, loader.prefetch_factor = workers, 2 if workers else None
    try:
        loader.load_state_dict(state)
    except StateError as error:
        assert str(error) and "" != getattr(error, "field", "a field")
        return False
    iterator = None
    for _ in range(3):
        try:
            iterator = iter(loader) if iterator is None else iterator
            next(iterator)
        except (StopIteration, LoaderError):
            break
        except Exception as error:
            empty = kind == "a window of batches" and type(error) is IndexError  # torch's own
            assert empty or is_peoples(error) or "/tests/" in str(error), (kind, repr(error))
            break
    if iterator is not None:
        iterator.close()
    return True


# --- the matrix ----------------------------------------------------------------------------------


@pytest.fixture
def every(request: pytest.FixtureRequest) -> int:
    return 1 if request.config.getoption("--whole-matrix") else 9


@BY_KIND
def test_whatever_stands_anywhere_in_a_state_is_refused_or_is_harmless(
    kind: str, every: int
) -> None:
    state, cells = taken(kind), [(path, odd) for path in places(taken(kind), 3) for odd in ODD]
    accepted = []
    with bounded(), expected_warnings():
        for path, odd in cells[len(kind) % every :: every]:
            if load_and_read(kind, changed(state, path, ODD[odd]()), 0):
                accepted.append((path, odd))
        for path, odd in accepted[:: max(1, len(accepted) * every // 18)]:
            load_and_read(kind, changed(state, path, ODD[odd]()), 1)


@BY_KIND
def test_the_states_of_these_tests_are_taken_as_they_are(kind: str) -> None:
    with expected_warnings():
        assert load_and_read(kind, taken(kind), 0)


@BY_KIND
@pytest.mark.parametrize("odd", ["a canary", "a set", "a parameter", "bytes"])
def test_what_no_state_has_is_refused_in_each_field(kind: str, odd: str) -> None:
    """Whatever the field: the look through the whole state comes first."""
    loader = STATES[kind]()
    for path in places(taken(kind), 3):
        if path != ("format",):
            with pytest.raises(DamagedStateError) as raised:
                loader.load_state_dict(changed(taken(kind), path, ODD[odd]()))
            last = path[-1]
            assert raised.value.field.endswith(f"[{last}]" if type(last) is int else str(last))


@BY_KIND
def test_a_state_has_the_fields_of_the_table(kind: str) -> None:
    """What is written is in the table; the readers refuse anything else."""
    state = taken(kind)
    assert state.keys() <= FIELDS["state"].keys()
    assert state["fits"].keys() <= FIELDS["fits"].keys()
    with pytest.raises(DamagedStateError, match="absent"):
        STATES[kind]().load_state_dict({**state, "more": 1})
    with pytest.raises(DamagedStateError, match="absent"):
        STATES[kind]().load_state_dict({**state, "fits": {**state["fits"], "more": 1}})


def test_the_docs_have_every_field() -> None:
    page = (Path(__file__).parents[2] / "docs" / "state.md").read_text()
    assert [name for record in FIELDS.values() for name in record if f"`{name}`" not in page] == []


@pytest.mark.parametrize("odd", READ)
def test_torchs_safe_reader_builds_what_these_tests_say(odd: str) -> None:
    if odd in ("huge", "a deep list", "a deep dict", "a quantized tensor"):
        pytest.skip("torch does not read such numbers, write what is so deep, or warns")
    file = io.BytesIO()
    torch.save(READ[odd](), file)
    file.seek(0)
    assert type(torch.load(file, weights_only=True)) is type(READ[odd]())
