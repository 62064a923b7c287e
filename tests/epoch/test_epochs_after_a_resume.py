"""Epochs after a resume: their streams, and what set_epoch tells datasets that live on."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from laws.observe import lists, seen
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper
from zoo.datasets import CountedNoise, Epochal, N, Noisy
from zoo.samplers import DrawsAsItGoes, from_torch
from zoo.streams import SavedWalk, Walk

from picklable_loader import DataLoader, Interleave, ShuffleBuffer
from picklable_loader.errors import LoaderWarning


class Told(IterableDataset[int]):
    """A generator, whose samples say which epoch it was told."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, 12, step):
            yield index + 100 * self.epoch


class Counted(Told):
    """A generator; the dataset has a state, which counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = self.at = 0

    def __iter__(self) -> Iterator[int]:
        share = list(super().__iter__())
        while self.at < len(share):
            self.at += 1
            yield share[self.at - 1] + 1000 * self.passes
        self.passes, self.at = self.passes + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes, self.at = state["passes"], state["at"]


def make(dataset: Any, num_workers: int, **more: Any) -> DataLoader[Any]:
    more.setdefault("persistent_workers", num_workers > 0)
    return DataLoader(dataset, batch_size=2, num_workers=num_workers, collate_fn=list, **more)


def moved(iterator: Any, num_workers: int) -> Any:
    """A pickled copy that goes on under so many workers."""
    copied = pickle.loads(pickle.dumps(iterator))
    copied.loader.num_workers = num_workers
    copied.loader.prefetch_factor = 2 if num_workers else None
    return copied


@pytest.mark.parametrize("now", [0, 1, 3])
@pytest.mark.parametrize("by_pickle", [False, True])
def test_later_epochs_have_the_streams_of_their_loader(by_pickle: bool, now: int) -> None:
    """Workers that live on have those of the state: samples were lost, or came twice."""
    iterator = iter(make(Told(), 2, seed=1))
    next(iterator)
    if by_pickle:
        copied = moved(iterator, now)
        loader = copied.loader
    else:
        loader = make(Told(), now, seed=1)
        loader.load_state_dict(iterator.state_dict())
        copied = iter(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderWarning)  # that it is a replay
        assert list(copied) == list(iterator)
    for _ in range(2):
        assert list(loader) == list(make(Told(), now, seed=1))


def test_what_streams_keep_over_epochs_is_not_lost_without_a_word() -> None:
    state = make(Counted(), 2, seed=1).state_dict()
    loader = make(Counted(), 2, seed=1)
    loader.load_state_dict(state)
    iterator = iter(loader)
    list(iterator)
    copied = moved(iterator, 3)
    assert list(copied) == []
    with pytest.warns(LoaderWarning, match="2 streams, and is now read through 3"):
        assert sorted(sum(copied.loader, [])) == list(range(12))


@pytest.mark.parametrize("dataset", [Told, Epochal, Counted])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("by_pickle", [False, True])
@pytest.mark.parametrize("taken", [0, 2, 99])
@pytest.mark.parametrize("epochs", [(0, 1, 2, 3), (3, 1, 4, 2)], ids=str)
def test_a_dataset_knows_the_epoch_that_it_was_told_last(
    dataset: Any, num_workers: int, by_pickle: bool, taken: int, epochs: Any
) -> None:
    """Saved in a later epoch, or behind it; the loop calls set_epoch for the next one."""
    loader = make(dataset(), num_workers, seed=1)
    for epoch in epochs[:2]:
        loader.set_epoch(epoch)
        list(loader)
    loader.set_epoch(epochs[2])
    iterator = iter(loader)
    for _ in zip(range(taken), iterator):
        pass
    over = iterator.finished
    if by_pickle:
        copied: Any = pickle.loads(pickle.dumps(iterator))
        other = copied.loader
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no attribute has changed but by set_epoch
            state = loader.state_dict()
        other = make(dataset(), num_workers, seed=1)
        other.load_state_dict(state)
        if not over:
            other.set_epoch(epochs[2])
            copied = iter(other)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderWarning)  # that it is a replay
        assert over or list(copied) == list(iterator)
    for each in (loader, other):
        each.set_epoch(epochs[3])
    assert list(other) == list(loader)


class Saved(Told):
    """A generator; the dataset's state holds its epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 6:
            self.at += 1
            yield self.at + 100 * self.epoch
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


