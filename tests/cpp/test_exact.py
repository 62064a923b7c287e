"""Law 1 for datasets and samplers in C++: from any step on, a save goes on as the original did."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.cases import Case
from laws.codecs import PICKLES, STATES, Codec
from laws.observe import epochs, expected_warnings, seed_everything, seen, seen_next
from test_docs import ROOT, blocks
from torch.utils.data import DataLoader as TorchsLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from zoo.datasets import Noisy

from picklable_loader import DataLoader, ShuffleBuffer, from_json, to_json
from picklable_loader.errors import LoaderWarning
from picklable_loader.testing import ResumeError, verify_resume

JSON = Codec(
    "JSON",
    lambda it: to_json(it.state_dict()),
    lambda data, make: STATES[0].load(from_json(data), make),
)
PAGE = ROOT / "docs" / "cpp.md"
EPOCHS = 3
WHOLE: dict[str, Any] = {"batch_size": None}


def rows(parts: Any) -> Any:
    return parts.Rows(parts.values())


def dataset(
    make: Callable[[Any], Any], batching: dict[str, Any] | None = None, **arguments: Any
) -> Callable[[Any], Case]:
    """Cases over a dataset; every argument may be a function of the extension's module."""

    def case(parts: Any) -> Case:
        def given() -> dict[str, Any]:
            return {
                name: value(parts) if callable(value) else value
                for name, value in arguments.items()
            }

        return Case("", given, lambda: make(parts), batching=batching or {"batch_size": 3})

    return case


def sampler(make: Callable[[Any], Any], **arguments: Any) -> Callable[[Any], Case]:
    return dataset(rows, sampler=make, **arguments)


def batch_sampler(make: Callable[[Any], Any]) -> Callable[[Any], Case]:
    return dataset(rows, batch_sampler=make)


def with_seed(make: Callable[[], Any]) -> Any:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return make()


CASES = {
    "dataset": dataset(rows, shuffle=True),
    "dataset, collated in C++": dataset(rows, shuffle=True, collate_fn=lambda p: p.Stack()),
    "dataset, seeds of samples": dataset(rows, shuffle=True, seed=5, seeding="sample"),
    "dataset, seeds of workers": dataset(
        lambda p: p.Engines([0] * 10), shuffle=True, seed=5, seeding="worker"
    ),
    "dataset, subclass in Python": dataset(lambda p: p.InPython(10), shuffle=True),
    "dataset, getitem in Python": dataset(lambda p: p.EnginesOneByOne([0] * 10), shuffle=True),
    "dataset of structs": dataset(lambda p: p.Samples(10), shuffle=True),
    "dataset of captions": dataset(lambda p: p.Captions(10), shuffle=True),
    "dataset of captions, mapped": dataset(
        lambda p: p.LoudCaptions(10), shuffle=True, collate_fn=lambda p: p.LastCaption()
    ),
    "dataset of boxes": dataset(
        lambda p: p.Boxes(10), shuffle=True, collate_fn=lambda p: p.LastBoxes()
    ),
    "dataset of boxes, mapped": dataset(lambda p: p.LoudBoxes(10), shuffle=True),
    "dataset, shared": dataset(lambda p: p.Shared(p.values()), seed=3),
    "whole batch": dataset(lambda p: p.Loops(p.values()), shuffle=True),
    "whole batch, mapped": dataset(lambda p: p.Stacked(p.values()), shuffle=True),
    "sampler": sampler(lambda p: p.Shuffled(10)),
    "sampler, torch's": sampler(lambda p: p.RandomSampler(10)),
    "sampler, torch's, seed": sampler(lambda p: p.RandomSampler(10), seed=3),
    "sampler, distributed": dataset(
        lambda p: p.Rows(torch.arange(20.0)),
        sampler=lambda p: p.DistributedRandomSampler(20, num_replicas=2, rank=1),
    ),
    "batch sampler": batch_sampler(lambda p: p.Shuffled(10).batches(3)),
    "batch sampler, drop_last": batch_sampler(lambda p: p.RandomSampler(10).batches(3, True)),
    "sampler over Python": dataset(lambda p: Noisy(10), sampler=lambda p: p.Shuffled(10)),
    "stream": dataset(lambda p: p.Stream(10), seed=3),
    "stream of batches": dataset(
        lambda p: p.Counter(10).batches(3), WHOLE, collate_fn=lambda p: p.Stack()
    ),
    "stream, transformed": dataset(lambda p: p.StackedNoisy(10).batches(3), WHOLE, seed=3),
    "stream, transform with a position": dataset(
        lambda p: p.StackedCounts(10).batches(3), WHOLE, seed=3
    ),
    "stream, iter in Python": dataset(lambda p: p.HundredMoreOfStream(10), seed=3),
    "stream without a state": dataset(lambda p: p.Opaque(10), seed=3),
    "chunks": dataset(lambda p: p.Chunks(9, 4), shuffle=True),
    "chunks as batches": dataset(
        lambda p: p.Chunks(5, 4), WHOLE, shuffle=True, collate_fn=lambda p: p.Stack()
    ),
}

