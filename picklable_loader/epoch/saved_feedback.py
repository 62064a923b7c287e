"""A sampler in a state: its order, and the feedback and indices that it is still to be given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.cursor import Cursor
from ..core.deliveries import Delivery
from ..core.feedback import Feedback
from ..core.order import Listener, Order
from ..core.plan import Plan
from ..core.schedule import Schedule
from ..core.streams import StreamPlan
from ..core.task import Task
from ..errors import SYMPTOMS, DamagedStateError, warn
from ..orders.custom import CustomOrder
from ..orders.given import taker_of
from ..orders.unknown import saved_indices
from ..saving.states.notes import notes_as_plain, notes_from_plain
from ..saving.states.plain import decode


def saved_feedback(
    schedule: Schedule, undone: Sequence[Delivery], live: bool
) -> dict[str, Any] | None:
    """The feedback of a run, as a cursor holds it.

    Args:
        schedule: the run's.
        undone: the last deliveries, the newest first, which the cursor is behind: the same batches
            come again, with their feedback.
        live: it may hold objects that only pickle can save.
    """
    feedback = schedule.feedback
    if not feedback.listening:
        return None
    first = undone[-1] if undone else None
    step = schedule.delivered if first is None else first.delivered
    newest = schedule.deliveries.newest if first is None else first.newest
    notes = [[at, notes_as_plain(some, live)] for at, some in feedback.below(step).items()]
    heard = feedback.heard(newest, behind=bool(undone))
    state = {"budget": schedule.budget, "heard": heard, "notes": notes}
    return state if newest == step - 1 else {**state, "newest": newest}


def saved_order(
    order: Order, schedule: Schedule, sampler: Any, live: bool
) -> dict[str, Any] | None:
    """The state of an order, with the tail that ``flush`` offers to a sampler with ``put_back``."""
    state, plan = order.state(live), schedule.plan
    # A replay raises it again. The sampler's own state, or its pickled iterator, is behind it.
    replayed = state is None or ("log" in state and "iterator" not in state)
    if schedule.fault is not None and not replayed:
        warn(
            f"the sampler has raised {type(schedule.fault).__qualname__} while batches were "
            "drawn ahead, and next() has not raised it yet: a resumed pass goes on behind it. "
            "Save before that batch, or after next() has raised it"
        )
    tail = plan.tail if isinstance(plan, Plan) else None
    if not tail or state is None or not isinstance(order, Listener):
        return state
    if taker_of(order.iterator(), sampler) is None:
        return state
    return {**state, "tail": saved_indices(tail, live)}


def state_before(
    pending: Sequence[Task], order: Order | None, plan: Plan | StreamPlan
) -> dict[str, Any] | None:
    """The order's state before tasks that are pending, to draw them again; None: it has none."""
    if not pending or not isinstance(order, CustomOrder) or not isinstance(plan, Plan):
        return None
    first = pending[0]
    if first.step != plan.next_step - len(pending):  # some were delivered out of order
        return None
    return order.state_before(plan.item(first.step, first.position))


def restored_feedback(cursor: Cursor, order: Order, plan: Plan) -> Feedback:
    """The feedback that a run goes on with; its plan gets the tail that a state has."""
    if "tail" in (cursor.order or ()) and not order.seekable:
        try:
            plan.tail = list(decode(cursor.order["tail"]))  # type: ignore[index]
        except SYMPTOMS as error:
            raise DamagedStateError("order.tail", "plain indices", None) from error
    if cursor.feedback is None:
        # With nothing drawn ahead it may have been flushed: the original waits, too.
        flushed = cursor.order is not None and not cursor.window
        return Feedback(plan, waits=flushed and not order.seekable)
    saved = cursor.feedback
    if order.seekable or not isinstance(order, Listener):
        raise DamagedStateError("feedback", "absent, as this sampler receives none", saved)
    try:
        notes = {step: notes_from_plain(forms) for step, forms in saved["notes"]}
    except SYMPTOMS as error:
        raise DamagedStateError("feedback.notes", "what a state holds", error) from error
    return Feedback(plan, saved["heard"], notes)
