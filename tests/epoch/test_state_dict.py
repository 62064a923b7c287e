"""``state_dict`` and ``load_state_dict``: what each moment's state means, and which are refused."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from laws.cases import four_batches as make
from laws.cases import generator
from laws.observe import random_states, seed_everything, seen
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from zoo.datasets import Boom, CountedNoise, Gated, Noisy, NoisyStream
from zoo.samplers import DrawsAsItGoes, from_torch
from zoo.streams import Resumed, StatefulDataset

from picklable_loader import DataLoader
from picklable_loader.errors import (
    CannotSaveError,
    DamagedStateError,
    EmptyEpochWarning,
    ForeignStateError,
    LoaderWarning,
    StateError,
    StateMismatch,
)

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


def uninterrupted(count: int, **more: Any) -> list[list[Any]]:
    seed_everything(1)
    loader = make(**more)
    return [seen(iter(loader)) for _ in range(count)]


def state_after(step: int, num_workers: int = 0, epoch: int = 0, **more: Any) -> dict[str, Any]:
    """The loader's state after so many batches of an epoch, in a program of its own."""
    seed_everything(1)
    loader = make(num_workers, **more)
    for _ in range(epoch):
        seen(iter(loader))
    iterator = iter(loader)
    assert len(seen(iterator, step)) == step
    state = loader.state_dict()
    iterator.close()
    seed_everything(99)
    return state


# --- which moment a state is of ------------------------------------------------------------------


@WORKERS
def test_a_state_loaded_after_iter_was_called_takes_effect_on_the_next_iter(
    num_workers: int,
) -> None:
    state = state_after(2)
    loader = make(num_workers)
    iterator = iter(loader)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert seen(iter(loader)) == uninterrupted(1)[0][2:]
    iterator.close()


@WORKERS
def test_after_the_last_batch_and_before_its_end_the_pass_is_empty_and_warns(
    num_workers: int,
) -> None:
    loader = make(num_workers)
    loader.load_state_dict(state_after(4))
    iterator = iter(loader)
    with pytest.warns(EmptyEpochWarning, match='at_epoch_end="next"'):
        assert next(iterator, "nothing") == "nothing"
    assert next(iterator, "nothing") == "nothing"
    assert [seen(iter(loader)) for _ in range(2)] == uninterrupted(3)[1:]


def test_that_warning_stands_at_the_line_that_asked_for_a_batch() -> None:
    loader = make()
    loader.load_state_dict(state_after(4))
    with pytest.warns(EmptyEpochWarning) as caught:
        for _ in loader:
            pass
    assert caught[0].filename == __file__


@WORKERS
@pytest.mark.parametrize("of_loader", [False, True])
def test_at_epoch_end_next_goes_straight_to_the_next_epoch(
    of_loader: bool, num_workers: int
) -> None:
    loader = make(num_workers, at_epoch_end="next" if of_loader else "stop")
    loader.load_state_dict(state_after(4), at_epoch_end=None if of_loader else "next")
    iterator = iter(loader)
    assert (iterator.epoch, iterator.step, loader.epoch) == (1, 0, 1)
    assert [seen(iterator), seen(iter(loader))] == uninterrupted(3)[1:]


def test_what_load_state_dict_is_told_goes_before_what_the_loader_was_told() -> None:
    loader = make(at_epoch_end="next")
    loader.load_state_dict(state_after(4), at_epoch_end="stop")
    with pytest.warns(EmptyEpochWarning):
        assert seen(iter(loader)) == []


def test_at_epoch_end_next_does_not_matter_in_mid_epoch() -> None:
    loader = make(at_epoch_end="next")
    loader.load_state_dict(state_after(3))
    assert [seen(iter(loader)) for _ in range(2)] == [
        uninterrupted(1)[0][3:],
        uninterrupted(2)[1],
    ]


