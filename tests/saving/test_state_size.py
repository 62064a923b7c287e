"""How large a state is: as docs/resuming.md and samplers.md say, for data of any length."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from golden.cases import GOLDEN, Counted, Golden

from picklable_loader import DataLoader, ShuffleBuffer

KILOBYTE = 1024
#: each of the three global generators of numpy, Python and torch takes about 3.4 kB as text
GENERATOR = 3500


def most(case: Golden) -> int:
    """The bound that the docs give for such a loader."""
    arguments = case.arguments()
    seeded = "seed" in arguments
    own = {
        "own generator": 3 * GENERATOR,
        "replacement": 3 * GENERATOR,
        "replacement of a source": 3 * GENERATOR,
        "shuffles in place": 4 * GENERATOR,
        "stateful iterator": 3 * GENERATOR,
        "stateful iterator that was opened": 3 * GENERATOR,
        "draws from torch": 4 * GENERATOR,
        "custom batches": 4 * GENERATOR,
        "MySampler": 5 * GENERATOR,  # its own state_dict holds one of torch's, as a tensor
    }
    if case.name in own:
        return own[case.name] + KILOBYTE
    if case.name == "stream by worker":
        return 6 * GENERATOR + KILOBYTE  # before and after the batches that are not delivered
    if arguments.get("seeding") == "worker":
        return 3 * GENERATOR + KILOBYTE
    if case.name == "buffer of interleaved":
        return 2 * KILOBYTE
    return KILOBYTE if seeded or case.name == "distributed" else 8 * KILOBYTE


def taken(case: Golden) -> dict[str, Any]:
    iterator = iter(case.make())
    for _ in range(case.delivered or 0):
        next(iterator)
    return iterator.state_dict()


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_a_state_is_no_larger_than_the_docs_say(case: Golden) -> None:
    assert len(pickle.dumps(taken(case))) <= most(case)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_state_does_not_grow_with_the_data(shuffle: bool, workers: int) -> None:
    sizes = []
    for length in (100, 10**6):
        loader = DataLoader(range(length), 8, shuffle=shuffle, seed=1, num_workers=workers)
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        sizes.append(len(json.dumps(iterator.state_dict())))
        iterator.close()
    assert sizes[1] <= sizes[0] + 20 < KILOBYTE


def test_a_buffer_s_state_grows_with_the_buffer_only() -> None:
    def size(of: int) -> int:
        loader = DataLoader(ShuffleBuffer(Counted(), of), 2, seed=1, snapshot_every_n_steps=1)
        iterator = iter(loader)
        next(iterator)
        return len(json.dumps(iterator.state_dict()))

    assert size(12) - size(2) < 10 * 10
