"""``in_order=False``: a worker that is stuck holds up no batch of the others."""

from __future__ import annotations

import itertools
import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from .sides import OURS, Make, assert_parity

#: batches of each worker
EACH = 14


class Gate:
    """An event that copies of a dataset share, in this process and in others."""

    def __init__(self) -> None:
        self.event = multiprocessing.get_context("fork").Event()

    def __deepcopy__(self, memo: Any) -> Gate:
        return self


class Counted(Dataset[tuple[int, int]]):
    """Index and worker; worker 0 waits for the gate."""

    def __init__(self, gate: Gate, workers: int) -> None:
        self.gate, self.workers = gate, workers

    def __len__(self) -> int:
        return EACH * self.workers

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        if worker == 0:
            self.gate.event.wait()
        return index, worker


class WithState(Counted):
    def __init__(self, gate: Gate, workers: int) -> None:
        super().__init__(gate, workers)
        self.reads = 0

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.reads += 1
        return super().__getitem__(index)

    def state_dict(self) -> dict[str, int]:
        return {"reads": self.reads}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.reads = state["reads"]


class Read(IterableDataset[tuple[int, int]]):
    """Numbers and worker; worker 0 waits for the gate."""

    def __init__(self, gate: Gate, workers: int) -> None:
        self.gate, self.workers = gate, workers

    def __iter__(self) -> Iterator[tuple[int, int]]:
        info = get_worker_info()
        assert info is not None
        for at in range(EACH):
            if info.id == 0:
                self.gate.event.wait()
            yield info.id * EACH + at, info.id


Kind = Callable[[Gate, int], Any]
KINDS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "iterable-style": (Read, {}),
    "map-style with a state": (WithState, {}),
    "round_robin": (Counted, {"schedule": "round_robin"}),
    "shuffled round_robin": (Counted, {"schedule": "round_robin", "shuffle": True}),
    "seeding worker": (Counted, {"seeding": "worker"}),
}


def loader(make: Make, kind: str, gate: Gate, workers: int) -> Any:
    build, options = KINDS[kind]
    ours = options if make is OURS else {k: v for k, v in options.items() if k == "shuffle"}
    return make(build(gate, workers), None, num_workers=workers, in_order=False, **ours)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_all_batches_of_other_workers_come_while_one_is_stuck(kind: str, workers: int) -> None:
    def observe(make: Make) -> Any:
        gate = Gate()
        iterator = iter(loader(make, kind, gate, workers))
        others = list(itertools.islice(iterator, EACH * (workers - 1)))
        gate.event.set()
        return (
            0 in {worker for _, worker in others},
            sorted(index for index, _ in [*others, *iterator]),
        )

    assert assert_parity(observe) == (False, [*range(EACH * workers)])


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_while_one_is_stuck_goes_on_with_its_batches(
    kind: str, num_workers: int
) -> None:
    gate = Gate()
    iterator = iter(loader(OURS, kind, gate, 3))
    others = [index for index, _ in itertools.islice(iterator, EACH * 2)]
    state, remaining = iterator.state_dict(), iterator.remaining
    assert len(state["window"]) <= 3, "one entry for all batches of a worker"
    gate.event.set()
    expected = sorted(index for index, _ in iterator)
    assert sorted([*others, *expected]) == [*range(3 * EACH)]
    again = loader(OURS, kind, gate, 3)
    if "seeding" not in KINDS[kind][1]:  # such a state goes on under as many workers only
        again.num_workers, again.prefetch_factor = num_workers, 2 if num_workers else None
    again.load_state_dict(state)
    rest = iter(again)
    assert rest.remaining == remaining
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fetched again")
        assert sorted(index for index, _ in rest) == expected
