"""What users write beside the examples: wrappers, subclasses in Python, generators, own states."""

from __future__ import annotations

import copy
import functools
import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from laws.observe import expected_warnings
from torch.utils.data import ConcatDataset
from torch.utils.data import DataLoader as TorchsLoader
from torch.utils.data import Dataset, StackDataset, default_collate

from picklable_loader import DataLoader, current_seed, from_json, to_json
from picklable_loader.errors import CannotSaveError, SkippedWarning, StateMismatch, UsageError

pytestmark = pytest.mark.inline
BY_SAMPLE: dict[str, Any] = {"seed": 3, "seeding": "sample"}


def column(loader: Any, number: int = 0) -> torch.Tensor:
    return torch.cat([batch[number] for batch in loader])


class Asking:
    """A wrapper of datasets in C++; ``ask`` says what it asks them for."""

    def __init__(self, ask: Callable[[list[int]], list[Any]]) -> None:
        self._ask = ask

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> Any:
        return self._ask(indices)


# --- seeds of samples ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda parts: parts.OwnSeeds([1.0] * 8),
        lambda parts: parts.Mapped(8),
        lambda parts: parts.Engines([0] * 8),
        lambda parts: parts.Jittered(parts.values()[:8]),
        lambda parts: parts.Calls(lambda index: random.random()),
        lambda parts: parts.Calls(lambda index: current_seed() % 1000),
        lambda parts: parts.Callback([lambda index: random.random() + np.random.rand()]),
        lambda parts: parts.Noised([1.0] * 8),
        lambda parts: parts.NoisedTwice([1.0] * 8),
    ],
    ids=[
        *["own get_batch", "mapped", "get", "transform", "callback", "callback with a seed"],
        *["std::function", "transform of own get_batch", "two of them"],
    ],
)
def test_a_sample_is_the_same_alone_and_in_any_batch(make: Any, parts: Any) -> None:
    dataset = make(parts)

    class Alone(Dataset[Any]):
        def __len__(self) -> int:
            return len(dataset)

        def __getitem__(self, index: int) -> Any:
            return dataset[index]

    def samples(of: Any, batch_size: int) -> str:
        loader = DataLoader(of, batch_size, collate_fn=list, **BY_SAMPLE)
        return str([sample for batch in loader for sample in batch])

    torch.set_printoptions(precision=10)
    assert len({samples(of, size) for of in (dataset, Alone()) for size in (1, 3, 8)}) == 1


def test_an_error_of_a_transform_names_its_sample(parts: Any) -> None:
    noised = parts.Noised([1.0, 1.0, 200.0])
    with pytest.raises(ValueError, match=r"a great value.*Noised was asked for 2\)"):
        list(DataLoader(noised, 3, **BY_SAMPLE))


def test_a_bad_sample_does_not_change_its_neighbours(parts: Any) -> None:
    def seeds(values: list[float]) -> list[int]:
        loader = DataLoader(parts.OwnSeeds(values), 4, on_error="skip", **BY_SAMPLE)
        return [number for batch in loader for number in batch[0][:, 0].tolist()]

    whole = seeds([1.0] * 8)
    with pytest.warns(SkippedWarning, match="index 5: ValueError: a negative value"):
        assert seeds([1.0] * 5 + [-1.0] + [1.0] * 2) == whole[:5] + whole[6:]


@pytest.mark.filterwarnings("ignore:seeding=.sample. cannot seed")  # nobody sees what is asked
@pytest.mark.parametrize("asked", [lambda ii: [*ii, *ii], lambda ii: ii[:2]], ids=["more", "less"])
def test_a_wrapper_that_asks_for_other_samples_than_the_batch_is_refused(
    asked: Any, parts: Any
) -> None:
    rows = parts.Rows(parts.values())
    wrapper = Asking(lambda indices: rows.__getitems__(asked(indices)))
    with pytest.raises(UsageError, match=r"asks a Rows for \d samples within a batch of 4"):
        next(iter(DataLoader(wrapper, 4, **BY_SAMPLE)))
    assert len(next(iter(DataLoader(wrapper, 4, seed=3)))[0]) in (2, 8)