@pytest.mark.parametrize("at_epoch_end", ["stop", "next"])
def test_a_state_of_the_end_of_an_empty_dataset_ends_there(at_epoch_end: Any) -> None:
    loader = DataLoader(Noisy(0), seed=1, at_epoch_end=at_epoch_end)
    loader.load_state_dict(loader.state_dict())
    assert [seen(iter(loader)) for _ in range(2)] == [[], []]


def finished_before_another(loader: DataLoader[Any]) -> tuple[Any, dict[str, Any]]:
    """An iterator at its end, before another that has begun; and the state that it had then."""
    iterator = iter(loader)
    seen(iterator)
    state = iterator.state_dict()
    next(iter(loader))
    return iterator, state


@pytest.mark.parametrize(
    "loader",
    [
        lambda: make(seed=None),
        lambda: make(seed=None, generator=generator()),
        lambda: DataLoader(NoisyStream(), 3, seed=1),
    ],
)
@pytest.mark.parametrize("save", [DataLoader.state_dict, pickle.dumps, copy.copy, copy.deepcopy])
def test_a_finished_iterator_is_not_saved_once_another_has_begun(save: Any, loader: Any) -> None:
    """The generators and the dataset are now those of a later epoch."""
    iterator, _ = finished_before_another(loader())
    with pytest.raises(CannotSaveError, match="epoch 0 is over.*newest iterator"):
        iterator.state_dict() if save is DataLoader.state_dict else save(iterator)


@pytest.mark.parametrize("chosen", [None, 5])
@pytest.mark.parametrize("unpickled", [False, True])
def test_with_a_seed_it_has_as_each_epoch_begins_with_its_own(
    unpickled: bool, chosen: int | None
) -> None:
    iterator = iter(make())
    seen(iterator)
    if unpickled:
        iterator = pickled(iterator)
    if chosen is not None:
        iterator.loader.set_epoch(chosen)
    state = iterator.state_dict()
    next(iter(iterator.loader))
    assert iterator.state_dict() == state


def pickled(iterator: Any) -> Any:
    return pickle.loads(pickle.dumps(iterator))


@pytest.mark.parametrize("chosen", [None, 5])
@pytest.mark.parametrize("copied", [pickled, copy.copy, copy.deepcopy, lambda it: it.behind(0)])
def test_with_a_seed_its_copy_goes_on_with_the_epoch_that_followed_it(
    copied: Any, chosen: int | None
) -> None:
    """The copy's loader went on after the other pass, which is not in the pickle."""
    loader = make()
    iterator = iter(loader)
    seen(iterator)
    if chosen is not None:
        loader.set_epoch(chosen)
    expected = seen(iter(pickled(loader)))
    other = iter(loader)
    next(other)
    again = copied(iterator)
    assert again.finished and list(again) == []
    assert (again.loader.epoch, seen(iter(again.loader))) == (chosen or 1, expected)


@pytest.mark.parametrize("turn", [1, -1])
def test_copied_with_the_pass_that_followed_it_both_go_on_as_they_would(turn: int) -> None:
    iterator, _ = finished_before_another(make())
    loader = iterator.loader
    other = iter(loader)
    next(other)
    copies = pickled([iterator, other][::turn])[::turn]
    assert copies[0].finished and copies[0].loader is copies[1].loader
    assert seen(copies[1]) == seen(other)
    assert copies[0].loader.epoch == loader.epoch
    assert seen(iter(copies[0].loader)) == seen(iter(loader))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_state_of_an_unpickled_finished_iterator_moves_nothing(workers: int) -> None:
    seed_everything(1)
    iterator = iter(make(workers, seed=None, persistent_workers=bool(workers)))
    seen(iterator)
    copied = pickle.loads(pickle.dumps(iterator))
    states, expected = random_states(), iterator.state_dict()
    assert copied.state_dict() == copied.loader.state_dict() == expected
    assert copied._position.run is None and random_states() == states
    iterator.close()


