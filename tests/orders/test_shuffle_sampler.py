"""ShuffleSampler: every index once, without a list of them, and exact after a resume."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler
from zoo.datasets import Numbers

from picklable_loader import DataLoader, ShuffleSampler
from picklable_loader.errors import DamagedStateError
from picklable_loader.orders.permutation import MOST
from picklable_loader.orders.torch_samplers import is_known

N = 50


def taken(iterator: Any, count: int = -1) -> list[int]:
    batches = iterator if count < 0 else [next(iterator) for _ in range(count)]
    return [number for batch in batches for number in batch.tolist()]


def make(length: int = N, **options: Any) -> Any:
    torch.manual_seed(5)
    return DataLoader(Numbers(length), 4, shuffle="indexed", **options)


def test_indexed_makes_the_sampler() -> None:
    loader = make()
    assert type(loader.sampler) is ShuffleSampler and is_known(loader.sampler)
    assert sorted(taken(loader)) == list(range(N))


@pytest.mark.parametrize("seed", [None, 3])
def test_torchs_loader_gives_every_index_once_in_another_order_each_epoch(seed: int | None) -> None:
    sampler = ShuffleSampler(N, seed)
    loader = torch.utils.data.DataLoader(range(N), 4, sampler=sampler)
    passes = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        passes.append(tuple(taken(loader)))
    assert all(sorted(each) == list(range(N)) for each in passes)
    assert len(set(passes)) == 3


@pytest.mark.parametrize("options", [{}, {"seed": 1}], ids=str)
@pytest.mark.parametrize("seed", [None, 3])
def test_a_loader_shuffles_each_epoch_anew_by_itself(seed: int | None, options: Any) -> None:
    loader = DataLoader(range(N), 4, sampler=ShuffleSampler(N, seed), **options)
    passes = [tuple(taken(loader)) for _ in range(3)]
    assert len(set(passes)) == 3
    if seed is not None or options:
        loader.set_epoch(1)
        assert tuple(taken(loader)) == passes[1]


def test_a_seeded_order_is_the_one_under_torchs_loader() -> None:
    ours = DataLoader(range(N), 4, sampler=ShuffleSampler(N, 3))
    theirs = ShuffleSampler(N, 3)
    for epoch in range(2):
        theirs.set_epoch(epoch)
        assert taken(ours) == taken(torch.utils.data.DataLoader(range(N), 4, sampler=theirs))


def test_without_a_seed_it_draws_once_where_random_sampler_does() -> None:
    torch.manual_seed(5)
    theirs = taken(torch.utils.data.DataLoader(range(N), 4, sampler=ShuffleSampler(N)))
    state = torch.get_rng_state()
    torch.manual_seed(5)
    assert taken(DataLoader(range(N), 4, sampler=ShuffleSampler(N))) == theirs
    assert torch.equal(torch.get_rng_state(), state)


def test_a_generator_of_the_programs_decides() -> None:
    passes = [taken(make(generator=torch.Generator().manual_seed(number))) for number in (1, 1, 2)]
    assert passes[0] == passes[1] != passes[2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", range(13))
@pytest.mark.parametrize("options", [{}, {"seed": 1}], ids=str)
def test_it_goes_on_exactly_at_every_step(options: Any, step: int, workers: int) -> None:
    whole = make(**options)
    epochs = taken(whole), taken(whole)
    iterator = iter(make(num_workers=workers, **options))
    begun = taken(iterator, step)
    state, pickled = json.loads(json.dumps(iterator.state_dict())), pickle.dumps(iterator)
    iterator.close()
    again = make(**options)
    torch.manual_seed(77)
    again.load_state_dict(state)
    for resumed in iter(again), pickle.loads(pickled):
        assert begun + taken(resumed) == epochs[0]
        assert taken(resumed.loader) == epochs[1]


def test_an_epoch_of_any_length_begins_and_resumes_at_once() -> None:
    iterator = iter(make(10**15, seed=1))
    first = taken(iterator, 2)
    iterator.skip(10**12)
    state = iterator.state_dict()
    later = taken(iterator, 2)
    again = make(10**15, seed=1)
    assert again.batch_at(step=0).tolist() == first[:4]
    again.load_state_dict(state)
    assert taken(iter(again), 2) == later != first
    assert len(json.dumps(state)) < 1024


@pytest.mark.parametrize("length", [0, 1, 2, 4095, 4096, 4097, 10_000])
def test_chunks_join(length: int) -> None:
    found = taken(DataLoader(Numbers(length), 7, shuffle="indexed", seed=1))
    assert sorted(found) == list(range(length))


def test_batches_of_a_batch_sampler_are_shuffled() -> None:
    batches = BatchSampler(ShuffleSampler(N, 1), 4, drop_last=True)
    loader = DataLoader(range(N), batch_sampler=batches)
    found = taken(loader)
    assert len(set(found)) == 48
    assert taken(loader) != found


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sampler": [1, 2]}, "mutually exclusive with shuffle"),
        ({"batch_sampler": [[1, 2]]}, "mutually exclusive"),
    ],
)
def test_what_cannot_be_shuffled_is_refused(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DataLoader(range(N), **{"shuffle": "indexed", **options})


def test_streams_are_refused_in_torchs_words() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(N))

    with pytest.raises(ValueError, match="expected unspecified shuffle"):
        DataLoader(Stream(), shuffle="indexed")


@pytest.mark.parametrize("wrong", [-1, MOST + 1])
def test_a_length_out_of_range_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"found {wrong}"):
        ShuffleSampler(wrong)


@pytest.mark.parametrize("wrong", [1.5, "10", object()])
def test_what_has_no_length_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        ShuffleSampler(wrong if wrong != "10" else None)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [-1, 2**64, "1", None])
def test_a_damaged_key_is_refused(key: Any) -> None:
    loader = make(seed=1)
    iterator = iter(loader)
    next(iterator)
    state = iterator.state_dict()
    state["order"]["key"] = key
    state.pop("checksum")
    with pytest.raises(DamagedStateError, match=r"order\.key|checksum"):
        make(seed=1).load_state_dict(state)