@pytest.mark.filterwarnings("ignore:seeding=.sample. cannot seed")  # nobody sees what is asked
def test_two_parts_of_a_sample_have_numbers_of_their_own(parts: Any) -> None:
    first, second = parts.Engines([0] * 8), parts.Engines([0] * 8)
    both = Asking(
        lambda ii: [(*a, *b) for a, b in zip(first.__getitems__(ii), second.__getitems__(ii))]
    )
    small, large = (
        [torch.cat(each) for each in zip(*DataLoader(both, size, **BY_SAMPLE))] for size in (2, 4)
    )
    assert all(map(torch.equal, small, large))
    assert len(torch.cat([part.double() for part in small]).unique()) == 32


@pytest.mark.parametrize("seeding", ["batch", "sample"])
@pytest.mark.parametrize("name", ["Engines", "EnginesOneByOne"])
def test_each_sample_of_a_batch_has_numbers_of_its_own(name: str, seeding: str, parts: Any) -> None:
    """Of a std::mt19937 with current_seed(), and of generator()."""
    loader = DataLoader(getattr(parts, name)([0] * 8), 4, seed=1, seeding=seeding)
    for number in (0, 1):
        assert len(column(loader, number).unique()) == 8
    assert str([*loader]) != str([*loader]), "an epoch is like the one before"


@pytest.mark.parametrize("seeding", ["batch", "worker", "sample"])
@pytest.mark.parametrize(
    "make",
    [
        lambda parts: {"dataset": parts.Mapped(8), "batch_size": 4},
        lambda parts: {"dataset": parts.MappedCounter(8).batches(4), "batch_size": None},
        lambda parts: {
            "dataset": parts.Engines([0] * 8),
            "batch_size": 4,
            "collate_fn": lambda samples: default_collate(parts.Same()(samples)),
        },
    ],
    ids=["dataset", "stream", "collate"],
)
def test_a_transform_of_one_sample_has_a_seed_for_each(make: Any, seeding: str, parts: Any) -> None:
    def seeds() -> list[int]:
        loader = DataLoader(**make(parts), seed=1, seeding=seeding)
        return [int(seed) for batch in loader for seed in _targets(batch)]

    given = seeds()
    assert len(set(given)) == 8
    if seeding != "worker":
        assert seeds() == given


def _targets(batch: Any) -> Any:
    return [each[1] for each in batch] if len(batch) == 4 else batch[1]


def test_an_error_of_a_transform_names_its_sample_without_seeds_of_samples(parts: Any) -> None:
    with pytest.raises(ValueError, match=r"a great value.*Noised was asked for 2\)"):
        parts.Noised([1.0, 1.0, 200.0]).__getitems__([0, 1, 2])


def test_each_sample_of_a_stream_has_numbers_of_its_own(parts: Any) -> None:
    def loader(num_workers: int = 0) -> Any:
        return DataLoader(parts.Shards(8), 4, seed=1, num_workers=num_workers)

    assert len(column(loader(), 1).unique()) == 8
    torch.manual_seed(0)
    same = loader()
    assert torch.equal(column(same, 1), column(loader(), 1))


def test_a_random_transform_of_samples_has_their_seeds(parts: Any) -> None:
    def noise(size: int) -> torch.Tensor:
        return column(DataLoader(parts.Jittered(parts.values()), size, **BY_SAMPLE))

    assert torch.equal(noise(2), noise(5)) and len(noise(5).unique()) == 20


# --- subclasses ------------------------------------------------------------------------------


@pytest.mark.parametrize("loader", [TorchsLoader, DataLoader])
def test_a_getitem_in_python_holds_in_batches(loader: Any, parts: Any) -> None:
    values = torch.arange(4, dtype=torch.float64)
    doubled = column(loader(parts.Doubled(values, noise=0), batch_size=2))
    assert doubled.unique().tolist() == [0, 2, 4, 6]

    class AsTorchs(Dataset, parts.Rows):  # type: ignore[misc, name-defined]
        pass

    assert column(loader(AsTorchs(values, noise=0), batch_size=2)).tolist() == [
        [0] * 4,
        [1] * 4,
        [2] * 4,
        [3] * 4,
    ]

    class Again(parts.Doubled):  # type: ignore[misc, name-defined]
        def __getitems__(self, indices: list[int]) -> Any:
            return [(torch.zeros(1), 0) for _ in indices]

    assert column(loader(Again(values, noise=0), batch_size=2)).tolist() == [[0]] * 4


