"""Errors and warnings: they travel whole, say what to do, and come where they are documented."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import cloudpickle
import dill
import pytest
import torch
from laws.observe import seen
from torch.utils.data import IterableDataset
from zoo.datasets import N, Noisy, NoisyStream
from zoo.samplers import CountsEpochs, Sized, from_torch

from picklable_loader import DataLoader, current_seed, errors
from picklable_loader.core.events import (
    Arrived,
    Budgeted,
    Died,
    Ended,
    LastState,
    Send,
    Started,
    Told,
)
from picklable_loader.core.schedule import Policy, Schedule
from picklable_loader.core.streams import StreamPlan, StreamPosition
from picklable_loader.errors import (
    CannotLoadError,
    CannotSaveError,
    DamagedStateError,
    Difference,
    EmptyEpochWarning,
    ForeignStateError,
    InvalidTransition,
    LoaderError,
    LoaderWarning,
    NewerStateError,
    NoSampleError,
    OrderMismatch,
    RanksError,
    ReplayWarning,
    RestartWarning,
    SkippedWarning,
    StateError,
    StateMismatch,
    StreamError,
    UsageError,
    WorkerDied,
)

#: one of each, with its attributes
EXAMPLES: list[tuple[Exception, dict[str, Any]]] = [
    (LoaderError("some text"), {}),
    (StateError("some text"), {}),
    (UsageError("some text"), {}),
    (LoaderWarning("some text"), {}),
    (EmptyEpochWarning("some text"), {}),
    (ReplayWarning("some text"), {}),
    (RestartWarning("some text"), {}),
    (
        WorkerDied(3, [6, 7], (-9, 5), ("killed", "ended")),
        {
            "step": 3,
            "indices": [6, 7],
            "exitcodes": (-9, 5),
            "causes": ("killed", "ended"),
            "stream": None,
        },
    ),
    (SkippedWarning("some text"), {}),
    (
        StateMismatch([Difference("batch_size", 4, 3), Difference("seed", None, 7)], "Do this."),
        {
            "differences": [Difference("batch_size", 4, 3), Difference("seed", None, 7)],
            "advice": "Do this.",
        },
    ),
    (OrderMismatch("Buckets", 64), {"sampler": "Buckets", "taken": 64}),
    (
        DamagedStateError("window[3]", "a whole number", [1, "x"]),
        {
            "field": "window[3]",
            "expected": "a whole number",
            "found": [1, "x"],
            "advice": "use an earlier checkpoint",
        },
    ),
    (NewerStateError(5, 1), {"found": 5, "supported": 1}),
    (ForeignStateError("a list", "Do this."), {"origin": "a list", "advice": "Do this."}),
    (
        CannotSaveError("the sampler", "it has no state", "Do this."),
        {"what": "the sampler", "reason": "it has no state", "advice": "Do this."},
    ),
    (
        CannotLoadError("a class", "it is not there", "Do this"),
        {"what": "a class", "reason": "it is not there", "advice": "Do this"},
    ),
    (
        StreamError(3, "Lines", "KeyError: 'at'"),
        {"stream": 3, "dataset": "Lines", "reason": "KeyError: 'at'"},
    ),
    (
        NoSampleError(1000, "step 5, index 3: OSError"),
        {"batches": 1000, "newest": "step 5, index 3: OSError"},
    ),
    (
        RanksError("They differ", "Do this.", [], [3], {"seed": {"1": [0, 2], "2": [1]}}),
        {
            "problem": "They differ",
            "advice": "Do this.",
            "missing": [],
            "doubled": [3],
            "differences": {"seed": {"1": [0, 2], "2": [1]}},
        },
    ),
    (
        InvalidTransition("sent", "Wanted", 7, ("Wanted()",)),
        {"phase": "sent", "event": "Wanted", "step": 7, "past": ("Wanted()",)},
    ),
]


def by_pickle(protocol: int) -> Callable[[Any], Any]:
    return lambda error: pickle.loads(pickle.dumps(error, protocol))


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "cloudpickle": lambda error: pickle.loads(cloudpickle.dumps(error)),
    "dill": lambda error: dill.loads(dill.dumps(error)),
    **{f"pickle-{protocol}": by_pickle(protocol) for protocol in range(6)},
}


# --- as values -----------------------------------------------------------------------------------


def test_there_is_an_example_of_each_class() -> None:
    named = {each for each in vars(errors).values() if inspect.isclass(each)}
    named = {each for each in named if issubclass(each, Exception)}
    assert named == {type(example) for example, _ in EXAMPLES}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("error, attributes", EXAMPLES, ids=lambda value: type(value).__name__)
def test_an_error_travels_with_its_text_and_attributes(
    error: Exception, attributes: dict[str, Any], name: str
) -> None:
    again = COPIES[name](error)
    assert type(again) is type(error)
    assert str(again) == str(error) and str(error)
    assert again.args == error.args
    assert vars(again) == vars(error) == attributes


def test_a_difference_travels_as_well() -> None:
    difference = Difference("seed", 1, [2])
    for make in COPIES.values():
        again = make(difference)
        assert type(again) is Difference
        assert (again.name, again.expected, again.found) == ("seed", 1, [2])


@pytest.mark.parametrize(
    "kind, bases",
    [
        (LoaderError, (Exception,)),
        (StateError, (LoaderError, ValueError)),
        (StateMismatch, (StateError,)),
        (OrderMismatch, (StateError,)),
        (DamagedStateError, (StateError,)),
        (NewerStateError, (StateError,)),
        (ForeignStateError, (StateError,)),
        (CannotSaveError, (LoaderError, TypeError)),
        (CannotLoadError, (LoaderError, RuntimeError)),
        (UsageError, (LoaderError, RuntimeError)),
        (InvalidTransition, (LoaderError, RuntimeError)),
        (LoaderWarning, (UserWarning,)),
        (EmptyEpochWarning, (LoaderWarning,)),
        (ReplayWarning, (LoaderWarning,)),
        (RestartWarning, (LoaderWarning,)),
        (WorkerDied, (LoaderError, RuntimeError)),
        (SkippedWarning, (LoaderWarning,)),
        (NoSampleError, (LoaderError, RuntimeError)),
    ],
)
def test_an_error_is_caught_as_what_it_is(
    kind: type[Exception], bases: tuple[type[Exception], ...]
) -> None:
    assert kind.__bases__ == bases


def test_the_modules_picture_of_the_hierarchy_shows_every_class() -> None:
    assert errors.__doc__ is not None
    for each in vars(errors).values():
        if inspect.isclass(each) and issubclass(each, Exception):
            assert each.__name__ in errors.__doc__


# --- texts ---------------------------------------------------------------------------------------


def test_a_mismatch_lists_expected_and_found_and_ends_with_the_advice() -> None:
    lines = str(StateMismatch([Difference("a", 1, "x"), Difference("b", 2, None)], "Do this."))
    assert lines.splitlines()[1:] == [
        "  a: expected 1 (this loader), found 'x' (the state)",
        "  b: expected 2 (this loader), found None (the state)",
        "Do this.",
    ]


def test_a_damaged_state_names_field_expected_found_and_the_way_out() -> None:
    text = str(DamagedStateError("step", "a whole number from 0", -3))
    for part in ("'step'", "a whole number from 0", "-3", "Nothing was loaded", "checkpoint"):
        assert part in text


def test_a_damaged_state_shows_no_more_than_80_characters_of_what_it_found() -> None:
    error = DamagedStateError("step", "short", "x" * 10_000)
    assert error.found == "x" * 10_000
    assert "'" + "x" * 76 + "..." in str(error)
    assert "x" * 77 not in str(error)
    exact = "y" * 78
    assert f"found {exact!r}." in str(DamagedStateError("step", "short", exact))


def test_a_newer_state_names_both_versions_and_how_to_upgrade() -> None:
    text = str(NewerStateError(5, 1))
    assert "version 5" in text and "up to 1" in text
    assert "upgrade picklable_loader" in text


def test_a_foreign_state_names_its_origin_and_the_advice() -> None:
    text = str(ForeignStateError("a list", "Do this."))
    assert "of a list" in text and text.endswith("Do this.")


def test_what_cannot_be_saved_is_named_with_reason_and_advice() -> None:
    text = str(CannotSaveError("the sampler", "it has no state", "Do this."))
    assert text == "the sampler cannot be saved: it has no state. Do this."


def test_a_bug_of_ours_asks_to_be_reported() -> None:
    text = str(InvalidTransition("sent", "Wanted", 7))
    for part in ("step 7", "sent", "Wanted", "bug of picklable_loader", "report"):
        assert part in text


# --- when they are raised ------------------------------------------------------------------------


def make(**more: Any) -> DataLoader[Any]:
    """Four batches of random samples in random order."""
    arguments = {"batch_size": 3, "shuffle": True, "seed": 7}
    return DataLoader(Noisy(), **{**arguments, **more})


def state_after(loader: DataLoader[Any], steps: int) -> dict[str, Any]:
    iterator = iter(loader)
    seen(iterator, steps)
    return iterator.state_dict()


class AsItGoes(Sized):
    """A long epoch of draws from torch's global generator, by a Python generator."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(1200):
            yield from_torch(N)


