"""What a state has of the feedback to a sampler, and how a run goes on with it."""

from __future__ import annotations

from typing import Any

from ..core.cursor import Cursor
from ..core.feedback import Feedback
from ..core.order import Listener, Order
from ..core.plan import Plan
from ..core.schedule import Schedule
from ..errors import SYMPTOMS, DamagedStateError
from ..saving.states.notes import notes_as_plain, notes_from_plain


def saved_feedback(schedule: Schedule, step: int, live: bool) -> dict[str, Any] | None:
    """The feedback of a run, as a cursor holds it.

    Args:
        schedule: the run's.
        step: the cursor's; the same batches come again from there on, with their feedback.
        live: it may hold objects that only pickle can save.
    """
    feedback = schedule.feedback
    if not feedback.listening:
        return None
    notes = [[at, notes_as_plain(some, live)] for at, some in feedback.below(step).items()]
    return {"budget": schedule.budget, "heard": feedback.heard, "notes": notes}


def restored_feedback(cursor: Cursor | None, order: Order, plan: Plan) -> Feedback | None:
    """The feedback that a cursor holds; None if there is none."""
    saved = None if cursor is None else cursor.feedback
    if saved is None:
        return None
    if order.seekable or not isinstance(order, Listener):
        raise DamagedStateError("feedback", "absent, as this sampler receives none", saved)
    try:
        notes = {step: notes_from_plain(forms) for step, forms in saved["notes"]}
    except SYMPTOMS as error:
        raise DamagedStateError("feedback.notes", "what a state holds", error) from error
    return Feedback(plan, saved["heard"], notes)
