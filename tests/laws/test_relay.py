"""Law 1, again and again: every batch is delivered by another iterator, loaded from the last."""

from __future__ import annotations

from typing import Any

import pytest

from .cases import ALL, CUSTOM, DATASETS, SEEKABLE, Case
from .codecs import PICKLES, STATES, Codec
from .observe import expected_warnings, seed_everything, seen_next
from .test_exact import EPOCHS, uninterrupted

DOORS = [PICKLES[0], STATES[0]]
#: each after itself and after the other
PAIRS = [PICKLES[0], PICKLES[0], STATES[0], STATES[0]]


def relay(case: Case, codecs: list[Codec], workers: list[int]) -> list[list[Any]]:
    """Save and load before and after every batch, and between epochs."""
    seed_everything(1)
    iterator = iter(case.make(workers[0]))
    passes: list[list[Any]] = [[]]
    count = 0

    def hand_on() -> None:
        nonlocal iterator, count
        codec, num_workers = codecs[count % len(codecs)], workers[count % len(workers)]
        count += 1
        saved = codec.save(iterator)
        iterator.close()
        seed_everything(99 + count)
        iterator = codec.load(saved, lambda: case.make(num_workers))
        iterator.loader.num_workers = num_workers
        iterator.loader.prefetch_factor = 2 if num_workers else None

    while True:
        hand_on()
        try:
            if len(passes[-1]) == case.limit:
                raise StopIteration
            passes[-1].append(seen_next(iterator))
        except StopIteration:
            if len(passes) == EPOCHS:
                return passes
            passes.append([])
            iterator = iter(iterator.loader)


@pytest.mark.inline
@pytest.mark.parametrize("case", ALL, ids=str)
def test_every_batch_may_come_from_another_iterator(case: Case) -> None:
    with expected_warnings():
        assert relay(case, PAIRS, [0]) == uninterrupted(case, 0)


SOME = [SEEKABLE[2], SEEKABLE[11], CUSTOM[1], CUSTOM[8], CUSTOM[14], DATASETS[1]]


@pytest.mark.parametrize("case", SOME, ids=str)
def test_the_number_of_workers_may_change_at_every_batch(case: Case) -> None:
    with expected_warnings():
        assert relay(case, DOORS, [0, 1, 0, 2, 0]) == uninterrupted(case, 0)