@WORKERS
def test_after_break_the_loader_knows_its_state_though_the_iterator_is_gone(
    num_workers: int,
) -> None:
    loader = make(num_workers)
    for step, _ in enumerate(loader):
        if step == 1:
            break
    other = make()
    other.load_state_dict(loader.state_dict())
    assert seen(iter(other)) == uninterrupted(1)[0][2:]


def test_after_break_and_without_a_load_the_next_iter_is_a_fresh_epoch() -> None:
    loader = make()
    next(iter(loader))
    loader.state_dict()
    assert seen(iter(loader)) == uninterrupted(2)[1]


@WORKERS
def test_two_live_iterators_each_have_a_state_and_the_loader_reports_the_newest(
    num_workers: int,
) -> None:
    loader = make(num_workers)
    first, second = iter(loader), iter(loader)
    seen(first, 3)
    seen(second, 1)
    assert (first.state_dict()["epoch"], first.state_dict()["step"]) == (0, 3)
    assert (second.state_dict()["epoch"], second.state_dict()["step"]) == (1, 1)
    assert loader.state_dict() == second.state_dict()
    seen(first, 1)
    assert loader.state_dict() == second.state_dict()
    epochs = uninterrupted(2)
    for iterator, rest in ((first, epochs[0][4:]), (second, epochs[1][1:])):
        other = make(at_epoch_end="stop")
        other.load_state_dict(iterator.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmptyEpochWarning)
            assert seen(iter(other)) == rest
    first.close()
    second.close()


@pytest.mark.parametrize("order", [{"seed": 7}, {"seed": None}, {"generator": generator}])
def test_the_state_of_a_fresh_loader_is_what_the_next_iter_delivers(order: Any) -> None:
    def fresh(num_workers: int = 0) -> DataLoader[Any]:
        if "generator" in order:
            return make(num_workers, seed=None, generator=generator())
        return make(num_workers, **order)

    seed_everything(3)
    loader = fresh(num_workers=2)
    before = random_states()
    state = loader.state_dict()
    assert not multiprocessing.active_children()
    assert random_states() == before
    expected = [seen(iter(loader)) for _ in range(2)]
    seed_everything(99)
    other = fresh()
    other.load_state_dict(state)
    assert [seen(iter(other)) for _ in range(2)] == expected


def test_reading_the_state_of_a_fresh_loader_does_not_change_what_comes() -> None:
    expected = uninterrupted(2, seed=None)
    seed_everything(1)
    loader = make(seed=None)
    loader.state_dict()
    first = seen(iter(loader))
    loader.state_dict()
    assert [first, seen(iter(loader))] == expected


@WORKERS
def test_what_was_loaded_is_what_is_reported_until_the_first_next(num_workers: int) -> None:
    for step in range(5):
        for epoch in range(2):
            state = state_after(step, num_workers, epoch, seed=None)
            loader = make(num_workers, seed=None)
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            iterator = iter(loader)
            assert loader.state_dict() == state
            assert iterator.state_dict() == state
            iterator.close()
            assert loader.state_dict() == state


def test_what_was_loaded_is_reported_by_every_kind_of_sampler() -> None:
    samplers: list[Any] = [
        lambda: RandomSampler(range(10), replacement=True),
        lambda: SubsetRandomSampler([1, 3, 5, 7, 8, 9]),
        lambda: WeightedRandomSampler([1.0] * 10, 10),
        lambda: DrawsAsItGoes(from_torch),
        lambda: [3, 1, 4, 1, 5, 9],
    ]
    for sampler in samplers:
        state = state_after(1, shuffle=None, sampler=sampler(), seed=None)
        loader = make(shuffle=None, sampler=sampler(), seed=None)
        loader.load_state_dict(state)
        iterator = iter(loader)
        assert loader.state_dict() == iterator.state_dict() == state


@WORKERS
def test_a_state_handed_out_never_changes(num_workers: int) -> None:
    iterator = iter(make(num_workers, shuffle=None, sampler=DrawsAsItGoes(from_torch)))
    states = []
    while True:
        states.append((iterator.state_dict(), copy.deepcopy(iterator.state_dict())))
        if next(iterator, None) is None:
            break
    assert len(states) == 5
    assert all(handed_out == then for handed_out, then in states)