class PlainAsItGoes(Sized):
    """The same, by an object that can be pickled."""

    def __iter__(self) -> Iterator[int]:
        return Draws()


class Draws:
    def __iter__(self) -> Draws:
        return self

    def __next__(self) -> int:
        return from_torch(N)


def drawn_in_between(sampler: Any) -> Any:
    """An iterator in whose epoch the program has drawn between all batches."""
    iterator = iter(DataLoader(Noisy(), 1, sampler=sampler))
    for _ in range(1100):
        torch.rand(())
        next(iterator)
    return iterator


@pytest.mark.parametrize("into", [lambda: make(), lambda: iter(make())], ids=["loader", "iterator"])
@pytest.mark.parametrize(
    "state, kind",
    [
        (lambda: None, ForeignStateError),
        (lambda: [1, 2], ForeignStateError),
        (lambda: {"model": 1}, ForeignStateError),
        (lambda: {**state_after(make(), 2), "version": 10**6}, NewerStateError),
        (lambda: {**state_after(make(), 2), "step": -1}, DamagedStateError),
        (lambda: state_after(make(batch_size=4), 2), StateMismatch),
    ],
    ids=["none", "list", "model", "newer", "damaged", "mismatch"],
)
def test_a_state_that_cannot_be_loaded_is_refused_and_changes_nothing(
    into: Callable[[], Any], state: Callable[[], Any], kind: type[StateError]
) -> None:
    target = into()
    before = target.state_dict()
    with pytest.raises(kind) as raised:
        target.load_state_dict(state())
    assert type(raised.value) is kind
    assert target.state_dict() == before
    assert seen(iter(target)) == seen(iter(make()))