#: one of each kind
KINDS = ["dataset", "whole batch", "sampler", "batch sampler", "stream", "chunks"]
MORE = [
    "dataset, seeds of samples",
    "dataset of captions",
    "dataset of boxes",
    "stream of batches",
    "stream without a state",
]
#: one of each source of random numbers in C++, under seeding="worker"
BY_WORKER = {
    "global, and a generator": rows,
    "engines": lambda p: p.Engines([0] * 10),
    "engines, one by one": lambda p: p.EnginesOneByOne([0] * 10),
    "seeds": lambda p: p.OwnSeeds([1.0] * 10),
    "loops": lambda p: p.Loops(p.values()),
    "stream": lambda p: with_seed(lambda: p.Shards(10)),
}


def saved_at_every_step(
    case: Case, num_workers: int, codecs: list[Codec], **more: Any
) -> tuple[list[list[Any]], list[tuple[Codec, int, int, Any]]]:
    """The epochs of a run that saves itself, and its saves, each with its epoch and step."""
    seed_everything(1)
    loader, passes, saves = case.make(num_workers, **more), list[Any](), list[Any]()
    for epoch in range(EPOCHS):
        iterator, batches = iter(loader), list[Any]()
        for step in range(1000):
            if epoch < EPOCHS - 1:
                saves += [(codec, epoch, step, codec.save(iterator)) for codec in codecs]
            try:
                batches.append(seen_next(iterator))
            except StopIteration:
                break
        passes.append(batches)
    return passes, saves


def assert_goes_on(
    case: Case, codec: Codec, saved: Any, expected: list[list[Any]], step: int, **more: Any
) -> None:
    """``expected``: the epochs from the saved one on."""
    seed_everything(99)
    iterator = codec.load(saved, lambda: case.make(**more))
    with expected_warnings():
        assert seen(iterator) == expected[0][step:], (codec, step)
    if codec not in (*STATES, JSON):
        assert epochs(case, iterator.loader, len(expected) - 1) == expected[1:], (codec, step)


@pytest.mark.inline
@pytest.mark.parametrize("name", CASES)
def test_every_save_goes_on_exactly(name: str, parts: Any) -> None:
    case = CASES[name](parts)
    seed_everything(1)
    expected = epochs(case, case.make(), EPOCHS)
    assert all(expected) and (expected[0] != expected[1] or "shared" in name)
    found, saves = saved_at_every_step(case, 0, [*PICKLES, *STATES, JSON])
    assert found == expected, "saving has disturbed the run"
    for codec, epoch, step, saved in saves:
        assert_goes_on(case, codec, saved, expected[epoch:], step)


@pytest.mark.parametrize("name", [*KINDS, *MORE])
def test_saves_made_with_workers_go_on_with_them_and_without(name: str, parts: Any) -> None:
    case = CASES[name](parts)
    expected, saves = saved_at_every_step(case, 2, [PICKLES[0], STATES[0]])
    if "stream" not in name:  # which has a stream for each worker
        seed_everything(1)
        assert epochs(case, case.make(), EPOCHS) == expected
    for number, (codec, epoch, step, saved) in enumerate(saves):
        if codec is PICKLES[0]:
            assert_goes_on(case, codec, saved, expected[epoch : epoch + 1], step)
        else:
            assert_goes_on(case, codec, saved, expected[epoch:], step, num_workers=number % 4)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", BY_WORKER)