def test_what_is_done_to_a_state_does_not_reach_the_loader() -> None:
    state = state_after(1, shuffle=None, sampler=DrawsAsItGoes(from_torch))
    loader = make(shuffle=None, sampler=DrawsAsItGoes(from_torch))
    loader.load_state_dict(state)
    expected = copy.deepcopy(state)
    for found in (state, loader.state_dict()):
        found["order"].clear()
        found["rng"].clear()
        found["fits"].clear()
    assert loader.state_dict() == expected


def test_a_state_can_be_loaded_any_number_of_times() -> None:
    state = state_after(2)
    kept = copy.deepcopy(state)
    loader = make()
    for _ in range(3):
        loader.load_state_dict(state)
        assert seen(iter(loader)) == uninterrupted(1)[0][2:]
    assert state == kept


def test_the_empty_state_means_the_beginning() -> None:
    loader = make()
    seen(iter(loader))
    seen(iter(loader), 2)
    loader.load_state_dict({})
    assert loader.epoch == 0
    assert [seen(iter(loader)) for _ in range(2)] == uninterrupted(2)


#: by name, a dataset, and the options of its loader
USED: dict[str, Any] = {
    "noise": (lambda: Noisy(12), {}),
    "generator": (lambda: Noisy(12), {"shuffle": True, "generator": 5}),
    "seed": (lambda: Noisy(12), {"seed": 5}),
    "torch's seeding": (lambda: Noisy(12), {"seeding": "worker"}),
    "state": (lambda: CountedNoise(12), {"seed": 5}),
    "stream with a state": (StatefulDataset, {"seed": 5}),
    "stream with a flag": (Resumed, {"seed": 5}),
}


@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.parametrize("epochs", [0, 1, 2])
@pytest.mark.parametrize("workers, persistent", [(0, False), (1, False), (1, True)])
@pytest.mark.parametrize("kind", USED)
def test_a_used_loader_goes_back_to_before_its_first_epoch(
    kind: str, workers: int, persistent: bool, epochs: int, left: int
) -> None:
    """Living workers went on with their seeds; a dataset with a state stayed as it was."""
    dataset, options = USED[kind]
    if "generator" in options:
        options = {**options, "generator": generator(options["generator"])}
    living = {"num_workers": workers, "persistent_workers": persistent}
    loader = DataLoader(dataset(), 3, **options, **living)
    seed_everything(1)
    state = loader.state_dict(save_rng=True)
    whole = [seen(iter(loader)) for _ in range(2)]
    for _ in range(epochs):
        seen(iter(loader))
    iterator = iter(loader)
    seen(iterator, left)
    del iterator
    loader.load_state_dict(state, restore_rng=True)
    assert [seen(iter(loader)) for _ in range(2)] == whole


class Large(CountedNoise):
    def state_dict(self) -> Any:
        return {**super().state_dict(), "buffer": torch.zeros(400, 1000)}


class Unready(CountedNoise):
    """It has no state before its first sample."""

    def state_dict(self) -> Any:
        if not self.reads:
            raise ValueError("nothing was read")
        return super().state_dict()


@pytest.mark.parametrize("kind, warned", [(CountedNoise, False), (Large, True), (Unready, True)])
def test_a_dataset_that_cannot_be_put_back_to_before_its_first_epoch_is_warned_of(
    kind: Any, warned: bool
) -> None:
    loader = DataLoader(kind(12), 3, seed=5, snapshot_every_n_steps=10)
    loader.load_state_dict({})
    seen(iter(loader))
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        loader.load_state_dict({})
    assert [each for each in given if "earlier passes" in str(each.message)] == given
    assert len(given) == warned