class SavedReads(Epochal):
    """Map-style; the same."""

    def __init__(self) -> None:
        super().__init__(6)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


class ByPickle(Told):
    """Its iterator asks for the epoch at each sample, and can be pickled."""

    walk = Walk

    def __iter__(self) -> Iterator[int]:
        return self.walk(range(6), self.sample)

    def sample(self, index: int) -> int:
        return index + 100 * self.epoch


class ByItsIterator(ByPickle):
    """The same; the iterator has a state."""

    walk = SavedWalk


EPOCHS_IN_STATES: dict[str, Any] = {
    "its state": Saved,
    "its state, map-style": SavedReads,
    "interleaved": lambda: Interleave([Saved(), Saved()]),
    "shuffled": lambda: ShuffleBuffer(Saved(), size=2),
    "a pickle": ByPickle,
    "its iterator's state": ByItsIterator,
}
OF_DOORS = pytest.mark.parametrize("by_pickle", [False, True], ids=["state", "pickle"])


@pytest.mark.parametrize("kind", EPOCHS_IN_STATES)
@pytest.mark.parametrize("num_workers", [0, 2])
@OF_DOORS
@pytest.mark.parametrize("chosen", [0, 3])
def test_the_epoch_that_is_set_after_a_save_is_not_undone_by_what_was_saved(
    kind: str, num_workers: int, by_pickle: bool, chosen: int
) -> None:
    """Saved at the end of an epoch; the loop calls set_epoch at the top of the next."""
    loader = make(EPOCHS_IN_STATES[kind](), num_workers, seed=1)
    loader.set_epoch(1)
    iterator = iter(loader)
    list(iterator)
    if by_pickle:
        other = pickle.loads(pickle.dumps(iterator)).loader
    else:
        other = make(EPOCHS_IN_STATES[kind](), num_workers, seed=1)
        other.load_state_dict(loader.state_dict())
    for each in (loader, other):
        each.set_epoch(chosen)
    again = iter(other)  # and what is saved before the first batch has that epoch, too
    assert list(pickle.loads(pickle.dumps(again))) == list(again) == list(loader)


def in_epoch_1(loader: Any, taken: int) -> Any:
    """The iterator of epoch 1, after so many batches; both epochs were set."""
    loader.set_epoch(0)
    list(loader)
    loader.set_epoch(1)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    return iterator


@pytest.mark.parametrize("kind", [ByPickle, ByItsIterator, Saved])
@pytest.mark.parametrize("taken", [0, 1])
def test_a_stream_that_has_given_nothing_yet_has_the_epoch_that_was_set(
    kind: Any, taken: int
) -> None:
    loader = make(kind(), 2, seed=1)
    iterator = in_epoch_1(loader, taken)
    assert list(pickle.loads(pickle.dumps(iterator))) == list(iterator)


class CountsUp:
    """Counts its epochs itself, from the one that was set."""

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1  # type: ignore[attr-defined]
        return super().__iter__()  # type: ignore[misc, no-any-return]


class GeneratedCountingUp(CountsUp, Told):
    pass


class ByPickleCountingUp(CountsUp, ByPickle):
    pass


class ByItsIteratorCountingUp(CountsUp, ByItsIterator):
    pass


class SavedCountingUp(Saved):
    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.epoch += 1


#: a state_dict() of the other kinds warns that it lacks the count
COUNTING_UP = [GeneratedCountingUp, ByPickleCountingUp, ByItsIteratorCountingUp, SavedCountingUp]


@pytest.mark.parametrize(
    "kind, by_pickle", [*((kind, True) for kind in COUNTING_UP), (SavedCountingUp, False)]
)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 1, 99])
def test_the_epoch_that_was_set_once_is_not_set_again_by_a_resume(
    kind: Any, num_workers: int, by_pickle: bool, taken: int
) -> None:
    loader = make(kind(), num_workers, seed=1)
    loader.set_epoch(4)
    list(loader)
    iterator = iter(loader)
    for _ in zip(range(taken), iterator):
        pass
    if by_pickle:
        copied: Any = pickle.loads(pickle.dumps(iterator))
        other = copied.loader
    else:
        other = make(kind(), num_workers, seed=1)
        other.load_state_dict(iterator.state_dict())
        copied = [] if iterator.finished else iter(other)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderWarning)  # that it is a replay
        assert [list(each) for each in (copied, other, other)] == [
            list(each) for each in (iterator, loader, loader)
        ]


