"""``set_epoch`` in the middle of a pass: it counts for the next pass, also after a save."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from laws.observe import plain
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    StackDataset,
    Subset,
    random_split,
)
from zoo.datasets import Epochal, Numbers

from picklable_loader import DataLoader, from_json, to_json
from picklable_loader.errors import LoaderWarning, ReplayWarning, StateError
from picklable_loader.saving.states.merge import merge_states

pytestmark = [
    pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning"),
    pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning"),
]


class Lines(IterableDataset[int]):
    """A generator whose samples say the epoch that it had when it gave them."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for index in range(12):
            yield index + 100 * self.epoch


class ByEpoch(Sampler[int]):
    """A generator that asks for its epoch before each index."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        for index in range(12):
            yield (index + self.epoch) % 12


#: torch's wrappers around a dataset with ``set_epoch``, which have none themselves
WRAPPED: dict[str, Callable[[], Dataset[Any]]] = {
    "Subset": lambda: Subset(Epochal(12), range(12)),
    "random_split": lambda: random_split(Epochal(12), [12])[0],
    "ConcatDataset": lambda: ConcatDataset([Numbers(4), Epochal(8)]),
    "StackDataset": lambda: StackDataset(Epochal(12), Numbers(12)),
    "StackDataset of names": lambda: StackDataset(a=Numbers(12), b=Subset(Epochal(12), range(12))),
    "ChainDataset": lambda: ChainDataset([ChainDataset((Lines(),))]),
}

KINDS: dict[str, Callable[..., DataLoader[Any]]] = {
    "shuffled": lambda **o: DataLoader(Epochal(12), 3, shuffle=True, seed=5, **o),
    "without a seed": lambda **o: DataLoader(Epochal(12), 3, **o),
    "a distributed sampler": lambda **o: DataLoader(
        Epochal(12), 3, sampler=DistributedSampler(Numbers(12), 1, 0), **o
    ),
    "a sampler": lambda **o: DataLoader(Epochal(12), 3, sampler=ByEpoch(), **o),
    "a sampler and a seed": lambda **o: DataLoader(Epochal(12), 3, sampler=ByEpoch(), seed=1, **o),
    "a stream": lambda **o: DataLoader(Lines(), 3, **o),
    "a stack of subsets": lambda **o: DataLoader(
        StackDataset(Subset(Epochal(12), range(12)), Epochal(12)), 3, **o
    ),
    "a chain of streams": lambda **o: DataLoader(ChainDataset([Lines()]), 3, **o),
}
BY_KIND = pytest.mark.parametrize("kind", KINDS)
#: after set_epoch in the middle of a pass: the rest of that pass, and the next two passes
Passes = list[list[Any]]


def passes(iterator: Any) -> Passes:
    rest = plain(list(iterator))
    return [rest, *(plain(list(iterator.loader)) for _ in range(2))]


def resumed(kind: str, state: dict[str, Any], workers: int) -> Passes:
    loader = KINDS[kind](num_workers=workers)
    loader.load_state_dict(state)
    return [plain(list(loader)) for _ in range(3)]


def saved_by_each_door(kind: str, iterator: Any, workers: int) -> dict[str, Callable[[], Passes]]:
    """By door, what comes after a save there."""
    states = {"iterator": iterator.state_dict(), "loader": iterator.loader.state_dict()}
    states["json"] = from_json(to_json(states["loader"]))
    copies = {
        "pickle": pickle.loads(pickle.dumps(iterator)),
        "deepcopy": copy.deepcopy(iterator),
        "a copy of a copy": pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(iterator)))),
    }
    again = KINDS[kind](num_workers=workers)
    again.load_state_dict(states["loader"])
    states["saved again"] = again.state_dict()
    with iter(again) as begun:
        states["begun, and saved again"] = begun.state_dict()
    return {name: lambda s=s: resumed(kind, s, workers) for name, s in states.items()} | {
        name: lambda c=c: passes(c) for name, c in copies.items()
    }


@BY_KIND
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_each_door_saves_the_choice(kind: str, workers: int, steps: int) -> None:
    iterator = iter(KINDS[kind](num_workers=workers))
    for _ in range(steps):
        next(iterator)
    iterator.loader.set_epoch(7)
    after = saved_by_each_door(kind, iterator, workers)
    expected = passes(iterator)
    for door, go_on in after.items():
        found = go_on()
        assert found == expected, door


@BY_KIND
def test_the_pass_at_hand_does_not_depend_on_the_choice(kind: str) -> None:
    for steps in range(4):
        iterator, undisturbed = iter(KINDS[kind]()), iter(KINDS[kind]())
        found = [plain(next(iterator)) for _ in range(steps)]
        iterator.loader.set_epoch(7)
        assert found + plain(list(iterator)) == plain(list(undisturbed))


@BY_KIND
@pytest.mark.parametrize("left", [False, True], ids=["read to its end", "left"])
def test_the_next_pass_is_as_if_it_were_chosen_between_two(kind: str, left: bool) -> None:
    found = []
    for in_the_pass in (False, True):
        loader = KINDS[kind]()
        iterator = iter(loader)
        next(iterator)
        if in_the_pass:
            loader.set_epoch(7)
        if left:
            del iterator
        else:
            list(iterator)
        if not in_the_pass:
            loader.set_epoch(7)
        found.append([plain(list(loader)) for _ in range(2)])
    assert found[0] == found[1]


@BY_KIND
def test_a_loader_that_is_pickled_in_mid_epoch_has_the_choice(kind: str) -> None:
    loader = KINDS[kind]()
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(7)
    again = pickle.loads(pickle.dumps(loader))
    twice = pickle.loads(pickle.dumps(again))
    list(iterator)
    expected = plain(list(loader))
    assert plain(list(again)) == plain(list(twice)) == expected


@pytest.mark.filterwarnings("ignore:.*has been given epoch 7 since")
def test_a_pass_that_is_over_is_pickled_with_the_choice() -> None:
    for behind in (0, 1):
        iterator = iter(KINDS["shuffled"]())
        list(iterator)
        iterator.loader.set_epoch(7)
        copied = pickle.loads(pickle.dumps(iterator.behind(behind)))
        assert len(list(copied)) == behind
        assert plain(list(copied.loader)) == plain(list(iterator.loader))


def test_the_last_call_wins() -> None:
    chosen, expected = DataLoader(range(12), 3, shuffle=True, seed=5), {}
    for epoch in range(9):
        chosen.set_epoch(epoch)
        expected[epoch] = plain(list(chosen))
    state = iter_with(7)[1]
    for loads_last in (False, True):
        loader, _ = iter_with(8)
        loader.load_state_dict(state)
        if not loads_last:
            loader.set_epoch(0)  # it goes on in its epoch, and the next is the one after
        assert plain(list(loader)) == expected[0][1:]
        assert plain(list(loader)) == expected[7 if loads_last else 1]


def iter_with(epoch: int) -> tuple[DataLoader[Any], dict[str, Any]]:
    """A loader that is at step 1, and goes on with that epoch; and its state."""
    loader: Any = DataLoader(range(12), 3, shuffle=True, seed=5)
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(epoch)
    return loader, iterator.state_dict()


def test_at_the_end_of_an_epoch_next_begins_the_choice() -> None:
    loader = KINDS["shuffled"]()
    for _ in loader:
        if loader._pl.history.position.run.step == 4:  # type: ignore[union-attr]
            loader.set_epoch(7)
            state = loader.state_dict()
    expected = plain(list(loader))
    again = KINDS["shuffled"](at_epoch_end="next")
    again.load_state_dict(state)
    assert (again.epoch, iter(again).epoch) == (7, 7)
    assert plain(list(again)) == expected


@pytest.mark.parametrize("chosen", [0, 1, 7])
def test_ranks_merge_their_choice_wherever_each_is(chosen: int) -> None:
    """A rank whose epoch is over waits for the choice; the other one is in mid-epoch."""

    def rank(number: int) -> DataLoader[Any]:
        return DataLoader(Lines(), 3, shard=(number, 2), num_streams=2, seed=1, shard_tail="uneven")

    loaders, states = [rank(0), rank(1)], []
    for steps, loader in zip((4, 1), loaders, strict=True):
        iterator = iter(loader)
        for _ in range(steps):
            next(iterator)
        loader.set_epoch(chosen)
        if steps == 4:
            list(iterator)
        states.append(loader.state_dict())
    whole = merge_states(states)
    assert whole["next_epoch"] == chosen
    again = rank(1)
    again.load_state_dict(whole)
    list(again)
    assert again.epoch == chosen
    with pytest.raises(StateError, match="next_epoch"):
        again.load_state_dict({**whole, "next_epoch": "7"})


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("kind", WRAPPED)
def test_it_reaches_the_datasets_within_torchs_wrappers(kind: str, options: dict[str, Any]) -> None:
    def epochs(batches: Any) -> set[int]:
        return {number // 100 for number in flat(list(batches)) if number > 11}

    def flat(of: Any) -> list[int]:
        of = list(of.values()) if isinstance(of, dict) else of
        return sum(map(flat, of), []) if isinstance(of, list | tuple) else of.flatten().tolist()

    torch.manual_seed(0)
    loader = DataLoader(WRAPPED[kind](), 3, seed=1, **options)
    for epoch in (3, 7):
        loader.set_epoch(epoch)
        iterator = iter(loader)
        found = [next(iterator)]
        state = iterator.state_dict()
        assert epochs([*found, *iterator]) == {epoch}
    torch.manual_seed(0)
    again = DataLoader(WRAPPED[kind](), 3, seed=1, **options)
    again.load_state_dict(state)
    assert epochs(again) == {7}


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize("kind", [lambda: Epochal(12), Lines])
def test_a_pass_before_the_first_set_epoch_cannot_be_gone_back_to_silently(
    kind: Any, options: dict[str, Any]
) -> None:
    """Nobody knows how to undo the dataset's set_epoch."""
    loader = DataLoader(kind(), 3, seed=1, **options)
    next(iterator := iter(loader))
    state, pickled, rest = loader.state_dict(), pickle.dumps(iterator), plain(list(iterator))
    assert plain(list(pickle.loads(pickled))) == rest
    loader.set_epoch(1)
    loader.load_state_dict(state)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", LoaderWarning)
        assert plain(list(loader)) != rest
    assert "has been given epoch 1 since" in str([each.message for each in said])
    loader.load_state_dict(state)
    loader.set_epoch(0)  # an epoch that the program chooses now is no matter of the state
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)
        warnings.simplefilter("ignore", ReplayWarning)
        assert len(list(loader)) == len(rest)


@pytest.mark.parametrize("way", ["pickle", "state"])
@pytest.mark.parametrize("workers, persistent", [(0, False), (2, False), (2, True)])
def test_another_loader_of_the_dataset_that_sets_its_epoch_is_not_seen_by_workers(
    workers: int, persistent: bool, way: str
) -> None:
    """Nor by a resume, whose dataset has that epoch in the pickle."""
    data = Epochal(12)
    loader = DataLoader(data, 4, seed=1, num_workers=workers, persistent_workers=persistent)
    loader.set_epoch(3)
    iterator = iter(loader)
    next(iterator)
    other = DataLoader(data, 4, seed=2)
    other.set_epoch(1)
    if way == "pickle":
        again = pickle.loads(pickle.dumps(iterator))
    else:
        fresh = DataLoader(Epochal(12), 4, seed=1, num_workers=workers)
        fresh.load_state_dict(iterator.state_dict())
        again = iter(fresh)
    found = list(map(plain, again))
    if workers or way == "pickle":
        assert found == list(map(plain, iterator))
    else:  # the dataset is the program's own, as under torch, and a new one has the pass's epoch
        assert found != list(map(plain, iterator))