@pytest.mark.parametrize("workers, warned", [(0, True), (1, False)])
@pytest.mark.parametrize("attached", [False, True])
def test_a_dataset_that_a_pickle_brings_as_epochs_have_left_it_is_warned_of(
    attached: bool, workers: int, warned: bool
) -> None:
    """Nobody knows how it was before the first epoch, which the loaded state is of."""
    loader = DataLoader(
        CountedNoise(12), 3, seed=5, num_workers=workers, pickle_dataset=not attached
    )
    state = loader.state_dict()
    whole = seen(iter(loader))
    again = pickle.loads(pickle.dumps(loader))
    if attached:
        again.attach(CountedNoise(12))
    with pytest.warns(LoaderWarning, match="earlier passes") if warned else nullcontext():
        again.load_state_dict(state)
    assert warned or seen(iter(again)) == whole


@pytest.mark.parametrize("kind", ["state", "stream with a state", "stream with a flag"])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_are_set_later_find_the_dataset_of_before_the_first_epoch(
    workers: int, kind: str
) -> None:
    """They copy the program's own dataset, which the epochs without workers had changed."""
    dataset, options = USED[kind]
    fresh = DataLoader(dataset(), 3, num_workers=workers, **options)
    whole = [seen(iter(fresh)) for _ in range(2)]
    loader = DataLoader(dataset(), 3, **options)
    state = loader.state_dict()
    seen(iter(loader), 2)
    loader.num_workers, loader.prefetch_factor = workers, 2
    loader.load_state_dict(state)
    assert [seen(iter(loader)) for _ in range(2)] == whole


@pytest.mark.parametrize("kind", ["state", "stream with a state", "stream with a flag"])
@pytest.mark.parametrize("pickled", ["no", "iterator", "loader", "loader, in mid-epoch"])
def test_a_dataset_with_a_state_is_as_the_epoch_has_left_it_that_set_epoch_ends(
    pickled: str, kind: str
) -> None:
    """A state from between `set_epoch` and ``iter`` did not have it, if no worker read it.

    That of an unpickled loader, whose epoch ends without `set_epoch`, did not either.
    """
    dataset, options = USED[kind]
    loader = unpickled = DataLoader(dataset(), 3, **options)
    iterator = iter(loader)
    next(iterator)
    if pickled == "iterator":
        unpickled = pickle.loads(pickle.dumps(iterator)).loader  # nobody has the iterator
    del iterator
    if pickled == "loader, in mid-epoch":
        unpickled = pickle.loads(pickle.dumps(loader))
    else:
        loader.set_epoch(1)
    if pickled == "iterator":
        unpickled.set_epoch(1)
    elif pickled == "loader":
        unpickled = pickle.loads(pickle.dumps(loader))
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        state = unpickled.state_dict()
    # Nobody knows whether its iter() goes on there without a load_state_dict, too.
    warned = any("was left in its middle" in str(each.message) for each in given)
    assert warned == (kind != "state")
    again = DataLoader(dataset(), 3, **options)
    again.load_state_dict(state)
    for _ in range(2):
        assert seen(iter(again)) == seen(iter(loader))


@WORKERS
@pytest.mark.parametrize("persistent", [False, True])
def test_a_used_loader_abandons_its_iterator_resumes_and_then_begins_a_fresh_epoch(
    num_workers: int, persistent: bool
) -> None:
    loader = make(num_workers, persistent_workers=persistent and num_workers > 0)
    seen(iter(loader))
    used = iter(loader)
    seen(used, 3)
    loader.load_state_dict(state_after(1))
    assert [seen(iter(loader)) for _ in range(2)] == [
        uninterrupted(1)[0][1:],
        uninterrupted(2)[1],
    ]


def test_the_abandoned_iterator_does_not_change_what_the_loader_reports() -> None:
    state = state_after(1)
    loader = make()
    used = iter(loader)
    next(used)
    loader.load_state_dict(state)
    with pytest.warns(LoaderWarning, match="does not go on from that state"):
        next(used)
    assert loader.state_dict() == state
    del used
    assert loader.state_dict() == state