@pytest.mark.parametrize("taken", [0, 2])
def test_datapipes_in_living_workers_are_seeded_for_the_epoch_at_hand(taken: int) -> None:
    loader = make(IterableWrapper(range(12)).shuffle().sharding_filter(), 2, seed=1)
    list(loader)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderWarning)  # that it is a replay
        assert list(pickle.loads(pickle.dumps(iterator))) == list(iterator)


@pytest.mark.parametrize("every", [0, 1, 2])
def test_torchs_seeding_draws_again_what_is_fetched_again(every: int) -> None:
    """Of map-style data with a state, before its first state as well."""
    for taken in range(5):
        more: Any = {"seeding": "worker", "snapshot_every_n_steps": every, "seed": 1}
        iterator = iter(make(CountedNoise(12), 2, **more))
        for _ in range(taken):
            next(iterator)
        assert seen(pickle.loads(pickle.dumps(iterator))) == seen(iterator)


class NoisyByPickle(ByPickle):
    """Each sample has a random number as well."""

    def sample(self, index: int) -> Any:
        return super().sample(index), torch.rand(())


class NoisyByItsIterator(NoisyByPickle, ByItsIterator):
    pass


class NoisilyGenerated(NoisyByPickle):
    def __iter__(self) -> Iterator[Any]:
        yield from map(self.sample, range(6))


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("taken", [0, 1, 2])
@pytest.mark.parametrize("kind", [NoisyByPickle, NoisyByItsIterator, NoisilyGenerated])
@OF_DOORS
def test_torchs_seeding_of_living_workers_goes_on_in_an_epoch_that_was_set(
    by_pickle: bool, kind: Any, taken: int, seed: int | None
) -> None:
    """A state of an iterator lost what its worker drew from, if set_epoch changed the data."""

    def made() -> DataLoader[Any]:
        return make(kind(), 1, seeding="worker", seed=seed)

    loader = made()
    iterator = in_epoch_1(loader, taken)
    if by_pickle:
        copied = pickle.loads(pickle.dumps(iterator))
    else:
        again = made()
        again.load_state_dict(iterator.state_dict())
        copied = iter(again)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderWarning)  # that it is a replay
        assert [seen(copied), seen(iter(copied.loader))] == [seen(iterator), seen(iter(loader))]


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_loader_pickled_between_epochs_has_the_seeds_of_its_living_workers(
    num_workers: int, epochs: int
) -> None:
    """Without a seed: in a checkpoint, the validation loader is between two epochs."""

    def passes(one: Any, iterator: Any, other: Any) -> list[Any]:
        return [seen(iter(each)) for each in (iterator, other, other, one)]

    torch.manual_seed(1)
    one, other = (make(Noisy(12), num_workers, shuffle=True) for _ in range(2))
    list(one)
    for _ in range(epochs):
        list(other)
    iterator = iter(one)
    next(iterator)
    saved, states = pickle.dumps((one, iterator, other)), torch.get_rng_state()
    whole = passes(one, iterator, other)
    torch.manual_seed(77)
    again = pickle.loads(pickle.dumps(pickle.loads(saved)))
    torch.set_rng_state(states)
    assert passes(*again) == whole


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("by_pickle", [False, True])
@pytest.mark.parametrize("begun, held", [(1, False), (2, False), (1, True)], ids=str)
@pytest.mark.parametrize("taken", [0, 1, 99])
def test_an_older_iterator_knows_the_epochs_that_later_ones_have_begun(
    taken: int, begun: int, held: bool, by_pickle: bool, num_workers: int
) -> None:
    """A look at a batch in mid-epoch begins an epoch: a state of the iterator forgot it."""

    def batches(source: Any) -> Any:
        return [batch.tolist() for batch in source]

    def make(**more: Any) -> DataLoader[Any]:
        return DataLoader(Epochal(), 4, shuffle=True, seed=1, num_workers=num_workers, **more)

    loader = make()
    iterator, later = iter(loader), []
    next(iterator)
    for _ in range(begun):
        later.append(iter(loader))
        next(later[-1])
        if not held:
            later.clear()
    for _ in range(min(taken, 99)):
        next(iterator, None)
    if by_pickle:
        copied = pickle.loads(pickle.dumps(iterator))
        again = copied.loader
    else:
        again = make()
        again.load_state_dict(iterator.state_dict())
        if not iterator.finished:  # saved again before and after it goes on
            state, again = again.state_dict(), make()
            again.load_state_dict(state)
            copied = iter(again)
            assert copied.state_dict() == state
    if by_pickle or not iterator.finished:
        assert batches(copied) == batches(iterator)
    for epoch in (begun + 1, begun + 2):
        assert (batches(again), again.epoch) == (batches(loader), epoch + 1)