def test_a_get_batch_of_a_mapped_datasets_subclass_is_called(parts: Any) -> None:
    values = torch.arange(4.0)
    assert column(DataLoader(parts.OwnBatches(values), 2)).tolist() == [1000, 1001, 1002, 1003]


def test_batches_do_not_go_past_an_iter_in_python(parts: Any) -> None:
    for mine in (parts.HundredMore(4), parts.HundredMoreOfStream(4)):
        assert sorted(int(each[0] if isinstance(each, tuple) else each) for each in mine) == [
            100,
            101,
            102,
            103,
        ]
        with pytest.raises(UsageError, match=r"HundredMore\w* has an __iter__ of its own"):
            mine.batches(2)


def test_the_position_of_a_sampler_with_an_iter_in_python_is_refused(parts: Any) -> None:
    def loader() -> Any:
        return DataLoader(range(200), 2, sampler=parts.HundredMore(10))

    iterator = iter(loader())
    taken = [next(iterator) for _ in range(2)]
    for save in (lambda: iterator.state_dict(), lambda: pickle.dumps(iterator)):
        with pytest.raises(CannotSaveError, match="(?s)HundredMore.*__iter__ in Python"):
            save()
    assert str([*taken, *iterator]) == str([*loader()]), "saving has disturbed the run"


def read_ahead(order: Any) -> Any:
    held: list[int] = []
    for index in order:
        held.append(index)
        if len(held) > 3:
            yield held.pop(0)
    yield from held


def ahead_by_itself(parts: Any) -> Any:
    class Ahead(parts.Shuffled):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Any:
            return read_ahead(super().__iter__())

    return Ahead(12)


def ahead_by_a_mixin(parts: Any) -> Any:
    class Mixin:
        def __iter__(self) -> Any:
            return read_ahead(super().__iter__())  # type: ignore[misc]

    class Ahead(Mixin, parts.Shuffled):  # type: ignore[misc, name-defined]
        pass

    return Ahead(12)


def ahead_by_a_decorator(parts: Any) -> Any:
    class Ahead(parts.Shuffled):  # type: ignore[misc, name-defined]
        pass

    own = Ahead.__iter__
    Ahead.__iter__ = functools.wraps(own)(lambda self: read_ahead(own(self)))
    return Ahead(12)


def ahead_by_a_decorator_of_a_subclass(parts: Any) -> Any:
    cls = type(ahead_by_a_decorator(parts))
    cls.__iter__ = functools.wraps(cls.__iter__)(lambda self, own=cls.__iter__: iter([*own(self)]))
    return type("Below", (cls,), {})(12)


AHEAD = [
    ahead_by_itself,
    ahead_by_a_mixin,
    ahead_by_a_decorator,
    ahead_by_a_decorator_of_a_subclass,
]


@pytest.mark.parametrize("make", AHEAD)
def test_an_iter_that_reads_ahead_has_no_state_wherever_it_comes_from(
    make: Any, parts: Any
) -> None:
    loader = DataLoader(range(12), 2, sampler=make(parts))
    iterator = iter(loader)
    for _ in range(6):  # in the last two steps, C++ has given all
        next(iterator)
        for save in (iterator.state_dict, lambda: pickle.dumps(iterator)):
            with pytest.raises(CannotSaveError, match="__iter__ in Python is around"):
                save()
    assert not list(iterator) and len(list(loader)) == 6
    with pytest.raises(UsageError, match="has an __iter__ of its own"):
        loader.sampler.batches(2)


def test_an_iter_that_is_set_later_gives_an_error_and_no_state(parts: Any) -> None:
    class Ahead(parts.Shuffled):  # type: ignore[misc, name-defined]
        pass

    loader = DataLoader(range(12), 2, sampler=Ahead(12))
    own = Ahead.__iter__
    Ahead.__iter__ = lambda self: read_ahead(own(self))
    with pytest.raises(CannotSaveError, match="__iter__ in Python is around"):
        next(iter(loader))


def test_the_position_that_a_mixin_says_itself_is_taken(parts: Any) -> None:
    class Mixin:
        def __iter__(self) -> Any:
            for index in super().__iter__():  # type: ignore[misc]
                yield index + 100

        def state_dict(self) -> Any:
            return super().state_dict()  # type: ignore[misc]

    class Hundred(Mixin, parts.Shuffled):  # type: ignore[misc, name-defined]
        pass

    first, second = (DataLoader(range(200), 2, sampler=Hundred(10)) for _ in range(2))
    iterator = iter(first)
    next(iterator), next(iterator)
    second.load_state_dict(iterator.state_dict())
    assert str([*second]) == str([*iterator])