@WORKERS
def test_an_iterator_in_mid_epoch_warns_once_of_a_state_that_its_loader_was_given(
    num_workers: int,
) -> None:
    whole, loader = uninterrupted(1)[0], make(num_workers)
    state = state_after(1)
    seed_everything(1)
    used = iter(loader)
    assert seen(used, 2) == whole[:2]
    loader.load_state_dict(state)
    with pytest.raises(LoaderWarning, match=r"Load before iter\(loader\); leave this loop"):
        next(used)  # the filters of these tests make an error of it, and nothing is lost
    assert seen(used) == whole[2:]
    assert seen(iter(loader)) == whole[1:]


@WORKERS
@pytest.mark.parametrize("before", ["in mid-epoch", "finished", "closed"])
def test_an_iterator_takes_a_state_itself(before: str, num_workers: int) -> None:
    iterator = iter(make(num_workers))
    seen(iterator, None if before == "finished" else 3)
    if before == "closed":
        iterator.close()
    iterator.load_state_dict(state_after(1))
    assert iterator.step == 1
    assert seen(iterator) == uninterrupted(1)[0][1:]


@pytest.mark.parametrize("persistent", [False, True])
def test_iter_goes_on_from_the_state_that_the_newest_iterator_has_taken(persistent: bool) -> None:
    loader = make(1, persistent_workers=persistent)
    iterator = iter(loader)
    seen(iterator, 3)
    iterator.load_state_dict(state_after(1, epoch=2))
    assert (loader.epoch, loader.state_dict()) == (2, iterator.state_dict())
    copied = pickle.loads(pickle.dumps(iterator))
    for each in (copied.loader, loader):
        assert seen(iter(each)) == uninterrupted(3)[2][1:]
        assert iter(each).epoch == 3
    iterator.close()


# --- workers and errors --------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_state_asked_for_at_once_while_workers_lag_behind_is_right(num_workers: int) -> None:
    Gated.gate.clear()
    loader = DataLoader(Gated(9, range(3, 9)), 3, num_workers=num_workers)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2]
    state = loader.state_dict()
    Gated.gate.set()
    other = DataLoader(Gated(9, range(3, 9)), 3)
    other.load_state_dict(state)
    assert seen(iter(other)) == [[3, 4, 5], [6, 7, 8]]
    assert seen(iterator) == [[3, 4, 5], [6, 7, 8]]


class TroubledSampler(DrawsAsItGoes):
    def __iter__(self) -> Iterator[int]:
        for place, index in enumerate(super().__iter__()):
            if place == 7:
                raise Boom("no more")
            yield index


@WORKERS
def test_an_exception_in_the_sampler_leaves_a_usable_state(num_workers: int) -> None:
    def troubled() -> DataLoader[Any]:
        sampler = TroubledSampler(from_torch)
        return make(num_workers, shuffle=None, sampler=sampler)

    def all_of(iterator: Any) -> list[Any]:
        batches = []
        with pytest.raises(Boom):
            while True:
                batches.append(next(iterator).tolist())
        return batches

    whole = all_of(iter(troubled()))
    assert len(whole) == 2
    for step in range(3):
        iterator = iter(troubled())
        seen(iterator, step)
        other = troubled()
        other.load_state_dict(iterator.state_dict())
        assert all_of(iter(other)) == whole[step:]
        iterator.close()


