"""ShuffleBuffer and Interleave: what they yield, and that a resume goes on exactly there."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from picklable_loader import DataLoader, Interleave, ShuffleBuffer
from picklable_loader.datasets.protocol import iterate, save
from picklable_loader.errors import (
    DamagedStateError,
    LoaderWarning,
    NewerStateError,
    StateMismatch,
)
from picklable_loader.rng.generators import capture_all

Make = Callable[[], Any]

# --- datasets ------------------------------------------------------------------------------------


class Generated(IterableDataset[Any]):
    """A generator function: neither a state nor a pickle."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.opened = 0

    def __iter__(self) -> Iterator[Any]:
        self.opened += 1
        return self.walk()

    def walk(self) -> Iterator[Any]:
        yield from range(self.start, self.stop)


class Steps(Iterator[Any]):
    """A class of its own: a pickle, but no state."""

    def __init__(self, start: int, stop: int) -> None:
        self.place, self.stop = start, stop

    def __next__(self) -> Any:
        if self.place >= self.stop:
            raise StopIteration
        self.place += 1
        return self.place - 1


class Picklable(Generated):
    def walk(self) -> Iterator[Any]:
        return Steps(self.start, self.stop)


class StatefulSteps(Steps):
    def state_dict(self) -> dict[str, Any]:
        return vars(self)  # the living one, as careless datasets give it

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__ = state


class WithStatefulIterator(Generated):
    def walk(self) -> Iterator[Any]:
        return StatefulSteps(self.start, self.stop)


class WithState(Generated):
    """As Hugging Face's: the dataset has the state, its iterator is a generator."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__(start, stop)
        self.position = {"next": start}
        self.loaded = False

    def walk(self) -> Iterator[Any]:
        if not self.loaded:
            self.position["next"] = self.start
        self.loaded = False
        while self.position["next"] < self.stop:
            self.position["next"] += 1
            yield self.position["next"] - 1

    def state_dict(self) -> dict[str, Any]:
        return self.position

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.loaded = state, True


class OwnIterator(IterableDataset[Any], StatefulSteps):
    """The dataset is its own iterator: `iter` begins nothing anew."""

    def __init__(self, start: int, stop: int) -> None:
        StatefulSteps.__init__(self, start, stop)

    def __iter__(self) -> Iterator[Any]:
        return self


class Epochs(Generated):
    """Its samples tell the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def walk(self) -> Iterator[Any]:
        return ((self.epoch, value) for value in range(self.start, self.stop))