def test_the_position_that_a_subclass_says_itself_is_taken(parts: Any) -> None:
    class Counting(parts.HundredMore):  # type: ignore[misc, name-defined]
        at = 0

        def __iter__(self) -> Any:
            while self.at < 10:
                self.at += 1
                yield self.at
            self.at = 0

        def state_dict(self) -> Any:
            return {"at": self.at}

        def load_state_dict(self, state: Any) -> None:
            self.at = state["at"]

    first, second = (DataLoader(range(20), 2, sampler=Counting(10)) for _ in range(2))
    iterator = iter(first)
    next(iterator), next(iterator)
    second.load_state_dict(iterator.state_dict())
    assert str([*second]) == str([*iterator])


def test_a_reduce_in_python_is_called(parts: Any) -> None:
    assert len(pickle.loads(pickle.dumps(parts.MadeAnew(3)))) == len(copy.copy(parts.MadeAnew(3)))
    assert len(copy.copy(parts.MadeAnew(3))) == 7


def test_the_slots_of_a_subclass_are_copied(parts: Any) -> None:
    class Slots(parts.Samples):  # type: ignore[misc, name-defined]
        __slots__ = ("first", "__second")

    class Slotted(Slots):
        __slots__ = ("third", "empty")

    dataset = Slotted(4)
    dataset.first, dataset.third, dataset.other = 1, 3, 4
    dataset._Slots__second = 2
    for again in (copy.copy(dataset), copy.deepcopy(dataset)):
        assert (again.first, again._Slots__second, again.third, again.other) == (1, 2, 3, 4)
        assert not hasattr(again, "empty") and len(again) == 4


def test_a_new_that_takes_arguments_is_given_them(parts: Any) -> None:
    class New(parts.Samples):  # type: ignore[misc, name-defined]
        def __new__(cls, length: int, label: str) -> Any:
            made = super().__new__(cls)
            made.label = label
            return made

        def __init__(self, length: int, label: str) -> None:
            super().__init__(length)

        def __getnewargs__(self) -> Any:
            return len(self), self.label

    again = copy.copy(New(3, "cats"))
    assert (len(again), again.label) == (3, "cats")


def test_a_sampler_that_is_compared_and_not_hashed_works(parts: Any) -> None:
    assert list(parts.Writes("at")) == list(parts.Writes("at"))


# --- what is saved ---------------------------------------------------------------------------


def test_a_state_does_not_move_on_with_its_object(parts: Any) -> None:
    stream = iter(parts.Shards(9))
    next(stream)
    state = stream.state_dict()
    before = copy.deepcopy(state)
    rest = [int(number) for number, _ in stream]
    assert torch.equal(state["source"], before["source"])
    for _ in range(2):
        again = iter(copy.copy(stream._source))
        again.load_state_dict(state)
        assert [int(number) for number, _ in again] == rest


def test_an_argument_that_changes_later_is_saved_as_it_was(parts: Any) -> None:
    numbers = [1, 2]
    engines = parts.Engines(numbers)
    numbers.clear()
    assert len(engines) == len(pickle.loads(pickle.dumps(engines))) == 2


def test_an_iterator_among_the_arguments_is_refused_when_it_is_saved(parts: Any) -> None:
    engines = parts.Engines(number for number in range(3))
    assert len(engines) == 3
    with pytest.raises(CannotSaveError, match="(?s)Engines.*an iterator.*list"):
        pickle.dumps(engines)


@pytest.mark.parametrize(
    ("entry", "named"),
    [("lists", "'mine'"), ("optional", "'mine'"), ("bytes", "'mine'"), ("0", "'0'")],
)
def test_an_entry_that_could_not_be_loaded_is_refused_when_it_is_saved(
    entry: str, named: str, parts: Any
) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"save\(\) writes .*{named}"):
        parts.Writes(entry).state_dict()


# --- errors ----------------------------------------------------------------------------------


def test_a_vector_with_fewer_samples_than_asked_for_is_refused(parts: Any) -> None:
    short = parts.OwnBatches(torch.tensor([0.0, -1, 2]))
    for ask in (lambda: short.__getitems__([0, 1, 2]), lambda: short[1]):
        with pytest.raises(ValueError, match=r"a vector of \d for \d indices.*struct"):
            ask()