def test_a_mismatch_has_the_loaders_value_and_the_states_value() -> None:
    with pytest.raises(StateMismatch) as raised:
        make(seed=8).load_state_dict(state_after(make(), 1))
    assert raised.value.differences == [Difference("seed", 8, 7)]
    assert "strict=False" in raised.value.advice


def test_strict_is_not_advised_where_it_would_not_help() -> None:
    state = state_after(make(), 1)
    with pytest.raises(StateMismatch) as raised:
        make(shuffle=False).load_state_dict(state)
    assert "strict" not in raised.value.advice


@pytest.mark.parametrize(
    "damage, field",
    [({"next_step": "x"}, "next_step"), ({"window": [[0, 0]]}, "window[0]"), ({"rng": 1}, "rng")],
)
def test_damage_has_the_path_of_the_field(damage: dict[str, Any], field: str) -> None:
    state = state_after(make(), 1)
    with pytest.raises(DamagedStateError) as raised:
        make().load_state_dict({**state, **damage})
    assert raised.value.field == field


def test_a_sampler_that_only_luck_could_replay_cannot_be_saved() -> None:
    iterator = drawn_in_between(AsItGoes())
    attempts = (iterator.state_dict, iterator.loader.state_dict, lambda: pickle.dumps(iterator))
    for attempt in attempts:
        with pytest.raises(CannotSaveError, match="seed=") as raised:
            attempt()
        assert "AsItGoes" in raised.value.what
    next(iterator)