# --- forms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("size", [20, 10**6])
def test_a_state_with_a_seed_is_at_most_1_kb_anywhere(size: int, num_workers: int) -> None:
    for sampler in (
        RandomSampler(range(size)),
        RandomSampler(range(size), replacement=True),
        WeightedRandomSampler(torch.ones(size), size),
    ):
        loader = DataLoader(range(size), 2, sampler=sampler, seed=2**40, num_workers=num_workers)
        iterator = iter(loader)
        for skipped in (0, 1, size // 4):
            iterator.skip(skipped)
            next(iterator)
            assert len(pickle.dumps(iterator.state_dict())) <= 1024
        iterator.close()


@pytest.mark.parametrize("given, most", [(None, 8), (generator(), 11)])
def test_a_state_with_states_of_generators_has_3_and_a_half_kb_for_each(
    given: Any, most: int
) -> None:
    for sampler in (
        RandomSampler(range(100), num_samples=1000, generator=given),
        WeightedRandomSampler([1.0] * 100, 100, generator=given),
    ):
        iterator = iter(DataLoader(range(100), 2, sampler=sampler))
        for _ in range(30):
            next(iterator)
            assert len(pickle.dumps(iterator.state_dict())) <= most * 1024


def test_a_resumed_loader_moves_torchs_generator_as_torch_would() -> None:
    """A model's dropout after the resume is not shifted."""
    loader = make(seed=None)
    loader.load_state_dict(state_after(2, seed=None))
    seen(iter(loader))
    seed_everything(5)
    seen(iter(loader))
    moved = torch.get_rng_state()
    seed_everything(5)
    torch.empty((), dtype=torch.int64).random_()  # the base seed
    torch.empty((), dtype=torch.int64).random_()  # RandomSampler's
    assert torch.equal(moved, torch.get_rng_state())


# --- states that do not fit ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, 10, 30])
@pytest.mark.parametrize(
    "sampler",
    [None, RandomSampler(range(10), num_samples=23), WeightedRandomSampler([1.0] * 10, 9)],
)
def test_not_strict_another_batch_size_goes_on_at_the_same_sample(sampler: Any, size: int) -> None:
    order = {"sampler": sampler, "shuffle": sampler is None, "seeding": "sample"}
    samples = [row for batch in uninterrupted(1, **order)[0] for row in batch]
    loader = make(**order, batch_size=size)
    loader.load_state_dict(state_after(2, **order), strict=False)
    rest = seen(iter(loader))
    assert [row for batch in rest for row in batch] == samples[6:]
    assert [len(batch) for batch in rest[:-1]] == [size] * (len(rest) - 1)


def test_not_strict_epochs_after_that_are_full() -> None:
    loader = make(batch_size=5)
    loader.load_state_dict(state_after(2), strict=False)
    assert [len(seen(iter(loader))) for _ in range(3)] == [1, 2, 2]


def test_not_strict_another_seed_finishes_the_epoch_in_the_saved_order() -> None:
    loader = make(seed=8)
    loader.load_state_dict(state_after(2), strict=False)
    indices = [[row[0] for row in batch] for batch in seen(iter(loader))]
    assert indices == [[row[0] for row in batch] for batch in uninterrupted(1)[0][2:]]


def test_not_strict_a_custom_batch_sampler_still_does_not_fit_other_batches() -> None:
    loader = DataLoader(Noisy(), batch_sampler=[[1], [2, 3]])
    with pytest.raises(StateMismatch):
        loader.load_state_dict(state_after(1), strict=False)


@pytest.mark.parametrize(
    ("name", "expected", "found", "other"),
    [
        ("batch_size", 4, 3, {"batch_size": 4}),
        ("drop_last", True, False, {"drop_last": True}),
        ("seed", 8, 7, {"seed": 8}),
        ("seed", None, 7, {"seed": None}),
        ("seeding", "sample", "batch", {"seeding": "sample"}),
        ("sampler", "SequentialSampler", "RandomSampler", {"shuffle": False}),
    ],
)
def test_a_mismatch_says_what_was_expected_and_what_was_found(
    name: str, expected: Any, found: Any, other: dict[str, Any]
) -> None:
    loader = make(**other)
    with pytest.raises(StateMismatch) as raised:
        loader.load_state_dict(state_after(2))
    assert [tuple(entry) for entry in raised.value.differences] == [(name, expected, found)]
    line = next(line for line in str(raised.value).splitlines() if line.strip().startswith(name))
    assert repr(expected) in line and repr(found) in line


def test_every_mismatch_is_listed() -> None:
    loader = DataLoader(Noisy(11), batch_size=4, drop_last=True, seed=1)
    with pytest.raises(StateMismatch) as raised:
        loader.load_state_dict(state_after(2))
    assert {entry.name for entry in raised.value.differences} == {
        "dataset_length",
        "batch_size",
        "drop_last",
        "seed",
        "sampler",
        "sampler_length",
    }


def test_another_dataset_length_is_refused_even_if_not_strict() -> None:
    loader = DataLoader(Noisy(11), batch_size=3, shuffle=True, seed=7)
    with pytest.raises(StateMismatch, match=r"dataset_length.*11.*10"):
        loader.load_state_dict(state_after(2), strict=False)


def _damaged() -> dict[str, dict[str, Any]]:
    """Fields of a state whose form is right, and whose content is not.

    All other values are in `saving/test_odd_states.py`, missing fields in `core/test_snapshot.py`.
    """
    text = state_after(2, seed=None)["rng"]["torch"]
    broken = ("", text[:-9], text[:100] + "!" + text[101:], text.upper(), 5, None)
    return {
        **{f"rng {number}": {"rng": {"torch": each}} for number, each in enumerate(broken)},
        "unknown rng": {"rng": {"mersenne": text}},
        "order": {"order": {"seed": "1"}},
        "empty order": {"order": {}},
        "negative": {"step": -1},
        "huge": {"step": 10**30},
        "window": {"window": [[0, 0]]},
        "window of later steps": {"window": [[9, 0, [1]]]},
        "true is no number": {"step": True},
    }


@pytest.mark.parametrize("fields", [pytest.param(v, id=k) for k, v in _damaged().items()])
def test_a_damaged_state_is_refused_and_the_loader_is_as_it_was(fields: dict[str, Any]) -> None:
    state = {**state_after(2, seed=None), **fields}
    del state["checksum"]
    expected = uninterrupted(2, seed=None)
    seed_everything(1)
    loader = make(seed=None)
    iterator = iter(loader)
    first = seen(iterator, 1)
    before = loader.state_dict()
    with pytest.raises(DamagedStateError) as raised:
        loader.load_state_dict(state)
    assert "damaged" in str(raised.value)
    assert loader.state_dict() == before
    assert [first + seen(iterator), seen(iter(loader))] == expected


def test_a_refused_state_leaves_an_earlier_loaded_one_in_force() -> None:
    good = state_after(2)
    loader = make()
    loader.load_state_dict(good)
    for bad in ({**good, "step": -1}, {"who": "knows"}, {**good, "version": 99}):
        with pytest.raises(StateError):
            loader.load_state_dict(bad)
        with pytest.raises(StateError):
            iter(make()).load_state_dict(bad)
    assert loader.state_dict() == good
    assert seen(iter(loader)) == uninterrupted(1)[0][2:]


@pytest.mark.parametrize(
    "state", [{"epoch": 3}, {"model": torch.ones(2)}, [], None, "text", 5, {1: 2}]
)
def test_a_foreign_state_is_refused(state: Any) -> None:
    with pytest.raises(ForeignStateError, match="state_dict"):
        make().load_state_dict(state)


def test_at_epoch_end_takes_two_words_only() -> None:
    with pytest.raises(ValueError, match="at_epoch_end"):
        make().load_state_dict({}, at_epoch_end="maybe")


def test_the_loaders_epoch_is_that_of_its_state() -> None:
    loader = make()
    epochs = [loader.epoch]
    for _ in range(2):
        for _ in loader:
            assert loader.epoch == loader.state_dict()["epoch"]
            epochs.append(loader.epoch)
        assert loader.epoch == loader.state_dict()["epoch"]
        epochs.append(loader.epoch)
    loader.set_epoch(7)
    assert loader.epoch == loader.state_dict()["epoch"] == 7
    assert epochs == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2]
