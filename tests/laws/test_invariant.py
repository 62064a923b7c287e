"""Law 3: batches, augmentation included, do not depend on who fetches them, or when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from zoo.datasets import Gated, N, sample

from .cases import ALL, DATASETS, SEEKABLE, Case
from .codecs import JSON, PICKLES, STATES, Codec
from .observe import epochs, seed_everything, seen

WAYS: dict[str, dict[str, Any]] = {
    "1 worker": {"num_workers": 1},
    "2 workers": {"num_workers": 2},
    "round robin": {"num_workers": 2, "schedule": "round_robin"},
    "little prefetching": {"num_workers": 2, "prefetch_factor": 1},
    "much prefetching": {"num_workers": 1, "prefetch_factor": 9},
    "living on": {"num_workers": 2, "persistent_workers": True},
}


def stream(case: Case, **way: Any) -> list[list[Any]]:
    seed_everything(1)
    return epochs(case, case.make(**way), 2)


#: Torch itself calls iter(sampler) more often, or draws further ahead, with workers. Every other
#: case is read by two workers in `test_exact`, and compared with a run without workers.
INVARIANT = [c for c in ALL[1::2] if not (c.same_workers or c.counts_iters)]


@pytest.mark.matrix
@pytest.mark.parametrize("case", INVARIANT, ids=str)
def test_two_workers_deliver_what_none_delivers(case: Case) -> None:
    assert stream(case, num_workers=2) == stream(case)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", [SEEKABLE[3], DATASETS[0], DATASETS[1]], ids=str)
def test_the_way_of_fetching_does_not_matter(case: Case, way: str) -> None:
    if way == "living on" and not case.arguments().get("generator"):
        expected = stream(case)[:1]  # torch draws no base seed for workers that live on
        assert stream(case, **WAYS[way])[:1] == expected
    else:
        first, second = stream(case, **WAYS[way])
        expected = stream(case)
        assert first == expected[0]
        if way != "living on":
            assert second == expected[1]


@pytest.mark.parametrize("way", WAYS)
def test_with_a_seed_workers_that_live_on_deliver_the_same_too(way: str) -> None:
    case = Case("seed", lambda: {"shuffle": True, "seed": 3})
    assert stream(case, **WAYS[way]) == stream(case)


@pytest.mark.parametrize("case", [SEEKABLE[3], SEEKABLE[11], DATASETS[1]], ids=str)
def test_out_of_order_the_same_batches_come(case: Case) -> None:
    found = stream(case, num_workers=2, in_order=False)
    assert [sorted(map(repr, batches)) for batches in found] == [
        sorted(map(repr, batches)) for batches in stream(case)
    ]


class GatedNoise(Gated):
    def __getitem__(self, index: int) -> Any:
        return sample(super().__getitem__(index))


GATED = Case("gated", lambda: {"seed": 1, "in_order": False}, lambda: GatedNoise(N, range(1)))


@pytest.fixture
def overtaken() -> Iterator[tuple[Any, list[Any]]]:
    """An iterator whose second batch came first, while the first one is under way."""
    Gated.gate.clear()
    iterator = iter(GATED.make(2))
    delivered = [next(iterator).tolist()]
    assert delivered[0][0][0] == 3.0
    yield iterator, delivered
    Gated.gate.set()
    iterator.close()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("codec", [*PICKLES, *STATES, JSON], ids=str)
def test_out_of_order_what_was_overtaken_comes_once(
    codec: Codec, num_workers: int, overtaken: tuple[Any, list[Any]]
) -> None:
    iterator, delivered = overtaken
    saved = codec.save(iterator)
    Gated.gate.set()
    loaded = codec.load(saved, lambda: GATED.make(num_workers))
    loaded.loader.num_workers = num_workers
    everything = sorted(seen(iter(GATED.make())))
    assert sorted(delivered + seen(loaded)) == everything
    assert sorted(delivered + seen(iterator)) == everything