def test_the_samplers_iterator_that_only_pickle_saves_is_no_part_of_a_state_dict() -> None:
    iterator = drawn_in_between(PlainAsItGoes())
    again = pickle.loads(pickle.dumps(iterator))
    with pytest.raises(CannotSaveError, match="Pickle the iterator"):
        again.state_dict()


def test_the_seed_of_a_batch_is_asked_for_while_there_is_one() -> None:
    with pytest.raises(UsageError, match="while a batch is being fetched"):
        current_seed()


class DrawsFrom(Sized):
    """Has something of the program's that cannot be copied."""

    def __init__(self) -> None:
        self.source = (n for n in range(N))

    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


@pytest.mark.parametrize(
    "loader, epoch, text",
    [
        (lambda: DataLoader(NoisyStream()), None, "map-style dataset"),
        (lambda: make(seeding="worker"), None, 'seeding="batch"'),
        (lambda: make(seed=None), 5, "seed="),
        (lambda: make(shuffle=None, sampler=DrawsFrom()), None, "DrawsFrom.*cannot be copied"),
        (lambda: make(shuffle=None, sampler=CountsEpochs()), 5, "CountsEpochs.*epoch at hand"),
        (lambda: drawn_in_between(AsItGoes()).loader, None, "how the epoch began.*AsItGoes"),
    ],
    ids=["stream", "worker", "another epoch", "no copy", "counts", "no replay"],
)
def test_a_batch_that_nobody_knows_cannot_be_had_and_the_error_says_why(
    loader: Callable[[], DataLoader[Any]], epoch: int | None, text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        loader().batch_at(0, epoch)


def test_an_event_that_has_no_meaning_is_a_bug_of_ours() -> None:
    schedule = Schedule(StreamPlan([StreamPosition()], None), Policy())
    with pytest.raises(InvalidTransition) as raised:
        schedule.handle(Arrived(3))
    assert (raised.value.step, raised.value.event) == (3, "Arrived")


def test_the_error_about_a_bug_of_ours_has_the_last_64_events_in_their_order() -> None:
    schedule = Schedule(StreamPlan([StreamPosition()], None), Policy())
    for most in range(100):
        schedule.handle(Budgeted(1, most=most))
    with pytest.raises(InvalidTransition) as raised:
        schedule.handle(Arrived(3))
    past = raised.value.past
    assert len(past) == 64 and past[-1] == repr(Arrived(3))
    assert list(past[:-1]) == [repr(Budgeted(1, most=most)) for most in range(37, 100)]
    assert str(raised.value).endswith(f"\n  {past[-1]}")


@pytest.mark.parametrize(
    "event",
    [
        Started({0: "STATE"}),
        Arrived(0, "STATE", notes=(b"STATE",)),
        Ended(0, "STATE"),
        LastState(0, "STATE"),
        Told(b"STATE"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_the_events_of_an_error_hold_no_states_and_no_feedback(event: Any) -> None:
    """Of 64 batches, these were 600 MB."""
    schedule = Schedule(StreamPlan([StreamPosition()], None), Policy())
    schedule.handle(Started())
    with suppress(Exception):
        schedule.handle(event)
    with pytest.raises(InvalidTransition) as raised:
        schedule.handle(Arrived(77))
    assert type(event).__name__ in raised.value.past[-2]
    assert "STATE" not in str(raised.value) and b"STATE" not in pickle.dumps(raised.value)
    referents = gc.get_referents(*schedule._past)
    assert "STATE" not in referents and b"STATE" not in referents


def test_a_death_that_loses_a_step_which_nobody_has_is_a_bug_and_changes_nothing() -> None:
    schedule = Schedule(StreamPlan([StreamPosition()], None), Policy())
    [sent] = schedule.handle(Started())
    with pytest.raises(InvalidTransition, match="step 77 is gone and cannot take Died"):
        schedule.handle(Died(0, [0, 77]))
    assert schedule.under_way == 1 and isinstance(sent, Send)


# --- warnings ------------------------------------------------------------------------------------


class Longer(IterableDataset[int]):
    """Gives more than its length says."""

    def __init__(self, says: int = 4) -> None:
        self.says = says

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))

    def __repr__(self) -> str:
        return "Longer()"


def resumed(loader: Callable[[], DataLoader[Any]], steps: int) -> Any:
    """An iterator that was resumed after so many batches."""
    again = loader()
    again.load_state_dict(state_after(loader(), steps))
    return iter(again)


def test_an_empty_pass_warns_at_the_line_that_asked_for_a_batch() -> None:
    for ask in (lambda it: next(it, None), lambda it: list(it), lambda it: list(zip(it, "ab"))):
        with pytest.warns(EmptyEpochWarning, match='at_epoch_end="next".*epoch 1') as caught:
            ask(resumed(make, 4))
        assert [(w.category, w.filename) for w in caught] == [(EmptyEpochWarning, __file__)]


def test_a_replay_warns_at_the_line_that_asked_for_a_batch() -> None:
    for ask in (lambda it: next(it, None), lambda it: list(it), lambda it: list(zip(it, "ab"))):
        with pytest.warns(ReplayWarning, match="2 batches of epoch 0") as caught:
            ask(resumed(lambda: DataLoader(NoisyStream(), 2), 2))
        assert [(w.category, w.filename) for w in caught] == [(ReplayWarning, __file__)]


def test_a_replay_warns_once() -> None:
    iterator = resumed(lambda: DataLoader(NoisyStream(), 2), 2)
    with pytest.warns(ReplayWarning):
        next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(iterator)) == 2


def test_a_state_that_set_epoch_drops_is_told_at_the_call() -> None:
    loader = make()
    loader.load_state_dict(state_after(make(), 2))
    with pytest.warns(LoaderWarning, match=r"set_epoch\(3\).*epoch 0") as caught:
        loader.set_epoch(3)
    assert [(w.category, w.filename) for w in caught] == [(LoaderWarning, __file__)]


def test_set_epoch_is_silent_where_nothing_is_lost() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for steps, epoch in ((2, 0), (0, 3), (4, 1)):
            loader = make()
            loader.load_state_dict(state_after(make(), steps))
            loader.set_epoch(epoch)
            assert loader.epoch == epoch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_that_is_longer_than_its_length_warns_with_each_surplus_batch(
    num_workers: int,
) -> None:
    loader = DataLoader(Longer(), 1, num_workers=num_workers)
    assert len(loader) == 4
    with iter(loader) as iterator:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            seen(iterator, 4)
        with pytest.warns(UserWarning, match=r"Longer\(\) was reported to be 4.*but 5") as caught:
            next(iterator)
    assert [w.category for w in caught] == [UserWarning]
    assert ("get_worker_info" in str(caught[0].message)) is bool(num_workers)


def test_nobody_is_told_of_a_length_that_nobody_has_asked_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(seen(iter(DataLoader(Longer(), 1)))) == 6


def test_a_warning_can_be_turned_into_an_error_and_the_pass_goes_on() -> None:
    def stream() -> DataLoader[Any]:
        return DataLoader(NoisyStream(), 2, seed=7)

    iterator = resumed(stream, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplayWarning)
        with pytest.raises(ReplayWarning):
            next(iterator)
        warnings.simplefilter("ignore", ReplayWarning)
        assert seen(iterator) == seen(iter(stream()))[2:]