def test_seeds_of_workers_go_on_from_batch_to_batch(
    name: str, num_workers: int, parts: Any
) -> None:
    case = dataset(BY_WORKER[name], seed=5, seeding="worker")(parts)
    expected, saves = saved_at_every_step(case, num_workers, [PICKLES[0], STATES[0], JSON])
    for codec, epoch, step, saved in saves:
        assert_goes_on(
            case, codec, saved, expected[epoch : epoch + 1], step, num_workers=num_workers
        )
    batches = [batch for epoch in expected for batch in epoch]
    assert len(set(map(str, batches))) == len(batches), "batches have the same random numbers"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_stream_of_chunks_in_the_docs_gives_each_sample_once_and_goes_on_exactly(
    num_workers: int, parts: Any
) -> None:
    page: dict[str, Any] = {"torch": torch, "DataLoader": DataLoader}
    exec(blocks(PAGE)[-1][1], page)
    case = dataset(lambda p: ShuffleBuffer(page["Mixed"](p.Chunks(6, 4)), 10), seed=1)(parts)
    expected, saves = saved_at_every_step(case, num_workers, [STATES[0]])
    for codec, epoch, step, saved in saves:
        assert_goes_on(case, codec, saved, expected[epoch:], step, num_workers=num_workers)
    for _ in range(2):  # epochs
        given = torch.cat([chunks for chunks, _ in case.make(num_workers)])
        assert sorted(given.tolist()) == sorted([*range(6)] * 4)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("by_loader", [False, True])
def test_an_epoch_that_is_set_in_mid_epoch_is_for_the_next_one(
    by_loader: bool, num_workers: int, parts: Any
) -> None:
    def make() -> Any:
        sampler = parts.DistributedRandomSampler(20, num_replicas=2, rank=1)
        return DataLoader(range(20), 2, sampler=sampler, num_workers=num_workers)

    def epoch(number: int) -> Any:
        loader = make()
        loader.sampler.set_epoch(number)
        return seen(iter(loader))

    for step in range(1, 5):
        loader = make()
        iterator = iter(loader)
        for _ in range(step):
            next(iterator)
        (loader if by_loader else loader.sampler).set_epoch(3)
        for codec in (*PICKLES, *STATES, JSON) if not num_workers else (PICKLES[0], STATES[0]):
            once = codec.load(codec.save(iterator), make)
            again = codec.load(codec.save(once), make)
            for resumed in (once, again):
                assert seen(resumed) == epoch(0)[step:], (codec, step)
                if codec not in (*STATES, JSON):
                    assert seen(iter(resumed.loader)) == epoch(3), (codec, step)
        assert seen(iterator) == epoch(0)[step:]
        assert seen(iter(loader)) == epoch(3)


@pytest.mark.inline
def test_an_epoch_that_is_set_after_a_pass_was_left_holds_for_the_next_pass(parts: Any) -> None:
    left, fresh = (parts.DistributedRandomSampler(20) for _ in range(2))
    next(iter(left))
    left.set_epoch(1)
    left.set_epoch(2)
    fresh.set_epoch(2)
    again = pickle.loads(pickle.dumps(left))
    assert list(left) == list(again) == list(fresh)


@pytest.mark.costly
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("method", "num_workers"), [("spawn", 2), ("forkserver", 2)])
def test_saves_made_under_other_start_methods_go_on(
    name: str, method: str, num_workers: int, parts: Any
) -> None:
    case = CASES[name](parts)
    seed_everything(1)
    expected = epochs(case, case.make(num_workers), 1)[0]
    seed_everything(1)
    iterator = iter(case.make(num_workers, multiprocessing_context=method))
    for step, batch in enumerate(expected):
        for codec in (PICKLES[0], STATES[0]):
            again = codec.load(codec.save(iterator), case.make)
            again.loader.num_workers, again.loader.multiprocessing_context = 0, None
            assert seen(again) == expected[step:]
        assert seen_next(iterator) == batch
    assert seen(iterator) == []


@pytest.mark.inline
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdatas_loader_resumes_a_sampler(parts: Any) -> None:
    def loader() -> Any:
        return StatefulDataLoader(parts.Samples(10), batch_size=3, sampler=parts.Shuffled(10))

    first, second = loader(), loader()
    iterator = iter(first)
    next(iterator)
    second.load_state_dict(first.state_dict())
    assert str([*second]) == str([*iterator])


