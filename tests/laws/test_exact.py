"""Law 1: from any step on, what was loaded yields what the saved iterator goes on to yield.

One run saves itself at every step; each save is resumed under strange random states, to the end of
its epoch, and compared with a run that never saved. The codecs take turns: a step is saved by a
third of them, the next step by the next third, so that each codec meets each case and each step.
Every fifth save is followed through the next epochs as well. With ``--whole-matrix`` every codec
saves at each step, and all saves are followed.

=====================  ============================================================================
every kind of sampler  without workers: the codecs in turn; saved over one worker or two: pickle,
and dataset            state, JSON in turn, going on without; again and again (`test_relay`)
a few of each          the codecs in turn over one and two workers; going on with workers
start methods          spawn, forkserver and a fresh process: `test_start_methods`
streams                zero, one, two and four workers: `test_streams`
=====================  ============================================================================
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from .cases import ALL, CUSTOM, DATASETS, OPTIONS, SEEKABLE, Case
from .codecs import COPY, JSON, PICKLES, STATES, Codec
from .observe import epochs, expected_warnings, seed_everything, seen, seen_next

#: epochs of each run; it saves itself in all but the last
EPOCHS = 3


@dataclass(frozen=True)
class Saved:
    """What one codec has made of the iterator at one step."""

    epoch: int
    step: int
    #: StopIteration was raised
    ended: bool
    codec: Codec
    data: Any

    def __str__(self) -> str:
        return f"{self.codec} in epoch {self.epoch} at step {self.step}{' (end)' * self.ended}"


@cache
def uninterrupted(case: Case, num_workers: int, **more: Any) -> list[list[Any]]:
    seed_everything(1)
    return epochs(case, case.make(num_workers, **more), EPOCHS)


def codecs(case: Case) -> list[Codec]:
    return [*PICKLES, COPY, *STATES, *[JSON] * case.json]


def saving(
    case: Case, num_workers: int, kinds: list[Codec], turns: int = 1
) -> tuple[list[list[Any]], list[Saved]]:
    """The same run, which saves itself at every step; each codec at every so-manieth."""
    seed_everything(1)
    loader = case.make(num_workers)
    passes: list[list[Any]] = []
    saves: list[Saved] = []
    turn = itertools.count(ALL.index(case))

    def save(iterator: Any, step: int, ended: bool) -> None:
        if len(passes) < EPOCHS - 1:
            for codec in kinds[next(turn) % turns :: turns]:
                saves.append(Saved(len(passes), step, ended, codec, codec.save(iterator)))

    for _ in range(EPOCHS):
        iterator, batches = iter(loader), list[Any]()
        for step in range(case.limit or 1000):
            save(iterator, step, False)
            try:
                batches.append(seen_next(iterator))
            except StopIteration:
                save(iterator, step, True)
                break
        passes.append(batches)
    return passes, saves


def assert_all_go_on(
    case: Case, saves: list[Saved], expected: list[list[Any]], later: bool, whole_matrix: bool
) -> None:
    """Resume all without workers; ``later``: look at the epochs after some of them as well."""
    for number, saved in enumerate(saves):
        assert_goes_on(case, saved, expected, 0, later and (whole_matrix or number % 5 == 0))


def assert_goes_on(
    case: Case, saved: Saved, expected: list[list[Any]], num_workers: int, later: bool
) -> None:
    """Resume and compare; ``later``: the epochs after this one as well."""
    seed_everything(99)
    iterator = saved.codec.load(saved.data, lambda: case.make(num_workers))
    rest = expected[saved.epoch][saved.step :]
    starts_anew = saved.ended and saved.codec in (*STATES, JSON)
    if starts_anew:
        rest = expected[saved.epoch + 1]
    if not saved.codec.shares_loader:
        iterator.loader.num_workers = num_workers
        iterator.loader.prefetch_factor = 2 if num_workers else None
    left = None if case.limit is None else len(rest)
    with expected_warnings():
        assert seen(iterator, left) == rest, f"{saved}: the rest of the epoch"
    if later and not saved.codec.shares_loader:
        after = expected[saved.epoch + 1 + starts_anew :]
        assert epochs(case, iterator.loader, len(after)) == after, f"{saved}: later epochs"


@pytest.mark.inline
@pytest.mark.parametrize("case", ALL, ids=str)
def test_every_save_goes_on_exactly(case: Case, whole_matrix: bool) -> None:
    expected = uninterrupted(case, 0)
    found, saves = saving(case, 0, codecs(case), 1 if whole_matrix else 3)
    assert found == expected, "saving has disturbed the run"
    assert_all_go_on(case, saves, expected, True, whole_matrix)


@pytest.mark.matrix
@pytest.mark.parametrize("case", [c for c in ALL if not c.same_workers], ids=str)
def test_every_save_made_with_workers_goes_on_without_them(case: Case, whole_matrix: bool) -> None:
    alike = not case.counts_iters  # with workers and without
    num_workers = 2 - ALL.index(case) % 2
    expected = uninterrupted(case, 0 if alike else num_workers)
    kinds = [PICKLES[0], STATES[0], *[JSON] * case.json]
    found, saves = saving(case, num_workers, kinds, 1 if whole_matrix else 2)
    assert found == expected, "saving has disturbed the run"
    assert_all_go_on(case, saves, expected, alike, whole_matrix)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("case", [SEEKABLE[3], SEEKABLE[10], CUSTOM[0], CUSTOM[14]], ids=str)
def test_every_codec_saves_beside_workers(case: Case, num_workers: int, whole_matrix: bool) -> None:
    expected = uninterrupted(case, num_workers)
    kinds = [codec for codec in codecs(case) if codec is not COPY]
    found, saves = saving(case, num_workers, kinds, 1 if whole_matrix else 3)
    assert found == expected, "saving has disturbed the run"
    assert_all_go_on(case, saves, expected, True, whole_matrix)


WITH_WORKERS = [
    *(c for c in SEEKABLE if c.name in ("sequential", "shuffle, generator", "more than all")),
    *(c for c in CUSTOM if c.counts_iters or "state_dict" in c.name or "goes" in c.name),
    *(c for c in (*DATASETS, *OPTIONS) if c.same_workers),
    *(c for c in DATASETS if "broken" in c.name),
]


@pytest.mark.matrix
@pytest.mark.parametrize("case", WITH_WORKERS, ids=str)
def test_saves_made_with_workers_go_on_with_workers(case: Case) -> None:
    expected = uninterrupted(case, 2 if case.same_workers or case.counts_iters else 0)
    found, saves = saving(case, 2, [PICKLES[0], COPY, STATES[0]])
    assert found == expected, "saving has disturbed the run"
    for saved in saves[5::17]:
        assert_goes_on(case, saved, expected, 2, later=True)


@pytest.mark.parametrize("codec", [PICKLES[0], PICKLES[-1], STATES[0]], ids=str)
@pytest.mark.parametrize("case", [SEEKABLE[2], SEEKABLE[4], CUSTOM[3], DATASETS[-3]], ids=str)
def test_what_was_saved_after_an_epochs_end_goes_on_as_persistent_workers_do(
    case: Case, codec: Codec
) -> None:
    more = {"persistent_workers": True}
    expected = uninterrupted(case, 2, **more)
    seed_everything(1)
    iterator = iter(case.make(2, **more))
    assert seen(iterator) == expected[0]
    saved = codec.save(iterator)
    iterator.close()
    seed_everything(99)
    again = codec.load(saved, lambda: case.make(2, **more))
    loader = again.loader
    if codec is not STATES[0]:
        del again  # the loader alone goes on
        again = iter(loader)
    assert [seen(again), seen(iter(loader))] == expected[1:]


FEW = [SEEKABLE[2], SEEKABLE[4], CUSTOM[0], CUSTOM[-1], DATASETS[1]]


@pytest.mark.parametrize("case", FEW, ids=str)
def test_saves_made_without_workers_go_on_with_workers(case: Case) -> None:
    expected = uninterrupted(case, 0)
    _, saves = saving(case, 0, [PICKLES[0], STATES[0]])
    for saved in saves[1::7]:
        assert_goes_on(case, saved, expected, 2, later=True)
