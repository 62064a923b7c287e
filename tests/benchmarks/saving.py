"""What it costs to save one's place at every step, and to go on from it."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import RandomSampler

from .datasets import Busy, Many, Tiny, spin
from .workload import SIDES, Figure, Side, Workload, few

__all__ = ["WORKLOADS"]

_MILLISECOND = 0.001
_TURNS = 10


def keep(
    side: Side,
    quick: bool,
    *,
    dataset: Callable[[int], Any],
    batches: int,
    batch_size: int = 32,
    pickled: bool = False,
    step_s: float = 0.0,
) -> tuple[float, ...]:
    """Speed with a state at every step, as a share of the speed without.

    Both within one epoch, in turn: a stretch of steps with, a stretch without.
    """
    stretch = few(batches, quick) // 2
    length = (2 * _TURNS * stretch + 200) * batch_size
    loader = side.make(dataset(length), batch_size=batch_size, shuffle=True, num_workers=2)
    iterator = iter(loader)
    for _ in range(100):
        next(iterator)
    taken = {False: 0.0, True: 0.0}
    for turn in range(2 * _TURNS):
        saving = bool(turn % 2)
        begin = time.perf_counter()
        for _ in range(stretch):
            next(iterator)
            if step_s:
                spin(step_s)
            if saving:
                state = loader.state_dict()
                if pickled:
                    pickle.dumps(state)
        taken[saving] += time.perf_counter() - begin
    return (taken[False] / taken[True],)


def resume(side: Side, quick: bool) -> tuple[float, ...]:
    """Milliseconds from a saved state to the next batch, at 90% of a shuffled epoch."""
    dataset = Many(10**5 if quick else 10**7)
    batch_size = 1000
    passed = len(dataset) // batch_size * 9 // 10
    go_on = _by_hand if side.name == "torch" else _from_a_state
    return (go_on(side, dataset, batch_size, passed) * 1e3,)


def _by_hand(side: Side, dataset: Many, batch_size: int, passed: int) -> float:
    """What a torch user can do who has saved the generator: draw again, and cut off."""
    state = torch.Generator().manual_seed(0).get_state()
    begin = time.perf_counter()
    generator = torch.Generator()
    generator.set_state(state)
    order = list(RandomSampler(dataset, generator=generator))[passed * batch_size :]
    next(iter(side.make(dataset, batch_size=batch_size, sampler=order, num_workers=2)))
    return time.perf_counter() - begin


def _from_a_state(side: Side, dataset: Many, batch_size: int, passed: int) -> float:
    def make() -> Any:
        return side.make(dataset, batch_size=batch_size, shuffle=True, num_workers=2)

    loader = make()
    iterator = iter(loader)
    for _ in range(passed):
        next(iterator)
    saved = pickle.dumps(loader.state_dict())
    del loader, iterator
    begin = time.perf_counter()
    loader = make()
    loader.load_state_dict(pickle.loads(saved))
    next(iter(loader))
    return time.perf_counter() - begin


def _busy(length: int) -> Busy:
    return Busy(length, _MILLISECOND)


def _workload(name: str, title: str, **options: Any) -> Workload:
    figure = Figure(title, "of the speed without", more=True, limit=0.97, of_torch=False)

    def measure(side: Side, quick: bool) -> tuple[float, ...]:
        return keep(side, quick, **options)

    return Workload(name, measure, (figure,), SIDES[1:])


WORKLOADS = (
    _workload("state-tiny", "state at every step, tiny batches", dataset=Tiny, batches=600),
    _workload(
        "state-load",
        "state at every step, 1 ms to load a batch",
        dataset=_busy,
        batches=200,
        batch_size=1,
    ),
    _workload(
        "state-train",
        "state at every step, 1 ms to train on a batch",
        dataset=Tiny,
        batches=200,
        step_s=_MILLISECOND,
    ),
    _workload(
        "state-pickle",
        "pickled state at every step, 1 ms to load a batch",
        dataset=_busy,
        batches=200,
        batch_size=1,
        pickled=True,
    ),
    Workload(
        "resume",
        resume,
        (Figure("resume at 90% of 10⁷ shuffled samples", "ms", more=False, limit=0.6),),
    ),
)
