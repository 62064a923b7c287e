"""Iterable-style data with ``shard=``: ranks share its streams, and one state restores them all."""

from __future__ import annotations

import itertools
import pickle
import random
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper
from zoo.datasets import Boom
from zoo.streams import KINDS, LENGTH, Breaking, Generated, Kind, mixed

from picklable_loader import (
    DataLoader,
    Interleave,
    ShuffleBuffer,
    from_json,
    merge_states,
    to_json,
)
from picklable_loader.errors import (
    DamagedStateError,
    EmptyEpochWarning,
    LoaderWarning,
    RanksError,
    ReplayWarning,
    StateMismatch,
    UsageError,
)
from picklable_loader.integrations.fabric import LoaderStates

#: samples of each stream, if there are five of them
UNEQUAL = [7, 0, 3, 9, 1]


@pytest.fixture(autouse=True)
def streams_may_be_replayed() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplayWarning)
        warnings.simplefilter("ignore", EmptyEpochWarning)
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


class Unequal(IterableDataset[torch.Tensor]):
    """Streams of unequal lengths, which it knows."""

    def stream_length(self, stream: int, streams: int) -> int:
        assert streams in (5, 6), "the loader asks for the streams that there are"
        return UNEQUAL[stream] if stream < len(UNEQUAL) else 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        info: Any = get_worker_info()
        for at in range(self.stream_length(info.id, info.num_workers)):
            yield torch.tensor(100 * info.id + at) + torch.rand(())


class Counting(Unequal):
    """The same, and counts in itself: an epoch that is left ends in the middle."""

    at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        info: Any = get_worker_info()
        while self.at < self.stream_length(info.id, info.num_workers):
            self.at += 1
            yield torch.tensor(100 * info.id + self.at - 1) + torch.rand(())
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def evenly(stream: int, streams: int) -> int:
    """The samples of a stream of the zoo."""
    return len(range(stream, LENGTH, streams))


def loader(dataset: Any, rank: int, world: int, **options: Any) -> Any:
    if not hasattr(dataset, "stream_length") and options.get("shard_tail") != "uneven":
        for part in getattr(dataset, "datasets", [getattr(dataset, "dataset", dataset)]):
            part.stream_length = evenly
    return DataLoader(
        dataset, **{"batch_size": 2, "seed": 3, "num_streams": 5, **options}, shard=(rank, world)
    )


def bits(batches: Any) -> list[Any]:
    found, iterator = [], iter(batches)
    while True:
        try:
            found.append(next(iterator).tolist())
        except Boom:
            found.append("raised")
        except StopIteration:
            return found


def epochs(made: Any, count: int = 2) -> list[list[Any]]:
    return [bits(made) for _ in range(count)]


# --- who reads what ------------------------------------------------------------------------------


