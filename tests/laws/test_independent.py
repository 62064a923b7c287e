"""Law 1: the original goes on undisturbed, whatever is done with what was saved of it."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import pytest

from .cases import CUSTOM, DATASETS, OPTIONS, SEEKABLE, Case
from .codecs import COPY, PICKLES, STATES
from .observe import epochs, expected_warnings, seed_everything, seen, seen_next

pytestmark = pytest.mark.inline

#: nobody else's draws are seen here: orders that are drawn from a global generator are left out
OWN_DRAWS = [
    *(case for case in SEEKABLE if case.name not in ("weighted", "subset")),
    *(case for case in CUSTOM if "own" in case.name or "MySampler" in case.name),
    *(case for case in OPTIONS if "seed" in case.name),
    DATASETS[0],
    DATASETS[1],
]


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("case", OWN_DRAWS, ids=str)
def test_original_and_copies_go_on_in_turns(case: Case, step: int) -> None:
    seed_everything(1)
    expected = seen(iter(case.make()))
    seed_everything(1)
    original = iter(case.make())
    for _ in range(min(step, len(expected))):
        seen_next(original)
    runners = [original]
    for codec in (COPY, PICKLES[0], PICKLES[-1], STATES[0]):
        runners.append(codec.load(codec.save(original), case.make))
    found: list[list[Any]] = [[] for _ in runners]
    with expected_warnings():
        for round_ in zip_longest(*(_outcomes(runner) for runner in runners)):
            for batches, batch in zip(found, round_):
                batches.append(batch)
    rest = expected[step:]
    assert [[batch for batch in batches if batch is not None] for batches in found] == [rest] * 5


@pytest.mark.parametrize("case", [c for c in OWN_DRAWS if c.has_own_seed], ids=str)
def test_a_pickled_one_may_run_ahead_by_epochs(case: Case) -> None:
    seed_everything(1)
    expected = epochs(case, case.make(), 3)
    seed_everything(1)
    loader = case.make()
    original = iter(loader)
    first = [seen_next(original)]
    other = PICKLES[0].load(PICKLES[0].save(original), case.make)
    with expected_warnings():
        epochs(case, other.loader, 2)
    first += seen(original)
    assert [first, *epochs(case, loader, 2)] == expected


def _outcomes(iterator: Any) -> Any:
    while True:
        try:
            yield seen_next(iterator)
        except StopIteration:
            return