def test_a_stop_iteration_ends_no_epoch(parts: Any) -> None:
    loader = DataLoader(parts.Throws("stop"), 2)
    with pytest.raises(RuntimeError, match=r"Throws raised StopIteration .*\[2, 3\]"):
        list(loader)
    with pytest.raises(RuntimeError, match=r"Throws raised StopIteration .*3"):
        parts.Throws("stop")[3]


class Missing(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [
        UnicodeDecodeError("utf-8", b"caf\xe9", 3, 4, "unexpected end of data"),
        Missing(404),
        Missing(["a", "b"]),
        OSError(2, "no such file"),
        TypeError("incompatible function arguments"),
    ],
    ids=repr,
)
def test_an_error_of_a_function_in_python_is_still_its_own(error: Exception, parts: Any) -> None:
    def fetch(index: int) -> float:
        raise error

    arguments = error.args
    for dataset in (parts.Callback([fetch]), parts.Calls(fetch)):
        with pytest.raises(type(error)) as raised:
            dataset[3]
        assert raised.value is error
        if not isinstance(arguments[0], str) or len(arguments) > 1:
            assert error.args == arguments
        else:
            assert error.args[0].startswith(f"{arguments[0]} (")


def test_a_text_that_is_not_utf8_is_an_error_in_words(parts: Any) -> None:
    with pytest.raises(RuntimeError, match=r"Throws .*not UTF-8.*xff bad bytes.*asked for 3"):
        parts.Throws("bytes")[3]


@pytest.mark.parametrize("index", [1.0, "a", slice(0, 2), None, 2**70])
def test_an_index_that_is_none_is_pythons_error(index: Any, parts: Any) -> None:
    rows = parts.Rows(parts.values())
    for ask in (lambda: rows[index], lambda: rows.__getitems__([0, index])):
        with pytest.raises(IndexError if index == 2**70 else TypeError) as raised:
            ask()
        assert "Rows" in str(raised.value) and "\n" not in str(raised.value)