def test_the_dataset_is_given_an_epoch_only_if_it_was_chosen() -> None:
    loader = DataLoader(Epochal(), 4, seed=1)
    iterator = iter(loader)
    next(iterator), next(iter(loader))
    again = DataLoader(Epochal(), 4, seed=1)
    again.load_state_dict(iterator.state_dict())
    list(again)
    assert again.dataset.epoch == loader.dataset.epoch
    loader.set_epoch(5)
    again.load_state_dict(iterator.state_dict())
    list(again)
    assert (again.epoch, again.dataset.epoch) == (5, 5)


@pytest.mark.parametrize("door", ["pickle", "deepcopy", "pickle of a pickle"])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("order", [{"shuffle": True}, {"sampler": DrawsAsItGoes(from_torch)}])
def test_a_loader_that_went_on_from_a_state_is_pickled_with_what_its_epochs_are_drawn_from(
    order: dict[str, Any], num_workers: int, door: str
) -> None:
    """The program's generators are elsewhere than those that the state has brought."""

    def make() -> DataLoader[Any]:
        return DataLoader(range(N), 2, num_workers=num_workers, **order)

    torch.manual_seed(1)
    first = make()
    next(iter(first))
    state = first.state_dict()
    torch.manual_seed(99)
    loader = make()
    loader.load_state_dict(state)
    lists(loader)
    for _ in range(2):
        if door == "deepcopy":
            again = copy.deepcopy(loader)
        else:
            again = pickle.loads(pickle.dumps(loader))
        if door == "pickle of a pickle":
            again = pickle.loads(pickle.dumps(again))
        drawn = torch.get_rng_state()
        expected = lists(loader), lists(loader)
        torch.set_rng_state(drawn)
        assert (lists(again), lists(again)) == expected


class ChecksItsEpoch:
    """It refuses a state of another epoch than the dataset's."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state["epoch"] == self.epoch


class MapOfOneEpoch(ChecksItsEpoch, Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return 100 * self.epoch + index


class StreamOfOneEpoch(ChecksItsEpoch, IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return Walk([100 * self.epoch + index for index in range(6)])


class IteratorOfOneEpoch(Told):
    def __iter__(self) -> Iterator[int]:
        return WalkOfOneEpoch(self.epoch)


class WalkOfOneEpoch(ChecksItsEpoch):
    def __init__(self, epoch: int) -> None:
        self.epoch, self.at = epoch, 0

    def __iter__(self) -> WalkOfOneEpoch:
        return self

    def __next__(self) -> int:
        if self.at == 6:
            raise StopIteration
        self.at += 1
        return 100 * self.epoch + self.at

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.at = state["at"]


ONE_EPOCH: dict[str, Any] = {
    "map-style": MapOfOneEpoch,
    "stream": StreamOfOneEpoch,
    "iterator": IteratorOfOneEpoch,
    "stream, shuffled": lambda: ShuffleBuffer(StreamOfOneEpoch(), size=3),
    "iterator, shuffled": lambda: ShuffleBuffer(IteratorOfOneEpoch(), size=3),
    "iterator, interleaved": lambda: Interleave([IteratorOfOneEpoch()]),
}


@pytest.mark.parametrize("kind", ONE_EPOCH)
@pytest.mark.parametrize("workers", [(0, False), (1, False), (1, True)], ids=str)
def test_a_state_of_an_epochs_end_is_loaded_into_the_dataset_of_that_epoch(
    workers: Any, kind: str
) -> None:
    """The next epoch's was set already: an iterator that compares its epoch refused the state."""

    def made() -> DataLoader[Any]:
        return make(ONE_EPOCH[kind](), workers[0], persistent_workers=workers[1], seed=1)

    loader = made()
    loader.set_epoch(0)
    list(loader)
    state = loader.state_dict()
    pickled = pickle.dumps(loader)
    loader.set_epoch(1)
    expected = lists(loader)
    again = made()
    again.load_state_dict(state)
    for resumed in (again, pickle.loads(pickled)):
        resumed.set_epoch(1)
        assert lists(resumed) == expected
