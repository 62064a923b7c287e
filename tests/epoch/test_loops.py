"""People's loops, killed after any step and resumed: each trains what an uninterrupted one does.

`docs/resuming.md` has these loops in its table of an epoch's end; each is run with the
``at_epoch_end`` that the table gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from laws.observe import plain
from zoo.datasets import CountedNoise, Noisy
from zoo.samplers import (
    CountsEpochs,
    CountsEpochsLazily,
    OwnPythonGenerator,
    PositionAndCounting,
)

from picklable_loader import DataLoader
from picklable_loader.errors import EmptyEpochWarning, LoaderWarning

EPOCHS, STEPS = 3, 4
#: trains with a loader from a saved epoch on; yields (epoch, batch) after each step
Loop = Callable[[Any, int], Iterator[tuple[int, Any]]]


def over_epochs(loader: Any, epoch: int) -> Iterator[tuple[int, Any]]:
    """As in torchdata's tutorial."""
    for epoch in range(epoch, EPOCHS):
        for batch in loader:
            yield epoch, plain(batch)


def setting_epochs(loader: Any, epoch: int) -> Iterator[tuple[int, Any]]:
    for epoch in range(epoch, EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            yield epoch, plain(batch)


def counting_by_itself(loader: Any, epoch: int) -> Iterator[tuple[int, Any]]:
    """A trainer that knows the length: an epoch is over with its last step. It never asks on."""
    while epoch < EPOCHS:
        batches = iter(loader)
        for _ in range(len(loader) - loader.step_of_resume):
            yield epoch, plain(next(batches))
        epoch, loader.step_of_resume = epoch + 1, 0


def setting_counted_epochs(loader: Any, epoch: int) -> Iterator[tuple[int, Any]]:
    """It counts an epoch with its last batch, and resumes with the next one."""
    if loader.is_resumed and not loader.step_of_resume:
        epoch += 1
    yield from setting_epochs(loader, epoch)


def until_a_step(loader: Any, epoch: int) -> Iterator[tuple[int, Any]]:
    while True:
        for batch in loader:
            yield -1, plain(batch)


#: what has something to leave to the next epoch, and how to build it
KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "seed": lambda: {"shuffle": True, "seed": 3},
    "generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "sampler with a generator": lambda: {"sampler": OwnPythonGenerator(), "seed": 3},
    "sampler that counts": lambda: {"sampler": CountsEpochs(), "seed": 3},
    "sampler that counts at its end": lambda: {"sampler": CountsEpochsLazily(), "seed": 3},
    "sampler with a state": lambda: {"sampler": PositionAndCounting(), "seed": 3},
    "dataset with a state": lambda: {"dataset": CountedNoise(12), "seed": 3},
}


def make(at_epoch_end: Any = "stop", kind: str = "seed", **options: Any) -> DataLoader[Any]:
    options = {"dataset": Noisy(12), "at_epoch_end": at_epoch_end, **KINDS[kind](), **options}
    loader = DataLoader(batch_size=3, **options)
    loader.step_of_resume = 0  # type: ignore[attr-defined]
    loader.is_resumed = False  # type: ignore[attr-defined]
    return loader


LOOPS: dict[Loop, list[Any]] = {
    over_epochs: ["stop"],
    setting_epochs: ["stop", "next"],
    setting_counted_epochs: ["stop", "next"],
    counting_by_itself: ["next"],
    until_a_step: ["next"],
}


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("loop, end", [(loop, end) for loop in LOOPS for end in LOOPS[loop]])
def test_a_loop_that_is_killed_after_a_step_trains_the_same(
    loop: Loop, end: Any, num_workers: int, kind: str
) -> None:
    if (loop, kind) == (counting_by_itself, "generator"):
        pytest.skip("torch's sampler draws once more if it is asked for StopIteration")
    steps = len(make(kind=kind))
    total = EPOCHS * steps
    workers = num_workers if kind == "dataset with a state" else 0  # its copies count apart
    whole = [seen for _, seen in zip(range(total), loop(make(kind=kind, num_workers=workers), 0))]
    for killed in (2, steps, steps + 3, 2 * steps) if not num_workers else (steps,):
        loader = make(end, kind, num_workers=num_workers)
        run = loop(loader, 0)
        trained = [next(run) for _ in range(killed)]
        state, epoch = loader.state_dict(), trained[-1][0]
        run.close()

        again: Any = make(end, kind, num_workers=num_workers)
        again.load_state_dict(state)
        again.step_of_resume, again.is_resumed = killed % steps, True
        if loop is counting_by_itself and killed % steps == 0:
            epoch += 1  # the trainer has counted the epoch
        rest = [seen for _, seen in zip(range(total - killed), loop(again, epoch))]
        assert trained + rest == whole, f"killed after step {killed}"


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_after_the_last_batch_torchdatas_loader_has_an_empty_pass_too() -> None:
    """Its documented loop needs one; ours says it in a warning."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    theirs = stateful(range(12), 3)
    states = [theirs.state_dict() for _ in theirs]
    theirs = stateful(range(12), 3)
    theirs.load_state_dict(states[-1])
    ours = make()
    states = [ours.state_dict() for _ in ours]
    ours = make()
    ours.load_state_dict(states[-1])
    with pytest.warns(EmptyEpochWarning):
        assert list(ours) == list(theirs) == []
    assert len(list(ours)) == len(list(theirs)) == STEPS


LEFT = pytest.warns(LoaderWarning, match="step 2 of epoch 0 is left after one batch")


def loaded(batches: int = 2, /, **options: Any) -> tuple[Any, Any]:
    """A loader at that step of a state, and the state."""
    saver = make(**options)
    iterator = iter(saver)
    for _ in range(batches):
        next(iterator)
    loader = make(**options)
    loader.load_state_dict(saver.state_dict())
    return loader, saver.state_dict()


@pytest.mark.parametrize("lives_on", [None, False, True])
def test_a_look_at_a_batch_of_a_loaded_state_is_warned_of_before_the_others_are_lost(
    lives_on: bool | None,
) -> None:
    options = {} if lives_on is None else {"num_workers": 2, "persistent_workers": lives_on}
    loader, state = loaded(**options)
    next(iter(loader))
    with LEFT:
        iterator = iter(loader)
    assert len(list(iterator)) == STEPS
    loader.load_state_dict(state)
    assert len(list(loader)) == STEPS - 2


def test_a_look_is_not_warned_of_where_the_program_has_chosen_a_later_epoch() -> None:
    loader, _ = loaded()
    next(iter(loader))
    loader.set_epoch(1)  # so a loop with a number of steps for each epoch goes on
    assert len(list(loader)) == STEPS


@pytest.mark.parametrize("batches", [0, 2])
@pytest.mark.parametrize("taken", [2, 3, 4])
def test_an_epoch_that_is_left_later_or_was_at_its_begin_is_not_warned_of(
    batches: int, taken: int
) -> None:
    loader, _ = loaded(batches)
    for _ in zip(range(taken), loader):
        pass
    assert len(list(loader)) == STEPS


def test_the_last_batch_of_an_epoch_leaves_none_to_come() -> None:
    loader, _ = loaded(STEPS - 1)
    next(iter(loader))
    assert len(list(loader)) == STEPS
