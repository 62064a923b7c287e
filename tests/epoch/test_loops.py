"""People's loops, killed after any step and resumed: each trains what an uninterrupted one does.

`docs/resuming.md` has these loops in its table of an epoch's end; each is run with the
``at_epoch_end`` that the table gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from laws.observe import plain
from zoo.datasets import Noisy

from picklable_loader import DataLoader
from picklable_loader.errors import EmptyEpochWarning

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


def until_a_step(loader: Any, epoch: int) -> Iterator[tuple[int, Any]]:
    while True:
        for batch in loader:
            yield -1, plain(batch)


def make(at_epoch_end: Any = "stop", **options: Any) -> DataLoader[Any]:
    options = {"shuffle": True, "seed": 3, "at_epoch_end": at_epoch_end, **options}
    loader = DataLoader(Noisy(12), 3, **options)
    loader.step_of_resume = 0  # type: ignore[attr-defined]
    return loader


LOOPS: dict[Loop, list[Any]] = {
    over_epochs: ["stop"],
    setting_epochs: ["stop", "next"],
    counting_by_itself: ["next"],
    until_a_step: ["next"],
}


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("loop, end", [(loop, end) for loop in LOOPS for end in LOOPS[loop]])
def test_a_loop_that_is_killed_after_a_step_trains_the_same(
    loop: Loop, end: Any, num_workers: int
) -> None:
    total = EPOCHS * STEPS
    whole = [seen for _, seen in zip(range(total), loop(make(), 0))]
    for killed in (2, STEPS, STEPS + 3, 2 * STEPS) if not num_workers else (STEPS,):
        loader = make(end, num_workers=num_workers)
        run = loop(loader, 0)
        trained = [next(run) for _ in range(killed)]
        state, epoch = loader.state_dict(), trained[-1][0]
        run.close()

        again: Any = make(end, num_workers=num_workers)
        again.load_state_dict(state)
        again.step_of_resume = killed % STEPS
        if loop is counting_by_itself and killed % STEPS == 0:
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