def test_batches_that_are_written_into_what_a_worker_sends_are_the_same(parts: Any) -> None:
    def batches(num_workers: int) -> Any:
        dataset = parts.Loops(torch.arange(40_000.0, dtype=torch.float64))
        return [*DataLoader(dataset, batch_size=8000, seed=3, num_workers=num_workers)]

    for one, other in zip(batches(0), batches(2), strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


@pytest.mark.inline
@pytest.mark.parametrize("name", CASES)
def test_verify_resume_finds_nothing(name: str, parts: Any) -> None:
    verify_resume(CASES[name](parts).make, num_workers=(0,), fresh_process=name == "dataset")


@pytest.mark.inline
def test_verify_resume_finds_a_sampler_that_forgets_its_order(parts: Any) -> None:
    case = sampler(lambda p: p.Forgetful(10))(parts)
    with pytest.raises(ResumeError, match="sampler"):
        verify_resume(case.make, num_workers=(0,), fresh_process=False)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_loader_gives_the_same_batches(num_workers: int, parts: Any) -> None:
    def batches(loader: Any, **arguments: Any) -> str:
        torch.manual_seed(7)
        dataset = parts.Rows(parts.values(), noise=0)
        return str(list(loader(dataset, num_workers=num_workers, **arguments)))

    for arguments in (
        {"batch_size": 3, "shuffle": True},
        {"batch_size": 3, "sampler": parts.RandomSampler(10)},
        {"batch_sampler": parts.Shuffled(10).batches(4), "collate_fn": parts.Stack()},
    ):
        ours = copy.deepcopy(arguments)
        assert batches(TorchsLoader, **arguments) == batches(DataLoader, **ours)


@pytest.mark.parametrize("loader", [TorchsLoader, DataLoader])
def test_an_order_that_a_constructor_draws_is_the_same_in_all_workers(
    loader: Any, parts: Any
) -> None:
    for _ in range(3):
        stream = parts.Shards(20)
        for num_workers in (0, 2):
            given = torch.cat([b[0] for b in loader(stream, batch_size=4, num_workers=num_workers)])
            assert sorted(given.tolist()) == list(range(20))


@pytest.mark.inline
@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("says_lengths", [False, True])
@pytest.mark.parametrize(
    ("length", "streams", "ranks"), [(42, 4, 2), (104, 8, 4), (20, 8, 2), (43, 3, 3)]
)
def test_ranks_have_the_same_batches_of_a_stream_in_batches_as_with_a_batch_size(
    length: int,
    streams: int,
    ranks: int,
    says_lengths: bool,
    drop_last: bool,
    tail: str,
    parts: Any,
) -> None:
    class Says(parts.Shards):  # type: ignore[misc, name-defined]
        def stream_length(self, stream: int, streams: int) -> int:
            return len(range(stream, length, streams))

    def loaders(in_batches: bool) -> Any:
        for rank in range(ranks):
            stream = seeded(Says if says_lengths else parts.Shards, length)
            how: dict[str, Any] = {"batch_size": 10, "drop_last": drop_last}
            if in_batches:
                stream, how = stream.batches(10, drop_last), {"batch_size": None}
            shard = {"num_streams": streams, "shard": (rank, ranks), "shard_tail": tail}
            yield DataLoader(stream, seed=1, collate_fn=list, **how, **shard)

    def numbers(loader: Any) -> list[list[int]]:
        return [[int(number) for number, _ in batch] for batch in loader]

    given, expected = ([*map(numbers, loaders(in_batches))] for in_batches in (True, False))
    assert given == expected
    assert [*map(len, loaders(True))] == [*map(len, given)] == [len(given[0])] * ranks
    if not drop_last and tail == "pad":
        assert {number for each in given for batch in each for number in batch} == {*range(length)}


def seeded(cls: Any, length: int) -> Any:
    """A stream whose constructor draws an order: each rank has to have the same."""
    torch.manual_seed(0)
    return cls(length)


@pytest.mark.inline
def test_the_lengths_of_a_stream_in_batches_are_known_where_the_streams_are(parts: Any) -> None:
    assert parts.Stream(10).batches(3).stream_length is None
    with pytest.raises(TypeError, match="there is no len"):
        len(DataLoader(parts.Stream(10).batches(3), None))

    class Negative(parts.Shards):  # type: ignore[misc, name-defined]
        def stream_length(self, stream: int, streams: int) -> int:
            return -1

    shard: dict[str, Any] = {"num_streams": 2, "shard": (0, 2)}
    with pytest.raises(ValueError, match="stream_length should give numbers from 0"):
        next(iter(DataLoader(Negative(10).batches(3), None, **shard)))


@pytest.mark.inline
@pytest.mark.parametrize(
    "kind",
    [
        *["MappedEpochs", "SharedEpochs", "MappedTwice", "DerivedEpochs"],
        *["EpochsStream", "MappedEpochsStream"],
    ],
)
def test_an_epoch_goes_through_torchs_wrappers(kind: str, parts: Any) -> None:
    def made() -> Any:
        return DataLoader(getattr(parts, kind)(6), 3, snapshot_every_n_steps=1, collate_fn=list)

    def epochs_of(batches: Any) -> list[int]:
        return [int(epoch) for batch in batches for _, epoch in batch]

    loader = made()
    for epoch in (0, 1, 5):
        loader.set_epoch(epoch)
        iterator = iter(loader)
        taken = [next(iterator)]
        with expected_warnings():
            again = pickle.loads(pickle.dumps(iterator))
            assert epochs_of([*taken, *iterator]) == epochs_of([*taken, *again]) == [epoch] * 6


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", ["StackedCounter", "StackedTwice", "StackedStream"])
def test_a_transform_is_not_given_the_empty_batch_at_a_streams_end(
    kind: str, num_workers: int, parts: Any
) -> None:
    loader = DataLoader(getattr(parts, kind)(7).batches(3), None, num_workers=num_workers)
    for _ in range(2):  # epochs
        columns = [batch if kind == "StackedStream" else batch[0] for batch in loader]
        assert [len(column) for column in columns] == [3, 3, 1]


@pytest.mark.inline
@pytest.mark.parametrize("kind", ["StackedStream", "StackedNoisy"])
def test_a_stream_has_its_state_below_transforms_without_members(kind: str, parts: Any) -> None:
    iterator = iter(getattr(parts, kind)(10).batches(3))
    next(iterator)
    assert iterator.state_dict()["source"]["position"] == {"at": 3}


@pytest.mark.inline
def test_a_stream_below_a_transform_that_may_have_a_position_is_replayed(parts: Any) -> None:
    loader = DataLoader(parts.StackedCounts(10).batches(3), None)
    iterator = iter(loader)
    next(iterator)
    state = iterator.state_dict()
    with pytest.warns(LoaderWarning, match="has no state, and is resumed by replay"):
        loader.load_state_dict(state)
        next(iter(loader))


@pytest.mark.inline
@pytest.mark.parametrize("loader", [TorchsLoader, DataLoader])
def test_an_iterator_that_has_ended_does_not_begin_again(loader: Any, parts: Any) -> None:
    for source in (parts.Rewinds(7), parts.RewindsStream(7)):
        for iterator, count in ((iter(source), 7), (iter(source.batches(3)), 3)):
            assert len([*iterator]) == count
            assert not [*iterator] and not [*iterator]
    for given in (
        {"sampler": parts.Rewinds(7), "batch_size": 3},
        {"batch_sampler": parts.Rewinds(7).batches(3)},
        {"sampler": parts.Rewinds(7), "batch_size": 3, "drop_last": True},
    ):
        made = loader(range(9), **given)
        for _ in range(2):  # epochs
            lengths = [len(batch) for batch in islice(made, 9)]
            assert lengths == ([3, 3] if "drop_last" in given else [3, 3, 1])


@pytest.mark.inline
def test_an_iterator_that_has_ended_goes_on_from_a_state(parts: Any) -> None:
    iterator = iter(parts.Rewinds(7))
    next(iterator)
    state = iterator.state_dict()
    rest = [*iterator]
    iterator.load_state_dict(state)
    assert [*iterator] == rest and len(rest) == 6 and not [*iterator]


def test_forked_workers_read_the_records_of_a_file_that_get_opens(
    parts: Any, tmp_path: Path
) -> None:
    torch.arange(5000).numpy().tofile(tmp_path / "records")
    records = parts.Records(str(tmp_path / "records"), 5000)
    assert records[7] == 7  # this process has opened the file, too
    order = torch.randperm(5000).tolist()
    loader = DataLoader(records, 50, sampler=order, num_workers=4, multiprocessing_context="fork")
    assert torch.cat([*loader]).tolist() == order


@pytest.mark.inline
def test_the_docs_open_a_file_as_the_tests_do() -> None:
    (code,) = (text for _, text in blocks(PAGE, "```cpp no-run") if "getpid" in text)
    source = Path(__file__).with_name("parts.cpp").read_text()
    shown = code.partition("\n")[2]
    assert " ".join(shown.split()) in " ".join(source.split())
