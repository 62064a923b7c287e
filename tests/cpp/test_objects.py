"""Bound classes are ordinary Python objects: pickling, len, indices, loops, torch's loaders."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import dill
import numpy as np
import pytest
import torch
from laws.codecs import by_torch
from torch.utils.data import IterableDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from picklable_loader import DataLoader
from picklable_loader.fetching.transport.arena import ArenaFull
from picklable_loader.fetching.worker.collate import collate_into, empty, may_draw
from picklable_loader.integrations.cpp import Whole

pytestmark = pytest.mark.inline
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "cloudpickle": lambda thing: cloudpickle.loads(cloudpickle.dumps(thing)),
    "dill": lambda thing: dill.loads(dill.dumps(thing)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "torch.save": by_torch,
}


def seeded(take: Callable[[], Any]) -> str:
    torch.manual_seed(4)
    return str(take())


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_gives_what_the_original_gives(way: str, parts: Any) -> None:
    copied = WAYS[way]
    for dataset in (parts.Rows(parts.values()), parts.InPython(5), parts.Shared(parts.values())):
        dataset.remark = "mine"
        again = copied(dataset)
        assert (type(again), again.remark, len(again)) == (type(dataset), "mine", len(dataset))
        assert seeded(lambda: again[3]) == seeded(lambda: dataset[3])
    stack = copied(parts.Stack())
    assert torch.equal(stack([(torch.ones(2), torch.ones(1))])[0], torch.ones(1, 2))


@pytest.mark.parametrize("way", sorted({*WAYS} - {"copy"}))
def test_a_copy_of_a_sampler_is_at_the_same_place(way: str, parts: Any) -> None:
    sampler = parts.Shuffled(10, seed=6)
    iterator = iter(sampler)
    first = [next(iterator) for _ in range(4)]
    again = WAYS[way](iterator)
    rest = list(again)
    assert rest == list(iterator) and sorted(first + rest) == list(range(10))


def test_what_a_constructor_draws_is_the_same_in_a_copy(parts: Any) -> None:
    torch.manual_seed(0)
    dataset = parts.Rows(length=5)
    before = torch.get_rng_state()
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(dataset))))
    assert torch.equal(torch.get_rng_state(), before), "the program's generator has moved"
    assert seeded(lambda: again[2]) == seeded(lambda: dataset[2])


def test_a_pickle_is_small_and_has_no_code(parts: Any) -> None:
    assert len(pickle.dumps(parts.Samples(10))) < 120
    state = iter(parts.Stream(10)).state_dict()
    assert state["source"]["position"]["at"].item() == 0
    assert b"torchscript" not in pickle.dumps(parts.RandomSampler(10)).lower()


def test_a_dataset_is_a_sequence(parts: Any) -> None:
    samples = parts.Samples(3)
    assert len(samples) == 3
    assert [sample["name"] for sample in samples] == ["sample 0", "sample 1", "sample 2"]
    assert [samples[i]["label"] for i in (-1, np.int64(1), torch.tensor(0))] == [2, 1, 0]
    assert default_collate(samples.__getitems__([0, 2]))["label"].tolist() == [0, 2]


def test_samples_may_be_bools_and_get_private(parts: Any) -> None:
    assert [len(parts.Flags()), len(parts.Flags(5))] == [3, 5]
    flags = parts.Flags()
    assert flags.__getitems__([0, 1, 2]) == [flags[at] for at in range(3)] == [False, True, False]


def test_a_dict_is_taken_for_the_struct_whose_fields_it_has(parts: Any) -> None:
    cat, dog = {"whiskers": 3, "name": "Tom"}, {"tail": 2}
    assert (parts.Pets(cat)[0], parts.Pets(dog)[1]) == (cat, dog)
    assert parts.CountsDogs()([cat, dog, {"tail": 0.5}]) == 2
    with pytest.raises(TypeError, match="constructor"):
        parts.Pets({"tail": "long"})


def test_a_dataset_of_unknown_size_has_no_len(parts: Any) -> None:
    with pytest.raises(TypeError, match="size"):
        len(parts.Unnamed())


def test_a_batch_that_is_whole_passes_through_the_default_collate(parts: Any) -> None:
    (whole,) = parts.Loops(parts.values()).__getitems__([4, 2])
    assert isinstance(whole, Whole)
    numbers, which = default_collate([whole])
    assert which.tolist() == [4, 2] and numbers[:, 0].tolist() == [4, 2]


def test_a_loader_of_tensors_needs_no_seeds_yet(parts: Any) -> None:
    """Though default_collate has learned of whole batches."""
    assert not may_draw(torch.zeros(3), default_collate)
    assert may_draw(parts.Loops(parts.values()), default_collate)


def test_large_batches_are_made_in_the_memory_that_a_worker_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def allocate(length: int) -> Any:
        asked.append(length)
        if length > 10**6:
            raise ArenaFull
        return np.empty(length, np.uint8)

    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, default_collate_fn_map[torch.Tensor])
    assert empty([500, 100], torch.int64).shape == (500, 100) and not asked
    assert empty([], torch.int64).shape == ()
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, partial(sum, allocate))  # a user's
    assert empty([500, 100], torch.int64).shape == (500, 100) and not asked
    monkeypatch.undo()
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, default_collate_fn_map[torch.Tensor])
    collate_into(allocate)
    made = [empty(shape, torch.int64) for shape in ((5, 2), (500, 100), (5000, 100))]
    assert [(each.dtype, each.shape) for each in made][1] == (torch.int64, (500, 100))
    assert asked == [400_000, 4_000_000]


def test_a_stream_is_iterable_style_and_each_pass_begins_anew(parts: Any) -> None:
    stream = parts.Counter(4)
    assert isinstance(stream, IterableDataset)
    assert [[int(number) for number, _ in stream] for _ in range(2)] == [[0, 1, 2, 3]] * 2
    for drop_last, expected in ((False, [[0, 1, 2], [3]]), (True, [[0, 1, 2]])):
        batches = stream.batches(3, drop_last=drop_last)
        assert isinstance(batches, IterableDataset) and len(batches) == len(expected)
        assert [[int(number) for number, _ in batch] for batch in batches] == expected


def test_a_batch_sampler_has_the_length_and_the_attributes_of_torchs(parts: Any) -> None:
    batches = parts.Shuffled(10).batches(4, drop_last=True)
    assert (len(batches), batches.batch_size, batches.drop_last) == (2, 4, True)
    assert len(DataLoader(range(10), batch_sampler=parts.Shuffled(10).batches(4))) == 3
    distributed = parts.DistributedRandomSampler(10).batches(4)
    orders = []
    for epoch in (0, 1, 0):
        distributed.set_epoch(epoch)
        orders.append([*copy.deepcopy(distributed)])
    assert orders[0] == orders[2] != orders[1]


def test_a_sampler_has_one_position_and_says_so(parts: Any) -> None:
    sampler = parts.Shuffled(5)
    old, new = iter(sampler), iter(sampler)
    next(old), next(new)
    with pytest.raises(RuntimeError, match="another iterator of this Shuffled has begun since"):
        next(old)


def test_random_numbers_of_samples_do_not_depend_on_the_batch(parts: Any) -> None:
    """In a whole batch as well: seeding="sample" hands over the samples' seeds."""
    for make in (parts.Rows, parts.Loops, parts.Stacked, parts.Shared):
        small, large = (
            torch.cat([batch[0] for batch in loader])
            for loader in (
                DataLoader(make(parts.values()), size, shuffle=True, seed=3, seeding="sample")
                for size in (2, 5)
            )
        )
        assert torch.equal(small, large) and len(small.unique()) > 10