class Split(Generated):
    """Each worker reads its part."""

    def walk(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from range(self.start + first, self.stop, step)


class Fails(Generated):
    """It raises once, in mid-way."""

    def walk(self) -> Iterator[Any]:
        return FailsOnce(self.start, self.stop)


class FailsOnce(StatefulSteps):
    failed = False

    def __next__(self) -> Any:
        if self.place == 5 and not self.failed:
            self.failed = True
            raise OSError("the disk is away")
        return super().__next__()


class Rows(Generated):
    def walk(self) -> Iterator[Any]:
        return RowSteps(self.start, self.stop)


class RowSteps(StatefulSteps):
    """Samples with everything that a state can hold."""

    def __next__(self) -> Any:
        value = super().__next__()
        return {
            "id": value,
            "text": str(value),
            "raw": bytes([value]),
            "pair": (value, float(value)),
            "tensor": torch.full((2,), value),
            "array": np.arange(value),
        }


class Opaque:
    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.value == self.value


class Opaques(Generated):
    def walk(self) -> Iterator[Any]:
        return OpaqueSteps(self.start, self.stop)


class OpaqueSteps(StatefulSteps):
    def __next__(self) -> Any:
        return Opaque(super().__next__())


class MapStyle(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


KINDS: list[Any] = [Generated, Picklable, WithStatefulIterator, WithState, OwnIterator]
PICKLABLE = [Picklable, WithStatefulIterator, OwnIterator]
STATEFUL = [WithStatefulIterator, WithState, OwnIterator]
MODES: list[Any] = ["samples", "rebuild"]

#: everything that can stand around datasets of a kind
SHAPES: dict[str, Callable[[Any, Any], Any]] = {
    "shuffled": lambda kind, mode: ShuffleBuffer(kind(0, 13), 4, state=mode),
    "not shuffled": lambda kind, mode: ShuffleBuffer(kind(0, 7), 1, state=mode),
    "all in the buffer": lambda kind, mode: ShuffleBuffer(kind(0, 7), 20, state=mode),
    "as much as the buffer": lambda kind, mode: ShuffleBuffer(kind(0, 8), 8, state=mode),
    "empty": lambda kind, mode: ShuffleBuffer(kind(0, 0), 3, state=mode),
    "in turn": lambda kind, mode: Interleave([kind(0, 4), kind(10, 17), kind(20, 22)]),
    "in turn, to the first end": lambda kind, mode: Interleave(
        [kind(0, 4), kind(10, 17)], stop="shortest"
    ),
    "weighted": lambda kind, mode: Interleave([kind(0, 9), kind(10, 15)], weights=[1, 3]),
    "shuffled twice": lambda kind, mode: ShuffleBuffer(
        ShuffleBuffer(kind(0, 16), 4, state=mode), 5, seed=1, state=mode
    ),
    "nested": lambda kind, mode: ShuffleBuffer(
        Interleave(
            [ShuffleBuffer(kind(0, 6), 3, state=mode), ShuffleBuffer(kind(10, 19), 4, seed=1)],
            weights=[2, 1],
        ),
        4,
        state=mode,
    ),
}
shapes = pytest.mark.parametrize("shape", SHAPES)
modes = pytest.mark.parametrize("mode", MODES)
stateful_kinds = pytest.mark.parametrize("kind", STATEFUL)


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    return [next(iterator) for _ in range(count)]


def resumed(make: Make, iterator: Any) -> Any:
    """The iterator of a new dataset that goes on from the state of another one."""
    return iterate(make(), {"iterator": through_json(iterator.state_dict())})


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def order(dataset: Any) -> list[Any]:
    return list(iter(dataset))


# --- what they yield -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 5, 12, 13, 50])
@modes
def test_a_buffer_gives_every_sample_once(kind: Any, size: int, mode: Any) -> None:
    assert sorted(order(ShuffleBuffer(kind(0, 13), size, state=mode))) == list(range(13))


def test_a_buffer_of_one_leaves_the_order() -> None:
    assert order(ShuffleBuffer(range(9), 1)) == list(range(9))


def test_a_sample_comes_no_earlier_than_the_buffer_reaches() -> None:
    given = order(ShuffleBuffer(range(200), 10))
    assert all(value <= place + 9 for place, value in enumerate(given))
    assert given != sorted(given)


def test_both_modes_shuffle_alike() -> None:
    one, other = (order(ShuffleBuffer(range(50), 7, state=mode)) for mode in MODES)
    assert one == other


def test_a_whole_shuffle_puts_every_sample_everywhere_equally_often() -> None:
    counts = Counter(
        (place, value)
        for seed in range(2000)
        for place, value in enumerate(order(ShuffleBuffer(range(4), 4, seed=seed)))
    )
    # 500 each; the standard deviation is 19
    assert len(counts) == 16
    assert all(400 < count < 600 for count in counts.values())


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: ShuffleBuffer(range(40), 10, seed),
        lambda seed: Interleave([range(30), range(100, 130)], [1, 1], seed),
    ],
)
def test_the_order_is_a_function_of_seed_and_epoch(make: Any) -> None:
    def given(seed: int, epoch: int) -> tuple[int, ...]:
        whole = make(seed)
        whole.set_epoch(epoch)
        assert order(whole) == order(whole)
        return tuple(order(whole))

    assert given(0, 0) == given(0, 0)
    assert len({given(seed, epoch) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_an_order_stays_what_it_was_when_states_were_written() -> None:
    assert order(ShuffleBuffer(range(10), 4)) == [0, 3, 2, 5, 1, 7, 8, 4, 6, 9]
    parts = [range(3), range(10, 15), range(20, 22)]
    assert order(Interleave(parts, weights=[1, 0, 3])) == [0, 20, 21, 1, 2]


@pytest.mark.parametrize("weights", [None, [1, 1]])
def test_an_epoch_reaches_the_datasets_inside(weights: Any) -> None:
    whole = Interleave([ShuffleBuffer(Epochs(0, 4), 2), Epochs(4, 8)], weights=weights)
    whole.set_epoch(5)
    assert sorted(order(whole)) == [(5, value) for value in range(8)]


def test_datasets_come_in_turn_until_all_or_the_first_have_ended() -> None:
    parts = [range(3), range(10, 15), range(20, 22)]
    assert order(Interleave(parts)) == [0, 10, 20, 1, 11, 21, 2, 12, 13, 14]
    assert order(Interleave(parts, stop="shortest")) == [0, 10, 20, 1, 11, 21, 2, 12]


def test_weights_are_proportions() -> None:
    parts = [[name] * 8000 for name in "abc"]
    given = order(Interleave(parts, weights=[1, 0, 3], stop="shortest"))
    counts = Counter(given)
    assert counts["b"] == 0
    assert counts["c"] == 8000
    assert 2450 < counts["a"] < 2900  # 2667 in the mean; the standard deviation is 60


def test_a_dataset_without_weight_does_not_hold_up_the_end() -> None:
    assert order(Interleave([range(3), Generated(0, 10**9)], weights=[1, 0])) == [0, 1, 2]


def test_weights_may_be_as_small_as_numbers_are() -> None:
    tiny = math.ulp(0.0)
    assert sorted(order(Interleave([range(9), range(9, 18)], [tiny, tiny]))) == list(range(18))


def test_each_dataset_keeps_its_order() -> None:
    given = order(Interleave([range(50), range(100, 130)], weights=[1, 1]))
    assert [value for value in given if value < 100] == list(range(50))
    assert [value for value in given if value >= 100] == list(range(100, 130))
    assert given[:80] != sorted(given)


@shapes
def test_nobodys_generator_is_drawn_from(shape: str) -> None:
    before = capture_all()
    whole = SHAPES[shape](WithStatefulIterator, "samples")
    iterator = iter(whole)
    next(iterator, None)
    iterator.state_dict()
    list(iterator)
    assert capture_all() == before


@pytest.mark.parametrize("kind", [Generated, Picklable, WithStatefulIterator])
def test_two_iterations_at_once_do_not_meet(kind: Any) -> None:
    whole = ShuffleBuffer(kind(0, 9), 3)
    expected = order(whole)
    assert list(zip(whole, whole)) == list(zip(expected, expected))


# --- saving --------------------------------------------------------------------------------------


@shapes
@pytest.mark.parametrize("kind", KINDS[1:])
@modes
def test_a_save_goes_on_exactly_from_every_step(shape: str, kind: Any, mode: Any) -> None:
    def make() -> Any:
        return SHAPES[shape](kind, mode)

    def saved(iterator: Any) -> list[Any]:
        """Those that go on, by each way of saving."""
        found = [resumed(make, iterator)] if kind in STATEFUL else []
        return found + ([pickle.loads(pickle.dumps(iterator))] if kind in PICKLABLE else [])

    whole = order(make())
    for step in range(len(whole) + 1):
        iterator = iter(make())
        assert take(iterator, step) == whole[:step]
        for twin in (*saved(iterator), iterator):  # saving has changed nothing
            assert list(twin) == whole[step:]
        assert [list(twin) for twin in saved(iterator)] == [[]] * len(saved(iterator))


@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    weights=st.none() | st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
    size=st.integers(1, 30),
    seed=st.integers(-3, 2**40),
    stop=st.sampled_from(["longest", "shortest"]),
    kind=st.sampled_from(STATEFUL),
    mode=st.sampled_from(MODES),
    steps=st.lists(st.integers(0, 20), min_size=1, max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_no_sample_is_lost_or_repeated_when_it_is_resumed_again_and_again(
    lengths: list[int],
    weights: list[float] | None,
    size: int,
    seed: int,
    stop: Any,
    kind: Any,
    mode: Any,
    steps: list[int],
) -> None:
    def make() -> Any:
        parts = [kind(100 * n, 100 * n + length) for n, length in enumerate(lengths)]
        buffers = [ShuffleBuffer(part, size, seed + n, mode) for n, part in enumerate(parts)]
        return Interleave(buffers, weights and weights[: len(parts)], stop=stop)

    whole = order(make())
    iterator, seen = iter(make()), []
    for step in steps:
        seen += take(iterator, min(step, len(whole) - len(seen)))
        iterator = resumed(make, iterator)
    assert seen + list(iterator) == whole
    every = [100 * n + value for n, length in enumerate(lengths) for value in range(length)]
    assert len(set(whole)) == len(whole) and {*whole} <= {*every}
    assert stop == "shortest" or len(whole) == len(every)


@shapes
@stateful_kinds
@modes
def test_a_state_never_changes_later(shape: str, kind: Any, mode: Any) -> None:
    iterator = iter(SHAPES[shape](kind, mode))
    next(iterator, None)
    state = iterator.state_dict()
    before = copy.deepcopy(state)
    list(iterator)
    assert state == before
    twin = iterate(SHAPES[shape](kind, mode), {"iterator": state})
    later = iter(twin).state_dict()
    list(twin)
    assert state == before == later


@shapes
@modes
def test_a_state_may_be_changed_by_whoever_has_it(shape: str, mode: Any) -> None:
    iterator = iter(SHAPES[shape](WithStatefulIterator, mode))
    next(iterator, None)
    state = iterator.state_dict()
    before = copy.deepcopy(state)
    spoil(state)
    assert iterator.state_dict() == before
    loaded = copy.deepcopy(before)
    twin: Any = iterate(SHAPES[shape](WithStatefulIterator, mode), {"iterator": loaded})
    spoil(loaded)
    assert twin.state_dict() == before
    assert list(twin) == list(iterator)


def spoil(state: Any) -> None:
    """Empty every dict and list in it."""
    for each in state.values() if isinstance(state, dict) else state:
        if isinstance(each, dict | list):
            spoil(each)
    state.clear()


@modes
def test_a_dataset_that_raised_at_first_can_be_saved_again_and_again(mode: Any) -> None:
    def make() -> Any:
        return ShuffleBuffer(Fails(5, 12), 3, state=mode)

    iterator = iter(make())
    with pytest.raises(OSError):
        next(iterator)
    again = resumed(make, resumed(make, iterator))
    assert again.state_dict() == iterator.state_dict()


@modes
def test_a_state_holds_tensors_arrays_and_containers(mode: Any) -> None:
    def make() -> Any:
        return ShuffleBuffer(Rows(0, 9), 4, state=mode)

    whole = order(make())
    iterator = iter(make())
    take(iterator, 3)
    file = io.BytesIO()
    torch.save(iterator.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    for one, other in zip(iterate(make(), {"iterator": state}), whole[3:], strict=True):
        assert type(one["pair"]) is tuple
        assert torch.equal(one.pop("tensor"), other.pop("tensor"))
        assert np.array_equal(one.pop("array"), other.pop("array"))
        assert one == other


@shapes
@pytest.mark.parametrize("kind", [Generated, Picklable])
def test_without_states_inside_there_is_none(shape: str, kind: Any) -> None:
    whole = SHAPES[shape](kind, "samples")
    iterator = iter(whole)
    next(iterator, None)
    with pytest.raises(
        NotImplementedError, match=f"{kind.__name__}.* nor its iterator has a state here"
    ):
        iterator.state_dict()
    assert save(whole, iterator) == {}


def test_without_states_inside_there_is_none_to_rebuild_from() -> None:
    iterator = iter(ShuffleBuffer(Picklable(0, 9), 3, state="rebuild"))
    next(iterator)
    with pytest.raises(NotImplementedError, match="neither Picklable nor its iterator"):
        iterator.state_dict()


def test_samples_that_no_state_can_hold_are_rebuilt() -> None:
    iterator = iter(ShuffleBuffer(Opaques(0, 9), 3))
    next(iterator)
    with pytest.raises(NotImplementedError, match='Opaque: ShuffleBuffer.*state="rebuild"'):
        iterator.state_dict()

    def make() -> Any:
        return ShuffleBuffer(Opaques(0, 9), 3, state="rebuild")

    iterator = iter(make())
    next(iterator)
    assert list(resumed(make, iterator)) == list(iterator)


@shapes
@pytest.mark.parametrize("kind", [WithStatefulIterator, WithState])
def test_a_dataset_is_opened_once_in_each_iteration(shape: str, kind: Any) -> None:
    made: list[Any] = []

    def counted(start: int, stop: int) -> Any:
        made.append(kind(start, stop))
        return made[-1]

    def make() -> Any:
        return SHAPES[shape](counted, "rebuild")

    iterator = iter(make())
    assert {each.opened for each in made} == {0}
    next(iterator, None)
    iterator.state_dict()
    list(iterator)
    assert {each.opened for each in made} == {1}
    made.clear()
    list(resumed(make, iterator))
    assert {each.opened for each in made} == {1}


def test_a_state_for_rebuilding_holds_no_sample() -> None:
    iterator = iter(ShuffleBuffer(Rows(0, 60), 20, state="rebuild"))
    take(iterator, 10)
    state = iterator.state_dict()
    assert len(state["numbers"]) == 19
    assert "samples" not in state
    assert state["inner"] == {"iterator": {"place": 0, "stop": 60}}


def test_states_of_the_dataset_are_few_and_only_those_that_are_needed() -> None:
    iterator: Any = iter(ShuffleBuffer(WithStatefulIterator(0, 10**6), 100, state="rebuild"))
    most = 0
    for _ in range(20_000):
        next(iterator)
        most = max(most, len(iterator._states))
    # The oldest of 100 samples has waited for about 100 * (log(100) + 1) others; a state every 25.
    assert 10 < most < 100
    state = iterator.state_dict()
    assert state["start"] > 15_000
    assert min(state["numbers"]) < 25


@modes
def test_a_dataset_that_raises_loses_no_sample(mode: Any) -> None:
    whole = ShuffleBuffer(Fails(0, 12), 3, state=mode)
    iterator, given = iter(whole), []
    while len(given) < 12:
        try:
            given.append(next(iterator))
        except OSError:
            iterator = pickle.loads(pickle.dumps(iterator))
    assert given == order(ShuffleBuffer(range(12), 3))


def test_a_dataset_that_raises_has_its_turn_again() -> None:
    iterator, given = iter(Interleave([Fails(0, 9), range(20, 29)], weights=[1, 1])), []
    with pytest.raises(OSError):
        while True:
            given.append(next(iterator))
    expected = order(Interleave([range(9), range(20, 29)], weights=[1, 1]))
    assert given + list(iterator) == expected


# --- under a loader ------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_and_streams_differ_under_our_loader(workers: int) -> None:
    def make() -> Any:
        buffer = ShuffleBuffer(Split(0, 40), 10)
        return DataLoader(buffer, batch_size=1, seed=0, num_workers=workers)

    loader, twin = make(), make()
    epochs = [torch.cat(list(loader)).tolist() for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(40))] * 2
    assert epochs[0] != epochs[1]
    assert [torch.cat(list(twin)).tolist() for _ in range(2)] == epochs
    if workers:
        even = [value // 2 for value in epochs[0] if value % 2 == 0]
        odd = [value // 2 for value in epochs[0] if value % 2]
        assert even != odd


def test_a_state_holds_the_order_that_its_loader_has_begun() -> None:
    class Asked(Generated):
        def walk(self) -> Iterator[Any]:
            return StatefulSteps(self.start, self.stop)

    seen: list[Any] = []

    class Watched(ShuffleBuffer):
        def __iter__(self) -> Any:
            seen.append(super().__iter__())
            return seen[-1]

    iterator = iter(DataLoader(Watched(Asked(0, 30), 9), batch_size=5, seed=7))
    first = torch.cat(take(iterator, 2)).tolist()
    state = through_json(seen[0].state_dict())
    rest = torch.cat(list(iterator)).tolist()
    assert sorted(first + rest) == list(range(30))
    assert list(iterate(ShuffleBuffer(Asked(0, 30), 9), {"iterator": state})) == rest


def test_workers_of_torchs_loader_choose_differently() -> None:
    loader = TorchLoader(ShuffleBuffer(Generated(0, 30), 10), batch_size=None, num_workers=2)
    given = list(loader)
    assert sorted(given[::2]) == sorted(given[1::2]) == list(range(30))
    assert given[::2] != given[1::2]


# --- lengths and texts ---------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["longest", "shortest"])
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_a_length_is_what_is_given(stop: Any, lengths: list[int]) -> None:
    whole = ShuffleBuffer(Interleave(list(map(range, lengths)), stop=stop), 4)
    assert len(whole) == len(order(whole))


def test_what_is_never_read_counts_for_no_length() -> None:
    assert len(Interleave([range(3), Generated(0, 9), range(4)], weights=[1, 0, 1])) == 7


def test_without_lengths_inside_there_is_none() -> None:
    for whole in (ShuffleBuffer(Generated(0, 3), 2), Interleave([range(3), Generated(0, 3)])):
        with pytest.raises(TypeError, match="Generated.*has no len"):
            len(whole)
    with pytest.raises(TypeError, match="chance decides"):
        len(Interleave([range(3), range(4)], weights=[1, 1], stop="shortest"))


def test_a_repr_says_what_is_inside() -> None:
    whole = ShuffleBuffer(Interleave([Generated(0, 3), [1, 2]], [1, 3]), 5, seed=2)
    inside = "Interleave([Generated, list], weights=[1.0, 3.0], seed=0, stop='longest')"
    assert repr(whole) == f"ShuffleBuffer({inside}, size=5, seed=2, state='samples')"
    iterator = iter(whole)
    next(iterator)
    assert repr(iterator) == f"<ShuffleIterator over {inside}: 1 given, 4 of 5 in the buffer>"
    choices = iter(whole.dataset)
    assert repr(choices) == "<InterleaveIterator: 0 given, Generated, list left>"
    list(choices)
    assert repr(choices) == "<InterleaveIterator: 5 given, nothing left>"


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -3])
def test_a_buffer_holds_at_least_one(size: int) -> None:
    with pytest.raises(ValueError, match=f"from 1, got size={size}"):
        ShuffleBuffer(range(3), size)


@pytest.mark.parametrize("wrong", [2.5, "4", None, True])
def test_sizes_seeds_and_epochs_are_whole_numbers(wrong: Any) -> None:
    calls: dict[str, list[Callable[[], Any]]] = {
        "size": [lambda: ShuffleBuffer(range(3), wrong)],
        "seed": [lambda: ShuffleBuffer([], 1, seed=wrong), lambda: Interleave([[]], seed=wrong)],
        "epoch": [
            lambda: ShuffleBuffer([], 1).set_epoch(wrong),
            lambda: Interleave([[]]).set_epoch(wrong),
        ],
    }
    for name, each in calls.items():
        for call in each:
            with pytest.raises(TypeError, match=f"{name} should be a whole number, got {name}="):
                call()


def test_other_words_are_refused_with_those_that_are_known() -> None:
    wrong: Any = "all_exhausted"
    with pytest.raises(ValueError, match="one of 'samples', 'rebuild', got state='all_exhausted'"):
        ShuffleBuffer(range(3), 2, state=wrong)
    with pytest.raises(ValueError, match="one of 'longest', 'shortest', got stop='all_exhausted'"):
        Interleave([range(3)], stop=wrong)


@pytest.mark.parametrize("wrong", [5, None, MapStyle()])
def test_what_cannot_be_iterated_over_is_refused(wrong: Any) -> None:
    for call in (lambda: ShuffleBuffer(wrong, 2), lambda: Interleave([[], wrong])):
        with pytest.raises(TypeError, match=f"iterable-style.*found {type(wrong).__name__}"):
            call()


@pytest.mark.parametrize(
    "weights", [[1], [1, 2, 3], [], [1, -1], [0, 0], [1, math.nan], [1, math.inf], [1e308, 1e308]]
)
def test_weights_are_one_for_each_dataset_and_not_negative(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights should be"):
        Interleave([range(3), range(3)], weights=weights)


def test_nothing_cannot_be_interleaved() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Interleave([])


def state_of(whole: Any) -> Any:
    iterator = iter(whole)
    next(iterator)
    return iterator.state_dict()


def load(whole: Any, state: Any) -> None:
    iterate(whole, {"iterator": state})


def parts(count: int) -> list[Any]:
    return [WithStatefulIterator(0, 5) for _ in range(count)]


@pytest.mark.parametrize(
    ("saved", "loaded", "name"),
    [
        (ShuffleBuffer(*parts(1), 3), ShuffleBuffer(*parts(1), 4), "size: expected 4 .* found 3"),
        (
            ShuffleBuffer(*parts(1), 3),
            ShuffleBuffer(*parts(1), 3, state="rebuild"),
            "state: expected 'rebuild' .* found 'samples'",
        ),
        (ShuffleBuffer(*parts(1), 3), Interleave(parts(1)), "kind: expected 'Interleave'"),
        (Interleave(parts(1)), ShuffleBuffer(*parts(1), 3), "kind: expected 'ShuffleBuffer'"),
        (Interleave(parts(2)), Interleave(parts(3)), "datasets: expected 3 .* found 2"),
        (Interleave(parts(2), [1, 2]), Interleave(parts(2)), r"weights: .* found \[1.0, 2.0\]"),
        (Interleave(parts(2)), Interleave(parts(2), stop="shortest"), "stop: .* found 'longest'"),
    ],
)
def test_a_state_of_another_setting_is_refused(saved: Any, loaded: Any, name: str) -> None:
    with pytest.raises(StateMismatch, match=name):
        load(loaded, state_of(saved))


DAMAGE = [
    ("seed", -1),
    ("seed", "7"),
    ("given", None),
    ("given", True),
    ("format", 0.5),
    ("inner", 3),
    ("inner", [{}]),
]


@pytest.mark.parametrize(
    ("whole", "field", "value"),
    [
        *((ShuffleBuffer(*parts(1), 3), *damage) for damage in DAMAGE),
        *((Interleave(parts(2)), *damage) for damage in DAMAGE),
        (ShuffleBuffer(*parts(1), 3), "ended", 1),
        (ShuffleBuffer(*parts(1), 3), "samples", [1, 2, 3, 4]),
        (ShuffleBuffer(*parts(1), 3), "samples", [{"as": "nothing"}]),
        (ShuffleBuffer(*parts(1), 3), "samples", "text"),
        (ShuffleBuffer(*parts(1), 3, state="rebuild"), "start", -1),
        (ShuffleBuffer(*parts(1), 3, state="rebuild"), "count", None),
        (ShuffleBuffer(*parts(1), 3, state="rebuild"), "numbers", [0, 0]),
        (ShuffleBuffer(*parts(1), 3, state="rebuild"), "numbers", [99]),
        (ShuffleBuffer(*parts(1), 3, state="rebuild"), "numbers", [1.0]),
        (Interleave(parts(2)), "choices", -1),
        (Interleave(parts(2)), "left", [1, 0]),
        (Interleave(parts(2)), "left", [7]),
    ],
)
def test_a_damaged_state_is_refused_by_the_name_of_its_field(
    whole: Any, field: str, value: Any
) -> None:
    state = state_of(whole)
    assert field in state
    with pytest.raises(DamagedStateError) as caught:
        load(whole, {**state, field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("whole", [ShuffleBuffer(*parts(1), 3), Interleave(parts(2))])
def test_other_states_are_refused(whole: Any) -> None:
    with pytest.raises(DamagedStateError, match="should be a dict"):
        load(whole, [1])
    with pytest.raises(NewerStateError, match="format version 9"):
        load(whole, {**state_of(whole), "format": 9})


def test_a_dataset_that_ends_elsewhere_when_it_is_read_again_is_noticed() -> None:
    def buffer(stop: int) -> Any:
        return ShuffleBuffer(Shrinking(stop), 4, state="rebuild")

    iterator = iter(buffer(12))
    take(iterator, 6)
    state = iterator.state_dict()
    with pytest.raises(StateMismatch, match="samples read: expected 5 .* found 9"):
        load(buffer(5), state)
    list(iterator)
    with pytest.raises(StateMismatch, match="samples read: expected 'more than 12' .* found 12"):
        load(buffer(15), iterator.state_dict())


class Shrinking(IterableDataset[int]):
    """Its end is no part of its state."""

    def __init__(self, stop: int) -> None:
        self.stop = stop

    def __iter__(self) -> Iterator[int]:
        return PlaceOnly(0, self.stop)


class PlaceOnly(Steps):
    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def test_draws_while_reading_are_why_samples_are_the_default() -> None:
    def make(mode: Any) -> Any:
        return ShuffleBuffer(Noisy(0, 20), 6, state=mode)

    for mode, exact in (("samples", True), ("rebuild", False)):
        random.seed(0)
        iterator = iter(make(mode))
        with nullcontext() if exact else pytest.warns(LoaderWarning, match="other random numbers"):
            take(iterator, 5)
        state, at_hand = iterator.state_dict(), random.getstate()
        rest = list(iterator)
        random.setstate(at_hand)
        with nullcontext() if exact else pytest.warns(LoaderWarning, match="other random numbers"):
            twin = iterate(make(mode), {"iterator": state})
        random.setstate(at_hand)
        assert (list(twin) == rest) is exact


class Noisy(Generated):
    def walk(self) -> Iterator[Any]:
        return NoisySteps(self.start, self.stop)


class NoisySteps(StatefulSteps):
    def __next__(self) -> Any:
        return super().__next__() + random.random()