class Who(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        yield info.id, info.num_workers, info.seed - torch.initial_seed() * 0


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize(("world", "num_streams"), [(1, 3), (2, 5), (3, 3), (4, None)])
def test_each_stream_is_read_by_one_rank_and_knows_its_number_among_all(
    num_workers: int, world: int, num_streams: int | None
) -> None:
    total = num_streams or world * max(1, num_workers)
    options: Any = {"batch_size": None, "shard_tail": "uneven", "num_streams": num_streams}
    read = []
    for rank in range(world):
        made = loader(Who(), rank, world, **options, num_workers=num_workers)
        own = [(number, streams) for number, streams, _ in made]
        assert own == [(number, total) for number in range(rank, total, world)]
        read += own
    assert sorted(read) == [(number, total) for number in range(total)]


def test_worker_init_fn_gets_the_number_among_all() -> None:
    seen: list[int] = []
    bits(loader(Generated(), 1, 2, worker_init_fn=seen.append, shard_tail="uneven"))
    assert seen == [1, 3]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_rank_has_the_batches_of_its_streams_under_any_number_of_workers(kind: Kind) -> None:
    whole = bits(loader(kind.make(), 0, 1, shard_tail="uneven"))
    for tail in ("pad", "uneven")[kind.make in (mixed, Breaking) :]:
        read = [epochs(loader(kind.make(), rank, 2, shard_tail=tail), 1)[0] for rank in range(2)]
        assert {str(batch) for each in read for batch in each} == {*map(str, whole)}
        for num_workers in (1, 2):
            made = loader(kind.make(), 1, 2, shard_tail=tail, num_workers=num_workers)
            assert bits(made) == read[1]


def test_set_epoch_reaches_the_streams_of_each_rank() -> None:
    class Epochal(IterableDataset[int]):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            yield self.epoch

    for workers in (0, 1):
        options = {
            "shard_tail": "uneven",
            "num_workers": workers,
            "persistent_workers": workers > 0,
        }
        made = loader(Epochal(), 1, 2, **options)
        made.set_epoch(7)
        assert bits(made) == [[7], [7]]


def test_a_datapipe_is_sharded_over_the_streams_of_all_ranks() -> None:
    def pipe(rank: int, num_workers: int) -> list[Any]:
        made = IterableWrapper(range(LENGTH)).sharding_filter()
        return bits(loader(made, rank, 2, num_workers=num_workers, shard_tail="uneven"))

    assert [pipe(rank, 0) for rank in range(2)] == [pipe(rank, 2) for rank in range(2)]
    assert sorted(sum(pipe(0, 0) + pipe(1, 0), [])) == [*range(LENGTH)]


# --- as many batches on each rank ----------------------------------------------------------------


@pytest.mark.parametrize("dataset", [Unequal, Counting])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_all_ranks_have_as_many_batches_though_streams_are_unequal(
    dataset: Any, num_workers: int, persistent: bool, world: int
) -> None:
    options = {"num_workers": num_workers, "persistent_workers": persistent and num_workers > 0}
    batches = [-(-length // 2) for length in UNEQUAL]
    of_ranks = [sum(batches[rank::world]) for rank in range(world)]
    for tail, count in ("pad", max(of_ranks)), ("drop", min(of_ranks)), ("uneven", None):
        made = [loader(dataset(), rank, world, shard_tail=tail, **options) for rank in range(world)]
        read = [epochs(each) for each in made]
        lengths = [[len(epoch) for epoch in each] for each in read]
        assert lengths == [
            [of_ranks[rank] if count is None else count] * 2 for rank in range(world)
        ]
        assert [len(each) for each in made] == [epoch[0] for epoch in lengths]
        for epoch in range(2):
            found = {int(x) for each in read for batch in each[epoch] for x in batch}
            every = {100 * at + x for at, length in enumerate(UNEQUAL) for x in range(length)}
            assert found == every if tail != "drop" else found <= every


def test_a_rank_that_has_fewer_reads_its_own_streams_once_more_bit_for_bit() -> None:
    own = bits(loader(Unequal(), 2, 4, shard_tail="uneven"))
    first = bits(loader(Unequal(), 0, 4, shard_tail="uneven"))[0]
    assert len(own) == 2
    assert bits(loader(Unequal(), 2, 4)) == [*own, *own, first]


def test_a_rank_without_any_data_reads_that_of_others() -> None:
    assert bits(loader(Unequal(), 1, 4, shard_tail="uneven")) == []
    of_0 = [batch for batch in bits(loader(Unequal(), 0, 4)) if batch[0] < 100]
    of_2 = bits(loader(Unequal(), 2, 4))
    assert bits(loader(Unequal(), 1, 4)) == [*of_0, of_2[0]]


class Longer(Unequal):
    """Its streams have more than it says."""

    def stream_length(self, stream: int, streams: int) -> int:
        return 2

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.arange(9)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_streams_that_are_longer_than_they_say_end_with_the_other_ranks_and_a_warning(
    num_workers: int,
) -> None:
    made = loader(Longer(), 0, 2, num_workers=num_workers)
    with pytest.warns(LoaderWarning, match="has more or fewer batches"):
        assert len(bits(made)) == 3


class Shorter(Unequal):
    """Its streams have less than it says."""

    def stream_length(self, stream: int, streams: int) -> int:
        return 9

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.arange(6)


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_streams_that_are_shorter_than_they_say_are_read_again_with_a_warning(tail: str) -> None:
    made = loader(Shorter(), 2, 3, shard_tail=tail)
    with pytest.warns(LoaderWarning, match="has more or fewer batches"):
        assert len(bits(made)) == len(made)


def test_the_length_of_a_dataset_is_that_of_all_streams_in_even_shares() -> None:
    class Sized(Generated):
        def __len__(self) -> int:
            return LENGTH

    for rank in range(3):
        sized: Any = DataLoader(Sized(), 2, seed=3, num_streams=5, shard=(rank, 3))
        assert bits(sized) == bits(loader(Generated(), rank, 3))


class Part(IterableDataset[int]):
    """So many numbers, shared evenly by the streams."""

    def __init__(self, first: int, length: int) -> None:
        self.numbers = range(first, first + length)

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        yield from islice(self.numbers, info.id, None, info.num_workers)


@pytest.mark.parametrize("stop", ["longest", "shortest"])
@pytest.mark.parametrize("weights", [None, [1, 2, 0, 1]])
def test_the_streams_of_an_interleaving_are_as_long_as_their_parts(stop: Any, weights: Any) -> None:
    def made(rank: int, tail: Any) -> Any:
        parts = [Part(0, 5), Part(100, 5), Part(200, 7), Part(300, 1)]
        together = ShuffleBuffer(Interleave(parts, weights, stop=stop), 2)
        return DataLoader(together, num_streams=4, seed=3, shard=(rank, 2), shard_tail=tail)

    if weights and stop == "shortest":
        with pytest.raises(ValueError, match="must be known"):
            made(0, "pad")
        return
    each = [set(map(tuple, bits(made(rank, "uneven")))) for rank in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)  # of streams that are longer or shorter
        padded = [bits(made(rank, "pad")) for rank in range(2)]
    assert [set(map(tuple, batches)) for batches in padded] == each
    assert [len(batches) for batches in padded] == [max(map(len, each))] * 2


def test_what_remains_is_known_where_all_ranks_have_as_many() -> None:
    iterator = iter(loader(Unequal(), 1, 2))
    left = [iterator.remaining]
    for _ in iterator:
        left.append(iterator.remaining)
    assert left == [*range(len(left) - 1, -1, -1)]


# --- saving --------------------------------------------------------------------------------------

TAILS = ["pad", "drop", "uneven"]


def by_state(made: Any, again: Any) -> Iterator[Any]:
    again.load_state_dict(from_json(to_json(made.state_dict())))
    return iter(again)


def by_pickle(iterator: Any, again: Any) -> Iterator[Any]:
    return pickle.loads(pickle.dumps(iterator))  # type: ignore[no-any-return]


@pytest.mark.parametrize("save", [by_state, by_pickle])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("dataset", [Unequal, Counting])
def test_a_rank_goes_on_from_its_state_at_each_step_and_in_the_next_epoch(
    dataset: Any, tail: str, num_workers: int, save: Any
) -> None:
    options: Any = {"shard_tail": tail}
    for rank in (0, 2):  # rank 2 has one stream, which is the longest
        whole = epochs(loader(dataset(), rank, 3, **options))
        for step in range(len(whole[0]) + 1):
            made = loader(dataset(), rank, 3, **options, num_workers=num_workers)
            iterator = iter(made)
            assert bits(next(iterator) for _ in range(step)) == whole[0][:step]
            again = save(iterator, loader(dataset(), rank, 3, **options))
            assert bits(again) == whole[0][step:]
            assert bits(again.loader) == whole[1]


@pytest.mark.parametrize(("num_workers", "in_order"), [(0, True), (1, False), (2, True)])
@pytest.mark.parametrize("dataset", [Unequal, Counting])
def test_a_state_behind_is_exact_where_a_rank_goes_from_stream_to_stream_that_it_reads_again(
    dataset: Any, num_workers: int, in_order: bool
) -> None:
    ranks = [1, 2, 3, 4] if num_workers == 0 else [4]  # rank 4 has one sample, and reads all others
    for rank in ranks:
        options: Any = {"batch_size": 1, "num_workers": num_workers, "in_order": in_order}
        whole = bits(loader(dataset(), rank, 5, batch_size=1))
        assert len(whole) == max(UNEQUAL)
        iterator = iter(loader(dataset(), rank, 5, **options, remember=4))
        for step in range(1, len(whole) + 1):
            assert next(iterator).tolist() == whole[step - 1]
            for behind in range(min(4, step) + 1):
                again = loader(dataset(), rank, 5, **options)
                again.load_state_dict(iterator.state_dict(behind=behind))
                assert bits(again) == whole[step - behind :], (rank, step, behind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_merged_state_of_all_ranks_restores_any_number_of_them(kind: Kind) -> None:
    batches = bits(loader(kind.make(), 0, 1, shard_tail="uneven"))
    choice = random.Random(str(kind))
    for _ in range(4):
        world, seen, left = choice.randint(1, 5), [], True
        ranks = [iter(loader(kind.make(), r, world, shard_tail="uneven")) for r in range(world)]
        while left:
            states = []
            for rank in ranks:
                seen += bits(islice(rank, choice.randint(0, 2)))
                states.append(from_json(to_json(rank.state_dict())))
            choice.shuffle(states)
            whole, world = merge_states(states), choice.randint(1, 5)
            assert to_json(whole) == to_json(merge_states(states[::-1]))
            if whole["epoch"]:
                break
            ranks = []
            for rank in range(world):
                made = loader(kind.make(), rank, world, shard_tail="uneven")
                made.load_state_dict(whole)
                ranks.append(iter(made))
        assert sorted(map(str, seen)) == sorted(map(str, batches))


def states(world: int = 3, steps: int = 1, **options: Any) -> list[dict[str, Any]]:
    """Those of all ranks after so many batches."""
    found = []
    for rank in range(world):
        iterator = iter(loader(Unequal(), rank, world, **options))
        bits(islice(iterator, steps))
        found.append(iterator.state_dict())
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize("dataset", [Unequal, Counting])
def test_as_many_ranks_go_on_from_their_merged_state_as_each_from_its_own(
    dataset: Any, tail: str, num_workers: int
) -> None:
    options: Any = {"shard_tail": tail, "num_workers": num_workers}
    world = 4 - num_workers  # with 4, rank 1 has no data of its own
    iterators = [iter(loader(dataset(), rank, world, **options)) for rank in range(world)]
    whole = [bits(loader(dataset(), rank, world, shard_tail=tail)) for rank in range(world)]
    for step in range(1, len(whole[0])):
        for iterator in iterators:
            next(iterator)
        merged = from_json(to_json(merge_states(each.state_dict() for each in iterators)))
        for rank in range(world):
            again = loader(dataset(), rank, world, shard_tail=tail)
            again.load_state_dict(merged)
            unmoved = loader(dataset(), rank, world, shard_tail=tail)
            unmoved.load_state_dict(again.state_dict())
            assert bits(again) == bits(unmoved) == whole[rank][step:], (rank, step)
        other = loader(dataset(), 0, 1, shard_tail=tail)
        other.load_state_dict(merged)
        before = [batch for each in whole for batch in each[:step]]
        assert {*map(str, before + bits(other))} >= {*map(str, bits(loader(dataset(), 0, 1)))}


def test_after_a_merge_all_ranks_have_as_many_batches_again() -> None:
    whole = merge_states(states(3, 2))
    for world in (1, 2, 4, 5):
        rest = []
        for rank in range(world):
            made = loader(Unequal(), rank, world)
            made.load_state_dict(whole)
            rest.append(bits(made))
        assert len({len(each) for each in rest}) == 1
        # 12 batches, of which 3 ranks have read 2 each: rank 1 the two of stream 4, and 4 none
        every = {100 * at + x for at, length in enumerate(UNEQUAL) for x in range(length)}
        before = [bits(islice(loader(Unequal(), rank, 3), 2)) for rank in range(3)]
        assert {int(x) for each in [*before, *rest] for batch in each for x in batch} == every


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", [k for k in KINDS if k.make not in (mixed, Breaking)], ids=str)
def test_after_an_epochs_end_the_state_of_a_rank_or_of_all_begins_the_next(
    kind: Kind, persistent: bool, tail: str
) -> None:
    options: Any = {"num_workers": 1, "persistent_workers": persistent, "shard_tail": tail}
    made = [loader(kind.make(), rank, 3, **options) for rank in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderWarning)  # a dataset without a state counts in itself
        lengths = [len(bits(each)) for each in made]
        found = [from_json(to_json(each.state_dict())) for each in made]
    assert {*map(len, map(bits, made))} == {*lengths}
    for world, each in (3, lambda rank: found[rank]), (3, lambda rank: merge_states(found)):
        again = [loader(kind.make(), rank, world, **options) for rank in range(world)]
        for rank, rebuilt in enumerate(again):
            rebuilt.load_state_dict(each(rank))
        assert [len(bits(rebuilt)) for rebuilt in again] == lengths


class Passes(Counting):
    """Its streams count the passes over them, in a state or out of it."""

    passes = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from (1000 * self.passes + sample for sample in super().__iter__())
        self.passes += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.passes = state["at"], state["passes"]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_later_epochs_find_the_streams_of_a_rank_that_had_ended_as_it_left_them(
    num_workers: int,
) -> None:
    options: Any = {"num_workers": num_workers, "persistent_workers": True, "shard_tail": "uneven"}

    def samples(ranks: Any) -> list[Any]:
        return sorted(sum((sum(bits(each), []) for each in ranks), []))

    def made(world: int) -> list[Any]:
        return [loader(Passes(), rank, world, **options) for rank in range(world)]

    def go_on(ranks: list[Any], world: int) -> list[Any]:
        merged = from_json(to_json(merge_states(each.state_dict() for each in ranks)))
        again = made(world)
        for each in again:
            each.load_state_dict(merged)
        return again

    whole = made(1)
    expected = [samples(whole) for _ in range(3)]
    ranks = made(3)
    iterators = [iter(each) for each in ranks]
    first = samples([list(islice(each, 3)) for each in iterators])
    assert [next(each, None) is None for each in iterators[1:]] == [True, True]
    assert [each.epoch for each in ranks] == [0, 1, 1]
    ranks = go_on(ranks, 2)
    assert sorted(first + samples(ranks)) == expected[0]
    ranks = go_on(ranks, 3)
    assert [samples(ranks) for _ in range(2)] == expected[1:]


class Once(IterableDataset[int]):
    """Without a state; only its first stream changes it."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        if info.id == 0:
            self.passes += 1
        yield info.id


def test_at_an_epochs_end_ranks_merge_though_some_have_nothing_to_leave_to_the_next() -> None:
    options: Any = {"num_workers": 1, "persistent_workers": True, "shard_tail": "uneven"}
    ranks = [loader(Once(), rank, 2, num_streams=2, **options) for rank in range(2)]
    assert [bits(each) for each in ranks] == [[[0]], [[1]]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderWarning)  # it has no state
        found = [each.state_dict() for each in ranks]
    assert ["streams" in state for state in found] == [True, False]
    again = loader(Once(), 0, 1, num_streams=2, **options)
    again.load_state_dict(merge_states(found))
    assert (again.epoch, bits(again)) == (1, [[0], [1]])


def test_a_rank_whose_stream_has_ended_reads_it_in_the_next_epoch() -> None:
    class Counts(IterableDataset[int]):
        at = 0

        def __iter__(self) -> Iterator[int]:
            while self.at < 2:
                self.at += 1
                yield self.at
            self.at = 0

    options: Any = {"num_streams": 2, "batch_size": 1, "shard_tail": "uneven"}
    iterator = iter(loader(Counts(), 0, 1, **options))
    bits(islice(iterator, 3))
    state = iterator.state_dict()
    made = [loader(Counts(), rank, 2, **options) for rank in range(2)]
    for each in made:
        each.load_state_dict(state)
    assert [epochs(each) for each in made] == [[[], [[1], [2]]], [[[2]], [[1], [2]]]]


def test_the_number_of_batches_is_known_for_one_rank_as_for_several() -> None:
    assert len(loader(Unequal(), 0, 1)) == 12 == len(bits(loader(Unequal(), 0, 1)))


def test_a_merged_state_holds_each_stream_once_and_is_small() -> None:
    whole = merge_states(states(3, 5))
    assert [place["given"] for place in whole["streams"]] == [3, 0, 2, 2, 1]
    assert not {"rank", "num_streams", "batches"} & whole.keys()
    positions = [*whole["streams"], *itertools.chain(*whole["again"].values())]
    assert len(to_json(whole)) < 700 + 160 * len(positions)  # with what ranks read again


def test_the_state_of_a_rank_that_has_loaded_and_not_moved_is_the_same_state() -> None:
    for rank, state in enumerate(states()):
        made = loader(Unequal(), rank, 3)
        made.load_state_dict(state)
        assert made.state_dict() == state


#: the mesh's share of each process, and the number of shares
MESHES = {
    "2 shares": [(0, 2), (1, 2)],
    "2 shares, each twice": [(0, 2), (0, 2), (1, 2), (1, 2)],
    "the same in another order": [(0, 2), (1, 2), (0, 2), (1, 2)],
    "4 shares": [(rank, 4) for rank in range(4)],
    "1 share, twice": [(0, 1), (0, 1)],
}


@pytest.mark.parametrize("saved_by", MESHES)
@pytest.mark.parametrize("loaded_by", MESHES)
@pytest.mark.parametrize("dataset", [Unequal, lambda: range(40)], ids=["streams", "an order"])
@pytest.mark.parametrize("steps", [0, 2])
def test_loader_states_of_one_mesh_restore_any_other_one(
    saved_by: str, loaded_by: str, dataset: Any, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def processes(mesh: str) -> Iterator[tuple[tuple[int, int], Any]]:
        for process, share in enumerate(MESHES[mesh]):
            monkeypatch.setenv("RANK", str(process))
            monkeypatch.setenv("WORLD_SIZE", str(len(MESHES[mesh])))
            yield share, DataLoader(
                dataset(), 2, seed=1, shard=share, shard_tail="uneven", num_streams=5
            )

    def numbers(batches: Any) -> list[int]:
        return [int(number) for batch in batches for number in batch]

    ranks, read = [], {}
    for share, each in processes(saved_by):
        read[share, "before"] = numbers(islice(iter(each), steps)) if steps else []
        ranks += LoaderStates(each).state_dict()["ranks"]
    for share, each in processes(loaded_by):
        LoaderStates(each).load_state_dict({"ranks": ranks})
        rest = numbers(each)
        assert read.setdefault((share, "after"), rest) == rest
    whole = DataLoader(dataset(), 2, seed=1, shard=(0, 1), num_streams=5)
    assert sorted(sum(read.values(), [])) == sorted(numbers(whole))


# --- bad input -----------------------------------------------------------------------------------


def test_a_refused_checkpoint_without_generators_moves_no_loader() -> None:
    loader = DataLoader(range(8), 2)
    iterator = iter(loader)
    next(iterator)
    saved = LoaderStates(loader, rng=False).state_dict()
    other = DataLoader(range(8), 2)
    with pytest.raises(UsageError, match="rng=False as well"):
        LoaderStates(other).load_state_dict(saved)
    assert len(list(other)) == 4
    LoaderStates(other, rng=False).load_state_dict(saved)
    assert len(list(other)) == 3


def merged(*parts: dict[str, Any]) -> RanksError:
    with pytest.raises(RanksError) as raised:
        merge_states(parts)
    return raised.value


def test_missing_and_doubled_ranks_are_named() -> None:
    found = states()
    assert merged(found[0], found[2]).missing == [1]
    assert merged(found[0], found[1], found[0]).doubled == [0]
    assert merged(*found, found[1]).doubled == [1]
    assert "missing: rank 1" in str(merged(found[0], found[2]))
    with pytest.raises(ValueError, match="got none"):
        merge_states([])


class Short(Unequal):
    """Rank 0 of three ends its epoch after a batch."""

    def stream_length(self, stream: int, streams: int) -> int:
        return [2, 8, 8][stream]


def test_a_rank_that_has_ended_its_epoch_is_missing_or_doubled_as_any_other() -> None:
    options: Any = {"num_streams": 3, "shard_tail": "uneven"}
    made = [loader(Short(), rank, 3, **options) for rank in range(3)]
    iterators = [iter(each) for each in made]
    for iterator in iterators:
        next(iterator)
    assert next(iterators[0], None) is None
    ended, second, third = (each.state_dict() for each in made)
    assert merged(ended).missing == [1, 2]
    assert merged(ended, second).missing == [2]
    assert merged(second, third).missing == [0]
    assert merged(ended, ended, second).missing == [2]
    assert merged(ended, ended, second).doubled == [0]
    assert merged(ended, ended, second, third).doubled == [0]
    whole = merge_states([third, ended, second])
    assert [stream["ended"] for stream in whole["streams"]] == [True, False, False]
    rest = [loader(Short(), rank, 2, **options) for rank in range(2)]
    for each in rest:
        each.load_state_dict(whole)
    assert [len(bits(each)) for each in rest] == [3, 3]


@pytest.mark.parametrize("dataset", [Generated, lambda: range(20)], ids=["streams", "an order"])
@pytest.mark.parametrize("epochs_before", [0, 1])
def test_the_beginning_of_an_epoch_is_one_for_all_ranks_in_any_number(
    dataset: Any, epochs_before: int
) -> None:
    def made(rank: int, world: int) -> Any:
        return DataLoader(dataset(), 2, seed=1, shard=(rank, world), shard_tail="uneven")

    before = [made(rank, 3) for rank in range(3)]
    for each in before:
        epochs(each, epochs_before)
    found = [each.state_dict() for each in before]
    assert [state["rank"] for state in found] == [[rank, 3] for rank in range(3)]
    for state in *found, merge_states(found):
        for rank in range(2):
            again, other = made(rank, 2), made(rank, 2)
            again.load_state_dict(state)
            assert again.state_dict()["rank"] == [rank, 2]
            other.set_epoch(epochs_before)
            assert bits(again) == bits(other)
    other = made(1, 3)
    other.set_epoch(5)
    assert "epoch" in merged(found[0], other.state_dict(), found[2]).differences


def test_states_that_are_merged_and_those_of_ranks_are_not_merged_together() -> None:
    found = states()
    assert "all ranks" in str(merged(merge_states(found), found[1]))
    assert "2 ranks and of 3 ranks" in str(merged(found[0], states(2)[1], found[2]))


def grown() -> Any:
    """Two samples have come since."""
    dataset: Any = Unequal()
    dataset.stream_length = lambda stream, streams: [7, 2, 3, 9, 1, 0][stream]
    return dataset


def test_a_state_of_streams_of_other_lengths_is_refused() -> None:
    whole = merge_states(states())
    for rank, world in (0, 2), (1, 3):
        with pytest.raises(StateMismatch, match="dataset_length: expected 22"):
            loader(grown(), rank, world).load_state_dict(whole)
        loader(grown(), rank, world).load_state_dict(whole, strict=False)
        # lengths are asked for on several ranks only, and not with "uneven"
        loader(grown(), rank, world, shard_tail="uneven").load_state_dict(whole)
        loader(grown(), rank, world).load_state_dict(loader(Unequal(), 0, 3).state_dict())
    with pytest.raises(StateMismatch, match="dataset_length"):
        loader(grown(), 1, 3).load_state_dict(states()[1])


def test_states_of_different_passes_cannot_be_merged() -> None:
    found, other = states(), states(seed=4)
    assert {"seed", "base_seed"} <= merged(found[0], other[1], found[2]).differences.keys()
    assert "num_streams" in merged(*found[:2], states(num_streams=6)[2]).differences
    later = loader(Unequal(), 1, 3)
    bits(later)
    iterator = iter(later)
    next(iterator)
    assert merged(found[0], iterator.state_dict(), found[2]).differences["epoch"] == {
        "0": [0, 2],
        "1": [1],
    }


def test_states_that_are_one_for_all_ranks_merge_to_one_of_them() -> None:
    def state(rank: int, steps: int) -> dict[str, Any]:
        iterator = iter(DataLoader(range(20), 2, seed=1, shuffle=True, shard=(rank, 2)))
        bits(islice(iterator, steps))
        return iterator.state_dict()

    assert merge_states([state(0, 2), state(1, 2)]) == state(0, 2)
    assert "step" in merged(state(0, 2), state(1, 3)).differences


def test_ranks_of_an_order_may_have_ended_where_they_have_no_batch_left_and_not_earlier() -> None:
    def made(rank: int, world: int = 3) -> Any:
        return DataLoader(
            cast(Any, range(19)), 2, seed=1, shuffle=True, shard=(rank, world), shard_tail="uneven"
        )

    whole = [bits(made(rank)) for rank in range(3)]
    assert [*map(len, whole)] == [4, 3, 3]
    for last in (2, 3):
        ranks = [made(rank) for rank in range(3)]
        for rank, each in enumerate(ranks):
            bits(islice(each, last if rank == 0 else 4))
        found = [each.state_dict() for each in ranks]
        if last == 2:
            assert merged(*found).differences["epoch"] == {"0": [0], "1": [1, 2]}
            continue
        read = sum((sum(batches[:3], []) for batches in whole), [])
        for rank in range(2):
            again = made(rank, 2)
            again.load_state_dict(merge_states(found[::-1]))
            read += sum(bits(again), [])
        assert sorted(read) == [*range(19)]


@pytest.mark.parametrize("dataset", [Generated, lambda: range(20)], ids=["streams", "an order"])
@pytest.mark.parametrize("seed", [None, 1])
def test_ranks_may_have_other_numbers_of_workers(dataset: Any, seed: int | None) -> None:
    def state(rank: int) -> dict[str, Any]:
        workers: Any = {"num_workers": rank, "persistent_workers": rank > 0}
        options = {"shard_tail": "uneven", "num_streams": 2 if dataset is Generated else None}
        made: Any = DataLoader(dataset(), 2, seed=seed, shard=(rank, 2), **workers, **options)
        if seed is not None:
            epochs(made, 1)
            next(iterator := iter(made))
            assert len({*iterator.state_dict()} & {"worker_seed"}) == rank
            return cast(dict[str, Any], iterator.state_dict())
        return cast(dict[str, Any], made.state_dict())  # each would draw in its own way

    if dataset is Generated and seed is not None:
        assert "worker_seed" in merged(state(0), state(1)).differences
    else:
        assert merge_states(map(state, range(2)))["epoch"] == (0 if seed is None else 1)


def test_a_state_of_one_rank_is_refused_by_another_and_says_what_to_do() -> None:
    found = states()
    for rank, world in (1, 3), (0, 2), (0, 1):
        with pytest.raises(StateMismatch, match="merge_states"):
            loader(Unequal(), rank, world).load_state_dict(found[0])


def test_a_loader_on_its_own_and_one_with_shard_do_not_share_states() -> None:
    alone = DataLoader(Unequal(), 2, seed=3, num_streams=5)
    iterator = iter(alone)
    next(iterator)
    with pytest.raises(StateMismatch, match="world_size"):
        loader(Unequal(), 0, 2).load_state_dict(iterator.state_dict())
    with pytest.raises(StateMismatch, match='shard="auto"'):
        alone.load_state_dict(merge_states(states()))


@pytest.mark.parametrize("strict", [True, False])
def test_no_error_advises_what_streams_refuse(strict: bool) -> None:
    other = loader(Unequal(), 0, 2, batch_size=3)
    with pytest.raises(StateMismatch) as raised:
        other.load_state_dict(merge_states(states()), strict=strict)
    assert "strict" not in str(raised.value)


def test_more_ranks_than_streams_are_refused() -> None:
    with pytest.raises(ValueError, match="less than the 6 ranks"):
        loader(Unequal(), 0, 6)
    with pytest.raises(StateMismatch, match="Each stream is read by one rank"):
        loader(Unequal(), 0, 6, num_streams=6).load_state_dict(merge_states(states()))


def test_unknown_lengths_are_refused_where_all_ranks_are_to_have_as_many() -> None:
    for tail in ("pad", "drop"):
        with pytest.raises(ValueError, match="stream_length"):
            DataLoader(Generated(), shard=(0, 2), shard_tail=tail)
    DataLoader(Generated(), shard=(0, 2), shard_tail="uneven")
    DataLoader(Generated(), shard=(0, 1))
    with pytest.raises(TypeError, match="no len"):
        len(DataLoader(Generated(), shard=(0, 2), shard_tail="uneven"))


@pytest.mark.parametrize(("length", "error"), [(-1, ValueError), ("5", TypeError)])
def test_a_length_that_is_none_is_refused(length: Any, error: Any) -> None:
    dataset: Any = Generated()
    dataset.stream_length = lambda stream, streams: length
    with pytest.raises(error, match="stream_length"):
        iter(DataLoader(dataset, shard=(0, 2), seed=1))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_streams": 0},
        {"num_streams": 2**61},
        {"num_streams": "5"},
        {"streams": []},
        {"batches": -1},
        {"batches": 2.5},
        {"rank": None},
    ],
    ids=str,
)
def test_a_damaged_state_is_refused(changes: dict[str, Any]) -> None:
    state = {**states()[1], **changes}
    state = {name: value for name, value in state.items() if value is not None}
    del state["checksum"]
    with pytest.raises((DamagedStateError, StateMismatch)):
        loader(Unequal(), 1, 3).load_state_dict(state)


def test_states_are_gathered_over_a_process_group_only() -> None:
    with pytest.raises(UsageError, match="needs a loader with shard="):
        DataLoader(Unequal(), 2).gather_state_dict()
    with pytest.raises(UsageError, match="merge_states"):
        loader(Unequal(), 0, 3).gather_state_dict()
    alone = loader(Unequal(), 0, 1)
    assert alone.gather_state_dict() == alone.state_dict()


class Pairs(Unequal):
    """Four streams; two of them have no batch left after the first."""

    def stream_length(self, stream: int, streams: int) -> int:
        return [2, 2, 6, 4][stream]


@pytest.mark.parametrize(
    ("tail", "at_epoch_end", "batches", "epoch"),
    [
        ("drop", "stop", 0, 1),  # nothing is left for rank 1, so the epoch is over for all
        ("drop", "next", 1, 2),  # and this is the next one
        ("pad", "stop", 3, 1),  # rank 2 has three batches left, and the others as many
        ("pad", "next", 3, 1),
    ],
)
def test_on_another_number_of_ranks_all_end_the_epoch_or_none(
    tail: str, at_epoch_end: str, batches: int, epoch: int
) -> None:
    options = {"num_streams": 4, "shard_tail": tail, "at_epoch_end": at_epoch_end}
    two = [iter(loader(Pairs(), rank, 2, **options)) for rank in range(2)]
    for iterator in two:  # streams 0 and 1 have given all that they have, 2 and 3 nothing
        next(iterator)
    state = merge_states(iterator.state_dict() for iterator in two)
    three = [loader(Pairs(), rank, 3, **options) for rank in range(3)]  # 0 and 3, 1, 2
    for each in three:
        each.load_state_dict(state)
    assert [len(bits(each)) for each in three] == [batches] * 3
    assert [each.epoch for each in three] == [epoch] * 3


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_states_of_ranks_at_different_steps_are_not_merged(tail: Any) -> None:
    """One rank's file may be older than the others': it was killed before it wrote."""

    def loader(rank: int) -> DataLoader[Any]:
        shard: Any = {"shard": (rank, 3), "shard_tail": tail}
        return DataLoader(Counted(), batch_size=4, num_streams=6, seed=1, **shard)

    iterators = [iter(loader(rank)) for rank in range(3)]
    for steps in (2, 1):
        for iterator in iterators:
            for _ in range(steps):
                next(iterator)
        if steps == 2:
            old = iterators[2].state_dict()
    states = [each.state_dict() for each in iterators]
    with pytest.raises(RanksError) as raised:
        merge_states([*states[:2], old])
    assert raised.value.differences == {"batches that are left": {"7": [0, 1], "8": [2]}}
    merged = merge_states(states)
    again = [loader(rank) for rank in range(3)]
    for each in again:
        each.load_state_dict(merged)
    found = [[batch.tolist() for batch in each] for each in again]
    assert found == [[batch.tolist() for batch in each] for each in iterators]
    for each in iterators[:2]:  # these have ended their epoch, and rank 2 has not
        assert list(each) == []
    ended = [each.state_dict() for each in iterators[:2]]
    with pytest.raises(RanksError):
        merge_states([*ended, old])


class Counted(IterableDataset[int]):
    def __len__(self) -> int:
        return 120

    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        return iter(range(info.id, 120, info.num_workers))


def test_a_rank_that_differs_is_named_by_its_place_among_the_states() -> None:
    loaders = [DataLoader(range(48), batch_size=4, seed=1, shard=(rank, 3)) for rank in range(3)]
    iterators = [iter(loader) for loader in loaders]
    for iterator in (*iterators, iterators[1]):
        next(iterator)
    with pytest.raises(RanksError) as raised:
        merge_states([each.state_dict() for each in iterators])
    assert raised.value.differences["step"] == {"1": [0, 2], "2": [1]}
