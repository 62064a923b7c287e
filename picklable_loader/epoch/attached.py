"""A dataset that its loader was pickled without (``pickle_dataset=False``), and the attached one.

Without workers, the epochs have changed the program's own dataset. The pickle has these changes,
and the attached dataset is given them.
"""

from __future__ import annotations

from typing import Any

from ..datasets.protocol import set_epoch_of
from ..errors import CannotSaveError
from ..fetching.worker.baseline import Baseline
from ..saving.pickles.picklers import to_bytes
from ..saving.pickles.placeholder import is_absent
from .dataset_rng import put_back
from .history import History
from .spec import Spec
from .stream_states import settle, state_now


def left_behind(history: History, spec: Spec) -> dict[int, Any]:
    """By stream, the state of a dataset that a pickle of the loader does not hold.

    Raises:
        CannotSaveError: its ``state_dict`` raises.
    """
    moved = history.iterated or history.next_states
    here = moved and not (spec.reads_copies or is_absent(spec.dataset))
    if not here or history.resume is not None:  # a state says what it is to be
        return history.next_states
    if not spec.stateful:
        origin = history.choice.origin
        changes = {} if origin is None else origin.reached()
        return {0: to_bytes({**changes, "over": True})} if changes else {}
    states = state_now(spec, history.choice.dataset_has)
    if isinstance(states.get(0), CannotSaveError):
        raise states[0]
    return states or history.next_states


def take_over(history: History, spec: Spec, dataset: Any) -> None:
    """Bring the attached dataset to the state of the one that the pickle lacks."""
    drift = history.past.get("changed", ())
    history.source.dataset, history.past = dataset, {}
    if history.position is not None and history.position.start is not None:
        put_back(dataset, history.position.start.cursor.dataset_rng)
    announced = history.choice.announced
    if spec.workers:  # they are given these states later
        if announced is not None:
            set_epoch_of(dataset, announced)
        return
    origin = history.origin(spec)  # as the program has built it
    history.choice.put_back(spec, announced)
    settle(dataset, history.next_states.values())  # which was taken after that
    if origin is not None:
        origin.takes_over(drift)
        if (undo := origin.to_undo()) is not None:
            history.taken_over = {"begun": undo}


def give_back(history: History, spec: Spec) -> None:
    """Bring the attached dataset back to what the program has built: a state was loaded."""
    Baseline.put_back(spec.dataset, history.taken_over)
    history.taken_over = {}
    history.choice.put_back(spec, history.choice.announced)
