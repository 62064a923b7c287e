"""Each mistake is an error with a name, the object's name, and the way out."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler

from picklable_loader import DataLoader
from picklable_loader.errors import (
    CannotLoadError,
    CannotSaveError,
    LoaderWarning,
    SkippedWarning,
    StateMismatch,
    UsageError,
    WorkerDied,
)

BAD = [([-1.0], ValueError, "negative"), ([2e3], RuntimeError, "great"), ([777], RuntimeError, "")]


def rows(parts: Any, *added: float) -> Any:
    return parts.Rows(torch.tensor([0.0, 1, 2, *added]), noise=0)


# --- what C++ throws -------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(("value", "error", "text"), BAD)
def test_an_exception_of_cpp_is_the_right_one_of_python_and_names_the_sample(
    value: list[float], error: type[Exception], text: str, num_workers: int, parts: Any
) -> None:
    loader = DataLoader(rows(parts, *value), batch_size=2, num_workers=num_workers)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(error, match=rf"(?s){text}.*\(Rows was asked for 3\)"):
        next(iterator)


@pytest.mark.inline
def test_a_bad_sample_is_skipped_as_in_python(parts: Any) -> None:
    loader = DataLoader(rows(parts, -1, 3), batch_size=4, on_error="skip", collate_fn=parts.Stack())
    with pytest.warns(SkippedWarning, match="index 3: ValueError: a negative value"):
        assert [which.tolist() for _, which in loader] == [[0, 1, 2], [4]]


def test_a_segmentation_fault_is_the_death_of_a_worker(parts: Any) -> None:
    delivered = 0
    with pytest.warns(UserWarning), pytest.raises(WorkerDied) as died:
        # A busy consumer may hear of the first death before it asks for the first batch.
        for _ in DataLoader(rows(parts, 666), batch_size=2, num_workers=1):
            delivered += 1
    assert delivered == died.value.step == 1 and list(died.value.indices) == [2, 3]


@pytest.mark.inline
@pytest.mark.parametrize("index", [10, -11, 2**40])
def test_an_index_out_of_range_is_an_index_error(index: int, parts: Any) -> None:
    for dataset in (parts.Rows(parts.values()), parts.Loops(parts.values()), parts.Chunks(10, 2)):
        with pytest.raises(IndexError, match=rf"index {index} is out of range.*10 samples"):
            dataset.__getitems__([0, index])
    with pytest.raises(IndexError, match=rf"index {index} is out of range"):
        parts.Rows(parts.values())[index]


@pytest.mark.inline
def test_an_error_names_no_sample_of_an_earlier_error(parts: Any) -> None:
    values = torch.tensor([0.0, 1, 2, -1])
    for dataset in (parts.Rows(values), parts.Shared(values)):
        with pytest.raises(ValueError, match=r"was asked for 3\)"):
            dataset[3]
        for indices, asked in (([0, 50], r"\[0, 50\]"), ([0, 3], "3"), ([0, 60], r"\[0, 60\]")):
            with pytest.raises((ValueError, IndexError), match=rf"was asked for {asked}\)"):
                dataset.__getitems__(indices)
    with pytest.raises(ValueError, match=r"Stacked was asked for 3\)"):
        parts.Stacked(values).__getitems__([0, 3])


# --- what was bound --------------------------------------------------------------------------


@pytest.mark.inline
def test_a_type_that_was_not_bound_is_named(parts: Any) -> None:
    with pytest.raises(UsageError, match="Unnamed returns a C.. type .*PICKLABLE_LOADER_FIELDS"):
        parts.Unnamed()[0]


@pytest.mark.inline
def test_a_python_object_in_a_constructor_needs_hold_gil(parts: Any) -> None:
    with pytest.raises(UsageError, match=r"constructor of Calls2 takes a Python object.*hold_gil"):
        parts.extension.bind_without_the_gil()
    with pytest.raises(UsageError, match=r"constructor of Calls3 takes a Python object.*hold_gil"):
        parts.extension.bind_many_without_the_gil()
    assert parts.Calls(lambda index: index * 2)[4] == 8


@pytest.mark.inline
@pytest.mark.parametrize("which", ["samples", "indices", "batches"])
def test_samples_that_are_python_objects_need_hold_gil(which: str, parts: Any) -> None:
    with pytest.raises(UsageError, match="samples or batches of Bare are or hold .*hold_gil"):
        parts.extension.bind_python_without_the_gil(which)
    assert next(iter(DataLoader(parts.Dicts(), 2)))["index"].tolist() == [0, 1]


@pytest.mark.inline
@pytest.mark.parametrize("how", ["a call", "a copy", "an assignment"])
def test_a_python_object_that_is_used_without_the_gil_is_found(how: str, parts: Any) -> None:
    with pytest.raises(UsageError, match=r"Sneaky uses Python objects without the GIL.*hold_gil"):
        parts.Sneaky()[4]
    with pytest.raises(UsageError, match=r"Touches uses Python objects without the GIL.*hold_gil"):
        parts.Touches(how)[4]


@pytest.mark.inline
def test_what_cannot_be_collated_in_cpp_is_said_in_words(parts: Any) -> None:
    with pytest.raises(TypeError):
        parts.CountsCats()._apply([{"whiskers": 3}])  # nobody asks which field it was
    pair = torch.zeros(2), torch.zeros(1)
    with pytest.raises(UsageError, match="CollatesToUnknown returns a C.. type .*FIELDS"):
        parts.CollatesToUnknown()([pair])
    with pytest.raises(
        TypeError, match="^Stack cannot collate samples such as 3: .*Example"
    ) as raised:
        list(DataLoader(range(3, 6), 2, collate_fn=parts.Stack()))
    assert "Invoked" not in str(raised.value)
    for sample, field in ({"whiskers": "many", "name": "Tom"}, "whiskers"), (
        {"whiskers": 3},
        "name",
    ):
        with pytest.raises(
            TypeError,
            match=rf"CountsCats cannot .*, whose '{field}' .*Cat \(a dict of whiskers, name\)",
        ):
            parts.CountsCats()([sample])
    loader = DataLoader(parts.Splits(), 2, collate_fn=parts.CollatesSplits())
    with pytest.raises(TypeError, match="CollatesSplits cannot .*, whose 'name' does not fit"):
        list(loader)
    with pytest.raises(RuntimeError, match=r"(?s)equal size.*Stack was asked for \["):
        parts.Stack()([pair, (torch.zeros(3), torch.zeros(1))])


@pytest.mark.inline
def test_an_extension_of_another_torch_is_refused(
    monkeypatch: pytest.MonkeyPatch, parts: Any
) -> None:
    built_for = torch.__version__.partition("+")[0]
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    with pytest.raises(CannotLoadError, match=rf"built for torch {built_for}.*this is torch 2.99"):
        parts.extension.bind_without_the_gil()


@pytest.mark.inline
def test_ordinary_slips_name_the_class_and_not_its_library(parts: Any) -> None:
    for slip, error, text in (
        (lambda: parts.Shuffled(3).foo, AttributeError, "'Shuffled' object has no attribute 'foo'"),
        (lambda: len(parts.RandomSampler(3)), TypeError, "'RandomSampler' has no len"),
        (lambda: parts.Shuffled("3"), TypeError, r" Shuffled\(length: "),
    ):
        with pytest.raises(error, match=text) as raised:
            slip()
        assert "library_" not in str(raised.value)
    assert "library_" not in parts.Shuffled.__init__.__doc__


@pytest.mark.inline
def test_a_subclass_that_does_not_call_the_constructor_is_named(parts: Any) -> None:
    bare = parts.Samples.__new__(parts.Samples)
    with pytest.raises(CannotSaveError, match="Samples"):
        pickle.dumps(bare)


@pytest.mark.inline
def test_a_pickle_of_other_arguments_is_refused(parts: Any) -> None:
    samples = parts.Samples(10)
    samples.__dict__["_built"]["kwargs"] = {"size": 3}
    with pytest.raises(CannotLoadError, match="(?s)Samples.*does not take the arguments"):
        pickle.loads(pickle.dumps(samples))


# --- states ----------------------------------------------------------------------------------

STATES: dict[str, Any] = {
    "an entry is missing": {"at": 1},
    "an entry is of another type": {"at": "one", "engine": "1 2", "order": ("int", [1])},
    "an entry is of another kind": {"at": 1, "engine": 3, "order": torch.ones(3)},
    "a name is code": {"at:\n  import os #": 1},
    "it is no dict": [1],
}


@pytest.mark.inline
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_state_of_another_version_is_refused_and_changes_nothing(state: Any, parts: Any) -> None:
    sampler, same = parts.Shuffled(10), parts.Shuffled(10)
    with pytest.raises(StateMismatch, match="state of Shuffled"):
        sampler.load_state_dict({"source": state})
    assert list(sampler) == list(same)


@pytest.mark.inline
def test_a_loaders_state_of_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, parts: Any
) -> None:
    def iterator() -> Any:
        return iter(DataLoader(range(10), batch_size=2, sampler=parts.Shuffled(10)))

    with monkeypatch.context() as old:
        old.setattr(parts.Shuffled, "_get_state", lambda self: {"at": 1})
        begun = iterator()
        next(begun)
        state = begun.state_dict()
    resumed = iterator()
    with pytest.raises(StateMismatch, match="(?s)Shuffled.*another version"):
        resumed.load_state_dict(state)
        next(resumed)


# --- samplers and streams --------------------------------------------------------------------


@pytest.mark.inline
@pytest.mark.parametrize("kind", ["OddSampler", "OddStream"])
def test_more_than_was_asked_for_is_refused(kind: str, parts: Any) -> None:
    odd = getattr(parts, kind)("greedy")
    for iterator, asked in ((iter(odd), 1), (iter(odd.batches(4)), 4)):
        text = rf"{kind} gives {asked + 2} at once when it is asked for {asked}\."
        with pytest.raises(ValueError, match=text):
            next(iterator)


@pytest.mark.inline
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("empty", "position of a OddSampler cannot be saved: its save.. writes nothing. Let save"),
        ("throws", "a OddSampler cannot be saved: its save.. raises RuntimeError: not implemented"),
        ("keyword", "a OddSampler cannot be saved: .*no keywords of Python"),
    ],
)
def test_a_sampler_that_saves_no_position_is_refused_when_it_is_saved(
    how: str, text: str, parts: Any
) -> None:
    iterator = iter(DataLoader(range(12), 3, sampler=parts.OddSampler(how)))
    next(iterator)
    for save in (iterator.state_dict, lambda: pickle.dumps(iterator)):
        with pytest.raises(CannotSaveError, match=text):
            save()
    assert len(list(iterator)) == 3


SHARES = ["DistributedRandomSampler", "DistributedSequentialSampler", "OwnShare"]


@pytest.mark.inline
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("kind", SHARES)
def test_a_state_in_mid_epoch_is_for_the_rank_that_saved_it(
    kind: str, batches: bool, parts: Any
) -> None:
    def loader_of(*ranks: int) -> Any:
        sampler = getattr(parts, kind)(20, *ranks)
        sampling = {"batch_sampler": sampler.batches(2)} if batches else {"sampler": sampler}
        return DataLoader(range(20), **sampling)

    iterator = iter(loader_of(2, 0))
    next(iterator)
    state, rest = iterator.state_dict(), [batch.tolist() for batch in iterator]
    at_the_end = iterator.state_dict()
    for other in ((2, 1), (3, 0)):
        with pytest.raises(StateMismatch, match=f"(?s)state of {kind}.*for one rank: save a state"):
            resumed = loader_of(*other)
            resumed.load_state_dict(state)
            next(iter(resumed))
    own, resumed = loader_of(2, 0), loader_of(2, 1)
    own.load_state_dict(state)
    assert [batch.tolist() for batch in own] == rest
    resumed.load_state_dict(at_the_end)
    seen = {int(index) for loader in (resumed, own) for batch in loader for index in batch}
    assert seen == {*range(20)}


@pytest.mark.inline
def test_a_state_of_a_rank_is_refused_by_a_sampler_that_has_none(parts: Any) -> None:
    iterator = iter(parts.DistributedSequentialSampler(20, 2, 0))
    next(iterator)
    with pytest.raises(StateMismatch, match="a state of no rank.*num_replicas"):
        parts.Shuffled(20).load_state_dict(iterator.state_dict())


@pytest.mark.inline
@pytest.mark.parametrize("kind", SHARES)
def test_a_sampler_that_shares_the_data_out_is_refused_with_shard(kind: str, parts: Any) -> None:
    sampler = getattr(parts, kind)(20, 2, 0)
    for sampling in (
        {"sampler": sampler},
        {"batch_sampler": sampler.batches(3)},
        {"batch_sampler": BatchSampler(sampler, 3, False)},
    ):
        with pytest.raises(ValueError, match="mutually exclusive with a DistributedSampler"):
            DataLoader(range(20), shard=(0, 2), **sampling)
    whole = DataLoader(range(20), shard=(0, 2), sampler=parts.RandomSampler(20), seed=3)
    assert len([*whole]) == 10


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_whose_save_writes_nothing_is_replayed(workers: int, parts: Any) -> None:
    loader = DataLoader(parts.OddStream("empty"), 2, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    state = iterator.state_dict()
    rest = [batch.tolist() for batch in iterator]
    with pytest.warns(LoaderWarning, match="OddStream has no state, and is resumed by replay"):
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == rest


@pytest.mark.inline
def test_a_stream_whose_save_raises_says_what_to_do_when_it_is_saved(parts: Any) -> None:
    iterator = iter(DataLoader(parts.OddStream("throws"), 3))
    next(iterator)
    for save in (iterator.state_dict, lambda: pickle.dumps(iterator)):
        with pytest.raises(CannotSaveError, match=r"not implemented.*A stream whose save\(\)"):
            save()
    assert len(list(iterator)) == 3


@pytest.mark.inline
def test_a_stream_without_an_end_has_no_length(parts: Any) -> None:
    with pytest.raises(TypeError, match="has no end, so there is no len"):
        len(parts.OddStream("endless"))
    assert len(list(DataLoader(parts.OddStream("endless"), 4))) == 3


@pytest.mark.inline
def test_an_incomplete_whole_batch_cannot_be_dropped(parts: Any) -> None:
    whole = parts.WholeBatches(7)
    assert [len(batch) for batch in DataLoader(whole.batches(3), None)] == [3, 3, 1]
    with pytest.raises(UsageError, match="drop_last=True.*a WholeBatches makes whole batches"):
        next(iter(whole.batches(3, drop_last=True)))


@pytest.mark.inline
def test_a_stream_of_whole_batches_ends_with_one_that_is_empty(parts: Any) -> None:
    ends = parts.EndsEmpty(7)
    assert [rows.tolist() for rows, _ in DataLoader(ends.batches(3), None)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6],
    ]
    assert len(list(ends)) == 7


@pytest.mark.inline
def test_a_batch_has_a_sample_at_least(parts: Any) -> None:
    for size, error in ((0, ValueError), (-1, ValueError), (2.5, TypeError)):
        with pytest.raises(error, match="batch_size should be"):
            parts.Shuffled(9).batches(size)


@pytest.mark.inline
def test_batches_that_a_library_builds_anew_of_another_sampler_are_refused(parts: Any) -> None:
    loader = DataLoader(range(9), batch_sampler=parts.Shuffled(9).batches(3))
    with pytest.raises(UsageError, match="is a SequentialSampler.*sampler=T.* and batch_size="):
        type(loader.batch_sampler)(loader.sampler, batch_size=3, drop_last=False)


@pytest.mark.inline
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda source: source.update(more=3), "'at: int', 'engine: str', 'more: int', 'order: l"),
        (lambda source: source.update(at=1.5), "expected .'at: int'.*found .'at: float'"),
        (lambda source: source.pop("order"), "found .'at: int', 'engine: str'. .the state"),
    ],
)
def test_a_state_of_another_version_says_which_entries_differ(
    change: Any, text: str, parts: Any
) -> None:
    sampler = parts.Shuffled(9)
    order = iter(sampler)
    next(order)
    state = copy.deepcopy(sampler.state_dict())
    change(state["source"])
    with pytest.raises(StateMismatch, match=text):
        sampler.load_state_dict(state)
    assert len(list(order)) == 8


@pytest.mark.inline
def test_something_that_is_no_state_is_refused(parts: Any) -> None:
    for state in ({}, {"at": 3}, [1]):
        with pytest.raises(StateMismatch, match="a dict with the entries 'source' and 'begun'"):
            parts.Shuffled(9).load_state_dict(state)