def test_a_mutex_of_get_and_size_waits_for_no_gil(parts: Any) -> None:
    locked = parts.Locked()
    threads = [
        threading.Thread(target=lambda: [locked[at] for at in range(20)], daemon=True)
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


def test_a_getitem_that_a_decorator_has_set_holds_in_batches_too(parts: Any) -> None:
    class Negative(parts.OwnSeeds):  # type: ignore[misc, name-defined]
        def __getitems__(self, indices: list[int]) -> Any:
            return super().__getitems__(indices)

    class Plain(parts.OwnSeeds):  # type: ignore[misc, name-defined]
        pass

    for cls, expected in ((Negative, 1.0), (Plain, -1.0)):
        alone = cls.__getitem__
        cls.__getitem__ = lambda self, index, of=alone: (of(self, index)[0], -of(self, index)[1])
        dataset = cls([1.0, 1.0])
        assert dataset[0][1] == -1
        assert column(DataLoader(dataset, 2), 1).tolist() == [expected] * 2


def test_an_overridden_set_epoch_is_not_called_by_a_pickle(parts: Any) -> None:
    sampler = parts.CountsEpochs(12)
    sampler.set_epoch(3)
    again = pickle.loads(pickle.dumps(sampler))
    assert again.epochs == [3] and list(again) == list(sampler)


def over_needs_reset(parts: Any) -> Any:
    return DataLoader(range(9), 1, sampler=parts.NeedsReset(9))


def over_lines(parts: Any) -> Any:
    return DataLoader(parts.Lines(9), 1)


def over_lines_in_batches(parts: Any) -> Any:
    return DataLoader(parts.Lines(9).batches(1), batch_size=None)


@pytest.mark.parametrize("taken", [0, 1, 5, 9])
@pytest.mark.parametrize("over", [over_needs_reset, over_lines, over_lines_in_batches])
def test_what_has_no_state_before_its_first_reset_goes_on(
    over: Any, taken: int, parts: Any
) -> None:
    def make() -> Any:
        return over(parts)

    torch.manual_seed(1)
    iterator = iter(make())
    for _ in range(taken):
        next(iterator)
    data, state = pickle.dumps(iterator), from_json(to_json(iterator.state_dict()))
    before = torch.get_rng_state()
    resumed = make()
    resumed.load_state_dict(state, at_epoch_end="stop")
    copies = [pickle.loads(data), iter(resumed)]
    assert torch.equal(before, torch.get_rng_state()), "the program's generator has moved"
    rest = str(list(iterator))
    with expected_warnings():
        assert [str(list(each)) for each in copies] == [rest, rest]
    following = str(list(iterator.loader))
    assert [str(list(each.loader)) for each in copies] == [following, following]


def test_a_state_from_before_the_first_reset_is_for_a_new_object(parts: Any) -> None:
    sampler = parts.NeedsReset(9)
    state = sampler.state_dict()
    order = list(sampler)
    with pytest.raises(StateMismatch, match="(?s)NeedsReset.*Load it into a new object"):
        sampler.load_state_dict(state)
    again = pickle.loads(pickle.dumps(parts.NeedsReset(9)))
    again.load_state_dict(state)
    assert list(again) == order and list(again) == list(sampler)


def test_a_state_that_a_sampler_refuses_is_named_where_it_has_none_to_go_back_to(
    parts: Any,
) -> None:
    with pytest.raises(StateMismatch, match="state of NeedsReset"):
        parts.NeedsReset(9).load_state_dict({"source": {"at": 3}, "begun": True})


@pytest.mark.parametrize("loader", [TorchsLoader, DataLoader])
def test_a_batch_sampler_may_give_tensors(loader: Any, parts: Any) -> None:
    batches = list(torch.arange(8).split(3))
    for dataset in (parts.Samples(8), parts.OwnSeeds([1.0] * 8)):
        assert [
            len(next(iter(batch.values() if isinstance(batch, dict) else batch)))
            for batch in loader(dataset, batch_sampler=batches)
        ] == [3, 3, 2]
    with pytest.raises(TypeError, match="an index of Samples is an int, not 1.0"):
        parts.Samples(8).__getitems__(torch.tensor([1.0]))


@pytest.mark.parametrize("batch", [[0, 1], (0, 1), np.array([0, 1]), torch.tensor([0, 1])])
def test_a_batch_as_an_index_is_an_error_with_the_way_out(batch: Any, parts: Any) -> None:
    text = r"an index of Samples is an int, not .*0, 1.*batch_sampler="
    with pytest.raises(TypeError, match=text):
        next(iter(DataLoader(parts.Samples(8), sampler=[batch], batch_size=None)))


@pytest.mark.parametrize(
    "make",
    [
        lambda whole: DataLoader(whole, batch_size=None),
        lambda whole: DataLoader(ConcatDataset([whole]), 3),
        lambda whole: DataLoader(ConcatDataset([whole]), 3, on_error="skip"),
        lambda whole: DataLoader(StackDataset(whole, range(10)), 3, **BY_SAMPLE),
    ],
    ids=["no batch_size", "ConcatDataset", "skip", "StackDataset"],
)
def test_a_sample_of_a_dataset_of_whole_batches_is_an_error_with_the_way_out(
    make: Any, parts: Any
) -> None:
    with pytest.raises(NotImplementedError, match="Loops makes whole batches.*with a batch_size"):
        next(iter(make(parts.Loops(parts.values()))))


class Values(list[float]):
    pass


@pytest.mark.parametrize("make", [np.array, Values])
def test_what_a_constructor_was_given_may_change_afterwards(make: Any, parts: Any) -> None:
    given = make([1.0, 2.0])
    dataset = parts.OwnSeeds(given)
    given[0] = 99
    assert pickle.loads(pickle.dumps(dataset))[0][1] == 1


def test_a_view_of_a_dict_is_refused_when_it_is_saved(parts: Any) -> None:
    dataset = parts.OwnSeeds({1: 2.0}.values())
    with pytest.raises(CannotSaveError, match="a OwnSeeds .*a dict's view. Give it a list"):
        pickle.dumps(dataset)


@pytest.mark.parametrize("taken", [0, 5, 9])
def test_a_samplers_own_state_goes_on_where_it_was(taken: int, parts: Any) -> None:
    sampler, again = parts.Shuffled(9), parts.Shuffled(9)
    order = iter(sampler)
    for _ in range(taken):
        next(order)
    again.load_state_dict(copy.deepcopy(sampler.state_dict()))
    rest = list(order)
    assert list(again) == rest
    assert list(again) == list(sampler)  # the next epoch
